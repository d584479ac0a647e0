//! From names to meaning: the AST and the header become the [`Model`].

pub(crate) mod calls;
pub(crate) mod data;
mod items;
mod tables;
pub(crate) mod terms;

use crate::header::{Header, HeaderFunction};
use crate::model::Model;
use crate::syntax::ast::{AstExpr, Block, Item, Statement, TypeName};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::{SourceFiles, Span};
use std::collections::{HashMap, HashSet};

/// Input of resolution.
pub struct Input<'a> {
    pub items: &'a [Item],
    pub sources: &'a SourceFiles,
    pub header: &'a Header,
    /// The functions that make up the API.
    pub functions: Vec<&'a HeaderFunction>,
    /// The utility code as each side compiles it.
    pub guest: &'a Header,
    pub server: &'a Header,
}

/// Fills the rest of `model` (the loader has set what does not need the header).
pub fn resolve(input: &Input, model: Model) -> (Model, Vec<Diagnostic>) {
    let mut resolver = Resolver::new(input.sources, input.header, input.guest, input.server);
    resolver.model = model;
    resolver.api = input.functions.iter().map(|f| f.name.as_str()).collect();
    resolver.items(input.items);
    resolver.functions(input.items, &input.functions);
    resolver.default_metadata();
    crate::check::check(&resolver.model, &mut resolver.diagnostics);
    (resolver.model, resolver.diagnostics)
}

/// The value of an expression that is a constant.
pub fn constant(expr: &crate::model::Expr) -> Option<i128> {
    terms::constants::value(expr)
}

/// The integer value of a macro or enum constant.
pub fn constant_value(header: &Header, name: &str) -> Option<i128> {
    let sources = SourceFiles::default();
    Resolver::new(&sources, header, header, header).macro_value(name)
}

/// One name for all ways to write a pointer to an unknown struct, as `type(...)` compares them.
pub fn canonical_name(header: &Header, ty: &crate::model::Type) -> String {
    let sources = SourceFiles::default();
    Resolver::new(&sources, header, header, header).canonical(ty)
}

/// A spelling without qualifiers at the top.
pub fn bare(spelling: &str) -> &str {
    terms::types::bare(spelling)
}

struct Resolver<'a> {
    sources: &'a SourceFiles,
    header: &'a Header,
    guest: &'a Header,
    server: &'a Header,
    /// Names of the functions that make up the API.
    api: HashSet<&'a str>,
    model: Model,
    diagnostics: Vec<Diagnostic>,
    type_rules: Vec<TypeRule<'a>>,
    /// Spelling of a type to its rule.
    rule_names: HashMap<String, usize>,
    /// `outcome` items.
    outcomes: Vec<calls::outcomes::Outcome<'a>>,
    error_arguments: Vec<String>,
    /// Parameters that are status objects.
    status_arguments: Vec<&'a crate::syntax::ast::Name>,
    /// Of handle types without a structure of their own.
    metadata: Option<crate::model::Metadata>,
    /// Macros that have been evaluated.
    constants: HashMap<String, Option<crate::model::Expr>>,
    /// Above zero: mistakes are not reported (a value is looked at twice).
    quiet: usize,
    /// Nesting of values, to bound recursion through type-wide rules.
    depth: usize,
    /// Leaves of the decision tree being folded.
    leaves: usize,
}

/// `type(ty) { ... }`
struct TypeRule<'a> {
    /// None: a handle type by default, without a `type` block.
    ty: Option<&'a TypeName>,
    /// Descriptors of the type itself: error codes and the like.
    codes: Vec<Piece<'a>>,
    /// Descriptors of each of its values.
    body: Vec<Piece<'a>>,
    handle: Option<usize>,
    span: Span,
}

/// Statements whose conditions are still to be folded.
#[derive(Clone)]
enum Piece<'a> {
    Statement(&'a Statement),
    If { condition: &'a AstExpr, then: Vec<Piece<'a>>, otherwise: Vec<Piece<'a>> },
}

fn pieces<'a>(block: &'a Block) -> Vec<Piece<'a>> {
    let piece = |statement: &'a Statement| match statement {
        Statement::If { condition, then, otherwise, .. } => {
            Piece::If { condition, then: pieces(then), otherwise: otherwise.as_ref().map(pieces).unwrap_or_default() }
        }
        _ => Piece::Statement(statement),
    };
    block.statements.iter().map(piece).collect()
}

impl<'a> Resolver<'a> {
    fn new(sources: &'a SourceFiles, header: &'a Header, guest: &'a Header, server: &'a Header) -> Self {
        Resolver {
            sources,
            header,
            guest,
            server,
            api: HashSet::new(),
            model: Model::default(),
            diagnostics: Vec::new(),
            type_rules: Vec::new(),
            rule_names: HashMap::new(),
            outcomes: Vec::new(),
            error_arguments: Vec::new(),
            status_arguments: Vec::new(),
            metadata: None,
            constants: HashMap::new(),
            quiet: 0,
            depth: 0,
            leaves: 0,
        }
    }

    fn report(&mut self, diagnostic: Diagnostic) {
        if self.quiet == 0 {
            self.diagnostics.push(diagnostic);
        }
    }
}

#[cfg(test)]
mod tests;
