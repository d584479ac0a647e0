//! Replies that tell of the vendor's tables of functions.

use super::Reply;
use crate::handles::handle_type::Role;
use crate::handles::shapes::copied;
use crate::handles::tables::{VendorTable, follow};

impl Reply {
    /// Reads a handle that is a table, with what the vendor's object has of its functions and numbers. `None`: the vendor's
    /// function did not write it.
    pub fn shaped(&mut self, ty: u32, role: Role, slots: &[usize], values: &[(usize, usize, u64)]) -> Option<u64> {
        let id = match self.word() {
            aviary_wire::NOT_A_HANDLE => return None,
            0 => return Some(0),
            id => id,
        };
        let connection = self.connection();
        let shape = connection.descriptor.handle_types.get(ty as usize).and_then(|t| t.shape);
        let mut words = shape.map(copied).unwrap_or_default();
        follow(slots, values, || self.word(), &mut |slot, change| {
            if let Some(word) = words.get_mut(slot) {
                *word = change.of(*word);
            }
        });
        Some(connection.handles.shaped_value(id, role, &words))
    }

    /// Reads what the API server says of the vendor's table, and answers `address`, where the guest's is.
    pub fn table<const N: usize>(&mut self, address: usize, table: &VendorTable<N>) -> usize {
        table.follow(|| self.word());
        address
    }
}
