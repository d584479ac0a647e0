//! Streaming accelerators against their golden models: uninterrupted, and paused and moved between two ports at random cycles.
//! `AVIARY_LONG=1` makes 200 moves of each accelerator instead of 10.

#[path = "../../card/tests/common/mod.rs"]
mod common;
mod golden;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aviary_card::Board;
use common::Client;
use golden::{Golden, MIB, STATE, bytes, check, kinds, mediator, root, run, start, uninterrupted};

const IMAGES: [&str; 2] = ["movable-1", "movable-2"];

fn accelerators() -> PathBuf {
    root().join("fpga/accelerators")
}

#[test]
fn jobs_end_with_the_golden_results_even_if_they_are_paused_and_moved() {
    let wanted = if std::env::var_os("AVIARY_LONG").is_some() { 200 } else { 10 };
    for image in IMAGES {
        let Some(mut mediator) = mediator(image) else { return };
        check(&mut mediator, &accelerators(), wanted).iter().for_each(|line| println!("{line}"));
    }
}

#[test]
fn saved_state_has_nothing_of_the_last_user_of_the_port() {
    for image in IMAGES {
        let Some(mut mediator) = mediator(image) else { return };
        for kind in kinds(&mediator) {
            let Some(secret) = golden::golden(&accelerators(), &kind.name, 1, 40) else { continue };
            uninterrupted(&mut mediator, &kind, &secret);
            let words = |bytes: &[u8]| -> Vec<u64> {
                bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
            };
            // Memory that is all zero, and registers of the kernel too.
            let client = Client::new(2 * MIB);
            let empty = Golden {
                registers: BTreeMap::new(),
                streams: secret.streams.clone(),
                input: "00".repeat(64 * 8000),
                output: String::new(),
            };
            let id = start(&mut mediator, &kind, &empty, &client);
            assert!(!run(&mut mediator, id, 1) || kind.name == "grn", "{}", kind.name);
            let port = mediator.status(id).unwrap().port;
            for other in 0..mediator.board().description().ports.len() {
                if other != port && mediator.move_to(id, other).is_ok() {
                    break;
                }
            }
            let state = words(&client.bytes()[STATE as usize..]);
            for word in words(&bytes(&secret.input)).into_iter().chain(words(&bytes(&secret.output))) {
                assert!(word == 0 || !state.contains(&word), "{}: {word:#x} of another client", kind.name);
            }
            mediator.close(id);
        }
    }
}
