//! Descriptors that API servers of one tenant hand each other: what several processes of an application share of a device.
//!
//! A module offers a descriptor and gets a name for it, which its guest passes to another process of the application.
//! A process that knows the name can fetch the descriptor as long as the offer stands. The process around the module
//! does the rest ([`crate::process`]); this is what both sides know.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use aviary_control::OfferName;

/// Functions of the process for its modules. The functions may be called on any thread, at any time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExchangeAbi {
    /// Keeps a copy of the descriptor, and the number that comes with it; 0 if that worked.
    pub offer: extern "C" fn(session: u64, descriptor: RawFd, note: u64, name: *mut OfferName) -> i32,
    pub withdraw: extern "C" fn(name: *const OfferName),
    /// A descriptor of the caller's own, or -1.
    pub fetch: extern "C" fn(session: u64, name: *const OfferName, note: *mut u64) -> RawFd,
    /// A connection to a card of the node, of the caller's own, or a negative errno.
    pub card: extern "C" fn(session: u64) -> RawFd,
}

/// In a module: of the process that it is in.
static EXCHANGE: OnceLock<ExchangeAbi> = OnceLock::new();

pub(crate) fn introduce(exchange: ExchangeAbi) {
    // All connections of a process bring the same.
    let _ = EXCHANGE.set(exchange);
}

/// `None`: the process takes no offers, or no more of them.
pub(crate) fn offer(session: u64, descriptor: RawFd, note: u64) -> Option<OfferName> {
    let mut name = OfferName::default();
    ((EXCHANGE.get()?.offer)(session, descriptor, note, &raw mut name) == 0).then_some(name)
}

pub(crate) fn withdraw(name: OfferName) {
    if let Some(exchange) = EXCHANGE.get() {
        (exchange.withdraw)(&raw const name);
    }
}

/// The descriptor, and the number that was offered with it. `None`: the offer does not stand, or is another tenant's.
pub(crate) fn fetch(session: u64, name: OfferName) -> Option<(OwnedFd, u64)> {
    let mut note = 0;
    let fd = (EXCHANGE.get()?.fetch)(session, &raw const name, &raw mut note);
    // SAFETY: the process hands over a descriptor that nobody else owns.
    (fd >= 0).then(|| (unsafe { OwnedFd::from_raw_fd(fd) }, note))
}

/// A connection to a card of the node, for a session's tenant; otherwise an errno.
pub(crate) fn card(session: u64) -> Result<OwnedFd, i32> {
    let exchange = EXCHANGE.get().ok_or(rustix::io::Errno::NODEV.raw_os_error())?;
    let fd = (exchange.card)(session);
    // SAFETY: the process hands over a descriptor that nobody else owns.
    if fd >= 0 { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) } else { Err(-fd) }
}
