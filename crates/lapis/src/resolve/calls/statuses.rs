//! Objects that tell how a call ended: returned, or given to the call and filled by it.

use crate::model::{ErrorPlace, Expr, ExprKind, Side, Signature, StatusText, StatusType, Type, TypeKind};
use crate::resolve::calls::state::Prototype;
use crate::resolve::terms::scope::Scope;
use crate::resolve::{Piece, Resolver};
use crate::syntax::ast::{Argument, AstExprKind, Descriptor, Statement};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;

impl<'a> Resolver<'a> {
    /// `status` or `status_text`: a lost or refused call has to tell of it as well, so it is said how.
    pub(in crate::resolve) fn status_type(&mut self, rule: usize, body: &[Piece<'a>], returned: bool) {
        let (handle, span) = (self.type_rules[rule].handle, self.type_rules[rule].span);
        let mut codes: [Option<Expr>; 5] = [const { None }; 5];
        let mut text = None;
        const NAMES: [&str; 5] = ["success", "failure", "lost", "unsupported", "absent"];
        for piece in body {
            let Piece::Statement(Statement::Descriptor(d)) = piece else { continue };
            if d.name.text == "status_text" {
                text = handle.and_then(|handle| self.status_text(d, handle));
            }
            let Some(at) = NAMES.iter().position(|name| *name == d.name.text) else {
                self.handle_code(handle, d);
                continue;
            };
            codes[at] = self.argument_value(d, 0, &Scope::constant());
            let fits = |v: &Expr| if returned { stands_for_object(v) } else { matches!(v.kind, ExprKind::Int(_)) };
            if let Some(value) = codes[at].as_ref().filter(|v| !fits(v)) {
                let label = format!("this is {}", crate::resolve::terms::types::describe(&value.ty));
                let message =
                    if returned { "a status object is a pointer" } else { "the code of a status is a constant" };
                self.report(Diagnostic::error(value.span, message).label(label));
            }
        }
        if !returned {
            codes[0] = Some(Expr { kind: ExprKind::Int(0), ty: crate::resolve::terms::types::c_int(), span });
        }
        let missing: Vec<&str> = NAMES[..3].iter().zip(&codes).filter(|(_, c)| c.is_none()).map(|(n, _)| *n).collect();
        let [success, failure, lost, unsupported, absent] = codes;
        if let (Some(handle), Some(success), Some(failure), Some(lost)) = (handle, success, failure, lost) {
            let unsupported = unsupported.unwrap_or_else(|| failure.clone());
            let absent = absent.unwrap_or_else(|| unsupported.clone());
            let given = !returned;
            self.model.statuses.push(StatusType { handle, given, success, failure, unsupported, absent, lost, text });
        } else if !missing.is_empty() {
            let (label, help) = if returned {
                (
                    "what does a call return that is refused, or whose server is gone?",
                    "`success(NULL); failure(make(...)); lost(make(...));`, where `make` is a function of a `utility(guest)` block",
                )
            } else {
                (
                    "what does the object say after a call that is refused, or whose server is gone?",
                    "`failure(CODE); lost(CODE);`, or `status;` if calls return such objects",
                )
            };
            self.report(
                Diagnostic::error(span, format!("a status type without `{}`", missing.join("`, `")))
                    .label(label)
                    .help(help),
            );
        }
    }

    /// `status_text(code, text, told)`
    fn status_text(&mut self, d: &Descriptor, handle: usize) -> Option<StatusText> {
        let code = self.named_function(d, 0, Prototype::StatusCode, Some(handle));
        let text = self.named_function(d, 1, Prototype::Identity, Some(handle));
        Some(StatusText { code: code?, text: text?, told: self.told(d, handle)? })
    }

    /// The function of the guest that is told what an object says.
    fn told(&mut self, d: &Descriptor, handle: usize) -> Option<usize> {
        let Argument::Expr(ast) = d.arguments.as_ref()?.get(2)? else { return None };
        let name = if let AstExprKind::Name(name) = &ast.kind { name.as_str() } else { "" };
        let found = self.utility(name).filter(|n| {
            let function = &self.model.utility_functions[*n];
            let void = matches!(function.result.kind, TypeKind::Void);
            let [object, code, text] = &function.parameters[..] else { return false };
            void && !function.stub
                && function.side != Side::Server
                && object.handle == Some(handle)
                && code.kind == TypeKind::Int { bytes: 8, signed: true }
                && is_text(text)
        });
        if found.is_none() {
            let ty = self.model.handle_types[handle].name.clone();
            let name = if name.is_empty() { "told" } else { name };
            self.report(
                Diagnostic::error(ast.span, "`status_text` tells a function of the guest")
                    .label("not such a function")
                    .help(format!(
                        "declare it in `utility(guest)`: `void {name}({ty}, int64_t code, const char *text)`"
                    )),
            );
        }
        found
    }

    /// Reports a `status_argument` without a type that says how the guest fills it.
    pub(in crate::resolve) fn status_arguments_are_known(&mut self) {
        let Some(name) = self.status_arguments.first() else { return };
        if !self.model.statuses.iter().any(|s| s.given && s.text.is_some()) {
            let (text, span): (&str, Span) = (&name.text, name.span);
            self.report(
                Diagnostic::error(span, format!("what does a call that is refused write into `{text}`?"))
                    .label("no type says it")
                    .help("`type(T) { handle; status_text(code, text, told); failure(CODE); lost(CODE); }`"),
            );
        }
    }

    /// Where a function reports by a status object, if it does.
    pub(in crate::resolve) fn status_place(&self, signature: &Signature, names: &[String]) -> Option<ErrorPlace> {
        let of = |ty: &Type, given: bool| {
            let handle = ty.handle?;
            self.model.statuses.iter().position(|s| s.handle == handle && s.given == given)
        };
        if let Some(status) = of(&signature.result, false) {
            return Some(ErrorPlace::Status(status));
        }
        signature.parameters.iter().enumerate().find_map(|(parameter, (own, ty))| {
            let named = |name: &String| self.status_arguments.iter().any(|known| known.text == *name);
            // A description has names of its own: what it names otherwise the call does not fill.
            let said = named(names.get(parameter).unwrap_or(own));
            Some(ErrorPlace::Given { status: of(ty, true).filter(|_| said)?, parameter })
        })
    }
}

/// A pointer, or a constant that can stand for one.
fn stands_for_object(value: &Expr) -> bool {
    matches!(value.ty.kind, TypeKind::Pointer { .. }) || matches!(value.kind, ExprKind::Int(_) | ExprKind::Null)
}

fn is_text(ty: &Type) -> bool {
    ty.pointee().is_some_and(|to| matches!(to.kind, TypeKind::Int { bytes: 1, .. }))
}
