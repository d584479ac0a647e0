//! Why a guest is not admitted, and how much of it the guest is told.

use std::fmt;

use aviary_wire::attach::welcome_status;

/// A guest of another user or machine is told what it can do about it; where the server has its files, and what its
/// linker says of them, is for the node's log and for the node's own user.
#[derive(Debug)]
pub struct AttachRefusal {
    /// One of [`welcome_status`].
    pub status: u64,
    text: String,
    /// Empty: the text is everything.
    detail: String,
}

impl AttachRefusal {
    pub fn new(status: u64, text: impl Into<String>) -> AttachRefusal {
        AttachRefusal { status, text: text.into(), detail: String::new() }
    }

    /// Something went wrong on the server, and the guest may know what.
    pub fn failed(what: &str, error: impl fmt::Display) -> AttachRefusal {
        AttachRefusal::new(welcome_status::FAILED, format!("{what}: {error}"))
    }

    /// The part that names files of the server.
    pub fn detail(self, detail: impl Into<String>) -> AttachRefusal {
        AttachRefusal { detail: detail.into(), ..self }
    }

    /// `own`: the guest is the node's own user.
    pub fn for_guest(&self, own: bool) -> String {
        match (own, self.detail.is_empty()) {
            (true, _) => self.whole(),
            (false, true) => self.text.clone(),
            (false, false) => format!("{}; the node's log says more", self.text),
        }
    }

    pub fn whole(&self) -> String {
        if self.detail.is_empty() { self.text.clone() } else { format!("{}: {}", self.text, self.detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nodes_own_user_is_told_where_files_are() {
        let refusal = AttachRefusal::new(welcome_status::API, "no module").detail("searched [\"/srv/apis\"]");
        assert_eq!(refusal.for_guest(true), "no module: searched [\"/srv/apis\"]");
        assert_eq!(refusal.whole(), refusal.for_guest(true));
        assert_eq!(refusal.for_guest(false), "no module; the node's log says more");
        assert_eq!(AttachRefusal::failed("the greeting", "late").for_guest(false), "the greeting: late");
    }
}
