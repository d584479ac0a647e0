//! Descriptors of the values of a function, in a form that does not depend on names.

use crate::syntax::ast::{Argument, AstExpr, AstExprKind, Block, Descriptor, FunctionItem, Statement};
use crate::syntax::source::Span;
use std::fmt;

/// One descriptor of one value.
#[derive(Debug, Clone)]
pub(super) struct Described {
    /// The value: `argument 2/element`, `result`.
    pub place: String,
    /// The descriptor's name.
    pub kind: String,
    /// Its argument, in each of the forms that it can take.
    pub values: Vec<String>,
    pub span: Span,
}

impl Described {
    pub fn key(&self) -> (&str, &str) {
        (&self.place, &self.kind)
    }

    /// True if the other one says the same of the same value; a conditional expression says what one of its branches says.
    pub fn agrees(&self, other: &Described) -> bool {
        self.key() == other.key() && (self.values.is_empty() || self.values.iter().any(|v| other.values.contains(v)))
    }

    /// True if it describes a value. The object log and the lives of copies are about calls, not about what a value is.
    pub fn counts(&self) -> bool {
        !self.kind.starts_with("obj_") && !self.kind.starts_with("lifetime_") && self.kind != "metadata"
    }
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.kind)?;
        if self.values.is_empty() { Ok(()) } else { write!(f, "({})", self.values.join(" | ")) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Descriptions {
    pub found: Vec<Described>,
    pub placeholders: usize,
    /// Answered in the guest, or not virtualized.
    pub is_local: bool,
}

pub(super) fn descriptions(function: &FunctionItem) -> Descriptions {
    let names: Vec<&str> = function.parameters.iter().map(|p| p.name.text.as_str()).collect();
    let mut collector = Collector { names, found: Descriptions::default() };
    collector.function(&function.body);
    collector.found
}

struct Collector<'a> {
    names: Vec<&'a str>,
    found: Descriptions,
}

impl Collector<'_> {
    fn function(&mut self, block: &Block) {
        for statement in &block.statements {
            match statement {
                Statement::If { then, otherwise, .. } => {
                    self.function(then);
                    otherwise.iter().for_each(|block| self.function(block));
                }
                Statement::Descriptor(d) => match (d.name.text.as_str(), &d.body) {
                    ("argument", Some(body)) => {
                        if let Some(place) = self.argument(d) {
                            self.value(&place, body);
                        }
                    }
                    ("return_value", Some(body)) => self.value("result", body),
                    ("local" | "unsupported", _) => self.found.is_local = true,
                    ("placeholder", _) => self.found.placeholders += 1,
                    _ => {}
                },
                Statement::Ellipsis(_) => self.found.placeholders += 1,
                Statement::Contextual { .. } => {}
            }
        }
    }

    /// The parameter that an `argument` block is about; None: it is a value of the specification's own.
    fn argument(&self, d: &Descriptor) -> Option<String> {
        let [Argument::Expr(AstExpr { kind: AstExprKind::Name(name), .. })] = d.arguments.as_deref()? else {
            return None;
        };
        self.names.iter().position(|n| n == name).map(|n| format!("argument {n}"))
    }

    fn value(&mut self, place: &str, block: &Block) {
        for statement in &block.statements {
            match statement {
                Statement::If { then, otherwise, .. } => {
                    self.value(place, then);
                    otherwise.iter().for_each(|block| self.value(place, block));
                }
                Statement::Descriptor(d) => self.descriptor(place, d),
                Statement::Ellipsis(_) => self.found.placeholders += 1,
                Statement::Contextual { .. } => {}
            }
        }
    }

    fn descriptor(&mut self, place: &str, d: &Descriptor) {
        let kind = d.name.text.clone();
        let first = d.arguments.as_ref().and_then(|a| a.first());
        match (kind.as_str(), &d.body) {
            ("placeholder", _) => self.found.placeholders += 1,
            ("element", Some(body)) => self.value(&format!("{place}/element"), body),
            ("field", Some(body)) => {
                let name = first.map(|a| self.argument_text(a)).unwrap_or_default();
                self.value(&format!("{place}/{name}"), body);
            }
            ("callback", Some(body)) => {
                self.note(place, d, Vec::new());
                self.callback(&format!("{place}/callback"), d, body);
            }
            // One element is what there is without it.
            ("buffer", _) if matches!(first, Some(Argument::Expr(e)) if matches!(e.kind, AstExprKind::Int { value: 1, .. })) =>
                {}
            _ => {
                let values = match first {
                    Some(Argument::Expr(expression)) => self.forms(expression),
                    Some(other) => vec![self.argument_text(other)],
                    None => Vec::new(),
                };
                self.note(place, d, values);
            }
        }
    }

    /// The parameters of a callback go by their place.
    fn callback(&mut self, place: &str, d: &Descriptor, body: &Block) {
        let parameters: Vec<&str> = d
            .arguments
            .iter()
            .flatten()
            .filter_map(|a| if let Argument::Parameter(p) = a { Some(p.name.text.as_str()) } else { None })
            .collect();
        for statement in &body.statements {
            let Statement::Descriptor(inner) = statement else { continue };
            let (Some(arguments), Some(block)) = (&inner.arguments, &inner.body) else { continue };
            let Some(Argument::Expr(AstExpr { kind: AstExprKind::Name(name), .. })) = arguments.first() else {
                continue;
            };
            if let Some(n) = parameters.iter().position(|p| p == name) {
                self.value(&format!("{place} {n}"), block);
            }
        }
    }

    fn note(&mut self, place: &str, d: &Descriptor, values: Vec<String>) {
        self.found.found.push(Described { place: place.into(), kind: d.name.text.clone(), values, span: d.span });
    }

    fn argument_text(&self, argument: &Argument) -> String {
        match argument {
            Argument::Expr(expression) => self.text(expression),
            Argument::Type(ty) => ty.spelling(),
            Argument::Parameter(parameter) => parameter.name.text.clone(),
        }
    }

    /// The expression, or what it can be: `c ? a : b` and `min(a, b)` can be either.
    fn forms(&self, expression: &AstExpr) -> Vec<String> {
        let mut all = vec![self.text(expression)];
        match &expression.kind {
            AstExprKind::Conditional(_, a, b) => {
                all.extend(self.forms(a));
                all.extend(self.forms(b));
            }
            AstExprKind::Call(name, arguments) if matches!(name.text.as_str(), "min" | "max") => {
                arguments.iter().for_each(|a| all.extend(self.forms(a)));
            }
            AstExprKind::Cast(_, inner) | AstExprKind::Plus(inner) => all.extend(self.forms(inner)),
            _ => {}
        }
        all
    }

    fn text(&self, expression: &AstExpr) -> String {
        let text = |e: &AstExpr| self.text(e);
        match &expression.kind {
            AstExprKind::Name(name) => match self.names.iter().position(|n| n == name) {
                Some(n) => format!("${n}"),
                None => name.clone(),
            },
            AstExprKind::Int { value, .. } => value.to_string(),
            AstExprKind::Float(value) => value.to_string(),
            AstExprKind::String(value) => format!("{value:?}"),
            AstExprKind::Call(name, arguments) => {
                format!("{}({})", name.text, arguments.iter().map(text).collect::<Vec<_>>().join(", "))
            }
            AstExprKind::Unary(operator, e) => format!("{operator:?} {}", text(e)),
            AstExprKind::Plus(e) | AstExprKind::Cast(_, e) => text(e),
            AstExprKind::Binary(operator, a, b) => format!("({} {operator:?} {})", text(a), text(b)),
            AstExprKind::Conditional(c, a, b) => format!("({} ? {} : {})", text(c), text(a), text(b)),
            AstExprKind::SizeofType(ty) => format!("sizeof({})", ty.spelling()),
            AstExprKind::SizeofExpr(e) => format!("sizeof {}", text(e)),
            AstExprKind::Dereference(e) => format!("*{}", text(e)),
            AstExprKind::Element(a, b) => format!("{}[{}]", text(a), text(b)),
            AstExprKind::Member(e, name) | AstExprKind::Arrow(e, name) => format!("{}.{}", text(e), name.text),
            AstExprKind::Error => "?".into(),
        }
    }
}
