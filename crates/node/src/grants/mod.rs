//! Grants: tenants that are made while the node runs, by an operator or a program such as a cluster's agent, and that are taken back
//! the same way.
//!
//! A grant says what its tenant may have and how its guests are known: by a socket of the grant's own, whoever they are, or by the
//! key of a certificate from another machine. It is kept as a file ([`store`]), so that it outlives the node. Requests come from the
//! admin socket; what lies in the folder is checked as if anybody had written it.

mod act;
mod begin;
mod commitment;
mod entrance;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod report;
pub(crate) mod request;
mod revoke;
pub(crate) mod store;
pub(crate) mod table;
#[cfg(test)]
mod tests;
