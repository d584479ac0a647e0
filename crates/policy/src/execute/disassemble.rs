//! Instructions as text, in the notation of llvm-objdump.

use crate::execute::helpers;
use crate::execute::instruction::{Arithmetic, AtomicOperation, Condition, Instruction, Operand};

fn operand(operand: Operand, letter: char) -> String {
    match operand {
        Operand::Register(register) => format!("{letter}{register}"),
        Operand::Immediate(value) => value.to_string(),
    }
}

fn width(wide: bool) -> char {
    if wide { 'r' } else { 'w' }
}

fn memory(bytes: u8, base: u8, offset: i16) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    format!("*(u{} *)(r{base} {sign} {})", u32::from(bytes) * 8, offset.unsigned_abs())
}

/// Of an operation on a register.
fn arithmetic_sign(operation: Arithmetic) -> &'static str {
    match operation {
        Arithmetic::Add => "+=",
        Arithmetic::Sub => "-=",
        Arithmetic::Mul => "*=",
        Arithmetic::Div => "/=",
        Arithmetic::Or => "|=",
        Arithmetic::And => "&=",
        Arithmetic::ShiftLeft => "<<=",
        Arithmetic::ShiftRight => ">>=",
        Arithmetic::Mod => "%=",
        Arithmetic::Xor => "^=",
        Arithmetic::Move => "=",
        Arithmetic::ShiftRightSigned => "s>>=",
    }
}

/// Of an operation on memory that other CPUs see as one.
fn atomic_sign(operation: AtomicOperation) -> &'static str {
    match operation {
        AtomicOperation::Add => "+=",
        AtomicOperation::Or => "|=",
        AtomicOperation::And => "&=",
        AtomicOperation::Xor => "^=",
        AtomicOperation::Exchange => "<->",
        AtomicOperation::CompareExchange => "<-> if r0:",
    }
}

/// Of a comparison.
fn condition_sign(condition: Condition) -> &'static str {
    match condition {
        Condition::Equal => "==",
        Condition::NotEqual => "!=",
        Condition::Greater => ">",
        Condition::GreaterOrEqual => ">=",
        Condition::Less => "<",
        Condition::LessOrEqual => "<=",
        Condition::BitsSet => "&",
        Condition::SignedGreater => "s>",
        Condition::SignedGreaterOrEqual => "s>=",
        Condition::SignedLess => "s<",
        Condition::SignedLessOrEqual => "s<=",
    }
}

/// The text of one instruction; `at` is its number, for the targets of jumps.
pub fn disassemble(instruction: &Instruction) -> String {
    match *instruction {
        Instruction::Alu { wide, operation, to, from } => {
            let sign = arithmetic_sign(operation);
            let letter = width(wide);
            format!("{letter}{to} {sign} {}", operand(from, letter))
        }
        Instruction::Negate { wide, to } => format!("{0}{to} = -{0}{to}", width(wide)),
        Instruction::ByteOrder { to, bits, swap } => {
            format!("r{to} = {}{bits} r{to}", if swap { "bswap" } else { "le" })
        }
        Instruction::LoadConstant { to, value } => format!("r{to} = {value:#x} ll"),
        Instruction::LoadMap { to, map } => format!("r{to} = map {map}"),
        Instruction::LoadData { to, section, offset } => format!("r{to} = data {section} + {offset}"),
        Instruction::Half => "(second half)".into(),
        Instruction::Load { bytes, to, base, offset } => format!("r{to} = {}", memory(bytes, base, offset)),
        Instruction::Store { bytes, base, offset, from } => {
            format!("{} = {}", memory(bytes, base, offset), operand(from, 'r'))
        }
        Instruction::Atomic { wide, operation, fetch, base, offset, register } => {
            let place = memory(if wide { 8 } else { 4 }, base, offset);
            let sign = atomic_sign(operation);
            format!("lock {place} {sign} r{register}{}", if fetch { " (fetch)" } else { "" })
        }
        Instruction::Jump { target } => format!("goto {target}"),
        Instruction::Branch { wide, condition, left, right, target } => {
            let sign = condition_sign(condition);
            let letter = width(wide);
            format!("if {letter}{left} {sign} {} goto {target}", operand(right, letter))
        }
        Instruction::Call { helper } => match helpers::find(helper) {
            Some(known) => format!("call {}", known.name),
            None => format!("call {helper}"),
        },
        Instruction::Exit => "exit".into(),
    }
}
