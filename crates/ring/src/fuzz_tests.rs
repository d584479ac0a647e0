//! The bodies of the fuzz targets on their seeds.

#[path = "../fuzz/block.rs"]
mod block;
#[path = "../fuzz/hostile_peer.rs"]
mod hostile_peer;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../fuzz/scribbler.rs"]
mod scribbler;

#[test]
fn hostile_peer_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "hostile_peer", 20, hostile_peer::run);
}

#[test]
fn scribbler_withstands_seeds_and_their_neighbours() {
    replay::replay(env!("CARGO_MANIFEST_DIR"), "scribbler", 20, scribbler::run);
}
