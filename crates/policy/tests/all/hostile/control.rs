//! Loops, jumps, calls, instructions.

use super::Cases;
use crate::common::*;

pub fn loops(cases: &mut Cases) {
    cases.program("a jump to itself", "may never end", &[mov(0, 0), goto(-1)]);
    cases.program("an endless loop", "may never end", &[mov(0, 0), mov(3, 1), goto(-2)]);
    cases.program(
        "an endless loop with an exit beside it",
        "may never end",
        &[load(8, 3, 1, 0), mov(0, 0), jump(JEQ, 3, 0, 1), jump(JNE, 3, 0, -2), exit()],
    );
    cases.program("a step of 0", "may never end", &[mov(0, 0), alu(ADD, 0, 0), jump(JLT, 0, 10, -2), exit()]);
    cases.program("a step over the end", "loop", &[mov(0, 0), alu(ADD, 0, 2), jump(JNE, 0, 9, -2), exit()]);
    cases.program("a step away from the end", "loop", &[mov(0, 5), alu(ADD, 0, 1), jump(JNE, 0, 0, -2), exit()]);
    cases.program("a million rounds", "loop", &[mov(0, 0), alu(ADD, 0, 1), jump(JLT, 0, 1_000_000, -2), exit()]);
    cases.program("2^31 rounds", "loop", &[mov(0, 0), alu(ADD, 0, 1), jump(JLT, 0, i32::MAX, -2), exit()]);
    let unknown = [load(8, 3, 1, 8), mov(0, 0), alu(ADD, 0, 1), jump_r(JLT, 0, 3, -2), exit()];
    cases.program("as many rounds as the tenant says", "loop", &unknown);
    let nested = [
        mov(0, 0),
        mov(3, 0),
        mov(4, 0),
        alu(ADD, 4, 1),
        jump(JLT, 4, 1000, -2),
        alu(ADD, 3, 1),
        jump(JLT, 3, 1000, -5),
        exit(),
    ];
    cases.program("a thousand times a thousand rounds", "loop", &nested);
    cases.value("until a value changes", "may never end", &[load(8, 3, 0, 0), jump(JNE, 3, 77, -2), mov(0, 0), exit()]);
    let mut again = vec![mov(6, 0)];
    again.extend(lookup());
    again.extend([jump(JEQ, 0, 0, -7), mov(0, 0), exit()]);
    cases.program("until an entry appears", "loop", &again);
    let calls = [call(5), jump(JNE, 0, 3, -2), exit()];
    cases.program("until a time", "may never end", &calls);
    let mut branches = vec![load(8, 6, 1, 0), mov(0, 0)];
    for bit in 0..60 {
        branches.extend([mov_r(3, 6), alu(AND, 3, 1 << (bit % 30)), jump(JEQ, 3, 0, 1)]);
        branches.extend([alu(ADD, 0, 1 << (bit % 31)), alu(RSH, 6, 1)]);
    }
    branches.extend([alu(ADD, 0, 1), goto(-2), exit()]);
    branches.pop();
    cases.program("2^60 paths to an endless loop", "loop", &branches);
    // Always new states, which differ only in the last slots that are compared.
    let mut costly: Vec<Word> = (1..=64).map(|slot| put(8, 10, -8 * slot, i32::from(slot))).collect();
    costly.extend([load(8, 6, 1, 0), put(8, 10, -504, 0), put(8, 10, -512, 0)]);
    let start = costly.len() as i16;
    costly.extend([mov_r(3, 6), alu(AND, 3, 1), jump(JEQ, 3, 0, 3)]);
    costly.extend([load(8, 3, 10, -512), alu(ADD, 3, 1), store(8, 10, -512, 3)]);
    costly.extend([load(8, 3, 10, -504), alu(ADD, 3, 1), store(8, 10, -504, 3)]);
    let back = start - (costly.len() as i16 + 1);
    costly.extend([jump(JLT, 3, 1200, back), mov(0, 0), exit()]);
    cases.program("many paths, costly to compare", "more paths than", &costly);
    cases.program("through the back door", "never set", &[goto(2), mov_r(0, 5), exit(), goto(-3)]);
}

pub fn helpers(cases: &mut Cases) {
    for number in [0, 4, 6, 7, 8, 12, 14, 25, 35, 99, 101, 65535, i32::MAX] {
        cases.program(format!("helper {number}"), "there is no helper", &[call(number), mov(0, 0), exit()]);
    }
    for number in [-1, i32::MIN] {
        cases.program(format!("helper {number}"), "there is no helper", &[call(number), mov(0, 0), exit()]);
    }
    let key = [put(8, 10, -8, 0), mov_r(2, 10), alu(ADD, 2, -8)];
    let with = |first: &[Word]| [&key[..], first, &[call(1), mov(0, 0), exit()]].concat();
    cases.program("a number as a map", "address of a map", &with(&[mov(1, 0)]));
    cases.program("a context as a map", "address of a map", &with(&[]));
    cases.program("the stack as a map", "address of a map", &with(&[mov_r(1, 10)]));
    cases.program("a variable as a map", "address of a map", &with(&[Variable(1, 0)]));
    cases.program("a moved map", "calculates with a map", &with(&[Map(1, 0), alu(ADD, 1, 1)]));
    let lookup_by = |second: &[Word]| [second, &[Map(1, 0), call(1), mov(0, 0), exit()]].concat();
    cases.program("a number as a key", "must be the address", &lookup_by(&[mov(2, 0)]));
    cases.program("no key", "never set", &lookup_by(&[]));
    cases.program("a map as a key", "must be the address", &lookup_by(&[Map(2, 1)]));
    cases.program("a key that was never written", "never written", &lookup_by(&[mov_r(2, 10), alu(ADD, 2, -8)]));
    cases.program("half a key", "never written", &lookup_by(&[put(4, 10, -8, 1), mov_r(2, 10), alu(ADD, 2, -8)]));
    cases.program(
        "a key over the end of the stack",
        "not within the stack",
        &lookup_by(&[put(8, 10, -8, 0), mov_r(2, 10), alu(ADD, 2, -4)]),
    );
    cases.program("a key below the stack", "not within the stack", &lookup_by(&[mov_r(2, 10), alu(ADD, 2, -516)]));
    cases.program("a key past the context", "of the context", &lookup_by(&[mov_r(2, 1), alu(ADD, 2, 80)]));
    cases.program("a key past the variables", "global variables", &lookup_by(&[Variable(2, 12)]));
    cases.program(
        "an address as a key",
        "part of an address",
        &lookup_by(&[store(8, 10, -8, 1), mov_r(2, 10), alu(ADD, 2, -8)]),
    );
    let mut null = lookup();
    null.extend([mov_r(2, 0), Map(1, 0), call(1), mov(0, 0), exit()]);
    cases.program("a key that may be NULL", "may be NULL", &null);
    let update = |rest: &[Word]| [&key[..], &[Map(1, 0)], rest, &[call(2), exit()]].concat();
    cases.program("no value", "never set", &update(&[mov(4, 0)]));
    cases.program(
        "a value that was never written",
        "never written",
        &update(&[mov_r(3, 10), alu(ADD, 3, -32), mov(4, 0)]),
    );
    cases.program(
        "a value as large as the key",
        "never written",
        &update(&[put(8, 10, -32, 0), mov_r(3, 10), alu(ADD, 3, -32), mov(4, 0)]),
    );
    cases.program(
        "a value past the stack",
        "not within the stack",
        &update(&[mov_r(3, 10), alu(ADD, 3, -8), mov(4, 0)]),
    );
    cases.program("a number as a value", "must be the address", &update(&[mov(3, 1), mov(4, 0)]));
    cases.program("no flags", "never set", &update(&[Variable(3, 0)]));
    cases.program("an address as flags", "wants a number", &update(&[Variable(3, 0), mov_r(4, 10)]));
    cases.program(
        "an address inside of a value",
        "part of an address",
        &update(&[put(8, 10, -32, 0), store(8, 10, -24, 10), mov_r(3, 10), alu(ADD, 3, -32), mov(4, 0)]),
    );
    cases.program("an amount of nothing", "wants the context", &[mov(1, 0), mov(2, 1), call(100), exit()]);
    cases.program("an amount of a moved context", "wants the context", &[alu(ADD, 1, 8), mov(2, 1), call(100), exit()]);
    cases.program("an amount of the stack", "wants the context", &[mov_r(1, 10), mov(2, 1), call(100), exit()]);
    cases.program("an amount of no resource", "never set", &[call(100), exit()]);
    cases.program("an amount of an address", "wants a number", &[mov_r(2, 10), call(100), exit()]);
    for register in 1..6 {
        let program = [call(5), mov_r(0, register), exit()];
        cases.program(format!("r{register} after a call"), "never set", &program);
    }
    cases.program("the context after a call", "never set", &[call(5), load(8, 0, 1, 0), exit()]);
}

pub fn divisions(cases: &mut Cases) {
    for (name, operation) in [("divide", DIV), ("remainder", MOD)] {
        cases.program(format!("{name} by 0"), "divides by 0", &[mov(0, 1), alu(operation, 0, 0), exit()]);
        cases.program(format!("{name} by 0 in 32 bits"), "divides by 0", &[mov(0, 1), alu32(operation, 0, 0), exit()]);
        let by_register = [load(8, 3, 1, 8), mov(0, 1), alu_r(operation, 0, 3), exit()];
        cases.program(format!("{name} by anything"), "may be 0", &by_register);
        let by_half = [load(8, 3, 1, 8), mov(0, 1), jump(JEQ, 3, 0, 1), alu32_r(operation, 0, 3), exit()];
        cases.program(format!("{name} by the low half of a number that is not 0"), "may be 0", &by_half);
        let by_zero = [mov(3, 0), mov(0, 1), alu_r(operation, 0, 3), exit()];
        cases.program(format!("{name} by a register that is 0"), "may be 0", &by_zero);
        let at_most = [load(8, 3, 1, 8), mov(0, 1), jump(JGT, 3, 9, 1), alu_r(operation, 0, 3), exit()];
        cases.program(format!("{name} by something below 10"), "may be 0", &at_most);
        let wrong = [load(8, 3, 1, 8), mov(0, 1), jump(JNE, 3, 0, 1), alu_r(operation, 0, 3), exit()];
        cases.program(format!("{name} with the test reversed"), "may be 0", &wrong);
        let after = [load(8, 3, 1, 8), mov(0, 1), jump(JEQ, 3, 0, 2), alu(AND, 3, 6), alu_r(operation, 0, 3), exit()];
        cases.program(format!("{name} by bits of a number that is not 0"), "may be 0", &after);
        let high = [mov(3, 1), alu(LSH, 3, 32), mov(0, 1), alu32_r(operation, 0, 3), exit()];
        cases.program(format!("{name} by 2^32 in 32 bits"), "may be 0", &high);
        let address = [mov(0, 1), alu_r(operation, 0, 10), exit()];
        cases.program(format!("{name} by an address"), "calculates with", &address);
    }
}

pub fn jumps(cases: &mut Cases) {
    for by in [2, 100, 32767, -3, -100, -32768] {
        cases.program(format!("goto {by}"), "out of the program", &[mov(0, 0), goto(by), exit()]);
        let conditional = [mov(0, 0), jump(JEQ, 0, 1, by), exit()];
        cases.program(format!("if ... goto {by}"), "out of the program", &conditional);
    }
    let middle = [mov(0, 0), jump(JEQ, 0, 0, 1), Variable(3, 0), exit()];
    cases.program("into the middle of an address", "middle of a 16-byte load", &middle);
    let back = [Variable(3, 0), mov(0, 0), jump(JEQ, 0, 0, -3), exit()];
    cases.program("back into the middle of an address", "middle of a 16-byte load", &back);
    cases.program("no exit", "runs past its end", &[mov(0, 0)]);
    cases.program("no exit on one path", "runs past its end", &[mov(0, 0), jump(JEQ, 0, 0, 1), exit(), mov(0, 1)]);
    cases.program("a call at the end", "runs past its end", &[call(5)]);
    cases.program("an address at the end", "runs past its end", &[mov(0, 0), Variable(3, 0)]);
    let half = [mov(0, 0), exit(), raw(0x18, 0, 0, 0, 0)];
    cases.program("half of an address at the end", "second half", &half);
    cases.program("dead code", "no path leads", &[mov(0, 0), exit(), mov(0, 1), exit()]);
    cases.program("a dead loop", "no path leads", &[mov(0, 0), exit(), goto(-1)]);
    cases.program("code behind a jump", "no path leads", &[mov(0, 0), goto(1), load(8, 0, 0, 0), exit()]);
    cases.program("dead code that jumps in", "no path leads", &[mov(0, 0), exit(), put(8, 10, 8, 0), goto(-3)]);
}

pub fn opcodes(cases: &mut Cases) {
    let end = [mov(0, 0), exit()];
    let with = |word: Word| [&[word], &end[..]].concat();
    // Packet loads, signed loads, 32-bit calls and exits, and undefined opcodes.
    for opcode in [
        0x00, 0x08, 0x10, 0x20, 0x28, 0x30, 0x38, 0x40, 0x48, 0x50, 0x58, 0x81, 0x89, 0x91, 0x99, 0xa1, 0xc2, 0xe3,
        0x8d, 0x0d, 0x06, 0x0e, 0x86, 0x96, 0xe5, 0xf5, 0xe6, 0xe4, 0xef, 0xf4, 0xff, 0xdf, 0xe7,
    ] {
        cases.program(format!("opcode {opcode:#04x}"), "not in the instruction set", &with(raw(opcode, 0, 0, 0, 0)));
    }
    for register in [11, 12, 15] {
        cases.program(format!("write r{register}"), "only the registers", &with(mov(register, 0)));
        cases.program(format!("read r{register}"), "only the registers", &with(mov_r(0, register)));
    }
    for bits in [32, 33, 64, -1] {
        cases.program(format!("shift 32 bits by {bits}"), "has 32 bits", &[mov(0, 1), alu32(LSH, 0, bits), exit()]);
    }
    for (name, operation) in [("left", LSH), ("right", RSH), ("right, signed,", ARSH)] {
        cases.program(format!("shift {name} by 64"), "has 64 bits", &[mov(0, 1), alu(operation, 0, 64), exit()]);
        cases.program(format!("shift {name} by -1"), "has 64 bits", &[mov(0, 1), alu(operation, 0, -1), exit()]);
    }
    for bits in [0, 8, 24, 128, -16] {
        cases.program(format!("reorder {bits} bits"), "byte order", &[mov(0, 1), raw(0xdc, 0, 0, 0, bits), exit()]);
    }
    for operation in [2, 0x10, 0x41 | 2, 0xe0, 0xf0, 0xff, -1] {
        let program = [mov(3, 1), put(8, 10, -8, 0), atomic(8, operation, 10, -8, 3), mov(0, 0), exit()];
        cases.program(format!("atomic operation {operation:#x}"), "no atomic operation", &program);
    }
    let unused = "does not use";
    cases.program("signed division", unused, &[mov(0, 4), raw(0x37, 0, 0, 1, 2), exit()]);
    cases.program("a move with sign extension", unused, &[mov(3, 4), raw(0xbf, 0, 3, 8, 0), exit()]);
    cases.program("an exit with a value", unused, &[mov(0, 0), raw(0x95, 0, 0, 0, 1)]);
    cases.program("a jump with a register", unused, &[mov(0, 0), raw(0x05, 1, 0, 0, 0), exit()]);
    cases.program("a load with a constant", unused, &[raw(0x79, 0, 1, 0, 5), exit()]);
    cases.program("a constant with a register", unused, &[raw(0xb7, 0, 3, 0, 5), exit()]);
    cases.program("a register with a constant", unused, &[mov(3, 0), raw(0xbf, 0, 3, 0, 5), exit()]);
    cases.program("a call with an offset", unused, &[raw(0x85, 0, 0, 1, 5), exit()]);
    cases.program(
        "a call of the policy's own function",
        "always_inline",
        &[raw(0x85, 0, 1, 0, 1), exit(), mov(0, 0), exit()],
    );
    cases.program("recursion", "always_inline", &[raw(0x85, 0, 1, 0, -1), exit()]);
    cases.program("a call of a kernel function", "calls a kernel function", &[raw(0x85, 0, 2, 0, 5), exit()]);
    cases.program("a call without a kind", "calls a kernel function", &[raw(0x85, 0, 9, 0, 5), exit()]);
    for kind in 1..7 {
        let program = [raw(0x18, 3, kind, 0, 0), Word::Plain([0; 8]), mov(0, 0), exit()];
        cases.program(format!("an address of kind {kind}"), "that the object does not have", &program);
    }
    let program = [raw(0x18, 3, 0, 0, 0), raw(0xb7, 0, 0, 0, 0), mov(0, 0), exit()];
    cases.program("an instruction as the half of an address", unused, &program);
    cases.program("an address into r10", "r10 cannot be written", &[Variable(10, 0), mov(0, 0), exit()]);
}
