//! At least 200 policies that want to do harm: every one is refused, for the right reason, without a crash and soon.

mod common;

use aviary_policy::{Policy, PolicyError};
use common::*;
use object::write::SymbolSection;
use object::{SectionKind, SymbolKind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time for one refusal.
const PATIENCE: Duration = Duration::from_secs(1);

struct Case {
    name: String,
    /// A part of the message.
    because: &'static str,
    object: Vec<u8>,
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn object(&mut self, name: impl Into<String>, because: &'static str, object: Vec<u8>) {
        self.0.push(Case { name: name.into(), because, object });
    }

    fn program(&mut self, name: impl Into<String>, because: &'static str, program: &[Word]) {
        self.object(name, because, object_of(program, &[USUAL, [2, 4, 8, 4, 0], [0, 4, 8, 4, 1]]));
    }

    /// With the value of a map in r0.
    fn value(&mut self, name: impl Into<String>, because: &'static str, body: &[Word]) {
        self.program(name, because, &found(body));
    }
}

const BYTES: [u8; 4] = [1, 2, 4, 8];

fn context(cases: &mut Cases) {
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

fn stack(cases: &mut Cases) {
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
        cases.program(format!("read {bytes} bytes that nobody wrote"), "never written", &unset);
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

fn values(cases: &mut Cases) {
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

fn loops(cases: &mut Cases) {
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
    // Ever new states that differ only in the last slots that are compared.
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

fn helpers(cases: &mut Cases) {
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
    cases.program("a key that nobody wrote", "never written", &lookup_by(&[mov_r(2, 10), alu(ADD, 2, -8)]));
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
    cases.program("a value that nobody wrote", "never written", &update(&[mov_r(3, 10), alu(ADD, 3, -32), mov(4, 0)]));
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

fn maps(cases: &mut Cases) {
    let nothing = [mov(0, 0), exit()];
    let declared = |maps: &[Definition]| object_of(&nothing, maps);
    cases.object("17 maps", "section `maps`", declared(&[USUAL; 17]));
    for (name, because, map) in [
        ("a huge map", "at most 65536 entries", [1, 8, 8, u32::MAX, 0]),
        ("a map a bit too large", "at most 65536 entries", [1, 8, 8, 65537, 0]),
        ("a key of 1 byte", "4 or 8 bytes", [1, 1, 8, 8, 0]),
        ("a key of 3 bytes", "4 or 8 bytes", [1, 3, 8, 8, 0]),
        ("a key of 16 bytes", "4 or 8 bytes", [1, 16, 8, 8, 0]),
        ("a huge key", "4 or 8 bytes", [1, u32::MAX, 8, 8, 0]),
        ("a value of 7 bytes", "a value has", [1, 8, 7, 8, 0]),
        ("a value of 72 bytes", "a value has", [1, 8, 72, 8, 0]),
        ("a huge value", "a value has", [1, 8, u32::MAX, 8, 0]),
        ("a value and entries whose product overflows", "a value has", [1, 8, 0x8000_0000, 0x8000_0000, 0]),
        ("an unknown type", "no map type", [3, 8, 8, 8, 0]),
        ("another unknown type", "no map type", [u32::MAX, 8, 8, 8, 0]),
        ("unknown flags", "unknown flags", [1, 8, 8, 8, 2]),
        ("all flags", "unknown flags", [1, 8, 8, 8, u32::MAX]),
        ("too much for each tenant", "for each tenant", [1, 8, 64, 65536, 1]),
    ] {
        cases.object(name, because, declared(&[map]));
    }
    cases.object("maps that are too large together", "at most 16777216", declared(&[[1, 8, 64, 65536, 0]; 5]));
    cases.object("many maps of a tenant", "for each tenant", declared(&[[1, 8, 64, 513, 1]; 2]));
    let mut half = Builder::new(&[USUAL]);
    let section = half.object.add_section(vec![], b".data2".to_vec(), SectionKind::Data);
    half.object.append_section_data(section, &[0; 8], 4);
    let other = symbol("other", 0, 8, SymbolKind::Data, SymbolSection::Section(section));
    let other = half.object.add_symbol(other);
    half.function("schedule", &[Word::Plain([0x18, 3, 0, 0, 0, 0, 0, 0]), Word::Plain([0; 8]), mov(0, 0), exit()]);
    half.relocate(0, other, 1);
    cases.object("an address in another section", "neither a map nor a global variable", half.finish());
    for by in [4u8, 19, 21, 40] {
        let mut between = Builder::new(&[USUAL, USUAL]);
        between.function("schedule", &[Map(3, 0), mov(0, 0), exit()]);
        let mut object = between.finish();
        let at = object.windows(4).position(|bytes| bytes == [0x18, 3, 0, 0]).expect("the load");
        object[at + 4] = by;
        cases.object(format!("an address {by} bytes into the maps"), "lies between two maps", object);
    }
    let mut twins = Builder::new(&[]);
    let section = twins.map_section;
    for at in [0, 20] {
        twins.object.append_section_data(section, &[0; 20], 4);
        twins.object.add_symbol(symbol("twin", at, 20, SymbolKind::Data, SymbolSection::Section(section)));
    }
    twins.function("schedule", &nothing);
    cases.object("two maps of one name", "two of this name", twins.finish());
}

fn leaks(cases: &mut Cases) {
    cases.program("return the context", "no number", &[mov_r(0, 1), exit()]);
    cases.program("return the frame pointer", "no number", &[mov_r(0, 10), exit()]);
    cases.program("return a map", "no number", &[Map(0, 0), exit()]);
    cases.program("return a variable's address", "no number", &[Variable(0, 0), exit()]);
    let mut maybe = lookup();
    maybe.push(exit());
    cases.program("return what was found", "no number", &maybe);
    cases.value("return a value's address", "no number", &[exit()]);
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

fn divisions(cases: &mut Cases) {
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

fn jumps(cases: &mut Cases) {
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

fn opcodes(cases: &mut Cases) {
    let end = [mov(0, 0), exit()];
    let with = |word: Word| [&[word], &end[..]].concat();
    // Packet loads, signed loads, 32-bit calls and exits, and what nobody has defined.
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
    cases.program("a call of a kernel function", "function of the kernel", &[raw(0x85, 0, 2, 0, 5), exit()]);
    cases.program("a call without a kind", "function of the kernel", &[raw(0x85, 0, 9, 0, 5), exit()]);
    for kind in 1..7 {
        let program = [raw(0x18, 3, kind, 0, 0), Word::Plain([0; 8]), mov(0, 0), exit()];
        cases.program(format!("an address of kind {kind}"), "that the object does not have", &program);
    }
    let program = [raw(0x18, 3, 0, 0, 0), raw(0xb7, 0, 0, 0, 0), mov(0, 0), exit()];
    cases.program("an instruction as the half of an address", unused, &program);
    cases.program("an address into r10", "r10 cannot be written", &[Variable(10, 0), mov(0, 0), exit()]);
}

fn unset(cases: &mut Cases) {
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

fn objects(cases: &mut Cases) {
    let good = object_of(&found(&[load(8, 0, 0, 0), exit()]), &[USUAL]);
    assert!(Policy::from_object(&good).is_ok(), "what is spoilt below is good before");
    let object = "not a usable";
    for part in 0..24 {
        let length = good.len() * part / 24;
        cases.object(format!("cut off after {length} bytes"), object, good[..length].to_vec());
    }
    cases.object("nothing", object, Vec::new());
    cases.object("a text", object, b"int schedule() { return 0; }".to_vec());
    cases.object("too long", "a policy has at most", vec![0x7f; 5 << 20]);
    let patched = |at: usize, bytes: &[u8]| {
        let mut object = good.clone();
        object[at..at + bytes.len()].copy_from_slice(bytes);
        object
    };
    cases.object("for x86-64", "another machine", patched(18, &[62, 0]));
    cases.object("for no machine", "another machine", patched(18, &[0, 0]));
    cases.object("an executable", "another machine, or linked", patched(16, &[2, 0]));
    cases.object("a shared library", "another machine, or linked", patched(16, &[3, 0]));
    cases.object("32 bits", object, patched(4, &[1]));
    cases.object("big endian", object, patched(5, &[2]));
    cases.object("no magic", object, patched(0, &[0]));
    cases.object("sections outside of the file", object, patched(40, &[0xff; 8]));
    cases.object(
        "sections at the end of memory",
        object,
        patched(40, &[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    );
    cases.object("more sections than there are", object, patched(60, &[0xff, 0xff]));
    cases.object("section headers of 1 byte", object, patched(58, &[1, 0]));
    cases.object("names in no section", object, patched(62, &[0xfe, 0xfe]));
    let function = |size: u64, offset: u64| {
        let mut builder = Builder::new(&[]);
        let code = [mov(0, 0), exit()];
        builder.function("other", &code);
        let section = SymbolSection::Section(builder.text);
        builder.object.add_symbol(symbol("schedule", offset, size, SymbolKind::Text, section));
        builder.finish()
    };
    for (size, offset) in [(0, 0), (7, 0), (12, 4), (24, 0), (16, 8), (u64::MAX, 0), (8, u64::MAX), (16, 1 << 60)] {
        cases.object(format!("a function of {size} bytes at {offset}"), object, function(size, offset));
    }
    let mut twice = Builder::new(&[]);
    twice.function("schedule", &[mov(0, 0), exit()]);
    twice.function("schedule", &[mov(0, 1), exit()]);
    cases.object("two functions of one name", "two functions", twice.finish());
    let mut none = Builder::new(&[]);
    none.function("main", &[mov(0, 0), exit()]);
    cases.object("no function", "neither a function", none.finish());
    cases.object("no code", object, object_of(&[], &[]));
    let mut long = vec![mov(0, 0); 4096];
    long.push(exit());
    cases.object("too many instructions", "at most 4096", object_of(&long, &[]));
    let relocated = |change: &dyn Fn(&mut Builder)| {
        let mut builder = Builder::new(&[USUAL]);
        builder.function(
            "schedule",
            &[mov(0, 0), mov(3, 0), Word::Plain([0x18, 3, 0, 0, 0, 0, 0, 0]), Word::Plain([0; 8]), exit()],
        );
        change(&mut builder);
        builder.finish()
    };
    let map_at = |offset: u64, kind: u32| {
        relocated(&|builder| {
            let map = builder.maps[0];
            builder.relocate(offset, map, kind);
        })
    };
    cases.object("an address in a constant", "loads no address", map_at(8, 1));
    cases.object("an address in an exit", "loads no address", map_at(32, 1));
    cases.object("an address askew", "not at an instruction", map_at(17, 1));
    cases.object("an address at the second half", "", map_at(24, 2));
    for kind in [2, 3, 4, 10, 99, 0xffff_ffff] {
        cases.object(format!("a relocation of kind {kind}"), "always_inline", map_at(16, kind));
    }
    cases.object(
        "something undefined",
        "not defined",
        relocated(&|builder| {
            let undefined =
                builder.object.add_symbol(symbol("elsewhere", 0, 0, SymbolKind::Data, SymbolSection::Undefined));
            builder.relocate(16, undefined, 1);
        }),
    );
    cases.object(
        "code as a variable",
        "neither a map nor a global variable",
        relocated(&|builder| {
            let section = SymbolSection::Section(builder.text);
            let code = builder.object.add_symbol(symbol("code", 0, 8, SymbolKind::Data, section));
            builder.relocate(16, code, 1);
        }),
    );
    let bss = |bytes: u64| {
        relocated(&|builder| {
            let section = builder.object.add_section(vec![], b".bss".to_vec(), SectionKind::UninitializedData);
            builder.object.append_section_bss(section, bytes, 8);
            let huge = symbol("huge", 0, 8, SymbolKind::Data, SymbolSection::Section(section));
            let huge = builder.object.add_symbol(huge);
            builder.relocate(16, huge, 1);
        })
    };
    for bytes in [65_537, 1 << 32, 1 << 60] {
        cases.object(format!("{bytes} bytes of variables"), "at most 65536", bss(bytes));
    }
}

fn sources() -> Vec<(String, String, std::path::PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let entries =
        std::fs::read_dir(folder).expect("the folder of sources").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source");
            let because = text.lines().next().and_then(|line| line.strip_prefix("// refused: ")).expect("a reason");
            (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), because.to_owned(), path)
        })
        .collect();
    found.sort();
    found
}

/// What went wrong with a case, if something did.
fn judge(because: &str, result: Result<Policy, PolicyError>, took: Duration) -> Option<String> {
    match result {
        Ok(_) => Some("was accepted".into()),
        Err(error) if !error.to_string().contains(because) => Some(format!("refused, but for: {error}")),
        Err(_) if took > PATIENCE => Some(format!("took {took:?}")),
        Err(_) => None,
    }
}

#[test]
fn every_hostile_policy_is_refused() {
    let mut cases = Cases::default();
    for family in [context, stack, values, loops, helpers, maps, leaks, divisions, jumps, opcodes, unset, objects] {
        family(&mut cases);
    }
    let (mut wrong, mut slowest) = (Vec::new(), Duration::ZERO);
    for case in &cases.0 {
        let begin = Instant::now();
        let result = Policy::from_object(&case.object);
        let took = begin.elapsed();
        slowest = slowest.max(took);
        wrong.extend(judge(case.because, result, took).map(|problem| format!("{}: {problem}", case.name)));
    }
    let names: std::collections::HashSet<_> = cases.0.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.0.len(), "each case has a name of its own");
    assert!(cases.0.len() >= 200, "{} cases", cases.0.len());
    println!("{} cases, the slowest took {slowest:?}", cases.0.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_hostile_source_is_refused_and_its_line_is_named() {
    let sources = sources();
    let mut wrong = Vec::new();
    for (name, because, path) in &sources {
        let object = Policy::object(path).unwrap_or_else(|error| panic!("{name} must compile: {error}"));
        let begin = Instant::now();
        let result = Policy::from_object(&object);
        let took = begin.elapsed();
        if let Err(PolicyError::Rejected(rejection)) = &result
            && rejection.source.as_ref().is_none_or(|(file, line, _)| !file.ends_with(name) || *line == 0)
        {
            wrong.push(format!("{name}: no line in: {rejection}"));
        }
        wrong.extend(judge(because, result, took).map(|problem| format!("{name}: {problem}")));
    }
    assert!(sources.len() >= 20, "{} sources", sources.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
