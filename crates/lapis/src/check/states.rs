//! Cursors, and structs that the server keeps: where they can stand, and what their members can be.

use crate::model::{Buffer, BufferWay, Count, ExprKind, Function, Kind, Lifetime, Plan, Rule};
use crate::syntax::diagnostics::Diagnostic;

/// The struct around a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    /// No struct, or one that does not flow both ways.
    Other,
    BothWays,
    State,
}

pub fn check(function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    let mut checker = StateChecker { function, diagnostics };
    function.arguments.iter().for_each(|rule| checker.argument(rule));
    let others = function.contextual.iter().map(|c| &c.rule).chain([&function.result]);
    others.for_each(|rule| checker.rule(rule, Around::Other));
}

struct StateChecker<'a> {
    function: &'a Function,
    diagnostics: &'a mut Vec<Diagnostic>,
}

impl StateChecker<'_> {
    /// A state is the one struct that an argument points to, without conditions.
    fn argument(&mut self, rule: &Rule) {
        if let Rule::Plan(plan) = rule
            && let Kind::Buffer(buffer) = &plan.kind
            && let Rule::Plan(element) = &buffer.element
            && let Kind::Struct { fields, state: Some(_), sized: None } = &element.kind
            && one(buffer)
            && matches!(plan.lifetime, Lifetime::Call)
        {
            fields.iter().for_each(|(_, member)| self.state_member(member));
            fields.iter().for_each(|(_, member)| self.rule(member, Around::State));
            if let Some(condition) = &self.function.asynchronous {
                let message = format!("`{}` is asynchronous but changes a state", self.function.name);
                let diagnostic = Diagnostic::error(plan.span, message)
                    .label("the application's members would be old when the call returns")
                    .related(condition.span, "asynchronous here");
                self.diagnostics.push(diagnostic);
            }
            return;
        }
        self.rule(rule, Around::Other);
    }

    fn rule(&mut self, rule: &Rule, around: Around) {
        match rule {
            Rule::If { then, otherwise, .. } => {
                self.rule(then, around);
                self.rule(otherwise, around);
            }
            Rule::Plan(plan) => self.plan(plan, around),
        }
    }

    fn plan(&mut self, plan: &Plan, around: Around) {
        match &plan.kind {
            Kind::Buffer(buffer) => {
                match buffer.way {
                    BufferWay::Cursor => self.cursor(plan, buffer, around),
                    _ if buffer.history > 0 => self.history(plan),
                    BufferWay::Scratch if around != Around::State => self.push(
                        plan,
                        "`scratch` outside a state",
                        "it would not outlive the call",
                        "the library keeps data between calls in a struct whose type says `state(...)`",
                    ),
                    _ => {}
                }
                let both = if plan.input && plan.output { Around::BothWays } else { Around::Other };
                self.rule(&buffer.element, both);
            }
            Kind::Struct { state: Some(_), .. } => self.push(
                plan,
                "`state` describes one struct that an argument points to",
                "not possible here",
                "`argument(x) { }`, without conditions, for a pointer to the struct",
            ),
            Kind::Struct { fields, .. } => fields.iter().for_each(|(_, member)| self.rule(member, around)),
            Kind::Callback(callback) => {
                callback.arguments.iter().chain([&callback.result]).for_each(|rule| self.rule(rule, Around::Other));
            }
            _ => {}
        }
    }

    fn history(&mut self, plan: &Plan) {
        self.push(
            plan,
            "`history` describes what a stream consumes",
            "nothing was read before",
            "`field(next) { in; cursor(remaining); history(n); }` in a type that says `state(...)`",
        );
    }

    fn cursor(&mut self, plan: &Plan, buffer: &Buffer, around: Around) {
        if buffer.history > 0 && (around != Around::State || !plan.input) {
            self.history(plan);
        }
        let member = matches!(&buffer.count, Count::Elements(e) if matches!(e.kind, ExprKind::Field(..)));
        if around == Around::Other || !member {
            self.push(
                plan,
                "`cursor` describes a member of a struct that flows both ways",
                "the pointer would not come back",
                "`field(next) { in; cursor(remaining); }`, where `remaining` is a member of the same struct",
            );
        } else if plan.input == plan.output {
            self.push(
                plan,
                "a cursor without a direction",
                "is this read or written?",
                "`in; cursor(remaining);` for what the library consumes, `out; cursor(remaining);` for what it produces",
            );
        } else if !plain(&buffer.element) || buffer.returned.is_some() || buffer.no_copy {
            self.push(
                plan,
                "a cursor walks over plain data",
                "nothing else can be said of it",
                "what the library has produced is what it has moved the pointer by",
            );
        }
    }

    /// A member of a state is plain, stays behind, or leads to plain data.
    fn state_member(&mut self, rule: &Rule) {
        let fits = |plan: &Plan| match &plan.kind {
            Kind::Scalar | Kind::Number(_) | Kind::Null | Kind::Unknown => true,
            Kind::Buffer(buffer) => {
                plain(&buffer.element)
                    && !matches!(buffer.count, Count::Terminated { .. })
                    && matches!(plan.lifetime, Lifetime::Call)
                    && buffer.returned.is_none()
            }
            _ => false,
        };
        match rule {
            Rule::Plan(plan) if fits(plan) => {}
            Rule::Plan(plan) => self.push(
                plan,
                "this cannot be a member of a state",
                "only numbers and pointers to plain data can",
                "describe it as `null` if the library does without it",
            ),
            Rule::If { condition, .. } => self.diagnostics.push(
                Diagnostic::error(condition.span, "a member of a state depends on a condition")
                    .label("one description holds for all calls"),
            ),
        }
    }

    fn push(&mut self, plan: &Plan, message: &str, label: &str, help: &str) {
        self.diagnostics.push(Diagnostic::error(plan.span, message).label(label).help(help));
    }
}

fn one(buffer: &Buffer) -> bool {
    match &buffer.count {
        Count::One => true,
        Count::Elements(e) => e.kind == ExprKind::Int(1),
        Count::Terminated { .. } => false,
    }
}

fn plain(element: &Rule) -> bool {
    matches!(element, Rule::Plan(plan) if matches!(plan.kind, Kind::Scalar | Kind::Number(_)))
}
