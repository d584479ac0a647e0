//! Checks of `sandbox { ... }` blocks.

use super::Loader;
use crate::model::Sandbox;
use crate::syntax::ast::{SandboxRule, Text};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;
use aviary_sandbox::system_calls::{Call, Requests};
use std::path::{Component, Path};

/// Kinds of rules.
const RULES: [&str; 4] = ["read", "device", "syscalls", "ioctl"];

impl Loader<'_> {
    /// Adds the rules of one block; those of several blocks (imports) all hold.
    pub(super) fn sandbox(&mut self, rules: &[SandboxRule], sandbox: &mut Sandbox) {
        for SandboxRule { name, texts } in rules {
            for text in texts {
                let wrong = match name.text.as_str() {
                    "read" => path(text).map(|()| sandbox.read.push(text.value.clone())).err(),
                    "device" => device(text).map(|()| sandbox.devices.push(text.value.clone())).err(),
                    "syscalls" => call(text).map(|()| sandbox.system_calls.push(text.value.clone())).err(),
                    "ioctl" => requests(text).map(|()| sandbox.ioctls.push(text.value.clone())).err(),
                    _ => break,
                };
                self.diagnostics.extend(wrong);
            }
            if !RULES.contains(&name.text.as_str()) {
                self.diagnostics.push(
                    Diagnostic::error(name.span, format!("`{}` is no rule of a sandbox", name.text))
                        .label("expected `read`, `device`, `syscalls` or `ioctl`")
                        .suggest(similar(&name.text, RULES)),
                );
            }
        }
    }
}

type Checked = Result<(), Diagnostic>;

/// A path is absolute and has no way up in it.
fn path(text: &Text) -> Checked {
    let path = Path::new(&text.value);
    let wrong = |label: &str| Err(Diagnostic::error(text.span, "a sandbox shows absolute paths").label(label));
    if !path.is_absolute() {
        return wrong("a relative path");
    }
    if path.components().any(|part| matches!(part, Component::ParentDir)) {
        return wrong("`..` leads elsewhere");
    }
    if path.components().count() == 1 {
        return wrong("this is all of the machine");
    }
    Ok(())
}

fn device(text: &Text) -> Checked {
    path(text)?;
    if !text.value.starts_with("/dev/") || text.value.trim_end_matches('*') == "/dev/" {
        return Err(Diagnostic::error(text.span, "a device is a node in /dev")
            .label("not in /dev")
            .help("`device(\"/dev/name*\")` names all nodes that begin so; `read` shows files"));
    }
    Ok(())
}

fn call(text: &Text) -> Checked {
    if !Call::is_known(&text.value) {
        return Err(Diagnostic::error(text.span, format!("`{}` is no system call", text.value))
            .label("Linux has none of this name")
            .suggest(similar(&text.value, Call::names())));
    }
    // A call that this architecture lacks stands for nothing here.
    if text.value.parse().is_ok_and(|call: Call| call.is_never_allowed()) {
        return Err(Diagnostic::error(text.span, format!("a sandbox never allows `{}`", text.value))
            .label("it would lead out of the sandbox"));
    }
    Ok(())
}

fn requests(text: &Text) -> Checked {
    let wrong = |_| {
        Diagnostic::error(text.span, format!("`{}` stands for no requests of ioctl", text.value))
            .label("expected a letter, a number or two")
            .help("`\"F\"`: all requests of this type; `\"0x30000001\"`: one; `\"1-80\"`: the first to the last")
    };
    text.value.parse::<Requests>().map(drop).map_err(wrong)
}
