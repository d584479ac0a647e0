//! Which expressions of a function are evaluated when, and what they look into.

use crate::model::*;

/// A contextual argument that crosses as a number, not as a buffer.
pub fn is_value(contextual: &Contextual) -> bool {
    matches!(&contextual.rule, Rule::Plan(p) if matches!(p.kind, Kind::Scalar | Kind::Number(_)))
}

/// True if evaluating `e` as an address already follows a pointer.
pub fn reads_memory(e: &Expr) -> bool {
    match &e.kind {
        ExprKind::Element(..) => true,
        ExprKind::Field(base, _) => {
            // A member array of a struct is part of the struct: no further pointer.
            !matches!(e.ty.kind, TypeKind::Array { .. }) && reads_memory(base)
        }
        ExprKind::Cast(a) => reads_memory(a),
        _ => false,
    }
}

pub fn binary(operator: Binary, a: Expr, b: Expr) -> Expr {
    Expr { ty: a.ty.clone(), span: a.span, kind: ExprKind::Binary(operator, Box::new(a), Box::new(b)) }
}

fn conjunction(path: &[Expr]) -> Option<Expr> {
    path.iter().cloned().reduce(|a, b| binary(Binary::LogicalAnd, a, b))
}

fn negated(e: &Expr) -> Expr {
    Expr { ty: e.ty.clone(), span: e.span, kind: ExprKind::Unary(Unary::Not, Box::new(e.clone())) }
}

pub fn parameters_of(e: &Expr, into: &mut Vec<usize>) {
    e.walk(&mut |e| {
        if let ExprKind::Parameter(i) = e.kind {
            into.push(i);
        }
    });
}

/// Parameters that `e`, evaluated on the server, dereferences or hands to a function that may.
pub fn looked_into(model: &Model, e: &Expr, into: &mut Vec<usize>) {
    let in_guest = |u: &usize| model.utility_functions[*u].side == Side::Guest;
    e.walk(&mut |e| match &e.kind {
        ExprKind::Element(base, _) => parameters_of(base, into),
        ExprKind::Call(Callee::Present, _) => {}
        // Its value travels with the call.
        ExprKind::Call(Callee::Utility(u), _) if in_guest(u) => {}
        ExprKind::Call(_, arguments) => arguments.iter().for_each(|a| parameters_of(a, into)),
        _ => {}
    });
}

/// Parameters that are certainly dereferenced (a NULL test or hand-over alone needs no storage).
fn dereferenced(e: &Expr, into: &mut Vec<usize>) {
    e.walk(&mut |e| {
        if let ExprKind::Element(base, _) = &e.kind {
            parameters_of(base, into);
        }
    });
}

/// Visits conditions and counts of a rule: what is evaluated before the call.
pub fn request_expressions(rule: &Rule, visit: &mut dyn FnMut(&Expr)) {
    match rule {
        Rule::If { condition, then, otherwise } => {
            visit(condition);
            request_expressions(then, visit);
            request_expressions(otherwise, visit);
        }
        Rule::Plan(plan) => match &plan.kind {
            Kind::Buffer(b) => {
                if let Count::Elements(e) = &b.count {
                    visit(e);
                }
                request_expressions(&b.element, visit);
            }
            Kind::Struct { fields, .. } => fields.iter().for_each(|(_, r)| request_expressions(r, visit)),
            Kind::Zerocopy { count: Some(e) } => visit(e),
            _ => {}
        },
    }
}

/// Visits the expressions that say with what handles end, and to what they refer.
fn ending_expressions(rule: &Rule, visit: &mut dyn FnMut(&Expr)) {
    match rule {
        Rule::If { then, otherwise, .. } => {
            ending_expressions(then, visit);
            ending_expressions(otherwise, visit);
        }
        Rule::Plan(plan) => {
            plan.object.ends_with.iter().chain(plan.object.referring.iter().map(|r| r.expr())).for_each(&mut *visit);
            match &plan.kind {
                Kind::Buffer(b) => ending_expressions(&b.element, visit),
                Kind::Struct { fields, .. } => fields.iter().for_each(|(_, r)| ending_expressions(r, visit)),
                _ => {}
            }
        }
    }
}

/// Visits the server's post-call expressions of a rule with the conditions on the way to them.
fn reply_expressions(rule: &Rule, path: &mut Vec<Expr>, visit: &mut dyn FnMut(&Expr, &[Expr])) {
    match rule {
        Rule::If { condition, then, otherwise } => {
            path.push(condition.clone());
            reply_expressions(then, path, visit);
            path.pop();
            path.push(negated(condition));
            reply_expressions(otherwise, path, visit);
            path.pop();
        }
        Rule::Plan(plan) => {
            if let Lifetime::Until { token, .. } = &plan.lifetime {
                visit(token, path);
            }
            match &plan.kind {
                Kind::Buffer(b) => {
                    if let Some(e) = &b.returned {
                        visit(e, path);
                    }
                    reply_expressions(&b.element, path, visit);
                }
                Kind::Mapped(mapped) => visit(&mapped.bytes, path),
                Kind::Resident { bytes } => visit(bytes, path),
                _ => {}
            }
        }
    }
}

pub fn collect_forced(function: &Function, forced: &mut Vec<(usize, Option<Expr>)>) {
    let mut add = |e: &Expr, path: &[Expr]| {
        let mut parameters = Vec::new();
        dereferenced(e, &mut parameters);
        forced.extend(parameters.into_iter().map(|p| (p, conjunction(path))));
    };
    for rule in function.arguments.iter().chain([&function.result]) {
        reply_expressions(rule, &mut Vec::new(), &mut add);
    }
    for guarded in &function.after_server {
        let path: Vec<Expr> = guarded.condition.iter().cloned().collect();
        add(&guarded.value, &path);
    }
    if let Some(e) = &function.device_time {
        add(e, &[]);
    }
    if let ErrorPlace::Parameter(p) = function.error {
        forced.push((p, None));
    }
}

pub fn for_each_expression(function: &Function, visit: &mut dyn FnMut(&Expr)) {
    for rule in function.arguments.iter().chain([&function.result]) {
        request_expressions(rule, visit);
        ending_expressions(rule, visit);
        reply_expressions(rule, &mut Vec::new(), &mut |e, _| visit(e));
    }
    function.requirements.iter().for_each(|r| {
        r.condition.iter().for_each(&mut *visit);
        visit(&r.holds);
    });
    function.charges.iter().for_each(|c| {
        c.condition.iter().for_each(&mut *visit);
        c.place.iter().for_each(&mut *visit);
        visit(&c.amount);
    });
    function.after_server.iter().for_each(|g| visit(&g.value));
    function.late.iter().for_each(&mut *visit);
    let device = function.occupies.iter().flat_map(|o| std::iter::once(&o.device).chain(&o.begin));
    function.address.iter().chain(&function.address_values).chain(&function.device_time).chain(device).for_each(visit);
}
