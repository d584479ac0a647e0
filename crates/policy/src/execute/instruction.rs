//! eBPF instructions, decoded once: verifier, interpreter, machine code and disassembler read one
//! list, so that they cannot disagree about an encoding.

/// Number of a register, 0..=10; 10 is the read-only frame pointer.
pub type Register = u8;
pub const FRAME: Register = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    Register(Register),
    /// A constant, sign-extended to 64 bits.
    Immediate(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    ShiftLeft,
    ShiftRight,
    Mod,
    Xor,
    Move,
    ShiftRightSigned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    BitsSet,
    SignedGreater,
    SignedGreaterOrEqual,
    SignedLess,
    SignedLessOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    Add,
    Or,
    And,
    Xor,
    Exchange,
    CompareExchange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    Alu {
        wide: bool,
        operation: Arithmetic,
        to: Register,
        from: Operand,
    },
    Negate {
        wide: bool,
        to: Register,
    },
    /// Keeps the low `bits`, with their bytes reversed if `swap`.
    ByteOrder {
        to: Register,
        bits: u8,
        swap: bool,
    },
    LoadConstant {
        to: Register,
        value: u64,
    },
    LoadMap {
        to: Register,
        map: usize,
    },
    LoadData {
        to: Register,
        section: usize,
        offset: u32,
    },
    /// The second half of a 16-byte load; never a jump target.
    Half,
    Load {
        bytes: u8,
        to: Register,
        base: Register,
        offset: i16,
    },
    Store {
        bytes: u8,
        base: Register,
        offset: i16,
        from: Operand,
    },
    Atomic {
        wide: bool,
        operation: AtomicOperation,
        fetch: bool,
        base: Register,
        offset: i16,
        register: Register,
    },
    Jump {
        target: usize,
    },
    Branch {
        wide: bool,
        condition: Condition,
        left: Register,
        right: Operand,
        target: usize,
    },
    Call {
        helper: u32,
    },
    Exit,
}

/// The target of the address in a 16-byte load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    Map(usize),
    Data { section: usize, offset: u32 },
}

/// The instruction that cannot be decoded, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct Undecodable {
    pub at: usize,
    pub problem: String,
}

struct Raw {
    opcode: u8,
    to: u8,
    from: u8,
    offset: i16,
    immediate: i32,
}

impl Raw {
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 8] = bytes.get(..8)?.try_into().ok()?;
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = *bytes;
        Some(Self {
            opcode,
            to: registers & 15,
            from: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            immediate: i32::from_le_bytes([i0, i1, i2, i3]),
        })
    }

    /// The operand that bit 3 of the opcode selects; the other one must be unused.
    fn operand(&self) -> Result<Operand, String> {
        if self.opcode & 8 == 0 {
            self.unused(self.from == 0)?;
            Ok(Operand::Immediate(self.immediate))
        } else {
            self.unused(self.immediate == 0)?;
            Ok(Operand::Register(self.from))
        }
    }

    fn unused(&self, fine: bool) -> Result<(), String> {
        if fine { Ok(()) } else { Err("a field that this instruction does not use is not 0".into()) }
    }

    fn unknown(&self) -> String {
        format!("opcode {:#04x} is not in the instruction set of policies (compile with -mcpu=v3)", self.opcode)
    }
}

/// Decodes a program. `reference` returns the loader's target for the slot of a 16-byte load.
pub fn decode(code: &[u8], reference: impl Fn(usize) -> Option<Reference>) -> Result<Vec<Instruction>, Undecodable> {
    let count = code.len() / 8;
    let mut program = Vec::with_capacity(count);
    while program.len() < count {
        let at = program.len();
        let fail = |problem| Undecodable { at, problem };
        let raw = Raw::read(&code[at * 8..]).ok_or_else(|| fail("the program is cut off".into()))?;
        if raw.to > FRAME || raw.from > FRAME {
            return Err(fail("there are only the registers r0 to r10".into()));
        }
        if raw.opcode == 0x18 {
            let second =
                Raw::read(&code[(at + 1) * 8..]).ok_or_else(|| fail("a 16-byte load has no second half".into()))?;
            program.push(wide_load(&raw, &second, reference(at)).map_err(fail)?);
            program.push(Instruction::Half);
        } else {
            if reference(at).is_some() {
                return Err(fail("a relocation belongs to an instruction that loads no address".into()));
            }
            program.push(single(&raw, at, count).map_err(fail)?);
        }
    }
    check_targets(&program)?;
    Ok(program)
}

fn check_targets(program: &[Instruction]) -> Result<(), Undecodable> {
    for (at, instruction) in program.iter().enumerate() {
        if let Some(target) = instruction.target()
            && program[target] == Instruction::Half
        {
            return Err(Undecodable { at, problem: "jumps into the middle of a 16-byte load".into() });
        }
    }
    Ok(())
}

fn wide_load(raw: &Raw, second: &Raw, reference: Option<Reference>) -> Result<Instruction, String> {
    raw.unused(raw.offset == 0)?;
    second.unused(second.opcode == 0 && second.to == 0 && second.from == 0 && second.offset == 0)?;
    if raw.to == FRAME {
        return Err("r10 cannot be written".into());
    }
    let to = raw.to;
    match reference {
        Some(Reference::Map(map)) => Ok(Instruction::LoadMap { to, map }),
        Some(Reference::Data { section, offset }) => Ok(Instruction::LoadData { to, section, offset }),
        // Descriptors of the kernel's maps and similar references.
        None if raw.from != 0 => Err("names a map or variable that the object does not have".into()),
        None => {
            let value = u64::from(raw.immediate as u32) | u64::from(second.immediate as u32) << 32;
            Ok(Instruction::LoadConstant { to, value })
        }
    }
}

fn single(raw: &Raw, at: usize, count: usize) -> Result<Instruction, String> {
    let instruction = match raw.opcode & 7 {
        class @ (4 | 7) => alu(raw, class == 7)?,
        class @ (5 | 6) => jump(raw, class == 5, at, count)?,
        1 if raw.opcode & 0xe0 == 0x60 => {
            raw.unused(raw.immediate == 0)?;
            Instruction::Load { bytes: size(raw.opcode), to: raw.to, base: raw.from, offset: raw.offset }
        }
        2 if raw.opcode & 0xe0 == 0x60 => {
            raw.unused(raw.from == 0)?;
            let from = Operand::Immediate(raw.immediate);
            Instruction::Store { bytes: size(raw.opcode), base: raw.to, offset: raw.offset, from }
        }
        3 if raw.opcode & 0xe0 == 0x60 => {
            raw.unused(raw.immediate == 0)?;
            let from = Operand::Register(raw.from);
            Instruction::Store { bytes: size(raw.opcode), base: raw.to, offset: raw.offset, from }
        }
        3 if matches!(raw.opcode, 0xc3 | 0xdb) => atomic(raw)?,
        _ => return Err(raw.unknown()),
    };
    if instruction.written() == Some(FRAME) {
        return Err("r10 cannot be written".into());
    }
    Ok(instruction)
}

fn size(opcode: u8) -> u8 {
    match opcode & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

fn alu(raw: &Raw, wide: bool) -> Result<Instruction, String> {
    raw.unused(raw.offset == 0)?;
    let operation = match raw.opcode & 0xf0 {
        0x00 => Arithmetic::Add,
        0x10 => Arithmetic::Sub,
        0x20 => Arithmetic::Mul,
        0x30 => Arithmetic::Div,
        0x40 => Arithmetic::Or,
        0x50 => Arithmetic::And,
        0x60 => Arithmetic::ShiftLeft,
        0x70 => Arithmetic::ShiftRight,
        0x80 => {
            raw.unused(raw.from == 0 && raw.immediate == 0 && raw.opcode & 8 == 0)?;
            return Ok(Instruction::Negate { wide, to: raw.to });
        }
        0x90 => Arithmetic::Mod,
        0xa0 => Arithmetic::Xor,
        0xb0 => Arithmetic::Move,
        0xc0 => Arithmetic::ShiftRightSigned,
        0xd0 => return byte_order(raw, wide),
        _ => return Err(raw.unknown()),
    };
    let from = raw.operand()?;
    let limit = if wide { 64 } else { 32 };
    use Arithmetic::{Div, Mod, ShiftLeft, ShiftRight, ShiftRightSigned};
    if let Operand::Immediate(value) = from {
        if matches!(operation, ShiftLeft | ShiftRight | ShiftRightSigned) && !(0..limit).contains(&value) {
            return Err(format!("shifts by {value}, but a register has {limit} bits"));
        }
        if matches!(operation, Div | Mod) && value == 0 {
            return Err("divides by 0".into());
        }
    }
    Ok(Instruction::Alu { wide, operation, to: raw.to, from })
}

fn byte_order(raw: &Raw, wide: bool) -> Result<Instruction, String> {
    raw.unused(raw.from == 0)?;
    // 0xd4 converts to little endian, 0xdc to big endian, 0xd7 always swaps.
    let swap = match (wide, raw.opcode & 8 != 0) {
        (false, big) => big,
        (true, false) => true,
        (true, true) => return Err(raw.unknown()),
    };
    match raw.immediate {
        bits @ (16 | 32 | 64) => Ok(Instruction::ByteOrder { to: raw.to, bits: bits as u8, swap }),
        _ => Err("converts the byte order of a value that has neither 16 nor 32 nor 64 bits".into()),
    }
}

fn jump(raw: &Raw, wide: bool, at: usize, count: usize) -> Result<Instruction, String> {
    let target = || {
        usize::try_from(at as i64 + 1 + i64::from(raw.offset))
            .ok()
            .filter(|target| *target < count)
            .ok_or_else(|| "jumps out of the program".to_string())
    };
    let condition = match raw.opcode & 0xf0 {
        0x00 if wide && raw.opcode == 0x05 => {
            raw.unused(raw.to == 0 && raw.from == 0 && raw.immediate == 0)?;
            return Ok(Instruction::Jump { target: target()? });
        }
        0x80 if wide && raw.opcode == 0x85 => return call(raw),
        0x90 if wide && raw.opcode == 0x95 => {
            raw.unused(raw.to == 0 && raw.from == 0 && raw.immediate == 0 && raw.offset == 0)?;
            return Ok(Instruction::Exit);
        }
        0x10 => Condition::Equal,
        0x20 => Condition::Greater,
        0x30 => Condition::GreaterOrEqual,
        0x40 => Condition::BitsSet,
        0x50 => Condition::NotEqual,
        0x60 => Condition::SignedGreater,
        0x70 => Condition::SignedGreaterOrEqual,
        0xa0 => Condition::Less,
        0xb0 => Condition::LessOrEqual,
        0xc0 => Condition::SignedLess,
        0xd0 => Condition::SignedLessOrEqual,
        _ => return Err(raw.unknown()),
    };
    Ok(Instruction::Branch { wide, condition, left: raw.to, right: raw.operand()?, target: target()? })
}

fn call(raw: &Raw) -> Result<Instruction, String> {
    raw.unused(raw.to == 0 && raw.offset == 0)?;
    match (raw.from, u32::try_from(raw.immediate)) {
        (0, Ok(helper)) => Ok(Instruction::Call { helper }),
        (0, Err(_)) => Err(format!("there is no helper {}", raw.immediate)),
        (1, _) => Err("calls another function of the policy; declare it `static __always_inline`".into()),
        _ => Err("calls a kernel function, which policies cannot use".into()),
    }
}

fn atomic(raw: &Raw) -> Result<Instruction, String> {
    let (operation, fetch) = match raw.immediate {
        0x00 => (AtomicOperation::Add, false),
        0x01 => (AtomicOperation::Add, true),
        0x40 => (AtomicOperation::Or, false),
        0x41 => (AtomicOperation::Or, true),
        0x50 => (AtomicOperation::And, false),
        0x51 => (AtomicOperation::And, true),
        0xa0 => (AtomicOperation::Xor, false),
        0xa1 => (AtomicOperation::Xor, true),
        0xe1 => (AtomicOperation::Exchange, true),
        0xf1 => (AtomicOperation::CompareExchange, true),
        other => return Err(format!("there is no atomic operation {other:#x}")),
    };
    let wide = raw.opcode == 0xdb;
    Ok(Instruction::Atomic { wide, operation, fetch, base: raw.to, offset: raw.offset, register: raw.from })
}

impl Instruction {
    pub fn target(&self) -> Option<usize> {
        match self {
            Self::Jump { target } | Self::Branch { target, .. } => Some(*target),
            _ => None,
        }
    }

    /// The register that the instruction writes; calls write more (r0 to r5).
    pub fn written(&self) -> Option<Register> {
        match *self {
            Self::Alu { to, .. }
            | Self::Negate { to, .. }
            | Self::ByteOrder { to, .. }
            | Self::LoadConstant { to, .. }
            | Self::LoadMap { to, .. }
            | Self::LoadData { to, .. }
            | Self::Load { to, .. } => Some(to),
            Self::Atomic { operation: AtomicOperation::CompareExchange, .. } => Some(0),
            Self::Atomic { fetch: true, register, .. } => Some(register),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_pattern_is_decoded_or_refused() {
        // All opcodes with several operands: no panic, and a jump target always inside the program.
        for opcode in 0..=255u8 {
            for rest in [[0u8; 7], [0x21, 1, 0, 7, 0, 0, 0], [0xff; 7], [0x11, 0xff, 0x7f, 1, 0, 0, 0]] {
                let mut code = vec![opcode];
                code.extend(rest);
                code.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
                if let Ok(program) = decode(&code, |_| None) {
                    assert!(program.iter().filter_map(Instruction::target).all(|target| target < program.len()));
                }
            }
        }
    }
}
