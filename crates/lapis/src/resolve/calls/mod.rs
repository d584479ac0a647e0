//! Descriptors of functions: what they call back, how they end, which state they make.

pub(crate) mod callbacks;
pub(crate) mod functions;
pub(crate) mod outcomes;
pub(crate) mod state;
pub(crate) mod statements;
pub(crate) mod states;
pub(crate) mod statuses;
pub(crate) mod varargs;
