//! `unpack`, `sets`: the members of the one struct that a function takes are its parameters.

use crate::model::{Field, Function, Sized, Struct, Type, TypeKind};
use crate::model::{Member, Unpacked};
use crate::resolve::calls::functions::find;
use crate::resolve::terms::types::describe;
use crate::resolve::{Piece, Resolver};
use crate::syntax::ast::{Argument, AstExprKind, Block, Descriptor, FunctionItem, Name, Statement};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;
use crate::syntax::suggest::similar;
use std::sync::LazyLock;

/// `in;` and `out;`, which nobody writes for a parameter that points to a member.
static INTO: LazyLock<Statement> = LazyLock::new(|| direction("in"));
static OUT_OF: LazyLock<Statement> = LazyLock::new(|| direction("out"));

fn direction(word: &str) -> Statement {
    let name = Name { text: word.to_string(), span: Span::default() };
    Statement::Descriptor(Descriptor { name, arguments: None, body: None::<Block>, span: Span::default() })
}

impl<'a> Resolver<'a> {
    /// The member that says how many bytes of the struct the caller has; `Err`: it is none, which is reported.
    fn size_member(&mut self, span: Span, s: &Struct, named: &[&Field], sets: &[&Field]) -> Result<Option<Sized>, ()> {
        match named.first() {
            Some(size) => {
                let width = size.ty.size();
                let number = matches!(size.ty.kind, TypeKind::Int { .. }) && matches!(width, 2 | 4 | 8);
                if !number || sets.contains(size) {
                    self.report(
                        Diagnostic::error(span, format!("`{}` is no size", size.name))
                            .label(format!("this is {}", describe(&size.ty)))
                            .help("the member is a number that says how many bytes of the struct the caller has"),
                    );
                    return Err(());
                }
                let required = named.iter().map(|f| f.offset + f.ty.size()).max().unwrap_or(0);
                Ok(Some(Sized { offset: size.offset, width, required, total: s.size }))
            }
            None => Ok(None),
        }
    }

    /// Gives the function the parameters that its description unpacks.
    pub(in crate::resolve) fn unpack(&mut self, body: &[Piece<'a>], item: &FunctionItem, function: &mut Function) {
        let Some(d) = find(body, "unpack") else {
            if let Some(sets) = find(body, "sets") {
                self.report(
                    Diagnostic::error(sets.span, "`sets` without `unpack`")
                        .label("which struct has these members?")
                        .help("`unpack;` makes the members of the struct that the function takes its parameters"),
                );
            }
            return;
        };
        let declared = function.signature.clone();
        let pointee = match function.signature.parameters.as_slice() {
            [(_, ty)] => ty.pointee().cloned(),
            _ => None,
        };
        let Some((TypeKind::Struct(s @ Struct { union: false, .. }), ty)) = pointee.as_ref().map(|ty| (&ty.kind, ty))
        else {
            self.report(
                Diagnostic::error(d.span, format!("`{}` has no struct to unpack", item.name.text))
                    .label("the only parameter must be a pointer to a struct"),
            );
            return;
        };
        if let Some(member) = doubtful(s) {
            self.report(
                Diagnostic::error(d.span, format!("member `{}` of {} is no parameter", member.name, describe(ty)))
                    .label("an array, a part of a union, or a number of bits")
                    .help("describe the struct in `argument(...) { element { field(...) { } } }`"),
            );
            return;
        }
        let sets: Vec<&Field> = find(body, "sets").map(|d| self.members(d, s, ty)).unwrap_or_default();
        let named = self.members(d, s, ty);
        let Ok(sized) = self.size_member(d.span, s, &named, &sets) else { return };
        let member = |field: &Field| Member {
            offset: field.offset,
            ty: field.ty.clone(),
            pointed_to: sets.contains(&field) || matches!(field.ty.kind, TypeKind::Struct(_)),
            set: sets.contains(&field),
        };
        let members: Vec<Member> = s.fields.iter().map(member).collect();
        function.parameters = s.fields.iter().map(|field| field.name.clone()).collect();
        function.signature.parameters =
            s.fields.iter().zip(&members).map(|(field, member)| (field.name.clone(), parameter(member))).collect();
        function.unpacked = Some(Box::new(Unpacked { declared, bytes: s.size, sized, members }));
    }

    /// The members that the arguments of a descriptor name.
    fn members<'s>(&mut self, d: &Descriptor, s: &'s Struct, ty: &Type) -> Vec<&'s Field> {
        let mut named = Vec::new();
        for argument in d.arguments.iter().flatten() {
            let (name, span) = match argument {
                Argument::Expr(e) => match &e.kind {
                    AstExprKind::Name(name) => (name.as_str(), e.span),
                    _ => ("", e.span),
                },
                _ => ("", d.span),
            };
            match s.fields.iter().find(|f| f.name == name) {
                Some(field) => named.push(field),
                None => {
                    let near = similar(name, s.fields.iter().map(|f| f.name.as_str()));
                    let message = format!("{} has no member `{name}`", describe(ty));
                    self.report(Diagnostic::error(span, message).label("unknown member").suggest(near));
                }
            }
        }
        named
    }

    /// The direction of the data behind a parameter that points to a member, unless the description says it.
    pub(in crate::resolve) fn member_direction(
        &mut self,
        function: &Function,
        parameter: usize,
        own: &[Piece<'a>],
    ) -> Option<Piece<'a>> {
        let member = function.unpacked.as_ref()?.members.get(parameter).filter(|member| member.pointed_to)?;
        self.only_one(own);
        let said = ["in", "out"].iter().any(|word| crate::resolve::items::has(own, word));
        let word = if member.set { &*OUT_OF } else { &*INTO };
        (!said).then_some(Piece::Statement(word))
    }

    /// Reports what would make a parameter that points to a member anything but a pointer to one such value.
    fn only_one(&mut self, own: &[Piece<'a>]) {
        for piece in own {
            match piece {
                Piece::If { then, otherwise, .. } => {
                    self.only_one(then);
                    self.only_one(otherwise);
                }
                Piece::Statement(Statement::Descriptor(d)) => {
                    if !matches!(d.name.text.as_str(), "in" | "out" | "element" | "placeholder") {
                        self.report(
                            Diagnostic::error(d.span, format!("`{}` on a pointer to a member", d.name.text))
                                .label("it points to the one value in the struct")
                                .help("`element { ... }` describes the member"),
                        );
                    }
                }
                Piece::Statement(_) => {}
            }
        }
    }
}

/// The type of the parameter for a member.
fn parameter(member: &Member) -> Type {
    if !member.pointed_to {
        return member.ty.clone();
    }
    Type {
        kind: TypeKind::Pointer { to: Box::new(member.ty.clone()), constant: false },
        spelling: format!("{} *", member.ty.spelling),
        handle: None,
    }
}

/// The first member that shares its bytes with another one, or that is an array.
fn doubtful(s: &Struct) -> Option<&Field> {
    let mut end = 0;
    s.fields.iter().find(|field| {
        let shared = field.offset < end;
        end = end.max(field.offset + field.ty.size());
        shared || matches!(field.ty.kind, TypeKind::Array { .. } | TypeKind::Incomplete)
    })
}
