//! Buffers of a request: from the reference in the message to memory that the vendor's function is given.
//!
//! A buffer's place and length are the guest's, and checked here. What a handler relies on is copied out of the guest's reach
//! once. Several arguments may be parts of the same memory, as they are in the application.

use std::sync::atomic::Ordering;

use aviary_transport::Rows;
use aviary_wire::BufferRef;

use super::values::{Output, Transfer, Union, UntilBuffer};
use super::{Buffer, Call};
use crate::api::Reject;
use crate::tables::scratch::SCRATCH_ALIGN;

/// The address of a copy is the application's modulo this: what is aligned there is aligned here.
const ALIGNMENT: usize = 4096;

/// How long the vendor's library may use a buffer.
#[derive(Clone, Copy)]
enum Reach {
    Call,
    /// It stays in the arena, which outlives any move.
    Beyond,
}

enum ReceivedBuffer {
    Null,
    Inline(usize),
    Arena(u64, usize),
    Reserved(usize),
    /// Of shared memory: its number, the offset in it, and the length.
    Part(u64, u64, usize),
}

impl Call {
    /// An input. `private`: the handler relies on its content, so it must not stay in the guest's reach.
    pub fn buffer_in(&mut self, expected: Option<usize>, private: bool) -> Result<Buffer, Reject> {
        Ok(self.reference(expected, private, true)?.1)
    }

    pub fn buffer_out(&mut self, expected: Option<usize>) -> Result<Buffer, Reject> {
        self.output(expected, false)
    }

    pub fn buffer_inout(&mut self, expected: Option<usize>) -> Result<Buffer, Reject> {
        self.output(expected, true)
    }

    fn output(&mut self, expected: Option<usize>, input: bool) -> Result<Buffer, Reject> {
        let (place, buffer) = self.reference(expected, false, input)?;
        let copied_from = self.copied_from(buffer.ptr);
        self.reply.outputs.items.push(Output { place, buffer, rows: None, copied_from });
        Ok(buffer)
    }

    /// The output that was just taken consists of these rows: nothing else of it travels.
    pub fn output_rows(&mut self, rows: Rows) {
        if let Some(output) = self.reply.outputs.items.last_mut() {
            output.rows = Some(rows);
        }
    }

    /// Storage of `bytes` bytes even where the application passed NULL.
    pub fn force(&mut self, buffer: Buffer, bytes: usize) -> Buffer {
        if !buffer.ptr.is_null() && buffer.len >= bytes {
            return buffer;
        }
        Buffer { ptr: self.scratch(bytes), len: bytes }
    }

    /// A buffer that the vendor library uses until a poll function says otherwise; see `reply_until`.
    pub fn buffer_until(&mut self, expected: Option<usize>, input: bool, output: bool) -> Result<Buffer, Reject> {
        let (place, mut buffer) = self.reference(expected, false, input)?;
        if place == Transfer::Inline && output {
            return Err(Reject::Malformed("an output that stays in use is not in the arena"));
        }
        let mut keep = None;
        // A call that is made again has its blocks in scratch memory.
        if place == Transfer::Inline || self.replayed.is_some() && !buffer.ptr.is_null() {
            // SAFETY: the message's data is private memory of `len` bytes.
            let mut copy: Box<[u8]> = unsafe { std::slice::from_raw_parts(buffer.ptr, buffer.len) }.into();
            buffer.ptr = copy.as_mut_ptr();
            keep = Some(copy);
        }
        self.effects.rare.untils.items.push(UntilBuffer { place, output, length: buffer.len, keep });
        Ok(buffer)
    }

    /// A buffer with a shadow, which the guest keeps in the arena.
    pub fn shadow(&mut self, expected: Option<usize>, input: bool, _allocate: bool) -> Result<Buffer, Reject> {
        match self.located(expected, false, input, Reach::Beyond)? {
            (Transfer::Inline, _) => Err(Reject::Malformed("a shadow is not in the arena")),
            (_, buffer) => Ok(buffer),
        }
    }

    /// Names a shadow whose content the guest copies back after this call.
    pub fn shadow_copy_back(&mut self, expected: Option<usize>, _end: bool) -> Result<Buffer, Reject> {
        match self.located(expected, false, false, Reach::Beyond)? {
            (Transfer::Inline, _) => Err(Reject::Malformed("a shadow is not in the arena")),
            (Transfer::Arena(offset), buffer) => {
                self.effects.rare.on_success.copied_back.push((offset, buffer.len as u64));
                Ok(buffer)
            }
            (Transfer::Null, buffer) => Ok(buffer),
        }
    }

    /// A block in which the guest has memory that both sides use.
    pub(crate) fn used_block(&mut self) -> Result<(u64, Buffer), Reject> {
        match self.located(None, false, false, Reach::Beyond)? {
            (Transfer::Arena(offset), buffer) => Ok((offset, buffer)),
            _ => Err(Reject::Malformed("memory of both sides is not in the arena")),
        }
    }

    /// A pointer to at least `bytes` bytes of zero-copy memory.
    pub fn zerocopy(&mut self, bytes: usize) -> Result<*mut u8, Reject> {
        match self.word()? {
            0 => Ok(std::ptr::null_mut()),
            // The application passed memory that is not zero-copy memory: its mistake, not an attack.
            u64::MAX => Err(Reject::Refused),
            word => self
                .session
                .tables
                .memory
                .range(word - 1, bytes as u64)
                .ok_or(Reject::Malformed("zero-copy memory outside the arena")),
        }
    }

    /// The library's own pointer behind one that `reply_mapped` gave out. A pointer that was never mapped is NULL.
    pub fn unmap(&mut self) -> Result<*mut u8, Reject> {
        match self.word()? {
            1 => {
                let offset = self.word()?;
                self.effects.rare.on_success.unmapped_in_arena += 1;
                self.session
                    .tables
                    .memory
                    .range(offset, 0)
                    .ok_or(Reject::Malformed("a mapped pointer outside the arena"))
            }
            2 => self.unmap_foreign(),
            0 | 3 => Ok(std::ptr::null_mut()),
            _ => Err(Reject::Malformed("an unknown kind of mapped pointer")),
        }
    }

    fn unmap_foreign(&mut self) -> Result<*mut u8, Reject> {
        let id = self.word()?;
        let (_, content) = self.reference(None, false, true)?;
        // To the vendor's library another call's unmapping is the only one.
        let Some(mapping) = self.session.tables.foreign.begin_unmapping(id) else { return Ok(std::ptr::null_mut()) };
        self.effects.rare.on_success.unmapped.push(id);
        if content.len > mapping.bytes {
            return Err(Reject::Malformed("more content than was mapped"));
        }
        if !content.ptr.is_null() {
            // SAFETY: the mapping has `mapping.bytes` bytes of vendor memory, valid until the unmapping that
            // follows, which is this call's alone; `content` was range-checked. `copy`, as a vendor may map the arena's
            // own memory.
            unsafe { std::ptr::copy(content.ptr, mapping.pointer(), content.len) };
        }
        Ok(mapping.pointer())
    }

    /// Decodes a buffer reference, checks its length, and finds or makes its memory, which is used until the call ends.
    pub(crate) fn reference(
        &mut self,
        expected: Option<usize>,
        private: bool,
        input: bool,
    ) -> Result<(Transfer, Buffer), Reject> {
        self.located(expected, private, input, Reach::Call)
    }

    fn located(
        &mut self,
        expected: Option<usize>,
        private: bool,
        input: bool,
        reach: Reach,
    ) -> Result<(Transfer, Buffer), Reject> {
        let found = self.received()?;
        let (place, length) = match found {
            ReceivedBuffer::Null => return Ok((Transfer::Null, Buffer::NULL)),
            ReceivedBuffer::Inline(length) | ReceivedBuffer::Reserved(length) => (Transfer::Inline, length),
            ReceivedBuffer::Arena(offset, length) => (Transfer::Arena(offset), length),
            ReceivedBuffer::Part(_, _, length) => (Transfer::Inline, length),
        };
        if expected.is_some_and(|e| e != length) {
            return Err(Reject::Malformed("a buffer has another size than the specification says"));
        }
        let ptr = match found {
            ReceivedBuffer::Inline(_) => self.request.field_before(length),
            ReceivedBuffer::Arena(offset, _) => {
                let buffer = match reach {
                    Reach::Call => self.arena_buffer(offset, length, private, input)?,
                    Reach::Beyond => Buffer { ptr: self.live_block(offset, length)?, len: length },
                };
                return Ok((place, buffer));
            }
            ReceivedBuffer::Part(union, offset, _) => return self.part(union, offset, length, private, reach),
            _ => self.scratch(length),
        };
        Ok((place, Buffer { ptr, len: length }))
    }

    /// The reference borrows the request; what it says is copied out.
    fn received(&mut self) -> Result<ReceivedBuffer, Reject> {
        self.request.decode(|d| {
            Ok(match d.buffer()? {
                BufferRef::Null => ReceivedBuffer::Null,
                BufferRef::Inline(data) => ReceivedBuffer::Inline(data.len()),
                BufferRef::Arena { offset, length } => ReceivedBuffer::Arena(offset, length),
                BufferRef::Reserved { length } => ReceivedBuffer::Reserved(length),
                BufferRef::Part { union, offset, length } => ReceivedBuffer::Part(union, offset, length),
            })
        })
    }

    /// A block of the arena as it is now, also where the call is made again: what it shows is the guest's.
    fn live_block(&self, offset: u64, length: usize) -> Result<*mut u8, Reject> {
        let found = self.session.tables.memory.range(offset, length as u64);
        found.ok_or(Reject::Malformed("a buffer outside the arena"))
    }

    fn arena_buffer(&mut self, offset: u64, length: usize, private: bool, input: bool) -> Result<Buffer, Reject> {
        let ptr = if self.replayed.is_some() {
            self.recorded_block(offset, length, input)?
        } else {
            self.live_block(offset, length)?
        };
        let mut buffer = Buffer { ptr, len: length };
        if private {
            buffer = self.copy_to_scratch(buffer);
        }
        if input && self.recording.on {
            let mut bytes = vec![0; length];
            // SAFETY: `buffer` was range-checked, `bytes` is new. Where it is shared the guest may change it
            // meanwhile; it then records something else than it used, to its own disadvantage only.
            unsafe { std::ptr::copy_nonoverlapping(buffer.ptr, bytes.as_mut_ptr(), length) };
            self.recording.blocks.push((offset, bytes));
        }
        Ok(buffer)
    }

    /// The content that the block had when the call was recorded, or room for an output.
    fn recorded_block(&mut self, offset: u64, length: usize, input: bool) -> Result<*mut u8, Reject> {
        let memory = self.scratch(length);
        if let Some(replayed) = self.replayed.as_ref().filter(|_| input) {
            let recorded = replayed.block(offset).filter(|recorded| recorded.len() == length);
            let recorded = recorded.ok_or(Reject::Malformed("a block that was not recorded"))?;
            // SAFETY: both have `length` bytes, and scratch memory overlaps nothing.
            unsafe { std::ptr::copy_nonoverlapping(recorded.as_ptr(), memory, length) };
        }
        Ok(memory)
    }

    fn copy_to_scratch(&mut self, buffer: Buffer) -> Buffer {
        let copy = self.scratch(buffer.len);
        // SAFETY: both have `len` bytes and scratch memory overlaps nothing. Copied once: what the
        // handler then validates is what it uses, whatever the guest does to the original.
        unsafe { std::ptr::copy_nonoverlapping(buffer.ptr, copy, buffer.len) };
        self.session.accounts.stats.bytes_copied.fetch_add(buffer.len as u64, Ordering::Relaxed);
        Buffer { ptr: copy, len: buffer.len }
    }

    // Memory that several arguments of a call share, as they do in the application.

    /// Some arguments must not stay in the guest's reach, or have to lie at multiples of a number: where they share memory
    /// with others the library works on a copy of all of it.
    pub fn private_unions(&mut self) {
        self.request.private_unions = true;
    }

    /// A part of shared memory. Numbers, offsets and lengths are the guest's.
    fn part(
        &mut self,
        union: u64,
        offset: u64,
        length: usize,
        private: bool,
        reach: Reach,
    ) -> Result<(Transfer, Buffer), Reject> {
        if union == self.request.unions.len() as u64 {
            let phase = self.word()? as usize % ALIGNMENT;
            let new = self.union_of(phase)?;
            self.request.unions.push(new);
        }
        let known = usize::try_from(union).ok().and_then(|union| self.request.unions.get(union));
        let Union { buffer: whole, place, copied_from } =
            known.ok_or(Reject::Malformed("a part of memory that the message has not named"))?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if offset.checked_add(length).is_none_or(|end| end > whole.len) {
            return Err(Reject::Malformed("a part of memory lies outside it"));
        }
        let place = match *place {
            Transfer::Arena(at) => Transfer::Arena(at + offset as u64),
            other => other,
        };
        // SAFETY: the part lies within the memory, checked just above.
        let buffer = Buffer { ptr: unsafe { whole.ptr.add(offset) }, len: length };
        match (reach, place) {
            (Reach::Beyond, Transfer::Arena(at)) => {
                Ok((place, Buffer { ptr: self.live_block(at, length)?, len: length }))
            }
            (Reach::Beyond, _) => Err(Reject::Malformed("memory that stays in use is not in the arena")),
            (Reach::Call, Transfer::Arena(_)) if private && copied_from.is_none() && self.replayed.is_none() => {
                Ok((place, self.copy_to_scratch(buffer)))
            }
            _ => Ok((place, buffer)),
        }
    }

    fn union_of(&mut self, phase: usize) -> Result<Union, Reject> {
        let (place, buffer) = match self.received()? {
            ReceivedBuffer::Inline(length) => {
                (Transfer::Inline, Buffer { ptr: self.request.field_before(length), len: length })
            }
            ReceivedBuffer::Arena(offset, length) => {
                (Transfer::Arena(offset), self.arena_buffer(offset, length, false, true)?)
            }
            _ => return Err(Reject::Malformed("memory that arguments share has no content")),
        };
        if !self.request.private_unions {
            return Ok(Union { buffer, place, copied_from: None });
        }
        let before = self.copy_to_scratch(buffer);
        let room = buffer.len.checked_add(2 * ALIGNMENT).ok_or(Reject::Refused)?;
        let memory = self.scratch(room);
        let distance = phase.wrapping_sub(memory.addr()) % ALIGNMENT;
        // SAFETY: `distance` is below `ALIGNMENT`, so that `len` bytes behind it lie within `room`; scratch memory overlaps
        // nothing.
        let ptr = unsafe { memory.add(distance) };
        // SAFETY: as above; what was copied is not the guest's any longer.
        unsafe { std::ptr::copy_nonoverlapping(before.ptr, ptr, buffer.len) };
        debug_assert!(ALIGNMENT.is_multiple_of(SCRATCH_ALIGN));
        let copied_from = match place {
            Transfer::Arena(_) if self.replayed.is_none() => Some((before.ptr.cast_const(), buffer.ptr)),
            _ => None,
        };
        Ok(Union { buffer: Buffer { ptr, len: buffer.len }, place, copied_from })
    }

    /// For a part of memory that the library has a copy of: the content that the part had, and the part itself.
    fn copied_from(&self, ptr: *mut u8) -> Option<(*const u8, *mut u8)> {
        self.request.unions.iter().find_map(|union| {
            let at = ptr.addr().checked_sub(union.buffer.ptr.addr()).filter(|at| *at < union.buffer.len)?;
            let (before, shared) = union.copied_from?;
            // SAFETY: all three have the union's length, and `at` lies below it.
            Some(unsafe { (before.add(at), shared.add(at)) })
        })
    }

    /// True if the address is that of a part of shared memory.
    pub(crate) fn is_in_union(&self, ptr: *const u8) -> bool {
        let within = |union: &Union| {
            ptr.addr().checked_sub(union.buffer.ptr.addr()).is_some_and(|at| at < union.buffer.len.max(1))
        };
        self.request.unions.iter().any(within)
    }

    /// The same buffer at an address that is a multiple of `align`. One that the application itself has elsewhere in memory
    /// that the library writes is refused.
    pub fn aligned(&mut self, buffer: Buffer, align: usize) -> Result<Buffer, Reject> {
        if buffer.ptr.is_null() || buffer.ptr.addr() & (align - 1) == 0 {
            return Ok(buffer);
        }
        // In the application it is as far from a multiple.
        if self.is_in_union(buffer.ptr) {
            return Err(Reject::Refused);
        }
        let output = self.reply.outputs.items.iter().rposition(|output| output.buffer == buffer);
        if output.is_some_and(|at| self.reply.outputs.items[at].place != Transfer::Inline) {
            return Err(Reject::Refused);
        }
        let room = buffer.len.checked_add(align).ok_or(Reject::Refused)?;
        let memory = self.scratch(room);
        // SAFETY: both lie within the `len + align` bytes of `memory`, which overlaps nothing.
        let ptr = unsafe { memory.add(memory.addr().wrapping_neg() & (align - 1)) };
        // SAFETY: as above; the buffer has `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(buffer.ptr, ptr, buffer.len) };
        let moved = Buffer { ptr, len: buffer.len };
        if let Some(at) = output {
            self.reply.outputs.items[at].buffer = moved;
        }
        Ok(moved)
    }
}
