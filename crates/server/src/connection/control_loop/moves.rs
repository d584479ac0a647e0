//! The control loop's part in a move: it obeys orders, captures the session, or begins as one that was captured.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aviary_control::{CaptureDescriptors, CaptureFigures, MoveReport, StateDescriptors};
use aviary_transport::{Arena, LaneEnd, LanePosition, Liveness, Side};

use super::{Connected, await_end};
use crate::lane::LaneStart;
use crate::moving::link::{LanePlace, Link, LinkedLane};
use crate::moving::stage::{MoveStage, Step, next_order};
use crate::moving::{Obstacle, calls_under_way, close_callbacks, drain, report, snapshot, snapshot::Draft};
use crate::session::Session;
use crate::session::pause::Beside;
use crate::session::printed::Printed;
use crate::state::{self, Goal, Places, RebuildError, Rebuilt};
use crate::tables::contents::Mapped;
use crate::tables::handed::Handing;

/// How long lanes that begin in a new process may take until they stand: each makes calls of its own thread again.
const LANES_BEGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The calls that the threads of a session make again before it goes on in a new process.
struct Threads {
    rebuilt: Arc<Rebuilt>,
    /// Of the threads that could not do it.
    failures: Arc<Mutex<Vec<RebuildError>>>,
}

impl Threads {
    /// The recorded calls of one thread, to be made again on the shadow thread that takes its place.
    fn before(&self, session: &Arc<Session>, lane: u32) -> Box<dyn FnOnce() + Send> {
        let (session, rebuilt, failures) = (session.clone(), self.rebuilt.clone(), self.failures.clone());
        Box::new(move || {
            if let Err(error) = state::rebuild_thread(&session, &rebuilt, lane) {
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
            }
        })
    }

    /// Once all threads stand.
    fn outcome(&self) -> Result<(), RebuildError> {
        let failed = self.failures.lock().unwrap_or_else(PoisonError::into_inner).pop();
        failed.map_or(Ok(()), Err)
    }
}

/// The arena's file, which goes to the new process.
fn file_of(arena: &Arena) -> Result<BorrowedFd<'_>, Obstacle> {
    if arena.streamed() {
        return Err(Obstacle::lasting("the program shares no memory with its API server (--mirror)"));
    }
    arena.file().ok_or_else(|| Obstacle::lasting("the program is in a virtual machine"))
}

/// The reason why a session cannot be rebuilt here. The node hears at once of answers that differ, which may be equal in
/// yet another process, and of refusals by the vendor's library, which may end: other programs' memory is in the way.
fn told_failure(session: &Session, error: &RebuildError) -> String {
    let reason = error.to_string();
    let told = match error {
        RebuildError::NotSame { .. } => Some(MoveReport::Differs { reason: reason.clone() }),
        error if error.may_end() => Some(MoveReport::Unmovable { attempt: 0, reason: reason.clone(), lasting: false }),
        _ => None,
    };
    if let (Some(told), Some(orders)) = (told, &session.orders) {
        // A node that does not listen has gone.
        let _ = report(orders, &told);
    }
    reason
}

/// Bytes of content that the session's state would have now, beside its pieces.
fn contents_of(session: &Session) -> u64 {
    // SAFETY: the specification's own function, which may be called at any time.
    session.api.contents.map_or(0, |contents| unsafe { contents() })
}

/// So many bytes of contents, if the node has room for them: before a page of memory is made, and before anything is paused. The
/// node measures the whole state itself once it is written.
fn fitting(bytes: u64, room: u64) -> Result<u64, Obstacle> {
    let none = || {
        format!(
            "no room for {bytes} bytes from its devices: parked sessions leave {room} bytes (parked_memory or host_swap)"
        )
    };
    if bytes <= room { Ok(bytes) } else { Err(Obstacle::not_now(none())) }
}

/// The file, with memory for so many bytes of contents.
fn with_memory(file: OwnedFd, bytes: u64) -> Result<(Draft, Option<Mapped>), Obstacle> {
    let none = |error| {
        Obstacle::not_now(format!(
            "the host has no free memory to keep {bytes} bytes of the session's device memory: {error}"
        ))
    };
    let draft = Draft::within(file, bytes).map_err(none)?;
    let memory = draft.memory().map_err(none)?;
    memory.as_ref().map_or(Ok(()), |memory| memory.populate(0)).map_err(none)?;
    Ok((draft, memory))
}

/// The same, with other memory if they are not so many any more.
fn fitted(draft: Draft, memory: Option<Mapped>, bytes: u64) -> Result<(Draft, Option<Mapped>), Obstacle> {
    if draft.contents() == bytes {
        return Ok((draft, memory));
    }
    drop(memory);
    with_memory(draft.into_file(), bytes)
}

impl Connected {
    /// Takes one order. An error ends the connection.
    pub(super) fn obey(&mut self) -> Result<(), String> {
        let Some(orders) = &self.session.orders else { return Ok(()) };
        let pending = self.session.tables.overlap.next_pending();
        let next = pending.map_or_else(|| next_order(orders), |order| Ok(Some(order)))?;
        let Some((order, descriptors)) = next else { return Ok(()) };
        match self.stage.after(order) {
            Step::Announce { attempt } => self.announce(attempt, descriptors),
            Step::Capture { attempt, stop, park } => self.hand_over(attempt, stop, park, descriptors),
            Step::Rebuild => self.rebuild_parked(),
            Step::Serve => {
                self.go_on();
                Ok(())
            }
            Step::Leave(reason) => Err(reason.into()),
            Step::Nothing => Ok(()),
            step => {
                self.obey_swap(step);
                Ok(())
            }
        }
    }

    pub(super) fn report(&self, told: &MoveReport) -> Result<(), String> {
        let orders = self.session.orders.as_ref().ok_or("there are no orders")?;
        report(orders, told).map_err(|error| error.to_string())
    }

    /// Leaves the greeting in the node's file, so that a new process can prepare itself. The session goes on.
    fn announce(&self, attempt: u64, file: Vec<OwnedFd>) -> Result<(), String> {
        let file = file.into_iter().next().ok_or("an order to announce without its file")?;
        let greeting = Link { hello: self.link.hello.clone(), ..Link::default() };
        let written = file_of(&self.arena).and_then(|_| Draft::within(file, 0)?.write(&greeting, |_| Ok(())));
        // A node that does not listen has gone.
        let _ = match written {
            Ok(_) => self.report(&MoveReport::Announced { attempt }),
            Err(obstacle) => self.report(&obstacle.report(attempt)),
        };
        Ok(())
    }

    /// Captures the session and reports; it goes on if that is not possible.
    /// `descriptors`: those that came with the order.
    fn hand_over(
        &mut self,
        attempt: u64,
        timeout: Duration,
        park: Option<u64>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let place = CaptureDescriptors::of(descriptors).ok_or("an order to capture without its descriptors")?;
        if park.is_some() && self.kept() > 0 {
            // The state has its room.
            self.keep_at_most(0);
        }
        let captured = self.capture(timeout, park, place);
        if captured.is_ok() {
            self.stage = MoveStage::Captured;
            self.session.peer.set_heard(false);
        } else {
            // Before the node hears of it, which may ask again at once.
            self.go_on();
        }
        let told = match &captured {
            Ok(figures) => self.report(&MoveReport::Captured { attempt, figures: *figures }),
            Err(obstacle) => self.report(&obstacle.report(attempt)),
        };
        if told.is_err() {
            self.go_on();
        }
        Ok(())
    }

    /// As if nothing had been asked.
    pub(super) fn go_on(&mut self) {
        let session = &self.session;
        self.stage = MoveStage::Serving;
        session.peer.set_heard(true);
        session.callbacks.lane.go_on();
        session.calls.tickets.resume();
        self.lanes.values().for_each(|shadow| shadow.liveness.resume());
        // Another process may have shown its own meanwhile.
        session.accounts.stats.pid.store(std::process::id(), Ordering::Relaxed);
        session.accounts.stats.lanes.store(self.lanes.len() as u32, Ordering::Relaxed);
        session.pause.resume();
        if let Some(arriving) = self.arriving.take() {
            // To give a large state back takes longer than the session should wait for.
            drop(std::thread::Builder::new().name("contents".into()).spawn(move || drop(arriving)));
        }
    }

    /// Lets all lanes stop between two messages, until `deadline`.
    /// `beside`: lanes inside a call that may stay there.
    pub(super) fn stop_lanes(&mut self, beside: Beside, timeout: Duration, deadline: Instant) -> Result<(), Obstacle> {
        // A lane that its guest has closed is not one to go on with.
        await_end(&mut self.closing, timeout);
        if !self.closing.is_empty() {
            return Err(Obstacle::not_now(format!(
                "a call of a thread that has ended did not return within {timeout:?}"
            )));
        }
        let session = &self.session;
        session.pause.request();
        session.calls.tickets.pause();
        for shadow in self.lanes.values() {
            shadow.liveness.interrupt();
            shadow.waker.wake();
        }
        if session.pause.await_all(beside, deadline) { Ok(()) } else { Err(calls_under_way(session, timeout)) }
    }

    /// The connection to the guest as it is between two messages.
    fn link_of(&self, callbacks: Option<LanePosition>) -> Link {
        let session = &self.session;
        let (deliveries, delivered) = session.tables.late.untold();
        let stopped = session.pause.stopped();
        let lane = |(number, stopped)| {
            let place = self.lanes.get(&number).map_or(LanePlace::default(), |shadow| shadow.place);
            (number, LinkedLane { place, stopped })
        };
        Link {
            hello: self.link.hello.clone(),
            same_address: self.arena.same_address(),
            prints_with_replies: session.peer.printed.get().is_some(),
            lanes: stopped.into_iter().map(lane).collect(),
            callbacks: self.callbacks.zip(callbacks),
            tickets_done: session.calls.tickets.done(),
            delivered,
            deliveries,
            heap: self.heap.as_ref().map(|(place, _)| *place),
        }
    }

    /// Leaves the state and what belongs to it to the process that goes on with the session.
    fn leave_descriptors(&self, snapshot: OwnedFd, handed: OwnedFd, rest: OwnedFd) -> Result<(), Obstacle> {
        let (session, arena) = (&self.session, file_of(&self.arena)?);
        let copy = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(std::io::Error::from);
        let socket = session.peer.socket.as_ref().ok_or_else(|| Obstacle::lasting("there is no socket"))?;
        let descriptors = StateDescriptors {
            snapshot,
            guest: copy(socket.as_fd())?,
            arena: copy(arena)?,
            output: [copy(std::io::stdout().as_fd())?, copy(std::io::stderr().as_fd())?],
            handed,
            heap: self.heap.as_ref().map(|(_, file)| copy(file.as_fd())).transpose()?,
        };
        descriptors.leave(rest.as_fd())?;
        Ok(())
    }

    /// Writes the session down, and leaves it in the place that the node has made for it.
    fn capture(
        &mut self,
        timeout: Duration,
        park: Option<u64>,
        place: CaptureDescriptors<OwnedFd>,
    ) -> Result<CaptureFigures, Obstacle> {
        let CaptureDescriptors { handing: [from, handed], file, rest } = place;
        file_of(&self.arena)?;
        let asked = Instant::now();
        // Only a state that is kept has contents beside the rest: other processes get them by descriptors.
        let (draft, memory) = match park {
            Some(room) => with_memory(file, fitting(contents_of(&self.session), room)?)?,
            None => (Draft::within(file, 0)?, None),
        };
        let begun = Instant::now();
        let deadline = begun + timeout;
        // A parked session would be wanted at once by a thread that waits.
        self.stop_lanes(park.map_or(Beside::Waiting, |_| Beside::None), timeout, deadline)?;
        let session = &self.session;
        let rehearse = park.is_some() && state::may_differ(session);
        let stood = Instant::now();
        drain(session, Goal::Leave, deadline)?;
        let callbacks = close_callbacks(session, deadline)?;
        let drained = Instant::now();
        if session.peer.printed.get().is_some_and(Printed::has_text) {
            return Err(Obstacle::not_now("output of the vendor library was not sent to the program yet"));
        }
        let link = self.link_of(callbacks);
        session.tables.handed.begin(match (park.is_some(), rehearse) {
            (false, _) => Handing::InPlaceOfContents,
            (true, true) => Handing::BesideContents,
            (true, false) => Handing::Nothing,
        });
        let (draft, memory) = match park {
            Some(room) => fitted(draft, memory, fitting(contents_of(session), room)?)?,
            None => (draft, memory),
        };
        memory.into_iter().for_each(|memory| session.tables.contents.begin_writing(memory, draft.contents()));
        let written = draft.write(&link, |to| {
            let captured = state::capture(session, to).map_err(Obstacle::from);
            drop(session.tables.contents.end());
            captured
        });
        // Of a state that could not even be begun.
        drop(session.tables.contents.end());
        let sent = session.tables.handed.send(from.as_fd());
        let (snapshot, bytes) = written?;
        sent?;
        crate::process::confine::flush_output();
        self.leave_descriptors(snapshot, handed, rest)?;
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Ok(CaptureFigures {
            reserve_us: us(begun - asked),
            stop_us: us(stood - begun),
            drain_us: us(drained - stood),
            capture_us: us(drained.elapsed()),
            bytes,
            rehearse,
        })
    }

    /// In the new process: makes the session what it was in the old one. It stands until the order to go; an error says
    /// what does not work here, and the session is still the old process's. `begun`: since when that is to be done.
    pub(super) fn rebuild(&mut self, begun: Instant) -> Result<(), String> {
        self.stage = MoveStage::Rebuilt;
        let session = self.session.clone();
        let mut arriving = self.arriving.take().ok_or("there is no state")?;
        session.pause.request();
        if self.link.prints_with_replies {
            session.peer.print_with_replies().map_err(|error| error.to_string())?;
        }
        session.calls.tickets.finish(self.link.tickets_done);
        session.tables.late.resume(std::mem::take(&mut self.link.deliveries), self.link.delivered);
        if let Some((place, file)) = &self.heap {
            self.arena.lay_over(place.offset, place.length, file.as_fd()).map_err(|error| error.to_string())?;
        }
        if let Some(kept) = snapshot::contents(&arriving.snapshot).map_err(|error| error.to_string())? {
            session.tables.contents.begin_reading(kept);
        }
        let rebuilt = state::rebuild(&session, &mut arriving.rest, &Places::default());
        session.tables.handed.close();
        arriving.contents = session.tables.contents.end();
        self.arriving = Some(arriving);
        let rebuilt = rebuilt.map_err(|error| told_failure(&session, &error))?;
        let threads = Threads { rebuilt: Arc::new(rebuilt), failures: Arc::default() };
        // The old process's count.
        session.accounts.stats.lanes.store(0, Ordering::Relaxed);
        let lanes: BTreeMap<u32, LinkedLane> = std::mem::take(&mut self.link.lanes);
        for (number, LinkedLane { place, stopped }) in lanes {
            let (end, liveness) = self.end_at(place, stopped.position)?;
            let start = LaneStart {
                taken: stopped.taken,
                deferred: stopped.deferred,
                before: Some(threads.before(&session, number)),
                bell: None,
            };
            self.start_lane(number, place, end, liveness, start)?;
        }
        if let Some((place, position)) = self.link.callbacks {
            let (end, liveness) = self.end_at(place, position)?;
            session.callbacks.lane.open(end, liveness);
            self.callbacks = Some(place);
        }
        if !session.pause.await_all(Beside::None, Instant::now() + LANES_BEGIN_TIMEOUT) {
            return Err("the lanes did not begin in the new process".into());
        }
        threads.outcome().map_err(|error| told_failure(&session, &error))?;
        let rebuild_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.report(&MoveReport::Rebuilt { rebuild_us })
    }

    /// The end of a lane that continues where it was stopped.
    pub(super) fn end_at(&self, place: LanePlace, at: LanePosition) -> Result<(LaneEnd, Arc<Liveness>), String> {
        let length = usize::try_from(place.length).map_err(|_| "a lane longer than memory")?;
        let liveness = Arc::new(Liveness::notified());
        let end = LaneEnd::shared(&self.arena, place.offset, length, Side::Server, &liveness);
        let end = end.and_then(|end| end.resume(at)).map_err(|error| error.to_string())?;
        Ok((end, liveness))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_beyond_the_nodes_room_are_refused_by_both_numbers() {
        assert_eq!(fitting(0, 0), Ok(0));
        assert_eq!(fitting(4096, 4096), Ok(4096));
        let refused = fitting(4097, 4096).unwrap_err();
        assert!(
            matches!(&refused, Obstacle::NotNow(text) if text.contains("4097") && text.contains("4096 bytes (parked_memory or host_swap)"))
        );
    }
}
