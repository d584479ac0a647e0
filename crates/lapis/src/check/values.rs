//! Values that cross by value: calls that no compiler here can make are refused.

use super::plans;
use crate::model::{Function, Kind, Signature, Type};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;

pub fn check(function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    signature(&function.signature, &format!("`{}`", function.name), function.span, diagnostics);
    let packed = function.unpacked.is_some();
    if let Some(value) = function.address_values.first().filter(|_| packed || !function.signature.is_plain()) {
        diagnostics.push(
            Diagnostic::error(value.span, format!("`address` of `{}` cannot hand over values", function.name))
                .label("the call passes structures, which a function of its own does")
                .help("send the value in a parameter of the call"),
        );
    }
    for rule in function.arguments.iter().chain([&function.result]) {
        plans(rule, &mut |plan| {
            if let Kind::Callback(callback) = &plan.kind {
                signature(&callback.signature, "the callback", plan.span, diagnostics);
            }
        });
    }
}

fn signature(signature: &Signature, what: &str, span: Span, diagnostics: &mut Vec<Diagnostic>) {
    if let Some(convention) = &signature.foreign {
        diagnostics.push(
            Diagnostic::error(span, format!("{what} has a calling convention of its own"))
                .label(format!("{convention}, not that of C"))
                .help("mark it `unsupported`, or answer it in the guest with `local(...)`"),
        );
    }
    let parameters = signature.parameters.iter().map(|(name, ty)| (format!("parameter `{name}` of {what}"), ty));
    let result = [(format!("what {what} returns"), &signature.result)];
    for (value, ty) in parameters.chain(result).filter(|(_, ty)| !ty.is_value()) {
        diagnostics.push(impassable(&value, ty, span));
    }
}

fn impassable(value: &str, ty: &Type, span: Span) -> Diagnostic {
    Diagnostic::error(span, format!("{value} cannot be passed by value"))
        .label(format!("the members of `{}` are not known", ty.spelling))
        .help("include the header that defines the type, or mark the function `unsupported`")
}
