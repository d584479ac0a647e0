//! Written messages can be read back, and no bytes that are read can hurt.

use aviary_wire::attach::PREFIX;
use aviary_wire::{BufferRef, Decoder, Encoder, Hello, ReplyHeader, RequestHeader, Welcome};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Field {
    Word(u64),
    Bytes(Vec<u8>),
    Optional(Option<Vec<u8>>),
    Array(Option<u32>),
    Null,
    Inline(Vec<u8>),
    Arena(u64, u32),
    Reserved(u32),
    Part(u32, u64, u64),
}

fn field() -> impl Strategy<Value = Field> {
    let data = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        any::<u64>().prop_map(Field::Word),
        data().prop_map(Field::Bytes),
        proptest::option::of(data()).prop_map(Field::Optional),
        proptest::option::of(any::<u32>()).prop_map(Field::Array),
        Just(Field::Null),
        data().prop_map(Field::Inline),
        (any::<u64>(), any::<u32>()).prop_map(|(o, l)| Field::Arena(o, l)),
        any::<u32>().prop_map(Field::Reserved),
        (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(l, u, o)| Field::Part(l, u, o)),
    ]
}

fn write(e: &mut Encoder, fields: &[Field]) {
    e.start();
    for f in fields {
        match f {
            Field::Word(v) => e.word(*v),
            Field::Bytes(d) => e.bytes(d),
            Field::Optional(d) => e.optional_bytes(d.as_deref()),
            Field::Array(n) => e.array(n.map(|n| n as usize)),
            Field::Null => e.buffer_null(),
            Field::Inline(d) => e.buffer_inline(d),
            Field::Arena(o, l) => e.buffer_arena(*o, *l as usize),
            Field::Reserved(l) => e.buffer_reserved(*l as usize),
            Field::Part(l, u, o) => e.buffer_part(*l as usize, *u as usize, *o as usize),
        }
    }
}

/// Reads with the given fields' shapes and says whether everything matched.
fn read(body: &[u8], fields: &[Field]) -> Result<bool, aviary_wire::DecodeError> {
    let mut d = Decoder::new(body);
    let mut same = true;
    for f in fields {
        same &= match f {
            Field::Word(v) => d.word()? == *v,
            Field::Bytes(b) => d.bytes()? == b,
            Field::Optional(b) => d.optional_bytes()? == b.as_deref(),
            Field::Array(n) => d.array()? == n.map(|n| n as usize),
            Field::Null => d.buffer()? == BufferRef::Null,
            Field::Inline(b) => d.buffer()? == BufferRef::Inline(b),
            Field::Arena(o, l) => d.buffer()? == BufferRef::Arena { offset: *o, length: *l as usize },
            Field::Reserved(l) => d.buffer()? == BufferRef::Reserved { length: *l as usize },
            Field::Part(l, u, o) => d.buffer()? == BufferRef::Part { union: *u, offset: *o, length: *l as usize },
        };
    }
    d.finish()?;
    Ok(same)
}

proptest! {
    #[test]
    fn fields_survive(fields in proptest::collection::vec(field(), 0..20)) {
        let mut e = Encoder::new();
        write(&mut e, &fields);
        let message = e.finish_request(RequestHeader { kind: 1, ..Default::default() }).to_vec();
        let (header, body) = RequestHeader::parse(&message).unwrap();
        prop_assert_eq!(header.length as usize, message.len());
        prop_assert_eq!(read(body, &fields), Ok(true));
    }

    #[test]
    fn every_truncation_is_noticed(fields in proptest::collection::vec(field(), 1..8)) {
        let mut e = Encoder::new();
        write(&mut e, &fields);
        let body = e.body();
        for end in 0..body.len() {
            prop_assert_ne!(read(&body[..end], &fields), Ok(true));
        }
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..200),
                          fields in proptest::collection::vec(field(), 0..20)) {
        let _ = read(&noise, &fields);
        let _ = RequestHeader::parse(&noise);
        let _ = ReplyHeader::parse(&noise);
        let _ = Hello::from_body(&noise);
        let _ = Welcome::from_body(&noise);
    }

    #[test]
    fn greetings_survive(flags in any::<u64>(), size in any::<u64>(), api in "\\PC{0,60}", text in "\\PC{0,60}",
                         environment in proptest::collection::vec(proptest::option::of(proptest::collection::vec(1..=u8::MAX, 0..100)), 0..64)) {
        let hello = Hello { wire_version: 1, flags, arena_size: size, api, environment, ..Default::default() };
        let bytes = hello.to_bytes();
        prop_assert_eq!(Hello::length(bytes.first_chunk::<PREFIX>().unwrap()), Ok(bytes.len()));
        prop_assert_eq!(Hello::from_body(&bytes[PREFIX..]), Ok(hello));
        let welcome = Welcome { status: 3, flags, text, ..Default::default() };
        let bytes = welcome.to_bytes();
        prop_assert_eq!(Welcome::length(bytes.first_chunk::<PREFIX>().unwrap()), Ok(bytes.len()));
        prop_assert!(Hello::length(bytes.first_chunk::<PREFIX>().unwrap()).is_err());
        prop_assert_eq!(Welcome::from_body(&bytes[PREFIX..]), Ok(welcome));
    }
}

/// Variables in a greeting are bounded, and a value with a zero would be another one on the server.
#[test]
fn greetings_with_too_many_variables_are_refused() {
    let read = |environment| Hello::from_body(&Hello { environment, ..Hello::default() }.to_bytes()[PREFIX..]);
    let without = Hello::default().to_bytes();
    assert!(Hello::from_body(&without[PREFIX..without.len() - 8]).is_ok(), "of a version that does not know them");
    assert!(read(vec![Some(vec![b'x'; 4096]); 2]).is_ok());
    assert!(read(vec![Some(vec![b'x'; 4096]), Some(vec![b'x'; 4097])]).is_err());
    assert!(read(vec![Some(b"a\0b".to_vec())]).is_err());
    assert_eq!(read(vec![None; 65]).map(|hello| hello.environment.len()), Ok(64), "the rest is not sent");
    let mut many = without[PREFIX..without.len() - 8].to_vec();
    many.extend(65u64.to_le_bytes());
    many.extend([0; 65 * 8]);
    assert!(Hello::from_body(&many).is_err());
}

#[test]
fn absurd_lengths_are_refused() {
    for word in [u64::MAX, u64::MAX << 3 | 1, (1 << 62) | 1] {
        let mut body = word.to_le_bytes().to_vec();
        body.extend([0; 16]);
        assert!(Decoder::new(&body).bytes().is_err());
        assert!(Decoder::new(&body).optional_bytes().is_err());
        assert!(Decoder::new(&body).buffer().is_err());
    }
    assert!(Decoder::new(&[0xff; 8]).array().is_err());
}
