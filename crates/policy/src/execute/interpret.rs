//! The interpreter: runs a program in safe code and checks every access again. It serves machines
//! without a code generator, and the tests compare verifier and machine code with it.

use crate::context::Context;
use crate::execute::helpers;
use crate::execute::instruction::{Arithmetic, AtomicOperation, Condition, Instruction, Operand, Register};
use crate::limits;
use crate::memory::Memory;
use std::cell::Cell;

/// An action that a verified program never takes.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    Address(u64),
    ReadOnly,
    Steps,
    Helper(u32),
    OutOfProgram,
}

/// Bits of an address's offset; the region's number lies above them. A number made up by a program
/// lies in no region.
const SHIFT: u32 = 40;
const CONTEXT: u64 = 0x5a00;
const STACK: u64 = 0x5a01;
const DATA: u64 = 0x5a10;
const MAP: u64 = 0x5a20;

struct Interpreter<'a> {
    registers: [u64; 11],
    stack: Vec<Cell<u8>>,
    memory: &'a mut Memory,
    context: &'a Context,
}

fn address(region: u64, offset: u64) -> u64 {
    region << SHIFT | offset
}

/// Runs a program. `longest`: the verifier's bound of the instructions of a decision.
pub fn interpret(
    program: &[Instruction],
    longest: usize,
    memory: &mut Memory,
    context: &Context,
) -> Result<u64, Fault> {
    let stack = vec![Cell::new(0); limits::MAX_STACK_BYTES as usize];
    let mut interpreter = Interpreter { registers: [0; 11], stack, memory, context };
    interpreter.registers[1] = address(CONTEXT, 0);
    // The frame pointer is the first offset behind the stack.
    interpreter.registers[10] = address(STACK, limits::MAX_STACK_BYTES as u64);
    let mut at = 0;
    for _ in 0..longest {
        let instruction = program.get(at).ok_or(Fault::OutOfProgram)?;
        at += 1;
        match *instruction {
            Instruction::Exit => return Ok(interpreter.registers[0]),
            Instruction::Jump { target } => at = target,
            Instruction::Branch { wide, condition, left, right, target } => {
                if holds(condition, wide, interpreter.get(left), interpreter.operand(right)) {
                    at = target;
                }
            }
            ref other => interpreter.execute(other)?,
        }
    }
    Err(Fault::Steps)
}

pub fn holds(condition: Condition, wide: bool, a: u64, b: u64) -> bool {
    let (a, b) = if wide { (a, b) } else { (a & 0xffff_ffff, b & 0xffff_ffff) };
    let (sa, sb) = if wide { (a as i64, b as i64) } else { (i64::from(a as i32), i64::from(b as i32)) };
    match condition {
        Condition::Equal => a == b,
        Condition::NotEqual => a != b,
        Condition::Greater => a > b,
        Condition::GreaterOrEqual => a >= b,
        Condition::Less => a < b,
        Condition::LessOrEqual => a <= b,
        Condition::BitsSet => a & b != 0,
        Condition::SignedGreater => sa > sb,
        Condition::SignedGreaterOrEqual => sa >= sb,
        Condition::SignedLess => sa < sb,
        Condition::SignedLessOrEqual => sa <= sb,
    }
}

pub fn calculate(operation: Arithmetic, wide: bool, a: u64, b: u64) -> u64 {
    if !wide {
        return calculate_low(operation, a as u32, b as u32);
    }
    match operation {
        Arithmetic::Add => a.wrapping_add(b),
        Arithmetic::Sub => a.wrapping_sub(b),
        Arithmetic::Mul => a.wrapping_mul(b),
        Arithmetic::Div => a.checked_div(b).unwrap_or(0),
        Arithmetic::Mod => a.checked_rem(b).unwrap_or(a),
        Arithmetic::Or => a | b,
        Arithmetic::And => a & b,
        Arithmetic::Xor => a ^ b,
        Arithmetic::Move => b,
        Arithmetic::ShiftLeft => a.wrapping_shl(b as u32),
        Arithmetic::ShiftRight => a.wrapping_shr(b as u32),
        Arithmetic::ShiftRightSigned => (a as i64).wrapping_shr(b as u32) as u64,
    }
}

/// Calculates the lower half of the wide result, except that shift counts are taken modulo 32 and
/// the sign is that of the half.
fn calculate_low(operation: Arithmetic, a: u32, b: u32) -> u64 {
    let (a, b) = match operation {
        Arithmetic::ShiftRightSigned => (i64::from(a as i32) as u64, b % 32),
        Arithmetic::ShiftLeft | Arithmetic::ShiftRight => (u64::from(a), b % 32),
        _ => (u64::from(a), b),
    };
    u64::from(calculate(operation, true, a, u64::from(b)) as u32)
}

fn reorder(value: u64, bits: u8, swap: bool) -> u64 {
    match (bits, swap) {
        (16, true) => u64::from((value as u16).swap_bytes()),
        (32, true) => u64::from((value as u32).swap_bytes()),
        (_, true) => value.swap_bytes(),
        (16, false) => value & 0xffff,
        (32, false) => value & 0xffff_ffff,
        (_, false) => value,
    }
}

impl Interpreter<'_> {
    fn get(&self, register: Register) -> u64 {
        self.registers[usize::from(register)]
    }

    fn set(&mut self, register: Register, value: u64) {
        self.registers[usize::from(register)] = value;
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.get(register),
            Operand::Immediate(value) => i64::from(value) as u64,
        }
    }

    fn execute(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        match *instruction {
            Instruction::Alu { wide, operation, to, from } => {
                self.set(to, calculate(operation, wide, self.get(to), self.operand(from)));
            }
            Instruction::Negate { wide, to } => self.set(to, calculate(Arithmetic::Sub, wide, 0, self.get(to))),
            Instruction::ByteOrder { to, bits, swap } => self.set(to, reorder(self.get(to), bits, swap)),
            Instruction::LoadConstant { to, value } => self.set(to, value),
            Instruction::LoadMap { to, map } => self.set(to, map as u64),
            Instruction::LoadData { to, section, offset } => {
                self.set(to, address(DATA + section as u64, u64::from(offset)));
            }
            Instruction::Load { bytes, to, base, offset } => {
                let value = self.load(self.get(base).wrapping_add(i64::from(offset) as u64), bytes)?;
                self.set(to, value);
            }
            Instruction::Store { bytes, base, offset, from } => {
                let at = self.get(base).wrapping_add(i64::from(offset) as u64);
                self.store(at, bytes, self.operand(from))?;
            }
            Instruction::Atomic { wide, operation, fetch, base, offset, register } => {
                let at = self.get(base).wrapping_add(i64::from(offset) as u64);
                self.atomic(wide, operation, fetch, at, register)?;
            }
            Instruction::Call { helper } => {
                let answer = self.call(helper)?;
                self.set(0, answer);
            }
            Instruction::Half | Instruction::Jump { .. } | Instruction::Branch { .. } | Instruction::Exit => {}
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        wide: bool,
        operation: AtomicOperation,
        fetch: bool,
        at: u64,
        register: Register,
    ) -> Result<(), Fault> {
        let bytes = if wide { 8 } else { 4 };
        let (old, operand) = (self.load(at, bytes)?, self.get(register));
        let expected = if wide { self.get(0) } else { self.get(0) & 0xffff_ffff };
        let new = match operation {
            AtomicOperation::Add => old.wrapping_add(operand),
            AtomicOperation::Or => old | operand,
            AtomicOperation::And => old & operand,
            AtomicOperation::Xor => old ^ operand,
            AtomicOperation::Exchange => operand,
            AtomicOperation::CompareExchange if old == expected => operand,
            AtomicOperation::CompareExchange => old,
        };
        self.store(at, bytes, new)?;
        if operation == AtomicOperation::CompareExchange {
            self.set(0, old);
        } else if fetch {
            self.set(register, old);
        }
        Ok(())
    }

    /// The bytes at an address, if they lie in one region, which must be writable if `write`.
    fn bytes(&self, at: u64, count: usize, write: bool) -> Result<&[Cell<u8>], Fault> {
        let (region, offset) = (at >> SHIFT, (at & ((1 << SHIFT) - 1)) as usize);
        let map = region.wrapping_sub(MAP) as usize;
        let section = region.wrapping_sub(DATA) as usize;
        let cells: &[Cell<u8>] = if region == STACK {
            &self.stack
        } else if let Some(map) = self.memory.maps.get(map) {
            map.values(self.context.tenant)
        } else if let Some(section) = self.memory.data.get(section) {
            if write && !section.writable {
                return Err(Fault::ReadOnly);
            }
            &section.bytes
        } else {
            return Err(Fault::Address(at));
        };
        cells.get(offset..).and_then(|rest| rest.get(..count)).ok_or(Fault::Address(at))
    }

    fn load(&self, at: u64, bytes: u8) -> Result<u64, Fault> {
        let mut value = [0; 8];
        if at >> SHIFT == CONTEXT {
            let offset = (at & ((1 << SHIFT) - 1)) as usize;
            let word = self.context.word(offset).ok_or(Fault::Address(at))?.to_le_bytes();
            let part = word.get(offset % 8..offset % 8 + usize::from(bytes)).ok_or(Fault::Address(at))?;
            value[..part.len()].copy_from_slice(part);
        } else {
            let cells = self.bytes(at, usize::from(bytes), false)?;
            value.iter_mut().zip(cells).for_each(|(byte, cell)| *byte = cell.get());
        }
        Ok(u64::from_le_bytes(value))
    }

    fn store(&self, at: u64, bytes: u8, value: u64) -> Result<(), Fault> {
        let cells = self.bytes(at, usize::from(bytes), true)?;
        cells.iter().zip(value.to_le_bytes()).for_each(|(cell, byte)| cell.set(byte));
        Ok(())
    }

    fn call(&mut self, helper: u32) -> Result<u64, Fault> {
        let tenant = self.context.tenant;
        match helper {
            helpers::TIME => Ok(self.context.now_ns),
            helpers::AMOUNT if self.get(1) == address(CONTEXT, 0) => Ok(self.context.amount(self.get(2))),
            helpers::LOOKUP => {
                let (map, key) = self.map_and_key()?;
                let found = self.memory.maps[map].lookup(tenant, key);
                Ok(found.map_or(0, |at| address(MAP + map as u64, at as u64)))
            }
            helpers::UPDATE => {
                let (map, key) = self.map_and_key()?;
                let size = self.memory.maps[map].declaration.value_size;
                let value = (0..size / 8)
                    .map(|word| self.load(self.get(3).wrapping_add(u64::from(word) * 8), 8))
                    .collect::<Result<Vec<_>, _>>()?;
                let flags = self.get(4);
                match self.memory.maps[map].place(tenant, key, flags) {
                    Ok(at) => {
                        for (word, value) in (0..).zip(value) {
                            self.store(address(MAP + map as u64, at as u64 + word * 8), 8, value)?;
                        }
                        Ok(0)
                    }
                    Err(refused) => Ok(refused as i64 as u64),
                }
            }
            helpers::DELETE => {
                let (map, key) = self.map_and_key()?;
                Ok(self.memory.maps[map].delete(tenant, key).map_or_else(|refused| refused as i64 as u64, |()| 0))
            }
            _ => Err(Fault::Helper(helper)),
        }
    }

    fn map_and_key(&self) -> Result<(usize, u64), Fault> {
        let map = self.get(1) as usize;
        let declaration = &self.memory.maps.get(map).ok_or(Fault::Address(map as u64))?.declaration;
        Ok((map, self.load(self.get(2), declaration.key_size as u8)?))
    }
}
