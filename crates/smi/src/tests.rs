//! Golden outputs over a library of fixed answers: one device that has everything that the summary shows, and one that has
//! nothing but a name.

use crate::device::Device;
use crate::library::{Answer, Library};
use crate::log::{self, Section};
use crate::types::{MemoryV2, PciInfo, Process, Utilization};
use crate::views::csv::{self, Format, Subject};
use crate::views::dmon::{self, Stamps};
use crate::views::{pmon, table, topology};
use std::ffi::{CStr, c_char, c_void};

/// Results of NVML.
const SUCCESS: u32 = 0;
const NOT_SUPPORTED: u32 = 3;
const INSUFFICIENT_SIZE: u32 = 7;

fn write_text(to: *mut c_char, text: &str) -> u32 {
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the callers of text functions have room for 256 bytes, and no text here is as long.
        unsafe { to.add(index).write(byte.cast_signed()) };
    }
    SUCCESS
}

fn put<T>(to: *mut T, value: T) -> u32 {
    // SAFETY: the callers pass the address of a value of the function's type.
    unsafe { to.write(value) };
    SUCCESS
}

/// Handles are 1 and 2.
fn second(device: usize) -> bool {
    device == 2
}

extern "C" fn driver(to: *mut c_char) -> u32 {
    write_text(to, "580.12.34")
}
extern "C" fn nvml(to: *mut c_char) -> u32 {
    write_text(to, "13.580.12.34")
}
extern "C" fn cuda(to: *mut i32) -> u32 {
    put(to, 13000)
}
extern "C" fn count(to: *mut u32) -> u32 {
    put(to, 2)
}
extern "C" fn by_index(index: u32, to: *mut usize) -> u32 {
    if index > 1 { 2 } else { put(to, index as usize + 1) }
}
extern "C" fn name(device: usize, to: *mut c_char) -> u32 {
    write_text(to, if second(device) { "A device with a name that does not fit" } else { "NVIDIA H100 80GB HBM3" })
}
extern "C" fn uuid(device: usize, to: *mut c_char) -> u32 {
    write_text(to, if second(device) { "GPU-2" } else { "GPU-1" })
}
extern "C" fn pci(device: usize, to: *mut PciInfo) -> u32 {
    let mut info: PciInfo = crate::library::zeroed();
    (info.bus, info.device_id) = (device as u32, 0x2330_10de);
    for (place, byte) in info.bus_id.iter_mut().zip(format!("00000000:0{device}:00.0").bytes()) {
        *place = byte;
    }
    put(to, info)
}
extern "C" fn on(device: usize, to: *mut u32) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(to, 1) }
}
extern "C" fn off(device: usize, to: *mut u32) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(to, 0) }
}
extern "C" fn both_on(device: usize, first: *mut u32, other: *mut u32) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(first, 1) | put(other, 1) }
}
extern "C" fn both_off(device: usize, first: *mut u32, other: *mut u32) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(first, 0) | put(other, 0) }
}
extern "C" fn errors(device: usize, _kind: u32, _counter: u32, to: *mut u64, _: usize, _: usize) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(to, 0) }
}
extern "C" fn memory(device: usize, to: *mut MemoryV2) -> u32 {
    let total = 81559 << 20;
    let used = 827 << 20;
    if second(device) {
        return NOT_SUPPORTED;
    }
    put(to, MemoryV2 { version: 0, total, reserved: 480 << 20, free: total - used, used })
}
extern "C" fn rates(device: usize, to: *mut Utilization) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(to, Utilization { gpu: 12, memory: 3 }) }
}
extern "C" fn temperature(device: usize, _sensor: u32, to: *mut u32) -> u32 {
    if second(device) { 999 } else { put(to, 41) }
}
extern "C" fn power(device: usize, to: *mut u32) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(to, 111_460) }
}
extern "C" fn limit(device: usize, to: *mut u32) -> u32 {
    if second(device) { NOT_SUPPORTED } else { put(to, 700_000) }
}
extern "C" fn processes(device: usize, count: *mut u32, list: *mut Process) -> u32 {
    if second(device) {
        return put(count, 0);
    }
    // SAFETY: the caller passes the address of the room, and that many elements.
    let room = unsafe { count.read() };
    put(count, 1);
    if list.is_null() || room == 0 {
        return INSUFFICIENT_SIZE;
    }
    put(list, Process { pid: 1822, memory: 818 << 20, gpu_instance: u32::MAX, compute_instance: u32::MAX })
}
extern "C" fn process(_pid: u32, to: *mut c_char) -> u32 {
    write_text(to, "/a/path/that/is/longer/than/the/column/of/names/python3")
}
extern "C" fn level(_device: usize, _other: usize, to: *mut u32) -> u32 {
    put(to, 30)
}

fn fake() -> Library {
    let functions: [(&str, *const c_void); 26] = [
        ("nvmlSystemGetDriverVersion", driver as *const c_void),
        ("nvmlSystemGetNVMLVersion", nvml as *const c_void),
        ("nvmlSystemGetCudaDriverVersion_v2", cuda as *const c_void),
        ("nvmlSystemGetProcessName", process as *const c_void),
        ("nvmlDeviceGetCount_v2", count as *const c_void),
        ("nvmlDeviceGetHandleByIndex_v2", by_index as *const c_void),
        ("nvmlDeviceGetName", name as *const c_void),
        ("nvmlDeviceGetUUID", uuid as *const c_void),
        ("nvmlDeviceGetPciInfo_v3", pci as *const c_void),
        ("nvmlDeviceGetPersistenceMode", on as *const c_void),
        ("nvmlDeviceGetDisplayActive", off as *const c_void),
        ("nvmlDeviceGetEccMode", both_on as *const c_void),
        ("nvmlDeviceGetMigMode", both_off as *const c_void),
        ("nvmlDeviceGetTotalEccErrors", errors as *const c_void),
        ("nvmlDeviceGetMemoryInfo_v2", memory as *const c_void),
        ("nvmlDeviceGetUtilizationRates", rates as *const c_void),
        ("nvmlDeviceGetTemperature", temperature as *const c_void),
        ("nvmlDeviceGetPowerUsage", power as *const c_void),
        ("nvmlDeviceGetEnforcedPowerLimit", limit as *const c_void),
        ("nvmlDeviceGetPerformanceState", off as *const c_void),
        ("nvmlDeviceGetComputeMode", off as *const c_void),
        ("nvmlDeviceGetComputeRunningProcesses_v3", processes as *const c_void),
        ("nvmlDeviceGetEncoderUtilization", both_off as *const c_void),
        ("nvmlDeviceGetDecoderUtilization", both_off as *const c_void),
        ("nvmlDeviceGetTopologyCommonAncestor", level as *const c_void),
        ("nvmlDeviceGetPcieReplayCounter", on as *const c_void),
    ];
    Library::of(move |name: &CStr| {
        let found = functions.iter().find(|(known, _)| *known == name.to_str().unwrap_or_default());
        found.map_or(std::ptr::null_mut(), |(_, function)| function.cast_mut())
    })
}

fn devices(library: &Library) -> Vec<Device<'_>> {
    Device::all(library).unwrap().into_iter().collect::<Answer<Vec<_>>>().unwrap()
}

#[test]
fn summary_has_the_vendors_layout() {
    let library = fake();
    let text = table::summary(&library, &devices(&library));
    // The first line is the time.
    let expected = "\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.12.34              Driver Version: 580.12.34      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:01:00.0 Off |                    0 |
| N/A   41C    P0            111W /  700W |     827MiB /  81559MiB |     12%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  A device with a name tha...    N/A |   00000000:02:00.0 N/A |                  N/A |
| N/A  ERR!   N/A             N/A /   N/A |        N/A /       N/A |     N/A          N/A |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            1822      C   .../than/the/column/of/names/python3    818MiB |
+-----------------------------------------------------------------------------------------+
";
    let (date, rest) = text.split_once('\n').unwrap();
    assert!(date.len() == 31 && date.ends_with("       "), "{date:?}");
    assert_eq!(rest, expected);
}

#[test]
fn list_has_a_line_for_each_device() {
    let library = fake();
    let expected =
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: A device with a name that does not fit (UUID: GPU-2)\n";
    assert_eq!(table::list(&devices(&library)), expected);
    let expected = "NVIDIA-SMI version  : 580.12.34\nNVML version        : 580.12\n\
                    DRIVER version      : 580.12.34\nCUDA Version        : 13.0\n";
    assert_eq!(table::versions(&library), expected);
}

fn query(library: &Library, subject: Subject, names: &str, format: &str) -> String {
    let format = Format::parse(format).unwrap();
    let columns = csv::columns(subject, names).unwrap();
    csv::header(&columns, format) + &csv::lines(subject, &columns, &devices(library), format)
}

#[test]
fn queries_write_values_with_their_units() {
    let library = fake();
    let names = "index,gpu_name,memory.total,power.draw,temperature.gpu,compute_mode,fan.speed,utilization.gpu";
    let expected = "index, name, memory.total [MiB], power.draw [W], temperature.gpu, compute_mode, fan.speed [%], utilization.gpu [%]\n\
                    0, NVIDIA H100 80GB HBM3, 81559 MiB, 111.46 W, 41, Default, [N/A], 12 %\n\
                    1, A device with a name that does not fit, [N/A], [N/A], [Unknown Error], [N/A], [N/A], [N/A]\n";
    assert_eq!(query(&library, Subject::Devices, names, "csv"), expected);
    let bare = query(&library, Subject::Devices, "index,memory.used,power.draw", "csv,noheader,nounits");
    assert_eq!(bare, "0, 827, 111.46\n1, [N/A], [N/A]\n");
    let apps = query(&library, Subject::Processes, "pid,name,used_memory,gpu_uuid", "csv");
    assert_eq!(
        apps,
        "pid, process_name, used_gpu_memory [MiB], gpu_uuid\n\
         1822, /a/path/that/is/longer/than/the/column/of/names/python3, 818 MiB, GPU-1\n"
    );
    assert_eq!(csv::columns(Subject::Devices, "index,nosuch"), Err("nosuch".into()));
    assert_eq!(Format::parse("csv,tsv"), None);
}

#[test]
fn every_property_is_answered_by_devices_that_have_nothing() {
    let library = fake();
    let names: Vec<&str> = crate::fields::all().map(|field| field.name).collect();
    assert!(names.len() > 200, "{}", names.len());
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    let text = query(&library, Subject::Devices, &names.join(","), "csv,noheader");
    assert!(text.lines().all(|line| line.split(", ").count() == names.len()), "{text}");
}

#[test]
fn log_is_a_tree_of_sections() {
    let library = fake();
    let all = devices(&library);
    let text = log::text(&library, &all[..1], 2, &[Section::Memory, Section::Compute]);
    let expected = "\
Attached GPUs                                          : 2
GPU 00000000:01:00.0
    FB Memory Usage
        Total                                          : 81559 MiB
        Reserved                                       : 480 MiB
        Used                                           : 827 MiB
        Free                                           : 80732 MiB
    BAR1 Memory Usage
        Total                                          : N/A
        Used                                           : N/A
        Free                                           : N/A
    Conf Compute Protected Memory Usage
        Total                                          : N/A
        Used                                           : N/A
        Free                                           : N/A
    Compute Mode                                       : Default

";
    assert!(text.ends_with(expected), "{text}");
    let pids = log::text(&library, &all[..1], 2, &[Section::Pids]);
    assert!(
        pids.contains(
            "        Process ID                        : 1822\n            Type                          : C\n"
        ),
        "{pids}"
    );
}

#[test]
fn xml_is_well_formed() {
    let library = fake();
    let text = log::xml(&library, &devices(&library), 2, &[]);
    let mut open: Vec<&str> = Vec::new();
    let body = text.split_once("<nvidia_smi_log>").unwrap().1;
    open.push("nvidia_smi_log");
    for tag in body.split('<').skip(1) {
        let name = tag.split(['>', ' ']).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(
        text.contains("\t<gpu id=\"00000000:01:00.0\">\n\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>\n"),
        "{text}"
    );
    assert!(text.contains("\t\t\t\t<used_memory>818 MiB</used_memory>\n"), "{text}");
}

#[test]
fn monitors_have_columns_of_fixed_width() {
    let library = fake();
    let all = devices(&library);
    let none = Stamps::default();
    assert_eq!(
        dmon::titles("puc", none),
        "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk \n\
         # Idx      W      C      C      %      %      %      %      %      %    MHz    MHz \n"
    );
    assert_eq!(
        dmon::line(&all[0], "pu", none),
        "    0    111     41      -     12      3      0      0      -      - \n"
    );
    assert_eq!(
        dmon::line(&all[1], "pu", none),
        "    1      -      -      -      -      -      -      -      -      - \n"
    );
    let both = Stamps { date: true, time: true };
    assert!(dmon::titles("p", both).starts_with("#Date        Time         gpu    pwr"));
    assert_eq!(
        pmon::titles("um", none),
        "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command \n\
         # Idx           #    C/G      %      %      %      %      %      %     MB     MB    name \n"
    );
    assert_eq!(
        pmon::lines(&all[0], "um", none),
        "    0       1822     C      -      -      -      -      -      -    818      0    python3        \n"
    );
    assert_eq!(
        pmon::lines(&all[1], "u", none),
        "    1          -     -      -      -      -      -      -      -    -              \n"
    );
}

#[test]
fn topology_is_a_matrix() {
    let library = fake();
    let text = topology::matrix(&devices(&library), true);
    let rows: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(
        rows,
        [
            "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m",
            "GPU0\t X \tPHB\tN/A\tN/A\t\tN/A",
            "GPU1\tPHB\t X \tN/A\tN/A\t\tN/A",
        ]
    );
}
