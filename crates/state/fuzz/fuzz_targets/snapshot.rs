//! Reads any bytes as a snapshot; the records of those that can be read go through a log.
#![no_main]

use aviary_state::{Log, SnapshotReader};
use libfuzzer_sys::fuzz_target;

const LOG_BYTES: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
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
});
