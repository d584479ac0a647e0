use proptest::prelude::*;

use super::*;

fn content(store: &mut Store) -> impl FnMut(&[u8]) -> Content + '_ {
    |bytes| store.add(bytes)
}

fn sample(store: &mut Store) -> Snapshot {
    let mut add = content(store);
    let record = Record {
        function: 7,
        effect: Effect::Changes,
        owners: vec![Owner::Object(5), Owner::Session, Owner::Thread(3)],
        key: vec![1, 2],
        inputs: vec![9],
        outputs: vec![0, 5],
        request: add(&[1; 40]),
        blocks: vec![Block { offset: 4096, content: add(&[2; 2 * CHUNK_BYTES + 1]) }],
        same: vec![11],
        callbacks: vec![0, 3],
        current: 5,
    };
    let holding = Holding { resource: 1, devices: vec!["first".into(), "second".into()], amount: 1 << 40 };
    Snapshot {
        identity: Identity { api: "testapi".into(), spec_hash: 99 },
        slots: vec![Slot { index: 0, generation: 3 }, Slot { index: 1, generation: 1 }],
        free: vec![1],
        guest_slots: vec![Slot { index: 1 << 31 | 5, generation: 2 }],
        objects: vec![ObjectImage {
            id: 5,
            references: 2,
            borrowed: true,
            ends_with: vec![9],
            identity: Some("device".into()),
            holdings: vec![holding.clone()],
        }],
        records: vec![record],
        unbound: vec![holding.clone()],
        kept: vec![(4, vec![holding])],
        handles: 64,
        log: 1 << 16,
    }
}

fn written() -> (Snapshot, Vec<u8>) {
    let (mut store, mut bytes) = (Store::default(), Vec::new());
    let snapshot = sample(&mut store);
    let mut writer = SnapshotWriter::begin(&mut bytes, &snapshot, &store).unwrap();
    writer.state(5, 0, &[1, 2, 3]).unwrap();
    writer.state(5, 3, &[4, 5, 6]).unwrap();
    writer.end().unwrap();
    (snapshot, bytes)
}

fn read(bytes: &[u8]) -> Result<(Snapshot, Vec<StateChunk>), FormatError> {
    let mut from = bytes;
    let (mut reader, snapshot, _) = SnapshotReader::begin(&mut from)?;
    let mut chunks = Vec::new();
    while let Some(chunk) = reader.state()? {
        chunks.push(chunk);
    }
    Ok((snapshot, chunks))
}

#[test]
fn a_snapshot_survives() {
    let (snapshot, bytes) = written();
    let (again, chunks) = read(&bytes).unwrap();
    assert_eq!(again, snapshot);
    let chunks: Vec<_> = chunks.into_iter().map(|chunk| (chunk.id, chunk.offset, chunk.bytes)).collect();
    assert_eq!(chunks, [(5, 0, vec![1, 2, 3]), (5, 3, vec![4, 5, 6])]);
}

#[test]
fn a_snapshot_that_was_cut_is_refused() {
    let (_, bytes) = written();
    for length in (0..bytes.len()).step_by(997).chain([bytes.len() - 1]) {
        assert!(read(&bytes[..length]).is_err(), "{length}");
    }
}

#[test]
fn a_frame_says_no_more_than_there_is() {
    let mut bytes = MAGIC.to_vec();
    bytes.push(kind::HEAD);
    bytes.extend_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(read(&bytes), Err(FormatError::Value { what: "the length of a frame", .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_changed_byte_is_noticed(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let (_, mut bytes) = written();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(read(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut whole = MAGIC.to_vec();
        whole.push(kind::HEAD);
        whole.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        whole.extend_from_slice(&bytes);
        let _ = read(&whole);
    }
}
