//! The policy that a specification names: compiled, verified, and what is wrong with it in plain words.

use crate::syntax::ast::Text;
use crate::syntax::diagnostics::Diagnostic;
use aviary_policy::{Policy, PolicyError};
use std::io;
use std::path::Path;

/// The object of a policy that a node will accept.
pub fn object(path: &Path) -> Result<Vec<u8>, PolicyError> {
    let object = Policy::object(path)?;
    Policy::from_object(&object)?;
    Ok(object)
}

/// Why there is none.
pub fn diagnostic(text: &Text, error: &PolicyError) -> Diagnostic {
    let name = &text.value;
    match error {
        PolicyError::Read { cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
            Diagnostic::error(text.span, format!("there is no policy file `{name}`"))
                .label("looked for in the folder of this specification")
        }
        PolicyError::Compile { messages, .. } => {
            Diagnostic::error(text.span, format!("the policy `{name}` does not compile"))
                .label("C for eBPF")
                .help(messages.to_string().trim().to_owned())
        }
        PolicyError::Rejected(rejection) => {
            let refused =
                Diagnostic::error(text.span, format!("the policy `{name}` is refused: {}", rejection.problem));
            let refused = match &rejection.source {
                Some((file, line, code)) => refused.label(format!("{file}:{line}: {}", code.trim())),
                None => refused.label(format!(
                    "`{}`, instruction {}: {}",
                    rejection.program, rejection.instruction, rejection.text
                )),
            };
            match rejection.help {
                Some(help) => refused.help(help),
                None => refused,
            }
        }
        _ => Diagnostic::error(text.span, format!("the policy `{name}` cannot be used: {error}")).label("named here"),
    }
}
