//! At least 200 hostile policies: every one is refused, for the right reason, without a crash or a
//! hang.

mod control;
mod memory;
mod objects;

use crate::common::{USUAL, Word, found, object_of};
use aviary_policy::{Policy, PolicyError};
use std::path::Path;
use std::time::{Duration, Instant};

/// Upper bound of a refusal: a longer one is a hang. `./x bench policies` measures the time of
/// reading and verifying.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

struct Case {
    name: String,
    /// A part of the message.
    because: &'static str,
    object: Vec<u8>,
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn object(&mut self, name: impl Into<String>, because: &'static str, object: Vec<u8>) {
        self.0.push(Case { name: name.into(), because, object });
    }

    fn program(&mut self, name: impl Into<String>, because: &'static str, program: &[Word]) {
        self.object(name, because, object_of(program, &[USUAL, [2, 4, 8, 4, 0], [0, 4, 8, 4, 1]]));
    }

    /// Adds a program that runs with the value of a map in r0.
    fn value(&mut self, name: impl Into<String>, because: &'static str, body: &[Word]) {
        self.program(name, because, &found(body));
    }
}

fn sources() -> Vec<(String, String, std::path::PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let entries = std::fs::read_dir(folder)
        .expect("the folder of sources")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"));
    let mut found: Vec<_> = entries
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source");
            let because = text.lines().next().and_then(|line| line.strip_prefix("// refused: ")).expect("a reason");
            (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), because.to_owned(), path)
        })
        .collect();
    found.sort();
    found
}

/// The failure of a case, if it failed.
fn judge(because: &str, result: Result<Policy, PolicyError>, took: Duration) -> Option<String> {
    match result {
        Ok(_) => Some("was accepted".into()),
        Err(error) if !error.to_string().contains(because) => Some(format!("refused, but for: {error}")),
        Err(_) if took > HANG_TIMEOUT => Some(format!("took {took:?}")),
        Err(_) => None,
    }
}

#[test]
fn hostile_policies_are_refused() {
    let mut cases = Cases::default();
    for family in [
        memory::context,
        memory::stack,
        memory::values,
        memory::leaks,
        memory::unset,
        control::loops,
        control::helpers,
        control::divisions,
        control::jumps,
        control::opcodes,
        objects::maps,
        objects::objects,
    ] {
        family(&mut cases);
    }
    let (mut wrong, mut slowest) = (Vec::new(), Duration::ZERO);
    for case in &cases.0 {
        let begin = Instant::now();
        let result = Policy::from_object(&case.object);
        let took = begin.elapsed();
        slowest = slowest.max(took);
        wrong.extend(judge(case.because, result, took).map(|problem| format!("{}: {problem}", case.name)));
    }
    let names: std::collections::HashSet<_> = cases.0.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.0.len(), "each case has a name of its own");
    assert!(cases.0.len() >= 200, "{} cases", cases.0.len());
    println!("{} cases, the slowest took {slowest:?}", cases.0.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn hostile_source_is_refused_and_its_line_is_named() {
    let sources = sources();
    let mut wrong = Vec::new();
    for (name, because, path) in &sources {
        let object = Policy::object(path).unwrap_or_else(|error| panic!("{name} must compile: {error}"));
        let begin = Instant::now();
        let result = Policy::from_object(&object);
        let took = begin.elapsed();
        if let Err(PolicyError::Rejected(rejection)) = &result
            && rejection.source.as_ref().is_none_or(|(file, line, _)| !file.ends_with(name) || *line == 0)
        {
            wrong.push(format!("{name}: no line in: {rejection}"));
        }
        wrong.extend(judge(because, result, took).map(|problem| format!("{name}: {problem}")));
    }
    assert!(sources.len() >= 20, "{} sources", sources.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
