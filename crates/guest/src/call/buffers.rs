//! Plain data in a request: inputs, outputs, and what the library uses beyond the call.

use aviary_transport::Rows;
use aviary_wire::{IN_PLACE, INLINE_INPUT, RESERVED_OUTPUT};

use super::{Call, bytes};
use crate::lane::syncing;
use crate::memory::block::Block;
use crate::memory::deliveries::Pending;
use crate::memory::outputs::{Before, Output, OutputSource, write_back};
use crate::memory::overlaps::Place;

/// The way of an output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The application's content travels to the library.
    pub input: bool,
    /// The library writes all that counts; else what it leaves alone is not written back, for which the content
    /// travels, too.
    pub written: bool,
}

impl Flow {
    fn travels(self) -> bool {
        self.input || !self.written
    }
}

impl Call {
    /// # Safety
    /// `p` is NULL or `n` bytes at it are readable.
    pub unsafe fn buffer_in(&mut self, p: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.input(p, n, None) };
    }

    /// An input of which the server puts up to `history` bytes, which it has of earlier calls, before the first one.
    ///
    /// # Safety
    /// As for `buffer_in`.
    pub unsafe fn buffer_behind(&mut self, p: *const u8, n: usize, history: usize) {
        if !p.is_null() && n > INLINE_INPUT {
            if let Some(offset) = self.in_heap(p, n) {
                self.word(IN_PLACE);
                let frame = self.frame();
                frame.lent = true;
                return frame.encoder.buffer_arena(offset, n);
            }
            if !self.lane.connection.memory.blocks.lends(n)
                && let Some(block) = self.block(n.saturating_add(history))
            {
                let place = Block { offset: block.offset + history as u64, size: block.size - history as u64 };
                // SAFETY: the caller's promise.
                unsafe { self.copy_ahead(p, n, place, None) };
                self.word(history as u64);
                return self.frame().encoder.buffer_arena(place.offset, n);
            }
            if self.refused {
                return;
            }
        }
        self.word(0);
        // SAFETY: the caller's promise.
        unsafe { self.buffer_in(p, n) };
    }

    /// # Safety
    /// As for `buffer_in`; of rows only what lies in them is read.
    pub unsafe fn rows_in(&mut self, p: *const u8, n: usize, rows: Rows) {
        // SAFETY: the caller's promise.
        unsafe { self.input(p, n, Some(rows)) };
    }

    /// # Safety
    /// `p` is NULL or `n` bytes at it are writable until the reply is read.
    pub unsafe fn buffer_out(&mut self, p: *mut u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.output(p, n, Flow { input: false, written: true }, None) };
    }

    /// # Safety
    /// `p` is NULL or `n` bytes at it are readable and writable until the reply is read.
    pub unsafe fn buffer_inout(&mut self, p: *mut u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.output(p, n, Flow { input: true, written: false }, None) };
    }

    /// # Safety
    /// As for `buffer_inout`.
    pub unsafe fn buffer_rewritten(&mut self, p: *mut u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.output(p, n, Flow { input: true, written: true }, None) };
    }

    /// # Safety
    /// As for `buffer_inout`; of rows only what lies in them is read and written.
    pub unsafe fn rows_out(&mut self, p: *mut u8, n: usize, input: bool, written: bool, rows: Rows) {
        // SAFETY: the caller's promise.
        unsafe { self.output(p, n, Flow { input, written }, Some(rows)) };
    }

    /// # Safety
    /// As for `buffer_in` and `rows_in`.
    #[inline(always)]
    unsafe fn input(&mut self, p: *const u8, n: usize, rows: Option<Rows>) {
        if p.is_null() {
            self.frame().encoder.buffer_null();
        } else if let Some(union) = self.joins(p, n, rows, Place::Anywhere) {
            // SAFETY: the caller's promise, for each argument.
            unsafe { self.part(union, p, n) };
        } else if n <= INLINE_INPUT {
            // SAFETY: the caller's promise.
            unsafe { self.inline(p, n, rows) };
        } else if let Some(offset) = self.in_heap(p, n) {
            let frame = self.frame();
            frame.lent = true;
            frame.encoder.buffer_arena(offset, n);
        // SAFETY: the caller's promise; an asynchronous call with lent memory returns only after
        // its execution (`send_async`).
        } else if let Some(offset) = unsafe { self.lend(p, n, false) } {
            let frame = self.frame();
            frame.lent = true;
            frame.encoder.buffer_arena(offset, n);
        } else if let Some(block) = self.block(n) {
            // SAFETY: the caller's promise.
            unsafe { self.copy_ahead(p, n, block, rows) };
            self.frame().encoder.buffer_arena(block.offset, n);
        }
    }

    /// Writes data into the message; what lies between rows is zero there.
    ///
    /// # Safety
    /// As for `buffer_in` and `rows_in`; `n` is at most `INLINE_INPUT`.
    #[inline(always)]
    unsafe fn inline(&mut self, p: *const u8, n: usize, rows: Option<Rows>) {
        if rows.is_none() {
            // SAFETY: the caller's promise.
            return self.frame().encoder.buffer_inline(unsafe { bytes(p, n) });
        }
        let mut data = [0u8; INLINE_INPUT];
        let n = n.min(INLINE_INPUT);
        // SAFETY: the caller's promise; pieces lie within the `n` bytes.
        unsafe { write_back(p, None, data.as_mut_ptr(), n, rows) };
        self.frame().encoder.buffer_inline(&data[..n]);
    }

    /// # Safety
    /// As for `buffer_out` where nothing travels, else as for `buffer_inout` and `rows_out`.
    #[inline(always)]
    unsafe fn output(&mut self, p: *mut u8, n: usize, flow: Flow, rows: Option<Rows>) {
        let mut before = Before::Written;
        let source = if p.is_null() {
            self.frame().encoder.buffer_null();
            OutputSource::Nowhere
        } else if let Some(union) = self.joins(p, n, rows, Place::Anywhere) {
            // SAFETY: the caller's promise, for each argument.
            return unsafe { self.output_part(union, p, n, rows) };
        } else if n <= INLINE_INPUT && flow.travels() {
            if !flow.written {
                before = Before::Request(self.frame().encoder.len() + size_of::<u64>());
            }
            // SAFETY: the caller's promise; a pure output may hold any bytes, which are sent.
            unsafe { self.inline(p, n, rows) };
            OutputSource::Message
        } else if n <= RESERVED_OUTPUT {
            self.frame().encoder.buffer_reserved(n);
            OutputSource::Message
        } else if let Some(offset) = self.shared(p, n) {
            self.frame().encoder.buffer_arena(offset, n);
            OutputSource::Direct
        // SAFETY: the caller's promise.
        } else if let Some(offset) = unsafe { self.lend(p, n, true) } {
            self.frame().encoder.buffer_arena(offset, n);
            OutputSource::Direct
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.output_block(p, n, flow, rows, &mut before) }
        };
        self.frame().outputs.push(Output { to: p, bytes: n, source, before, rows });
    }

    /// An output in a block of its own.
    ///
    /// # Safety
    /// As for `output`.
    unsafe fn output_block(
        &mut self,
        p: *mut u8,
        n: usize,
        flow: Flow,
        rows: Option<Rows>,
        before: &mut Before,
    ) -> OutputSource {
        let Some(block) = self.block(n) else { return OutputSource::Nowhere };
        if flow.travels() && flow.written {
            // SAFETY: the caller's promise.
            unsafe { self.copy_ahead(p, n, block, rows) };
        } else if flow.travels() {
            // SAFETY: the caller's promise.
            let Some(at) = (unsafe { self.copy_in_and_keep(p, n, block, rows) }) else { return OutputSource::Nowhere };
            *before = Before::Kept(at);
        }
        self.frame().encoder.buffer_arena(block.offset, n);
        OutputSource::Block(block.offset)
    }

    /// Copies the application's memory into a block, and the same bytes into [`crate::lane::frame::Frame::before`], whatever
    /// other threads write meanwhile. Returns where they are there; `None`: there is no memory, and the call is refused.
    ///
    /// # Safety
    /// As for `copy_in`; of rows only what lies in them is read.
    pub(crate) unsafe fn copy_in_and_keep(
        &mut self,
        p: *const u8,
        n: usize,
        block: Block,
        rows: Option<Rows>,
    ) -> Option<usize> {
        // SAFETY: the caller's promise.
        let Some(at) = (unsafe { self.frame().keep_before(p, n, rows) }) else {
            self.refuse();
            return None;
        };
        let kept = self.frame().before[at..].as_ptr();
        // SAFETY: the bytes that were kept, `n` of them.
        unsafe { self.copy_rows_in(kept, n, block, rows) };
        Some(at)
    }

    /// `written`: the library writes all of the output.
    ///
    /// # Safety
    /// `p` is NULL or `n` bytes at it are readable (`input`, or not `written`) and stay writable until their delivery
    /// (`output`).
    pub unsafe fn buffer_until(&mut self, p: *mut u8, n: usize, input: bool, output: bool, written: bool) {
        // SAFETY: the caller's promise.
        unsafe { self.until(p, n, input, output, written, None) };
    }

    /// # Safety
    /// As for `buffer_until`; of rows only what lies in them is read and written.
    pub unsafe fn rows_until(&mut self, p: *mut u8, n: usize, input: bool, output: bool, written: bool, rows: Rows) {
        // SAFETY: the caller's promise.
        unsafe { self.until(p, n, input, output, written, Some(rows)) };
    }

    /// # Safety
    /// As for `buffer_until` and `rows_until`.
    unsafe fn until(&mut self, p: *mut u8, n: usize, input: bool, output: bool, written: bool, rows: Option<Rows>) {
        let mut waiting = None;
        if p.is_null() || n == 0 && output {
            self.frame().encoder.buffer_null();
        } else if !output && n <= INLINE_INPUT {
            // SAFETY: the caller's promise.
            unsafe { self.inline(p, n, rows) };
        } else if let Some(offset) = self.shared(p, n) {
            self.frame().encoder.buffer_arena(offset, n);
        // SAFETY: the caller's promise.
        } else if let Some((block, offset)) = unsafe { self.lane.connection.memory.blocks.lend(p, n, output) } {
            self.frame().encoder.buffer_arena(offset, n);
            let pending = Pending { to: 0, bytes: n, before: None, rows: None, block: Some(block), ticket: 0 };
            self.lane.connection.deliveries.expect(offset, pending);
            waiting = Some(offset);
        } else if let Some(block) = self.allocate_kept(n) {
            let flow = Flow { input, written: written || !output };
            // SAFETY: the caller's promise.
            let before = unsafe { self.fill_kept(p, n, block, flow, rows) };
            self.frame().encoder.buffer_arena(block.offset, n);
            let to = if output { p as usize } else { 0 };
            let pending = Pending { to, bytes: n, before, rows, block: Some(block), ticket: 0 };
            self.lane.connection.deliveries.expect(block.offset, pending);
            waiting = Some(block.offset);
        }
        self.frame().untils.push(waiting);
    }

    /// The content of a block that the server keeps, and a copy where one is needed when the block comes back.
    ///
    /// # Safety
    /// As for `copy_in` where anything travels.
    unsafe fn fill_kept(
        &mut self,
        p: *const u8,
        n: usize,
        block: Block,
        flow: Flow,
        rows: Option<Rows>,
    ) -> Option<Box<[u8]>> {
        if !flow.travels() {
            return None;
        }
        if flow.written {
            // SAFETY: the caller's promise.
            unsafe { self.copy_rows_in(p, n, block, rows) };
            return None;
        }
        let mut before = vec![0; n].into_boxed_slice();
        // SAFETY: the caller's promise; both have `n` bytes.
        unsafe {
            write_back(p, None, before.as_mut_ptr(), n, rows);
            self.copy_rows_in(before.as_ptr(), n, block, rows);
        }
        Some(before)
    }

    /// A block that the server keeps beyond the call.
    fn allocate_kept(&mut self, n: usize) -> Option<Block> {
        syncing::wait_for_room(&self.lane, n);
        self.allocate(n)
    }
}
