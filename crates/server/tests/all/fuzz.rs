//! The bodies of the fuzz targets on their seeds.

#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../fuzz/requests.rs"]
mod requests;

#[test]
fn requests_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "requests", 20, requests::run);
}
