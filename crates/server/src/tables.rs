//! Tables of functions of the vendor's library.
//!
//! The library is trusted as far as its own memory goes, and not to have all that the header has: an older one's table ends
//! earlier, and what lies behind it is not looked at where a member says how large it is.

use crate::call::Call;

/// One table, as a specification describes it.
pub struct VendorTable {
    /// The address of the vendor's table, 0 if there is none.
    pub find: unsafe fn() -> usize,
    /// Bytes that the header knows.
    pub size: usize,
    /// Place and width of the number that says how many bytes there are.
    pub sized: Option<(usize, usize)>,
    /// Places of functions.
    pub slots: &'static [usize],
    /// Places and widths of numbers.
    pub values: &'static [(usize, usize)],
}

impl VendorTable {
    /// The vendor's function at `offset`, 0 if its table has none there.
    ///
    /// # Safety
    /// `find` answers a table as the specification describes it.
    pub unsafe fn function(&self, offset: usize) -> usize {
        // SAFETY: the caller's promise.
        let (table, bytes) = unsafe { self.table() };
        // SAFETY: as before; `number` stays within `bytes`.
        unsafe { number(table, bytes, offset, size_of::<usize>()) as usize }
    }

    /// The table and its bytes.
    ///
    /// # Safety
    /// As [`VendorTable::function`].
    unsafe fn table(&self) -> (usize, usize) {
        // SAFETY: utility code of the specification, called as it is declared.
        let table = unsafe { (self.find)() };
        let bytes = match self.sized {
            None => self.size,
            // SAFETY: the caller's promise: a table has at least the member that says how large it is.
            Some((at, width)) => unsafe { number(table, at + width, at, width) }.min(self.size as u64) as usize,
        };
        (table, bytes)
    }
}

/// The number of `width` bytes at `offset` of a table of `bytes` bytes; 0 where there is none.
///
/// # Safety
/// `bytes` bytes at `table` are readable, unless it is 0.
unsafe fn number(table: usize, bytes: usize, offset: usize, width: usize) -> u64 {
    let mut value = [0u8; 8];
    if table != 0 && width <= value.len() && offset.checked_add(width).is_some_and(|end| end <= bytes) {
        // SAFETY: the caller's promise, and the bounds were checked.
        unsafe { std::ptr::copy_nonoverlapping((table + offset) as *const u8, value.as_mut_ptr(), width) };
    }
    u64::from_le_bytes(value)
}

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
        let (at, bytes) = unsafe { table.table() };
        for slots in table.slots.chunks(u64::BITS as usize) {
            let present = slots.iter().enumerate().map(|(n, slot)| {
                // SAFETY: as before; `number` stays within `bytes`.
                let function = unsafe { number(at, bytes, *slot, size_of::<usize>()) };
                ((function != 0) as u64) << n
            });
            let present = present.sum();
            self.reply_word(present);
        }
        for &(offset, width) in table.values {
            // SAFETY: as before.
            let value = unsafe { number(at, bytes, offset, width) };
            self.reply_word(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Operations {
        bytes: u32,
        version: u32,
        functions: [usize; 3],
    }

    static SHORT: Operations = Operations { bytes: 24, version: 3, functions: [111, 0, 333] };

    unsafe fn short() -> usize {
        &raw const SHORT as usize
    }

    unsafe fn none() -> usize {
        0
    }

    fn described(find: unsafe fn() -> usize, sized: Option<(usize, usize)>) -> VendorTable {
        VendorTable { find, size: size_of::<Operations>(), sized, slots: &[8, 16, 24], values: &[(0, 4), (4, 4)] }
    }

    #[test]
    fn a_table_ends_where_it_says() {
        let functions = |table: &VendorTable| {
            [8, 16, 24, usize::MAX].map(|at| {
                // SAFETY: the static has the bytes that the description says.
                unsafe { table.function(at) }
            })
        };
        assert_eq!(functions(&described(short, None)), [111, 0, 333, 0]);
        assert_eq!(functions(&described(short, Some((0, 4)))), [111, 0, 0, 0]);
        assert_eq!(functions(&described(none, Some((0, 4)))), [0; 4]);
    }
}
