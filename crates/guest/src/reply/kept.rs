//! Replies with the library's memory, of which the application gets copies.

use super::Reply;
use crate::connection::Connection;
use crate::objects::foreign::Keep;

/// The address of a copy of `bytes`. `id`: under which the server frees the original, 0 if it will not.
fn keep(connection: &Connection, bytes: &[u8], how: Keep, id: u64) -> *mut u8 {
    let how = match how {
        Keep::Object(value) if !connection.handles.is_handle(value) => Keep::Session,
        how => how,
    };
    connection.objects.foreign.keep(bytes, how, id)
}

impl Reply {
    /// Reads data of the vendor's library; NULL if there is none.
    pub fn given_bytes(&mut self, how: Keep) -> *mut u8 {
        let connection = self.connection();
        let bytes = self.read(None, |d| Ok(d.optional_bytes()?.map(Box::<[u8]>::from)));
        bytes.map_or(std::ptr::null_mut(), |bytes| {
            let id = self.freed_id(how);
            keep(connection, &bytes, how, id)
        })
    }

    /// Keeps an array of the vendor's library, whose elements have been translated.
    pub fn given_array(&mut self, bytes: &[u8], how: Keep) -> *mut u8 {
        let id = self.freed_id(how);
        keep(self.connection(), bytes, how, id)
    }

    fn freed_id(&mut self, how: Keep) -> u64 {
        if matches!(how, Keep::Freed(_)) { self.word() } else { 0 }
    }
}
