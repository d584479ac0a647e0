//! What a connection knows of the library's objects beside their handles: memory that ends with them, and copies.

pub(crate) mod bound;
pub(crate) mod cache;
pub(crate) mod interned;
pub(crate) mod kept;
pub(crate) mod mappings;
pub(crate) mod registry;
pub(crate) mod shadows;
pub(crate) mod states;

use crate::memory::block::Block;
use crate::objects::bound::Bound;
use crate::objects::cache::Cache;
use crate::objects::interned::Interned;
use crate::objects::kept::Kept;
use crate::objects::mappings::Mappings;
use crate::objects::registry::Registries;
use crate::objects::shadows::Shadows;
use crate::objects::states::States;

#[derive(Default)]
pub(crate) struct Objects {
    pub bound: Bound,
    pub cache: Cache,
    pub interned: Interned,
    pub kept: Kept,
    pub mappings: Mappings,
    pub registries: Registries,
    pub shadows: Shadows,
    pub states: States,
}

impl Objects {
    /// A handle has ended. Returns blocks of memory that ends with it, which calls that are not executed yet may use.
    pub fn ended(&self, value: u64, id: u64) -> Vec<Block> {
        self.cache.forget(id);
        self.kept.owner_ended(value);
        let mut blocks = self.shadows.owner_ended(value);
        blocks.extend(self.bound.owner_ended(value));
        blocks
    }
}
