//! The bodies of the fuzz targets on their seeds.

#[path = "../fuzz/object.rs"]
mod object;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn object_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "object", 100, object::run);
}
