//! Programs that must be accepted: a verifier that refuses everything is useless.

use crate::common::*;
use aviary_policy::{Context, Policy};
use std::path::Path;

fn run(name: &str, program: &[Word]) -> i64 {
    run_with(name, program, &Context { tenant: 5, session: 3, weight: 10, ..Context::default() })
}

/// Runs a program as machine code and interpreted; checks that both results are equal and returns it.
fn run_with(name: &str, program: &[Word], context: &Context) -> i64 {
    let object = object_of(program, &[USUAL]);
    let load = || Policy::from_object(&object).unwrap_or_else(|error| panic!("{name}: {error}"));
    let policy = load();
    assert!(policy.summary().machine_code || cfg!(not(target_arch = "x86_64")));
    let answer = policy.schedule(context);
    assert_eq!(answer, load().interpreted().schedule(context), "{name}");
    answer
}

#[test]
fn programs_are_accepted_and_right() {
    let cases: &[(&str, Vec<Word>, i64)] = &[
        ("a constant", vec![mov(0, 42), exit()], 42),
        ("a negative constant", vec![mov(0, -42), exit()], -42),
        ("a field", vec![load(8, 0, 1, 0), exit()], 5),
        ("a part of a field", vec![load(1, 0, 1, 24), exit()], 10),
        ("a field through a copy", vec![mov_r(3, 1), alu(ADD, 3, 8), load(8, 0, 3, 0), exit()], 3),
        ("the stack", vec![put(8, 10, -512, 9), load(4, 0, 10, -512), exit()], 9),
        ("a spilled address", vec![store(8, 10, -8, 1), load(8, 3, 10, -8), load(8, 0, 3, 8), exit()], 3),
        ("a spilled number", vec![load(8, 3, 1, 24), store(8, 10, -8, 3), load(8, 0, 10, -8), exit()], 10),
        ("a missing entry", found(&[mov(0, 1)]), 0),
        ("a variable", vec![Variable(3, 8), load(1, 0, 3, 7), exit()], 7),
        ("a variable that changes", vec![Variable(3, 0), put(8, 3, 8, 4), load(8, 0, 3, 8), exit()], 4),
        ("a constant variable", vec![Constant(3, 0), load(1, 0, 3, 15), exit()], 9),
        (
            "a checked index",
            vec![
                load(8, 3, 1, 8),
                jump(JGT, 3, 15, 5),
                Variable(4, 0),
                alu_r(ADD, 4, 3),
                load(1, 0, 4, 0),
                exit(),
                mov(0, 0),
                exit(),
            ],
            7,
        ),
        (
            "a masked index",
            vec![load(8, 3, 1, 8), alu(AND, 3, 15), Variable(4, 0), alu_r(ADD, 4, 3), load(1, 0, 4, 0), exit()],
            7,
        ),
        (
            "a remainder as an index",
            vec![load(8, 3, 1, 8), alu(MOD, 3, 16), Variable(4, 0), alu_r(ADD, 4, 3), load(1, 0, 4, 0), exit()],
            7,
        ),
        (
            "an index checked from both sides",
            vec![
                load(8, 3, 1, 8),
                jump(JSGT, 3, 15, 6),
                jump(JSLT, 3, 0, 5),
                Variable(4, 0),
                alu_r(ADD, 4, 3),
                load(1, 0, 4, 0),
                exit(),
                mov(0, 0),
                exit(),
            ],
            7,
        ),
        ("a tested divisor", vec![load(8, 3, 1, 8), mov(0, 12), jump(JEQ, 3, 0, 1), alu_r(DIV, 0, 3), exit()], 4),
        ("a constant divisor", vec![mov(0, 13), alu32(MOD, 0, 5), exit()], 3),
        ("a loop", vec![mov(3, 0), mov(0, 0), alu(ADD, 0, 3), alu(ADD, 3, 1), jump(JLT, 3, 100, -3), exit()], 300),
        (
            "a loop that counts to inequality",
            vec![mov(3, 10), mov(0, 0), alu(ADD, 0, 2), alu(ADD, 3, -1), jump(JNE, 3, 0, -3), exit()],
            20,
        ),
        (
            "a loop with a variable limit",
            vec![
                load(8, 4, 1, 8),
                mov(3, 0),
                mov(0, 0),
                jump(JGE, 3, 50, 4),
                jump_r(JGE, 3, 4, 3),
                alu(ADD, 3, 1),
                alu(ADD, 0, 7),
                goto(-5),
                exit(),
            ],
            21,
        ),
        (
            "two loops, one in the other",
            vec![
                mov(0, 0),
                mov(3, 0),
                mov(4, 0),
                alu(ADD, 0, 1),
                alu(ADD, 4, 1),
                jump(JLT, 4, 30, -3),
                alu(ADD, 3, 1),
                jump(JLT, 3, 30, -6),
                exit(),
            ],
            900,
        ),
        ("an exchange", vec![put(8, 10, -8, 3), mov(3, 4), atomic(8, 0xe1, 10, -8, 3), mov_r(0, 3), exit()], 3),
        (
            "compare and exchange",
            vec![put(8, 10, -8, 3), mov(0, 3), mov(3, 9), atomic(8, 0xf1, 10, -8, 3), load(8, 0, 10, -8), exit()],
            9,
        ),
        ("fetch and add", vec![put(8, 10, -8, 3), mov(3, 4), atomic(8, 1, 10, -8, 3), load(8, 0, 10, -8), exit()], 7),
        ("swapped bytes", vec![mov(0, 0x1234), raw(0xdc, 0, 0, 0, 16), exit()], 0x3412),
        ("a shift by a register", vec![mov(0, 1), mov(4, 5), alu_r(LSH, 0, 4), exit()], 32),
        ("a shift of the count's register", vec![mov(4, 5), mov(3, 1), alu_r(LSH, 4, 3), mov_r(0, 4), exit()], 10),
        ("signed comparison", vec![mov(3, -5), mov(0, 1), jump(JSLT, 3, 0, 1), mov(0, 2), exit()], 1),
        ("the time", vec![call(5), exit()], 0),
        ("an unknown resource", vec![mov(2, 77), call(100), exit()], 0),
        (
            "an entry made and found",
            {
                let mut program = vec![put(8, 10, -8, 0), put(8, 10, -24, 11), put(8, 10, -16, 12)];
                program.extend([
                    mov_r(2, 10),
                    alu(ADD, 2, -8),
                    mov_r(3, 10),
                    alu(ADD, 3, -24),
                    mov(4, 0),
                    Map(1, 0),
                    call(2),
                ]);
                program.extend(found(&[load(8, 0, 0, 8), exit()]));
                program
            },
            12,
        ),
        (
            "an entry removed that never was",
            {
                let mut program = lookup();
                program.pop();
                program.extend([call(3), exit()]);
                program
            },
            -2,
        ),
    ];
    assert!(cases.len() >= 20);
    for (name, program, expected) in cases {
        assert_eq!(run(name, program), *expected, "{name}");
    }
}

#[test]
fn sources_are_accepted() {
    let mut count = 0;
    for folder in ["tests/benign", "../../policies"] {
        for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "c") {
                Policy::load(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                count += 1;
            }
        }
    }
    assert!(count >= 10, "{count} sources");
}
