//! What all messages have in common.

use serde::{Serialize, de::DeserializeOwned};
use std::ops::RangeInclusive;

/// One message of one direction.
pub trait Message: Serialize + DeserializeOwned {
    /// How many descriptors come with it.
    fn descriptors(&self) -> RangeInclusive<usize>;
}
