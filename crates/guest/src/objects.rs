//! What a connection knows of the library's objects beside their handles: memory that ends with them, and copies.

pub(crate) mod bound;
pub(crate) mod cache;
pub(crate) mod foreign;
pub(crate) mod registry;
pub(crate) mod shadows;
pub(crate) mod states;

use crate::memory::block::Block;
use crate::objects::bound::Bound;
use crate::objects::cache::Cache;
use crate::objects::foreign::ForeignTable;
use crate::objects::registry::Registries;
use crate::objects::shadows::Shadows;
use crate::objects::states::States;

#[derive(Default)]
pub(crate) struct Objects {
    pub bound: Bound,
    pub cache: Cache,
    pub foreign: ForeignTable,
    pub registries: Registries,
    pub shadows: Shadows,
    pub states: States,
}

impl Objects {
    /// A handle has ended. Returns blocks of memory that ends with it, which calls that are not executed yet may use.
    pub fn ended(&self, value: u64, id: u64) -> Vec<Block> {
        self.cache.forget(id);
        self.foreign.owner_ended(value);
        let mut blocks = self.shadows.owner_ended(value);
        blocks.extend(self.bound.owner_ended(value));
        blocks
    }
}
