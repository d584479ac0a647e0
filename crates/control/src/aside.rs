//! Work that may wait for as long as somebody else likes, done aside: never on a thread that serves others.
//!
//! A descriptor that a guest, a VMM or an API server has sent is an object whose `close` runs code that it has chosen: a TCP
//! socket waits for a peer that does not read (SO_LINGER), a file for its file server (FUSE, NFS), and a socket for all that is
//! in flight in it. So nothing of that kind is closed where it is dropped. [`Foreign`] hands it to [`Aside`], whose threads
//! belong to one party (a tenant) each while they work for it.
//!
//! Without work there is at most one thread, which sleeps: sessions that are idle cost nothing.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError},
    time::{Duration, Instant},
};

/// Jobs of one party at a time; the others of it wait behind them.
pub const MOST_OF_ONE: usize = 16;
/// A job that lasts so long is told.
pub const LATE: Duration = Duration::from_secs(5);
/// Jobs of one party that may wait; with more of them those that run are interrupted, so that nobody fills this process's table of
/// descriptors. A socket that lingers then goes on without us; where nothing can be interrupted, the table fills.
const MOST_WAITING: usize = 64;
/// Threads that sleep for the next job: one takes it, the other one is there for the job that comes meanwhile.
const MOST_IDLE: usize = 2;
/// Stack of a thread: it makes one system call.
const STACK_BYTES: usize = 128 << 10;

/// How long a process that is about to be started waits for closes that have begun to take their descriptors out of the table,
/// which is the first thing that they do.
const CLOSES_BEGIN: Duration = Duration::from_secs(2);
/// How long the node waits for a process that it has started to close its copies. Before it executes its program or ends it does
/// nothing else.
const COPIES_CLOSED: Duration = Duration::from_secs(10);

enum Job {
    Close(OwnedFd),
    Do(Box<dyn FnOnce() + Send>),
}

impl Job {
    fn run(self) {
        match self {
            Job::Close(descriptor) => drop(descriptor),
            Job::Do(job) => job(),
        }
    }
}

/// A number in the table of descriptors, and the socket that it means until it is closed.
#[derive(Clone, Copy)]
struct Closing {
    number: RawFd,
    inode: Option<(u64, u64)>,
}

impl Closing {
    fn of(descriptor: &OwnedFd) -> Self {
        Self { number: descriptor.as_raw_fd(), inode: inode(descriptor.as_fd()) }
    }

    /// The number means this socket still.
    fn is_open(self) -> bool {
        // SAFETY: borrowed for one call; a number that is not open, or means something else by now, only gives another answer.
        let there = inode(unsafe { BorrowedFd::borrow_raw(self.number) });
        there.is_some() && there == self.inode
    }
}

fn inode(descriptor: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(descriptor).ok().map(|found| (found.st_dev, found.st_ino))
}

/// Waits until nobody has the other end any more, at most so long.
fn await_hang_up(reader: BorrowedFd<'_>, at_most: Duration) {
    let deadline = Instant::now() + at_most;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(reader, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// The name of those who pay for the work: a tenant's, as a rule.
pub type PartyName = Arc<str>;

struct Waiting {
    /// For people: its purpose.
    what: &'static str,
    job: Job,
}

struct Running {
    party: PartyName,
    what: &'static str,
    since: Instant,
    told: bool,
    thread: Interruptible,
    closes: Option<Closing>,
}

/// A thread of this process, by its id.
#[derive(Clone, Copy)]
struct Interruptible(libc::pid_t);

impl Interruptible {
    /// This thread.
    fn own() -> Self {
        static HANDLED: Once = Once::new();
        extern "C" fn nothing(_: libc::c_int) {}
        HANDLED.call_once(|| {
            // SAFETY: zeros are a value of this structure of integers and pointers.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // SAFETY: a handler that does nothing may run at any time. SIGURG is ignored without one, and nothing here asks
            // the kernel for it; without SA_RESTART a call that waits returns.
            unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) };
        });
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }

    /// Its present system call does not wait any longer, if it is one that a signal ends.
    fn interrupt(self) {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: the signal's handler does nothing, whatever thread has this id by now.
        unsafe { libc::syscall(libc::SYS_tgkill, process, self.0, libc::SIGURG) };
    }
}

#[derive(Default)]
struct Work {
    /// By party, in the order in which they came. No party is here without a job.
    waiting: BTreeMap<PartyName, VecDeque<Waiting>>,
    /// By the numbers of their threads.
    running: BTreeMap<u64, Running>,
    /// Threads that sleep, and threads that have not begun yet.
    idle: usize,
    starting: usize,
    last: u64,
    /// Processes that are being started: meanwhile nothing begins to be closed.
    spawning: usize,
    /// The party that was served last: the others have their turn before it.
    turn: Option<PartyName>,
}

impl Work {
    /// Its next job may begin.
    fn may_run(&self, party: &PartyName) -> bool {
        self.running.values().filter(|running| running.party == *party).count() < MOST_OF_ONE
    }

    /// The next job that may begin: from here on it runs on the thread of this number.
    fn next(&mut self, number: u64, thread: Interruptible, now: Instant) -> Option<Job> {
        if self.spawning > 0 {
            return None;
        }
        let after = self.waiting.keys().filter(|party| self.turn.as_ref().is_some_and(|turn| *party > turn));
        let party = after.chain(self.waiting.keys()).find(|party| self.may_run(party))?.clone();
        let jobs = self.waiting.get_mut(&party)?;
        let Waiting { what, job } = jobs.pop_front()?;
        if jobs.is_empty() {
            self.waiting.remove(&party);
        }
        self.turn = Some(party.clone());
        let closes = if let Job::Close(descriptor) = &job { Some(Closing::of(descriptor)) } else { None };
        self.running.insert(number, Running { party, what, since: now, told: false, thread, closes });
        Some(job)
    }
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    arrived: Condvar,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a thread for the next job. Where none can be had, jobs wait for one that comes back.
    fn keep_ready(self: &Arc<Self>, work: &mut Work) {
        if work.idle > 0 || work.starting > 0 {
            return;
        }
        work.last += 1;
        let (shared, number) = (self.clone(), work.last);
        let thread = std::thread::Builder::new().name("aside".into()).stack_size(STACK_BYTES);
        if thread.spawn(move || shared.serve(number)).is_ok() {
            work.starting += 1;
        }
    }

    /// The life of a thread: it ends when there is no work and enough others sleep.
    fn serve(self: &Arc<Self>, number: u64) {
        let thread = Interruptible::own();
        let mut work = self.work();
        work.starting -= 1;
        loop {
            if let Some(job) = work.next(number, thread, Instant::now()) {
                self.keep_ready(&mut work);
                drop(work);
                // A job that panics has printed why. The thread goes on.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run()));
                work = self.work();
                work.running.remove(&number);
            } else if work.idle >= MOST_IDLE {
                return;
            } else {
                work.idle += 1;
                work = self.arrived.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.idle -= 1;
            }
        }
    }
}

/// A job that lasts longer than [`LATE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateJob {
    pub party: PartyName,
    /// For people: its purpose.
    pub what: &'static str,
}

/// Threads that do what may wait. Copies are the same.
#[derive(Clone, Default)]
pub struct Aside(Arc<Shared>);

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = self.0.work();
        let waiting: usize = work.waiting.values().map(VecDeque::len).sum();
        write!(f, "Aside({} running, {waiting} waiting)", work.running.len())
    }
}

impl Aside {
    /// Does this on a thread that nobody waits for. `what` it is, for people.
    pub fn run(&self, party: &PartyName, what: &'static str, job: impl FnOnce() + Send + 'static) {
        self.add(party, what, Job::Do(Box::new(job)));
    }

    fn add(&self, party: &PartyName, what: &'static str, job: Job) {
        let mut work = self.0.work();
        let waiting = work.waiting.entry(party.clone()).or_default();
        waiting.push_back(Waiting { what, job });
        let too_many = waiting.len() > MOST_WAITING;
        self.0.keep_ready(&mut work);
        self.0.arrived.notify_one();
        if too_many {
            let own = work.running.values().filter(|running| running.party == *party);
            own.for_each(|running| running.thread.interrupt());
        }
    }

    /// Starts a process. Until it executes its program it has a copy of every descriptor, and closes them all then: one that was
    /// closed here meanwhile would be closed there for the last time, and this process would wait for the other one.
    ///
    /// That a process was started (posix_spawn) says only that it has memory of its own: its copies are closed a moment later. So
    /// it has a copy of a pipe, too, and this waits until nobody else has.
    pub fn while_spawning<T>(&self, spawn: impl FnOnce() -> T) -> T {
        let mut work = self.0.work();
        work.spawning += 1;
        let closing: Vec<Closing> = work.running.values().filter_map(|running| running.closes).collect();
        drop(work);
        let deadline = Instant::now() + CLOSES_BEGIN;
        while closing.iter().any(|closing| closing.is_open()) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let copied = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let spawned = spawn();
        if let Ok((reader, writer)) = copied {
            drop(writer);
            await_hang_up(reader.as_fd(), COPIES_CLOSED);
        }
        let mut work = self.0.work();
        work.spawning -= 1;
        self.0.keep_ready(&mut work);
        self.0.arrived.notify_all();
        spawned
    }

    /// Nothing waits any longer than it must: this process is about to be another program.
    pub fn hurry(&self) {
        self.0.work().running.values().for_each(|running| running.thread.interrupt());
    }

    /// The jobs that have become late since the last look.
    pub fn look(&self, now: Instant) -> Vec<LateJob> {
        let mut work = self.0.work();
        let late = |running: &&mut Running| !running.told && now.saturating_duration_since(running.since) >= LATE;
        let tell = |running: &mut Running| {
            running.told = true;
            LateJob { party: running.party.clone(), what: running.what }
        };
        work.running.values_mut().filter(late).map(tell).collect()
    }

    /// When [`Aside::look`] may have something to tell; `None`: there is no work.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let work = self.0.work();
        let begins = work.waiting.keys().any(|party| work.may_run(party)).then_some(now + LATE);
        let runs = work.running.values().filter(|running| !running.told).map(|running| running.since + LATE);
        runs.chain(begins).min()
    }

    /// Jobs of a party that are late and not done yet.
    pub fn late_of(&self, party: &str, now: Instant) -> usize {
        let late =
            |running: &&Running| *running.party == *party && now.saturating_duration_since(running.since) >= LATE;
        self.0.work().running.values().filter(late).count()
    }

    /// A party with work, if any has.
    pub fn busy(&self) -> Option<PartyName> {
        let work = self.0.work();
        let running = work.running.values().next().map(|running| running.party.clone());
        running.or_else(|| work.waiting.keys().next().cloned())
    }
}

/// How a [`Foreign`] is closed.
#[derive(Debug, Clone)]
struct Guard {
    aside: Aside,
    party: PartyName,
    /// For people: the thing that is closed.
    what: &'static str,
}

/// A descriptor that a peer has sent, or a socket in which descriptors of a peer may be in flight: to close a socket closes
/// those, too. Dropping it never waits.
#[derive(Debug)]
pub struct Foreign {
    descriptor: ManuallyDrop<OwnedFd>,
    /// `None`: nobody else has had it yet, and it is closed at once.
    guard: Option<Guard>,
}

impl Foreign {
    /// `what` it is, for people.
    pub fn new(descriptor: OwnedFd, aside: &Aside, party: &PartyName, what: &'static str) -> Self {
        let mut foreign = Self::own(descriptor);
        foreign.becomes(aside, party, what);
        foreign
    }

    /// One that only this program has, yet.
    pub fn own(descriptor: OwnedFd) -> Self {
        Self { descriptor: ManuallyDrop::new(descriptor), guard: None }
    }

    /// From here on a peer may put anything into it, which this party pays for.
    pub fn becomes(&mut self, aside: &Aside, party: &PartyName, what: &'static str) {
        self.guard = Some(Guard { aside: aside.clone(), party: party.clone(), what });
    }

    /// Another descriptor of the same object.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let descriptor = ManuallyDrop::new(self.descriptor.try_clone()?);
        Ok(Self { descriptor, guard: self.guard.clone() })
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nobody sees the field after this.
        let descriptor = unsafe { ManuallyDrop::take(&mut self.descriptor) };
        match self.guard.take() {
            Some(Guard { aside, party, what }) => aside.add(&party, what, Job::Close(descriptor)),
            None => drop(descriptor),
        }
    }
}

#[cfg(test)]
#[path = "aside_tests.rs"]
mod tests;
