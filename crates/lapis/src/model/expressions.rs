//! Typed expressions.

use super::types::Type;
use crate::syntax::source::Span;

/// A typed expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    pub kind: ExprKind,
    pub ty: Type,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    /// Also characters, enum constants, macros, `sizeof`.
    Int(i128),
    Float(f64),
    String(String),
    Null,
    Parameter(usize),
    /// A contextual argument.
    Contextual(usize),
    /// The value that the function returned.
    Ret,
    /// True if the user allows more errors to be reported late; known in the guest only.
    Relaxed,
    /// Index of the element at hand; 0 is the innermost enclosing `element`.
    Index(usize),
    /// The element at hand itself, of memory that the library hands out; counted as `Index` is. Always under a `Field`.
    Here(usize),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Cast(Box<Expr>),
    /// `*p` and `p[i]`; `*p` is `p[0]`.
    Element(Box<Expr>, Box<Expr>),
    /// `s.f` (`p->f` is `p[0].f`), by offset in bytes.
    Field(Box<Expr>, usize),
    /// The metadata structure of this kind that a handle carries; always under a `Field`.
    Metadata(Box<Expr>, u32),
    /// The address of a function table in the guest, by its name.
    Table(usize),
    Call(Callee, Vec<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    Negate,
    Not,
    Complement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    ShiftLeft,
    ShiftRight,
    And,
    Or,
    Xor,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    LogicalAnd,
    LogicalOr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callee {
    /// Index into [`super::Model::utility_functions`].
    Utility(usize),
    Min,
    Max,
    Strlen,
    /// The elements that a [`RowShape`]'s numbers span; no function of the language.
    Span,
    Present,
    /// Whether the first is one of the others, which are constants; asked in the guest. No function of the language.
    Among,
    IsHandle,
    /// Arguments: registry (an `Int` index), key.
    GetBufs,
    GetNBufs,
    GetBufSize,
    ZerocopyAlloc,
    ZerocopyFree,
}

impl Expr {
    /// Visits this expression and all below it.
    pub fn walk(&self, visit: &mut dyn FnMut(&Expr)) {
        visit(self);
        match &self.kind {
            ExprKind::Unary(_, a) | ExprKind::Cast(a) | ExprKind::Field(a, _) | ExprKind::Metadata(a, _) => {
                a.walk(visit)
            }
            ExprKind::Binary(_, a, b) | ExprKind::Element(a, b) => {
                a.walk(visit);
                b.walk(visit);
            }
            ExprKind::Conditional(a, b, c) => {
                a.walk(visit);
                b.walk(visit);
                c.walk(visit);
            }
            ExprKind::Call(_, arguments) => arguments.iter().for_each(|a| a.walk(visit)),
            _ => {}
        }
    }
}
