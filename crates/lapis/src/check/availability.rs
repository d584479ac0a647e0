//! An expression uses only what exists where and when it is evaluated.

use super::{buffer, outer, pointers};
use crate::model::{
    Callee, Count, Expr, ExprKind, Function, Kind, Lifetime, Model, Plan, Referring, Rule, Side, Support,
};
use crate::syntax::diagnostics::Diagnostic;

/// Where and when an expression is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Both: in the guest, and again on the server from what arrived.
    side: Side,
    after: bool,
    what: &'static str,
}

const fn moment(side: Side, after: bool, what: &'static str) -> Moment {
    Moment { side, after, what }
}

const SIZE: Moment = moment(Side::Both, false, "a size");
const CONDITION: Moment = moment(Side::Both, false, "a condition");
/// Looked at before anything else of the call.
const LOCAL_ANSWER: &str = "a conditional `local`";
const RESULT: Moment = moment(Side::Both, true, "a description of what is returned");
/// Memory that the library hands out is counted where it is.
const GIVEN_SIZE: Moment = moment(Side::Server, true, "a size");

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Argument,
    /// Behind an output: the library puts it there.
    Given,
    Result,
}

pub fn check(model: &Model, function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    let mut checker = AvailabilityChecker { model, function, diagnostics };
    if let Support::Local(value) = &function.support {
        checker.expr(value, moment(Side::Guest, false, "`local`"));
        return;
    }
    for rule in function.arguments.iter().chain(function.contextual.iter().map(|c| &c.rule)) {
        checker.rule(rule, Origin::Argument);
    }
    checker.rule(&function.result, Origin::Result);
    for contextual in &function.contextual {
        checker.expr(&contextual.value, moment(Side::Guest, false, "a contextual argument"));
    }
    checker.optional(&function.asynchronous, moment(Side::Guest, false, "the condition of `async`"));
    checker.optional(&function.cache_if, moment(Side::Guest, false, "the condition of `cache`"));
    for value in function.cache_key.iter().flat_map(|(number, handle)| [number, handle]) {
        checker.expr(value, moment(Side::Guest, false, "`cache`"));
    }
    checker.optional(&function.late, moment(Side::Server, true, "`late`"));
    for answer in &function.local_if {
        let place = moment(Side::Guest, false, LOCAL_ANSWER);
        checker.optional(&answer.condition, place);
        checker.expr(&answer.value, place);
    }
    for value in function.address.iter().chain(&function.address_values) {
        checker.expr(value, moment(Side::Server, false, "`address`"));
    }
    checker.optional(&function.device_time, moment(Side::Server, true, "`device_time`"));
    if let Some(occupies) = &function.occupies {
        let place = moment(Side::Server, false, "`occupies`");
        checker.expr(&occupies.device, place);
        checker.optional(&occupies.begin, place);
    }
    for requirement in &function.requirements {
        let place = moment(Side::Server, false, "`require`");
        checker.optional(&requirement.condition, place);
        checker.expr(&requirement.holds, place);
        checker.expr(&requirement.otherwise, place);
    }
    for charge in &function.charges {
        let place = moment(Side::Server, false, "resource accounting");
        checker.optional(&charge.condition, place);
        checker.optional(&charge.place, place);
        checker.expr(&charge.amount, place);
    }
    for registered in &function.registered {
        let place = moment(Side::Guest, true, "`register_buf`");
        checker.optional(&registered.condition, place);
        [&registered.key, &registered.buffer, &registered.count].into_iter().for_each(|e| checker.expr(e, place));
    }
    let ends = [
        (&function.after, moment(Side::Guest, true, "`after`")),
        (&function.finally, moment(Side::Guest, true, "`finally`")),
        (&function.after_server, moment(Side::Server, true, "`after_server`")),
    ];
    for (guarded, place) in ends.into_iter().flat_map(|(all, place)| all.iter().map(move |one| (one, place))) {
        checker.optional(&guarded.condition, place);
        checker.expr(&guarded.value, place);
    }
}

struct AvailabilityChecker<'a> {
    model: &'a Model,
    function: &'a Function,
    diagnostics: &'a mut Vec<Diagnostic>,
}

impl AvailabilityChecker<'_> {
    fn optional(&mut self, expr: &Option<Expr>, moment: Moment) {
        if let Some(expr) = expr {
            self.expr(expr, moment);
        }
    }

    fn rule(&mut self, rule: &Rule, origin: Origin) {
        match rule {
            Rule::If { condition, then, otherwise } => {
                self.expr(condition, if origin == Origin::Result { RESULT } else { CONDITION });
                self.rule(then, origin);
                self.rule(otherwise, origin);
            }
            Rule::Plan(plan) => self.plan(plan, origin),
        }
    }

    fn plan(&mut self, plan: &Plan, origin: Origin) {
        let size = match origin {
            Origin::Argument => SIZE,
            Origin::Given => GIVEN_SIZE,
            Origin::Result => RESULT,
        };
        if let Lifetime::Until { token, .. } = &plan.lifetime {
            self.expr(token, moment(Side::Server, true, "`lifetime_until`"));
        }
        if let Lifetime::Owned(owner) = &plan.lifetime {
            let side = if matches!(plan.kind, Kind::Resident { .. }) { Side::Both } else { Side::Guest };
            self.expr(owner, moment(side, true, "`owned`"));
        }
        for owner in &plan.object.ends_with {
            self.expr(owner, moment(Side::Both, false, "`ends_with`"));
        }
        match &plan.object.referring {
            Some(Referring::Sets { place }) => self.expr(place, moment(Side::Server, false, "`refers`")),
            Some(Referring::Copies { from }) => self.expr(from, moment(Side::Server, false, "`refers_as`")),
            Some(Referring::Uses { failure }) => self.expr(failure, moment(Side::Server, false, "`through`")),
            None => {}
        }
        match &plan.kind {
            Kind::Buffer(buffer) => {
                if let Count::Elements(count) = &buffer.count {
                    self.expr(count, size);
                }
                self.optional(&buffer.returned, moment(Side::Server, true, "`returned`"));
                let inner =
                    if origin == Origin::Argument && plan.output && !plan.input { Origin::Given } else { origin };
                self.rule(&buffer.element, inner);
            }
            Kind::Struct { fields, .. } => fields.iter().for_each(|(_, rule)| self.rule(rule, origin)),
            Kind::Zerocopy { count } => self.optional(count, size),
            Kind::Resident { bytes } => self.expr(bytes, moment(Side::Server, true, "`resident`")),
            // Expressions in a callback speak of its own parameters.
            _ => {}
        }
    }

    /// Reports what is not there at that moment. A mistake in a part is reported there and not again for the whole.
    fn expr(&mut self, expr: &Expr, moment: Moment) {
        match &expr.kind {
            ExprKind::Ret if !moment.after => self.push(
                Diagnostic::error(expr.span, format!("{} cannot use `ret`", moment.what))
                    .label("it is evaluated before the call")
                    .help("what the call returns is known in `returned`, `return_value`, `after`, `after_server` and `device_time`"),
            ),
            ExprKind::Contextual(n) if moment.what == LOCAL_ANSWER => {
                let name = &self.function.contextual[*n].name;
                self.push(
                    Diagnostic::error(expr.span, format!("{} cannot use `{name}`", moment.what))
                        .label("a contextual argument is evaluated when the call is made")
                        .help("write its expression here"),
                );
            }
            ExprKind::Relaxed if moment.side != Side::Guest => self.push(
                Diagnostic::error(expr.span, format!("{} cannot use `relaxed`", moment.what))
                    .label("it is evaluated on the server, too, which does not know what the user allows")
                    .help("use it in the condition of `async`, or transport its value: `contextual_argument int name = relaxed;`"),
            ),
            ExprKind::Call(callee, arguments) => {
                self.callee(expr, *callee, moment);
                // A guest-only function sees what the guest has; only its answer crosses.
                let inner = if guest_only(self.model, *callee) { Moment { side: Side::Guest, ..moment } } else { moment };
                if *callee == Callee::Strlen {
                    arguments.iter().for_each(|a| self.read(a, inner));
                }
                if !pointers::asks_presence(self.function, *callee, arguments) {
                    arguments.iter().for_each(|a| self.expr(a, inner));
                }
            }
            ExprKind::Parameter(_) => self.kept(expr, moment),
            ExprKind::Element(base, index) => {
                self.kept(expr, moment);
                self.read(base, moment);
                self.expr(base, moment);
                self.expr(index, moment);
            }
            ExprKind::Field(a, _) => {
                self.kept(expr, moment);
                self.expr(a, moment);
            }
            ExprKind::Unary(_, a) | ExprKind::Cast(a) | ExprKind::Metadata(a, _) => self.expr(a, moment),
            ExprKind::Binary(_, a, b) => {
                self.expr(a, moment);
                self.expr(b, moment);
            }
            ExprKind::Conditional(a, b, c) => [a, b, c].into_iter().for_each(|e| self.expr(e, moment)),
            _ => {}
        }
    }

    fn callee(&mut self, expr: &Expr, callee: Callee, moment: Moment) {
        let name = || match callee {
            Callee::Utility(index) => self.model.utility_functions[index].name.clone(),
            Callee::IsHandle => "is_handle".into(),
            Callee::Among => "constant".into(),
            Callee::GetBufs => "get_bufs".into(),
            Callee::GetNBufs => "get_n_bufs".into(),
            Callee::GetBufSize => "get_buf_size".into(),
            Callee::ZerocopyAlloc => "zerocopy_alloc".into(),
            _ => "zerocopy_free".into(),
        };
        if guest_only(self.model, callee) && moment.side == Side::Server {
            let diagnostic = Diagnostic::error(expr.span, format!("{} cannot use `{}`", moment.what, name()))
                .label("it is evaluated on the server, this function exists in the guest only")
                .help("transport its value: `contextual_argument T name = ...;`");
            self.push(diagnostic);
        }
        let server_only = matches!(callee, Callee::Utility(i) if self.model.utility_functions[i].side == Side::Server);
        if server_only && moment.side != Side::Server && !moment.after {
            let diagnostic = Diagnostic::error(expr.span, format!("{} cannot use `{}`", moment.what, name()))
                .label("it is evaluated in the guest, this function exists on the server only")
                .help("move the function to a `utility` block for both sides");
            self.push(diagnostic);
        }
    }

    /// Reports reading memory behind a parameter that is not there, or not yet.
    fn read(&mut self, base: &Expr, moment: Moment) {
        let Some(parameter) = parameter_behind(base) else { return };
        let Some(rule) = self.function.arguments.get(parameter) else { return };
        let name = self.function.parameters[parameter].clone();
        let mut all = Vec::new();
        outer(rule, &mut all);
        if !moment.after && all.iter().all(|p| p.output && !p.input && buffer(p).is_some()) {
            self.push(
                Diagnostic::error(base.span, format!("{} cannot read `{name}`", moment.what))
                    .label("an output has no value before the call")
                    .help(format!("if the application fills it before the call add `in` to `argument({name})`")),
            );
        }
        if moment.side != Side::Guest && all.iter().all(|p| !travels(p)) {
            self.push(
                Diagnostic::error(base.span, format!("{} cannot read `{name}`", moment.what))
                    .label("its content does not travel to the server")
                    .help(format!("describe `argument({name})` with `in` and its size")),
            );
        }
    }

    /// Reports the value of a pointer that stays in the guest.
    fn kept(&mut self, expr: &Expr, moment: Moment) {
        if moment.side == Side::Guest {
            return;
        }
        let Some(word) = pointers::stays_behind(self.function, expr) else { return };
        let help = match (word, &expr.kind) {
            ("null", ExprKind::Parameter(_)) => "`present(p)` says whether the application passed one",
            _ => "transport what the server has to know: `contextual_argument int name = ...;`",
        };
        self.push(
            Diagnostic::error(expr.span, format!("{} cannot use this pointer", moment.what))
                .label(format!("it is `{word}`: the server does not have it"))
                .help(help),
        );
    }

    fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }
}

/// True if the server has the memory behind a pointer during the call.
fn travels(plan: &Plan) -> bool {
    match &plan.kind {
        Kind::Buffer(buffer) => !buffer.no_copy,
        Kind::String | Kind::Zerocopy { .. } | Kind::Unmap | Kind::Mapped { .. } | Kind::Frees => true,
        // A cast or a handle says that the pointer is understood otherwise.
        Kind::Handle { .. } | Kind::Scalar | Kind::Struct { .. } => true,
        _ => false,
    }
}

fn guest_only(model: &Model, callee: Callee) -> bool {
    match callee {
        Callee::Utility(index) => model.utility_functions[index].side == Side::Guest,
        Callee::IsHandle
        | Callee::Among
        | Callee::GetBufs
        | Callee::GetNBufs
        | Callee::GetBufSize
        | Callee::ZerocopyAlloc
        | Callee::ZerocopyFree => true,
        _ => false,
    }
}

/// The parameter whose memory an expression points into directly.
fn parameter_behind(expr: &Expr) -> Option<usize> {
    match &expr.kind {
        ExprKind::Parameter(n) => Some(*n),
        ExprKind::Cast(inner) => parameter_behind(inner),
        _ => None,
    }
}
