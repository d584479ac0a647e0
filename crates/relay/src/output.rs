//! Standard output and error of the vendor's library: the gateway reads the API server's pipes, the relay writes to the
//! application's descriptors. Part of a carrier. A node can print any bytes to the application's terminal; an application
//! that does not read delays a reply by at most [`MAX_OUTPUT_DELAY`].

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::carry::inbox::{Inbox, Parcel, Total};
use crate::carry::outbox::Outbox;

/// Numbers of the lanes for output: standard output, then standard error.
const LANES: [u32; 2] = [0xffff_ff01, 0xffff_ff02];
const READ_BYTES: usize = 16 << 10;
/// The most time for which a reply waits until output that was printed before it is shown.
const MAX_OUTPUT_DELAY: Duration = Duration::from_millis(20);

pub(crate) struct Output {
    sinks: Mutex<[Option<OwnedFd>; 2]>,
    sources: [Option<Source>; 2],
    inboxes: [Arc<Inbox>; 2],
    /// Memory of all inboxes of the session, those of the lanes included.
    pub total: Total,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The application's descriptor accepts nothing at the moment.
    stuck: AtomicBool,
    showing: AtomicBool,
}

/// A pipe of the API server.
struct Source {
    pipe: File,
    /// Held from a look at the pipe until what was read is queued, so that output stays in order.
    reading: Mutex<()>,
    /// How often [`Output::flush`] and [`Source::is_ready`] have asked the kernel.
    #[cfg(test)]
    looks: std::sync::atomic::AtomicUsize,
}

impl Source {
    fn new(pipe: OwnedFd) -> Self {
        Source {
            pipe: File::from(pipe),
            reading: Mutex::default(),
            #[cfg(test)]
            looks: Default::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a read returns at once, with bytes or with the pipe's end.
    fn is_ready(&self) -> bool {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&AT_ONCE)).is_ok_and(|n| n > 0)
    }
}

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Output {
    /// In a relay: the application's descriptors.
    pub fn sinks(sinks: [Option<OwnedFd>; 2]) -> Self {
        Output::new(sinks, [None, None])
    }

    /// In a gateway: the API server's pipes.
    pub fn sources(sources: [Option<OwnedFd>; 2]) -> Self {
        Output::new([None, None], sources)
    }

    fn new(sinks: [Option<OwnedFd>; 2], sources: [Option<OwnedFd>; 2]) -> Self {
        let total = Total::default();
        Output {
            sinks: Mutex::new(sinks),
            sources: sources.map(|source| source.map(Source::new)),
            inboxes: LANES.map(|_| Arc::new(Inbox::new(total.clone()))),
            total,
            threads: Mutex::default(),
            stuck: AtomicBool::new(false),
            showing: AtomicBool::new(false),
        }
    }

    /// True for the numbers of the output lanes, which no other lane may have.
    pub fn has(lane: u32) -> bool {
        LANES.contains(&lane)
    }

    /// The inbox of an output lane. `None`: it is another lane, or this process is the gateway.
    pub fn inbox(&self, lane: u32) -> Option<&Inbox> {
        let at = LANES.iter().position(|l| *l == lane)?;
        if self.sources[at].is_some() {
            return None;
        }
        self.showing.store(true, Ordering::Relaxed);
        Some(&*self.inboxes[at])
    }

    pub fn start(self: &Arc<Self>, outbox: &Arc<Outbox>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let sinks = std::mem::take(&mut *self.sinks.lock().unwrap_or_else(PoisonError::into_inner));
        for (at, sink) in sinks.into_iter().enumerate() {
            // Without a sink, output is dropped.
            let (inbox, outbox) = (self.inboxes[at].clone(), outbox.clone());
            if self.sources[at].is_none() {
                threads.push(std::thread::spawn(move || show(&outbox, LANES[at], sink.map(File::from), &inbox)));
            }
        }
        for at in 0..self.sources.len() {
            let (output, outbox) = (self.clone(), outbox.clone());
            if self.sources[at].is_some() {
                threads.push(std::thread::spawn(move || output.follow(&outbox, at)));
            }
        }
    }

    /// Sends output until the pipe ends.
    fn follow(&self, outbox: &Outbox, at: usize) {
        let Some(source) = &self.sources[at] else { return };
        loop {
            match poll(&mut [PollFd::new(&source.pipe, PollFlags::IN)], None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) if self.take(outbox, at) => {}
                _ => return,
            }
        }
    }

    /// Sends the content of a pipe. False: the pipe has ended.
    fn take(&self, outbox: &Outbox, at: usize) -> bool {
        let Some(source) = &self.sources[at] else { return false };
        let _reading = source.lock();
        // Another reader may have emptied it.
        !source.is_ready() || self.pass(outbox, at)
    }

    /// Sends what a read of the pipe answers at once. With its lock.
    fn pass(&self, outbox: &Outbox, at: usize) -> bool {
        let Some(source) = &self.sources[at] else { return false };
        let mut bytes = [0; READ_BYTES];
        match (&source.pipe).read(&mut bytes) {
            Ok(0) | Err(_) => false,
            // Under the lock, so that output is queued in the order in which it was read.
            Ok(n) => outbox.message(LANES[at], &bytes[..n], Vec::new(), true).is_ok(),
        }
    }

    /// Before a reply is sent: sends the output that was printed before it. One kernel call if nothing was printed.
    pub fn flush(&self, outbox: &Outbox) {
        let [Some(first), Some(second)] = &self.sources else {
            for at in 0..self.sources.len() {
                self.take(outbox, at);
            }
            return;
        };
        // A follower that has read from a pipe queues that first. Nobody else takes both locks.
        let _reading = (first.lock(), second.lock());
        #[cfg(test)]
        first.looks.fetch_add(1, Ordering::Relaxed);
        let mut both = [&first.pipe, &second.pipe].map(|pipe| PollFd::new(pipe, PollFlags::IN));
        if poll(&mut both, Some(&AT_ONCE)).is_ok_and(|n| n == 0) {
            return;
        }
        let ready = both.map(|pipe| !pipe.revents().is_empty());
        for at in (0..ready.len()).filter(|at| ready[*at]) {
            self.pass(outbox, at);
        }
    }

    /// The API server prints nothing more for now: sends all that it has printed.
    pub fn drain(&self, outbox: &Outbox) {
        for (at, source) in self.sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let waits = || {
                let mut polled = [PollFd::new(&source.pipe, PollFlags::IN)];
                poll(&mut polled, Some(&AT_ONCE)).is_ok_and(|n| n > 0) && polled[0].revents().contains(PollFlags::IN)
            };
            while waits() && self.take(outbox, at) {}
        }
    }

    /// Before a reply is delivered: shows the output that arrived before it.
    pub fn settle(&self) {
        if !self.showing.load(Ordering::Relaxed) || self.stuck.load(Ordering::Relaxed) {
            return;
        }
        let deadline = Instant::now() + MAX_OUTPUT_DELAY;
        let settled = self.inboxes.iter().all(|inbox| inbox.settle(deadline));
        self.stuck.store(!settled, Ordering::Relaxed);
        self.showing.store(!settled, Ordering::Relaxed);
    }

    /// The session ends: the remaining output is shown or sent.
    pub fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        if self.sources.iter().any(Option::is_some) {
            // The pipes end with the API server.
            let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
            while Instant::now() < deadline && threads.iter().any(|thread| !thread.is_finished()) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// No further output arrives.
    pub fn close(&self, patience: Duration) {
        self.inboxes.iter().for_each(|inbox| inbox.finish());
        let deadline = Instant::now() + patience;
        for (at, inbox) in self.inboxes.iter().enumerate() {
            if self.sources[at].is_none() {
                inbox.await_end(deadline);
            }
        }
    }
}

fn show(outbox: &Outbox, lane: u32, mut sink: Option<File>, inbox: &Inbox) {
    let mut shown = 0;
    while let Some(parcel) = inbox.next() {
        let Parcel::Batch(batch) = parcel else { continue };
        for bytes in batch.messages() {
            if let Some(file) = &mut sink {
                write_patiently(file, bytes);
            }
            outbox.delivered(lane, &mut shown, bytes.len());
        }
    }
    inbox.ended();
}

/// The application may have made its descriptor one that does not wait.
fn write_patiently(file: &mut File, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(&*file, PollFlags::OUT)], None);
            }
            // Nobody reads it any more.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::new_pipe;

    /// What waits to be sent of each lane.
    fn queued(outbox: &Outbox) -> Vec<Vec<u8>> {
        let (mut signs, mut frames) = (Vec::new(), Vec::new());
        let arena = aviary_transport::Arena::create(1 << 20).unwrap();
        outbox.next(&arena, &mut signs, &mut frames, usize::MAX, Duration::ZERO, Duration::ZERO);
        let (mut packets, mut stream) = (crate::frames::frame::Packets::default(), Vec::new());
        crate::frames::frame::put_packet(&mut stream, &frames, false);
        packets.buffer().extend_from_slice(&stream);
        packets.next_packet().unwrap().unwrap().map(|frame| frame.unwrap().payload.to_vec()).collect()
    }

    #[test]
    fn a_reply_before_which_nothing_was_printed_costs_one_look() {
        let [(first, mut stdout), (second, mut stderr)] =
            [new_pipe().unwrap(), new_pipe().unwrap()].map(|(source, end)| (source, File::from(end)));
        let (output, outbox) = (Output::sources([Some(first), Some(second)]), Outbox::default());
        let looks =
            || output.sources.iter().flatten().map(|source| source.looks.load(Ordering::Relaxed)).sum::<usize>();
        (0..5).for_each(|_| output.flush(&outbox));
        assert_eq!((looks(), queued(&outbox).len()), (5, 0));
        stderr.write_all(b"an error").unwrap();
        stdout.write_all(b"a line").unwrap();
        output.flush(&outbox);
        assert_eq!(queued(&outbox), [&b"a line"[..], b"an error"]);
        stderr.write_all(b"another").unwrap();
        output.flush(&outbox);
        assert_eq!(queued(&outbox), [b"another"]);
        assert_eq!(looks(), 5 + 1 + 1);
    }

    #[test]
    fn a_reply_waits_for_output_that_was_read_and_is_not_queued_yet() {
        let [(first, _stdout), (second, _stderr)] = [new_pipe().unwrap(), new_pipe().unwrap()];
        let (output, outbox) = (Output::sources([Some(first), Some(second)]), Outbox::default());
        let read = output.sources[0].as_ref().unwrap().lock();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                output.flush(&outbox);
                outbox.message(1, b"the reply", Vec::new(), true).unwrap();
            });
            // Long enough for a reply that does not wait.
            std::thread::sleep(Duration::from_millis(50));
            outbox.message(LANES[0], b"a line", Vec::new(), true).unwrap();
            drop(read);
        });
        assert_eq!(queued(&outbox), [&b"a line"[..], b"the reply"]);
    }
}
