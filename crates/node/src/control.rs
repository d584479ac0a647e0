//! Messages on an API server's control socket (docs/runtime.md, "Attaching").

use aviary_server::{FunctionRule, OfferName, ServerUser};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
};

const MESSAGE_LIMIT: usize = 64 * 1024;

/// Node to API server, together with the guest's socket and the tenant's page.
#[derive(Debug, Serialize)]
pub struct Assignment<'a> {
    pub session: u64,
    pub tenant: &'a str,
    pub guest: u32,
    pub modules: &'a [PathBuf],
    pub slot: u32,
    pub threads: Option<usize>,
    pub apis: Option<&'a [String]>,
    pub functions: &'a FunctionRule,
    pub only_devices: Option<&'a [String]>,
    /// The node schedules devices, or may do so later.
    pub schedulable: bool,
    /// It does so now.
    pub scheduled: bool,
    /// The node's log is where the guest's own messages go.
    pub private: bool,
    /// The guest is the node's own user: it may be told where files are.
    pub own: bool,
    /// The guest is the device of a virtual machine: only then may its arena be a window on a VM's memory.
    pub in_vm: bool,
    /// Who the API server is from now on; `None`: who it is.
    pub user: Option<ServerUser>,
}

/// API server to node.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Comes with the statistics' descriptor and, where devices may be scheduled, with page and bell of the session's.
    Started {
        session: u64,
        #[serde(default)]
        api: String,
    },
    Ended {
        session: u64,
        #[serde(default)]
        reason: String,
    },
    /// The session wants what another of its tenant offers.
    Fetch { session: u64, request: u64, name: OfferName },
    /// The answer of that other one, with the descriptor if there is such an offer.
    Fetched {
        session: u64,
        asker: u64,
        request: u64,
        #[serde(default)]
        note: u64,
    },
    /// A copy of the zygote.
    Born { pid: u32 },
    /// The zygote has loaded everything.
    Ready,
    /// The zygote cannot be copied.
    Unfit {
        #[serde(default)]
        reason: String,
    },
    #[serde(other)]
    Unknown,
}

/// What `receive` found.
#[derive(Debug)]
pub enum Received {
    Event(Event, Vec<OwnedFd>),
    /// Not understood: the API server is not trusted to speak well.
    Garbage(String),
    Nothing,
    Closed,
}

/// One message, perhaps with one or two descriptors.
pub fn send(control: BorrowedFd<'_>, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > MESSAGE_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is longer than 64 KiB"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(control, &[IoSlice::new(&text)], &mut ancillary, flags)?;
    Ok(())
}

pub fn receive(control: BorrowedFd<'_>) -> Received {
    let mut bytes = vec![0; MESSAGE_LIMIT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match recvmsg(control, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Ok(message) => message,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::Closed,
    };
    let descriptors = descriptors(&mut ancillary);
    if message.bytes == 0 {
        return Received::Closed;
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Received::Garbage("a message of more than 64 KiB".into());
    }
    match serde_json::from_slice(&bytes[..message.bytes]) {
        Ok(event) => Received::Event(event, descriptors),
        Err(error) => Received::Garbage(error.to_string()),
    }
}

fn descriptors(ancillary: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    rights.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_parse() {
        let parse = |text: &str| serde_json::from_str::<Event>(text).ok();
        assert_eq!(
            parse(r#"{"session":7,"event":"started","api":"opencl","more":1}"#),
            Some(Event::Started { session: 7, api: "opencl".into() })
        );
        assert_eq!(parse(r#"{"session":7,"event":"ended"}"#), Some(Event::Ended { session: 7, reason: String::new() }));
        assert_eq!(parse(r#"{"event":"news"}"#), Some(Event::Unknown));
        assert_eq!(parse(r#"{"event":"started"}"#), None);
        assert_eq!(parse(r#"{"event":"born","pid":7}"#), Some(Event::Born { pid: 7 }));
        assert_eq!(parse(r#"{"event":"ready"}"#), Some(Event::Ready));
    }
}
