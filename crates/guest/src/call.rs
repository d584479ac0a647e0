//! A request under construction.

mod ahead;
mod bound;
mod buffers;
mod chains;
mod kept;
mod sending;
mod unions;

use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use aviary_transport::{Region, Rows};
use aviary_wire::COPIED;

use crate::connection::Connection;
use crate::connection::incoming::CallbackTarget;
use crate::lane::ThreadLane;
use crate::lane::callback_thread;
use crate::lane::frame::{End, Frame};
use crate::memory::block::Block;
use crate::memory::outputs::write_back;
use crate::memory::overlaps::Place;
use crate::reply::Reply;

/// The word that `zerocopy` sends for a pointer outside zero-copy memory.
const FOREIGN: u64 = u64::MAX;

/// A call under construction. Dropping an unsent call undoes its effects.
pub struct Call {
    lane: Rc<ThreadLane>,
    /// Moved out in [`Call::into_parts`] or `drop`.
    frame: ManuallyDrop<Box<Frame>>,
    function: u32,
    /// True if an argument could not be transported, because no shared memory was left.
    refused: bool,
    /// True while the memory that the request names is noted.
    watched: bool,
}

impl Call {
    #[inline]
    pub(crate) fn new(lane: Rc<ThreadLane>, function: u32) -> Self {
        let frame = ManuallyDrop::new(lane.take_frame());
        Call { lane, frame, function, refused: false, watched: false }
    }

    #[inline]
    fn frame(&mut self) -> &mut Frame {
        &mut self.frame
    }

    /// Takes the call apart for `send*`, without the `drop` that would undo it.
    #[inline]
    fn into_parts(self) -> (Rc<ThreadLane>, Box<Frame>) {
        let mut call = ManuallyDrop::new(self);
        // SAFETY: both fields are moved out once; `call` is forgotten and has no other field to
        // drop.
        unsafe { (std::ptr::read(&raw const call.lane), ManuallyDrop::take(&mut call.frame)) }
    }

    #[inline]
    pub fn word(&mut self, v: u64) {
        self.frame().encoder.word(v);
    }

    /// # Safety
    /// `n` bytes at `p` are readable; `p` may be NULL if `n` is 0.
    pub unsafe fn raw(&mut self, p: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(p, n) };
        self.frame().encoder.bytes(data);
    }

    #[inline]
    pub fn handle(&mut self, ty: u32, value: u64) {
        let word = self.lane.connection.handles.word_of(ty, value);
        self.frame().handles.push(word);
        self.word(word);
    }

    /// Writes a handle that this call releases or ends.
    pub fn handle_ending(&mut self, ty: u32, value: u64) {
        self.handle(ty, value);
        let frame = self.frame();
        let word = frame.handles.last().copied().unwrap_or(0);
        frame.ending.push((value, word));
    }

    /// Allocates a handle for an object that this call creates, which is sent with
    /// [`Call::send_async`]. The handle belongs to the application once the call is sent; otherwise
    /// it is freed.
    pub fn mint(&mut self, ty: u32) -> u64 {
        let out_of_order = self.lane.out_of_order();
        let Some((value, id)) = self.lane.connection.handles.mint(ty, out_of_order) else {
            crate::process::log::line("too many objects");
            self.refused = true;
            self.word(0);
            return 0;
        };
        self.frame().minted.push(value);
        self.word(id);
        value
    }

    /// # Safety
    /// `p` is NULL or a NUL-terminated string.
    pub unsafe fn string(&mut self, p: *const c_char) {
        if p.is_null() {
            return self.frame().encoder.buffer_null();
        }
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(p) }.to_bytes_with_nul();
        // SAFETY: a slice is readable.
        unsafe { self.buffer_in(text.as_ptr(), text.len()) };
    }

    pub(crate) fn connection(&self) -> &'static Connection {
        self.lane.connection
    }

    /// Writes a buffer that is NULL.
    pub(crate) fn null(&mut self) {
        self.frame().encoder.buffer_null();
    }

    /// Writes a buffer in shared memory.
    pub(crate) fn arena(&mut self, offset: u64, bytes: usize) {
        self.frame().encoder.buffer_arena(offset, bytes);
    }

    /// The application may have changed a block that the server reads.
    pub(crate) fn block_changed(&mut self, offset: u64, bytes: usize) {
        self.frame().regions.push(Region { offset, length: bytes });
    }

    /// Notes an action for the time after the vendor's function succeeded.
    pub(crate) fn ends(&mut self, end: End) {
        self.frame().ends.push(end);
    }

    /// How many outputs the request has named so far.
    pub fn outputs(&mut self) -> usize {
        self.frame().outputs.len()
    }

    /// Begins an array. False: `p` is NULL and no elements follow. `p` is not read.
    pub fn array(&mut self, p: *const u8, count: usize) -> bool {
        self.frame().encoder.array((!p.is_null()).then_some(count));
        !p.is_null()
    }

    /// `copied_back`: [`Call::shadow_copy_back`] follows.
    ///
    /// # Safety
    /// `p` is NULL or, with `input` or `copied_back`, `n` bytes at it are readable.
    pub unsafe fn shadow(&mut self, p: *mut u8, n: usize, input: bool, copied_back: bool) {
        if p.is_null() {
            return self.frame().encoder.buffer_null();
        }
        let connection = self.lane.connection;
        connection.free_retired();
        match connection.objects.shadows.obtain(&connection.memory.blocks, p, n) {
            Some((block, new)) => {
                if copied_back && (input || connection.objects.shadows.before(p, n).is_none()) {
                    let mut before = vec![0; n];
                    // SAFETY: the caller's promise; then `n` bytes of our own.
                    unsafe {
                        write_back(p, None, before.as_mut_ptr(), n, None);
                        self.copy_in(before.as_ptr(), n, block);
                    }
                    connection.objects.shadows.note(p, before);
                } else if input {
                    // SAFETY: the caller's promise.
                    unsafe { self.copy_in(p, n, block) };
                }
                let frame = self.frame();
                if new {
                    frame.new_shadows.push(p);
                }
                frame.encoder.buffer_arena(block.offset, n);
            }
            None => self.refuse(),
        }
    }

    /// Names the shadow of `p`; after the call its content is copied to `p` and, with `end`, the
    /// shadow ends.
    ///
    /// # Safety
    /// `p` is NULL or `n` bytes at it are writable until the reply is read.
    pub unsafe fn shadow_copy_back(&mut self, p: *mut u8, n: usize, end: bool) {
        match self.lane.connection.objects.shadows.find(p) {
            None => self.frame().encoder.buffer_null(),
            Some((block, known)) => {
                let n = n.min(known);
                let frame = self.frame();
                frame.encoder.buffer_arena(block.offset, n);
                frame.ends.push(End::Shadow { to: p, bytes: n, offset: block.offset, before: None, end });
            }
        }
    }

    /// Names the state of the struct of `size` bytes at `at`, whose key is `key` bytes in; with `makes` it is about to be
    /// made. False: there is none, and the call cannot be sent.
    ///
    /// `copies`: a copy of the struct is a state of its own.
    ///
    /// # Safety
    /// `at` is 0 or the address of such a struct.
    pub unsafe fn state(&mut self, at: usize, size: usize, key: usize, makes: bool, copies: bool) -> bool {
        let states = &self.lane.connection.objects.states;
        if at == 0 {
            return false;
        }
        if makes {
            // SAFETY: the caller's promise.
            let ended = unsafe { states.begin(at, size, key) };
            self.word(ended.len() as u64);
            ended.into_iter().for_each(|id| self.word(id));
            return true;
        }
        // SAFETY: the caller's promise.
        let Some(found) = (unsafe { states.find(at, key) }) else { return false };
        if found.copied && !copies {
            states.tell_of_copy();
            return false;
        }
        self.word(found.id);
        self.word(found.version);
        if copies {
            self.word(if found.copied { COPIED } else { 0 });
            let ended = if found.copied { states.displaced(at, size, &found) } else { Vec::new() };
            self.word(ended.len() as u64);
            ended.into_iter().for_each(|id| self.word(id));
        }
        true
    }

    /// Memory of `n` bytes that the library reaches by its address.
    pub fn names(&mut self, p: *const u8, n: usize) {
        if !p.is_null() {
            self.joins(p, n, None, Place::Here);
        }
    }

    pub fn zerocopy(&mut self, p: *const u8) {
        let connection = self.lane.connection;
        let word = match connection.memory.arena.offset_of(p) {
            _ if p.is_null() => 0,
            Some(offset) if connection.memory.same_address => offset + 1,
            _ => FOREIGN,
        };
        self.word(word);
    }

    /// # Safety
    /// If the application mapped memory at an address of its own, `p` is that address and still
    /// readable.
    pub unsafe fn unmap(&mut self, p: *const u8) {
        let connection = self.lane.connection;
        if p.is_null() {
            return self.word(0);
        }
        let Some(mapping) = connection.objects.foreign.mapping(p as usize) else {
            match self.shared(p, 0) {
                Some(offset) => {
                    self.word(1);
                    self.word(offset);
                }
                None => self.word(3),
            }
            return;
        };
        self.word(2);
        self.word(mapping.id);
        // Before the content is there the application cannot have changed it.
        if mapping.write && !connection.deliveries.is_expected(mapping.block.offset) {
            if mapping.at != 0 {
                // SAFETY: the application passed `at` with `bytes` bytes and promises that they are
                // still readable.
                unsafe { self.copy_in(mapping.at as *const u8, mapping.bytes, mapping.block) };
            } else {
                let region = Region { offset: mapping.block.offset, length: mapping.bytes };
                self.frame().regions.push(region);
            }
            self.frame().encoder.buffer_arena(mapping.block.offset, mapping.bytes);
        } else {
            self.frame().encoder.buffer_null();
        }
        self.frame().ends.push(End::Foreign { address: p as usize, id: mapping.id });
    }

    /// Writes a function of the application that the server may call; `kind` numbers its signature. Returns the id of
    /// the callback; 0: there is none.
    pub fn callback(&mut self, f: usize, kind: u32, userdata: usize, once: bool) -> u64 {
        let registered = match f {
            0 => Ok(0),
            f => callback_thread::register(self.lane.connection, CallbackTarget { function: f, kind, userdata }, once),
        };
        let Ok(id) = registered else {
            self.refuse();
            return 0;
        };
        self.word(id);
        if once && id != 0 {
            let frame = self.frame();
            frame.once.push(id);
            frame.ends.push(End::Callback { id });
        }
        id
    }

    /// Keeps the handle `value` valid until the callback has run, even if the application releases it.
    pub fn callback_keeps(&mut self, id: u64, value: u64) {
        if id != 0 {
            let connection = self.lane.connection;
            connection.callbacks.keep_for(id, value, &connection.handles);
        }
    }

    /// The callback, which is called at most once, is given these words as they are.
    pub fn callback_gives(&mut self, id: u64, values: &[u64]) {
        if id != 0 {
            self.lane.connection.callbacks.give(id, values);
        }
    }

    /// The offset of a buffer that lies in shared memory already.
    pub(crate) fn shared(&self, p: *const u8, n: usize) -> Option<u64> {
        let connection = self.lane.connection;
        if connection.memory.arena.mirrored() {
            return None;
        }
        let Some(offset) = connection.memory.arena.offset_of(p) else {
            return connection.memory.heap.and_then(|heap| heap.offset_of(p, n));
        };
        connection.memory.arena.pointer(offset, n).ok().map(|_| offset)
    }

    /// The offset of an input that the server can access in the application's own memory.
    fn in_heap(&self, p: *const u8, n: usize) -> Option<u64> {
        self.lane.connection.memory.heap.and_then(|heap| heap.input(p, n))
    }

    /// A block for the duration of this call.
    pub(crate) fn block(&mut self, n: usize) -> Option<Block> {
        let block = self.allocate(n)?;
        self.frame().blocks.push(block);
        Some(block)
    }

    /// In a VM: shares the application's own bytes with the server until the call ends.
    ///
    /// # Safety
    /// As for [`crate::memory::blocks::Blocks::lend`].
    unsafe fn lend(&mut self, p: *const u8, n: usize, write: bool) -> Option<u64> {
        // SAFETY: the caller's promise.
        let (block, offset) = unsafe { self.lane.connection.memory.blocks.lend(p, n, write) }?;
        self.frame().blocks.push(block);
        Some(offset)
    }

    fn allocate(&mut self, n: usize) -> Option<Block> {
        let block = self.lane.connection.memory.blocks.allocate(n);
        if block.is_none() {
            self.refuse();
        }
        block
    }

    #[cold]
    fn refuse(&mut self) {
        self.refused = true;
        self.frame().encoder.buffer_null();
    }

    /// # Safety
    /// `n` bytes at `p` are readable; `block` holds at least `n` and belongs to the caller.
    pub(crate) unsafe fn copy_in(&mut self, p: *const u8, n: usize, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_rows_in(p, n, block, None) };
    }

    /// # Safety
    /// As for `copy_in`; of rows only what lies in them is read.
    unsafe fn copy_rows_in(&mut self, p: *const u8, n: usize, block: Block, rows: Option<Rows>) {
        let n = n.min(block.size as usize);
        if let Ok(to) = self.lane.connection.memory.arena.pointer(block.offset, n) {
            // SAFETY: `p` is readable by the caller's promise, `to` is inside the arena.
            unsafe { write_back(p, None, to, n, rows) };
        }
        let regions = &mut self.frame().regions;
        match rows {
            None => regions.push(Region { offset: block.offset, length: n }),
            Some(rows) => regions.extend(rows.regions(block.offset, n)),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, and not after `into_parts`.
        let frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        drop(Reply::refused(self.lane.clone(), frame));
    }
}

/// # Safety
/// `n` bytes at `p` are readable for as long as the slice is used; `p` may be NULL if `n` is 0.
unsafe fn bytes<'a>(p: *const u8, n: usize) -> &'a [u8] {
    if p.is_null() || n == 0 || n > isize::MAX as usize {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(p, n) }
}
