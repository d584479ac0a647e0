//! The verifier: walks every path of a program and refuses it at the first instruction that could
//! do harm.
//!
//! Loops are walked as often as they run. A state is not walked if another state covers it whose
//! paths were all walked to their ends; sums over loops with branches stay cheap thereby, and every
//! accepted program ends. The walk itself is bounded in instructions and remembered states.

mod access;
mod live;
mod range;
mod state;
mod step;

use crate::execute::instruction::Instruction;
use crate::limits;
use crate::map::Declaration;
use live::live_registers;
use state::State;
use std::collections::HashMap;

/// A section of global variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataShape {
    pub bytes: usize,
    pub writable: bool,
}

/// The memory that a program's addresses refer to.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    pub maps: &'a [Declaration],
    pub data: &'a [DataShape],
    /// True if the number in r0 at the end is used.
    pub answers: bool,
}

/// A violated rule, and its remedy.
#[derive(Debug)]
pub struct Problem {
    pub text: String,
    pub help: Option<&'static str>,
}

impl Problem {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), help: None }
    }

    fn help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }
}

#[derive(Debug)]
pub struct Violation {
    pub at: usize,
    pub problem: Problem,
}

/// The successor of an instruction.
enum Successor {
    Fall,
    To(usize),
    /// The states if the condition is true (at the target) and if it is false (at the next
    /// instruction).
    Either {
        target: usize,
        taken: Option<Box<State>>,
        not_taken: Option<Box<State>>,
    },
    End,
}

/// A state at a point that several paths reach.
struct VisitedState {
    state: State,
    /// Length in instructions of the longest path from this state; set when all of them were
    /// walked.
    longest: Option<usize>,
}

enum WorkItem {
    Walk {
        at: usize,
        state: Box<State>,
        depth: usize,
    },
    /// All paths from the newest open state were walked.
    Close,
}

struct OpenState {
    visited: usize,
    depth: usize,
    deepest: usize,
}

struct Verifier<'a> {
    program: &'a [Instruction],
    environment: Environment<'a>,
    live: Vec<u16>,
    is_target: Vec<bool>,
    visited: Vec<VisitedState>,
    known_at: HashMap<usize, Vec<usize>>,
    open: Vec<OpenState>,
    work: Vec<WorkItem>,
    visits: usize,
    deepest: usize,
}

/// States compared at one point: beyond this number, walking again is cheaper.
const COMPARED: usize = 8;

/// Checks a program and returns the length of its longest path in instructions.
pub fn verify(program: &[Instruction], environment: Environment<'_>) -> Result<usize, Violation> {
    check_reachable(program)?;
    let mut is_target = vec![false; program.len()];
    for target in program.iter().filter_map(Instruction::target) {
        is_target[target] = true;
    }
    let mut verifier = Verifier {
        program,
        environment,
        live: live_registers(program, environment.answers),
        is_target,
        visited: Vec::new(),
        known_at: HashMap::new(),
        open: Vec::new(),
        work: vec![WorkItem::Walk { at: 0, state: Box::new(State::at_entry()), depth: 0 }],
        visits: 0,
        deepest: 0,
    };
    while let Some(work) = verifier.work.pop() {
        match work {
            WorkItem::Walk { at, state, depth } => verifier.walk(at, *state, depth)?,
            WorkItem::Close => verifier.close(),
        }
    }
    Ok(verifier.deepest)
}

/// Refuses unreachable instructions: compilers leave none, so they can only hide something.
fn check_reachable(program: &[Instruction]) -> Result<(), Violation> {
    let mut reached = vec![false; program.len()];
    let mut work = vec![0];
    while let Some(at) = work.pop() {
        if at >= program.len() || std::mem::replace(&mut reached[at], true) {
            continue;
        }
        work.extend(program[at].target());
        if !matches!(program[at], Instruction::Exit | Instruction::Jump { .. }) {
            work.push(at + 1);
        }
    }
    match reached.iter().position(|reached| !reached) {
        Some(at) => Err(Violation { at, problem: Problem::new("no path leads to this instruction").help("remove it") }),
        None => Ok(()),
    }
}

impl Verifier<'_> {
    /// Walks one path until it ends, forks, or reaches a covered state.
    fn walk(&mut self, mut at: usize, mut state: State, mut depth: usize) -> Result<(), Violation> {
        loop {
            let violation = |problem| Violation { at, problem };
            let Some(instruction) = self.program.get(at) else {
                let problem = Problem::new("runs past its end").help("every path must end with `exit` (a `return`)");
                return Err(Violation { at: at.saturating_sub(1), problem });
            };
            self.visits += 1;
            if self.visits > limits::MAX_VISITS {
                return Err(violation(
                    Problem::new(format!(
                        "has more paths than the verifier follows ({} instructions)",
                        limits::MAX_VISITS
                    ))
                    .help("make loops shorter or give them constant bounds, and branch less inside of them"),
                ));
            }
            if depth >= limits::MAX_STEPS {
                return Err(violation(too_long()));
            }
            if self.is_target[at] {
                state.keep(self.live[at]);
                if self.is_known(at, &state, depth).map_err(violation)? {
                    return Ok(());
                }
            }
            depth += 1;
            match step::step(&self.environment, instruction, &mut state).map_err(violation)? {
                // A 16-byte load is followed by its second half, which counts as an instruction.
                Successor::Fall => at += 1,
                Successor::To(target) => at = target,
                Successor::End => {
                    self.ends(depth);
                    return Ok(());
                }
                Successor::Either { target, taken, not_taken } => {
                    if let Some(state) = taken {
                        self.work.push(WorkItem::Walk { at: target, state, depth });
                    }
                    match not_taken {
                        Some(next) => state = *next,
                        None => return Ok(()),
                    }
                    at += 1;
                }
            }
        }
    }

    /// True if this state needs no walk; otherwise remembers it.
    fn is_known(&mut self, at: usize, state: &State, depth: usize) -> Result<bool, Problem> {
        let indices = self.known_at.entry(at).or_default();
        for index in indices.iter().rev().take(COMPARED) {
            let visited = &self.visited[*index];
            match visited.longest {
                Some(longest) if visited.state.covers(state) => {
                    let end = depth + longest;
                    if end > limits::MAX_STEPS {
                        return Err(too_long());
                    }
                    self.ends(end);
                    return Ok(true);
                }
                None if visited.state.same(state) => {
                    return Err(Problem::new("this loop may never end: nothing changes from one round to the next")
                        .help("count the rounds in a variable with a constant limit"));
                }
                _ => {}
            }
        }
        if self.visited.len() < limits::MAX_STATES {
            indices.push(self.visited.len());
            self.open.push(OpenState { visited: self.visited.len(), depth, deepest: depth });
            self.visited.push(VisitedState { state: state.clone(), longest: None });
            self.work.push(WorkItem::Close);
        }
        Ok(false)
    }

    fn ends(&mut self, depth: usize) {
        self.deepest = self.deepest.max(depth);
        if let Some(open) = self.open.last_mut() {
            open.deepest = open.deepest.max(depth);
        }
    }

    fn close(&mut self) {
        let Some(closed) = self.open.pop() else { return };
        self.visited[closed.visited].longest = Some(closed.deepest - closed.depth);
        self.ends(closed.deepest);
    }
}

fn too_long() -> Problem {
    Problem::new(format!("a path has more than {} instructions: a loop ends too late, or never", limits::MAX_STEPS))
        .help("give every loop a constant limit, and keep it small")
}

#[cfg(test)]
mod range_tests;
