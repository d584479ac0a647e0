//! Constant folding, with the wrapping of C where a value is cast or unsigned.

use crate::model::{Binary, Expr, ExprKind, Type, TypeKind, Unary};

/// Value of an expression that is an integer constant.
pub fn value(expr: &Expr) -> Option<i128> {
    match expr.kind {
        ExprKind::Int(v) => Some(v),
        ExprKind::Null => Some(0),
        _ => None,
    }
}

/// The expression, with its outermost operation carried out if its operands are constants.
pub fn fold(expr: Expr) -> Expr {
    match constant(&expr) {
        Some(v) if v == 0 && is_pointer(&expr.ty) => Expr { kind: ExprKind::Null, ..expr },
        Some(v) => Expr { kind: ExprKind::Int(v), ..expr },
        None => choose(expr),
    }
}

fn is_pointer(ty: &Type) -> bool {
    matches!(ty.kind, TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_))
}

/// `c ? a : b` with a constant condition is one of its branches.
fn choose(expr: Expr) -> Expr {
    match expr.kind {
        ExprKind::Conditional(c, a, b) => match value(&c) {
            Some(0) => *b,
            Some(_) => *a,
            None => Expr { kind: ExprKind::Conditional(c, a, b), ..expr },
        },
        _ => expr,
    }
}

fn constant(expr: &Expr) -> Option<i128> {
    match &expr.kind {
        ExprKind::Unary(operator, a) => unary(*operator, value(a)?, &expr.ty),
        ExprKind::Binary(operator, a, b) => binary(*operator, value(a)?, value(b)?).map(|v| wrap_unsigned(v, &expr.ty)),
        ExprKind::Cast(a) => match (&a.kind, &expr.ty.kind) {
            (ExprKind::Float(f), TypeKind::Int { .. }) => Some(wrap(*f as i128, &expr.ty)),
            (_, TypeKind::Float { .. }) => None,
            _ => Some(wrap(value(a)?, &expr.ty)),
        },
        _ => None,
    }
}

fn unary(operator: Unary, v: i128, ty: &Type) -> Option<i128> {
    Some(match operator {
        Unary::Negate => wrap_unsigned(v.checked_neg()?, ty),
        Unary::Not => i128::from(v == 0),
        Unary::Complement => wrap_unsigned(!v, ty),
    })
}

fn binary(operator: Binary, a: i128, b: i128) -> Option<i128> {
    let shift = || u32::try_from(b).ok().filter(|b| *b < 64);
    Some(match operator {
        Binary::Add => a.checked_add(b)?,
        Binary::Subtract => a.checked_sub(b)?,
        Binary::Multiply => a.checked_mul(b)?,
        Binary::Divide => a.checked_div(b)?,
        Binary::Remainder => a.checked_rem(b)?,
        Binary::ShiftLeft => a.checked_mul(1i128 << shift()?)?,
        Binary::ShiftRight => a >> shift()?,
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Less => i128::from(a < b),
        Binary::LessEqual => i128::from(a <= b),
        Binary::Greater => i128::from(a > b),
        Binary::GreaterEqual => i128::from(a >= b),
        Binary::Equal => i128::from(a == b),
        Binary::NotEqual => i128::from(a != b),
        Binary::LogicalAnd => i128::from(a != 0 && b != 0),
        Binary::LogicalOr => i128::from(a != 0 || b != 0),
    })
}

fn wrap_unsigned(v: i128, ty: &Type) -> i128 {
    match ty.kind {
        TypeKind::Int { signed: false, .. } => wrap(v, ty),
        _ => v,
    }
}

/// The value that a cast to an integer or pointer type gives.
pub(in crate::resolve) fn wrap(v: i128, ty: &Type) -> i128 {
    let (bytes, signed) = match ty.kind {
        TypeKind::Int { bytes, signed } => (bytes, signed),
        TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => (8, false),
        _ => return v,
    };
    if bytes == 0 || bytes >= 16 {
        return v;
    }
    let bits = 8 * bytes as u32;
    let low = v & ((1i128 << bits) - 1);
    if signed && low >> (bits - 1) == 1 { low - (1i128 << bits) } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::terms::types::{c_int, int, pointer, void};
    use crate::syntax::source::Span;

    fn literal(v: i128) -> Box<Expr> {
        Box::new(Expr { kind: ExprKind::Int(v), ty: c_int(), span: Span::default() })
    }

    fn folded(kind: ExprKind, ty: Type) -> ExprKind {
        fold(Expr { kind, ty, span: Span::default() }).kind
    }

    #[test]
    fn casts_wrap_and_arithmetic_does_not() {
        let uint = int(4, false, "cl_uint");
        assert_eq!(folded(ExprKind::Cast(literal(-1)), uint.clone()), ExprKind::Int(0xffff_ffff));
        assert_eq!(folded(ExprKind::Cast(literal(0xff)), int(1, true, "char")), ExprKind::Int(-1));
        assert_eq!(folded(ExprKind::Unary(Unary::Complement, literal(0)), uint), ExprKind::Int(0xffff_ffff));
        assert_eq!(
            folded(ExprKind::Binary(Binary::ShiftLeft, literal(1), literal(31)), c_int()),
            ExprKind::Int(1 << 31)
        );
        assert_eq!(folded(ExprKind::Cast(literal(0)), pointer(void())), ExprKind::Null);
        assert_eq!(folded(ExprKind::Cast(literal(1)), pointer(void())), ExprKind::Int(1));
    }

    #[test]
    fn impossible_operations_stay() {
        let division = ExprKind::Binary(Binary::Divide, literal(1), literal(0));
        assert_eq!(folded(division.clone(), c_int()), division);
        let shift = ExprKind::Binary(Binary::ShiftLeft, literal(1), literal(400));
        assert_eq!(folded(shift.clone(), c_int()), shift);
    }
}
