//! Values of one call: noted while it is decoded and executed, forgotten before the next one begins.
//!
//! A struct is declared with [`per_call!`], and how it is renewed follows from the declaration: no other place lists its
//! fields, so that nothing of one call can be left for the next. `mem::take` would forget as well, but give the memory of
//! the lists away: an allocation for each list that a message uses.

use std::ops::{Deref, DerefMut};

use aviary_gate::Charges;
use aviary_wire::{Encoder, RequestHeader};

/// Bytes of a message that a call keeps memory for.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// A value of one call.
pub(crate) trait PerCall: Default {
    /// Makes it what `Default` makes; lists keep their memory.
    fn renew(&mut self);
}

/// Declares a struct of values of one call, each of which is renewed with it.
macro_rules! per_call {
    ($(#[$about:meta])* $sight:vis struct $name:ident { $($(#[$says:meta])* $seen:vis $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Default)]
        $sight struct $name { $($(#[$says])* $seen $field: $type,)* }

        impl $crate::call::per_call::PerCall for $name {
            #[inline(always)]
            fn renew(&mut self) {
                $($crate::call::per_call::PerCall::renew(&mut self.$field);)*
            }
        }
    };
}
pub(crate) use per_call;

impl<T> PerCall for Vec<T> {
    #[inline(always)]
    fn renew(&mut self) {
        self.clear();
    }
}

impl<T> PerCall for Option<T> {
    #[inline(always)]
    fn renew(&mut self) {
        *self = None;
    }
}

macro_rules! renewed_by_default {
    ($($type:ty)*) => {$(
        impl PerCall for $type {
            #[inline(always)]
            fn renew(&mut self) {
                *self = <$type>::default();
            }
        }
    )*};
}
renewed_by_default!(bool i64 u64 usize);

impl PerCall for RequestHeader {
    /// Each message begins with its own.
    #[inline(always)]
    fn renew(&mut self) {}
}

impl PerCall for Charges {
    /// Charges are given back or tied to something when the call ends, so there are none.
    #[inline(always)]
    fn renew(&mut self) {
        debug_assert!(self.is_empty(), "internal error: a call leaves charges that nothing holds");
    }
}

impl PerCall for Encoder {
    /// Each message begins with [`Encoder::start`].
    #[inline(always)]
    fn renew(&mut self) {
        if self.capacity() > MAX_KEPT_BYTES {
            self.shrink(MAX_KEPT_BYTES);
        }
    }
}

/// The bytes of a message that was received.
#[derive(Default)]
pub(crate) struct MessageBytes(Vec<u8>);

impl Deref for MessageBytes {
    type Target = Vec<u8>;

    #[inline(always)]
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for MessageBytes {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl PerCall for MessageBytes {
    #[inline(always)]
    fn renew(&mut self) {
        self.0.clear();
        if self.0.capacity() > MAX_KEPT_BYTES {
            self.0 = Vec::new();
        }
    }
}

/// Items in the order of the request, and which of them the reply mentions next.
pub(crate) struct InOrder<T> {
    pub items: Vec<T>,
    pub next: usize,
}

impl<T> Default for InOrder<T> {
    fn default() -> InOrder<T> {
        InOrder { items: Vec::new(), next: 0 }
    }
}

impl<T> PerCall for InOrder<T> {
    #[inline(always)]
    fn renew(&mut self) {
        self.items.clear();
        self.next = 0;
    }
}

/// Values that few calls change: what is asked of each call is whether this one has.
#[derive(Default)]
pub(crate) struct Touched<T> {
    touched: bool,
    value: T,
}

impl<T> Touched<T> {
    /// False: all is as `Default` makes it.
    #[inline(always)]
    pub fn is_touched(&self) -> bool {
        self.touched
    }
}

impl<T> Deref for Touched<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Touched<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.touched = true;
        &mut self.value
    }
}

impl<T: PerCall> PerCall for Touched<T> {
    #[inline(always)]
    fn renew(&mut self) {
        if self.touched {
            self.value.renew();
            self.touched = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    per_call! {
        struct Inner {
            list: Vec<u64>,
        }
    }

    per_call! {
        struct Outer {
            inner: Inner,
            ordered: InOrder<u8>,
            bytes: MessageBytes,
            result: Option<i64>,
            count: u64,
            flag: bool,
            rare: Touched<Inner>,
        }
    }

    #[test]
    fn every_field_is_renewed_and_lists_keep_their_memory() {
        let mut outer = Outer {
            inner: Inner { list: vec![1, 2, 3] },
            ordered: InOrder { items: vec![1], next: 1 },
            bytes: MessageBytes(vec![1; 2 * MAX_KEPT_BYTES]),
            result: Some(-1),
            count: 7,
            flag: true,
            rare: Touched::default(),
        };
        assert!(outer.rare.list.is_empty() && !outer.rare.is_touched(), "a look changes nothing");
        outer.rare.list.push(4);
        assert!(outer.rare.is_touched());
        let room = outer.inner.list.capacity();
        outer.renew();
        assert!(outer.inner.list.is_empty() && outer.ordered.items.is_empty() && outer.bytes.0.is_empty());
        assert_eq!((outer.ordered.next, outer.result, outer.count, outer.flag), (0, None, 0, false));
        assert_eq!(outer.inner.list.capacity(), room);
        assert!(outer.rare.list.is_empty() && !outer.rare.is_touched());
        assert!(outer.bytes.0.capacity() <= MAX_KEPT_BYTES);
    }
}
