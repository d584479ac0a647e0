//! Requests that name memory more than once.

use aviary_transport::Rows;
use aviary_wire::INLINE_INPUT;

use super::Call;
use crate::memory::outputs::{Before, Output, OutputSource};
use crate::memory::overlaps::{Overlaps, Piece, Place, SentUnion, Union, any_overlap};

/// A union has the address of the application's modulo this, where the library wants it aligned.
const ALIGNMENT: u64 = 4096;

impl Call {
    /// From now on the request notes what memory it names.
    #[inline]
    pub fn watch(&mut self, joined: Overlaps) {
        self.watched = true;
        if !joined.unions.is_empty() {
            let frame = self.frame();
            frame.names_memory = true;
            frame.joined = joined;
        }
    }

    /// Memory that the specification says lies apart from all other is not noted.
    #[inline]
    pub fn apart(&mut self, apart: bool) {
        self.watched = !apart;
    }

    /// The memory that the request names more than once. The request has to be written again then, unless it has been.
    #[inline]
    pub fn overlaps(&mut self) -> Option<Overlaps> {
        let frame = self.frame();
        match frame.pieces.as_slice() {
            [] | [_] => None,
            pieces if any_overlap(pieces) && frame.joined.unions.is_empty() => Overlaps::of(pieces),
            _ => None,
        }
    }

    /// Notes memory that is not NULL. True: it is part of a union that is sent as one.
    #[inline]
    pub(crate) fn joins(&mut self, p: *const u8, n: usize, rows: Option<Rows>, place: Place) -> Option<usize> {
        if !self.watched || n == 0 {
            return None;
        }
        let frame = self.frame();
        if frame.joined.unions.is_empty() {
            let start = p.addr();
            frame.names_memory = true;
            frame.pieces.push(Piece { start, end: start.saturating_add(n), rows, place });
            return None;
        }
        frame.joined.find(p, n)
    }

    /// Writes a part of a union: an input, or memory of both sides.
    ///
    /// # Safety
    /// The application can read all pieces of the union, and write those of outputs until the reply is read.
    #[cold]
    pub(crate) unsafe fn part(&mut self, union: usize, p: *const u8, n: usize) -> OutputSource {
        // SAFETY: the caller's promise.
        let Some(sent) = (unsafe { self.send_union(union, p, n) }) else { return OutputSource::Nowhere };
        sent.source
    }

    /// Writes a part of a union that the library may change.
    ///
    /// # Safety
    /// As for `part`.
    #[cold]
    pub(crate) unsafe fn output_part(&mut self, union: usize, p: *mut u8, n: usize, rows: Option<Rows>) {
        let at = p.addr() - self.frame().joined.unions[union].start;
        // SAFETY: the caller's promise.
        let (source, before) = match unsafe { self.send_union(union, p, n) } {
            None => (OutputSource::Nowhere, Before::Written),
            Some(SentUnion { source, before, .. }) => (source.behind(at), before.behind(at)),
        };
        self.frame().outputs.push(Output { to: p, bytes: n, source, before, rows });
    }

    /// # Safety
    /// As for `part`.
    unsafe fn send_union(&mut self, union: usize, p: *const u8, n: usize) -> Option<SentUnion> {
        let known = &self.frame().joined.unions;
        let (start, sent) = (known[union].start, known[union].sent);
        let number = sent.map_or(known.iter().filter(|union| union.sent.is_some()).count(), |sent| sent.number);
        self.frame().encoder.buffer_part(n, number, p.addr() - start);
        if sent.is_none() {
            self.frame().encoder.word(start as u64 % ALIGNMENT);
            // SAFETY: the caller's promise.
            let (source, before) = unsafe { self.union_content(union)? };
            self.frame().joined.unions[union].sent = Some(SentUnion { number, source, before });
        }
        self.frame().joined.unions[union].sent
    }

    /// Writes the content of a union. `None`: the call is refused.
    ///
    /// # Safety
    /// As for `part`.
    unsafe fn union_content(&mut self, union: usize) -> Option<(OutputSource, Before)> {
        let Union { start, end, ref mut pieces, .. } = self.frame().joined.unions[union];
        let (pieces, bytes) = (std::mem::take(pieces), end - start);
        let place = pieces.iter().map(|piece| piece.place);
        let here = place.clone().any(|place| place == Place::Here);
        let inline = bytes <= INLINE_INPUT && place.clone().all(|place| place == Place::Anywhere);
        let own = std::ptr::with_exposed_provenance::<u8>(start);
        if here || !inline {
            // SAFETY: the caller's promise.
            let offset = self.shared(own, bytes).or_else(|| unsafe { self.lend(own, bytes, true) });
            if let Some(offset) = offset {
                let frame = self.frame();
                frame.lent = true;
                frame.encoder.buffer_arena(offset, bytes);
                return Some((OutputSource::Direct, Before::Written));
            }
        }
        // SAFETY: the caller's promise; each piece lies in the union, and is copied as far as the library may look at it.
        let at = unsafe { self.frame().keep_pieces(start, bytes, &pieces) };
        let Some(at) = at else {
            self.refuse();
            return None;
        };
        if inline {
            let frame = self.frame();
            let in_message = frame.encoder.len() + size_of::<u64>();
            frame.encoder.buffer_inline(&frame.before[at..at + bytes]);
            frame.before.truncate(at);
            return Some((OutputSource::Message, Before::Request(in_message)));
        }
        let block = self.block(bytes)?;
        let content = self.frame().before[at..].as_ptr();
        // SAFETY: what was just kept.
        unsafe { self.copy_in(content, bytes, block) };
        self.frame().encoder.buffer_arena(block.offset, bytes);
        Some((OutputSource::Block(block.offset), Before::Kept(at)))
    }
}
