//! Encodes instructions as machine code. Every instruction has one encoding; optimisations exist
//! only where they save time in a decision.

use crate::execute::instruction::{Arithmetic, AtomicOperation, Condition, Instruction, Operand, Register};
use crate::execute::jit::native;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const R9: u8 = 9;
const R10: u8 = 10;
const R11: u8 = 11;
const R12: u8 = 12;

/// The native register of an eBPF register.
fn native_register(register: Register) -> u8 {
    const MAP: [u8; 11] = [RAX, 7, 6, RDX, RCX, 8, 3, 13, 14, 15, 5];
    MAP[usize::from(register)]
}

/// Condition codes of a jump.
const BELOW: u8 = 2;
const ABOVE_OR_EQUAL: u8 = 3;
const EQUAL: u8 = 4;
const NOT_EQUAL: u8 = 5;
const BELOW_OR_EQUAL: u8 = 6;
const ABOVE: u8 = 7;
const LESS: u8 = 12;
const GREATER_OR_EQUAL: u8 = 13;
const LESS_OR_EQUAL: u8 = 14;
const GREATER: u8 = 15;

#[derive(Default)]
struct Emitter {
    code: Vec<u8>,
    /// Offset in `code` of each 32-bit distance to patch, and the number of its target instruction.
    jumps: Vec<(usize, usize)>,
}

pub fn emit(program: &[Instruction]) -> Vec<u8> {
    let mut emitter = Emitter::default();
    emitter.prologue();
    let mut starts = Vec::with_capacity(program.len());
    for instruction in program {
        starts.push(emitter.code.len());
        emitter.instruction(instruction);
    }
    // A verified program ends with `exit` or a jump: this trap is never reached.
    emitter.bytes(&[0x0f, 0x0b]);
    for (place, target) in std::mem::take(&mut emitter.jumps) {
        let distance = starts[target] as i64 - (place as i64 + 4);
        emitter.code[place..place + 4].copy_from_slice(&(distance as i32).to_le_bytes());
    }
    emitter.code
}

impl Emitter {
    fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    fn word(&mut self, value: i32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Emits the prefix for 64 bits and the upper registers; `always`: needed even if empty (byte
    /// registers).
    fn rex(&mut self, wide: bool, register: u8, base: u8, always: bool) {
        let rex = 0x40 | u8::from(wide) << 3 | (register >> 3) << 2 | base >> 3;
        if rex != 0x40 || always {
            self.code.push(rex);
        }
    }

    /// Emits opcode register, register/memory (a register).
    fn on_register(&mut self, wide: bool, opcode: &[u8], register: u8, operand: u8) {
        self.rex(wide, register, operand, false);
        self.bytes(opcode);
        self.code.push(0xc0 | (register & 7) << 3 | operand & 7);
    }

    /// Emits opcode register, value; `extension` is a part of the opcode.
    fn on_value(&mut self, wide: bool, opcode: u8, extension: u8, register: u8, value: i32) {
        self.on_register(wide, &[opcode], extension, register);
        self.word(value);
    }

    /// Emits opcode register, [base + offset].
    fn on_memory(&mut self, wide: bool, opcode: &[u8], register: u8, base: u8, offset: i32, byte: bool) {
        self.rex(wide, register, base, byte);
        self.bytes(opcode);
        self.code.push(0x80 | (register & 7) << 3 | base & 7);
        if base & 7 == 4 {
            self.code.push(0x24);
        }
        self.word(offset);
    }

    /// Emits to = from.
    fn copy(&mut self, wide: bool, to: u8, from: u8) {
        self.on_register(wide, &[0x89], from, to);
    }

    fn constant(&mut self, to: u8, value: u64) {
        if value <= u64::from(u32::MAX) {
            self.rex(false, 0, to, false);
            self.code.push(0xb8 | to & 7);
            self.word(value as u32 as i32);
        } else {
            self.rex(true, 0, to, false);
            self.code.push(0xb8 | to & 7);
            self.bytes(&value.to_le_bytes());
        }
    }

    /// Emits to = operand, of 64 or 32 bits.
    fn fetch(&mut self, wide: bool, to: u8, operand: Operand) {
        match operand {
            Operand::Register(register) => self.copy(wide, to, native_register(register)),
            Operand::Immediate(value) => self.immediate(wide, to, value),
        }
    }

    fn immediate(&mut self, wide: bool, to: u8, value: i32) {
        if wide && value < 0 {
            self.on_value(true, 0xc7, 0, to, value);
        } else {
            self.constant(to, u64::from(value as u32));
        }
    }

    fn prologue(&mut self) {
        // push rbp, rbx, r12, r13, r14, r15
        self.bytes(&[0x55, 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
        // sub rsp, 520: 512 bytes for the program, 8 that align calls
        self.bytes(&[0x48, 0x81, 0xec]);
        self.word(520);
        // lea rbp, [rsp + 512]
        self.bytes(&[0x48, 0x8d, 0xac, 0x24]);
        self.word(512);
        self.copy(true, R12, 6);
    }

    fn epilogue(&mut self) {
        self.bytes(&[0x48, 0x81, 0xc4]);
        self.word(520);
        self.bytes(&[0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0x5d, 0xc3]);
    }

    fn instruction(&mut self, instruction: &Instruction) {
        match *instruction {
            Instruction::Alu { wide, operation, to, from } => self.alu(wide, operation, native_register(to), from),
            Instruction::Negate { wide, to } => self.on_register(wide, &[0xf7], 3, native_register(to)),
            Instruction::ByteOrder { to, bits, swap } => self.byte_order(native_register(to), bits, swap),
            Instruction::LoadConstant { to, value } => self.constant(native_register(to), value),
            Instruction::LoadMap { to, map } => self.constant(native_register(to), map as u64),
            Instruction::LoadData { to, section, offset } => {
                let to = native_register(to);
                self.on_memory(true, &[0x8b], to, R12, section as i32 * 8, false);
                self.constant(R11, u64::from(offset));
                self.on_register(true, &[0x01], R11, to);
            }
            Instruction::Half => {}
            Instruction::Load { bytes, to, base, offset } => {
                self.load(bytes, native_register(to), native_register(base), offset);
            }
            Instruction::Store { bytes, base, offset, from } => {
                self.store(bytes, native_register(base), i32::from(offset), from);
            }
            Instruction::Atomic { wide, operation, fetch, base, offset, register } => {
                let (base, register) = (native_register(base), native_register(register));
                self.atomic(wide, operation, fetch, (base, i32::from(offset)), register);
            }
            Instruction::Jump { target } => {
                self.code.push(0xe9);
                self.jump_to(target);
            }
            Instruction::Branch { wide, condition, left, right, target } => {
                self.branch(wide, condition, native_register(left), right, target);
            }
            Instruction::Call { helper } => {
                self.copy(true, R9, R12);
                let address: native::Native = native::address(helper);
                self.constant(R11, address as usize as u64);
                self.on_register(false, &[0xff], 2, R11);
            }
            Instruction::Exit => self.epilogue(),
        }
    }

    fn jump_to(&mut self, target: usize) {
        self.jumps.push((self.code.len(), target));
        self.word(0);
    }

    fn alu(&mut self, wide: bool, operation: Arithmetic, to: u8, from: Operand) {
        let (extension, opcode) = match operation {
            Arithmetic::Add => (0, 0x01),
            Arithmetic::Or => (1, 0x09),
            Arithmetic::And => (4, 0x21),
            Arithmetic::Sub => (5, 0x29),
            Arithmetic::Xor => (6, 0x31),
            Arithmetic::Move => return self.fetch(wide, to, from),
            Arithmetic::Mul => return self.multiply(wide, to, from),
            Arithmetic::Div | Arithmetic::Mod => return self.divide(wide, operation == Arithmetic::Div, to, from),
            Arithmetic::ShiftLeft => return self.shift(wide, 4, to, from),
            Arithmetic::ShiftRight => return self.shift(wide, 5, to, from),
            Arithmetic::ShiftRightSigned => return self.shift(wide, 7, to, from),
        };
        match from {
            Operand::Register(register) => self.on_register(wide, &[opcode], native_register(register), to),
            Operand::Immediate(value) => self.on_value(wide, 0x81, extension, to, value),
        }
    }

    fn multiply(&mut self, wide: bool, to: u8, from: Operand) {
        match from {
            Operand::Register(register) => self.on_register(wide, &[0x0f, 0xaf], to, native_register(register)),
            Operand::Immediate(value) => self.on_value(wide, 0x69, to, to, value),
        }
    }

    fn shift(&mut self, wide: bool, extension: u8, to: u8, from: Operand) {
        match from {
            Operand::Immediate(value) => {
                self.on_register(wide, &[0xc1], extension, to);
                self.code.push(value as u8);
                if !wide && value == 0 {
                    self.copy(false, to, to);
                }
            }
            Operand::Register(register) => {
                // The count must be in cl; rcx is one of the program's registers.
                self.copy(true, R11, to);
                self.copy(true, R10, RCX);
                self.copy(true, RCX, native_register(register));
                self.on_register(wide, &[0xd3], extension, R11);
                self.copy(true, RCX, R10);
                self.copy(true, to, R11);
                if !wide {
                    // A 32-bit shift by 0 leaves the upper half unchanged; the copy clears it.
                    self.copy(false, to, to);
                }
            }
        }
    }

    /// Emits a division. The verifier refuses divisors that can be 0; eBPF's results for them cost
    /// two instructions and prevent a trap if the verifier is wrong.
    fn divide(&mut self, wide: bool, quotient: bool, to: u8, from: Operand) {
        self.fetch(wide, R11, from);
        self.copy(wide, R10, to);
        self.on_register(true, &[0x85], R11, R11);
        let zero = self.short_jump(0x74);
        // push rax, push rdx
        self.bytes(&[0x50, 0x52]);
        self.copy(true, RAX, R10);
        // xor edx, edx; div r11
        self.bytes(&[0x31, 0xd2]);
        self.on_register(true, &[0xf7], 6, R11);
        self.copy(true, R10, if quotient { RAX } else { RDX });
        // pop rdx, pop rax
        self.bytes(&[0x5a, 0x58]);
        let done = self.short_jump(0xeb);
        self.land(zero);
        if quotient {
            self.on_register(false, &[0x31], R10, R10);
        }
        self.land(done);
        self.copy(true, to, R10);
    }

    fn short_jump(&mut self, opcode: u8) -> usize {
        self.bytes(&[opcode, 0]);
        self.code.len()
    }

    fn land(&mut self, from: usize) {
        self.code[from - 1] = (self.code.len() - from) as u8;
    }

    fn byte_order(&mut self, to: u8, bits: u8, swap: bool) {
        match (bits, swap) {
            (16, swap) => {
                if swap {
                    // ror to16, 8
                    self.code.push(0x66);
                    self.on_register(false, &[0xc1], 1, to);
                    self.code.push(8);
                }
                self.on_register(false, &[0x0f, 0xb7], to, to);
            }
            (32, false) => self.copy(false, to, to),
            (_, false) => {}
            (_, true) => {
                self.rex(bits == 64, 0, to, false);
                self.bytes(&[0x0f, 0xc8 | to & 7]);
            }
        }
    }

    fn load(&mut self, bytes: u8, to: u8, base: u8, offset: i16) {
        let offset = i32::from(offset);
        let opcode: &[u8] = match bytes {
            1 => &[0x0f, 0xb6],
            2 => &[0x0f, 0xb7],
            _ => &[0x8b],
        };
        self.on_memory(bytes == 8, opcode, to, base, offset, false);
    }

    fn store(&mut self, bytes: u8, base: u8, offset: i32, from: Operand) {
        if bytes == 2 {
            self.code.push(0x66);
        }
        match from {
            Operand::Register(register) => {
                let opcode = if bytes == 1 { 0x88 } else { 0x89 };
                self.on_memory(bytes == 8, &[opcode], native_register(register), base, offset, bytes == 1);
            }
            Operand::Immediate(value) => {
                let opcode = if bytes == 1 { 0xc6 } else { 0xc7 };
                self.on_memory(bytes == 8, &[opcode], 0, base, offset, false);
                match bytes {
                    1 => self.bytes(&value.to_le_bytes()[..1]),
                    2 => self.bytes(&value.to_le_bytes()[..2]),
                    _ => self.word(value),
                }
            }
        }
    }

    /// Emits an atomic operation without bus locks: the caller of the code has exclusive access to
    /// the policy's memory.
    fn atomic(&mut self, wide: bool, operation: AtomicOperation, fetch: bool, (base, offset): (u8, i32), register: u8) {
        let opcode = match operation {
            AtomicOperation::Add => 0x01,
            AtomicOperation::Or => 0x09,
            AtomicOperation::And => 0x21,
            AtomicOperation::Xor => 0x31,
            AtomicOperation::Exchange => 0x89,
            AtomicOperation::CompareExchange => {
                self.on_memory(wide, &[0x0f, 0xb1], register, base, offset, false);
                if !wide {
                    self.copy(false, RAX, RAX);
                }
                return;
            }
        };
        if !fetch {
            return self.on_memory(wide, &[opcode], register, base, offset, false);
        }
        // r10 = the old value, r11 = the new one
        self.on_memory(wide, &[0x8b], R10, base, offset, false);
        self.copy(wide, R11, R10);
        self.on_register(wide, &[opcode], register, R11);
        self.on_memory(wide, &[0x89], R11, base, offset, false);
        self.copy(wide, register, R10);
    }

    fn branch(&mut self, wide: bool, condition: Condition, left: u8, right: Operand, target: usize) {
        let test = condition == Condition::BitsSet;
        match right {
            Operand::Register(right) => {
                self.on_register(wide, &[if test { 0x85 } else { 0x39 }], native_register(right), left);
            }
            Operand::Immediate(value) if test => self.on_value(wide, 0xf7, 0, left, value),
            Operand::Immediate(value) => self.on_value(wide, 0x81, 7, left, value),
        }
        let jump = match condition {
            Condition::Equal => EQUAL,
            Condition::NotEqual | Condition::BitsSet => NOT_EQUAL,
            Condition::Greater => ABOVE,
            Condition::GreaterOrEqual => ABOVE_OR_EQUAL,
            Condition::Less => BELOW,
            Condition::LessOrEqual => BELOW_OR_EQUAL,
            Condition::SignedGreater => GREATER,
            Condition::SignedGreaterOrEqual => GREATER_OR_EQUAL,
            Condition::SignedLess => LESS,
            Condition::SignedLessOrEqual => LESS_OR_EQUAL,
        };
        self.bytes(&[0x0f, 0x80 | jump]);
        self.jump_to(target);
    }
}
