//! Parts of long outputs that have come from another machine: they go to the application while the rest is on its way.

use aviary_wire::{Decoder, HEADER_SIZE};

use super::ThreadLane;
use crate::descriptor::Lost;
use crate::lane::frame::Frame;

impl ThreadLane {
    /// `frame.reply` is a carrier's message, whose words begin at `at`. Parts of no output of this call are passed over: the
    /// carrier does not know what a message is about.
    #[cold]
    pub(super) fn take_early(&self, at: usize, frame: &mut Frame) -> Result<(), Lost> {
        let message = std::mem::take(&mut frame.reply);
        let mut fields = Decoder::resume(message.get(HEADER_SIZE..).unwrap_or(&[]), at);
        while fields.remaining() > 0 {
            let (Ok(offset), Ok(length)) = (fields.word(), fields.word()) else {
                return Err(self.connection.peer.fail("a carrier's message is malformed"));
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let Some((to, behind)) = frame.output_at(offset, length).map(|(output, behind)| (output.to, behind)) else {
                continue;
            };
            let Ok(from) = self.connection.memory.arena.pointer(offset, length) else { continue };
            if !frame.copies.has_room() {
                frame.copies.finish_first();
            }
            // SAFETY: `from` is checked; the caller that added the output promised that its bytes at `to` stay writable until
            // the reply is read, and these lie among them; `await_reply` ends the copies before.
            unsafe { frame.copies.begin(from, to.add(behind), length) };
            frame.names_memory = true;
            frame.early.note(offset, length);
        }
        frame.reply = message;
        Ok(())
    }
}
