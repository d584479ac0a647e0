//! Which walls a machine can have.

use std::str::FromStr;

/// The walls around an API server beside its allow-list of system calls, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Walls {
    /// Namespaces and a root of its own, made by root; another user for each tenant.
    #[default]
    Namespaces,
    /// The same in a user namespace, of a node that is not root: all API servers are the node's user on the host.
    UserNamespace,
    /// Files by Landlock in the host's root, where neither is possible.
    Landlock,
}

impl Walls {
    /// The word that [`Walls::from_str`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Walls::Namespaces => "namespaces",
            Walls::UserNamespace => "user-namespace",
            Walls::Landlock => "landlock",
        }
    }

    /// In words, for a person who decides if they are enough.
    pub fn described(self) -> &'static str {
        match self {
            Walls::Namespaces => "namespaces, a root of their own, an allow-list of system calls",
            Walls::UserNamespace => {
                "namespaces in a user namespace, a root of their own, an allow-list of system calls; weaker than with a \
                 node that runs as root: on the host all API servers have the node's user id and share its limits"
            }
            Walls::Landlock => {
                "file access restricted by Landlock, an allow-list of system calls; weaker: without namespaces, API servers \
                 see the host's processes and host name, and processes that they start may outlive them; they make no sockets, so \
                 that CUDA works without MPS"
            }
        }
    }
}

impl FromStr for Walls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Walls::Namespaces, Walls::UserNamespace, Walls::Landlock];
        let found = all.into_iter().find(|walls| walls.name() == text);
        found.ok_or_else(|| {
            format!("`{text}` is not a kind of sandbox: expected namespaces, user-namespace or landlock")
        })
    }
}
