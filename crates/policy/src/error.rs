//! Errors of loading a policy.

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

/// The compiler's messages, line by line.
#[derive(Debug)]
pub struct CompilerMessages(pub(crate) String);

impl fmt::Display for CompilerMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.0.trim_end())
    }
}

/// The verifier's reason to refuse a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Name of the program: `consume` or `schedule`.
    pub program: String,
    /// Number of the instruction, from 0 at the program's first.
    pub instruction: usize,
    /// The instruction in the disassembler's notation.
    pub text: String,
    /// File, line and text of the source, if the object has line information.
    pub source: Option<(String, u32, String)>,
    /// The violated rule.
    pub problem: String,
    /// The remedy.
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
