//! Further connections of a session, which carry pieces of bulk data beside the first one.

pub(crate) mod arrivals;
pub(crate) mod pieces;
mod receiving;
pub(crate) mod strand;
pub(crate) mod together;
