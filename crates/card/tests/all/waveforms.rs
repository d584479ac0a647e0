//! Waveforms of a simulated card: which cycles are in which file. An FST file begins with its first and last time.

use std::path::{Path, PathBuf};
use std::process::Command as Process;

use crate::common::*;
use aviary_card::monitor::JobState;
use aviary_card::{Board, CardError, ImageError, Simulated, WaveformOptions};

const MIB: u64 = 1 << 20;

/// A card whose image records waveforms. `None`, with a line that says so: this machine cannot build it.
fn traced_card() -> Option<Simulated> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Process::new(root.join("fpga/build")).args(["--trace", "pair"]).output().expect("fpga/build runs");
    if built.status.success() {
        let image = PathBuf::from(String::from_utf8(built.stdout).unwrap().trim());
        return Some(Simulated::start(&image).unwrap());
    }
    let error = String::from_utf8_lossy(&built.stderr);
    assert!(error.contains("is not installed"), "{error}");
    eprintln!("skip: no image with waveforms: {error}");
    None
}

/// First and last time of an FST file, in half cycles.
fn times(file: &Path) -> (u64, u64) {
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    // A header, of 329 bytes.
    assert_eq!((bytes[0], word(1)), (0, 329), "{}", file.display());
    (word(9), word(17))
}

/// The time at which a cycle begins.
fn time(cycle: u64) -> u64 {
    2 * cycle + 16
}

fn options(folder: &tempfile::TempDir, from: u64, cycles: u64, on_fault: bool) -> WaveformOptions {
    WaveformOptions { file: folder.path().join("card.fst"), from, cycles: Some(cycles), on_fault }
}

#[test]
fn waveforms_have_the_cycles_that_were_asked_for() {
    let Some(mut card) = traced_card() else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder, 3000, 500, false);
    card.record(options.clone()).unwrap();
    let client = Client::new(2 * MIB);
    let (head, sum) = client.list(300, 2 * MIB);
    attach(&mut card, 0, 1, &client);
    start(&mut card, 0, &[(LL_HEAD, head)]);
    assert_eq!(wait(&mut card, 0, 100_000), JobState::Done);
    assert_eq!(get(&mut card, 0, LL_SUM), sum);
    let told = card.end_recording().unwrap();
    assert_eq!(told, format!("waveforms of cycles 3000 to 3500 are in {}", options.file.display()));
    assert_eq!(times(&options.file), (time(3000), time(3500) - 1));
    assert!(!options.earlier().exists());
}

#[test]
fn cycles_before_a_fault_are_kept() {
    let Some(mut card) = traced_card() else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder, 0, 1000, true);
    card.record(options.clone()).unwrap();
    let client = Client::new(2 * MIB);
    let (head, _) = client.list(300, 2 * MIB);
    attach(&mut card, 0, 1, &client);
    start(&mut card, 0, &[(LL_HEAD, head)]);
    run(&mut card, 5000);
    // The next nodes are at an address that is not mapped.
    let nowhere = GUEST + 512 * MIB;
    (0..2 * MIB / 64).for_each(|line| client.put(line * 64, &[nowhere, 0]));
    assert_eq!(wait(&mut card, 0, 100_000), JobState::Error);
    let fault = card.take_io_faults().0[0];
    // What comes after the fault is in no file.
    run(&mut card, 3000);
    let told = card.end_recording().unwrap();
    assert!(told.ends_with(&format!("a fault at cycle {} has ended them", fault.at + 1)), "{told}");
    let ((from, to), (earlier, border)) = (times(&options.file), times(&options.earlier()));
    assert_eq!((to, border + 1), (time(fault.at + 1) - 1, from));
    assert_eq!(border + 1 - earlier, 2000);
}

#[test]
fn image_without_waveforms_and_folder_that_is_missing_are_told() {
    let Some(mut card) = card("pair") else { return };
    let folder = tempfile::tempdir().unwrap();
    let refused = card.record(options(&folder, 0, 1, false));
    assert!(matches!(refused, Err(CardError::Image(ImageError::NoWaveforms))));
    assert_eq!(card.end_recording(), None);
    let missing = WaveformOptions { file: "/nonexistent/card.fst".into(), ..options(&folder, 0, 1, false) };
    assert!(matches!(card.record(missing), Err(CardError::Image(ImageError::WaveformFile(_)))));
}
