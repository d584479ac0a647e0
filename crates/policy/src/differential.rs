//! Random programs: an accepted program must never fault in the interpreter, must end within the
//! number of steps that the verifier promised, and must give equal results as machine code.

use crate::context::Context;
use crate::execute::instruction::{Arithmetic, AtomicOperation, Condition, Instruction, Operand, Register};
use crate::execute::interpret::interpret;
use crate::execute::run::Program;
use crate::map::{Declaration, Kind, Map};
use crate::memory::{Data, Memory};
use crate::verify::{DataShape, Environment, verify};
use std::cell::Cell;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn number(&mut self) -> i32 {
        match self.below(4) {
            0 => self.pick(&[0, 1, -1, 2, 7, 8, 24, 31, 63, 64, i32::MAX, i32::MIN]),
            1 => self.next() as i32,
            _ => self.below(40) as i32,
        }
    }
}

fn declarations() -> Vec<Declaration> {
    let map = |name: &str, kind, key_size, value_size, max_entries, per_tenant| Declaration {
        name: name.into(),
        kind,
        key_size,
        value_size,
        max_entries,
        per_tenant,
    };
    vec![
        map("counters", Kind::Counters, 4, 16, 8, false),
        map("array", Kind::Array, 4, 32, 4, false),
        map("hash", Kind::Hash, 8, 8, 4, true),
    ]
}

const DATA: [DataShape; 2] = [DataShape { bytes: 24, writable: true }, DataShape { bytes: 16, writable: false }];

fn memory() -> Memory {
    let data = |shape: &DataShape| Data {
        bytes: (0..shape.bytes).map(|byte| Cell::new(byte as u8)).collect(),
        writable: shape.writable,
    };
    Memory { maps: declarations().iter().map(Map::new).collect(), data: DATA.iter().map(data).collect() }
}

fn content(memory: &mut Memory, tenant: u64) -> Vec<u8> {
    let maps = memory.maps.iter().flat_map(|map| map.values(tenant).iter());
    maps.chain(memory.data.iter().flat_map(|data| data.bytes.iter())).map(Cell::get).collect()
}

/// Writes a program of fragments, each likely to be valid; registers are 6 = context, 7 = an
/// address, 8 and 9 numbers.
struct Writer<'a> {
    random: &'a mut Random,
    program: Vec<Instruction>,
}

const WIDTHS: [u8; 4] = [1, 2, 4, 8];
use Instruction::{Alu, Branch, Call, Exit, Half, Jump, Load, LoadConstant, LoadData, LoadMap, Store};
use Operand::Immediate;

impl Writer<'_> {
    fn number_register(&mut self) -> Register {
        // Sometimes a register that holds no number.
        self.random.pick(&[8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 0, 3, 7])
    }

    fn operand(&mut self) -> Operand {
        if self.random.below(2) == 0 {
            Immediate(self.random.number())
        } else {
            Operand::Register(self.number_register())
        }
    }

    fn wide(&mut self) -> bool {
        self.random.below(3) != 0
    }

    fn copy(&mut self, to: Register, from: Operand) {
        self.program.push(Alu { wide: true, operation: Arithmetic::Move, to, from });
    }

    fn condition(&mut self) -> Condition {
        use Condition as C;
        self.random.pick(&[
            C::Equal,
            C::NotEqual,
            C::Greater,
            C::GreaterOrEqual,
            C::Less,
            C::LessOrEqual,
            C::BitsSet,
            C::SignedGreater,
            C::SignedGreaterOrEqual,
            C::SignedLess,
            C::SignedLessOrEqual,
        ])
    }

    fn arithmetic(&mut self) {
        use Arithmetic as A;
        let wide = self.wide();
        let operation = self.random.pick(&[
            A::Add,
            A::Sub,
            A::Mul,
            A::Div,
            A::Or,
            A::And,
            A::ShiftLeft,
            A::ShiftRight,
            A::Mod,
            A::Xor,
            A::Move,
            A::ShiftRightSigned,
        ]);
        let mut from = self.operand();
        if let Immediate(value) = &mut from {
            match operation {
                A::ShiftLeft | A::ShiftRight | A::ShiftRightSigned => *value &= if wide { 63 } else { 31 },
                A::Div | A::Mod => *value |= 1,
                _ => {}
            }
        }
        let to = self.number_register();
        self.program.push(Alu { wide, operation, to, from });
    }

    /// Loads an address of a value, a variable or the stack into r7.
    fn address(&mut self) {
        match self.random.below(4) {
            0 => {
                let section = self.random.below(2);
                let offset = self.random.below(20) as u32;
                self.program.extend([LoadData { to: 7, section, offset }, Half]);
            }
            1 => {
                let by = -(self.random.below(64) as i32);
                self.copy(7, Operand::Register(10));
                self.program.push(Alu { wide: true, operation: Arithmetic::Add, to: 7, from: Immediate(by) });
            }
            _ => self.lookup(),
        }
        if self.random.below(3) == 0 {
            self.index();
        }
    }

    fn key(&mut self) {
        let from = self.operand();
        self.program.push(Store { bytes: 8, base: 10, offset: -8, from });
        self.copy(2, Operand::Register(10));
        self.program.push(Alu { wide: true, operation: Arithmetic::Add, to: 2, from: Immediate(-8) });
        let map = self.random.below(3);
        self.program.extend([LoadMap { to: 1, map }, Half]);
    }

    fn lookup(&mut self) {
        self.key();
        self.program.push(Call { helper: 1 });
        self.copy(7, Operand::Register(0));
        if self.random.below(10) != 0 {
            // if r7 == 0 goto the end; the distance is patched later
            let none =
                Branch { wide: true, condition: Condition::Equal, left: 7, right: Immediate(0), target: usize::MAX };
            self.program.push(none);
        }
    }

    /// Adds a number to the address, mostly after a bounds test.
    fn index(&mut self) {
        let number = self.number_register();
        let wide = self.wide();
        let (condition, limit) = (self.condition(), self.random.below(32) as i32);
        if self.random.below(5) != 0 {
            let right = Immediate(limit);
            self.program.push(Branch { wide, condition, left: number, right, target: usize::MAX });
        }
        self.program.push(Alu {
            wide: true,
            operation: self.random.pick(&[Arithmetic::Add, Arithmetic::Add, Arithmetic::Sub]),
            to: 7,
            from: Operand::Register(number),
        });
    }

    fn access(&mut self) {
        let bytes = self.random.pick(&WIDTHS);
        let offset = self.random.below(24) as i16 - 8;
        let to = self.number_register();
        match self.random.below(5) {
            0 => self.program.push(Store { bytes, base: 7, offset, from: Operand::Register(to) }),
            1 => self.program.push(Store { bytes, base: 7, offset, from: Immediate(self.random.number()) }),
            2 => {
                use AtomicOperation as O;
                let operation = self.random.pick(&[O::Add, O::Or, O::And, O::Xor, O::Exchange, O::CompareExchange]);
                let fetch = matches!(operation, O::Exchange | O::CompareExchange) || self.random.below(2) == 0;
                if operation == O::CompareExchange {
                    self.copy(0, Operand::Register(to));
                }
                let wide = self.wide();
                self.program.push(Instruction::Atomic { wide, operation, fetch, base: 7, offset, register: to });
            }
            _ => self.program.push(Load { bytes, to, base: 7, offset }),
        }
    }

    /// Spills to the stack and loads, perhaps other bytes.
    fn spill(&mut self) {
        let (bytes, register) = (self.random.pick(&WIDTHS), self.number_register());
        let place = |random: &mut Random, bytes: u8| {
            -(8 + 8 * (random.below(4) as i16)) + (random.below(2) as i16 * i16::from(bytes)) % 8
        };
        let offset = place(self.random, bytes);
        self.program.push(Store { bytes, base: 10, offset, from: Operand::Register(register) });
        let (bytes, to) = (self.random.pick(&[bytes, bytes, 1, 4]), self.number_register());
        self.program.push(Load { bytes, to, base: 10, offset });
    }

    fn change(&mut self) {
        self.key();
        if self.random.below(2) == 0 {
            self.program.push(Call { helper: 3 });
        } else {
            let from = self.operand();
            for offset in [-40, -32, -24, -16] {
                self.program.push(Store { bytes: 8, base: 10, offset, from });
            }
            self.copy(3, Operand::Register(10));
            self.program.push(Alu { wide: true, operation: Arithmetic::Add, to: 3, from: Immediate(-40) });
            let flags = self.random.below(4) as i32;
            self.copy(4, Immediate(flags));
            self.program.push(Call { helper: 2 });
        }
        self.copy(9, Operand::Register(0));
    }

    /// Writes a loop over some fragments; r9 or another counter decides when it ends.
    fn repeat(&mut self) {
        let counter = self.random.pick(&[8, 9]);
        self.copy(counter, Immediate(0));
        let start = self.program.len();
        for _ in 0..self.random.below(3) {
            self.fragment(1);
        }
        let step = self.random.pick(&[1, 1, 2, 0]);
        self.program.push(Alu { wide: true, operation: Arithmetic::Add, to: counter, from: Immediate(step) });
        let (condition, limit) =
            (self.random.pick(&[Condition::Less, Condition::NotEqual, Condition::LessOrEqual]), 12);
        let right = Immediate(self.random.below(limit) as i32);
        self.program.push(Branch { wide: true, condition, left: counter, right, target: start });
    }

    fn fragment(&mut self, depth: usize) {
        match self.random.below(13) {
            0..4 => self.arithmetic(),
            4 => {
                let offset = 8 * self.random.below(10) as i16;
                let (to, bytes) = (self.number_register(), self.random.pick(&WIDTHS));
                self.program.push(Load { bytes, to, base: 6, offset });
            }
            5 => self.address(),
            6 | 7 => {
                self.address();
                self.access();
            }
            8 => self.spill(),
            9 => self.change(),
            10 => {
                // An `if` around a fragment.
                let (wide, condition, left, right) =
                    (self.wide(), self.condition(), self.number_register(), self.operand());
                let at = self.program.len();
                self.program.push(Branch { wide, condition, left, right, target: usize::MAX });
                if depth < 3 {
                    self.fragment(depth + 1);
                }
                let target = self.program.len();
                self.program[at] = Branch { wide, condition, left, right, target };
            }
            11 if depth == 0 => self.repeat(),
            11 => {
                let to = self.number_register();
                let (bits, swap) = (self.random.pick(&[16, 32, 64]), self.random.below(2) == 0);
                self.program.push(Instruction::ByteOrder { to, bits, swap });
            }
            _ => {
                let (wide, to) = (self.wide(), self.number_register());
                self.program.push(Instruction::Negate { wide, to });
            }
        }
    }

    fn write(mut self) -> Vec<Instruction> {
        self.copy(6, Operand::Register(1));
        self.program.push(Load { bytes: 8, to: 8, base: 6, offset: 8 });
        self.program.extend([LoadConstant { to: 9, value: self.random.next() << 8 }, Half]);
        for _ in 0..1 + self.random.below(8) {
            self.fragment(0);
        }
        self.copy(0, Operand::Register(8));
        let end = self.program.len();
        self.program.push(Exit);
        for instruction in &mut self.program {
            if let Branch { target, .. } | Jump { target } = instruction
                && *target == usize::MAX
            {
                *target = end;
            }
        }
        // Sets r8 also if a NULL test jumped over the fragment that sets it.
        self.program
    }
}

fn contexts(random: &mut Random) -> Vec<Context> {
    let mut contexts = Vec::new();
    for _ in 0..6 {
        let mut some = |small: usize| {
            if random.below(2) == 0 { random.next() << random.below(9) } else { random.below(small) as u64 }
        };
        contexts.push(Context {
            tenant: some(3),
            session: some(40),
            device: some(2),
            weight: some(10),
            priority: some(10),
            now_ns: some(1000),
            device_time_ns: some(1000),
            waiting_since_ns: some(1000),
            expected_ns: some(1000),
            queued: some(10),
            ..Context::default()
        });
    }
    contexts
}

#[test]
fn accepted_programs_never_fault_and_run_alike() {
    let rounds = std::env::var("AVIARY_POLICY_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(60_000);
    let maps = declarations();
    let mut random =
        Random(std::env::var("AVIARY_POLICY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed));
    let (mut accepted, mut loops) = (0, 0);
    for round in 0..rounds {
        let program = Writer { random: &mut random, program: Vec::new() }.write();
        let Ok(longest) = verify(&program, Environment { maps: &maps, data: &DATA, answers: false }) else { continue };
        accepted += 1;
        loops += usize::from(longest > program.len());
        let runnable = Program::new(program.clone(), longest, false);
        let (mut one, mut other) = (memory(), memory());
        for context in contexts(&mut random) {
            let listing = || program.iter().enumerate().map(|(at, one)| format!("{at}: {one:?}\n")).collect::<String>();
            let answer = interpret(&program, longest, &mut one, &context);
            assert!(answer.is_ok(), "round {round}: {answer:?} with {context:?}\n{}", listing());
            #[cfg(target_arch = "x86_64")]
            {
                let machine = runnable.machine.as_ref().expect("machine code").run(&mut other, &context);
                // A program that copies a pointer to r8 returns another number in each engine.
                if verify(&program, Environment { maps: &maps, data: &DATA, answers: true }).is_ok() {
                    assert_eq!(answer, Ok(machine), "round {round} with {context:?}\n{}", listing());
                }
                let tenant = context.tenant;
                assert_eq!(
                    content(&mut one, tenant),
                    content(&mut other, tenant),
                    "round {round} with {context:?}\n{}",
                    listing()
                );
            }
        }
        let _ = (&runnable, &mut other);
    }
    // With fewer accepted programs the test would cover nothing.
    assert!(accepted > rounds / 20 && loops > rounds / 500, "{accepted} of {rounds} accepted, {loops} with loops");
    println!("{accepted} of {rounds} accepted, {loops} with loops");
}
