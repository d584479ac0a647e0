//! The functions of the process that its modules call.

use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::{Arc, OnceLock};

use aviary_control::OfferName;

use super::shared::ProcessState;
use crate::connection::exchange::ExchangeAbi;
use crate::connection::ffi::guarded;

/// The functions that modules call name no connection that could have ended: the process is there as long as they are.
static PROCESS: OnceLock<Arc<ProcessState>> = OnceLock::new();

pub fn open(shared: &Arc<ProcessState>) {
    let _ = PROCESS.set(shared.clone());
}

pub static ABI: ExchangeAbi = ExchangeAbi { offer, withdraw, fetch, card };

extern "C" fn card(session: u64) -> RawFd {
    let connect = || PROCESS.get().map(|shared| shared.exchange.card(&shared.node, session));
    match guarded(connect, None) {
        Some(Ok(descriptor)) => descriptor.into_raw_fd(),
        Some(Err(errno)) => i32::try_from(errno).ok().filter(|errno| *errno > 0).map_or(-1, |errno| -errno),
        None => -1,
    }
}

extern "C" fn offer(session: u64, descriptor: RawFd, note: u64, name: *mut OfferName) -> i32 {
    let offer = || {
        // SAFETY: the module owns the descriptor during the call.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        PROCESS.get()?.exchange.offer(session, descriptor, note)
    };
    match guarded(offer, None) {
        Some(made) => {
            // SAFETY: the module passes a place for a name.
            unsafe { name.write(made) };
            0
        }
        None => -1,
    }
}

extern "C" fn withdraw(name: *const OfferName) {
    // SAFETY: the module passes a name.
    let name = unsafe { name.read() };
    guarded(|| PROCESS.get().into_iter().for_each(|shared| shared.exchange.withdraw(&name)), ());
}

extern "C" fn fetch(session: u64, name: *const OfferName, note: *mut u64) -> RawFd {
    // SAFETY: the module passes a name.
    let name = unsafe { name.read() };
    let fetch = || PROCESS.get().and_then(|shared| shared.exchange.fetch(&shared.node, session, &name));
    match guarded(fetch, None) {
        Some((descriptor, offered)) => {
            // SAFETY: the module passes a place for the number.
            unsafe { note.write(offered) };
            descriptor.into_raw_fd()
        }
        None => -1,
    }
}
