//! Memory that several arguments of a call name: it is one memory for the library, too.
//!
//! While a request is written each piece of the application's memory is noted. Where two of them have bytes in common
//! the request is written again, with what is to be joined: the union of such pieces travels once, and each of them is
//! named by its place in it.

use aviary_transport::Rows;

use crate::memory::outputs::{Before, OutputSource};

/// Pieces up to which each is compared with each; more are sorted.
const FEW: usize = 8;

/// A piece of the application's memory that an argument names.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub start: usize,
    pub end: usize,
    /// The rows that the library may look at, if that is not all of it.
    pub rows: Option<Rows>,
    pub place: Place,
}

/// The place that a piece needs on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Anywhere,
    /// The arena: the library uses it beyond the call.
    Arena,
    /// Where it is: the library has its address.
    Here,
}

/// Memory that is named more than once, in order of addresses, each with the pieces that it consists of.
#[derive(Default)]
pub struct Overlaps {
    pub(crate) unions: Vec<Union>,
}

pub(crate) struct Union {
    pub start: usize,
    pub end: usize,
    pub pieces: Vec<Piece>,
    pub sent: Option<SentUnion>,
}

/// How a union was sent.
#[derive(Clone, Copy)]
pub(crate) struct SentUnion {
    /// Its number in the message.
    pub number: usize,
    pub source: OutputSource,
    /// Its content is there, from its beginning on.
    pub before: Before,
}

impl Overlaps {
    /// The unions of pieces that have bytes in common; `None`: there are none.
    pub(crate) fn of(pieces: &[Piece]) -> Option<Overlaps> {
        let mut sorted: Vec<Piece> = pieces.to_vec();
        sorted.sort_by_key(|piece| piece.start);
        let mut unions: Vec<Union> = Vec::new();
        for piece in sorted {
            match unions.last_mut().filter(|last| piece.start < last.end) {
                Some(last) => {
                    last.end = last.end.max(piece.end);
                    last.pieces.push(piece);
                }
                None => unions.push(Union { start: piece.start, end: piece.end, pieces: vec![piece], sent: None }),
            }
        }
        unions.retain(|union| union.pieces.len() > 1);
        (!unions.is_empty()).then_some(Overlaps { unions })
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.unions.clear();
    }

    /// The union that has all of these bytes.
    pub(crate) fn find(&self, p: *const u8, n: usize) -> Option<usize> {
        let end = p.addr().checked_add(n)?;
        self.unions.iter().position(|union| union.start <= p.addr() && end <= union.end).filter(|_| n > 0)
    }

    /// The union in the block at `offset`: where it begins and its bytes.
    pub(crate) fn in_block(&self, offset: u64) -> Option<(usize, usize)> {
        let there = |union: &&Union| union.sent.is_some_and(|sent| sent.source == OutputSource::Block(offset));
        self.unions.iter().find(there).map(|union| (union.start, union.end - union.start))
    }
}

pub(crate) fn any_overlap(pieces: &[Piece]) -> bool {
    if pieces.len() > FEW {
        return Overlaps::of(pieces).is_some();
    }
    pieces.iter().enumerate().any(|(n, a)| pieces[..n].iter().any(|b| a.start < b.end && b.start < a.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unions(pieces: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let piece =
            |(start, end): &(usize, usize)| Piece { start: *start, end: *end, rows: None, place: Place::Anywhere };
        let pieces: Vec<Piece> = pieces.iter().map(piece).collect();
        let found = Overlaps::of(&pieces).unwrap_or_default();
        assert_eq!(any_overlap(&pieces), !found.unions.is_empty());
        found.unions.iter().map(|union| (union.start, union.end)).collect()
    }

    #[test]
    fn pieces_with_bytes_in_common_are_joined() {
        assert_eq!(unions(&[(10, 20), (20, 30), (0, 10)]), []);
        assert_eq!(unions(&[(10, 20), (10, 20)]), [(10, 20)]);
        assert_eq!(unions(&[(15, 25), (10, 16), (24, 40), (50, 60)]), [(10, 40)]);
        assert_eq!(unions(&[(0, 100), (10, 20), (30, 40), (99, 101)]), [(0, 101)]);
        assert_eq!(unions(&[(0, 10), (100, 110), (5, 15), (105, 106)]), [(0, 15), (100, 110)]);
        let many: Vec<(usize, usize)> = (0..100).map(|n| (n * 10, n * 10 + 10)).collect();
        assert_eq!(unions(&many), []);
        assert_eq!(unions(&[many, vec![(55, 65)]].concat()), [(50, 70)]);
    }
}
