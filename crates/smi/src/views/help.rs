//! Help.

use crate::fields;
use crate::log::SECTIONS;
use crate::views::csv::{CLOCKS, PROCESSES, Subject};

const GENERAL: &str = "\
usage: nvidia-smi [OPTION...]
       nvidia-smi dmon | pmon | topo [OPTION...]

Shows NVIDIA devices: natively all of the machine, under Aviary those that the program may use.

  (nothing)                 a summary of all devices and of the processes that use them
  -L, --list-gpus           a line for each device
  -q, --query               all that is known; with -x as XML, with -d in part
  -d, --display=SECTION,... sections of -q:
@SECTIONS@
  --query-gpu=NAME,...      chosen properties, with --format; --help-query-gpu lists them
  --query-compute-apps=...  processes that compute; --help-query-compute-apps
  --query-supported-clocks=...
                            pairs of clocks; --help-query-supported-clocks
  --format=csv[,noheader][,nounits]
  -i, --id=DEVICE,...       by number, UUID, serial number or place on the bus
  -f, --filename=FILE       write there
  -l, --loop=SECONDS        repeat until interrupted; -lms, --loop-ms=MILLISECONDS
  --version, -h, --help

Changes, which need permission (natively root's, under Aviary the node's):
  -pm, --persistence-mode=0|1    -e, --ecc-config=0|1          -p, --reset-ecc-errors=0|1
  -c, --compute-mode=MODE        -pl, --power-limit=WATTS      -am, --accounting-mode=0|1
  -lgc, --lock-gpu-clocks=MIN,MAX      -rgc, --reset-gpu-clocks
  -lmc, --lock-memory-clocks=MIN,MAX   -rmc, --reset-memory-clocks
  -ac, --applications-clocks=MEM,GR    -rac, --reset-applications-clocks
  -mig, --multi-instance-gpu=0|1       -caa, --clear-accounted-apps
  -gtt, --gpu-target-temp=DEGREES      --gom=MODE
";

const MONITOR: &str = "\
usage: nvidia-smi dmon [-i DEVICE,...] [-d SECONDS] [-c ROUNDS] [-s LETTERS] [-o D|T] [-f FILE]

A line for each device and round. Letters of -s: p power and temperatures, u load, c clocks,
v limits that hold clocks back, m memory, e errors, t bus traffic. -o: date, time.
";

const PROCESS_MONITOR: &str = "\
usage: nvidia-smi pmon [-i DEVICE,...] [-d SECONDS] [-c ROUNDS] [-s LETTERS] [-o D|T] [-f FILE]

A line for each process and round. Letters of -s: u load, m memory. -o: date, time.
";

const TOPOLOGY: &str = "\
usage: nvidia-smi topo -m | -mp | -p2p r|w|n|a|p  [-i DEVICE,...]

How devices are connected: -m with NVLink, -mp without, -p2p whether one reaches the other's memory
to read, to write, by NVLink, with atomic operations, by PCIe.
";

pub fn general() -> String {
    let mut list = String::new();
    for names in SECTIONS.chunks(4) {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        list.push_str(&format!("                              {}\n", names.join(", ")));
    }
    GENERAL.replace("@SECTIONS@\n", &list)
}

pub fn of(command: &str) -> &'static str {
    match command {
        "dmon" => MONITOR,
        "pmon" => PROCESS_MONITOR,
        _ => TOPOLOGY,
    }
}

pub fn fields(subject: Subject) -> String {
    let switch = match subject {
        Subject::Devices => "--query-gpu",
        Subject::Processes => "--query-compute-apps",
        Subject::SupportedClocks => "--query-supported-clocks",
    };
    let mut text = format!("List of valid properties to query for the switch \"{switch}\":\n");
    let mut add = |name: &str, alias: &str, help: &str| {
        text.push_str(&format!("\n\"{name}\""));
        if !alias.is_empty() && alias != name {
            text.push_str(&format!(" or \"{alias}\""));
        }
        text.push('\n');
        if !help.is_empty() {
            text.push_str(&format!("{help}\n"));
        }
    };
    match subject {
        Subject::Devices => fields::all().for_each(|field| add(field.name, field.alias, field.help)),
        Subject::Processes => PROCESSES.iter().for_each(|(name, alias, _)| add(name, alias, "")),
        Subject::SupportedClocks => CLOCKS.iter().for_each(|(name, alias, _)| add(name, alias, "")),
    }
    text
}
