//! `dmon`: a line for each device and interval.

use crate::{
    clock,
    device::{Device, GRAPHICS, MEMORY, field},
    library::Answer,
    log::{state, throughput},
    types::{Bar1Memory, Memory, ViolationTime},
};

/// One column: the letter of its group, title, unit, value.
struct MonitorColumn {
    group: char,
    title: &'static str,
    unit: &'static str,
    value: fn(&Device) -> Answer<u64>,
}

const fn column(
    group: char,
    title: &'static str,
    unit: &'static str,
    value: fn(&Device) -> Answer<u64>,
) -> MonitorColumn {
    MonitorColumn { group, title, unit, value }
}

const COLUMNS: [MonitorColumn; 21] = [
    column('p', "pwr", "W", |d| d.number("nvmlDeviceGetPowerUsage").map(|milliwatts| u64::from(milliwatts / 1000))),
    column('p', "gtemp", "C", |d| d.temperature().map(u64::from)),
    column('p', "mtemp", "C", |d| state::memory_temperature(d).map(i64::unsigned_abs)),
    column('u', "sm", "%", |d| d.utilization().map(|rates| u64::from(rates.gpu))),
    column('u', "mem", "%", |d| d.utilization().map(|rates| u64::from(rates.memory))),
    column('u', "enc", "%", |d| engine(d, "nvmlDeviceGetEncoderUtilization")),
    column('u', "dec", "%", |d| engine(d, "nvmlDeviceGetDecoderUtilization")),
    column('u', "jpg", "%", |d| engine(d, "nvmlDeviceGetJpgUtilization")),
    column('u', "ofa", "%", |d| engine(d, "nvmlDeviceGetOfaUtilization")),
    column('c', "mclk", "MHz", |d| d.clock(MEMORY).map(u64::from)),
    column('c', "pclk", "MHz", |d| d.clock(GRAPHICS).map(u64::from)),
    column('v', "pviol", "%", |d| violation(d, 0).map(|_| 0)),
    column('v', "tviol", "bool", |d| state::reasons(d).map(|mask| u64::from(mask & THERMAL != 0))),
    column('m', "fb", "MB", |d| d.memory().map(|memory| memory.used.div_ceil(1 << 20))),
    column('m', "bar1", "MB", |d| d.get::<Bar1Memory>("nvmlDeviceGetBAR1MemoryInfo").map(|memory| memory.used >> 20)),
    column('m', "ccpm", "MB", |d| {
        d.get::<Memory>("nvmlDeviceGetConfComputeProtectedMemoryUsage").map(|m| m.used >> 20)
    }),
    column('e', "sbecc", "errs", |d| d.field(field::SINGLE_BIT_TOTAL, 0).map(i64::unsigned_abs)),
    column('e', "dbecc", "errs", |d| d.field(field::DOUBLE_BIT_TOTAL, 0).map(i64::unsigned_abs)),
    column('e', "pci", "errs", |d| d.number("nvmlDeviceGetPcieReplayCounter").map(u64::from)),
    column('t', "rxpci", "MB/s", |d| throughput(d, 1).map(|kilobytes| u64::from(kilobytes / 1000))),
    column('t', "txpci", "MB/s", |d| throughput(d, 0).map(|kilobytes| u64::from(kilobytes / 1000))),
];

const THERMAL: u64 = state::reason::SW_THERMAL | state::reason::HW_THERMAL;

fn engine(device: &Device, name: &str) -> Answer<u64> {
    device.pair(name).map(|(percent, _)| u64::from(percent))
}

/// Nanoseconds that a policy held clocks back.
fn violation(device: &Device, policy: usize) -> Answer<u64> {
    device.get_of::<ViolationTime>("nvmlDeviceGetViolationStatus", &[policy]).map(|time| time.violation_ns)
}

/// Date and time before a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamps {
    pub date: bool,
    pub time: bool,
}

impl Stamps {
    pub fn parse(text: &str) -> Option<Stamps> {
        let known = text.chars().all(|letter| "DT".contains(letter));
        known.then(|| Stamps { date: text.contains('D'), time: text.contains('T') })
    }

    /// The words before the number of the device, whose column begins the line without them.
    fn before(self, date: &str, time: &str, index: &str) -> String {
        let (date, time) = (format!("{date:<9}"), format!("{time:<8}"));
        match (self.date, self.time) {
            (false, false) => format!("{index:>5}"),
            (true, false) => format!("{date}{index:>8}"),
            (false, true) => format!(" {time}{index:>8}"),
            (true, true) => format!("{date}    {time}{index:>8}"),
        }
    }

    /// The two lines of titles begin with these.
    pub fn titles(self) -> (String, String) {
        match (self.date, self.time) {
            (false, false) => ("# gpu".to_owned(), "# Idx".to_owned()),
            (false, true) => (format!("#{:<8}{:>8}", "Time", "gpu"), format!("#{:<8}{:>8}", "HH:MM:SS", "Idx")),
            _ => (self.before("#Date", "Time", "gpu"), self.before("#YYYYMMDD", "HH:MM:SS", "Idx")),
        }
    }

    pub fn line(self, index: u32) -> String {
        let now = clock::now().0;
        let (date, time) = (clock::format(now, " %Y%m%d"), clock::format(now, "%H:%M:%S"));
        self.before(&date, &time, &index.to_string())
    }
}

/// True if the letters name groups of columns.
pub fn is_selection(letters: &str) -> bool {
    !letters.is_empty() && letters.chars().all(|letter| COLUMNS.iter().any(|column| column.group == letter))
}

fn selected(letters: &str) -> impl Iterator<Item = &'static MonitorColumn> {
    COLUMNS.iter().filter(move |column| letters.contains(column.group))
}

pub fn titles(letters: &str, stamps: Stamps) -> String {
    let (mut first, mut second) = stamps.titles();
    for column in selected(letters) {
        first.push_str(&format!("{:>7}", column.title));
        second.push_str(&format!("{:>7}", column.unit));
    }
    format!("{first} \n{second} \n")
}

pub fn line(device: &Device, letters: &str, stamps: Stamps) -> String {
    let mut text = stamps.line(device.index);
    for column in selected(letters) {
        let value = (column.value)(device).map_or_else(|_| "-".to_owned(), |value| value.to_string());
        text.push_str(&format!("{value:>7}"));
    }
    text.push_str(" \n");
    text
}
