//! Small functions that every generated crate contains: bounded loads and exact counts.

use proc_macro2::TokenStream;
use quote::quote;

pub fn module() -> TokenStream {
    quote! {
        #[allow(dead_code)]
        mod support {
            /// What an output handle slot holds until the vendor writes it.
            pub const UNWRITTEN: u64 = 0xA5A5_A5A5_A5A5_A5A5;
            /// No buffer is larger: a larger size is a mistake or an attack.
            const LARGEST: i128 = 1 << 40;

            /// Bytes of `count` elements, if that is a sane size.
            #[inline]
            pub fn count(count: i128, stride: usize) -> Option<usize> {
                if count < 0 || count.saturating_mul(stride as i128) > LARGEST { None } else { Some(count as usize) }
            }

            /// Elements that are meaningful after the call.
            #[inline]
            pub fn returned(count: i128, capacity: usize) -> usize {
                count.clamp(0, capacity as i128) as usize
            }

            /// Loads an integer, or 0 where `base` is NULL or the load would leave its `limit` bytes.
            #[inline]
            pub unsafe fn load(base: usize, limit: usize, at: i128, size: usize, signed: bool) -> i128 {
                if base == 0 || at < 0 || at.saturating_add(size as i128) > limit as i128 {
                    return 0;
                }
                let p = (base + at as usize) as *const u8;
                unsafe {
                    match (size, signed) {
                        (1, false) => p.read() as i128,
                        (1, true) => (p as *const i8).read() as i128,
                        (2, false) => (p as *const u16).read_unaligned() as i128,
                        (2, true) => (p as *const i16).read_unaligned() as i128,
                        (4, false) => (p as *const u32).read_unaligned() as i128,
                        (4, true) => (p as *const i32).read_unaligned() as i128,
                        (8, false) => (p as *const u64).read_unaligned() as i128,
                        (8, true) => (p as *const i64).read_unaligned() as i128,
                        _ => 0,
                    }
                }
            }

            /// No struct is larger than a page: a larger size is a mistake.
            const LARGEST_STRUCT: usize = 4096;

            /// Copies the struct at `own`, of which a member says how many bytes it has, to `total` zeroed bytes at `to`.
            /// How many it has; `None`: too few, absurdly many, or more than is known here and not zero. A struct that
            /// has more tells the vendor of `total`.
            pub unsafe fn whole(own: usize, offset: usize, width: usize, required: usize, total: usize, to: usize) -> Option<usize> {
                if own == 0 {
                    return Some(0);
                }
                unsafe {
                    let size = load(own, usize::MAX, offset as i128, width, false);
                    if size < required as i128 || size > std::cmp::max(total, LARGEST_STRUCT) as i128 {
                        return None;
                    }
                    let size = size as usize;
                    if (total..size).any(|at| read::<u8>(own + at) != 0) {
                        return None;
                    }
                    let known = std::cmp::min(size, total);
                    std::ptr::copy_nonoverlapping(own as *const u8, to as *mut u8, known);
                    // What was just read holds, whatever another thread has written meanwhile.
                    let told = (known as u64).to_le_bytes();
                    std::ptr::copy_nonoverlapping(told.as_ptr(), (to + offset) as *mut u8, width);
                    Some(size)
                }
            }

            /// Copies `size` bytes of the struct at `from` back, but for the member that says how many there are.
            pub unsafe fn part(from: usize, own: usize, offset: usize, width: usize, size: usize) {
                if own == 0 {
                    return;
                }
                let behind = offset + width;
                unsafe {
                    std::ptr::copy_nonoverlapping(from as *const u8, own as *mut u8, offset);
                    std::ptr::copy_nonoverlapping((from + behind) as *const u8, (own + behind) as *mut u8, size - behind);
                }
            }

            #[inline]
            pub unsafe fn read<T: Copy>(at: usize) -> T {
                unsafe { (at as *const T).read_unaligned() }
            }

            #[inline]
            pub unsafe fn write<T>(at: usize, value: T) {
                unsafe { (at as *mut T).write_unaligned(value) }
            }

            /// Elements up to and including the terminating zero.
            pub unsafe fn terminated(base: usize, stride: usize, step: usize) -> usize {
                if base == 0 {
                    return 0;
                }
                let mut index = 0;
                loop {
                    let zero = (0..stride).all(|b| unsafe { read::<u8>(base + index * stride + b) } == 0);
                    if zero && index % step == 0 {
                        return index + 1;
                    }
                    index += 1;
                }
            }

            /// Length of a string, or of what fits into `limit` bytes.
            pub unsafe fn length(base: i128, limit: usize) -> i128 {
                let base = base as usize;
                if base == 0 {
                    return 0;
                }
                (0..limit).take_while(|i| unsafe { read::<u8>(base + i) } != 0).count() as i128
            }

            #[inline]
            pub fn divide(a: i128, b: i128) -> i128 { a.checked_div(b).unwrap_or(0) }
            #[inline]
            pub fn remainder(a: i128, b: i128) -> i128 { a.checked_rem(b).unwrap_or(0) }
            #[inline]
            pub fn shift_left(a: i128, b: i128) -> i128 { if (0..64).contains(&b) { a.saturating_mul(1 << b) } else { 0 } }
            #[inline]
            pub fn shift_right(a: i128, b: i128) -> i128 { if (0..127).contains(&b) { a >> b } else { 0 } }
        }
    }
}
