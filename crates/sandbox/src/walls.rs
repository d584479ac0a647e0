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
                "namespaces in a user namespace, a root of their own, an allow-list of system calls; weaker than on a node \
                 of root: on the host all API servers are the node's user, whose limits they share"
            }
            Walls::Landlock => {
                "files by Landlock, an allow-list of system calls; weaker: no namespaces, so that API servers see the \
                 processes, host names and unix sockets of the host and what they start may outlive them"
            }
        }
    }
}

impl FromStr for Walls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Walls::Namespaces, Walls::UserNamespace, Walls::Landlock];
        let found = all.into_iter().find(|walls| walls.name() == text);
        found.ok_or_else(|| format!("`{text}` are no walls: expected namespaces, user-namespace or landlock"))
    }
}
