//! One call that can be made again.

use crate::content::Content;

/// The thing that a record belongs to: the record goes when that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// By the id that the guest has for it.
    Object(u64),
    Session,
    /// By the number of its lane.
    Thread(u32),
}

impl Owner {
    pub fn object(self) -> Option<u64> {
        match self {
            Owner::Object(id) => Some(id),
            Owner::Session | Owner::Thread(_) => None,
        }
    }
}

/// An input that lay in the arena: the block is the guest's and changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// In the arena, in bytes.
    pub offset: u64,
    pub content: Content,
}

/// The part of a call in the life of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// It makes objects, or is the first that told the guest of them.
    Makes,
    /// It changes its owner. A later one of the same function, owner and key takes its place.
    Changes,
    /// It takes one more reference of its owner: made again as often as references are missing.
    Retains,
    /// It gives a reference of its owner back, which has others: made again where there are too many.
    GivesBack,
    /// It ended its owner, which another object's records still name.
    Ends,
}

/// A call that can be made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number in the API.
    pub function: u32,
    pub effect: Effect,
    /// Not empty. Several: objects that one call has made.
    pub owners: Vec<Owner>,
    /// Tells records of one function and owner apart.
    pub key: Vec<u64>,
    /// Ids of the objects that the call uses, without its owners: they must exist when it is made again.
    pub inputs: Vec<u64>,
    /// The id of the object that was current on the thread, which is one of the inputs or owners too; 0: none was.
    pub current: u64,
    /// The ids in its reply, in their order; 0 where none was written.
    pub outputs: Vec<u64>,
    /// The whole message, header included, as it came.
    pub request: Content,
    pub blocks: Vec<Block>,
    /// Values that must come out equal when the call is made again.
    pub same: Vec<u64>,
    /// For each callback that it registered, in their order: the number of the closure that stands for it, 0 if the
    /// callback has run and must not run again.
    pub callbacks: Vec<u64>,
}

impl Record {
    /// Content of the block at `offset`, if the call read one there.
    pub fn block(&self, offset: u64) -> Option<&Content> {
        self.blocks.iter().find(|block| block.offset == offset).map(|block| &block.content)
    }

    pub(crate) fn contents(&self) -> impl Iterator<Item = &Content> {
        std::iter::once(&self.request).chain(self.blocks.iter().map(|block| &block.content))
    }
}
