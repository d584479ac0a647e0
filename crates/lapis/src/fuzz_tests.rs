//! The bodies of the fuzz targets on their seeds.

#[path = "../fuzz/parse.rs"]
mod parse;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn parse_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "parse", 100, parse::run);
}
