//! What the reply of a call that makes an object tells of it.

use crate::model::{Kind, Plan, Side, TypeKind};
use crate::resolve::Resolver;
use crate::resolve::data::kinds::Descriptors;
use crate::syntax::ast::{Argument, AstExprKind, Descriptor};
use crate::syntax::diagnostics::Diagnostic;

impl Resolver<'_> {
    /// `tells(f)` of a handle whose kind is known now.
    pub(in crate::resolve) fn tells(&mut self, all: &Descriptors, plan: &mut Plan) {
        let (Some(d), Kind::Handle { handle, .. }) = (all.get("tells"), &plan.kind) else { return };
        let handle = *handle;
        if !plan.object.allocate {
            self.report(
                Diagnostic::error(d.span, "an object is told of where it is made")
                    .label("this call does not make it")
                    .help("put it next to the `allocate` of the function that makes the object"),
            );
            return;
        }
        let ty = self.model.handle_types[handle].clone();
        // Types without metadata of their own have what `declare_metadata` says.
        let Some(metadata) = ty.metadata.as_ref().or(self.metadata.as_ref()).cloned() else {
            self.report(
                Diagnostic::error(d.span, "the guest has no place for what is told")
                    .label(format!("`{}` has no metadata", ty.name))
                    .help(format!("add `metadata(struct ...);` to `type({})`", ty.name)),
            );
            return;
        };
        if let [first, ..] = &metadata.ty.translated()[..] {
            let message = format!("`{}` is told, and has a pointer in `{first}`", metadata.ty.spelling);
            self.report(
                Diagnostic::error(d.span, message)
                    .label("an address of the API server means nothing in the guest")
                    .help("let it hold numbers and arrays of numbers"),
            );
            return;
        }
        plan.object.tells = self.teller(d, handle, &metadata.ty.kind);
    }

    /// The function of the server that fills the structure.
    fn teller(&mut self, d: &Descriptor, handle: usize, structure: &TypeKind) -> Option<usize> {
        let Argument::Expr(ast) = d.arguments.as_ref()?.first()? else { return None };
        let name = if let AstExprKind::Name(name) = &ast.kind { name.as_str() } else { "" };
        let found = self.utility(name).filter(|n| {
            let function = &self.model.utility_functions[*n];
            let [object, to] = &function.parameters[..] else { return false };
            let to_it = matches!(&to.kind, TypeKind::Pointer { to, constant: false } if to.kind == *structure);
            matches!(function.result.kind, TypeKind::Void)
                && function.side != Side::Guest
                && object.handle == Some(handle)
                && to_it
        });
        if found.is_none() {
            let TypeKind::Struct(s) = structure else { return None };
            let ty = self.model.handle_types[handle].name.clone();
            let name = if name.is_empty() { "f" } else { name };
            self.report(
                Diagnostic::error(ast.span, "`tells` needs a function of the server that fills the metadata")
                    .label("not such a function")
                    .help(format!("declare it in `utility(server)`: `void {name}({ty}, struct {} *to)`", s.name)),
            );
        }
        found
    }
}
