//! The bodies of the fuzz targets on their seeds.

#[path = "../fuzz/decode.rs"]
mod decode;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn decode_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "decode", 50, decode::run);
}
