//! Threads of lanes and the writer in every interleaving. What the model checker reports by itself: two threads that use the
//! connection at once, and a writer that sleeps for ever.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};

mod sync {
    pub use loom::sync::{Condvar, MutexGuard};
}
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "sleepers.rs"]
mod sleepers;
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "turn.rs"]
mod turn;

use sleepers::Sleepers;
use turn::SendingTurn;

/// Lane and number.
type Message = (u8, u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Lane(u8),
    Writer,
    /// The writer sends the part that the socket did not take at first.
    Rest,
}

#[derive(Default)]
struct Queued {
    sending: SendingTurn,
    queue: Vec<Message>,
    finished: bool,
}

struct Model {
    state: Mutex<Queued>,
    ready: Sleepers,
    /// A thread uses the connection.
    in_use: AtomicBool,
    sent: std::sync::Mutex<Vec<(By, Vec<Message>)>>,
}

impl Model {
    fn send(&self, by: By, messages: Vec<Message>) {
        assert!(!self.in_use.swap(true, Ordering::Relaxed), "two threads use the connection");
        self.sent.lock().unwrap().push((by, messages));
        self.in_use.store(false, Ordering::Relaxed);
    }

    /// As the thread of a lane does: queues a message, and sends it if nobody sends. `full`: the socket takes only a part.
    fn lane(&self, message: Message, full: bool) {
        let mut state = self.state.lock().unwrap();
        state.queue.push(message);
        if !state.sending.lend() {
            if !state.sending.is_lent() {
                self.ready.wake(&mut state);
            }
            return;
        }
        loop {
            let messages = std::mem::take(&mut state.queue);
            drop(state);
            self.send(By::Lane(message.0), messages);
            state = self.state.lock().unwrap();
            if full {
                state.sending.leave_rest();
                return self.ready.wake(&mut state);
            }
            if state.queue.is_empty() {
                let more = state.finished;
                if state.sending.leave(more) {
                    self.ready.wake(&mut state);
                }
                return;
            }
        }
    }

    /// As the writer does, until everything was sent.
    fn writer(&self) {
        let mut state = self.state.lock().unwrap();
        loop {
            while !state.sending.take() {
                state = self.ready.wait(state);
            }
            let rest = state.sending.take_rest();
            if rest || !state.queue.is_empty() {
                let (by, messages) =
                    if rest { (By::Rest, Vec::new()) } else { (By::Writer, std::mem::take(&mut state.queue)) };
                drop(state);
                self.send(by, messages);
                state = self.state.lock().unwrap();
                continue;
            }
            if state.finished {
                return;
            }
            state.sending.free();
            state = self.ready.wait(state);
        }
    }

    fn finish(&self) {
        let mut state = self.state.lock().unwrap();
        state.finished = true;
        if !state.sending.is_lent() {
            self.ready.wake(&mut state);
        }
    }
}

/// Two lanes, of which the second one sends two messages. `full`: the socket takes only a part of what the first one sends.
fn check(full: bool, judge: impl Fn(&[(By, Vec<Message>)]) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let model = Arc::new(Model {
            state: Mutex::new(Queued::default()),
            ready: Sleepers::default(),
            in_use: AtomicBool::new(false),
            sent: Default::default(),
        });
        let (one, writer) = (model.clone(), model.clone());
        let one = loom::thread::spawn(move || one.lane((1, 0), full));
        let writer = loom::thread::spawn(move || writer.writer());
        (0..2).for_each(|number| model.lane((2, number), false));
        one.join().unwrap();
        model.finish();
        writer.join().unwrap();
        let sent = model.sent.lock().unwrap();
        let messages = || sent.iter().flat_map(|(_, messages)| messages);
        let of_lane =
            |lane| messages().filter(|message| message.0 == lane).map(|message| message.1).collect::<Vec<_>>();
        assert_eq!((of_lane(1), of_lane(2), messages().count()), (vec![0], vec![0, 1], 3));
        judge(&sent);
    });
}

#[test]
fn one_thread_sends_at_a_time_and_nothing_stays_behind() {
    check(false, |sent| assert!(sent.iter().all(|(by, _)| *by != By::Rest), "{sent:?}"));
}

#[test]
fn the_rest_of_what_a_full_socket_took_goes_before_anything_else() {
    check(true, |sent| {
        let places = |wanted| sent.iter().enumerate().filter(move |(_, (by, _))| *by == wanted).map(|(at, _)| at);
        let after: Vec<_> = places(By::Lane(1)).map(|at| at + 1).collect();
        assert_eq!(places(By::Rest).collect::<Vec<_>>(), after, "{sent:?}");
    });
}

#[test]
fn a_writer_that_wants_the_turn_is_woken_when_it_is_free() {
    // It has woken up because it is time for a ping, say, and nobody else has a reason to wake it.
    let mut turn = SendingTurn::default();
    turn.free();
    assert!(turn.lend() && !turn.lend() && !turn.take());
    assert!(turn.leave(false) && turn.take());
    turn.free();
    assert!(turn.lend() && !turn.leave(false), "once");
}
