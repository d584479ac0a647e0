//! Objects that are given back while their memory is out.

use super::library::{
    CREATE, DESTROY, FILL, LINK, RETAIN, content_of, give_back, numbers_of, read_content, write_content,
};
use super::*;
use crate::api::EvictableType;
use crate::moving::evict::{Evicted, Spare};

pub const EVICTABLE: EvictableType =
    EvictableType { bytes: content_bytes, out: take_content, back: return_content, device: None, drop: Some(release) };

/// Content of an object that stays.
const STAYS: u8 = 0xee;

thread_local! {
    /// The library makes no object now.
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

pub fn refuses() -> bool {
    REFUSES.get()
}

unsafe extern "C" fn content_bytes(native: u64) -> u64 {
    let content = content_of(native);
    if content.first() == Some(&STAYS) { EvictableType::STAYS } else { content.len() as u64 }
}

unsafe extern "C" fn take_content(native: u64, to: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller has room for so many bytes.
    c_int::from(unsafe { write_content(native, 0, to, bytes) } != bytes as i64)
}

unsafe extern "C" fn return_content(native: u64, from: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the caller has so many bytes.
    unsafe { read_content(native, 0, from, bytes) }
}

unsafe extern "C" fn release(native: u64, references: u64) -> c_int {
    c_int::from(!give_back(native, references))
}

fn native(side: &Side, id: u64) -> Option<u64> {
    side.session.objects.handles.native(0, id)
}

#[test]
fn objects_are_made_again_with_their_contents_references_and_what_was_set_on_them() {
    let side = Side::new();
    let [first, second, ended] = [[1, 2, 3], [4, 5, 6], [7, 8, 9]].map(|bytes| side.create(&bytes));
    side.call(LINK, |e| {
        e.word(first);
        e.word(second);
        e.word(1);
    });
    side.call(DESTROY, |e| e.word(ended));
    side.call(RETAIN, |e| e.word(first));
    side.call(FILL, |e| {
        e.word(first);
        e.word(100 << 8 | 7);
    });
    let (sum, records) = (side.sum(first), side.session.objects.log.size());
    let handles = side.session.objects.handles.quota.charged();
    let mut natives = [first, second].map(|id| native(&side, id).unwrap());
    for _ in 0..3 {
        let evicted = Evicted::take(&side.session, (1, None), 1000, &mut Spare::default()).unwrap();
        assert_eq!((evicted.bytes, evicted.objects()), (100, 2));
        assert_eq!([first, second].map(|id| native(&side, id)), [None, None]);
        evicted.come_back(&side.session).unwrap();
        let now = [first, second].map(|id| native(&side, id).unwrap());
        assert!(now.iter().all(|native| !natives.contains(native)));
        assert_eq!((content_of(now[0]), side.sum(first), side.references(first)), (vec![7; 100], sum, 2));
        assert_eq!(
            (side.session.objects.log.size(), side.references(second)),
            (records, 1),
            "nothing is recorded twice"
        );
        assert_eq!(side.session.objects.handles.quota.charged(), handles);
        natives = now;
    }
    assert!(numbers_of(natives[0]).is_empty());
    let (moved, _) = side.moved();
    assert_eq!((moved.sum(first), moved.references(first)), (sum, 2), "it moves as before");
}

#[test]
fn object_that_stays_keeps_those_that_are_set_on_it() {
    let side = Side::new();
    let [stays, part, free] = [[1], [2], [3]].map(|bytes| side.create(&bytes));
    for id in [stays, part, free] {
        side.call(FILL, |e| {
            e.word(id);
            e.word(10 << 8 | if id == stays { u64::from(STAYS) } else { 1 });
        });
    }
    side.call(LINK, |e| {
        e.word(stays);
        e.word(part);
        e.word(1);
    });
    let before = [stays, part].map(|id| native(&side, id));
    let evicted = Evicted::take(&side.session, (1, None), 1000, &mut Spare::default()).unwrap();
    assert_eq!((evicted.bytes, [stays, part].map(|id| native(&side, id)), native(&side, free)), (10, before, None));
    evicted.come_back(&side.session).unwrap();
    assert_eq!(side.sum(free), 3);
    side.call(DESTROY, |e| e.word(free));
    let refused = Evicted::take(&side.session, (1, None), 1000, &mut Spare::default()).err().unwrap();
    assert_eq!(refused.to_string(), "objects of type object keep their device memory");
}

#[test]
fn objects_stay_out_as_long_as_the_library_makes_none() {
    let side = Side::new();
    let ids = [[1], [2], [3]].map(|bytes| side.create(&bytes));
    let evicted = Evicted::take(&side.session, (1, None), 1000, &mut Spare::default()).unwrap();
    REFUSES.set(true);
    let error = evicted.come_back(&side.session).unwrap_err();
    assert!(!error.torn && error.to_string().contains("create"), "{error}");
    assert_eq!(ids.map(|id| native(&side, id)), [None; 3]);
    REFUSES.set(false);
    evicted.come_back(&side.session).unwrap();
    assert_eq!(ids.map(|id| side.sum(id)), [1, 2, 3]);
    assert!(side.call_on(0, CREATE, |e| e.buffer_inline(&[4])).is_some());
}

#[test]
fn session_whose_calls_are_not_recorded_keeps_its_objects() {
    let side = Side::with_log(ObjectLog::off());
    let id = side.create(&[1]);
    let refused = Evicted::take(&side.session, (1, None), 1000, &mut Spare::default()).err().unwrap();
    assert!(refused.to_string().contains("not recorded"), "{refused}");
    assert_eq!(side.sum(id), 1);
}
