//! Replies with memory that is bound to objects.

use aviary_wire::resident;

use super::Reply;
use crate::connection::Connection;
use crate::memory::block::Block;
use crate::objects::bound::BoundMemory;

impl Reply {
    /// Binds the memory that [`Call::bound`] has written to an object.
    pub fn bind(&mut self, bound: u64, p: usize, bytes: usize, value: u64) {
        if bound == 0 || value == 0 {
            return;
        }
        // Memory that several arguments name is bound as one.
        let (p, bytes) = self.union_in(bound).unwrap_or((p, bytes));
        let Some(block) = self.take_block(bound) else { return };
        self.connection().objects.bound.add(value, BoundMemory { resident: 0, to: p, bytes, block });
    }

    /// Reads the address of memory of the library's that the application uses as long as the handle `value`.
    pub fn resident(&mut self, value: u64) -> *mut u8 {
        let connection = self.connection();
        match self.word() {
            resident::NONE => std::ptr::null_mut(),
            resident::IN_ARENA => {
                let offset = self.word();
                if let Some(p) = connection.memory.heap.and_then(|heap| heap.pointer(offset)) {
                    return p;
                }
                match connection.objects.bound.address_of(offset) {
                    Some(address) => address as *mut u8,
                    None => connection.memory.arena.pointer(offset, 1).unwrap_or(std::ptr::null_mut()),
                }
            }
            _ => {
                let (id, bytes) = (self.word(), self.word());
                self.reside(connection, value, id, usize::try_from(bytes).unwrap_or(usize::MAX))
            }
        }
    }

    fn reside(&mut self, connection: &'static Connection, value: u64, id: u64, bytes: usize) -> *mut u8 {
        let place = |block: Block| connection.memory.arena.pointer(block.offset, bytes).unwrap_or(std::ptr::null_mut());
        if let Some(known) = connection.objects.bound.resident(value, id) {
            return place(known.block);
        }
        let Some(block) = connection.memory.blocks.allocate(bytes.max(1)) else {
            crate::process::log::line(
                "the arena is full: memory of the library has no place (AVIARY_ARENA sets its size)",
            );
            return std::ptr::null_mut();
        };
        if bytes > 0 && self.fetch(id, block.offset, bytes, std::ptr::null_mut()).is_err() {
            return std::ptr::null_mut();
        }
        connection.objects.bound.add(value, BoundMemory { resident: id, to: 0, bytes, block });
        place(block)
    }
}
