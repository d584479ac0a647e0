//! Codes that refused, unsupported and lost calls return: known when nothing else works, and never the code of success.

use crate::model::{Callee, ErrorPlace, Expr, ExprKind, Function, Model, StatusType, TableSource};
use crate::resolve::constant;
use crate::syntax::diagnostics::Diagnostic;

pub fn check(model: &Model, diagnostics: &mut Vec<Diagnostic>) {
    let mut checker = CodeChecker { model, diagnostics };
    for handle in &model.handle_types {
        checker.fixed(&handle.invalid, "`invalid`");
    }
    if let Some(error) = &model.error {
        checker.fixed(&Some(error.success.clone()), "`success`");
        let codes = [
            (&error.failure, "failure"),
            (&error.unsupported, "unsupported"),
            (&error.absent, "absent"),
            (&error.lost, "lost"),
        ];
        for (code, what) in codes {
            checker.fixed(code, &format!("`{what}` of an error type"));
            if what != "unsupported" {
                checker.no_success(code, &error.success, what);
            }
        }
    }
    for status in &model.statuses {
        checker.fixed(&Some(status.success.clone()), "`success`");
        for (code, what) in codes(status) {
            checker.made(code, what);
            checker.no_success(&Some(code.clone()), &status.success, what);
        }
    }
    model.tables.iter().filter_map(|table| table.source.as_ref()).for_each(|source| checker.later(source));
    model.functions.iter().for_each(|function| checker.function(function));
}

fn codes(status: &StatusType) -> [(&Expr, &'static str); 4] {
    [
        (&status.failure, "failure"),
        (&status.unsupported, "unsupported"),
        (&status.absent, "absent"),
        (&status.lost, "lost"),
    ]
}

struct CodeChecker<'a> {
    model: &'a Model,
    diagnostics: &'a mut Vec<Diagnostic>,
}

impl CodeChecker<'_> {
    /// What the later functions of a table return is known for status objects only: a code could be of any type.
    fn later(&mut self, source: &TableSource) {
        if source.longer == 0 || self.model.statuses.iter().any(|status| !status.given) {
            return;
        }
        self.diagnostics.push(
            Diagnostic::error(source.address.span, "nothing says what a later function of this table returns")
                .label("no type of this API is a `status`")
                .help("`longer` is for tables whose functions return status objects"),
        );
    }

    fn function(&mut self, function: &Function) {
        self.fixed(&function.success, "`success`");
        let success = match function.error {
            ErrorPlace::Nowhere => None,
            ErrorPlace::Status(status) | ErrorPlace::Given { status, .. } => Some(&self.model.statuses[status].success),
            _ => self.model.error.as_ref().map(|e| &e.success),
        };
        let success = function.success.as_ref().filter(|_| success.is_some()).or(success).cloned();
        let own = [
            (&function.failure, "failure"),
            (&function.unsupported, "unsupported"),
            (&function.absent, "absent"),
            (&function.lost, "lost"),
        ];
        for (code, what) in own {
            let Some(value) = code else { continue };
            match function.asynchronous {
                // The server leaves it behind for a later call.
                Some(_) => self.fixed(code, &format!("`{what}` of an asynchronous function")),
                None => self.made(value, what),
            }
            let status = matches!(function.error, ErrorPlace::Status(_));
            if let Some(success) = success.as_ref().filter(|_| status || what != "unsupported") {
                self.no_success(code, success, what);
            }
        }
        match function.error {
            ErrorPlace::Status(status) => self.status(function, status),
            ErrorPlace::Given { status, .. } => self.asynchronous(function, status),
            _ => {}
        }
    }

    /// Checks a function that returns a status object: its errors are objects, and no later call has one for them.
    fn status(&mut self, function: &Function, status: usize) {
        self.asynchronous(function, status);
        for requirement in &function.requirements {
            self.diagnostics.push(
                Diagnostic::error(requirement.otherwise.span, "`require` cannot make a status object")
                    .label("this is evaluated on the server")
                    .help("answer such calls in the guest: `if (!(e)) { local(...); }`"),
            );
        }
    }

    fn asynchronous(&mut self, function: &Function, status: usize) {
        let Some(condition) = &function.asynchronous else { return };
        if function.late.is_some() && matches!(function.error, ErrorPlace::Status(_)) {
            return;
        }
        let name = &self.model.handle_types[self.model.statuses[status].handle].name;
        self.diagnostics.push(
            Diagnostic::error(condition.span, format!("`{}` is asynchronous but reports by a `{name}`", function.name))
                .label("what the object tells is not known yet")
                .help("make the call synchronous, or say with `late(e)` where the failure is reported"),
        );
    }

    /// A constant: both sides know it at any time.
    fn fixed(&mut self, code: &Option<Expr>, what: &str) {
        if let Some(code) = code.as_ref().filter(|c| constant(c).is_none() && !matches!(c.kind, ExprKind::Float(_))) {
            self.diagnostics.push(
                Diagnostic::error(code.span, format!("{what} is a constant"))
                    .label("this is computed")
                    .help("where functions return an object that tells of a failure, describe its type with `status;`: then `failure`, `unsupported` and `lost` can call a `utility(guest)` function that makes one"),
            );
        }
    }

    /// A constant, or what a function of the guest makes without asking the server.
    fn made(&mut self, code: &Expr, what: &str) {
        let mut wrong = None;
        code.walk(&mut |e| {
            let found = match &e.kind {
                ExprKind::Call(Callee::Utility(u), _) if self.model.utility_functions[*u].stub => {
                    Some("a function of the API is a call to the server")
                }
                ExprKind::Call(Callee::Utility(u), _)
                    if self.model.utility_functions[*u].side == crate::model::Side::Server =>
                {
                    Some("this function exists on the server only")
                }
                _ => None,
            };
            wrong = wrong.or(found.map(|label| (e.span, label)));
        });
        if let Some((span, label)) = wrong {
            self.diagnostics.push(
                Diagnostic::error(span, format!("`{what}` is wanted where no server answers"))
                    .label(label)
                    .help("call a function of a `utility(guest)` block"),
            );
        }
    }

    /// A call that did not happen must not look like one that did.
    fn no_success(&mut self, code: &Option<Expr>, success: &Expr, what: &str) {
        let Some(code) = code else { return };
        if constant(code).is_some() && constant(code) == constant(success) {
            self.diagnostics.push(
                Diagnostic::error(code.span, format!("`{what}` is the value of success"))
                    .label("the application would go on as if the call had been made")
                    .related(success.span, "success")
                    .help(
                        "give another code; for a type that is an object, one that a `utility(guest)` function makes",
                    ),
            );
        }
    }
}
