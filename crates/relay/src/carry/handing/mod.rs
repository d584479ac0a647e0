//! How threads of a session hand messages to each other.

pub(crate) mod sleepers;
