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

use aviary_card::Simulated;

const USAGE: &str = "usage: check IMAGE.toml [MOVES]   MOVES: at least so many of each accelerator's jobs [20]";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(image), Ok(moves)) = (words.next(), words.next().unwrap_or_else(|| "20".into()).parse()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if image == "--help" || image == "-h" {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let started = common::built(&image).and_then(|path| Simulated::start(&path).map_err(|error| error.to_string()));
    let mut mediator = match started {
        Ok(card) => golden::mediator_of(card),
        Err(error) => {
            eprintln!("{}", error.trim_end());
            return ExitCode::FAILURE;
        }
    };
    // An image's name stands for one of Aviary's own.
    let own = golden::root().join("fpga/accelerators");
    let is_name = Path::new(&image).extension().is_none();
    let folder = if is_name { &own } else { Path::new(&image).parent().unwrap_or(Path::new(".")) };
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
