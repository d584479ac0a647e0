//! The bodies of the fuzz targets on their seeds.

#[path = "../fuzz/frames.rs"]
mod frames;
#[path = "../fuzz/records.rs"]
mod records;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn frames_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "frames", 50, frames::run);
}

#[test]
fn records_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "records", 200, records::run);
}
