//! Relocations: sessions leave their API server process while their programs run. They continue in another one (a move), or
//! their state stays in the node's memory until their program calls (a park).
//!
//! All sessions of one API server go together. What each of them consists of passes through here as descriptors that the node
//! does not look into: the API servers on both sides are the tenant's own. [`table`] has what can happen, [`machine`] decides,
//! [`effects`] carries out.

mod begin;
mod commit;
mod effects;
mod hand_over;
mod hear;
pub(crate) mod machine;
mod parked;
pub(crate) mod records;
pub(crate) mod request;
pub(crate) mod send;
pub(crate) mod table;

#[cfg(test)]
mod machine_tests;
