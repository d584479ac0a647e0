//! A policy that may run: loaded, verified, with its maps.

use crate::context::Context;
use crate::error::{PolicyError, Rejection};
use crate::execute::disassemble::disassemble;
use crate::execute::helpers;
use crate::execute::instruction::Instruction;
use crate::execute::run::Program;
use crate::limits;
use crate::map::{Declaration, Map};
use crate::memory::{Data, Memory};
use crate::object::compile::compile;
use crate::object::elf::{self, ObjectProgram, PolicyObject};
use crate::verify::{DataShape, Environment, verify};
use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The answer of `schedule` that means: not now, ask again later.
pub const HOLD: i64 = i64::MIN;

pub struct Policy {
    consume: Option<Program>,
    schedule: Option<Program>,
    memory: Mutex<Memory>,
    summary: Summary,
}

/// A summary of a policy, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub programs: Vec<ProgramSummary>,
    pub maps: Vec<Declaration>,
    /// Names of the helpers that the programs call.
    pub helpers: Vec<&'static str>,
    /// True if the programs run as machine code, false if they are interpreted.
    pub machine_code: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSummary {
    pub name: &'static str,
    pub instructions: usize,
    /// Longest path of a decision, in instructions.
    pub longest: usize,
}

impl Policy {
    /// Loads a policy from an object, or from C source (`.c`) if clang is installed, and verifies
    /// it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        Self::from_object(&Self::object(path)?)
    }

    /// The bytes of an object file, or of the object compiled from C source; not checked yet.
    pub fn object(path: impl AsRef<Path>) -> Result<Vec<u8>, PolicyError> {
        object(path.as_ref())
    }

    /// Loads and verifies the content of an object file.
    pub fn from_object(bytes: &[u8]) -> Result<Self, PolicyError> {
        let object = elf::read(bytes)?;
        let data: Vec<_> =
            object.data.iter().map(|data| DataShape { bytes: data.bytes.len(), writable: data.writable }).collect();
        let mut policy = Self {
            consume: None,
            schedule: None,
            summary: Summary {
                programs: Vec::new(),
                maps: object.maps.clone(),
                helpers: Vec::new(),
                machine_code: true,
            },
            memory: Mutex::new(Memory { maps: object.maps.iter().map(Map::new).collect(), data: data_of(&object) }),
        };
        let mut verified: Vec<&[Instruction]> = Vec::new();
        for program in &object.programs {
            let answers = program.name == "schedule";
            let environment = Environment { maps: &object.maps, data: &data, answers };
            let (instructions, longest) = check(program, environment).map_err(PolicyError::Rejected)?;
            verified.push(instructions);
            policy.summary.programs.push(ProgramSummary {
                name: program.name,
                instructions: instructions.len(),
                longest,
            });
            let runnable = Program::new(instructions.to_vec(), longest, program.returns_int);
            policy.summary.machine_code &= runnable.is_machine_code();
            *(if answers { &mut policy.schedule } else { &mut policy.consume }) = Some(runnable);
        }
        policy.summary.helpers = helpers::used(&verified);
        Ok(policy)
    }

    /// Lists the instructions of a policy's programs, verified or not.
    pub fn disassemble(path: impl AsRef<Path>) -> Result<String, PolicyError> {
        let object = elf::read(&object(path.as_ref())?)?;
        let mut text = String::new();
        for program in &object.programs {
            text += &format!("{}:\n", program.name);
            let instructions = program.instructions.as_ref().map_err(|failure| {
                PolicyError::Rejected(rejection(program, failure.at, failure.problem.clone(), None))
            })?;
            for (at, instruction) in instructions.iter().enumerate() {
                if let Some((_, file, line, source)) = program.lines.iter().find(|(from, ..)| *from == at) {
                    text += &format!("; {file}:{line}: {}\n", source.trim());
                }
                if *instruction != Instruction::Half {
                    text += &format!("{at:6}  {}\n", disassemble(instruction));
                }
            }
        }
        Ok(text)
    }

    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// This policy without machine code.
    pub fn interpreted(mut self) -> Self {
        self.consume.iter_mut().chain(&mut self.schedule).for_each(Program::interpret_only);
        self.summary.machine_code = false;
        self
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a tenant's usage to the policy.
    pub fn consume(&self, context: &Context) {
        if let Some(program) = &self.consume {
            program.run(&mut self.memory(), context);
        }
    }

    /// The urgency of the command at the head of a queue: higher runs first, [`HOLD`] not now.
    pub fn schedule(&self, context: &Context) -> i64 {
        self.schedule.as_ref().map_or(0, |program| program.run(&mut self.memory(), context))
    }

    /// [`Policy::consume`] for a caller with exclusive access.
    pub(crate) fn consume_mut(&mut self, context: &Context) {
        if let Some(program) = &self.consume {
            program.run(self.memory.get_mut().unwrap_or_else(PoisonError::into_inner), context);
        }
    }

    /// [`Policy::schedule`] for a caller with exclusive access.
    pub(crate) fn schedule_mut(&mut self, context: &Context) -> i64 {
        let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.schedule.as_ref().map_or(0, |program| program.run(memory, context))
    }

    /// Drops a tenant's entries from the per-tenant maps, after its end.
    pub fn forget(&self, tenant: u64) {
        self.memory().maps.iter_mut().for_each(|map| map.forget(tenant));
    }

    /// The words of a map's value, for tools and tests.
    pub fn entry(&self, map: &str, tenant: u64, key: u64) -> Option<Vec<u64>> {
        let mut memory = self.memory();
        let map = memory.maps.iter_mut().find(|known| known.declaration.name == map)?;
        let (at, size) = (map.lookup(tenant, key)?, map.declaration.value_size as usize);
        let cells = map.values(tenant).get(at..at + size)?;
        let bytes: Vec<u8> = cells.iter().map(Cell::get).collect();
        Some(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect())
    }

    /// Takes over the content of those maps of the predecessor that have equal declarations.
    pub(crate) fn inherit(&mut self, predecessor: &mut Self) {
        let old = predecessor.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        let new = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        for map in &mut new.maps {
            if let Some(same) = old.maps.iter_mut().find(|other| other.declaration == map.declaration) {
                std::mem::swap(map, same);
            }
        }
    }
}

/// The object's bytes, compiled from source if necessary.
fn object(path: &Path) -> Result<Vec<u8>, PolicyError> {
    let unreadable = |cause| PolicyError::Read { path: path.to_owned(), cause };
    // One byte more than allowed shows that the file is too long.
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(limits::MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.starts_with(b"\x7fELF") {
        Ok(bytes)
    } else if path.extension().is_some_and(|extension| extension == "c") {
        compile(path)
    } else {
        Err(PolicyError::UnknownKind(path.to_owned()))
    }
}

fn data_of(object: &PolicyObject) -> Vec<Data> {
    let cells = |bytes: &[u8]| bytes.iter().map(|byte| Cell::new(*byte)).collect();
    object.data.iter().map(|data| Data { bytes: cells(&data.bytes), writable: data.writable }).collect()
}

fn check<'a>(
    program: &'a ObjectProgram,
    environment: Environment<'_>,
) -> Result<(&'a [Instruction], usize), Box<Rejection>> {
    let instructions = match &program.instructions {
        Ok(instructions) => instructions,
        Err(failure) => return Err(rejection(program, failure.at, failure.problem.clone(), None)),
    };
    match verify(instructions, environment) {
        Ok(longest) => Ok((instructions, longest)),
        Err(found) => Err(rejection(program, found.at, found.problem.text, found.problem.help)),
    }
}

fn rejection(program: &ObjectProgram, at: usize, problem: String, help: Option<&'static str>) -> Box<Rejection> {
    let instruction = program.instructions.as_ref().ok().and_then(|instructions| instructions.get(at));
    let source = program.lines.iter().filter(|(from, ..)| *from <= at).max_by_key(|(from, ..)| *from);
    Box::new(Rejection {
        program: program.name.to_owned(),
        instruction: at,
        text: instruction.map_or_else(|| "(not decoded)".into(), disassemble),
        source: source.map(|(_, file, line, text)| (file.clone(), *line, text.clone())),
        problem,
        help,
    })
}
