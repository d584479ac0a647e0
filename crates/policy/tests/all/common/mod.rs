//! An assembler for test programs, which also writes code that clang never would.
#![allow(dead_code, reason = "each test file uses a part")]

use object::write::{Object, Relocation, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

/// One instruction of 8 bytes, or a 16-byte load of a map's or variable's address.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    Plain([u8; 8]),
    Map(u8, usize),
    Variable(u8, u32),
    Constant(u8, u32),
}

pub use Word::{Constant, Map, Variable};

pub const fn raw(opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Word {
    let (o, i) = (offset.to_le_bytes(), immediate.to_le_bytes());
    Word::Plain([opcode, from << 4 | to, o[0], o[1], i[0], i[1], i[2], i[3]])
}

pub const ADD: u8 = 0x00;
pub const SUB: u8 = 0x10;
pub const MUL: u8 = 0x20;
pub const DIV: u8 = 0x30;
pub const OR: u8 = 0x40;
pub const AND: u8 = 0x50;
pub const LSH: u8 = 0x60;
pub const RSH: u8 = 0x70;
pub const NEG: u8 = 0x80;
pub const MOD: u8 = 0x90;
pub const XOR: u8 = 0xa0;
pub const MOV: u8 = 0xb0;
pub const ARSH: u8 = 0xc0;

/// 64-bit arithmetic with a constant.
pub const fn alu(operation: u8, to: u8, value: i32) -> Word {
    raw(0x07 | operation, to, 0, 0, value)
}
pub const fn alu_r(operation: u8, to: u8, from: u8) -> Word {
    raw(0x0f | operation, to, from, 0, 0)
}
pub const fn alu32(operation: u8, to: u8, value: i32) -> Word {
    raw(0x04 | operation, to, 0, 0, value)
}
pub const fn alu32_r(operation: u8, to: u8, from: u8) -> Word {
    raw(0x0c | operation, to, from, 0, 0)
}
pub const fn mov(to: u8, value: i32) -> Word {
    alu(MOV, to, value)
}
pub const fn mov_r(to: u8, from: u8) -> Word {
    alu_r(MOV, to, from)
}

pub const JEQ: u8 = 0x10;
pub const JGT: u8 = 0x20;
pub const JGE: u8 = 0x30;
pub const JSET: u8 = 0x40;
pub const JNE: u8 = 0x50;
pub const JSGT: u8 = 0x60;
pub const JSGE: u8 = 0x70;
pub const JLT: u8 = 0xa0;
pub const JLE: u8 = 0xb0;
pub const JSLT: u8 = 0xc0;
pub const JSLE: u8 = 0xd0;

pub const fn jump(condition: u8, left: u8, value: i32, by: i16) -> Word {
    raw(0x05 | condition, left, 0, by, value)
}
pub const fn jump_r(condition: u8, left: u8, right: u8, by: i16) -> Word {
    raw(0x0d | condition, left, right, by, 0)
}
pub const fn jump32(condition: u8, left: u8, value: i32, by: i16) -> Word {
    raw(0x06 | condition, left, 0, by, value)
}
pub const fn goto(by: i16) -> Word {
    raw(0x05, 0, 0, by, 0)
}
pub const fn call(helper: i32) -> Word {
    raw(0x85, 0, 0, 0, helper)
}
pub const fn exit() -> Word {
    raw(0x95, 0, 0, 0, 0)
}

const fn size(bytes: u8) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}
pub const fn load(bytes: u8, to: u8, base: u8, offset: i16) -> Word {
    raw(0x61 | size(bytes), to, base, offset, 0)
}
pub const fn store(bytes: u8, base: u8, offset: i16, from: u8) -> Word {
    raw(0x63 | size(bytes), base, from, offset, 0)
}
pub const fn put(bytes: u8, base: u8, offset: i16, value: i32) -> Word {
    raw(0x62 | size(bytes), base, 0, offset, value)
}
/// An atomic operation: 0 add, 0x40 or, 0x50 and, 0xa0 xor, 0xe1 exchange, 0xf1 compare and
/// exchange; | 1 returns the old value.
pub const fn atomic(bytes: u8, operation: i32, base: u8, offset: i16, register: u8) -> Word {
    raw(if bytes == 8 { 0xdb } else { 0xc3 }, base, register, offset, operation)
}

/// r0 = the value of map 0 under the key 0, or NULL.
pub fn lookup() -> Vec<Word> {
    vec![put(8, 10, -8, 0), mov_r(2, 10), alu(ADD, 2, -8), Map(1, 0), call(1)]
}

/// Looks up key 0 of map 0 and skips `body` for NULL, with r0 = 0.
pub fn found(body: &[Word]) -> Vec<Word> {
    let mut program = lookup();
    program.push(jump(JEQ, 0, 0, body.iter().map(Word::slots).sum::<usize>() as i16));
    program.extend_from_slice(body);
    program.extend([mov(0, 0), exit()]);
    program
}

impl Word {
    pub fn slots(&self) -> usize {
        if matches!(self, Self::Plain(_)) { 1 } else { 2 }
    }
}

/// A map_def: type, key size, value size, entries, flags.
pub type Definition = [u32; 5];
/// A hash with 8-byte keys and values of 16 bytes.
pub const USUAL: Definition = [1, 8, 16, 16, 0];

pub struct Builder {
    pub object: Object<'static>,
    pub text: object::write::SectionId,
    pub map_section: object::write::SectionId,
    pub maps: Vec<SymbolId>,
    variables: SymbolId,
    constants: SymbolId,
}

pub fn symbol(name: &str, value: u64, size: u64, kind: SymbolKind, section: SymbolSection) -> Symbol {
    Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section,
        flags: SymbolFlags::None,
    }
}

impl Builder {
    pub fn new(maps: &[Definition]) -> Self {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        let text = object.add_section(vec![], b".text".to_vec(), SectionKind::Text);
        let data = object.add_section(vec![], b".data".to_vec(), SectionKind::Data);
        object.append_section_data(data, &[7; 16], 8);
        let constant = object.add_section(vec![], b".rodata".to_vec(), SectionKind::ReadOnlyData);
        object.append_section_data(constant, &[9; 16], 8);
        let section = object.add_section(vec![], b"maps".to_vec(), SectionKind::Data);
        let mut symbols = Vec::new();
        for (number, map) in maps.iter().enumerate() {
            let bytes: Vec<u8> = map.iter().flat_map(|word| word.to_le_bytes()).collect();
            let at = object.append_section_data(section, &bytes, 4);
            let one = symbol(&format!("map{number}"), at, 20, SymbolKind::Data, SymbolSection::Section(section));
            symbols.push(object.add_symbol(one));
        }
        let variables = symbol("variables", 0, 16, SymbolKind::Data, SymbolSection::Section(data));
        let variables = object.add_symbol(variables);
        let constants = symbol("constants", 0, 16, SymbolKind::Data, SymbolSection::Section(constant));
        let constants = object.add_symbol(constants);
        Self { object, text, map_section: section, maps: symbols, variables, constants }
    }

    /// Adds a function.
    pub fn function(&mut self, name: &str, program: &[Word]) {
        let mut code = Vec::new();
        let mut relocations = Vec::new();
        for word in program {
            let (to, symbol, addend) = match *word {
                Word::Plain(bytes) => {
                    code.extend(bytes);
                    continue;
                }
                Map(to, map) => (to, self.maps[map], 0),
                Variable(to, offset) => (to, self.variables, offset),
                Constant(to, offset) => (to, self.constants, offset),
            };
            relocations.push((code.len() as u64, symbol));
            code.extend([0x18, to, 0, 0]);
            code.extend(addend.to_le_bytes());
            code.extend([0; 8]);
        }
        let start = self.object.append_section_data(self.text, &code, 8);
        for (at, symbol) in relocations {
            self.relocate(start + at, symbol, 1);
        }
        let section = SymbolSection::Section(self.text);
        self.object.add_symbol(symbol(name, start, code.len() as u64, SymbolKind::Text, section));
    }

    pub fn relocate(&mut self, offset: u64, symbol: SymbolId, kind: u32) {
        let flags = RelocationFlags::Elf { r_type: object::elf::RelocationType(kind) };
        let relocation = Relocation { offset, symbol, addend: 0, flags };
        self.object.add_relocation(self.text, relocation).expect("a relocation");
    }

    pub fn finish(self) -> Vec<u8> {
        self.object.write().expect("an object")
    }
}

/// An object with one program, `schedule`.
pub fn object_of(program: &[Word], maps: &[Definition]) -> Vec<u8> {
    let mut builder = Builder::new(maps);
    builder.function("schedule", program);
    builder.finish()
}
