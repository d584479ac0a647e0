//! The proof that a guest shows of the tenant it belongs to.

use crate::grants::entry::GrantEntry;
use crate::vms::VmGuest;

/// The source of a new session's identity, beside the kernel.
#[derive(Debug)]
pub(crate) enum Identity {
    /// No other: a process of this machine, and the kernel says whose.
    User,
    /// Neither another nor the kernel (`--plain-loopback`): any process of this machine.
    Loopback,
    /// The name in a certificate or token from another machine.
    Remote(String),
    /// The socket at which a virtual machine attached.
    Vm(VmGuest),
    /// The socket of a grant at which it has attached, or the key that the grant names: not its user.
    Grant(GrantEntry),
}

impl Identity {
    /// True if the kernel says that the guest, of user `uid`, is the node's own user, who may end the node and see
    /// its reports. A tenant's name, which others choose, decides nothing here.
    pub fn is_nodes_own(&self, uid: u32) -> bool {
        matches!(self, Self::User) && uid == rustix::process::geteuid().as_raw()
    }

    /// For people; `uid` is the guest's.
    pub fn user_name(&self, uid: u32) -> String {
        match self {
            Self::User => format!("user {uid}"),
            Self::Loopback => "who shows nothing (--plain-loopback)".into(),
            Self::Remote(name) => format!("who shows {:?}", name),
            Self::Vm(guest) => format!("VM {}", guest.vm.escape_debug()),
            Self::Grant(entry) => format!("a guest of grant {}", entry.name.escape_debug()),
        }
    }
}
