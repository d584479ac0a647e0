//! Reads a policy's object file: programs, maps, global variables.

use crate::error::PolicyError;
use crate::execute::instruction::{Instruction, Reference, Undecodable, decode};
use crate::limits;
use crate::map::{DEFINITION, Declaration, check_total};
use crate::object::btf::{Btf, Line};
use object::elf::{EM_BPF, ET_REL, FileHeader64, SHT_NOBITS, SHT_PROGBITS};
use object::read::elf::{ElfFile, ElfSection, ElfSymbol, FileHeader, SectionHeader};
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex, SymbolKind,
};

type Elf<'a> = ElfFile<'a, FileHeader64<LittleEndian>>;
type Section<'a, 'b> = ElfSection<'a, 'b, FileHeader64<LittleEndian>>;
type Symbol<'a, 'b> = ElfSymbol<'a, 'b, FileHeader64<LittleEndian>>;

/// Relocation type of an 8-byte address in a 16-byte load.
const R_BPF_64_64: u32 = 1;
/// The names of the two programs.
pub const NAMES: [&str; 2] = ["consume", "schedule"];

#[derive(Debug)]
pub struct ObjectProgram {
    pub name: &'static str,
    pub instructions: Result<Vec<Instruction>, Undecodable>,
    pub returns_int: bool,
    /// Number of the first instruction of a line, with the line's file, number and text.
    pub lines: Vec<(usize, String, u32, String)>,
}

#[derive(Debug)]
pub struct ObjectData {
    pub bytes: Vec<u8>,
    pub writable: bool,
}

#[derive(Debug)]
pub struct PolicyObject {
    pub programs: Vec<ObjectProgram>,
    pub maps: Vec<Declaration>,
    pub data: Vec<ObjectData>,
}

fn bad(problem: impl Into<String>) -> PolicyError {
    PolicyError::Object(problem.into())
}

struct Reader<'a> {
    file: Elf<'a>,
    maps: Option<SectionIndex>,
    declarations: Vec<Declaration>,
    data: Vec<(SectionIndex, ObjectData)>,
    lines: Vec<Line>,
}

pub fn read(bytes: &[u8]) -> Result<PolicyObject, PolicyError> {
    if bytes.len() > limits::MAX_FILE_BYTES {
        return Err(bad(format!("it has {} bytes, more than the limit of {}", bytes.len(), limits::MAX_FILE_BYTES)));
    }
    let file = Elf::parse(bytes).map_err(|error| bad(error.to_string()))?;
    let header = file.elf_header();
    if header.e_machine(LittleEndian) != EM_BPF || header.e_type(LittleEndian) != ET_REL {
        return Err(bad("it is not an unlinked object for eBPF; compile with `clang -target bpf -O2 -mcpu=v3 -g -c`"));
    }
    let section = |name| file.section_by_name_bytes(name).and_then(|section| section.data().ok()).unwrap_or(&[]);
    let btf = Btf::read(section(b".BTF"));
    let lines = btf.as_ref().map(|btf| btf.lines(section(b".BTF.ext"))).unwrap_or_default();
    let mut reader = Reader { maps: None, declarations: Vec::new(), data: Vec::new(), lines, file };
    reader.read_maps()?;
    let mut programs = Vec::new();
    for name in NAMES {
        if let Some((section, start, end)) = reader.find(name)? {
            let function = reader.function_at(section, start).unwrap_or_else(|| name.to_owned());
            let returns_int = btf.as_ref().is_some_and(|btf| btf.returns_int(&function));
            programs.push(reader.program(name, section, start, end, returns_int)?);
        }
    }
    if programs.is_empty() {
        return Err(bad("it has neither a function `consume` nor a function `schedule`"));
    }
    let data = reader.data.into_iter().map(|(_, data)| data).collect();
    Ok(PolicyObject { programs, maps: reader.declarations, data })
}

impl<'a> Reader<'a> {
    fn section(&self, index: SectionIndex) -> Result<Section<'a, '_>, PolicyError> {
        self.file.section_by_index(index).map_err(|error| bad(error.to_string()))
    }

    fn name(symbol: &Symbol<'a, '_>) -> String {
        String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default()).into_owned()
    }

    fn read_maps(&mut self) -> Result<(), PolicyError> {
        let Some(section) = self.file.section_by_name_bytes(b"maps") else { return Ok(()) };
        let content = section.data().map_err(|error| bad(error.to_string()))?;
        let (definitions, rest) = content.as_chunks::<DEFINITION>();
        if !rest.is_empty() || definitions.len() > limits::MAX_MAPS {
            return Err(bad(format!(
                "its section `maps` has {} bytes: not up to {} definitions of {DEFINITION} bytes (map_def of aviary_policy.h)",
                content.len(),
                limits::MAX_MAPS
            )));
        }
        let mut names = vec![None; definitions.len()];
        for symbol in self.file.symbols() {
            let at = symbol.address() as usize;
            if symbol.section_index() == Some(section.index())
                && symbol.kind() != SymbolKind::Section
                && at.is_multiple_of(DEFINITION)
                && let Some(name) = names.get_mut(at / DEFINITION)
            {
                *name = Some(Self::name(&symbol));
            }
        }
        let mut declarations = Vec::new();
        for (definition, (number, name)) in definitions.iter().zip(names.into_iter().enumerate()) {
            let name = name.unwrap_or_else(|| format!("number {number}"));
            let declaration = Declaration::read(&name, definition)
                .map_err(|problem| PolicyError::Map { map: name.clone(), problem })?;
            if declarations.iter().any(|other: &Declaration| other.name == name) {
                return Err(PolicyError::Map { map: name, problem: "two maps have this name".into() });
            }
            declarations.push(declaration);
        }
        check_total(&declarations).map_err(bad)?;
        self.maps = Some(section.index());
        self.declarations = declarations;
        Ok(())
    }

    /// Finds a program: the function of this name, or the whole section of this name.
    fn find(&self, name: &str) -> Result<Option<(SectionIndex, u64, u64)>, PolicyError> {
        let mut functions = self.file.symbols().filter(|symbol| {
            symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.name_bytes() == Ok(name.as_bytes())
        });
        if let Some(symbol) = functions.next() {
            if functions.next().is_some() {
                return Err(bad(format!("it has two functions `{name}`")));
            }
            let section = symbol.section_index().ok_or_else(|| bad(format!("`{name}` is in no section")))?;
            let end = symbol.address().checked_add(symbol.size());
            return Ok(Some((section, symbol.address(), end.ok_or_else(|| bad("a function has an impossible size"))?)));
        }
        Ok(self.file.section_by_name_bytes(name.as_bytes()).map(|section| (section.index(), 0, section.size())))
    }

    fn function_at(&self, section: SectionIndex, start: u64) -> Option<String> {
        let mut symbols = self.file.symbols();
        let found = symbols.find(|symbol| {
            symbol.kind() == SymbolKind::Text && symbol.section_index() == Some(section) && symbol.address() == start
        })?;
        Some(Self::name(&found))
    }

    fn program(
        &mut self,
        name: &'static str,
        index: SectionIndex,
        start: u64,
        end: u64,
        returns_int: bool,
    ) -> Result<ObjectProgram, PolicyError> {
        let (code, references, section_name) = {
            let section = self.section(index)?;
            let content = section.data().map_err(|error| bad(error.to_string()))?;
            let code = usize::try_from(start)
                .ok()
                .zip(usize::try_from(end).ok())
                .and_then(|(start, end)| content.get(start..end))
                .ok_or_else(|| bad(format!("`{name}` is not within its section")))?;
            if code.is_empty() || !code.len().is_multiple_of(8) {
                return Err(bad(format!("`{name}` has {} bytes, not a multiple of 8", code.len())));
            }
            if code.len() / 8 > limits::MAX_INSTRUCTIONS {
                return Err(bad(format!(
                    "`{name}` has {} instructions; at most {} are possible",
                    code.len() / 8,
                    limits::MAX_INSTRUCTIONS
                )));
            }
            let section_name = String::from_utf8_lossy(section.name_bytes().unwrap_or_default()).into_owned();
            (code, self.targets(name, &section, start, end, code)?, section_name)
        };
        let mut resolved = vec![None; code.len() / 8];
        for (slot, target, offset) in references {
            resolved[slot] = Some(self.resolve(target, offset)?);
        }
        let instructions = decode(code, |slot| resolved.get(slot).copied().flatten());
        let lines = self
            .lines
            .iter()
            .filter(|line| line.section == section_name && (start..end).contains(&u64::from(line.offset)))
            .map(|line| {
                ((u64::from(line.offset) - start) as usize / 8, line.file.clone(), line.number, line.text.clone())
            })
            .collect();
        Ok(ObjectProgram { name, instructions, returns_int, lines })
    }

    /// The relocations of a program: instruction, target section, offset in the section.
    fn targets(
        &self,
        name: &str,
        section: &Section<'a, '_>,
        start: u64,
        end: u64,
        code: &[u8],
    ) -> Result<Vec<(usize, SectionIndex, u64)>, PolicyError> {
        let mut found = Vec::new();
        for (at, relocation) in section.relocations() {
            if !(start..end).contains(&at) {
                continue;
            }
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                return Err(bad(format!("a relocation of `{name}` has no symbol")));
            };
            let symbol = self.file.symbol_by_index(symbol).map_err(|error| bad(error.to_string()))?;
            let target = symbol
                .section_index()
                .ok_or_else(|| bad(format!("`{name}` uses `{}`, which is not defined", Self::name(&symbol))))?;
            if !matches!(relocation.flags(), RelocationFlags::Elf { r_type } if r_type.0 == R_BPF_64_64) {
                return Err(bad(format!(
                    "`{name}` calls the function `{}`; declare it `static __always_inline`",
                    self.callee(target, &symbol, code, (at - start) as usize)
                )));
            }
            let offset = (at - start) as usize;
            let addend = code.get(offset + 4..offset + 8).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            match addend {
                Some(addend) if offset.is_multiple_of(8) => {
                    let to = symbol.address().wrapping_add(u64::from(u32::from_le_bytes(addend)));
                    found.push((offset / 8, target, to));
                }
                _ => return Err(bad(format!("a relocation of `{name}` is not at an instruction"))),
            }
        }
        Ok(found)
    }

    /// The function that a call names by its section and a distance.
    fn callee(&self, section: SectionIndex, symbol: &Symbol<'a, '_>, code: &[u8], at: usize) -> String {
        if symbol.kind() != SymbolKind::Section {
            return Self::name(symbol);
        }
        let distance = code.get(at + 4..at + 8).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        let start = distance.map(|distance| (i64::from(i32::from_le_bytes(distance)) + 1) as u64);
        start.and_then(|start| self.function_at(section, start.wrapping_mul(8))).unwrap_or_else(|| "?".into())
    }

    fn resolve(&mut self, target: SectionIndex, offset: u64) -> Result<Reference, PolicyError> {
        if Some(target) == self.maps {
            let number = offset as usize / DEFINITION;
            if !(offset as usize).is_multiple_of(DEFINITION) || number >= self.declarations.len() {
                return Err(bad("an address is between two maps"));
            }
            return Ok(Reference::Map(number));
        }
        let offset = u32::try_from(offset).map_err(|_| bad("an address is outside of the global variables"))?;
        if let Some(section) = self.data.iter().position(|(index, _)| *index == target) {
            return Ok(Reference::Data { section, offset });
        }
        let data = self.read_data(target)?;
        self.data.push((target, data));
        Ok(Reference::Data { section: self.data.len() - 1, offset })
    }

    fn read_data(&self, index: SectionIndex) -> Result<ObjectData, PolicyError> {
        let section = self.section(index)?;
        let name = String::from_utf8_lossy(section.name_bytes().unwrap_or_default()).into_owned();
        let writable = match name.as_str() {
            ".data" | ".bss" => true,
            name if name.starts_with(".rodata") => false,
            _ => return Err(bad(format!("an address in section `{name}` is neither a map nor a global variable"))),
        };
        if section.size() > limits::MAX_DATA_BYTES {
            return Err(bad(format!(
                "section `{name}` has {} bytes; at most {} are possible",
                section.size(),
                limits::MAX_DATA_BYTES
            )));
        }
        if self.data.len() >= limits::MAX_DATA_SECTIONS {
            return Err(bad(format!("more than {} sections of global variables", limits::MAX_DATA_SECTIONS)));
        }
        if section.relocations().next().is_some() {
            return Err(bad("a global variable holds an address; only numbers are possible"));
        }
        let bytes = match section.elf_section_header().sh_type(LittleEndian) {
            SHT_NOBITS => vec![0; section.size() as usize],
            SHT_PROGBITS => section.data().map_err(|error| bad(error.to_string()))?.to_vec(),
            _ => return Err(bad(format!("section `{name}` is of an unknown type"))),
        };
        Ok(ObjectData { bytes, writable })
    }
}
