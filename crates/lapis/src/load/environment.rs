//! Checks of `pass_environment(...)`.

use super::Loader;
use crate::syntax::ast::Text;
use crate::syntax::diagnostics::Diagnostic;

/// Variables of one API; the greeting of a guest, which carries them, is bounded.
const MAX_PASSED_VARIABLES: usize = 64;
/// Beginnings of names that steer the loader, Aviary itself or the place of programs. An application that could set
/// them for its API server would choose the code that the server loads.
const NEVER: [&str; 3] = ["LD_", "AVIARY_", "GCONV_"];
const NEVER_WHOLE: [&str; 4] = ["PATH", "HOME", "TMPDIR", "LOCPATH"];

impl Loader<'_> {
    /// Adds the names of one item; those of several (imports) all count.
    pub(super) fn pass_environment(&mut self, names: &[Text], passed: &mut Vec<String>) {
        for name in names {
            let wrong = match name.value.as_str() {
                text if !is_variable(text) => {
                    Some(("no name of a variable", "letters, digits and `_`, no digit first"))
                }
                text if NEVER.iter().any(|start| text.starts_with(start)) || NEVER_WHOLE.contains(&text) => {
                    Some(("an application may not set this for its API server", "it chooses code or files there"))
                }
                _ if passed.len() == MAX_PASSED_VARIABLES => Some(("one variable too many", "at most 64 pass")),
                _ => None,
            };
            match wrong {
                Some((label, help)) => self.diagnostics.push(
                    Diagnostic::error(name.span, format!("`{}` cannot pass to API servers", name.value))
                        .label(label)
                        .help(help),
                ),
                None if passed.contains(&name.value) => {}
                None => passed.push(name.value.clone()),
            }
        }
    }
}

fn is_variable(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
