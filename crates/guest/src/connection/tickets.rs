//! Numbers of asynchronous calls. The server executes calls in the order of their tickets, and tells how far it is.

use std::sync::atomic::{AtomicU64, Ordering};

use aviary_transport::Arena;

/// A counter on cache lines of its own, because all threads change it.
#[derive(Default)]
#[repr(align(128))]
struct CacheAligned(AtomicU64);

#[derive(Default)]
pub(crate) struct Tickets {
    taken: CacheAligned,
    /// The highest ticket that a reply has confirmed; used without shared memory.
    confirmed: AtomicU64,
    /// How many replies have been read.
    answered: CacheAligned,
}

impl Tickets {
    /// The last ticket that any thread has taken.
    #[inline]
    pub fn last(&self) -> u64 {
        self.taken.0.load(Ordering::Acquire)
    }

    /// Takes the next ticket. Its call must be sent: the server waits for every ticket.
    #[inline]
    pub fn take(&self) -> u64 {
        self.taken.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts a reply that is about to be given to the application.
    #[inline]
    pub fn answer(&self) {
        self.answered.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Grows with each asynchronous call that begins and with each other one that ends: equal numbers mean that in between no
    /// call had an effect that a thread can know of.
    #[inline]
    pub fn calls(&self) -> u64 {
        self.last().wrapping_add(self.answered.0.load(Ordering::Acquire))
    }

    /// Notes a reply's confirmation that all asynchronous calls up to `ticket` are finished.
    #[inline]
    pub fn confirm(&self, arena: &Arena, ticket: u64) {
        if arena.mirrored() {
            self.confirmed.fetch_max(ticket, Ordering::AcqRel);
        }
    }

    /// A ticket up to which all asynchronous calls are known to be finished.
    pub fn finished(&self, arena: &Arena) -> u64 {
        if arena.mirrored() {
            return self.confirmed.load(Ordering::Acquire);
        }
        match arena.pointer(0, 8) {
            // SAFETY: the first page of the arena, 8-aligned, belongs to this word. The server
            // writes it atomically; a lying server only makes this guest reuse a block too early,
            // which harms no other.
            Ok(p) => unsafe { AtomicU64::from_ptr(p.cast()) }.load(Ordering::Acquire),
            Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_calls_grows_with_each_of_both_kinds() {
        let tickets = Tickets::default();
        let mut known = tickets.calls();
        for step in 0..10 {
            if step % 3 == 0 {
                tickets.answer();
            } else {
                tickets.take();
            }
            assert!(tickets.calls() > known);
            known = tickets.calls();
            assert_eq!(tickets.calls(), known);
        }
    }
}
