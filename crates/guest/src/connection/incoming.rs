//! A received callback.

use std::ffi::c_char;
use std::ptr::null_mut;

use aviary_wire::{BufferRef, DecodeError, Decoder, Encoder, HEADER_SIZE, MAX_MESSAGE, NOT_A_HANDLE};

use crate::handles::Handles;
use crate::handles::handle_type::Role;
use crate::objects::foreign::units;
use crate::process::log;

/// A function of the application that can be called back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallbackTarget {
    pub function: usize,
    pub kind: u32,
    pub userdata: usize,
}

/// Words that a callback is given as they were passed to the call that registered it.
pub(crate) type Given = [u64; 4];

/// The arguments of a callback and its answer. Memory that it hands out lives until the callback
/// ends.
pub struct Incoming {
    handles: &'static Handles,
    target: CallbackTarget,
    /// The application's value of a handle that no message names; 0: none.
    handed: u64,
    given: Given,
    message: Vec<u8>,
    at: usize,
    storage: Vec<Box<[u128]>>,
    /// Output buffers: address and length; `None`: the server passed NULL.
    outputs: Vec<Option<(*mut u8, usize)>>,
    next_output: usize,
    answer: Encoder,
    sound: bool,
}

impl Incoming {
    pub(crate) fn new(
        handles: &'static Handles,
        target: CallbackTarget,
        message: Vec<u8>,
        at: usize,
        answer: Encoder,
    ) -> Self {
        Incoming {
            handles,
            target,
            handed: 0,
            given: Given::default(),
            message,
            at,
            storage: Vec::new(),
            outputs: Vec::new(),
            next_output: 0,
            answer,
            sound: true,
        }
    }

    /// A callback that the API server cannot send any more.
    pub(crate) fn lost(handles: &'static Handles, target: CallbackTarget, handed: u64) -> Self {
        Incoming { handed, ..Incoming::new(handles, target, Vec::new(), 0, Encoder::new()) }
    }

    pub(crate) fn with(self, given: Given) -> Self {
        Incoming { given, ..self }
    }

    pub(crate) fn sound(&self) -> bool {
        self.sound
    }

    pub(crate) fn into_answer(self) -> Encoder {
        self.answer
    }

    fn read<T>(&mut self, fallback: T, f: impl FnOnce(&mut Decoder) -> Result<T, DecodeError>) -> T {
        let body = self.message.get(HEADER_SIZE..).unwrap_or(&[]);
        let mut decoder = Decoder::resume(body, self.at);
        match f(&mut decoder) {
            Ok(value) => {
                self.at = decoder.position();
                value
            }
            Err(e) => {
                if self.sound {
                    log::line(&format!("a callback is malformed: {e}"));
                }
                self.sound = false;
                fallback
            }
        }
    }

    /// The application's function.
    pub fn function(&self) -> usize {
        self.target.function
    }

    /// The application's context pointer.
    pub fn userdata(&self) -> usize {
        self.target.userdata
    }

    /// The handle that a callback without a message hands back, as the application knows it.
    pub fn handed(&self) -> u64 {
        self.handed
    }

    /// An argument of the call that registered the callback, as it was.
    pub fn given(&self, place: usize) -> u64 {
        self.given.get(place).copied().unwrap_or(0)
    }

    pub fn word(&mut self) -> u64 {
        self.read(0, |d| d.word())
    }

    pub fn handle(&mut self, ty: u32, role: Role) -> u64 {
        match self.word() {
            0 | NOT_A_HANDLE => 0,
            id => self.handles.value_of(ty, id, role),
        }
    }

    /// # Safety
    /// `n` bytes at `to` are writable.
    pub unsafe fn raw(&mut self, to: *mut u8, n: usize) {
        self.read((), |d| {
            let data = d.bytes()?;
            // SAFETY: the caller's promise; at most `n` bytes are written.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len().min(n)) };
            Ok(())
        });
    }

    pub fn string(&mut self) -> *const c_char {
        self.buffer(true, false).cast::<c_char>().cast_const()
    }

    /// A buffer whose size the server sends, zero-terminated. `reply_out` sends an `output` back.
    pub fn buffer(&mut self, _input: bool, output: bool) -> *mut u8 {
        let stored = self.read(None, |d| {
            Ok(match d.buffer()? {
                BufferRef::Inline(data) => Some((units(data), data.len())),
                BufferRef::Reserved { length } if length <= MAX_MESSAGE => {
                    Some((vec![0u128; length / 16 + 1].into_boxed_slice(), length))
                }
                _ => None,
            })
        });
        let Some((mut memory, length)) = stored else {
            if output {
                self.outputs.push(None);
            }
            return null_mut();
        };
        // Moving the box does not move its memory.
        let address: *mut u8 = memory.as_mut_ptr().cast();
        self.storage.push(memory);
        if output {
            self.outputs.push(Some((address, length)));
        }
        address
    }

    /// Memory for the elements that follow, and how many they are; each has a word at least. `None`: the server passed NULL.
    pub fn array(&mut self, stride: usize) -> Option<(usize, usize)> {
        let most = self.message.len().saturating_sub(HEADER_SIZE + self.at) / size_of::<u64>();
        let count = self.read(None, |d| d.array())?;
        if count > most {
            log::line(&format!(
                "a callback is malformed: an array of {count} elements in a message with room for {most}"
            ));
            self.sound = false;
            return None;
        }
        let mut memory = vec![0u128; count.saturating_mul(stride) / 16 + 1].into_boxed_slice();
        // Moving the box does not move its memory.
        let address = memory.as_mut_ptr() as usize;
        self.storage.push(memory);
        Some((address, count))
    }

    pub fn reply_word(&mut self, v: u64) {
        self.answer.word(v);
    }

    pub fn reply_handle(&mut self, ty: u32, value: u64) {
        let word = self.handles.word_of(ty, value);
        self.answer.word(word);
    }

    /// # Safety
    /// `n` bytes at `p` are readable.
    pub unsafe fn reply_raw(&mut self, p: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        self.answer.bytes(unsafe { std::slice::from_raw_parts(p, n) });
    }

    /// Sends the next output buffer back.
    pub fn reply_out(&mut self) {
        let output = self.outputs.get(self.next_output).copied().flatten();
        self.next_output += 1;
        match output {
            None => self.answer.optional_bytes(None),
            Some((p, n)) => {
                // SAFETY: the storage lives in `self` and has at least `n` bytes; the callback that
                // may have written to it has returned.
                let data = unsafe { std::slice::from_raw_parts(p, n) };
                self.answer.optional_bytes(Some(data));
            }
        }
    }
}
