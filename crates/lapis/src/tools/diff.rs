//! Carrying a specification to a new version of its header.

use crate::header::declarator::declare;
use crate::header::unit::Unit;
use crate::header::{Header, HeaderFunction};
use crate::load::{Options, quoted, read_headers};
use crate::model::{Signature, Type, TypeKind};
use crate::resolve::constant_value;
use crate::syntax::ast::{Argument, AstExpr, AstExprKind, Block, Item, Statement};
use crate::syntax::diagnostics::{Diagnostic, Diagnostics};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// The changes between the header of a specification and another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// New functions; they are unsupported until they are described.
    pub added: Vec<Change>,
    pub removed: Vec<Change>,
    pub changed: Vec<Change>,
    pub constants: Vec<ConstantChange>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub function: String,
    /// The specification describes it.
    pub described: bool,
    pub old: Option<String>,
    pub new: Option<String>,
}

/// A constant that the specification uses. None: it does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstantChange {
    pub name: String,
    pub old: Option<i128>,
    pub new: Option<i128>,
}

impl Report {
    pub fn is_empty(&self) -> bool {
        *self == Report::default()
    }
}

/// Compares the header that `spec` includes with `new_header`.
pub fn diff(spec: &Path, new_header: &Path, options: &Options) -> Result<Report, Diagnostics> {
    let old = read_headers(spec, options)?;
    let (new, files) = read_new(new_header, options, &old.items)?;
    let described: BTreeSet<&str> = old
        .items
        .iter()
        .filter_map(|i| match i {
            Item::Function(f) if f.table.is_none() => Some(f.name.text.as_str()),
            _ => None,
        })
        .collect();
    let is_described = |name: &str| {
        described.contains(name)
            || described
                .iter()
                .any(|d| crate::header::macros::expand(d, &old.header.macros).is_some_and(|text| text.trim() == name))
    };
    let (before, after) = (old.header.api_functions(&old.api_files), new.api_functions(&files));
    let mut report = Report::default();
    let change = |function: &str, old: Option<&HeaderFunction>, new: Option<&HeaderFunction>| Change {
        function: function.to_string(),
        described: is_described(function),
        old: old.map(|f| prototype(&f.signature)),
        new: new.map(|f| prototype(&f.signature)),
    };
    for function in &before {
        match after.iter().find(|f| f.name == function.name) {
            None => report.removed.push(change(&function.name, Some(function), None)),
            Some(now) if !unchanged(&function.signature, &now.signature) => {
                report.changed.push(change(&function.name, Some(function), Some(now)));
            }
            Some(_) => {}
        }
    }
    for function in after.iter().filter(|f| !before.iter().any(|b| b.name == f.name)) {
        report.added.push(change(&function.name, None, Some(function)));
    }
    report.constants = constants(&old.items, &old.header, &new);
    Ok(report)
}

fn read_new(path: &Path, options: &Options, items: &[Item]) -> Result<(Header, Vec<PathBuf>), Diagnostics> {
    let fail = |message: String| Diagnostics { list: vec![Diagnostic::global(message)], ..Diagnostics::default() };
    let mut unit = Unit::new(PathBuf::from("(new header).c"), &options.include_dirs, &options.defines);
    for item in items {
        if let Item::Directive { kind: crate::syntax::ast::Directive::Define(text), .. } = item {
            unit.push(&format!("#define {text}"), None);
        }
    }
    let line = unit.push(&format!("#include {}", quoted(path)), None);
    let header = Header::parse(&unit).map_err(|e| fail(e.to_string()))?;
    if let Some(problem) = header.problems.first() {
        return Err(fail(format!("in {}: {}", path.display(), problem.message)));
    }
    let files = header.included.iter().filter(|(l, _)| *l == line).map(|(_, f)| f.clone()).collect();
    Ok((header, files))
}

fn prototype(signature: &Signature) -> String {
    let mut parameters: Vec<String> =
        signature.parameters.iter().map(|(name, ty)| declare(&ty.spelling, name)).collect();
    if signature.variadic {
        parameters.push("...".into());
    }
    if parameters.is_empty() {
        parameters.push("void".into());
    }
    format!("{} ({})", signature.result.spelling, parameters.join(", "))
}

/// Names of parameters may change: descriptions match by position.
fn unchanged(a: &Signature, b: &Signature) -> bool {
    a.variadic == b.variadic
        && a.parameters.len() == b.parameters.len()
        && equal(&a.result, &b.result)
        && a.parameters.iter().zip(&b.parameters).all(|((_, a), (_, b))| equal(a, b))
}

/// The same spelling and the same layout, all the way down.
fn equal(a: &Type, b: &Type) -> bool {
    if a.spelling != b.spelling {
        return false;
    }
    match (&a.kind, &b.kind) {
        (TypeKind::Struct(a), TypeKind::Struct(b)) => {
            let same = |(a, b): (&crate::model::Field, &crate::model::Field)| {
                a.name == b.name && a.offset == b.offset && equal(&a.ty, &b.ty)
            };
            a.size == b.size && a.fields.len() == b.fields.len() && a.fields.iter().zip(&b.fields).all(same)
        }
        (TypeKind::Pointer { to: a, .. }, TypeKind::Pointer { to: b, .. }) => equal(a, b),
        (TypeKind::Array { of: a, count: n }, TypeKind::Array { of: b, count: m }) => n == m && equal(a, b),
        (TypeKind::FunctionPointer(a), TypeKind::FunctionPointer(b)) => unchanged(a, b),
        (a, b) => a == b,
    }
}

fn constants(items: &[Item], old: &Header, new: &Header) -> Vec<ConstantChange> {
    let mut names = BTreeSet::new();
    for item in items {
        match item {
            Item::Function(function) => block(&function.body, &mut names),
            Item::Type { body, .. } | Item::Outcome { body, .. } => block(body, &mut names),
            _ => {}
        }
    }
    let known = |name: &String| old.enumerators.contains_key(name) || old.macros.contains_key(name);
    let compared = names.into_iter().filter(known).map(|name| ConstantChange {
        old: constant_value(old, &name),
        new: constant_value(new, &name),
        name,
    });
    compared.filter(|c| c.old != c.new).collect()
}

fn block(body: &Block, names: &mut BTreeSet<String>) {
    for statement in &body.statements {
        match statement {
            Statement::Descriptor(d) => {
                for argument in d.arguments.iter().flatten() {
                    if let Argument::Expr(e) = argument {
                        expression(e, names);
                    }
                }
                d.body.iter().for_each(|b| block(b, names));
            }
            Statement::If { condition, then, otherwise, .. } => {
                expression(condition, names);
                block(then, names);
                otherwise.iter().for_each(|b| block(b, names));
            }
            Statement::Contextual { value, .. } => expression(value, names),
            Statement::Ellipsis(_) => {}
        }
    }
}

fn expression(e: &AstExpr, names: &mut BTreeSet<String>) {
    match &e.kind {
        AstExprKind::Name(name) => {
            names.insert(name.clone());
        }
        AstExprKind::Call(_, arguments) => arguments.iter().for_each(|a| expression(a, names)),
        AstExprKind::Unary(_, a)
        | AstExprKind::Plus(a)
        | AstExprKind::Cast(_, a)
        | AstExprKind::SizeofExpr(a)
        | AstExprKind::Dereference(a)
        | AstExprKind::Member(a, _)
        | AstExprKind::Arrow(a, _) => expression(a, names),
        AstExprKind::Binary(_, a, b) | AstExprKind::Element(a, b) => {
            expression(a, names);
            expression(b, names);
        }
        AstExprKind::Conditional(a, b, c) => [a, b, c].into_iter().for_each(|e| expression(e, names)),
        _ => {}
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "nothing changed");
        }
        let none = "not described";
        for change in &self.added {
            writeln!(
                f,
                "added    {}: {} (unsupported until it is described)",
                change.function,
                change.new.as_deref().unwrap_or(none)
            )?;
        }
        for change in &self.removed {
            let what = if change.described { "remove its description" } else { none };
            writeln!(f, "removed  {} ({what})", change.function)?;
        }
        for change in &self.changed {
            let what = if change.described { "check its description" } else { none };
            writeln!(f, "changed  {} ({what})", change.function)?;
            if change.old == change.new {
                writeln!(f, "           a struct that it uses has another layout")?;
                continue;
            }
            writeln!(f, "           from {}", change.old.as_deref().unwrap_or(""))?;
            writeln!(f, "           to   {}", change.new.as_deref().unwrap_or(""))?;
        }
        for constant in &self.constants {
            let show = |value: Option<i128>| value.map_or("nothing".to_string(), |v| v.to_string());
            writeln!(f, "constant {} was {}, is {}", constant.name, show(constant.old), show(constant.new))?;
        }
        Ok(())
    }
}
