//! Questions about the library and one device.

use crate::{
    library::{Answer, Code, Handle, Library, Number, Plain, address, text_of},
    types::{self, FieldValue, MemoryV2, PciInfo, PciInfoExt, Process, Sample, Utilization, version},
};
use std::ffi::CString;

/// Numbers of `nvmlClockType_t`.
pub const GRAPHICS: u32 = 0;
pub const SM: u32 = 1;
pub const MEMORY: u32 = 2;
pub const VIDEO: u32 = 3;

/// Fields of `nvmlDeviceGetFieldValues`.
pub mod field {
    pub const SINGLE_BIT_TOTAL: u32 = 3;
    pub const DOUBLE_BIT_TOTAL: u32 = 4;
    pub const PERF_POLICY_POWER: u32 = 74;
    pub const PERF_POLICY_SYNC_BOOST: u32 = 76;
    pub const MEMORY_TEMP: u32 = 82;
    pub const PCIE_REPLAY_ROLLOVER: u32 = 95;
    pub const POWER_AVERAGE: u32 = 185;
    pub const POWER_INSTANT: u32 = 186;
    pub const POWER_MIN_LIMIT: u32 = 187;
    pub const POWER_MAX_LIMIT: u32 = 188;
    pub const POWER_DEFAULT_LIMIT: u32 = 189;
    pub const POWER_CURRENT_LIMIT: u32 = 190;
    pub const POWER_REQUESTED_LIMIT: u32 = 192;
    pub const SHUTDOWN_TLIMIT: u32 = 193;
    pub const SLOWDOWN_TLIMIT: u32 = 194;
    pub const MEMORY_MAX_TLIMIT: u32 = 195;
    pub const GPU_MAX_TLIMIT: u32 = 196;
    pub const ATOMICS_OUTBOUND: u32 = 228;
    pub const ATOMICS_INBOUND: u32 = 229;
    pub const RECOVERY_ACTION: u32 = 230;
    pub const SW_THERMAL: u32 = 269;
    pub const HW_THERMAL: u32 = 270;
    pub const HW_BRAKE: u32 = 271;
    pub const REMAPPED_COR_INACTIVE: u32 = 301;
    pub const REMAPPED_UNC_INACTIVE: u32 = 302;
    /// Scopes of the power fields.
    pub const GPU: u32 = 0;
    pub const MODULE: u32 = 1;
    pub const MEMORY: u32 = 2;
}

/// Versions, for headers.
pub fn driver_version(library: &Library) -> Answer<String> {
    library.text("nvmlSystemGetDriverVersion", &[])
}

/// As `13.0`.
pub fn cuda_version(library: &Library) -> Answer<String> {
    let version: i32 = library.get("nvmlSystemGetCudaDriverVersion_v2", &[])?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

pub struct Device<'a> {
    pub library: &'a Library,
    pub handle: Handle,
    /// Its number among those that there are.
    pub index: u32,
}

impl<'a> Device<'a> {
    /// All that there are; one that cannot be opened has its error.
    pub fn all(library: &'a Library) -> Answer<Vec<Answer<Device<'a>>>> {
        let count: u32 = library.get("nvmlDeviceGetCount_v2", &[])?;
        Ok((0..count).map(|index| Device::by_index(library, index)).collect())
    }

    pub fn by_index(library: &'a Library, index: u32) -> Answer<Device<'a>> {
        let handle = library.get("nvmlDeviceGetHandleByIndex_v2", &[index as Number])?;
        Ok(Device { library, handle, index })
    }

    /// By index, UUID, serial number or place on the bus.
    pub fn by_name(library: &'a Library, name: &str) -> Answer<Device<'a>> {
        if let Ok(index) = name.parse() {
            return Device::by_index(library, index);
        }
        let text = CString::new(name).map_err(|_| Code::INVALID_ARGUMENT)?;
        let function = match name {
            name if name.starts_with("GPU-") || name.starts_with("MIG-") => "nvmlDeviceGetHandleByUUID",
            name if name.contains(':') => "nvmlDeviceGetHandleByPciBusId_v2",
            _ => "nvmlDeviceGetHandleBySerial",
        };
        let handle: Handle = library.get(function, &[address(&text)])?;
        let device = Device { library, handle, index: 0 };
        let index = device.get("nvmlDeviceGetIndex")?;
        Ok(Device { index, ..device })
    }

    fn arguments(&self, more: &[Number]) -> Vec<Number> {
        let mut all = vec![self.handle.0 as Number];
        all.extend(more);
        all
    }

    pub fn get<T: Plain>(&self, name: &str) -> Answer<T> {
        self.library.get(name, &self.arguments(&[]))
    }

    pub fn get_of<T: Plain>(&self, name: &str, arguments: &[Number]) -> Answer<T> {
        self.library.get(name, &self.arguments(arguments))
    }

    pub fn fill<T: Plain>(&self, name: &str, start: T) -> Answer<T> {
        self.library.fill(name, &self.arguments(&[]), start)
    }

    pub fn number(&self, name: &str) -> Answer<u32> {
        self.get(name)
    }

    pub fn pair(&self, name: &str) -> Answer<(u32, u32)> {
        self.library.pair(name, &self.arguments(&[]))
    }

    pub fn text(&self, name: &str) -> Answer<String> {
        self.library.text(name, &self.arguments(&[]))
    }

    /// A text that is described by a number.
    pub fn text_of(&self, name: &str, what: u32) -> Answer<String> {
        self.library.text(name, &self.arguments(&[what as Number]))
    }

    pub fn list<T: Plain>(&self, name: &str, arguments: &[Number]) -> Answer<Vec<T>> {
        self.library.list(name, &self.arguments(arguments))
    }

    /// A structure of version and number.
    pub fn versioned(&self, name: &str) -> Answer<u32> {
        let start = types::Versioned32 { version: version::<types::Versioned32>(1), value: 0 };
        self.fill(name, start).map(|answer| answer.value)
    }

    pub fn pci(&self) -> Answer<PciInfo> {
        self.get("nvmlDeviceGetPciInfo_v3")
    }

    pub fn bus_id(&self) -> Answer<String> {
        self.pci().map(|pci| text_of(&pci.bus_id).to_uppercase())
    }

    pub fn pci_ext(&self) -> Answer<PciInfoExt> {
        let mut start: PciInfoExt = crate::library::zeroed();
        start.version = version::<PciInfoExt>(1);
        self.fill("nvmlDeviceGetPciInfoExt", start)
    }

    pub fn memory(&self) -> Answer<MemoryV2> {
        let mut start: MemoryV2 = crate::library::zeroed();
        start.version = version::<MemoryV2>(2);
        self.fill("nvmlDeviceGetMemoryInfo_v2", start)
    }

    pub fn utilization(&self) -> Answer<Utilization> {
        self.get("nvmlDeviceGetUtilizationRates")
    }

    pub fn clock(&self, kind: u32) -> Answer<u32> {
        self.get_of("nvmlDeviceGetClockInfo", &[kind as Number])
    }

    pub fn max_clock(&self, kind: u32) -> Answer<u32> {
        self.get_of("nvmlDeviceGetMaxClockInfo", &[kind as Number])
    }

    pub fn temperature(&self) -> Answer<u32> {
        self.get_of("nvmlDeviceGetTemperature", &[0])
    }

    pub fn threshold(&self, kind: u32) -> Answer<u32> {
        self.get_of("nvmlDeviceGetTemperatureThreshold", &[kind as Number])
    }

    /// How far the device is from the temperature at which it slows down.
    pub fn margin(&self) -> Answer<i32> {
        self.versioned("nvmlDeviceGetMarginTemperature").map(u32::cast_signed)
    }

    /// Of any width and sign that the library gives it.
    pub fn field(&self, field: u32, scope: u32) -> Answer<i64> {
        let mut start: FieldValue = crate::library::zeroed();
        (start.field, start.scope) = (field, scope);
        let value: FieldValue = self.library.fill("nvmlDeviceGetFieldValues", &self.arguments(&[1]), start)?;
        if value.code != 0 {
            return Err(Code(value.code));
        }
        Ok(match value.kind {
            0 => f64::from_bits(value.value) as i64,
            1 => i64::from(value.value as u32),
            5 => i64::from(value.value as u32 as i32),
            6 => i64::from(value.value as u16),
            _ => value.value.cast_signed(),
        })
    }

    /// Processes that compute and those that draw.
    pub fn processes(&self) -> Answer<Vec<(Process, char)>> {
        let compute = self.list("nvmlDeviceGetComputeRunningProcesses_v3", &[]);
        let graphics = self.list("nvmlDeviceGetGraphicsRunningProcesses_v3", &[]).unwrap_or_default();
        let mut all: Vec<(Process, char)> = compute?.into_iter().map(|process| (process, 'C')).collect();
        for process in graphics {
            let process: Process = process;
            match all.iter_mut().find(|(other, _)| other.pid == process.pid) {
                Some((_, kind)) => *kind = 'M',
                None => all.push((process, 'G')),
            }
        }
        Ok(all)
    }

    /// Of `nvmlSamplingType_t`, since the beginning.
    pub fn samples(&self, kind: u32) -> Answer<Vec<Sample>> {
        let mut value_kind = 0u32;
        let value_kind = std::ptr::from_mut(&mut value_kind) as Number;
        self.list("nvmlDeviceGetSamples", &[kind as Number, 0, value_kind])
    }
}

/// The name that a process was started with, in full.
pub fn process_name(library: &Library, pid: u32) -> Answer<String> {
    library.text("nvmlSystemGetProcessName", &[pid as Number])
}
