//! The part of an API that a specification covers.

use crate::model::{Function, Kind, Model, Stateless, Support};
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
        Support::Remote if is_recorded(function) => State::Recorded,
        Support::Remote if function.asynchronous.is_some() => State::Async,
        Support::Remote if function.cache || function.cache_if.is_some() => State::Cached,
        Support::Remote => State::Supported,
    }
}

fn is_recorded(function: &Function) -> bool {
    let mut recorded = !function.records.is_empty();
    function.each_plan(&mut |plan| recorded |= plan.object.record.is_some());
    recorded
}

/// The treatment of a function's calls where a session moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Made again.
    Recorded,
    /// Takes or gives back references, or ends objects: the handles of a snapshot count them.
    Counted,
    /// Changes nothing.
    Stateless,
    /// Changes only what state functions save.
    Saved,
    /// Once called, the session stays where it is.
    Blocks,
    /// Never reaches the API server.
    Guest,
    Unsupported,
    /// The specification does not say: like [`Fate::Blocks`].
    Unexplained,
}

impl Fate {
    pub const ALL: [Fate; 8] = [
        Fate::Recorded,
        Fate::Counted,
        Fate::Stateless,
        Fate::Saved,
        Fate::Blocks,
        Fate::Guest,
        Fate::Unsupported,
        Fate::Unexplained,
    ];
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Fate::Recorded => "recorded",
            Fate::Counted => "counted",
            Fate::Stateless => "stateless",
            Fate::Saved => "saved",
            Fate::Blocks => "blocks",
            Fate::Guest => "guest",
            Fate::Unsupported => "unsupported",
            Fate::Unexplained => "unexplained",
        })
    }
}

/// Why a session that has called a function with [`Fate::Unexplained`] stays where it is.
const UNEXPLAINED: &str = "its specification does not say what a move does to it";

/// Why a session that has called this function cannot be moved. A function of which the specification says nothing is
/// one that changes something that no record brings back.
pub fn blocker<'a>(model: &Model, function: &'a Function) -> Option<&'a str> {
    let unexplained = || (fate(model, function) == Fate::Unexplained).then_some(UNEXPLAINED);
    function.blocker.as_deref().or_else(unexplained)
}

/// The fate of one function's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateCoverage {
    pub function: String,
    pub fate: Fate,
}

/// One line for every function, in the order of the header.
pub fn state_coverage(model: &Model) -> Vec<StateCoverage> {
    model.functions.iter().map(|f| StateCoverage { function: f.name.clone(), fate: fate(model, f) }).collect()
}

fn fate(model: &Model, function: &Function) -> Fate {
    match function.support {
        Support::Unsupported => return Fate::Unsupported,
        Support::Local(_) => return Fate::Guest,
        Support::Remote => {}
    }
    let (mut makes, mut forgets, mut counts, mut blocks) = (false, false, false, function.blocker.is_some());
    function.each_plan(&mut |plan| {
        let Kind::Handle { handle, retain, release } = plan.kind else { return };
        let ty = &model.handle_types[handle];
        let cannot_move = plan.object.allocate && ty.blocker.is_some();
        makes |= plan.object.allocate;
        blocks |= cannot_move;
        forgets |= plan.object.allocate && plan.object.record.is_none() && !cannot_move && ty.remade.is_none();
        counts |= retain || release || plan.object.deallocate;
    });
    match function.stateless {
        _ if function.blocker.is_some() => Fate::Blocks,
        _ if forgets => Fate::Unexplained,
        _ if is_recorded(function) => Fate::Recorded,
        _ if blocks => Fate::Blocks,
        // The memory that it hands out is handed out again.
        Some(Stateless::Nothing) if function.hands_out_memory() => Fate::Recorded,
        Some(Stateless::Nothing) => Fate::Stateless,
        Some(Stateless::StateOf(..)) => Fate::Saved,
        None if function.cache => Fate::Stateless,
        None if counts && !makes => Fate::Counted,
        None => Fate::Unexplained,
    }
}
