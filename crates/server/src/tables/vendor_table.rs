//! Tables of functions of the vendor's library.
//!
//! The library is trusted as far as its own memory goes, and not to have all that the header has: an older one's table ends
//! earlier, and what lies behind it is not looked at where a member says how large it is.

use aviary_transport::bounds::load;

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
        // SAFETY: as before; `load` stays within `bytes`.
        unsafe { load(table, bytes, offset as i128, size_of::<usize>(), false) as usize }
    }

    /// The vendor's table, 0 if there is none.
    ///
    /// # Safety
    /// As [`VendorTable::function`].
    pub unsafe fn address(&self) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.table().0 }
    }

    /// The table and its bytes.
    ///
    /// # Safety
    /// As [`VendorTable::function`].
    pub(crate) unsafe fn table(&self) -> (usize, usize) {
        // SAFETY: utility code of the specification, called as it is declared.
        let table = unsafe { (self.find)() };
        // SAFETY: the caller's promise.
        (table, unsafe { self.bytes_at(table) })
    }

    /// # Safety
    /// A table as the specification describes it is there, or the address is 0.
    pub(crate) unsafe fn bytes_at(&self, table: usize) -> usize {
        match self.sized {
            None => self.size,
            Some((at, width)) => {
                // SAFETY: the caller's promise: a table has at least the member that says how large it is.
                let told = unsafe { load(table, at + width, at as i128, width, false) };
                (told as u64).min(self.size as u64) as usize
            }
        }
    }

    /// The function at `offset` of an object that is such a table, 0 if it has none there.
    ///
    /// # Safety
    /// As `Call::reply_shape`.
    pub unsafe fn function_of(&self, object: usize, offset: usize) -> usize {
        // SAFETY: the caller's promise; `load` stays within the bytes.
        unsafe { load(object, self.bytes_at(object), offset as i128, size_of::<usize>(), false) as usize }
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
