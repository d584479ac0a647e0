//! Output that the vendor's library prints for the application: out of the API server's pipes, into the guest's
//! descriptors.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::carrier::Carrier;
use crate::inbox::{Inbox, Parcel, Total};

/// Output travels on lanes of its own: standard output, then standard error.
const LANES: [u32; 2] = [0xffff_ff01, 0xffff_ff02];
const READ_BYTES: usize = 16 << 10;
/// Output that was printed before a reply is shown before it, if showing takes no longer.
const MAX_OUTPUT_DELAY: Duration = Duration::from_millis(20);

pub(crate) struct Output {
    sinks: Mutex<[Option<OwnedFd>; 2]>,
    sources: [Option<Mutex<File>>; 2],
    inboxes: [Arc<Inbox>; 2],
    /// The connection's: the lanes' inboxes are counted along.
    pub total: Total,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The application's descriptor takes nothing at the moment.
    stuck: AtomicBool,
    showing: AtomicBool,
}

impl Output {
    /// The guest's side.
    pub fn sinks(sinks: [Option<OwnedFd>; 2]) -> Self {
        Output::new(sinks, [None, None])
    }

    /// The node's side.
    pub fn sources(sources: [Option<OwnedFd>; 2]) -> Self {
        Output::new([None, None], sources)
    }

    fn new(sinks: [Option<OwnedFd>; 2], sources: [Option<OwnedFd>; 2]) -> Self {
        let total = Total::default();
        Output {
            sinks: Mutex::new(sinks),
            sources: sources.map(|source| source.map(|fd| Mutex::new(File::from(fd)))),
            inboxes: LANES.map(|_| Arc::new(Inbox::new(total.clone()))),
            total,
            threads: Mutex::default(),
            stuck: AtomicBool::new(false),
            showing: AtomicBool::new(false),
        }
    }

    /// Output's own lanes, which no thread's lane may be.
    pub fn has(lane: u32) -> bool {
        LANES.contains(&lane)
    }

    /// Where messages on an output lane go; `None`: the lane is none of these, or output comes from here.
    pub fn inbox(&self, lane: u32) -> Option<&Inbox> {
        let at = LANES.iter().position(|l| *l == lane)?;
        if self.sources[at].is_some() {
            return None;
        }
        self.showing.store(true, Ordering::Relaxed);
        Some(&*self.inboxes[at])
    }

    pub fn start(&self, carrier: &Arc<Carrier>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let sinks = std::mem::take(&mut *self.sinks.lock().unwrap_or_else(PoisonError::into_inner));
        for (at, sink) in sinks.into_iter().enumerate() {
            // Without a sink what comes is dropped.
            let (inbox, carrier) = (self.inboxes[at].clone(), carrier.clone());
            if self.sources[at].is_none() {
                threads.push(std::thread::spawn(move || show(&carrier, LANES[at], sink.map(File::from), &inbox)));
            }
        }
        for at in 0..self.sources.len() {
            let carrier = carrier.clone();
            if self.sources[at].is_some() {
                threads.push(std::thread::spawn(move || carrier.output.follow(&carrier, at)));
            }
        }
    }

    /// Until the pipe ends.
    fn follow(&self, carrier: &Carrier, at: usize) {
        let Some(source) = &self.sources[at] else { return };
        let copy = source.lock().unwrap_or_else(PoisonError::into_inner).try_clone();
        let Ok(copy) = copy else { return };
        loop {
            match poll(&mut [PollFd::new(&copy, PollFlags::IN)], None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) if self.take(carrier, at) => {}
                _ => return,
            }
        }
    }

    /// Sends what a pipe holds. False: it is at its end.
    fn take(&self, carrier: &Carrier, at: usize) -> bool {
        let Some(source) = &self.sources[at] else { return false };
        let mut file = source.lock().unwrap_or_else(PoisonError::into_inner);
        // The other reader may have been faster.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !poll(&mut [PollFd::new(&*file, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0) {
            return true;
        }
        let mut bytes = [0; READ_BYTES];
        match file.read(&mut bytes) {
            Ok(0) | Err(_) => false,
            // Still under the lock: the order of what was read is the order in which it is queued.
            Ok(n) => carrier.outbox.message(LANES[at], &bytes[..n], Vec::new(), true).is_ok(),
        }
    }

    /// Before a reply is sent: what was printed until now goes first.
    pub fn flush(&self, carrier: &Carrier) {
        for at in 0..self.sources.len() {
            if self.sources[at].is_some() {
                self.take(carrier, at);
            }
        }
    }

    /// Before a reply is delivered: what was printed is shown first.
    pub fn settle(&self) {
        if !self.showing.load(Ordering::Relaxed) || self.stuck.load(Ordering::Relaxed) {
            return;
        }
        let deadline = Instant::now() + MAX_OUTPUT_DELAY;
        let settled = self.inboxes.iter().all(|inbox| inbox.settle(deadline));
        self.stuck.store(!settled, Ordering::Relaxed);
        self.showing.store(!settled, Ordering::Relaxed);
    }

    /// Nothing more comes: what has come is still shown or sent.
    pub fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        if self.sources.iter().any(Option::is_some) {
            // The pipes end when the API server does.
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

fn show(carrier: &Carrier, lane: u32, mut sink: Option<File>, inbox: &Inbox) {
    let mut shown = 0;
    while let Some(parcel) = inbox.next() {
        let Parcel::Batch(batch) = parcel else { continue };
        for bytes in batch.messages() {
            if let Some(file) = &mut sink {
                write_patiently(file, bytes);
            }
            carrier.delivered(lane, &mut shown, bytes.len());
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
            // It has no reader any more.
            Err(_) => return,
        }
    }
}
