//! Requests that free copies of the library's memory.

use super::Call;
use crate::lane::frame::End;

impl Call {
    /// Names the memory whose copy is at that address, which the call frees. False: it is none that the application may
    /// free in this way.
    pub fn frees(&mut self, address: usize, groups: &[u32]) -> bool {
        if address == 0 {
            self.word(0);
            return true;
        }
        let Some(id) = self.connection().objects.foreign.freed(address, groups) else { return false };
        self.word(id);
        self.ends(End::Foreign { address, id });
        true
    }
}
