//! Memory of policies.

use crate::map::Map;
use std::cell::Cell;

/// A section of global variables.
pub struct Data {
    pub bytes: Box<[Cell<u8>]>,
    pub writable: bool,
}

/// The memory that a policy's programs share. One decision at a time uses it.
pub struct Memory {
    pub maps: Vec<Map>,
    pub data: Vec<Data>,
}
