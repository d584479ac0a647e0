//! What a reply says of tables of functions of the vendor's library.

use aviary_transport::bounds::load;

use super::Call;
use crate::tables::vendor_table::VendorTable;

impl Call {
    /// Says that a table was returned, and what the vendor's has: one bit for each function, then its numbers.
    ///
    /// # Safety
    /// As [`VendorTable::function`].
    pub unsafe fn reply_table(&mut self, returned: usize, table: &VendorTable) {
        self.reply_word((returned != 0) as u64);
        if returned == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.tell_table(table.table(), table) };
    }

    /// Behind a handle that is a table: what the object has of it.
    ///
    /// # Safety
    /// `object` is NULL, or an object of the library that begins with such a table.
    pub unsafe fn reply_shape(&mut self, object: usize, table: &VendorTable) {
        // SAFETY: the caller's promise.
        unsafe { self.tell_table((object, table.bytes_at(object)), table) };
    }

    /// # Safety
    /// So many bytes can be read there; or the address is 0.
    unsafe fn tell_table(&mut self, (at, bytes): (usize, usize), table: &VendorTable) {
        for slots in table.slots.chunks(u64::BITS as usize) {
            let present = slots.iter().enumerate().map(|(n, slot)| {
                // SAFETY: as before; `load` stays within `bytes`.
                let function = unsafe { load(at, bytes, *slot as i128, size_of::<usize>(), false) };
                ((function != 0) as u64) << n
            });
            let present = present.sum();
            self.reply_word(present);
        }
        for &(offset, width) in table.values {
            // SAFETY: as before.
            let value = unsafe { load(at, bytes, offset as i128, width, false) };
            self.reply_word(value as u64);
        }
    }
}
