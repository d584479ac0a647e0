//! Tests of all interleavings of a few threads, in one order after the other.
//!
//! The code under test calls [`point`] before each step that other threads may see. A thread of a test stops there until it
//! is its turn; the test repeats itself with every sequence of turns. Each load sees the last store: orders that are weaker
//! than sequentially consistent are not modelled. (Loom was no choice: it takes sequentially consistent accesses for
//! acquiring and releasing ones, under which announcing and marking need not see each other.)

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

thread_local! {
    static ACTOR: RefCell<Option<(Arc<Stage>, usize)>> = const { RefCell::new(None) };
}

/// A sequence of turns.
#[derive(Default)]
struct Stage {
    state: Mutex<StageState>,
    changed: Condvar,
}

#[derive(Default)]
struct StageState {
    /// The thread that runs.
    turn: Option<usize>,
    waiting: Vec<usize>,
    ended: usize,
}

/// Lets other threads of the test take their turns.
pub fn point() {
    let actor = ACTOR.with_borrow(Clone::clone);
    if let Some((stage, number)) = actor {
        stage.pass(number);
    }
}

impl Stage {
    fn pass(&self, number: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(number);
        if state.turn == Some(number) {
            state.turn = None;
        }
        self.changed.notify_all();
        while state.turn != Some(number) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, number: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended += 1;
        if state.turn == Some(number) {
            state.turn = None;
        }
        self.changed.notify_all();
    }

    /// Gives `count` threads their turns: as `choices` says, and further ones to the first. Answers what there was to
    /// choose from each time.
    fn direct(&self, count: usize, choices: &[usize]) -> Vec<usize> {
        let mut widths = Vec::new();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            while state.turn.is_some() || state.waiting.len() + state.ended < count {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.waiting.is_empty() {
                return widths;
            }
            state.waiting.sort_unstable();
            let choice = choices.get(widths.len()).copied().unwrap_or(0);
            widths.push(state.waiting.len());
            let next = state.waiting.remove(choice);
            state.turn = Some(next);
            self.changed.notify_all();
        }
    }
}

/// Runs the threads that `threads` makes in every interleaving, and `after` at the end of each. Answers how many there
/// were.
pub fn all<S: Send + Sync>(setup: impl Fn() -> S, threads: &[&(dyn Fn(&S) + Sync)], after: impl Fn(&S)) -> usize {
    let (mut choices, mut runs): (Vec<usize>, usize) = (Vec::new(), 0);
    loop {
        let (shared, stage) = (setup(), Arc::new(Stage::default()));
        let widths = std::thread::scope(|scope| {
            for (number, run) in threads.iter().enumerate() {
                let (shared, stage) = (&shared, stage.clone());
                scope.spawn(move || {
                    ACTOR.set(Some((stage.clone(), number)));
                    let ended = ActorEnd(stage, number);
                    point();
                    run(shared);
                    ACTOR.set(None);
                    drop(ended);
                });
            }
            stage.direct(threads.len(), &choices)
        });
        after(&shared);
        runs += 1;
        choices.resize(widths.len(), 0);
        // The next sequence: the last choice that can be another one.
        let Some(last) = (0..widths.len()).rev().find(|at| choices[*at] + 1 < widths[*at]) else { return runs };
        choices.truncate(last + 1);
        choices[last] += 1;
    }
}

/// Dropped when its thread has ended, also by a failed assertion.
struct ActorEnd(Arc<Stage>, usize);

impl Drop for ActorEnd {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

#[test]
fn two_threads_of_two_steps_have_six_interleavings() {
    let seen = Mutex::new(std::collections::HashSet::new());
    let step = |log: &Mutex<String>, name: char| {
        log.lock().unwrap().push(name);
        point();
        log.lock().unwrap().push(name);
    };
    let runs = all(
        || Mutex::new(String::new()),
        &[&|log| step(log, 'a'), &|log| step(log, 'b')],
        |log| {
            seen.lock().unwrap().insert(log.lock().unwrap().clone());
        },
    );
    assert_eq!((runs, seen.lock().unwrap().len()), (6, 6));
}
