//! Data of the vendor's library that lives as long as the session.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The data, in 16-byte units so that any C type is aligned, and its length.
#[derive(PartialEq, Eq, Hash)]
struct Datum {
    units: Box<[u128]>,
    length: usize,
}

/// Interned data. Equal content is kept once, so repeated queries of an application need no further
/// memory.
#[derive(Default)]
pub(crate) struct Interned {
    data: Mutex<HashSet<Datum>>,
}

/// Copies bytes into 16-byte units, with at least one zero byte behind them.
pub(crate) fn units(bytes: &[u8]) -> Box<[u128]> {
    let mut units: Vec<u128> = Vec::with_capacity(bytes.len() / 16 + 1);
    let (whole, rest) = bytes.as_chunks::<16>();
    units.extend(whole.iter().map(|c| u128::from_ne_bytes(*c)));
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    units.push(u128::from_ne_bytes(last));
    units.into_boxed_slice()
}

impl Interned {
    /// Interns bytes. The address stays valid; the zero byte behind the data terminates a string
    /// without a NUL.
    pub fn intern(&self, bytes: &[u8]) -> *mut u8 {
        let datum = Datum { units: units(bytes), length: bytes.len() };
        let mut data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = data.get(&datum) {
            return known.units.as_ptr().cast_mut().cast();
        }
        let address = datum.units.as_ptr().cast_mut().cast();
        data.insert(datum);
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_data_is_kept_once_and_terminated() {
        let interned = Interned::default();
        for length in 0..40 {
            let bytes = vec![b'x'; length];
            let p = interned.intern(&bytes);
            assert_eq!(p, interned.intern(&bytes));
            assert_eq!(p as usize % 16, 0);
            // SAFETY: the datum has length + 1 bytes at least.
            unsafe {
                assert_eq!(std::slice::from_raw_parts(p, length), bytes);
                assert_eq!(p.add(length).read(), 0);
            }
        }
    }
}
