//! The bodies of the fuzz targets on their seeds.

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../fuzz/vfio.rs"]
mod vfio;

#[test]
fn vfio_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "vfio", 400, vfio::run);
}
