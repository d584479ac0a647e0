//! Descriptors of values, folded into decision trees.

use crate::model::{Expr, Hidden, Plan, Rule, Type};
use crate::resolve::terms::scope::Scope;
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Argument, Descriptor, Statement};
use crate::syntax::descriptors::{self, Body, DescriptorScope};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;
use crate::syntax::suggest::similar;

/// A value to be described.
#[derive(Clone)]
pub struct Value {
    pub ty: Type,
    /// How an expression reaches it; None: no expression can.
    pub place: Option<Expr>,
    pub input: bool,
    pub output: bool,
    pub role: Role,
    /// Its name in messages, and its location.
    pub name: String,
    pub span: Span,
    pub hidden: Option<Hidden>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Argument,
    Contextual,
    Result,
    Element,
    Field,
    CallbackArgument,
    CallbackResult,
}

/// The most plans that the conditions on one value, its elements and members may unfold into.
const LEAVES: usize = 2048;
/// The deepest nesting of values: type-wide rules of recursive types would never end.
const NESTING: usize = 16;

impl<'a> Resolver<'a> {
    /// The rule of a value from its own descriptors and those of its type.
    pub(in crate::resolve) fn rule(&mut self, body: Vec<Piece<'a>>, value: &Value, scope: &Scope) -> Rule {
        if self.depth >= NESTING {
            self.report(
                Diagnostic::error(value.span, format!("the description of {} never ends", value.name))
                    .label("a type that contains itself")
                    .help("describe the inner pointer as `null` if the library does not need it"),
            );
            return Rule::Plan(Box::new(self.plain(value)));
        }
        let gaps = self.gaps(&body);
        if self.depth == 0 {
            self.leaves = 0;
        }
        self.depth += 1;
        self.quiet += usize::from(gaps);
        let rule = self.fold(body, &mut Vec::new(), value, scope, &mut |s, own| s.with_type(own, value, scope));
        self.quiet -= usize::from(gaps);
        self.depth -= 1;
        rule
    }

    /// Reports `...`, placeholders and unknown descriptors. Where there are any, other mistakes would only be their consequences.
    fn gaps(&mut self, body: &[Piece<'a>]) -> bool {
        let mut found = false;
        for piece in body {
            found |= match piece {
                Piece::If { then, otherwise, .. } => {
                    let then = self.gaps(then);
                    self.gaps(otherwise) || then
                }
                Piece::Statement(Statement::Ellipsis(span)) => {
                    self.ellipsis(*span);
                    true
                }
                Piece::Statement(Statement::Descriptor(d)) if d.name.text == "placeholder" => {
                    self.placeholder(d);
                    true
                }
                Piece::Statement(Statement::Descriptor(d)) if descriptors::find(&d.name.text).is_none() => {
                    self.misplaced(d, DescriptorScope::Value);
                    true
                }
                // The body of a callback describes its parameters one by one.
                Piece::Statement(Statement::Descriptor(d)) if d.name.text == "callback" => false,
                Piece::Statement(Statement::Descriptor(Descriptor { body: Some(inner), .. })) => {
                    self.gaps(&pieces(inner))
                }
                Piece::Statement(_) => false,
            };
        }
        found
    }

    /// Second stage: the type is settled, so its type-wide descriptors join in.
    fn with_type(&mut self, own: Vec<&'a Descriptor>, value: &Value, scope: &Scope) -> Rule {
        let ty = self.cast_type(&own).unwrap_or_else(|| value.ty.clone());
        let hidden = self.cast(&own, value, &ty);
        let value = Value { ty, hidden, ..value.clone() };
        let Some(rule) = self.type_rule(&value.ty) else {
            return self.plan(&[], &own, None, &value, scope);
        };
        let body = self.type_rules[rule].body.clone();
        let handle = self.type_rules[rule].handle;
        let wide = Scope {
            place: "a type-wide description",
            members: scope.members.clone(),
            elements: scope.elements,
            ..Scope::default()
        };
        self.fold(body, &mut Vec::new(), &value, &wide, &mut |s, general| s.plan(&general, &own, handle, &value, scope))
    }

    fn cast_type(&mut self, own: &[&'a Descriptor]) -> Option<Type> {
        let casts: Vec<_> = own.iter().filter(|d| d.name.text == "type_cast").collect();
        if let [first, second, ..] = casts.as_slice() {
            self.report(
                Diagnostic::error(second.span, "cast twice").label("second type").related(first.span, "first type"),
            );
        }
        match casts.first()?.arguments.as_deref() {
            Some([Argument::Type(ty)]) => self.resolve_type(ty),
            _ => None,
        }
    }

    /// Unfolds `[a, if (c) b else d, e]` into `if c then [a, b, e] else [a, d, e]`.
    fn fold(
        &mut self,
        mut body: Vec<Piece<'a>>,
        known: &mut Vec<(String, bool)>,
        value: &Value,
        scope: &Scope,
        leaf: &mut dyn FnMut(&mut Self, Vec<&'a Descriptor>) -> Rule,
    ) -> Rule {
        let Some(at) = body.iter().position(|p| matches!(p, Piece::If { .. })) else {
            self.leaves += 1;
            let all = body.into_iter().filter_map(|p| self.descriptor(p)).collect();
            return leaf(self, all);
        };
        let Piece::If { condition, then, otherwise } = body.remove(at) else { unreachable!("found by position") };
        if self.leaves > LEAVES {
            self.report(
                Diagnostic::error(condition.span, format!("too many conditions on {}", value.name))
                    .label("the combinations are beyond use"),
            );
            return self.fold(splice(&body, at, &then), known, value, scope, leaf);
        }
        let text: String = self.sources.text(condition.span).split_whitespace().collect();
        if let Some((_, truth)) = known.iter().find(|(t, _)| *t == text) {
            let branch = if *truth { then } else { otherwise };
            return self.fold(splice(&body, at, &branch), known, value, scope, leaf);
        }
        let resolved = self.expr(condition, scope);
        let constant = resolved.as_ref().and_then(crate::resolve::terms::constants::value);
        if let Some(v) = constant {
            let branch = if v != 0 { then } else { otherwise };
            return self.fold(splice(&body, at, &branch), known, value, scope, leaf);
        }
        known.push((text, true));
        let yes = self.fold(splice(&body, at, &then), known, value, scope, leaf);
        if let Some(last) = known.last_mut() {
            last.1 = false;
        }
        let no = self.fold(splice(&body, at, &otherwise), known, value, scope, leaf);
        known.pop();
        match resolved {
            Some(condition) => Rule::If { condition, then: Box::new(yes), otherwise: Box::new(no) },
            None => yes,
        }
    }

    /// The descriptor of a piece; what is no descriptor of a value is reported.
    fn descriptor(&mut self, piece: Piece<'a>) -> Option<&'a Descriptor> {
        match piece {
            Piece::Statement(Statement::Descriptor(d)) => {
                self.misplaced(d, DescriptorScope::Value);
                Some(d)
            }
            Piece::Statement(Statement::Contextual { span, .. }) => {
                self.report(
                    Diagnostic::error(*span, "`contextual_argument` describes a function").label("not allowed here"),
                );
                None
            }
            _ => None,
        }
    }

    pub(in crate::resolve) fn ellipsis(&mut self, span: Span) {
        self.report(
            Diagnostic::error(span, "the description is incomplete")
                .label("`...` must be completed")
                .help("write the missing descriptors in place of `...`"),
        );
    }

    /// Reports a descriptor that is unknown, stands in the wrong place, or has the wrong arguments.
    pub(in crate::resolve) fn misplaced(&mut self, d: &Descriptor, place: DescriptorScope) {
        let name = d.name.text.as_str();
        let Some(info) = descriptors::find(name) else {
            let here = descriptors::ALL.iter().filter(|i| i.scopes.contains(&place)).map(|i| i.name);
            let near = similar(name, here).or_else(|| similar(name, descriptors::ALL.iter().map(|i| i.name)));
            self.report(
                Diagnostic::error(d.name.span, format!("unknown descriptor `{name}`"))
                    .label("not a descriptor")
                    .suggest(near),
            );
            return;
        };
        if name == "placeholder" {
            return;
        }
        if !info.scopes.contains(&place) {
            let (what, instead) = misplaced_in(place);
            self.report(
                Diagnostic::error(d.name.span, format!("`{name}` cannot describe {what}"))
                    .label("misplaced")
                    .help(instead),
            );
            return;
        }
        let found = d.arguments.as_ref().map_or(0, Vec::len);
        let (fewest, most) = info.arguments;
        if !(fewest..=most).contains(&found) {
            let expected = match (fewest, most) {
                (0, 0) => "no arguments".to_string(),
                (1, 1) => "1 argument".to_string(),
                (a, b) if a == b => format!("{a} arguments"),
                (a, b) => format!("{a} to {b} arguments"),
            };
            let mut diagnostic = Diagnostic::error(d.span, format!("`{name}` takes {expected}, found {found}"))
                .label("wrong number of arguments");
            if !info.usage.is_empty() {
                diagnostic = diagnostic.help(format!("usage: `{}`", info.usage));
            }
            self.report(diagnostic);
        }
        if info.body == Body::Always && d.body.is_none() {
            self.report(
                Diagnostic::error(d.span, format!("`{name}` needs a body"))
                    .label("`{ ... }` expected after this")
                    .help(format!("usage: `{}`", info.usage)),
            );
        } else if info.body == Body::Never && d.body.is_some() {
            self.report(Diagnostic::error(d.span, format!("`{name}` has no body")).label("expected `;` after this"));
        }
    }

    /// A fact that `aviary spec init` could not know.
    pub(in crate::resolve) fn placeholder(&mut self, d: &Descriptor) {
        let what = match d.arguments.as_deref() {
            Some(
                [
                    Argument::Expr(crate::syntax::ast::AstExpr {
                        kind: crate::syntax::ast::AstExprKind::String(text),
                        ..
                    }),
                ],
            ) => text.clone(),
            _ => "something is missing here".to_string(),
        };
        self.report(
            Diagnostic::error(d.span, what)
                .label("left by `aviary spec init`")
                .help("replace this `placeholder` with the descriptors that say so")
                .placeholder(),
        );
    }

    /// A plan that carries the value as it is.
    pub(in crate::resolve) fn plain(&self, value: &Value) -> Plan {
        let nothing = matches!(value.ty.kind, crate::model::TypeKind::Void);
        let pointer = matches!(
            value.ty.kind,
            crate::model::TypeKind::Pointer { .. } | crate::model::TypeKind::FunctionPointer(_)
        );
        Plan {
            ty: value.ty.clone(),
            kind: match (nothing, pointer) {
                (true, _) if value.role == Role::Result || value.role == Role::CallbackResult => {
                    crate::model::Kind::Nothing
                }
                (_, true) => crate::model::Kind::Unknown,
                _ => crate::model::Kind::Scalar,
            },
            input: value.input,
            output: value.output,
            hidden: None,
            lifetime: crate::model::Lifetime::Call,
            object: crate::model::ObjectUse::default(),
            span: value.span,
        }
    }
}

/// What stands at such a place, and where a descriptor that does not belong there goes.
fn misplaced_in(place: DescriptorScope) -> (&'static str, &'static str) {
    match place {
        DescriptorScope::Function => {
            ("a function", "put it in the `argument`, `element`, `field` or `return_value` that it describes")
        }
        DescriptorScope::Value => ("a value", "put it directly in the body of the function"),
        DescriptorScope::Type => ("a type", "put it in the description of a function"),
        DescriptorScope::Chain => ("a chain", "a link is described by its struct: `link(K, struct S)`"),
        DescriptorScope::State => ("a state", "put it directly in the description of the type"),
        DescriptorScope::Varargs => ("what follows", "put it in the body of a `case`"),
        DescriptorScope::Outcome => ("an outcome", "put it in the description of a function"),
        DescriptorScope::Table => ("a table", "describe a function of it under the name `table.member`"),
    }
}

fn splice<'a>(body: &[Piece<'a>], at: usize, branch: &[Piece<'a>]) -> Vec<Piece<'a>> {
    body[..at].iter().chain(branch).chain(&body[at..]).cloned().collect()
}
