//! Structures of NVML that this program reads, as nvml.h declares them.

use crate::library::Plain;

/// The version word of a structure: its size and number.
pub const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),* }
        // SAFETY: numbers and arrays of them.
        unsafe impl Plain for $name {}
    )* };
}

structures! {
    PciInfo {
        legacy_id: [u8; 16], domain: u32, bus: u32, device: u32, device_id: u32, subsystem_id: u32, bus_id: [u8; 32],
    }
    PciInfoExt {
        version: u32, domain: u32, bus: u32, device: u32, device_id: u32, subsystem_id: u32, base_class: u32, sub_class: u32,
        bus_id: [u8; 32],
    }
    Memory { total: u64, free: u64, used: u64 }
    MemoryV2 { version: u32, total: u64, reserved: u64, free: u64, used: u64 }
    Bar1Memory { total: u64, free: u64, used: u64 }
    Utilization { gpu: u32, memory: u32 }
    /// `value` has the type that `kind` names.
    FieldValue { field: u32, scope: u32, timestamp: i64, latency_us: i64, kind: u32, code: u32, value: u64 }
    SramErrors {
        version: u32, aggregate_parity: u64, aggregate_secded: u64, aggregate_correctable: u64, volatile_parity: u64,
        volatile_secded: u64, volatile_correctable: u64, l2: u64, sm: u64, pcie: u64, microcontroller: u64, other: u64,
        threshold_exceeded: u32,
    }
    RemapHistogram { max: u32, high: u32, partial: u32, low: u32, none: u32 }
    /// `value` has the type that `nvmlDeviceGetSamples` says.
    Sample { timestamp_us: u64, value: u64 }
    PlatformInfo {
        version: u32, guid: [u8; 16], chassis_serial: [u8; 16], slot: u8, tray: u8, host: u8, peer: u8, module: u8,
    }
    Versioned32 { version: u32, value: u32 }
    Versioned64 { version: u32, value: u64 }
    VersionedPair { version: u32, first: u32, second: u32 }
    FabricInfo {
        version: u32, cluster: [u8; 16], status: u32, clique: u32, state: u32, health_mask: u32, health_summary: u8,
    }
    CaptureStats { sessions: u32, fps: u32, latency: u32 }
    Process { pid: u32, memory: u64, gpu_instance: u32, compute_instance: u32 }
    ProcessSample { pid: u32, timestamp_us: u64, sm: u32, memory: u32, encoder: u32, decoder: u32 }
    Bridge { count: u8, first_kind: u32, first_firmware: u32, rest: [u32; 254] }
    ViolationTime { reference_ns: u64, violation_ns: u64 }
    AccountingStats {
        gpu_utilization: u32, memory_utilization: u32, max_memory: u64, time_ms: u64, start_us: u64, running: u32,
        reserved: [u32; 5],
    }
}
