//! Meaning of names at a place.

use crate::model::{Expr, ExprKind, Struct, Type};

/// The names that an expression may use.
#[derive(Clone, Default)]
pub struct Scope {
    pub parameters: Vec<(String, Type)>,
    pub contextual: Vec<(String, Type)>,
    /// None: there is no `ret` here.
    pub result: Option<Type>,
    /// How many `element` scopes enclose the expression.
    pub elements: usize,
    /// The structs whose members may be named, innermost last.
    pub members: Vec<(Expr, Struct)>,
    /// Why parameters cannot be named here, for the message.
    pub place: &'static str,
}

impl Scope {
    /// The scope of constants.
    pub fn constant() -> Scope {
        Scope { place: "a constant", ..Scope::default() }
    }

    /// One `element` deeper: every index seen so far moves one further out.
    pub fn enter_element(&self) -> Scope {
        let mut inner = self.clone();
        inner.elements += 1;
        for (place, _) in &mut inner.members {
            shift(place);
        }
        inner
    }
}

/// Adjusts an expression for use one `element` deeper.
pub fn shift(expr: &mut Expr) {
    match &mut expr.kind {
        ExprKind::Index(n) | ExprKind::Here(n) => *n += 1,
        ExprKind::Unary(_, a) | ExprKind::Cast(a) | ExprKind::Field(a, _) | ExprKind::Metadata(a, _) => shift(a),
        ExprKind::Binary(_, a, b) | ExprKind::Element(a, b) => {
            shift(a);
            shift(b);
        }
        ExprKind::Conditional(a, b, c) => {
            shift(a);
            shift(b);
            shift(c);
        }
        ExprKind::Call(_, arguments) => arguments.iter_mut().for_each(shift),
        _ => {}
    }
}
