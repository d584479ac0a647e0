//! Stopping a session's lanes between two messages, and letting them go on.
//!
//! A lane looks at one word before each message; the word is zero while nothing is asked of the lanes. A pause stops every
//! lane where it can go on later, in this process or in another one: with a message taken and not begun, or between two
//! messages. A lane inside a call stops when the call is over; one that only waits ([`crate::session::waits`]) counts as one
//! that stands, before its message. Nothing is lost by a pause that is given up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::session::waits::{LaneWait, StoppedLane};

/// The word that lanes look at.
mod word {
    pub const NOTHING: u32 = 0;
    /// Bit: calls are counted, for tests.
    pub const COUNTED: u32 = 1;
    /// Bit: lanes stop.
    pub const STOP: u32 = 2;
    /// Bit: lanes end.
    pub const DEAD: u32 = 4;
    /// Bit: lanes receive messages and begin none.
    pub const OUT: u32 = 8;
}

/// The present demand on the lanes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Stopping,
    /// The session's memory is not on its devices: a lane that has a message waits with it.
    Out,
    /// For good.
    Dead,
}

/// The end of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopEnd {
    GoesOn,
    SessionOver,
}

/// Lanes inside a call that count as ones that stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    None,
    /// Those that only wait.
    Waiting,
    /// Those whose call waits for the node ([`Pause::wait_aside`]).
    Aside,
}

/// Where a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beneath {
    Nothing,
    /// A callback: the vendor's library is in the call that has led to it.
    Callback,
}

/// Calls after each of which tests have the session move.
#[derive(Debug)]
struct Counted {
    every: u64,
    calls: u64,
}

#[derive(Debug)]
struct PauseState {
    phase: Phase,
    /// Lanes that do not stand.
    at_work: usize,
    /// Of those, the ones whose call waits for what only the node gives, before the vendor's library hears of it.
    aside: usize,
    /// Since the memory has left, a lane has had a message.
    called: bool,
    stopped: BTreeMap<u32, StoppedLane>,
    /// Of every lane: the call in which it only waits.
    waits: BTreeMap<u32, Arc<LaneWait>>,
    /// `None`: calls are not counted.
    counted: Option<Counted>,
}

impl PauseState {
    fn claim_waits(&mut self) {
        if self.phase != Phase::Stopping {
            return;
        }
        for (lane, wait) in &self.waits {
            if let Some(stopped) = wait.claim() {
                self.stopped.insert(*lane, stopped);
                self.at_work = self.at_work.saturating_sub(1);
            }
        }
    }

    fn unclaim_waits(&mut self) {
        for (lane, wait) in &self.waits {
            if wait.unclaim() {
                self.stopped.remove(lane);
                self.at_work += 1;
            }
        }
    }
}

#[derive(Debug)]
pub struct Pause {
    word: AtomicU32,
    state: Mutex<PauseState>,
    changed: Condvar,
}

impl Pause {
    /// `every`: for tests, the number of calls after each of which the session asks to be moved.
    pub fn new(every: Option<u64>) -> Pause {
        let counted = every.filter(|every| *every > 0).map(|every| Counted { every, calls: 0 });
        let word = if counted.is_some() { word::COUNTED } else { word::NOTHING };
        let state = PauseState {
            phase: Phase::Running,
            at_work: 0,
            aside: 0,
            called: false,
            stopped: BTreeMap::new(),
            waits: BTreeMap::new(),
            counted,
        };
        Pause { word: AtomicU32::new(word), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// False: lanes go on, and nothing else is to be done before the next message.
    #[inline]
    pub fn asks(&self) -> bool {
        self.word.load(Ordering::SeqCst) != word::NOTHING
    }

    #[inline]
    pub fn is_dead(&self) -> bool {
        self.word.load(Ordering::SeqCst) & word::DEAD != 0
    }

    /// True if lanes shall stop.
    pub fn stops(&self) -> bool {
        self.word.load(Ordering::SeqCst) & word::STOP != 0
    }

    /// True if lanes begin nothing because the session's memory is out.
    pub fn is_out(&self) -> bool {
        self.word.load(Ordering::SeqCst) & word::OUT != 0
    }

    // Lanes.

    /// A lane is about to begin. Called before its thread exists, so that a pause never misses it.
    pub fn enter(&self) {
        self.lock().at_work += 1;
    }

    /// A lane has ended, also one that stood.
    pub fn leave(&self) {
        let mut state = self.lock();
        state.at_work = state.at_work.saturating_sub(1);
        self.changed.notify_all();
    }

    /// A lane stands until it may go on.
    pub fn stand(&self, lane: u32, stopped: StoppedLane) -> StopEnd {
        let mut state = self.lock();
        if state.phase != Phase::Stopping {
            return if state.phase == Phase::Dead { StopEnd::SessionOver } else { StopEnd::GoesOn };
        }
        state.at_work = state.at_work.saturating_sub(1);
        state.stopped.insert(lane, stopped);
        self.changed.notify_all();
        while state.phase == Phase::Stopping {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.stopped.remove(&lane);
        state.at_work += 1;
        if state.phase == Phase::Dead { StopEnd::SessionOver } else { StopEnd::GoesOn }
    }

    /// A lane has a message. While the session's memory is out it waits here; `call` is told once for all lanes.
    pub fn await_memory(&self, call: impl Fn()) -> StopEnd {
        let mut state = self.lock();
        while state.phase == Phase::Out {
            if !std::mem::replace(&mut state.called, true) {
                drop(state);
                call();
                state = self.lock();
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.phase == Phase::Dead { StopEnd::SessionOver } else { StopEnd::GoesOn }
    }

    /// A call waits for what only the node gives. With [`Beneath::Nothing`] the vendor's library has not heard of it: meanwhile it
    /// does not keep the session's memory from leaving. It goes on only where that is.
    pub fn wait_aside(&self, beneath: Beneath, is_answered: impl Fn() -> bool) -> StopEnd {
        let aside = usize::from(beneath == Beneath::Nothing);
        let mut state = self.lock();
        state.aside += aside;
        self.changed.notify_all();
        while state.phase != Phase::Dead && !(state.phase == Phase::Running && is_answered()) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.aside -= aside;
        if state.phase == Phase::Dead { StopEnd::SessionOver } else { StopEnd::GoesOn }
    }

    /// What calls wait for aside may be there.
    pub fn wake_aside(&self) {
        let _state = self.lock();
        self.changed.notify_all();
    }

    /// Where the lane says that it only waits.
    pub fn waits_of(&self, lane: u32) -> Arc<LaneWait> {
        let wait = Arc::<LaneWait>::default();
        self.lock().waits.insert(lane, wait.clone());
        wait
    }

    /// A lane has ended; another one may have its number already.
    pub fn forget_waits(&self, lane: u32, wait: &Arc<LaneWait>) {
        let mut state = self.lock();
        if state.waits.get(&lane).is_some_and(|known| Arc::ptr_eq(known, wait)) {
            state.waits.remove(&lane);
        }
    }

    /// A lane has begun to wait: a pause under way has one lane less to wait for.
    pub fn wait_began(&self) {
        // Either the pause finds the wait when it looks, or this thread finds the word of the pause.
        if self.stops() {
            let _state = self.lock();
            self.changed.notify_all();
        }
    }

    /// A lane does not only wait any longer, if it did: it goes on once no pause has claimed it.
    pub fn end_wait(&self, lane: u32, wait: &LaneWait) -> StopEnd {
        if wait.end() {
            return StopEnd::GoesOn;
        }
        let mut state = self.lock();
        loop {
            if state.phase == Phase::Dead {
                if wait.unclaim() {
                    wait.end();
                    state.stopped.remove(&lane);
                    state.at_work += 1;
                }
                return StopEnd::SessionOver;
            }
            if wait.end() {
                return StopEnd::GoesOn;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A lane has executed a message. True if the session shall ask to be moved now: then all lanes stop at once, and the
    /// node lets them go on.
    pub fn count_call(&self) -> bool {
        let mut state = self.lock();
        let phase = state.phase;
        let Some(counted) = &mut state.counted else { return false };
        counted.calls += 1;
        if !counted.calls.is_multiple_of(counted.every) || phase != Phase::Running {
            return false;
        }
        self.set(&mut state, Phase::Stopping);
        true
    }

    // The control loop.

    /// Asks all lanes to stop. Those that sleep must be woken.
    pub fn request(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Running {
            self.set(&mut state, Phase::Stopping);
        }
    }

    /// Waits until every lane stands; false: some do not by `deadline`.
    pub fn await_all(&self, beside: Beside, deadline: Instant) -> bool {
        let mut state = self.lock();
        loop {
            if beside == Beside::Waiting {
                state.claim_waits();
            }
            let others = if beside == Beside::Aside { state.aside } else { 0 };
            if state.at_work <= others {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.phase == Phase::Dead {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The lanes that stand, by number.
    pub fn stopped(&self) -> BTreeMap<u32, StoppedLane> {
        self.lock().stopped.clone()
    }

    /// The memory has left while all lanes stood: they wait for messages again. True: a call needs it already, as it waits
    /// aside.
    pub fn let_out(&self) -> bool {
        let mut state = self.lock();
        if state.phase == Phase::Stopping {
            state.called = state.aside > 0;
            self.set(&mut state, Phase::Out);
        }
        state.phase == Phase::Out && state.called
    }

    pub fn resume(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Stopping | Phase::Out) {
            state.unclaim_waits();
            self.set(&mut state, Phase::Running);
        }
    }

    /// All lanes end. True: the first time.
    pub fn kill(&self) -> bool {
        let mut state = self.lock();
        let first = state.phase != Phase::Dead;
        self.set(&mut state, Phase::Dead);
        first
    }

    /// The only place where the phase changes.
    fn set(&self, state: &mut PauseState, phase: Phase) {
        let counted = if state.counted.is_some() { word::COUNTED } else { word::NOTHING };
        let asked = match phase {
            Phase::Running => word::NOTHING,
            Phase::Stopping => word::STOP,
            Phase::Out => word::OUT,
            Phase::Dead => word::DEAD,
        };
        state.phase = phase;
        self.word.store(counted | asked, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, PauseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_transport::LanePosition;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn lanes_stand_and_go_on_as_often_as_asked() {
        const LANES: u32 = 4;
        let pause = Pause::new(None);
        let executed: Vec<AtomicU32> = (0..LANES).map(|_| AtomicU32::new(0)).collect();
        (0..LANES).for_each(|_| pause.enter());
        std::thread::scope(|scope| {
            for lane in 0..LANES {
                let (pause, executed) = (&pause, &executed);
                scope.spawn(move || {
                    loop {
                        if pause.asks() && pause.stand(lane, StoppedLane::default()) == StopEnd::SessionOver {
                            return pause.leave();
                        }
                        executed[lane as usize].fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let seen = || executed.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<_>>();
            for _ in 0..200 {
                pause.request();
                assert!(pause.await_all(Beside::Waiting, soon()));
                assert_eq!(pause.stopped().len(), LANES as usize);
                let before = seen();
                std::thread::yield_now();
                assert_eq!(seen(), before, "a lane that stands executed a message");
                pause.resume();
            }
            assert!(pause.kill() && !pause.kill());
        });
        assert!(pause.is_dead());
    }

    #[test]
    fn lane_inside_a_call_keeps_the_pause_from_being_complete() {
        let pause = Pause::new(None);
        pause.enter();
        pause.request();
        assert!(!pause.await_all(Beside::Waiting, Instant::now()));
        // The attempt is given up: the lane never noticed.
        pause.resume();
        assert!(!pause.asks());
        assert_eq!(pause.stand(1, StoppedLane::default()), StopEnd::GoesOn);
    }

    /// A lane that waits until it is told that what it waits for has come.
    struct Waiting<'a> {
        pause: &'a Pause,
        wait: Arc<LaneWait>,
        came: std::sync::mpsc::Receiver<()>,
    }

    impl Waiting<'_> {
        fn run(&self) -> StopEnd {
            self.wait.prepare(b"a wait");
            self.wait.begin(LanePosition::default(), Some(-5));
            self.pause.wait_began();
            self.came.recv().unwrap();
            self.pause.end_wait(1, &self.wait)
        }
    }

    fn waiting(pause: &Pause) -> (std::sync::mpsc::Sender<()>, Waiting<'_>) {
        let (comes, came) = std::sync::mpsc::channel();
        pause.enter();
        (comes, Waiting { pause, wait: pause.waits_of(1), came })
    }

    #[test]
    fn lane_that_only_waits_stands_with_its_message_and_its_error() {
        let pause = Pause::new(None);
        let (comes, lane) = waiting(&pause);
        std::thread::scope(|scope| {
            let lane = scope.spawn(move || lane.run());
            for _ in 0..3 {
                pause.request();
                assert!(pause.await_all(Beside::Waiting, soon()), "also where the wait begins later");
                let stands = StoppedLane { taken: Some(b"a wait".to_vec()), deferred: Some(-5), ..Default::default() };
                assert_eq!(pause.stopped(), BTreeMap::from([(1, stands)]));
                pause.resume();
                assert_eq!(pause.stopped(), BTreeMap::new());
            }
            pause.request();
            assert!(pause.await_all(Beside::Waiting, soon()));
            comes.send(()).unwrap();
            std::thread::yield_now();
            assert!(!lane.is_finished(), "it answers while another process may have its call");
            pause.resume();
            assert_eq!(lane.join().unwrap(), StopEnd::GoesOn);
        });
        pause.request();
        assert!(!pause.await_all(Beside::Waiting, Instant::now()), "it is at work again");
    }

    #[test]
    fn lane_that_waits_is_at_work_where_waits_do_not_count_and_tells_nothing_after_the_end() {
        let pause = Pause::new(None);
        let (comes, lane) = waiting(&pause);
        std::thread::scope(|scope| {
            let lane = scope.spawn(move || lane.run());
            pause.request();
            assert!(!pause.await_all(Beside::None, Instant::now()));
            assert!(pause.await_all(Beside::Waiting, soon()));
            comes.send(()).unwrap();
            pause.kill();
            assert_eq!(lane.join().unwrap(), StopEnd::SessionOver);
        });
    }

    #[test]
    fn lane_with_a_message_waits_while_the_memory_is_out_and_one_of_them_tells() {
        let (pause, told) = (Pause::new(None), AtomicU32::new(0));
        assert_eq!(pause.await_memory(|| panic!("nothing is out")), StopEnd::GoesOn);
        assert!(!pause.let_out() && !pause.is_out(), "lanes must stand before");
        let wait = || {
            pause.await_memory(|| {
                told.fetch_add(1, Ordering::SeqCst);
            })
        };
        for round in 1..=3 {
            pause.request();
            assert!(!pause.let_out());
            assert!(pause.is_out() && pause.asks() && !pause.stops());
            std::thread::scope(|scope| {
                let lanes = [scope.spawn(wait), scope.spawn(wait)];
                while told.load(Ordering::SeqCst) < round {
                    std::thread::yield_now();
                }
                assert!(lanes.iter().all(|lane| !lane.is_finished()));
                pause.resume();
                assert!(lanes.map(|lane| lane.join().unwrap()).iter().all(|end| *end == StopEnd::GoesOn));
            });
            assert!(!pause.asks() && told.load(Ordering::SeqCst) == round);
        }
        pause.request();
        pause.let_out();
        std::thread::scope(|scope| {
            let lane = scope.spawn(wait);
            pause.kill();
            assert_eq!(lane.join().unwrap(), StopEnd::SessionOver);
        });
    }

    #[test]
    fn call_that_waits_for_the_node_goes_on_only_where_the_memory_is() {
        let (pause, answered) = (Pause::new(None), AtomicU32::new(0));
        pause.enter();
        std::thread::scope(|scope| {
            let lane = scope.spawn(|| pause.wait_aside(Beneath::Nothing, || answered.load(Ordering::SeqCst) != 0));
            pause.request();
            assert!(pause.await_all(Beside::Aside, soon()));
            assert!(!pause.await_all(Beside::None, Instant::now()), "it is in a call");
            answered.store(1, Ordering::SeqCst);
            assert!(pause.let_out(), "the call needs the memory");
            pause.wake_aside();
            std::thread::yield_now();
            assert!(!lane.is_finished());
            pause.resume();
            assert_eq!(lane.join().unwrap(), StopEnd::GoesOn);
        });
        pause.request();
        assert!(!pause.await_all(Beside::Aside, Instant::now()), "it is at work again");
    }

    #[test]
    fn call_below_a_callback_keeps_the_memory_where_it_is() {
        let (pause, answered) = (Pause::new(None), AtomicU32::new(0));
        pause.enter();
        std::thread::scope(|scope| {
            let lane = scope.spawn(|| pause.wait_aside(Beneath::Callback, || answered.load(Ordering::SeqCst) != 0));
            pause.request();
            assert!(!pause.await_all(Beside::Aside, Instant::now() + Duration::from_millis(20)));
            pause.resume();
            answered.store(1, Ordering::SeqCst);
            pause.wake_aside();
            assert_eq!(lane.join().unwrap(), StopEnd::GoesOn);
        });
    }

    #[test]
    fn counted_calls_stop_the_session_after_every_nth() {
        let pause = Pause::new(Some(3));
        assert!(pause.asks() && !pause.stops());
        let asked: Vec<bool> = (0..7)
            .map(|_| {
                let asked = pause.count_call();
                assert_eq!(pause.stops(), asked);
                pause.resume();
                asked
            })
            .collect();
        assert_eq!(asked, [false, false, true, false, false, true, false]);
        assert!(!Pause::new(Some(0)).asks() && !Pause::new(None).count_call());
    }

    #[test]
    fn end_of_the_session_ends_every_stop() {
        let pause = Pause::new(None);
        pause.enter();
        pause.request();
        std::thread::scope(|scope| {
            let lane = scope.spawn(|| pause.stand(1, StoppedLane::default()));
            assert!(pause.await_all(Beside::Waiting, soon()));
            pause.kill();
            assert_eq!(lane.join().unwrap(), StopEnd::SessionOver);
        });
        assert!(!pause.await_all(Beside::Waiting, Instant::now()), "the lane has not left yet");
    }
}
