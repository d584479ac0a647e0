//! The bodies of the fuzz targets on their seeds.

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../fuzz/snapshot.rs"]
mod snapshot;

#[test]
fn snapshot_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "snapshot", 500, snapshot::run);
}
