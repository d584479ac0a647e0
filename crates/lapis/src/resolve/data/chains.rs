//! Lists of structs in which each says what it is.

use crate::model::{Chain, ExprKind, Kind, Link, Struct, Type, TypeKind};
use crate::resolve::data::values::Value;
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::describe;
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Argument, AstExprKind, Descriptor, Statement, TypeName};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;

/// The largest struct of a chain, in bytes: links travel inside messages.
const LINK: usize = 4096;

impl<'a> Resolver<'a> {
    /// `chain(type_member, next_member) { link(K, struct S); ... unknown(drop); }`
    pub(in crate::resolve) fn chain(&mut self, d: &'a Descriptor, value: &Value) -> Kind {
        self.described_chain(d, value).map_or(Kind::Unknown, |chain| Kind::Chain(Box::new(chain)))
    }

    /// One kind of structs in a chain, whose kind and pointer to the next are those members.
    fn add_link(
        &mut self,
        link: &'a Descriptor,
        ty: &'a TypeName,
        (kind, next): (&str, &str),
        found: &mut Option<Chain>,
    ) {
        let code = self.argument_value(link, 0, &Scope::constant());
        let (Some(code), Some(ty)) = (code, self.resolve_type(ty)) else { return };
        let ExprKind::Int(code) = code.kind else {
            self.report(Diagnostic::error(link.span, "a link is known by a constant").label("this is computed"));
            return;
        };
        let Some((at, width, next)) = self.link(link, &ty, kind, next) else { return };
        let chain = found.get_or_insert(Chain { kind: (at, width), next, links: Vec::new(), refuse: true });
        // As wide as the member: -1 is all ones there.
        let code = code as u64 & (u64::MAX >> (64 - 8 * width));
        if (chain.kind, chain.next) != ((at, width), next) {
            self.report(
                Diagnostic::error(link.span, "the links of a chain begin alike").label("its members lie elsewhere"),
            );
        } else if chain.links.iter().any(|known| known.kind == code) {
            self.report(Diagnostic::error(link.span, "two links of one kind").label("described before"));
        } else {
            chain.links.push(Link { kind: code, size: ty.size() });
        }
    }

    fn described_chain(&mut self, d: &'a Descriptor, value: &Value) -> Option<Chain> {
        if !matches!(value.ty.kind, TypeKind::Pointer { .. }) {
            self.report(
                Diagnostic::error(d.span, format!("{} begins no chain", value.name)).label(describe(&value.ty)),
            );
            return None;
        }
        let names: Vec<&str> = d.arguments.iter().flatten().map(name).collect();
        let [kind, next] = names[..] else { return None };
        let mut unknown = None;
        let mut found: Option<Chain> = None;
        for piece in d.body.as_ref().map(pieces).unwrap_or_default() {
            let Piece::Statement(Statement::Descriptor(link)) = piece else {
                self.report(
                    Diagnostic::error(d.span, "a condition in a chain")
                        .label("only `link` and `unknown` can stand here"),
                );
                continue;
            };
            self.misplaced(link, DescriptorScope::Chain);
            match (link.name.text.as_str(), link.arguments.as_deref()) {
                ("unknown", Some([what])) => match name(what) {
                    "drop" => unknown = Some(false),
                    "refuse" => unknown = Some(true),
                    _ => self.report(
                        Diagnostic::error(link.span, "what becomes of links that nothing describes?")
                            .label("`drop` or `refuse`"),
                    ),
                },
                ("link", Some([_, Argument::Type(ty)])) => {
                    self.add_link(link, ty, (kind, next), &mut found);
                }
                _ => {}
            }
        }
        let Some(refuse) = unknown else {
            self.report(
                Diagnostic::error(d.span, "what becomes of links that nothing describes?")
                    .label("the chain does not say")
                    .help("`unknown(drop);`: they are left out; `unknown(refuse);`: the call fails"),
            );
            return None;
        };
        if found.is_none() {
            self.report(
                Diagnostic::error(d.span, "a chain without links")
                    .label("nothing would cross")
                    .help("`null` is a pointer that does not cross"),
            );
        }
        found.map(|chain| Chain { refuse, ..chain })
    }

    /// Where a link says what it is, how wide that is, and where the next one begins.
    fn link(&mut self, d: &Descriptor, ty: &Type, kind: &str, next: &str) -> Option<(usize, usize, usize)> {
        let TypeKind::Struct(s @ Struct { union: false, .. }) = &ty.kind else {
            self.report(Diagnostic::error(d.span, "a link is a struct").label(describe(ty)));
            return None;
        };
        let member = |name: &str| s.fields.iter().find(|f| f.name == name);
        let (said, following) = (member(kind), member(next));
        let width = said.map_or(0, |f| if let TypeKind::Int { bytes, .. } = f.ty.kind { bytes } else { 0 });
        let pointer = following.filter(|f| matches!(f.ty.kind, TypeKind::Pointer { .. }));
        let (Some(said), Some(pointer), 1 | 2 | 4 | 8) = (said, pointer, width) else {
            let message = format!("`{}` is no link of this chain", ty.spelling);
            let label = format!("a link has a number `{kind}` and a pointer `{next}`");
            self.report(Diagnostic::error(d.span, message).label(label));
            return None;
        };
        let others: Vec<String> = ty.translated().into_iter().filter(|name| name != next).collect();
        if let Some(other) = others.first() {
            self.report(
                Diagnostic::error(d.span, format!("a link with a pointer or handle: `{other}`"))
                    .label("it would reach the other process as it is")
                    .help("leave this link to `unknown(...)`"),
            );
            return None;
        }
        if s.size > LINK {
            self.report(
                Diagnostic::error(d.span, "a link is too large")
                    .label(format!("{} bytes; {LINK} are possible", s.size)),
            );
            return None;
        }
        Some((said.offset, width, pointer.offset))
    }
}

fn name(argument: &Argument) -> &str {
    match argument {
        Argument::Expr(crate::syntax::ast::AstExpr { kind: AstExprKind::Name(name), .. }) => name,
        _ => "",
    }
}
