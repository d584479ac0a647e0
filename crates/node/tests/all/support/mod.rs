//! An API server's end of the control socket, for the stand-ins of the tests.

use aviary_control::{Received, ToServer, receive};
use aviary_gate::{Gate, Kind, Resource, TenantPage, TenantSlot};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::env;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The socket on which the node has started this process: its number is the last argument.
pub fn control() -> OwnedFd {
    let number = env::args().next_back().and_then(|text| text.parse().ok()).expect("a descriptor number");
    // A second descriptor of the socket: the first one is only a number here.
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(own, number, PidfdGetfdFlags::empty()).unwrap()
}

/// The node's next message; `None`: it has hung up, or sent garbage.
pub fn take_message(control: BorrowedFd<'_>) -> Option<(ToServer, Vec<OwnedFd>)> {
    loop {
        poll(&mut [PollFd::from_borrowed_fd(control, PollFlags::IN)], None).ok()?;
        match receive(control) {
            Received::Message(message, descriptors) => return Some((message, descriptors)),
            Received::Nothing => {}
            Received::Closed | Received::Garbage(_) => return None,
        }
    }
}

/// The gate of a session with one resource, `memory`.
pub fn gate(tenant_page: &OwnedFd, slot: u32) -> Gate {
    let page = TenantPage::open(tenant_page.as_fd()).expect("a page");
    let seat = TenantSlot::new(page, slot).expect("a slot");
    Gate::of_tenant([Resource { name: "memory", kind: Kind::Continuous }], &seat).expect("accounts")
}
