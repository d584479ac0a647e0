//! Why a policy cannot be used.

use std::fmt;
use std::path::PathBuf;

#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum PolicyError {
    /// cannot read {path}: {cause}
    Read { path: PathBuf, cause: std::io::Error },
    /// {0} is neither C source (.c) nor an eBPF object
    UnknownKind(PathBuf),
    /// no clang that compiles eBPF was found: install clang, set AVIARY_CLANG to one, or load an object compiled elsewhere with `clang -target bpf -O2 -mcpu=v3 -g -c` (tried: {0})
    NoCompiler(String),
    /// cannot compile {path}:{messages}
    Compile { path: PathBuf, messages: CompilerMessages },
    /// cannot run the compiler: {0}
    Compiler(std::io::Error),
    /// not a usable eBPF object: {0}
    Object(String),
    /// map `{map}`: {problem}
    Map { map: String, problem: String },
    /// {0}
    Rejected(Box<Rejection>),
}

/// What the compiler said, line by line.
#[derive(Debug)]
pub struct CompilerMessages(pub(crate) String);

impl fmt::Display for CompilerMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.0.trim_end())
    }
}

/// What the verifier found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `consume` or `schedule`.
    pub program: String,
    /// Number of the instruction, from 0 at the program's first.
    pub instruction: usize,
    /// The instruction as the disassembler writes it.
    pub text: String,
    /// File, line and text of the source, if the object tells.
    pub source: Option<(String, u32, String)>,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub help: Option<&'static str>,
}

impl std::error::Error for Rejection {}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` was rejected: {}", self.program, self.problem)?;
        if let Some((file, line, text)) = &self.source {
            write!(f, "\n  --> {file}:{line}: {}", text.trim())?;
        }
        write!(f, "\n  at instruction {}: {}", self.instruction, self.text)?;
        if let Some(help) = self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}
