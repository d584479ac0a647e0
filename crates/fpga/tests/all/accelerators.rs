//! Accelerators against their golden models: uninterrupted, and paused and moved between two ports at random cycles.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::common::Client;
use crate::golden::{self, Golden, MIB, STATE, bytes, check, kinds, mediator, root, run, start, uninterrupted, words};
use aviary_card::Board;
use aviary_fpga::Error;

const IMAGES: [&str; 3] = ["movable-1", "movable-2", "movable-3"];

fn accelerators() -> PathBuf {
    root().join("fpga/accelerators")
}

/// Each kind of accelerator is saved and moved so many times.
fn pause_and_move(wanted: u64) {
    for image in IMAGES {
        let Some(mut mediator) = mediator(image) else { return };
        let checked = check(&mut mediator, &accelerators(), wanted);
        checked.iter().for_each(|line| println!("{}", line.as_ref().unwrap()));
        assert_eq!(checked.len(), kinds(&mediator).len(), "each accelerator of {image} has a golden model");
    }
}

#[test]
fn jobs_end_with_the_golden_results_even_if_they_are_paused_and_moved() {
    pause_and_move(10);
}

#[test]
#[ignore = "takes minutes: 200 pauses of each accelerator; the test above makes 10"]
fn jobs_end_with_the_golden_results_after_two_hundred_pauses() {
    pause_and_move(200);
}

/// A job of each kind goes from one card to another and back so many times.
fn move_between_cards(wanted: u64) {
    for image in IMAGES {
        let (Some(one), Some(other)) = (mediator(image), mediator(image)) else { return };
        let mut cards = [one, other];
        for kind in kinds(&cards[0]) {
            let (lines, _) = golden::usual_lines(&mut cards[0], &accelerators(), &kind).unwrap();
            let (mut moves, mut jobs) = (0, 0);
            while moves < wanted {
                jobs += 1;
                let job = golden::golden(&accelerators(), &kind.name, 100 + jobs, lines).unwrap();
                let client = Client::new(2 * MIB);
                let mut here = 0;
                let mut id = start(&mut cards[here], &kind, &job, &client);
                // Parts of some hundreds of cycles, which differ.
                while !run(&mut cards[here], id, 700 + (moves * 997 + jobs * 331) % 4001) {
                    let departed = cards[here].depart(id).unwrap();
                    assert_eq!(cards[here].slices_used(), 0);
                    here = 1 - here;
                    id = cards[here].arrive(departed, |_| true).unwrap();
                    moves += 1;
                }
                golden::compare(&mut cards[here], id, &kind, &job, &client);
                cards[here].close(id);
                assert!(jobs < 10 || moves > 0, "{}: jobs of {lines} lines are never moved", kind.name);
            }
            println!("{}: {moves} moves between two cards in {jobs} jobs of {lines} lines", kind.name);
        }
        for card in &cards {
            assert_eq!((card.slices_used(), card.board().escaped()), (0, 0));
        }
    }
}

#[test]
fn jobs_end_with_the_golden_results_after_moves_between_cards() {
    move_between_cards(5);
}

#[test]
#[ignore = "takes minutes: 50 moves of each accelerator; the test above makes 5"]
fn jobs_end_with_the_golden_results_after_fifty_moves_between_cards() {
    move_between_cards(50);
}

#[test]
fn accelerator_that_cannot_arrive_is_given_back() {
    let (Some(mut one), Some(mut other), Some(mut pair)) = (mediator(IMAGES[0]), mediator(IMAGES[0]), mediator("pair"))
    else {
        return;
    };
    let kind = kinds(&one).into_iter().find(|kind| kind.name == "aes").unwrap();
    let job = golden::golden(&accelerators(), "aes", 5, 400).unwrap();
    let client = Client::new(2 * MIB);
    let id = start(&mut one, &kind, &job, &client);
    run(&mut one, id, 1500);
    let departed = one.depart(id).unwrap();
    assert!(matches!(one.depart(id), Err(Error::Unknown)));
    // A card without such an accelerator, and one whose ports its tenant may not use.
    let (departed, error) = pair.arrive(departed, |_| true).unwrap_err();
    assert_eq!((error, pair.slices_used()), (Error::NoAccelerator, 0));
    let (departed, error) = other.arrive(*departed, |_| false).unwrap_err();
    assert_eq!((error, other.slices_used()), (Error::NoAccelerator, 0));
    let id = one.arrive(*departed, |_| true).unwrap();
    while !run(&mut one, id, 1000) {}
    golden::compare(&mut one, id, &kind, &job, &client);
    assert!(one.status(id).unwrap().preemptions > 0);
}

#[test]
fn saved_state_has_nothing_of_the_last_user_of_the_port() {
    for image in IMAGES {
        let Some(mut mediator) = mediator(image) else { return };
        for kind in kinds(&mediator) {
            let Some(secret) = golden::golden(&accelerators(), &kind.name, 1, 40) else { continue };
            uninterrupted(&mut mediator, &kind, &secret);
            // Memory that is all zero, and registers of the kernel too.
            let client = Client::new(2 * MIB);
            let empty = Golden {
                registers: BTreeMap::new(),
                streams: secret.streams.clone(),
                input: "00".repeat(64 * 8000),
                output: String::new(),
                results: BTreeMap::new(),
            };
            let id = start(&mut mediator, &kind, &empty, &client);
            // Those have nothing to do without registers of their own.
            let ends = ["grn", "ll", "mb"].contains(&kind.name.as_str());
            assert!(!run(&mut mediator, id, 1) || ends, "{}", kind.name);
            let port = mediator.status(id).unwrap().port;
            for other in 0..mediator.board().description().ports.len() {
                if other != port && mediator.move_to(id, other).is_ok() {
                    break;
                }
            }
            let state = words(&client.bytes()[STATE as usize..]);
            for word in words(&bytes(&secret.input)).into_iter().chain(words(&bytes(&secret.output))) {
                // A kernel begins with zeros, or with ones where a number is not known yet.
                let begins = [word as u32, (word >> 32) as u32].iter().all(|half| [0, u32::MAX].contains(half));
                assert!(begins || !state.contains(&word), "{}: {word:#x} of another client", kind.name);
            }
            mediator.close(id);
        }
    }
}
