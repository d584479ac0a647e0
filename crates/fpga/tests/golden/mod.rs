//! Jobs of accelerators with golden results, as tests, the examples and the measurements run them. All times are device cycles.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use aviary_card::{Board, PortDescription, Rights, Simulated};
use aviary_fpga::{Mediator, Owner, Phase, ReadAnswer, Settings, VirtualId, WriteAnswer, usual_discipline};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::common::{self, Client, GUEST};

pub const MIB: u64 = 1 << 20;
/// Where a client's memory has input, output and saved state.
pub const INPUT: u64 = 0;
pub const OUTPUT: u64 = MIB;
pub const STATE: u64 = MIB + MIB / 2;
pub const SCRATCH: u64 = STATE + MIB / 4;
pub const CONTROL: u32 = 0x18;
/// The job from whose length that of longer ones is computed, how long these shall be, and the largest output.
pub const SAMPLE_LINES: u64 = 64;
pub const JOB_CYCLES: u64 = 25_000;
pub const MAX_LINES: u64 = 8000;

/// Register and shift of SOURCE, TARGET, LINES and SCRATCH.
pub type Streams = BTreeMap<String, (String, u32)>;

#[derive(Deserialize)]
pub struct Golden {
    pub registers: BTreeMap<String, u64>,
    pub streams: Streams,
    pub input: String,
    pub output: String,
    /// Values that status registers have at the end.
    #[serde(default)]
    pub results: BTreeMap<String, u64>,
}

/// A job that goes on for at least as many lines as it was asked for.
#[derive(Deserialize)]
pub struct Endless {
    pub registers: BTreeMap<String, u64>,
    pub streams: Streams,
    pub input: String,
    /// Status registers whose sum says how far the job is.
    pub progress: Vec<String>,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// An answer of `fpga/tests/golden.py` about an accelerator in `folder`; `None`: it has no golden model there.
fn from_model<T: DeserializeOwned>(folder: &Path, name: &str, endless: bool, numbers: &[u64]) -> Option<T> {
    let model = folder.join(name).join("golden.py");
    if !model.exists() {
        return None;
    }
    let made = Command::new(root().join("target/cache/fpga/bin/python3"))
        .arg(root().join("fpga/tests/golden.py"))
        .args(endless.then_some("--endless"))
        .arg(model)
        .args(numbers.iter().map(u64::to_string))
        .output()
        .expect("the environment of the FPGA tools has an interpreter");
    assert!(made.status.success(), "{name}: {}", String::from_utf8_lossy(&made.stderr));
    Some(serde_json::from_slice(&made.stdout).unwrap())
}

/// A job with its result, of an accelerator in `folder`; `None`: it has no golden model there.
pub fn golden(folder: &Path, name: &str, seed: u64, lines: u64) -> Option<Golden> {
    from_model(folder, name, false, &[seed, lines, GUEST + INPUT])
}

/// A job without end, whose input is at this address; `None` as for [`golden`].
pub fn endless(folder: &Path, name: &str, lines: u64, source: u64) -> Option<Endless> {
    from_model(folder, name, true, &[lines, source])
}

/// Bytes in words as [`Client::put`] takes them.
pub fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

pub fn mediator(image: &str) -> Option<Mediator<Simulated>> {
    Some(Mediator::new(common::card(image)?, Settings { save_timeout: 50_000 }, usual_discipline))
}

pub fn set(mediator: &mut Mediator<Simulated>, id: VirtualId, register: u32, value: u64) {
    assert_eq!(mediator.write(id, register, 8, value), Ok(WriteAnswer::Done));
}

/// The places of a job.
pub struct Places {
    pub source: u64,
    pub target: u64,
    pub lines: u64,
    pub scratch: u64,
}

/// Offsets and values of a job's registers: its places, and its own.
pub fn registers(
    kind: &PortDescription,
    own: &BTreeMap<String, u64>,
    streams: &Streams,
    places: &Places,
) -> Vec<(u32, u64)> {
    let value = |stream: &str| match stream {
        "SOURCE" => places.source,
        "TARGET" => places.target,
        "LINES" => places.lines,
        "SCRATCH" => places.scratch,
        other => panic!("{}: there is no stream {other}", kind.name),
    };
    let streams = streams.iter().map(|(stream, (name, shift))| (name.as_str(), value(stream) >> shift));
    let own = own.iter().map(|(name, value)| (name.as_str(), *value));
    streams.chain(own).map(|(name, value)| (kind.registers[name].at, value)).collect()
}

/// Starts the job whose registers are written.
pub fn begin(mediator: &mut Mediator<Simulated>, id: VirtualId, kind: &PortDescription) {
    let own_start = kind.registers.values().find(|register| register.starts != 0);
    let (register, bits) = own_start.map_or((CONTROL, 1), |register| (register.at, register.starts));
    set(mediator, id, register, bits);
}

/// Starts a job of `kind` with its input in the client's memory.
pub fn start(mediator: &mut Mediator<Simulated>, kind: &PortDescription, job: &Golden, client: &Client) -> VirtualId {
    let id = mediator.open(&kind.guid, Owner::default(), |_| true).unwrap();
    mediator.set_base(id, GUEST).unwrap();
    mediator.map(id, GUEST, 2 * MIB, &client.memory, 0, Rights::ReadWrite).unwrap();
    mediator.set_state_address(id, GUEST + STATE).unwrap();
    let input = bytes(&job.input);
    client.put(INPUT, &words(&input));
    let lines = input.len() as u64 / 64;
    let places = Places { source: GUEST + INPUT, target: GUEST + OUTPUT, lines, scratch: GUEST + SCRATCH };
    for (register, value) in registers(kind, &job.registers, &job.streams, &places) {
        set(mediator, id, register, value);
    }
    begin(mediator, id, kind);
    id
}

/// Runs for `cycles`; true if the job is done.
pub fn run(mediator: &mut Mediator<Simulated>, id: VirtualId, cycles: u64) -> bool {
    mediator.run(cycles);
    let status = mediator.status(id).unwrap();
    assert!(matches!(status.phase, Phase::Running | Phase::Queued { .. } | Phase::Done), "{status:?}");
    status.phase == Phase::Done
}

/// Compares what the job wrote, that it wrote nothing behind it, and its results in registers.
pub fn compare(
    mediator: &mut Mediator<Simulated>,
    id: VirtualId,
    kind: &PortDescription,
    job: &Golden,
    client: &Client,
) {
    let name = &kind.name;
    for (register, expected) in &job.results {
        let value = mediator.read(id, kind.registers[register].at, 8);
        assert_eq!(value, Ok(ReadAnswer::Value(*expected)), "{name}: {register}");
    }
    let expected = bytes(&job.output);
    let memory = client.bytes();
    let output = &memory[OUTPUT as usize..STATE as usize];
    let wrong = expected.iter().zip(output).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "{name}: first wrong byte of {}", expected.len());
    assert!(output[expected.len()..].iter().all(|byte| *byte == 0), "{name}: writes behind its output");
}

/// One of each kind of an image that has a golden model.
pub fn kinds(mediator: &Mediator<Simulated>) -> Vec<PortDescription> {
    let mut kinds = mediator.board().description().ports.clone();
    kinds.dedup();
    kinds
}

/// Runs a job to its end without a pause; returns its cycles.
pub fn uninterrupted(mediator: &mut Mediator<Simulated>, kind: &PortDescription, job: &Golden) -> u64 {
    let client = Client::new(2 * MIB);
    let id = start(mediator, kind, job, &client);
    let began = mediator.board().now();
    while !run(mediator, id, 500) {
        assert!(mediator.board().now() < began + 4_000_000, "{} does not end", kind.name);
    }
    compare(mediator, id, kind, job, &client);
    mediator.close(id);
    mediator.board().now() - began
}

/// Runs a job that is moved to the other port of its kind after up to 2,000 cycles, again and again; returns the moves in which
/// it was saved.
pub fn moved(mediator: &mut Mediator<Simulated>, kind: &PortDescription, job: &Golden, seed: u64) -> u64 {
    let client = Client::new(2 * MIB);
    let id = start(mediator, kind, job, &client);
    let first = mediator.status(id).unwrap().port;
    let mut random = seed;
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if run(mediator, id, 1 + (random >> 33) % 2000) {
            break;
        }
        let port = mediator.status(id).unwrap().port;
        mediator.move_to(id, if port == first { first + 1 } else { first }).unwrap();
    }
    compare(mediator, id, kind, job, &client);
    let moves = mediator.status(id).unwrap().preemptions;
    mediator.close(id);
    moves
}

/// Lines of a job that takes about [`JOB_CYCLES`], and the cycles of short ones from which that is computed.
pub fn usual_lines(
    mediator: &mut Mediator<Simulated>,
    folder: &Path,
    kind: &PortDescription,
) -> Option<(u64, [u64; 2])> {
    let beginning = uninterrupted(mediator, kind, &golden(folder, &kind.name, 1, 1)?);
    let cycles = uninterrupted(mediator, kind, &golden(folder, &kind.name, 2, SAMPLE_LINES)?);
    let lines = (JOB_CYCLES * SAMPLE_LINES / (cycles - beginning).max(1)).min(MAX_LINES);
    Some((lines, [beginning, cycles]))
}

/// Runs jobs of each kind of accelerator in an image that has a golden model in `folder`: short ones without a pause, then longer
/// ones that are paused and moved until `wanted` of them were saved. Returns a line for each kind.
pub fn check(mediator: &mut Mediator<Simulated>, folder: &Path, wanted: u64) -> Vec<String> {
    let mut lines_of_report = Vec::new();
    for kind in kinds(mediator) {
        let Some((lines, [beginning, cycles])) = usual_lines(mediator, folder, &kind) else { continue };
        let (mut moves, mut jobs) = (0, 0);
        while moves < wanted {
            jobs += 1;
            let job = golden(folder, &kind.name, 2 + jobs, lines).unwrap();
            moves += moved(mediator, &kind, &job, jobs);
            assert!(jobs < 10 || moves > 0, "{}: jobs of {lines} lines are never saved", kind.name);
        }
        lines_of_report.push(format!(
            "{}: 1 line in {beginning}, {SAMPLE_LINES} in {cycles} cycles; {moves} moves in {jobs} jobs of {lines} lines",
            kind.name
        ));
    }
    assert_eq!(mediator.board().escaped(), 0);
    lines_of_report
}
