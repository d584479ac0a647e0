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
/// So many cycles before a short job can be saved no more, in such steps, it is moved.
const END_CYCLES: u64 = 400;
const END_STEP: usize = 3;
/// Moves of a job that will not end any more: many times as many as one of [`JOB_CYCLES`] has.
const MOST_MOVES: u64 = 1000;

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

/// An answer of `fpga/tests/golden.py` about an accelerator in `folder`; `None`: it has no golden model there. An error is the
/// model's last line.
fn from_model<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    endless: bool,
    numbers: &[u64],
) -> Result<Option<T>, String> {
    let model = folder.join(name).join("golden.py");
    if !model.exists() {
        return Ok(None);
    }
    let made = Command::new(root().join("target/cache/fpga/bin/python3"))
        .arg(root().join("fpga/tests/golden.py"))
        .args(endless.then_some("--endless"))
        .arg(&model)
        .args(numbers.iter().map(u64::to_string))
        .output()
        .map_err(|error| format!("{name}: the Python of the FPGA tools does not start: {error}"))?;
    let wrong = |why: &str| format!("{name}: {}: {why}", model.display());
    if !made.status.success() {
        let told = String::from_utf8_lossy(&made.stderr);
        return Err(wrong(told.trim().lines().last().unwrap_or("it ends with an error")));
    }
    serde_json::from_slice(&made.stdout).map(Some).map_err(|error| wrong(&error.to_string()))
}

/// A job with its result, of an accelerator in `folder`; `None`: it has no golden model there.
pub fn golden(folder: &Path, name: &str, seed: u64, lines: u64) -> Option<Golden> {
    from_model(folder, name, false, &[seed, lines, GUEST + INPUT]).unwrap_or_else(|why| panic!("{why}"))
}

/// The same; an error says what is wrong with the model: it fails, or names registers that the accelerator does not have.
fn modelled(folder: &Path, kind: &PortDescription, seed: u64, lines: u64) -> Result<Option<Golden>, String> {
    let job: Option<Golden> = from_model(folder, &kind.name, false, &[seed, lines, GUEST + INPUT])?;
    let Some(job) = job else { return Ok(None) };
    let streams = job.streams.values().map(|(register, _)| register);
    let named = job.registers.keys().chain(job.results.keys()).chain(streams);
    match named.into_iter().find(|register| !kind.registers.contains_key(*register)) {
        Some(register) => {
            let known: Vec<&str> = kind.registers.keys().map(String::as_str).collect();
            let name = &kind.name;
            Err(format!("{name}: golden.py names a register {register}, and {name}.toml has {}", known.join(", ")))
        }
        None => Ok(Some(job)),
    }
}

/// A job without end, whose input is at this address; `None` as for [`golden`].
pub fn endless(folder: &Path, name: &str, lines: u64, source: u64) -> Option<Endless> {
    from_model(folder, name, true, &[lines, source]).unwrap_or_else(|why| panic!("{why}"))
}

/// Bytes in words as [`Client::put`] takes them.
pub fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

pub fn mediator(image: &str) -> Option<Mediator<Simulated>> {
    Some(mediator_of(common::card(image)?))
}

pub fn mediator_of(card: Simulated) -> Mediator<Simulated> {
    Mediator::new(card, Settings { save_timeout: 50_000 }, usual_discipline)
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
    goes_on(mediator, id, cycles).unwrap()
}

/// The same; an error says why the job has failed.
fn goes_on(mediator: &mut Mediator<Simulated>, id: VirtualId, cycles: u64) -> Result<bool, String> {
    mediator.run(cycles);
    match mediator.status(id).unwrap().phase {
        Phase::Running | Phase::Queued { .. } => Ok(false),
        Phase::Done => Ok(true),
        phase => Err(mediator.fault(id).map_or_else(|| format!("it is {phase:?}"), |fault| fault.to_string())),
    }
}

/// Compares what the job wrote, that it wrote nothing behind it, and its results in registers.
pub fn compare(
    mediator: &mut Mediator<Simulated>,
    id: VirtualId,
    kind: &PortDescription,
    job: &Golden,
    client: &Client,
) {
    differs(mediator, id, kind, job, client).unwrap_or_else(|why| panic!("{}: {why}", kind.name));
}

/// An error says where the job's results are wrong.
fn differs(
    mediator: &mut Mediator<Simulated>,
    id: VirtualId,
    kind: &PortDescription,
    job: &Golden,
    client: &Client,
) -> Result<(), String> {
    let expected = bytes(&job.output);
    let memory = client.bytes();
    let output = &memory[OUTPUT as usize..STATE as usize];
    if let Some(at) = expected.iter().zip(output).position(|(a, b)| a != b) {
        let (byte, right, length) = (output[at], expected[at], expected.len());
        return Err(format!("first wrong byte {at} of {length}: {byte:#04x}, expected {right:#04x}"));
    }
    if let Some(behind) = output[expected.len()..].iter().position(|byte| *byte != 0) {
        let length = expected.len();
        return Err(format!("first wrong byte {}: it writes behind the {length} bytes of its output", length + behind));
    }
    for (register, expected) in &job.results {
        match mediator.read(id, kind.registers[register].at, 8) {
            Ok(ReadAnswer::Value(value)) if value == *expected => {}
            Ok(ReadAnswer::Value(value)) => return Err(format!("{register} is {value:#x}, expected {expected:#x}")),
            other => return Err(format!("{register} is {other:?}, expected {expected:#x}")),
        }
    }
    Ok(())
}

/// The output has a line, not all zeros, that it must not have in the end.
fn is_wrong_already(job: &Golden, client: &Client) -> bool {
    let (expected, memory) = (bytes(&job.output), client.bytes());
    let lines = expected.chunks(64).zip(memory[OUTPUT as usize..STATE as usize].chunks(64));
    lines.into_iter().any(|(right, line)| line != right && line.iter().any(|byte| *byte != 0))
}

/// One of each kind of an image that has a golden model.
pub fn kinds(mediator: &Mediator<Simulated>) -> Vec<PortDescription> {
    let mut kinds = mediator.board().description().ports.clone();
    kinds.dedup();
    kinds
}

/// Runs a job to its end without a pause; returns its cycles.
pub fn uninterrupted(mediator: &mut Mediator<Simulated>, kind: &PortDescription, job: &Golden) -> u64 {
    ends_right(mediator, kind, job).unwrap_or_else(|why| panic!("{}: {why}", kind.name))
}

fn ends_right(mediator: &mut Mediator<Simulated>, kind: &PortDescription, job: &Golden) -> Result<u64, String> {
    let client = Client::new(2 * MIB);
    let id = start(mediator, kind, job, &client);
    let began = mediator.board().now();
    while !goes_on(mediator, id, 500)? {
        if mediator.board().now() >= began + 4_000_000 {
            return Err("it does not end within 4,000,000 cycles".to_owned());
        }
    }
    differs(mediator, id, kind, job, &client)?;
    mediator.close(id);
    Ok(mediator.board().now() - began)
}

/// Moves a job to another port of its kind; the image has one.
fn move_on(mediator: &mut Mediator<Simulated>, id: VirtualId, kind: &PortDescription) -> Result<(), String> {
    let port = mediator.status(id).map_err(|error| error.to_string())?.port;
    let mut others = mediator.board().description().ports.iter().enumerate();
    let to = others.find(|(number, other)| other.guid == kind.guid && *number != port);
    let (to, _) = to.ok_or_else(|| format!("there is no other port of a {}", kind.name))?;
    mediator.move_to(id, to).map_err(|error| format!("it cannot move to port {to}: {error}"))
}

/// Runs a job that is moved to the other port of its kind after up to 2,000 cycles, again and again; returns the moves in which
/// it was saved. An error names the move after which it went wrong, as far as its output tells.
fn moved(mediator: &mut Mediator<Simulated>, kind: &PortDescription, job: &Golden, seed: u64) -> Result<u64, String> {
    let client = Client::new(2 * MIB);
    let id = start(mediator, kind, job, &client);
    let (mut random, mut moves, mut wrong_since) = (seed, 0, None);
    let after = |moves: u64, why| match moves {
        0 => format!("before the first move: {why}"),
        _ => format!("after move {moves}: {why}"),
    };
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if goes_on(mediator, id, 1 + (random >> 33) % 2000).map_err(|why| after(moves, why))? {
            break;
        }
        // An accelerator may write a line twice, so that only the last one counts.
        wrong_since = if is_wrong_already(job, &client) { wrong_since.or(Some(moves)) } else { None };
        if moves == MOST_MOVES {
            return Err(after(moves, "it does not end".to_owned()));
        }
        move_on(mediator, id, kind).map_err(|why| after(moves, why))?;
        moves += 1;
    }
    differs(mediator, id, kind, job, &client).map_err(|why| after(wrong_since.unwrap_or(moves), why))?;
    let saved = mediator.status(id).unwrap().preemptions;
    mediator.close(id);
    Ok(saved)
}

/// A short job that is moved after so many cycles, if it has not ended by then; true: it was saved.
fn moved_once(
    mediator: &mut Mediator<Simulated>,
    kind: &PortDescription,
    job: &Golden,
    after: u64,
) -> Result<bool, String> {
    let client = Client::new(2 * MIB);
    let id = start(mediator, kind, job, &client);
    if !goes_on(mediator, id, after)? {
        move_on(mediator, id, kind)?;
        while !goes_on(mediator, id, 500)? {}
    }
    differs(mediator, id, kind, job, &client)?;
    let saved = mediator.status(id).map_err(|error| error.to_string())?.preemptions > 0;
    mediator.close(id);
    Ok(saved)
}

/// Jobs of so many lines, each moved once, in steps of a few cycles up to the last moment in which one is saved: state that only the
/// last lines use is hardly ever met by moves at random. Answers how many were saved.
fn saved_near_the_end(
    mediator: &mut Mediator<Simulated>,
    folder: &Path,
    kind: &PortDescription,
    lines: u64,
) -> Result<u64, String> {
    let Some(job) = modelled(folder, kind, 2, lines)? else { return Ok(0) };
    let name = &kind.name;
    let wrong = |after, why| format!("{name}: a job of {lines} lines (seed 2) moved after {after} cycles: {why}");
    let whole =
        ends_right(mediator, kind, &job).map_err(|why| format!("{name}: a job of {lines} lines (seed 2): {why}"))?;
    let (mut saved_after, mut ended_after) = (0, whole);
    while saved_after + 1 < ended_after {
        let middle = u64::midpoint(saved_after, ended_after);
        let saved = moved_once(mediator, kind, &job, middle).map_err(|why| wrong(middle, why))?;
        (saved_after, ended_after) = if saved { (middle, ended_after) } else { (saved_after, middle) };
    }
    let mut saved = 0;
    for after in (saved_after.saturating_sub(END_CYCLES)..=saved_after).step_by(END_STEP) {
        saved += u64::from(moved_once(mediator, kind, &job, after).map_err(|why| wrong(after, why))?);
    }
    Ok(saved)
}

/// Lines of a job that takes about [`JOB_CYCLES`], and the cycles of short ones from which that is computed.
pub fn usual_lines(
    mediator: &mut Mediator<Simulated>,
    folder: &Path,
    kind: &PortDescription,
) -> Option<(u64, [u64; 2])> {
    sampled(mediator, folder, kind).unwrap_or_else(|why| panic!("{why}"))
}

/// The same; an error says which of the short jobs is wrong, and where.
fn sampled(
    mediator: &mut Mediator<Simulated>,
    folder: &Path,
    kind: &PortDescription,
) -> Result<Option<(u64, [u64; 2])>, String> {
    let mut cycles = [0; 2];
    for (seed, lines) in [(1, 1), (2, SAMPLE_LINES)] {
        let Some(job) = modelled(folder, kind, seed, lines)? else { return Ok(None) };
        let wrong = |why| format!("{}: a job of {lines} lines without a pause (seed {seed}): {why}", kind.name);
        cycles[seed as usize - 1] = ends_right(mediator, kind, &job).map_err(wrong)?;
    }
    let lines = (JOB_CYCLES * SAMPLE_LINES / cycles[1].saturating_sub(cycles[0]).max(1)).min(MAX_LINES);
    Ok(Some((lines, cycles)))
}

/// Runs jobs of each kind of accelerator in an image that has a golden model in `folder`: short ones without a pause, then longer
/// ones that are paused and moved until `wanted` of them were saved. Returns a line for each kind, an error for one that is wrong:
/// it names the job, the move and the first wrong byte.
pub fn check(mediator: &mut Mediator<Simulated>, folder: &Path, wanted: u64) -> Vec<Result<String, String>> {
    kinds(mediator).iter().filter_map(|kind| check_kind(mediator, folder, kind, wanted).transpose()).collect()
}

fn check_kind(
    mediator: &mut Mediator<Simulated>,
    folder: &Path,
    kind: &PortDescription,
    wanted: u64,
) -> Result<Option<String>, String> {
    let name = &kind.name;
    let Some((lines, [beginning, cycles])) = sampled(mediator, folder, kind)? else { return Ok(None) };
    if mediator.board().description().ports.iter().filter(|port| port.guid == kind.guid).count() < 2 {
        return Err(format!("{name}: the image has it at one port, and its jobs are moved: write \"{name}*2\""));
    }
    let (mut moves, mut jobs) = (0, 0);
    while moves < wanted {
        jobs += 1;
        let Some(job) = modelled(folder, kind, 2 + jobs, lines)? else { return Ok(None) };
        let wrong = |why| format!("{name}: job {jobs} of {lines} lines (seed {}) {why}", 2 + jobs);
        moves += moved(mediator, kind, &job, jobs).map_err(wrong)?;
        if jobs == 10 && moves == 0 {
            return Err(format!(
                "{name}: jobs of {lines} lines are never saved: there is no other port for it, or they are too short"
            ));
        }
    }
    let short = (lines / 4).max(SAMPLE_LINES);
    let ends = saved_near_the_end(mediator, folder, kind, short)?;
    if mediator.board().escaped() != 0 {
        return Err(format!("{name}: requests left their IO slice"));
    }
    Ok(Some(format!(
        "{name}: 1 line in {beginning}, {SAMPLE_LINES} in {cycles} cycles; {moves} moves in {jobs} jobs of {lines} lines, {ends} \
         near the end of one of {short}"
    )))
}
