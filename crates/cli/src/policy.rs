//! `aviary policy`: check scheduling policies before a node gets them.

use aviary_policy::{Declaration, Kind, Policy, PolicyError, Summary};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Check scheduling policies (eBPF programs; see docs/policies.md).
#[derive(Args)]
pub struct PolicyCommand {
    #[command(subcommand)]
    action: PolicyAction,
}

#[derive(Subcommand)]
enum PolicyAction {
    /// Compile (if C) and verify policies. Prints what each uses, or why it is refused (exit status 1).
    ///
    /// C source needs a clang with the target bpf: AVIARY_CLANG, or the one on the PATH.
    Check {
        /// C source (NAME.c) or an object made with `clang -target bpf -O2 -mcpu=v3 -g -c`.
        #[arg(required = true, value_name = "FILE")]
        policies: Vec<PathBuf>,
    },
    /// List the instructions of a policy's programs with the source lines; nothing is verified.
    Disassemble {
        /// C source (NAME.c) or an object.
        #[arg(value_name = "FILE")]
        policy: PathBuf,
    },
}

pub fn run(command: PolicyCommand) -> anyhow::Result<ExitCode> {
    match command.action {
        PolicyAction::Check { policies } => Ok(check(&policies)),
        PolicyAction::Disassemble { policy } => {
            print!("{}", Policy::disassemble(policy)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(policies: &[PathBuf]) -> ExitCode {
    let mut refused = 0;
    for path in policies {
        match Policy::load(path) {
            Ok(policy) => print!("{}: accepted\n{}", path.display(), describe(policy.summary())),
            Err(error) => {
                refused += 1;
                match error {
                    // These name the file themselves.
                    PolicyError::Read { .. } | PolicyError::Compile { .. } | PolicyError::UnknownKind(_) => {
                        eprintln!("{error}");
                    }
                    other => eprintln!("{}: {other}", path.display()),
                }
            }
        }
    }
    ExitCode::from(u8::from(refused > 0))
}

fn describe(summary: &Summary) -> String {
    let mut text = String::new();
    for program in &summary.programs {
        text += &format!(
            "  {:9} {} instructions; a decision takes at most {} of them\n",
            program.name, program.instructions, program.longest
        );
    }
    for map in &summary.maps {
        text += &format!("  map       {}\n", describe_map(map));
    }
    if !summary.helpers.is_empty() {
        text += &format!("  helpers   {}\n", summary.helpers.join(", "));
    }
    if !summary.machine_code {
        text += "  runs in the interpreter: no compiler to machine code on this machine\n";
    }
    text
}

fn describe_map(map: &Declaration) -> String {
    let kind = match map.kind {
        Kind::Counters => "counters",
        Kind::Hash => "hash",
        Kind::Array => "array",
    };
    format!(
        "{}: {kind}, up to {} entries{}, keys of {} bytes, values of {}",
        map.name,
        map.max_entries,
        if map.per_tenant { " for each tenant" } else { "" },
        map.key_size,
        map.value_size
    )
}
