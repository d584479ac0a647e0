//! Handle ids.

/// The word for "a value that is no handle": the server answers it with the type's error.
pub const NOT_A_HANDLE: u64 = u64::MAX;

/// The largest value that a specification may predefine. Such a value crosses as it is: as a word it has no
/// generation, so no table ever issues it.
pub const MAX_PREDEFINED: u64 = 0xffff;

const INDEX_BITS: u32 = 32;
const GENERATION_BITS: u32 = 24;

/// The structure that each object of a handle type carries on either side.
///
/// ```
/// use aviary_wire::Metadata;
///
/// let stream = Metadata { kind: 3, size: 64 };
/// // Code that knows another structure under this object's type gets none.
/// assert_ne!(stream, Metadata { kind: 4, ..stream });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Its number among the structures of the API, from 1. Code that means another structure gets none: it would read
    /// beyond this one.
    pub kind: u32,
    /// Bytes.
    pub size: usize,
}

/// A typed, generation-checked name of a server object: `type << 56 | generation << 32 | index + 1`.
///
/// ```
/// use aviary_wire::HandleId;
///
/// let id = HandleId { ty: 2, generation: 1, index: 40 };
/// assert_eq!(HandleId::from_word(id.to_word()), Some(id));
/// // A small integer that a program takes for a handle is no id of any type.
/// assert_eq!(HandleId::from_word(5), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandleId {
    pub ty: u8,
    /// 24 bits, never 0.
    pub generation: u32,
    pub index: u32,
}

impl HandleId {
    pub const MAX_GENERATION: u32 = (1 << GENERATION_BITS) - 1;
    /// An index above this would collide with the encoding of "no index".
    pub const MAX_INDEX: u32 = u32::MAX - 1;
    /// Set in the indices of ids that the guest chooses; the others are the server's.
    pub const MINTED: u32 = 1 << 31;
    /// So many indices the guest may use for them.
    pub const MAX_GUEST_IDS: u32 = 4 << 20;

    /// An id that the guest chose.
    pub const fn is_minted(self) -> bool {
        self.index & Self::MINTED != 0
    }

    /// The number of the type that a word of an id has; of any other word something meaningless.
    #[inline]
    pub const fn type_of_word(word: u64) -> usize {
        (word >> (INDEX_BITS + GENERATION_BITS)) as usize
    }

    #[inline]
    pub const fn to_word(self) -> u64 {
        (self.ty as u64) << (INDEX_BITS + GENERATION_BITS)
            | ((self.generation & Self::MAX_GENERATION) as u64) << INDEX_BITS
            | (self.index as u64 + 1)
    }

    /// `None` for 0, for [`NOT_A_HANDLE`] and for words that no table ever issued.
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        let low = word as u32;
        let generation = (word >> INDEX_BITS) as u32 & Self::MAX_GENERATION;
        if word == NOT_A_HANDLE || low == 0 || generation == 0 {
            return None;
        }
        Some(HandleId { ty: (word >> (INDEX_BITS + GENERATION_BITS)) as u8, generation, index: low - 1 })
    }

    /// The generation after `generation`, above `MAX_GENERATION` when they are used up. It skips those whose low
    /// byte is 0, so that a small integer is never a valid id, nor the short form of one.
    pub const fn later_generation(generation: u32) -> u32 {
        let next = generation + 1;
        if next & 0xff == 0 { next + 1 } else { next }
    }
}

/// The part of an id that the guest sees when the handle type has 4 bytes.
///
/// A table that issues ids for such types leaves out the generations whose low byte is 0
/// ([`HandleId::later_generation`]), so that no short value is a predefined one.
#[inline]
pub const fn short_value(id: u64) -> u32 {
    let generation = (id >> INDEX_BITS) as u32 & 0xff;
    generation << 24 | (id as u32 & 0x00ff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive() {
        for id in [
            HandleId { ty: 0, generation: 1, index: 0 },
            HandleId { ty: 255, generation: HandleId::MAX_GENERATION, index: HandleId::MAX_INDEX - 1 },
            HandleId { ty: 3, generation: 77, index: 12345 },
        ] {
            assert_eq!(HandleId::from_word(id.to_word()), Some(id));
        }
    }

    #[test]
    fn null_foreign_and_small_numbers_are_no_ids() {
        for word in [0, 1, 2, NOT_A_HANDLE, 1 << 56, 1 << 32] {
            assert_eq!(HandleId::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn no_generation_makes_a_short_value_a_predefined_one() {
        let mut generation = 1;
        while generation <= 0x1_0000 {
            let id = HandleId { ty: 1, generation, index: 0 };
            assert!(u64::from(short_value(id.to_word())) > MAX_PREDEFINED, "{generation:#x}");
            generation = HandleId::later_generation(generation);
        }
        assert!(HandleId::later_generation(HandleId::MAX_GENERATION) > HandleId::MAX_GENERATION);
    }

    #[test]
    fn predefined_values_are_no_ids() {
        assert!((1..=MAX_PREDEFINED).all(|word| HandleId::from_word(word).is_none()));
    }
}
