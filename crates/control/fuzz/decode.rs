//! Any bytes with any number of descriptors, in all three directions: what is taken for a message is one.

use arbitrary::{Arbitrary, Unstructured};
use aviary_control::{Assignment, FromServer, MAX_DESCRIPTORS, Message, ToServer, ToZygote, decode, encode};
use std::fmt::Debug;

fn check<M: Message + PartialEq + Debug>(bytes: &[u8], descriptors: usize) {
    if let Ok(message) = decode::<M>(bytes, descriptors) {
        // Escaped text may get longer than a message can be.
        if let Ok(again) = encode(&message) {
            assert_eq!(decode::<M>(&again, descriptors).expect("its own message"), message);
        }
    }
}

pub fn run(bytes: &[u8]) {
    let Ok((descriptors, bytes)) = <(u8, &[u8])>::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let descriptors = usize::from(descriptors) % (MAX_DESCRIPTORS + 1);
    check::<FromServer>(bytes, descriptors);
    check::<ToServer>(bytes, descriptors);
    check::<ToZygote>(bytes, descriptors);
    let _ = Assignment::from_json(bytes);
}
