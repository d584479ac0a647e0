//! Reads and writes of memory.

use super::Cases;
use crate::common::*;

const BYTES: [u8; 4] = [1, 2, 4, 8];

pub fn context(cases: &mut Cases) {
    for bytes in BYTES {
        for offset in [-8, -1, 80, 81, 4096, 32767, -32768] {
            let program = [load(bytes, 0, 1, offset), exit()];
            cases.program(
                format!("read {bytes} bytes at {offset} of the context"),
                "of the context, which has",
                &program,
            );
        }
        cases.program(
            format!("write {bytes} bytes to the context"),
            "read-only",
            &[mov(0, 0), store(bytes, 1, 8, 0), exit()],
        );
        cases.program(
            format!("put {bytes} bytes in the context"),
            "read-only",
            &[put(bytes, 1, 0, 1), mov(0, 0), exit()],
        );
    }
    for bytes in [4, 8] {
        let program = [mov(3, 1), atomic(bytes, 0, 1, 8, 3), mov(0, 0), exit()];
        cases.program(format!("add {bytes} bytes in the context"), "read-only", &program);
    }
    cases.program("read across fields", "across fields", &[load(4, 0, 1, 6), exit()]);
    cases.program("half a read past the context", "of the context", &[load(8, 0, 1, 76), exit()]);
    cases.program("a moved context", "of the context", &[alu(ADD, 1, 76), load(8, 0, 1, 0), exit()]);
    cases.program("a context moved back", "of the context", &[alu(SUB, 1, 8), load(8, 0, 1, 0), exit()]);
    cases.program("a wildly moved context", "without known bounds", &[alu(ADD, 1, i32::MAX), load(8, 0, 1, 0), exit()]);
    let program = [load(8, 3, 1, 0), alu(AND, 3, 8), alu_r(ADD, 1, 3), load(8, 0, 1, 0), exit()];
    cases.program("a context with an index", "not constant", &program);
    let program = [mov_r(3, 1), alu(ADD, 3, 8), put(8, 3, 0, 0), mov(0, 0), exit()];
    cases.program("write through a copy of the context", "read-only", &program);
}

pub fn stack(cases: &mut Cases) {
    for bytes in BYTES {
        for offset in [0, 8, -513, -520, 32760, -32768] {
            let read = [load(bytes, 0, 10, offset), exit()];
            cases.program(format!("read {bytes} bytes at {offset} of the stack"), "from the frame pointer", &read);
        }
        for offset in [0, -520, 64] {
            let write = [mov(0, 0), put(bytes, 10, offset, 1), exit()];
            cases.program(format!("write {bytes} bytes at {offset} of the stack"), "from the frame pointer", &write);
        }
        let unset = [load(bytes, 0, 10, -16), exit()];
        cases.program(format!("read {bytes} bytes that were never written"), "never written", &unset);
    }
    for bytes in [2, 4, 8] {
        let unaligned = [put(8, 10, -8, 0), put(8, 10, -16, 0), load(bytes, 0, 10, -9), exit()];
        cases.program(format!("read {bytes} bytes askew"), "not a multiple", &unaligned);
    }
    cases.program("read more than was written", "never written", &[put(4, 10, -8, 1), load(8, 0, 10, -8), exit()]);
    let one_path = [load(8, 3, 1, 0), jump(JEQ, 3, 0, 1), put(8, 10, -8, 1), load(8, 0, 10, -8), exit()];
    cases.program("written on one path only", "never written", &one_path);
    let moved = [mov_r(3, 10), alu(SUB, 3, 520), put(8, 3, 0, 1), mov(0, 0), exit()];
    cases.program("below the stack by arithmetic", "from the frame pointer", &moved);
    let wrapped = [mov_r(3, 10), alu(ADD, 3, i32::MIN), put(8, 3, 0, 1), mov(0, 0), exit()];
    cases.program("far below the stack", "without known bounds", &wrapped);
    let indexed =
        [load(8, 4, 1, 0), alu(AND, 4, 7), mov_r(3, 10), alu_r(SUB, 3, 4), put(1, 3, 0, 1), mov(0, 0), exit()];
    cases.program("the stack with an index", "not constant", &indexed);
    let unknown = [load(8, 4, 1, 0), mov_r(3, 10), alu_r(ADD, 3, 4), put(1, 3, 0, 1), mov(0, 0), exit()];
    cases.program("the stack with any index", "without known bounds", &unknown);
    cases.program("write the frame pointer", "r10 cannot be written", &[mov(10, 0), mov(0, 0), exit()]);
    cases.program("move the frame pointer", "r10 cannot be written", &[alu(SUB, 10, 64), mov(0, 0), exit()]);
    cases.program("load the frame pointer", "r10 cannot be written", &[load(8, 10, 1, 0), mov(0, 0), exit()]);
}

pub fn values(cases: &mut Cases) {
    for bytes in BYTES {
        let mut read = lookup();
        read.extend([load(bytes, 0, 0, 0), exit()]);
        cases.program(format!("read {bytes} bytes without a NULL test"), "may be NULL", &read);
        for offset in [-1, -8, 16, 17, 4096, -32768] {
            let body = [load(bytes, 0, 0, offset), exit()];
            cases.value(format!("read {bytes} bytes at {offset} of a value"), "of map `map0`", &body);
        }
    }
    cases.value("write past a value", "of map `map0`", &[put(8, 0, 12, 1), mov(0, 0), exit()]);
    cases.value("add past a value", "of map `map0`", &[mov(3, 1), atomic(8, 0, 0, 16, 3), mov(0, 0), exit()]);
    let mut write = lookup();
    write.extend([put(8, 0, 0, 1), mov(0, 0), exit()]);
    cases.program("write without a NULL test", "may be NULL", &write);
    let mut add = lookup();
    add.extend([mov(3, 1), atomic(8, 0, 0, 0, 3), mov(0, 0), exit()]);
    cases.program("add without a NULL test", "may be NULL", &add);
    let mut moved = lookup();
    moved.extend([alu(ADD, 0, 8), jump(JEQ, 0, 0, 1), load(8, 0, 0, 0), mov(0, 0), exit()]);
    cases.program("move before the NULL test", "may be NULL", &moved);
    let mut wrong = lookup();
    wrong.extend([jump(JNE, 0, 0, 2), load(8, 0, 0, 0), exit(), mov(0, 0), exit()]);
    cases.program("use the NULL", "as an address", &wrong);
    let mut low = lookup();
    low.extend([jump32(JEQ, 0, 0, 1), load(8, 0, 0, 0), mov(0, 0), exit()]);
    cases.program("test half of the address", "something else than NULL", &low);
    let mut other = lookup();
    other.extend([mov_r(6, 0)]);
    other.extend(lookup());
    other.extend([jump(JEQ, 0, 0, 1), load(8, 0, 6, 0), mov(0, 0), exit()]);
    cases.program("test another lookup", "may be NULL", &other);
    let mut once = lookup();
    once.extend([mov_r(6, 0), jump(JEQ, 6, 0, 1), mov(7, 1), load(8, 0, 6, 0), exit()]);
    cases.program("use after the paths met again", "as an address", &once);

    let index = |tests: &[Word]| {
        let mut body = vec![mov_r(6, 0)];
        body.extend_from_slice(tests);
        body.extend([alu_r(ADD, 6, 7), load(1, 0, 6, 0), exit()]);
        body
    };
    // The context is gone after the call: the index comes from the value itself.
    let from_value = load(8, 7, 0, 8);
    let indices: [(&str, &'static str, Vec<Word>); 12] = [
        ("any index", "without known bounds", vec![from_value]),
        ("an index one too large", "of map `map0`", vec![from_value, jump(JGT, 7, 16, 3)]),
        ("an index tested on one side", "without known bounds", vec![from_value, jump(JSGT, 7, 15, 3)]),
        ("an index tested on the other side", "without known bounds", vec![from_value, jump(JSLT, 7, 0, 3)]),
        ("an index whose low half was tested", "without known bounds", vec![from_value, jump32(JGT, 7, 15, 3)]),
        ("an index with the test reversed", "without known bounds", vec![from_value, jump(JLT, 7, 15, 3)]),
        ("an index multiplied after the test", "of map `map0`", vec![from_value, jump(JGT, 7, 15, 4), alu(MUL, 7, 2)]),
        ("an index shifted after the test", "of map `map0`", vec![from_value, jump(JGT, 7, 15, 4), alu(LSH, 7, 1)]),
        (
            "an index negated after the test",
            "of map `map0`",
            vec![from_value, jump(JGT, 7, 15, 4), raw(0x87, 7, 0, 0, 0)],
        ),
        (
            "an index made negative after the test",
            "of map `map0`",
            vec![from_value, jump(JGT, 7, 15, 4), alu(SUB, 7, 8)],
        ),
        ("an index tested for inequality", "without known bounds", vec![from_value, jump(JEQ, 7, 16, 3)]),
        ("a mask that is too wide", "of map `map0`", vec![from_value, alu(AND, 7, 31)]),
    ];
    for (name, because, tests) in indices {
        cases.value(name, because, &index(&tests));
    }
    cases.value(
        "an index loaded as a signed half",
        "without known bounds",
        &index(&[from_value, alu32(ARSH, 7, 31), alu(LSH, 7, 32)]),
    );
    let body = [mov_r(6, 0), alu(ADD, 6, 1 << 30), alu(ADD, 6, 1 << 30), load(8, 0, 6, 0), exit()];
    cases.value("an address moved further and further", "without known bounds", &body);
    cases.program("past a variable", "global variables", &[Variable(3, 0), load(8, 0, 3, 12), exit()]);
    cases.program("before a variable", "global variables", &[Variable(3, 0), load(8, 0, 3, -8), exit()]);
    cases.program("a variable far away", "global variables", &[Variable(3, 0x7fff_ffff), load(8, 0, 3, 0), exit()]);
    cases.program("write a constant", "writes to a constant", &[Constant(3, 0), put(8, 3, 0, 1), mov(0, 0), exit()]);
    let body = [Constant(3, 0), mov(4, 1), atomic(8, 0, 3, 0, 4), mov(0, 0), exit()];
    cases.program("add to a constant", "writes to a constant", &body);
    cases.program("read a map itself", "as an address", &[Map(3, 0), load(8, 0, 3, 0), exit()]);
    cases.program("write a map itself", "as an address", &[Map(3, 0), put(8, 3, 0, 0), mov(0, 0), exit()]);
    cases.program("an invented address", "as an address", &[mov(3, 4096), load(8, 0, 3, 0), exit()]);
    cases.program("NULL", "as an address", &[mov(3, 0), put(8, 3, 0, 1), mov(0, 0), exit()]);
    cases.program(
        "a number of the context as an address",
        "as an address",
        &[load(8, 3, 1, 0), load(8, 0, 3, 0), exit()],
    );
}

pub fn leaks(cases: &mut Cases) {
    cases.program("return the context", "not a number", &[mov_r(0, 1), exit()]);
    cases.program("return the frame pointer", "not a number", &[mov_r(0, 10), exit()]);
    cases.program("return a map", "not a number", &[Map(0, 0), exit()]);
    cases.program("return a variable's address", "not a number", &[Variable(0, 0), exit()]);
    let mut maybe = lookup();
    maybe.push(exit());
    cases.program("return what was found", "not a number", &maybe);
    cases.value("return a value's address", "not a number", &[exit()]);
    for (name, register) in [("the frame pointer", 10), ("a value's address", 0)] {
        let body = [store(8, 0, 0, register), mov(0, 0), exit()];
        cases.value(format!("store {name} in a map"), "must not leave", &body);
    }
    let program = [Variable(3, 0), store(8, 3, 0, 1), mov(0, 0), exit()];
    cases.program("store the context in a variable", "must not leave", &program);
    let program = [Variable(3, 0), atomic(8, 0, 3, 0, 1), mov(0, 0), exit()];
    cases.program("add the context to a variable", "combines memory with", &program);
    let program = [Variable(3, 0), mov_r(4, 10), atomic(8, 0xe1, 3, 0, 4), mov(0, 0), exit()];
    cases.program("exchange a variable for the frame pointer", "combines memory with", &program);
    let program = [Variable(3, 0), mov_r(0, 1), mov(4, 0), atomic(8, 0xf1, 3, 0, 4), exit()];
    cases.program("compare a variable with the context", "compares memory with", &program);
    let program = [store(8, 10, -8, 1), mov(3, 1), atomic(8, 1, 10, -8, 3), mov_r(0, 3), exit()];
    cases.program("add to an address on the stack", "changes an address", &program);
    cases.program("read half of an address", "part of an address", &[store(8, 10, -8, 1), load(4, 0, 10, -8), exit()]);
    cases.program("store half of an address", "stores a part", &[store(4, 10, -8, 1), load(4, 0, 10, -8), exit()]);
    let program = [store(8, 10, -8, 1), put(1, 10, -8, 0), load(8, 0, 10, -8), exit()];
    cases.program("an address with a byte overwritten", "never written", &program);
    cases.program("copy half of an address", "copies half", &[alu32_r(MOV, 0, 1), exit()]);
    for (name, operation) in
        [("and", AND), ("or", OR), ("xor", XOR), ("shift", RSH), ("multiply", MUL), ("divide", DIV)]
    {
        cases.program(format!("{name} an address"), "calculates with", &[mov_r(0, 10), alu(operation, 0, 8), exit()]);
    }
    cases.program("add in half an address", "calculates with", &[mov_r(0, 10), alu32(ADD, 0, 8), exit()]);
    cases.program("negate an address", "negates", &[mov_r(0, 10), raw(0x87, 0, 0, 0, 0), exit()]);
    cases.program("reorder an address", "reorders", &[mov_r(0, 10), raw(0xdc, 0, 0, 0, 64), exit()]);
    cases.program("the distance of two addresses", "calculates with", &[mov_r(0, 10), alu_r(SUB, 0, 1), exit()]);
    cases.program("the sum of two addresses", "calculates with", &[mov_r(0, 10), alu_r(ADD, 0, 1), exit()]);
    cases.program("a number less an address", "calculates with", &[mov(0, 0), alu_r(SUB, 0, 1), exit()]);
    cases.program("compare two addresses", "else than NULL", &[mov(0, 0), jump_r(JGT, 1, 10, 0), exit()]);
    cases.program("compare an address with a number", "else than NULL", &[mov(0, 0), jump(JGT, 1, 4096, 0), exit()]);
    cases.program("search for an address", "else than NULL", &[mov(0, 0), jump(JEQ, 1, 4096, 0), exit()]);
    cases.program("the bits of an address", "else than NULL", &[mov(0, 0), jump(JSET, 10, 8, 0), exit()]);
    cases.program("a number against an address", "else than NULL", &[mov(0, 0), jump_r(JGT, 0, 10, 0), exit()]);
}

pub fn unset(cases: &mut Cases) {
    for register in [0, 2, 3, 4, 5, 6, 7, 8, 9] {
        cases.program(format!("r{register} at the start"), "never set", &[mov_r(0, register), exit()]);
    }
    cases.program("return nothing", "never set", &[exit()]);
    cases.program("add to nothing", "never set", &[alu(ADD, 0, 1), exit()]);
    cases.program("add nothing", "never set", &[mov(0, 0), alu_r(ADD, 0, 5), exit()]);
    cases.program("store nothing", "never set", &[mov(0, 0), store(8, 10, -8, 5), exit()]);
    cases.program("store to nowhere", "as an address", &[mov(0, 0), put(8, 5, 0, 0), exit()]);
    cases.program("test nothing", "never set", &[mov(0, 0), jump(JEQ, 4, 0, 0), exit()]);
    cases.program("test against nothing", "never set", &[mov(0, 0), jump_r(JEQ, 0, 4, 0), exit()]);
    let one = [load(8, 3, 1, 0), jump(JEQ, 3, 0, 1), mov(0, 1), exit()];
    cases.program("set on one path only", "never set", &one);
    let other = [load(8, 3, 1, 0), jump(JGT, 3, 5, 2), mov(0, 1), goto(0), exit()];
    cases.program("set on the other path only", "never set", &other);
}
