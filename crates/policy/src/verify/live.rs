//! Live registers: those that some path still reads, before every instruction.

use crate::execute::helpers;
use crate::execute::instruction::{Arithmetic, AtomicOperation, Instruction, Operand};

fn bit(register: u8) -> u16 {
    1 << register
}

fn operand(from: Operand) -> u16 {
    match from {
        Operand::Register(register) => bit(register),
        Operand::Immediate(_) => 0,
    }
}

/// Bit sets of the registers read, and of the registers overwritten without being read.
fn effect(instruction: &Instruction, answers: bool) -> (u16, u16) {
    match *instruction {
        Instruction::Alu { operation: Arithmetic::Move, to, from, .. } => (operand(from), bit(to)),
        Instruction::Alu { to, from, .. } => (bit(to) | operand(from), 0),
        Instruction::Negate { to, .. } | Instruction::ByteOrder { to, .. } => (bit(to), 0),
        Instruction::LoadConstant { to, .. } | Instruction::LoadMap { to, .. } | Instruction::LoadData { to, .. } => {
            (0, bit(to))
        }
        Instruction::Half | Instruction::Jump { .. } => (0, 0),
        Instruction::Load { to, base, .. } => (bit(base), bit(to)),
        Instruction::Store { base, from, .. } => (bit(base) | operand(from), 0),
        Instruction::Atomic { operation: AtomicOperation::CompareExchange, base, register, .. } => {
            (bit(base) | bit(register) | 1, 0)
        }
        Instruction::Atomic { base, register, .. } => (bit(base) | bit(register), 0),
        Instruction::Branch { left, right, .. } => (bit(left) | operand(right), 0),
        Instruction::Call { helper } => {
            let count = helpers::find(helper).map_or(5, |helper| helper.arguments.len());
            (((1 << count) - 1) << 1, 0b11_1111)
        }
        Instruction::Exit => (u16::from(answers), 0),
    }
}

/// The live registers before each instruction. `answers`: r0 is read at the end.
pub fn live_registers(program: &[Instruction], answers: bool) -> Vec<u16> {
    let mut live = vec![0u16; program.len() + 1];
    // Backwards until nothing changes: each pass settles at least as much as the previous one
    // reached.
    loop {
        let mut changed = false;
        for at in (0..program.len()).rev() {
            let (read, written) = effect(&program[at], answers);
            let after = match program[at] {
                Instruction::Jump { target } => live[target],
                Instruction::Branch { target, .. } => live[target] | live[at + 1],
                Instruction::Exit => 0,
                _ => live[at + 1],
            };
            let before = after & !written | read;
            changed |= before != live[at];
            live[at] = before;
        }
        if !changed {
            return live;
        }
    }
}
