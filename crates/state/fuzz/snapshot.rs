//! Reads any bytes as a snapshot; the records of those that can be read go through a log.

use aviary_state::{Log, SnapshotReader};

const LOG_BYTES: usize = 1 << 20;

pub fn run(bytes: &[u8]) {
    let mut from = bytes;
    let Ok((mut reader, snapshot, _)) = SnapshotReader::begin(&mut from) else { return };
    while let Ok(Some(chunk)) = reader.state() {
        assert!(chunk.bytes.len() <= bytes.len());
    }
    let mut log = Log::new(LOG_BYTES);
    for record in snapshot.records {
        let ends: Vec<u64> = record.outputs.clone();
        let _ = log.keep(record);
        ends.into_iter().for_each(|id| log.object_ended(id));
    }
    log.collect();
    assert!(log.size().records <= bytes.len());
}
