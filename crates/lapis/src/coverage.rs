//! The part of an API that a specification covers.

use crate::model::{Function, Kind, Model, Rule, Support};
use std::fmt;

/// How one function is virtualized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    pub function: String,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Waits for the API server.
    Supported,
    /// Returns at once, always or under a condition.
    Async,
    /// Remembers its answers.
    Cached,
    /// Recorded so that it can be replayed after a migration.
    Recorded,
    /// Answered in the guest.
    Local,
    Unsupported,
}

impl State {
    pub const ALL: [State; 6] =
        [State::Supported, State::Async, State::Cached, State::Recorded, State::Local, State::Unsupported];
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Supported => "supported",
            State::Async => "async",
            State::Cached => "cached",
            State::Recorded => "recorded",
            State::Local => "local",
            State::Unsupported => "unsupported",
        })
    }
}

/// One line for every function, in the order of the header.
pub fn coverage(model: &Model) -> Vec<Coverage> {
    model.functions.iter().map(|f| Coverage { function: f.name.clone(), state: state(f) }).collect()
}

fn state(function: &Function) -> State {
    match &function.support {
        Support::Unsupported => State::Unsupported,
        Support::Local(_) => State::Local,
        Support::Remote if function.arguments.iter().chain([&function.result]).any(recorded) => State::Recorded,
        Support::Remote if function.asynchronous.is_some() => State::Async,
        Support::Remote if function.cache || function.cache_if.is_some() => State::Cached,
        Support::Remote => State::Supported,
    }
}

fn recorded(rule: &Rule) -> bool {
    match rule {
        Rule::If { then, otherwise, .. } => recorded(then) || recorded(otherwise),
        Rule::Plan(plan) => {
            plan.record
                || match &plan.kind {
                    Kind::Buffer(buffer) => recorded(&buffer.element),
                    Kind::Struct { fields, .. } => fields.iter().any(|(_, rule)| recorded(rule)),
                    _ => false,
                }
        }
    }
}
