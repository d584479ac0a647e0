//! How good the guesses of a provisional specification are, by the finished one: argument by argument.

mod described;

use crate::load::{Headers, Options, read_headers};
use crate::syntax::ast::{FunctionItem, Item};
use crate::syntax::diagnostics::Diagnostics;
use crate::syntax::parser::Guess;
use described::{Described, Descriptions, descriptions};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub right: usize,
    pub wrong: usize,
}

/// The comparison of a provisional specification with the finished one.
#[derive(Debug, Clone, Default)]
pub struct Score {
    /// Descriptors by the rule that wrote them; those outside of a `guess` are under `init`.
    pub rules: BTreeMap<String, Tally>,
    /// Descriptors of values in the finished specification, and how many of them the provisional one has.
    pub expected: usize,
    pub found: usize,
    /// Descriptors of the finished specification that the provisional one lacks, by name.
    pub lacking: BTreeMap<String, usize>,
    /// Open questions of the provisional specification.
    pub placeholders: usize,
    /// A line for each descriptor that is wrong.
    pub mistakes: Vec<String>,
}

impl Score {
    pub fn total(&self) -> Tally {
        let add = |a: Tally, b: &Tally| Tally { right: a.right + b.right, wrong: a.wrong + b.wrong };
        self.rules.values().fold(Tally::default(), add)
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 100.0 } else { 100.0 * part as f64 / whole as f64 }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { right, wrong } = self.total();
        writeln!(f, "precision {:.1}% ({right} of {})", percent(right, right + wrong), right + wrong)?;
        writeln!(f, "recall {:.1}% ({} of {})", percent(self.found, self.expected), self.found, self.expected)?;
        writeln!(f, "placeholders {}", self.placeholders)?;
        let width = self.rules.keys().map(String::len).max().unwrap_or(0);
        for (rule, tally) in &self.rules {
            writeln!(f, "  {rule:width$}  {:5} right {:5} wrong", tally.right, tally.wrong)?;
        }
        let lacking: Vec<String> = self.lacking.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(f, "not found: {}", lacking.join(", "))?;
        for mistake in &self.mistakes {
            writeln!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// Compares `guessed`, which `aviary spec init` wrote, with `finished`.
pub fn score(guessed: &Path, finished: &Path, options: &Options) -> Result<Score, Diagnostics> {
    let guessed = read_headers(guessed, options)?;
    let finished = read_headers(finished, options)?;
    let mut result = Score::default();
    let described = by_name(&finished);
    for function in functions(&guessed) {
        let Some(other) = described.get(function.name.text.as_str()) else { continue };
        compare(function, other, &guessed.guesses, &mut result);
    }
    Ok(result)
}

fn functions(headers: &Headers) -> impl Iterator<Item = &FunctionItem> {
    headers.items.iter().filter_map(|item| match item {
        Item::Function(function) => Some(function),
        _ => None,
    })
}

/// The functions of a specification; the last description of one counts (`override`).
fn by_name(headers: &Headers) -> HashMap<&str, &FunctionItem> {
    functions(headers).map(|f| (f.name.text.as_str(), f)).collect()
}

fn compare(guessed: &FunctionItem, finished: &FunctionItem, guesses: &[Guess], result: &mut Score) {
    let own = descriptions(guessed);
    let other = descriptions(finished);
    result.placeholders += own.placeholders;
    // A function that the guest answers by itself, or not at all, says nothing about its arguments.
    if other.is_local && other.found.is_empty() {
        return;
    }
    for described in &own.found {
        let rule = rule_of(described, guesses);
        let right = other.found.iter().any(|known| known.agrees(described)) && !loses_input(described, &own, &other);
        let tally = result.rules.entry(rule.clone()).or_default();
        if right {
            tally.right += 1;
        } else {
            tally.wrong += 1;
            result.mistakes.push(format!("{}: {described} ({rule})", guessed.name.text));
        }
    }
    let mut keys: Vec<_> = other.found.iter().filter(|c| c.counts()).map(Described::key).collect();
    keys.sort_unstable();
    keys.dedup();
    result.expected += keys.len();
    let has = |key: &(&str, &str)| {
        own.found
            .iter()
            .any(|described| described.key() == *key && other.found.iter().any(|known| known.agrees(described)))
    };
    for key in &keys {
        match has(key) {
            true => result.found += 1,
            false => *result.lacking.entry(key.1.to_string()).or_default() += 1,
        }
    }
}

/// True of an `out` of a value that flows both ways: the input would be lost.
fn loses_input(described: &Described, own: &Descriptions, other: &Descriptions) -> bool {
    let flows_in = |all: &Descriptions| all.found.iter().any(|d| d.kind == "in" && d.place == described.place);
    described.kind == "out" && flows_in(other) && !flows_in(own)
}

fn rule_of(described: &Described, guesses: &[Guess]) -> String {
    let inside = |g: &&Guess| {
        g.span.file == described.span.file && g.span.start <= described.span.start && described.span.end <= g.span.end
    };
    let guess = guesses.iter().find(inside);
    guess.map_or("init".to_string(), |g| g.reason.split(':').next().unwrap_or_default().to_string())
}
