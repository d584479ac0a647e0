//! Checks the streaming accelerators of an image against their golden models: uninterrupted, and paused and moved between ports.
//!
//!     cargo run --release -p aviary-fpga --example check -- IMAGE.toml [MOVES]
//!
//! The image has two ports for each kind. An accelerator is checked if its folder beside IMAGE.toml has a `golden.py`.

#[path = "../../card/tests/common/mod.rs"]
mod common;
#[path = "../tests/golden/mod.rs"]
mod golden;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(image), Ok(moves)) = (words.next(), words.next().unwrap_or_else(|| "20".into()).parse()) else {
        eprintln!("usage: check IMAGE.toml [MOVES]");
        return ExitCode::from(2);
    };
    let Some(mut mediator) = golden::mediator(&image) else { return ExitCode::FAILURE };
    let folder = Path::new(&image).parent().unwrap_or(Path::new("."));
    let report = golden::check(&mut mediator, folder, moves);
    for line in &report {
        match line {
            Ok(right) => println!("ok   {right}"),
            Err(wrong) => println!("FAIL {wrong}"),
        }
    }
    let failed = report.iter().filter(|line| line.is_err()).count();
    println!("{} passed, {failed} failed", report.len() - failed);
    if report.is_empty() {
        eprintln!("check: no accelerator of {image} has a golden.py in {}", folder.display());
        return ExitCode::FAILURE;
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
