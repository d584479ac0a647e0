//! Descriptors of functions.

use crate::model::{
    Binary, Charge, ChargeKind, ErrorPlace, Expr, ExprKind, Function, Guarded, Occupies, Registered, Requirement,
    ResourceKind, Support, Type, Unary,
};
use crate::resolve::terms::scope::Scope;
use crate::resolve::{Piece, Resolver};
use crate::syntax::ast::{Argument, AstExprKind, Descriptor, Statement};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;

impl<'a> Resolver<'a> {
    pub(in crate::resolve) fn statements(
        &mut self,
        body: &[Piece<'a>],
        condition: Option<&Expr>,
        function: &mut Function,
        scope: &Scope,
    ) {
        for piece in body {
            match piece {
                Piece::If { condition: ast, then, otherwise } => {
                    let Some(inner) = self.expr(ast, scope) else { continue };
                    if let Some(v) = crate::resolve::terms::constants::value(&inner) {
                        self.statements(if v != 0 { then } else { otherwise }, condition, function, scope);
                        continue;
                    }
                    self.statements(then, Some(&and(condition, inner.clone())), function, scope);
                    self.statements(otherwise, Some(&and(condition, not(inner))), function, scope);
                }
                Piece::Statement(Statement::Ellipsis(span)) => self.ellipsis(*span),
                Piece::Statement(Statement::Descriptor(d)) => {
                    self.misplaced(d, DescriptorScope::Function);
                    self.statement(d, condition, function, scope);
                }
                Piece::Statement(_) => {}
            }
        }
    }

    fn statement(&mut self, d: &'a Descriptor, condition: Option<&Expr>, function: &mut Function, scope: &Scope) {
        let guard = condition.cloned();
        let single = |s: &mut Self| s.argument_value(d, 0, scope);
        match d.name.text.as_str() {
            "argument" => {
                let names: Vec<String> =
                    scope.parameters.iter().chain(&scope.contextual).map(|(n, _)| n.clone()).collect();
                self.known_parameter(d, &names);
            }
            "async" => self.asynchronous(d, guard, function),
            "success" => self.once(d, |f| &mut f.success, function, &Scope::constant()),
            // An object may tell of what the call was given.
            "failure" if matches!(function.error, ErrorPlace::Status(_)) => {
                self.once(d, |f| &mut f.failure, function, scope)
            }
            "failure" => self.once(d, |f| &mut f.failure, function, &Scope::constant()),
            "absent" => self.once(d, |f| &mut f.absent, function, &Scope::constant()),
            "lost" => self.once(d, |f| &mut f.lost, function, &Scope::constant()),
            "fails" => {
                self.unconditional(d, condition);
                self.fails(d, function);
            }
            "local" => {
                let Some(value) = single(self) else { return };
                match guard {
                    None => function.support = Support::Local(value),
                    condition => function.local_if.push(Guarded { condition, value }),
                }
            }
            "cache" => self.cached(d, guard, function, scope),
            "late" => {
                self.unconditional(d, condition);
                function.late = single(self);
            }
            "on_behalf_of" => {
                self.unconditional(d, condition);
                function.on_behalf_of = d.arguments.iter().flatten().filter_map(|a| self.function_named(a)).collect();
            }
            // Under a condition too: flushing more often than asked changes nothing but speed.
            "flush" => function.flush = true,
            "require" => {
                if let (Some(holds), Some(otherwise)) =
                    (self.argument_value(d, 0, scope), self.argument_value(d, 1, scope))
                {
                    function.requirements.push(Requirement { condition: guard, holds, otherwise });
                }
            }
            "apart" => {
                self.unconditional(d, condition);
                self.apart(d, function, scope);
            }
            "address" => {
                self.unconditional(d, condition);
                function.address = self.argument_value(d, 0, scope);
                let count = d.arguments.as_ref().map_or(0, Vec::len);
                function.address_values = (1..count).filter_map(|i| self.argument_value(d, i, scope)).collect();
            }
            "device_time" => {
                self.unconditional(d, condition);
                function.device_time = single(self);
            }
            "occupies" => {
                self.unconditional(d, condition);
                let device = self.argument_value(d, 0, scope);
                let (drain, name) = (self.server_utility(d, 1), self.server_utility(d, 2));
                drain.into_iter().for_each(|drain| self.takes_a_request(d, drain));
                let four = d.arguments.as_ref().is_some_and(|arguments| arguments.len() > 3);
                let begin = if four { self.argument_value(d, 3, scope) } else { None };
                if let (Some(device), Some(drain), Some(name)) = (device, drain, name) {
                    function.occupies = Some(Occupies { device, drain, name, begin });
                }
            }
            "allocates_rc" => self.charge(d, ChargeKind::Allocate, guard, function, scope),
            "deallocates_rc" => self.charge(d, ChargeKind::Deallocate, guard, function, scope),
            "consumes_rc" => self.charge(d, ChargeKind::Consume, guard, function, scope),
            "register_buf" => self.register_buf(d, guard, function, scope),
            // Without a condition the function is never looked at so closely.
            "unsupported" => self.report(
                Diagnostic::error(d.span, "`unsupported` cannot be conditional")
                    .label("inside an `if`")
                    .help("`require(e, v)` refuses a call with the value `v` unless `e` is true"),
            ),
            "unpack" | "sets" | "varargs" => self.unconditional(d, condition),
            "placeholder" => self.placeholder(d),
            "session_record" | "thread_record" | "current_record" | "same" => {
                self.function_state(d, guard, function, scope)
            }
            "stateless" | "waits" | "blocker" => {
                self.unconditional(d, condition);
                self.function_state(d, None, function, scope);
            }
            "after" => function.after.extend(single(self).map(|value| Guarded { condition: guard, value })),
            "finally" => function.finally.extend(single(self).map(|value| Guarded { condition: guard, value })),
            "after_server" => {
                function.after_server.extend(single(self).map(|value| Guarded { condition: guard, value }))
            }
            _ => {}
        }
    }

    /// `cache`, also where a condition holds; `cache(number, handle)`.
    fn cached(&mut self, d: &'a Descriptor, guard: Option<Expr>, function: &mut Function, scope: &Scope) {
        if d.arguments.as_ref().is_some_and(|arguments| !arguments.is_empty()) {
            match (self.argument_value(d, 0, scope), self.argument_value(d, 1, scope)) {
                (Some(number), Some(handle)) if handle.ty.handle.is_some() => {
                    function.cache_key = Some((number, handle))
                }
                _ => self.report(
                    Diagnostic::error(d.span, "`cache` needs a handle with which its answers are forgotten")
                        .label("a number alone")
                        .help("`cache(number, handle)`: calls with the same two have the same answer"),
                ),
            }
        }
        match guard {
            None => function.cache = true,
            Some(condition) => {
                function.cache_if = Some(match function.cache_if.take() {
                    None => condition,
                    Some(other) => both(Binary::LogicalOr, other, condition),
                });
            }
        }
    }

    /// A drain is asked with a structure: called with a number, as it once was, it would read at that address.
    fn takes_a_request(&mut self, d: &Descriptor, drain: usize) {
        let parameters = &self.model.utility_functions[drain].parameters;
        let structure = parameters.first().and_then(Type::pointee).map(|to| to.spelling.trim_start_matches("const "));
        if parameters.len() != 1 || structure != Some("struct aviary_drain") {
            let name = &self.model.utility_functions[drain].name;
            let message = format!("`{name}` is not asked as a drain is");
            self.report(Diagnostic::error(d.span, message).label("drains the device").help(format!(
                "declare it as `int {name}(const struct aviary_drain *)`: aviary/server.h says what that holds"
            )));
        }
    }

    fn unconditional(&mut self, d: &Descriptor, condition: Option<&Expr>) {
        if let Some(condition) = condition {
            self.report(
                Diagnostic::error(d.span, format!("`{}` cannot be conditional", d.name.text))
                    .label("inside an `if`")
                    .related(condition.span, "this condition"),
            );
        }
    }

    /// `sync` says what is the default anyway; unconditionally beside `async` it is a contradiction.
    pub(in crate::resolve) fn synchronous(&mut self, body: &[Piece<'a>]) {
        if let (Some(one), Some(other)) = (
            crate::resolve::calls::functions::find(body, "sync"),
            crate::resolve::calls::functions::find(body, "async"),
        ) {
            let (first, second) = if one.span.start < other.span.start { (one, other) } else { (other, one) };
            let message = format!("`{}` contradicts `{}`", second.name.text, first.name.text);
            self.report(
                Diagnostic::error(second.span, message)
                    .label("only one of them can hold")
                    .related(first.span, "the other"),
            );
        }
    }

    fn asynchronous(&mut self, d: &Descriptor, guard: Option<Expr>, function: &mut Function) {
        let always = Expr { kind: ExprKind::Int(1), ty: crate::resolve::terms::types::c_int(), span: d.span };
        let here = guard.unwrap_or(always);
        function.asynchronous = Some(match function.asynchronous.take() {
            None => here,
            Some(other) => both(Binary::LogicalOr, other, here),
        });
    }

    fn once(
        &mut self,
        d: &Descriptor,
        slot: impl Fn(&mut Function) -> &mut Option<Expr>,
        function: &mut Function,
        scope: &Scope,
    ) {
        let value = self.argument_value(d, 0, scope);
        let slot = slot(function);
        let differs = slot.as_ref().zip(value.as_ref()).is_some_and(|(a, b)| a.kind != b.kind);
        if let Some(first) = slot.as_ref().filter(|_| differs) {
            let diagnostic =
                Diagnostic::error(d.span, format!("`{}` is given twice, with different values", d.name.text))
                    .label("second value")
                    .related(first.span, "first value");
            self.report(diagnostic);
            return;
        }
        *slot = value;
    }

    fn charge(
        &mut self,
        d: &Descriptor,
        kind: ChargeKind,
        condition: Option<Expr>,
        function: &mut Function,
        scope: &Scope,
    ) {
        let resource = self.resource(d, 0, kind);
        let amount = self.argument_value(d, 1, scope);
        let (Some(resource), Some(amount)) = (resource, amount) else { return };
        let placed = d.arguments.as_ref().is_some_and(|arguments| arguments.len() > 2);
        let named = self.model.resources[resource].devices.is_some();
        // Amounts charged to a device are returned to that device, or accounts would drift.
        if kind != ChargeKind::Consume && placed != named {
            let name = &self.model.resources[resource].name;
            let word = &d.name.text;
            let diagnostic = match named {
                true => Diagnostic::error(d.span, format!("`{name}` lies on devices: on which?"))
                    .label("no place")
                    .help(format!(
                        "`{word}({name}, amount, place)`: `place` is a number that stands for devices, 0 for none"
                    )),
                false => Diagnostic::error(d.span, format!("`{name}` does not lie on devices")).label("a place").help(
                    format!("`continuous_rc {name}(names);`, where `names` is a utility function that names them"),
                ),
            };
            self.report(diagnostic);
            return;
        }
        let place = if placed { self.argument_value(d, 2, scope) } else { None };
        if place.is_some() == placed {
            function.charges.push(Charge { condition, kind, resource, amount, place });
        }
    }

    /// The resource that the `n`th argument names.
    pub(in crate::resolve) fn resource(&mut self, d: &Descriptor, n: usize, kind: ChargeKind) -> Option<usize> {
        let Argument::Expr(ast) = d.arguments.as_ref()?.get(n)? else { return None };
        let name = match &ast.kind {
            AstExprKind::Name(name) => name.as_str(),
            _ => "",
        };
        let wanted = if kind == ChargeKind::Consume { ResourceKind::Instantaneous } else { ResourceKind::Continuous };
        let word = if kind == ChargeKind::Consume { "instantaneous" } else { "continuous" };
        let Some(index) = self.model.resources.iter().position(|r| r.name == name) else {
            let near = similar(name, self.model.resources.iter().map(|r| r.name.as_str())).map(String::from);
            let mut diagnostic = Diagnostic::error(ast.span, format!("unknown resource `{name}`"))
                .label("not declared")
                .suggest(near.as_deref());
            if near.is_none() {
                diagnostic = diagnostic.help(format!("declare it: `{word}_rc {name};`"));
            }
            self.report(diagnostic);
            return None;
        };
        if self.model.resources[index].kind != wanted {
            self.report(
                Diagnostic::error(ast.span, format!("`{}` needs a resource that is {word}", d.name.text))
                    .label(format!("`{name}` is not")),
            );
            return None;
        }
        Some(index)
    }

    fn register_buf(&mut self, d: &Descriptor, condition: Option<Expr>, function: &mut Function, scope: &Scope) {
        let Some([Argument::Expr(registry), ..]) = d.arguments.as_deref() else { return };
        let registry = self.registry(registry);
        let rest = [1, 2, 3].map(|n| self.argument_value(d, n, scope));
        if let (Some(registry), [Some(key), Some(buffer), Some(count)]) = (registry, rest) {
            function.registered.push(Registered { condition, registry, key, buffer, count });
        }
    }
}

fn and(outer: Option<&Expr>, inner: Expr) -> Expr {
    match outer {
        None => inner,
        Some(outer) => both(Binary::LogicalAnd, outer.clone(), inner),
    }
}

fn both(operator: Binary, a: Expr, b: Expr) -> Expr {
    let span = b.span;
    Expr { kind: ExprKind::Binary(operator, a.into(), b.into()), ty: crate::resolve::terms::types::c_int(), span }
}

fn not(a: Expr) -> Expr {
    let span = a.span;
    Expr { kind: ExprKind::Unary(Unary::Not, a.into()), ty: crate::resolve::terms::types::c_int(), span }
}
