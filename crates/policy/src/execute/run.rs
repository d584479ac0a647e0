//! Runs a verified program, and the helpers as machine code calls them.

use crate::context::Context;
use crate::execute::instruction::Instruction;
use crate::execute::interpret::interpret;
use crate::memory::Memory;

/// A program that the verifier accepted.
pub struct Program {
    pub instructions: Vec<Instruction>,
    /// Longest path of a decision, in instructions.
    pub longest: usize,
    /// True if the C function returns 32 bits, which must be sign-extended.
    pub returns_int: bool,
    #[cfg(target_arch = "x86_64")]
    pub machine: Option<crate::execute::jit::CompiledCode>,
}

impl Program {
    /// Prepares a program. The verifier must have accepted `instructions` for the memory that it
    /// will run with.
    pub fn new(instructions: Vec<Instruction>, longest: usize, returns_int: bool) -> Self {
        Self {
            // On a system that forbids execution of memory that was written, programs are
            // interpreted.
            #[cfg(target_arch = "x86_64")]
            machine: crate::execute::jit::compile(&instructions).ok(),
            instructions,
            longest,
            returns_int,
        }
    }

    pub fn is_machine_code(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.machine.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    pub fn interpret_only(&mut self) {
        #[cfg(target_arch = "x86_64")]
        {
            self.machine = None;
        }
    }

    #[inline]
    pub fn run(&self, memory: &mut Memory, context: &Context) -> i64 {
        let answer = self.answer(memory, context);
        if self.returns_int { i64::from(answer as i32) } else { answer as i64 }
    }

    #[inline]
    fn answer(&self, memory: &mut Memory, context: &Context) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if let Some(machine) = &self.machine {
            return machine.run(memory, context);
        }
        let answer = interpret(&self.instructions, self.longest, memory, context);
        debug_assert!(answer.is_ok(), "the verifier accepted what it should not: {answer:?}");
        // The interpreter has stopped a faulty program: the decision is neutral.
        answer.unwrap_or(0)
    }
}
