//! The objects that a call uses: from the ids in the request to native values that stay until the call is over. And what its
//! reply tells of new ones.

use std::ops::Range;
use std::time::Duration;

use aviary_wire::MAX_PREDEFINED;

use super::{Call, HandleMark, UsedHandle};
use crate::api::Reject;
use crate::handles::{Busy, Exclusive, Unusable};
use crate::session::Session;

/// What the reply says of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mentioned {
    Nothing,
    Known,
    New,
}

impl Mentioned {
    /// True if the guest has a handle of it.
    pub fn is_any(self) -> bool {
        self != Mentioned::Nothing
    }
}

impl Call {
    /// The native value of a handle.
    pub fn handle(&mut self, ty: u32) -> Result<u64, Reject> {
        Ok(self.use_handle(ty)?.1)
    }

    /// Where the specification's function writes what the guest is to know of the object just mentioned: zeroed memory of `n`
    /// bytes; NULL if the guest knows the object already.
    pub fn told_object(&mut self, mentioned: Mentioned, n: usize) -> *mut u8 {
        if mentioned == Mentioned::New { self.scratch(n) } else { std::ptr::null_mut() }
    }

    /// What was written there.
    ///
    /// # Safety
    /// `told` is what [`Call::told_object`] answered for `n`.
    pub unsafe fn reply_told(&mut self, told: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        let bytes = (!told.is_null()).then(|| unsafe { std::slice::from_raw_parts(told, n) });
        self.reply.body.optional_bytes(bytes);
    }

    /// A handle that this call releases, or ends whatever its count (`all`).
    pub fn handle_ending(&mut self, ty: u32, all: bool) -> Result<u64, Reject> {
        let (id, native) = self.use_handle(ty)?;
        if id > MAX_PREDEFINED && self.begin_ending(id, all)? {
            self.mark_last(HandleMark::Ending);
        }
        Ok(native)
    }

    /// The object that this call sets others on (`refers`): no other call uses it meanwhile.
    pub fn handle_exclusive(&mut self, ty: u32) -> Result<u64, Reject> {
        let (id, native) = self.use_handle(ty)?;
        if id > MAX_PREDEFINED {
            self.begin_exclusive(ty, id)?;
        }
        Ok(native)
    }

    /// An object through which the call uses what was set on it (`through`): fails with `lacking` if some of that has
    /// ended.
    pub fn handle_through(&mut self, ty: u32, lacking: i64) -> Result<u64, Reject> {
        let (id, native) = self.use_handle(ty)?;
        if id > MAX_PREDEFINED && self.session.objects.handles.is_lacking(id) {
            return Err(Reject::Failed(lacking));
        }
        Ok(native)
    }

    /// Id and native value.
    #[inline(always)]
    fn use_handle(&mut self, ty: u32) -> Result<(u64, u64), Reject> {
        let id = self.word()?;
        // A predefined value has nothing that could end or be noted.
        if id > MAX_PREDEFINED {
            self.caller.uses.announce(id);
        }
        let native = match self.session.objects.handles.usable(ty, id) {
            Ok(native) => native,
            Err(why) => self.await_usable(ty, id, why)?,
        };
        if id > MAX_PREDEFINED {
            self.effects.handles.push(UsedHandle { ty, native, id, mark: HandleMark::Used });
        }
        Ok((id, native))
    }

    /// The object that was announced last is not usable, or not for this call yet.
    #[cold]
    fn await_usable(&mut self, ty: u32, id: u64, mut why: Unusable) -> Result<u64, Reject> {
        let mut rounds = 0..EXCLUSIVE_WAIT_ROUNDS;
        while why == Unusable::Exclusive {
            // The call that has it waits for those that use it.
            self.caller.uses.forget_from(self.caller.uses.len() - 1);
            let goes_on = wait_a_round(&mut rounds, &self.session);
            self.caller.uses.announce(id);
            if !goes_on {
                return Err(Reject::Refused);
            }
            match self.session.objects.handles.usable(ty, id) {
                Ok(native) => return Ok(native),
                Err(again) => why = again,
            }
        }
        self.reply.invalid = id;
        Err(Reject::InvalidHandle(ty))
    }

    /// Takes the object that was announced last. A program that is in order never uses it in another thread for longer
    /// than a query takes, so the wait is bounded for those that are not.
    fn begin_exclusive(&mut self, ty: u32, id: u64) -> Result<(), Reject> {
        while self.session.objects.handles.try_exclusive(id) == Exclusive::Others {
            self.await_usable(ty, id, Unusable::Exclusive)?;
        }
        self.mark_last(HandleMark::Exclusive);
        let mut rounds = 0..EXCLUSIVE_WAIT_ROUNDS;
        let wait = || wait_a_round(&mut rounds, &self.session);
        // Not later, like an end: calls that follow rely on it.
        self.session.objects.handles.await_exclusive(id, &self.caller.uses, wait).map_err(|Busy| Reject::Refused)
    }

    fn mark_last(&mut self, mark: HandleMark) {
        if let Some(used) = self.effects.handles.last_mut() {
            used.mark = mark;
        }
    }

    /// True: the object is marked as given back by this call. A program that is in order never gives a last reference
    /// back while another thread's call uses it: the wait is for those that are not, and bounded, since the other call
    /// may wait for what this thread does next.
    #[cold]
    fn begin_ending(&self, id: u64, all: bool) -> Result<bool, Reject> {
        let mut rounds = 0..if self.request.is_async() { DEFERRED_WAIT_ROUNDS } else { END_WAIT_ROUNDS };
        let wait = || {
            let goes_on = rounds.next().is_some() && !self.session.pause.is_dead();
            if goes_on {
                std::thread::sleep(END_WAIT_ROUND);
            }
            goes_on
        };
        match self.session.objects.handles.ending(id, all, &self.caller.uses, wait) {
            Ok(ending) => Ok(ending.is_some()),
            Err(Busy) => Err(Reject::Busy),
        }
    }

    /// The vendor's function is done with the handles.
    #[inline(always)]
    pub(crate) fn forget_uses(&mut self) {
        for used in self.effects.handles.iter().filter(|used| used.mark != HandleMark::Used) {
            match used.mark {
                HandleMark::Ending => self.session.objects.handles.spared(used.id),
                _ => self.session.objects.handles.end_exclusive(used.id),
            }
        }
        self.caller.uses.forget_from(self.caller.outer_uses);
    }
}

/// How often and how long a call that ends an object waits for calls of other threads that use it: 200 ms in all.
const END_WAIT_ROUNDS: u32 = 4000;
/// The same for a call that can be made later.
const DEFERRED_WAIT_ROUNDS: u32 = 2;
const END_WAIT_ROUND: Duration = Duration::from_micros(50);
/// The same for a call that has an object for itself, and for one that waits for such a call: more than 5 s in all.
const EXCLUSIVE_WAIT_ROUNDS: u32 = 100_000;
/// Rounds at first in which a thread only lets others run.
const YIELD_ROUNDS: u32 = 50;

/// False: it was enough, or the session is over.
fn wait_a_round(rounds: &mut Range<u32>, session: &Session) -> bool {
    match rounds.next() {
        None => return false,
        Some(round) if round < YIELD_ROUNDS => std::thread::yield_now(),
        Some(_) => std::thread::sleep(END_WAIT_ROUND),
    }
    !session.pause.is_dead()
}
