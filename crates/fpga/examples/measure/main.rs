//! Measures the simulated card for `./x bench fpga`: a line per figure, its name and its value, as soon as it is known. All times
//! are device cycles of the simulation, never wall-clock time; two runs print the same.
//!
//!     cargo run --release -p aviary-fpga --example measure -- [--quick] SECTION...

#[path = "../../../card/tests/common/mod.rs"]
mod common;
#[path = "../../tests/golden/mod.rs"]
mod golden;

mod load;
mod ports;
mod translation;
mod turns;

use std::io::Write;
use std::process::ExitCode;

/// `None`: the tools that build images are not installed.
type Measured = Option<()>;

/// Measures, quickly or in full.
type Section = fn(bool) -> Measured;

const SECTIONS: [(&str, Section); 9] = [
    ("latency", ports::latency),
    ("copies", ports::copies),
    ("colocated", ports::colocated),
    ("weights", ports::weights),
    ("switches", turns::switches),
    ("slices", turns::slices),
    ("iotlb", translation::conflicts),
    ("worksets", translation::working_sets),
    ("walks", translation::walks),
];

/// Prints a figure.
fn tell(name: &str, value: f64) {
    println!("{name} {value}");
    // The reader has gone: it was interrupted, and so is this.
    if std::io::stdout().flush().is_err() {
        std::process::exit(1);
    }
}

/// (max - min) / mean.
fn spread(values: &[f64]) -> f64 {
    let (most, least) =
        (values.iter().copied().fold(f64::MIN, f64::max), values.iter().copied().fold(f64::MAX, f64::min));
    (most - least) / (values.iter().sum::<f64>() / values.len() as f64)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (options, names): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.starts_with("--"));
    let quick = options.iter().any(|option| *option == "--quick");
    for name in names {
        let Some((_, section)) = SECTIONS.iter().find(|(section, _)| section == name) else {
            eprintln!("measure: there is no section {name}");
            return ExitCode::FAILURE;
        };
        if section(quick).is_none() {
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
