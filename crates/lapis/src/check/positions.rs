//! Kinds that a value can have in its position: a description that no generator could keep is refused here.

use crate::lower::reads_memory;
use crate::model::{Count, Expr, ExprKind, Function, Kind, Lifetime, Plan, Referring, Rule, Type, TypeKind};
use crate::syntax::diagnostics::Diagnostic;

/// Where a value stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Argument,
    Contextual,
    Result,
    /// In an element, or a member of a struct, that flows in, out or both ways.
    Inside {
        input: bool,
        output: bool,
    },
    CallbackArgument,
    CallbackResult,
}

pub fn check(function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    let mut checker = PositionChecker { diagnostics };
    function.arguments.iter().for_each(|rule| checker.rule(rule, Position::Argument));
    function.contextual.iter().for_each(|c| checker.rule(&c.rule, Position::Contextual));
    checker.rule(&function.result, Position::Result);
}

/// What a description of a result describes.
const RETURNED: &str = "it describes what a function returns";

const GIVEN: &str = "it describes a parameter of a callback: the argument of the function that it has";

struct PositionChecker<'a> {
    diagnostics: &'a mut Vec<Diagnostic>,
}

impl PositionChecker<'_> {
    fn rule(&mut self, rule: &Rule, at: Position) {
        match rule {
            Rule::If { condition, then, otherwise } => {
                if matches!(at, Position::CallbackArgument | Position::CallbackResult) {
                    self.push(
                        condition.span,
                        "a parameter of a callback cannot depend on a condition",
                        "one description holds for all calls",
                        "describe what is common to them, or the parameter as a `token`",
                    );
                }
                self.rule(then, at);
                self.rule(otherwise, at);
            }
            Rule::Plan(plan) => {
                self.place(plan, at);
                self.plan(plan, at);
            }
        }
    }

    /// Kinds that exist in some places only.
    fn place(&mut self, plan: &Plan, at: Position) {
        let inside = matches!(at, Position::Inside { .. });
        let flows_in = !matches!(at, Position::Inside { output: true, .. });
        let (what, fits, help) = match &plan.kind {
            Kind::Mapped(_) => (
                "`mapped`",
                at == Position::Result,
                "only what a function returns can be mapped: a C function of the specification (`address`) can return what is written here",
            ),
            Kind::FunctionPointer { .. } => ("`function_pointer`", at == Position::Result, RETURNED),
            Kind::Table(_) => ("`table`", at == Position::Result, RETURNED),
            Kind::Unmap => {
                ("`unmap`", at == Position::Argument, "it describes the argument of the call that ends a mapping")
            }
            Kind::Resident { .. } | Kind::Within { .. } => (
                if matches!(plan.kind, Kind::Within { .. }) { "`within`" } else { "`resident`" },
                at == Position::Result || at == Position::Inside { input: false, output: true },
                "it describes what a call returns, or puts into an `out` element",
            ),
            Kind::Frees => {
                ("`frees`", at == Position::Argument, "it describes the argument of the call that frees memory")
            }
            Kind::Callback(_) => (
                "`callback`",
                at == Position::Argument || inside && flows_in,
                "functions are passed in: by an argument, or in a struct that flows `in`",
            ),
            Kind::Given { .. } => ("`given`", at == Position::CallbackArgument, GIVEN),
            Kind::Userdata => (
                "`userdata`",
                matches!(at, Position::Argument | Position::CallbackArgument),
                "the context is an argument of the function, and one of the callback",
            ),
            Kind::Chain(_) => (
                "`chain`",
                inside && matches!(at, Position::Inside { input: true, .. }),
                "a chain begins at a member of a struct that flows `in`",
            ),
            Kind::Zerocopy { .. } => (
                "`zerocopy`",
                matches!(at, Position::Argument | Position::Contextual) || inside && flows_in,
                "an address in zero-copy memory is passed in; a `token` carries one back",
            ),
            Kind::Scalar if translated(&plan.ty) => (
                "an array of pointers or handles",
                false,
                "describe a member of a struct, or each element behind a pointer to the first",
            ),
            _ => return,
        };
        if plan.ty.size() != 8 && !matches!(plan.kind, Kind::Scalar) {
            let label = format!("this is a `{}`", plan.ty.spelling);
            self.push(plan.span, &format!("{what} on what is no pointer"), &label, "an address has eight bytes");
        }
        if !fits {
            self.push(plan.span, &format!("{what} cannot stand {}", name(at)), "not possible here", help);
        }
    }

    fn plan(&mut self, plan: &Plan, at: Position) {
        match &plan.kind {
            Kind::String => self.string(plan, at),
            Kind::Buffer(_) => self.buffer(plan, at),
            Kind::Struct { fields, .. } => {
                if at == Position::CallbackArgument || at == Position::CallbackResult {
                    let help = "describe the struct's pointers as `token`, or the parameter";
                    self.push(
                        plan.span,
                        "a struct with pointers or handles in a callback",
                        "its members would not be translated",
                        help,
                    );
                }
                let inner = match at {
                    Position::Inside { .. } => at,
                    Position::Result => Position::Inside { input: false, output: true },
                    _ => Position::Inside { input: true, output: false },
                };
                fields.iter().for_each(|(_, rule)| self.rule(rule, inner));
            }
            Kind::Callback(callback) => {
                callback.arguments.iter().for_each(|rule| self.rule(rule, Position::CallbackArgument));
                self.rule(&callback.result, Position::CallbackResult);
            }
            Kind::Handle { retain, release, .. } => {
                self.handle(plan, *retain || *release, at);
                self.referring(plan, at);
            }
            _ => {}
        }
    }

    /// A handle is created where a call hands it out, and ended where it is passed in.
    fn handle(&mut self, plan: &Plan, counted: bool, at: Position) {
        let comes_out = match at {
            Position::Result | Position::CallbackArgument => true,
            Position::Inside { output, .. } => output,
            _ => false,
        };
        let goes_in = match at {
            Position::Argument | Position::Contextual => true,
            Position::Inside { input, .. } => input,
            _ => false,
        };
        if plan.object.allocate && !comes_out {
            self.push(
                plan.span,
                "`allocate` on a handle that is passed in",
                "no handle comes out here",
                "a created handle is what is returned, or an `element` of an `out` argument",
            );
        }
        if (plan.object.deallocate || counted) && !goes_in {
            let help =
                "`deallocate`, `retain` and `release` describe the argument of the call that ends or keeps the object";
            self.push(plan.span, "the end of a handle that comes out", "nothing is passed in here", help);
        }
    }

    /// Objects are set on, and used through, what is passed in; only a created handle takes over what another has.
    fn referring(&mut self, plan: &Plan, at: Position) {
        let (what, fits, help) = match &plan.object.referring {
            None => return,
            Some(Referring::Copies { .. }) => {
                ("`refers_as`", plan.object.allocate, "it describes a handle that the call creates (`allocate`)")
            }
            Some(Referring::Sets { .. }) => (
                "`refers`",
                at == Position::Argument,
                "it describes the argument on which the call sets its other handles",
            ),
            Some(Referring::Uses { .. }) => {
                ("`through`", at == Position::Argument, "it describes the argument through which the call uses others")
            }
        };
        if !fits || plan.object.deallocate {
            self.push(plan.span, &format!("{what} cannot stand here"), "not possible here", help);
        }
    }

    fn string(&mut self, plan: &Plan, at: Position) {
        let written = "a string that the call writes has a size: `out; buffer(n);`";
        match at {
            Position::Argument | Position::Contextual | Position::CallbackArgument if plan.output => {
                self.push(plan.span, "`out` on a string", "only what is passed in ends where its NUL is", written);
            }
            // The check of pointers reports it.
            Position::CallbackResult => {}
            Position::Inside { output: false, .. } if plan.output => {
                self.push(plan.span, "`out` inside what flows `in`", "it would not come back", written)
            }
            _ => self.direction(plan, at),
        }
    }

    /// Reports an input inside what only comes out.
    fn direction(&mut self, plan: &Plan, at: Position) {
        if matches!(at, Position::Result | Position::Inside { input: false, .. }) && plan.input && !plan.output {
            let message = "`in` inside what only comes `out`";
            self.push(
                plan.span,
                message,
                "the call never sees it",
                "add `in` to the pointer around it, or leave the direction away",
            );
        }
    }

    fn buffer(&mut self, plan: &Plan, at: Position) {
        let Kind::Buffer(buffer) = &plan.kind else { return };
        let plain = matches!(&buffer.element, Rule::Plan(p) if matches!(p.kind, Kind::Scalar | Kind::Number(_)));
        let given = match at {
            Position::Result => true,
            Position::Inside { output, .. } => output,
            _ => false,
        };
        let told = |p: &Plan| matches!(p.kind, Kind::String | Kind::Handle { .. }) && !p.output;
        let told = matches!(&buffer.element, Rule::Plan(p) if told(p)) && !plan.output;
        if at == Position::CallbackArgument && !plain && !told {
            self.push(
                plan.span,
                "pointers or handles behind a pointer of a callback",
                "they would not be translated",
                "a callback may be given arrays of strings and of handles (`in; buffer(n); element { in; string; }`); describe the parameter as `null` or `token` if the application does not look behind it",
            );
        }
        let stays = !matches!(plan.lifetime, Lifetime::Call) && !plan.lifetime.is_of_library()
            || plan.object.deallocate
            || plan.object.allocate;
        if (given || at == Position::CallbackArgument)
            && (stays || buffer.no_copy && at != (Position::Inside { input: true, output: true }))
        {
            self.push(
                plan.span,
                "a buffer with a life of its own cannot stand here",
                "only what arguments point to outlives a call",
                "memory that the library owns is copied when it is handed out: leave the lifetime away",
            );
        }
        let measured = !matches!(at, Position::Result | Position::Inside { input: false, .. });
        if matches!(buffer.count, Count::Terminated { .. }) && plain && plan.output && measured {
            self.push(
                plan.span,
                "`out` on a list that ends with a zero",
                "nobody knows its size before the call",
                "an output has a size: `buffer(n)`",
            );
        }
        if given {
            self.direction(plan, at);
            if let Some(size) = buffer.returned.as_ref().or(match &buffer.count {
                Count::Elements(e) => Some(e),
                _ => None,
            }) {
                self.behind_pointer(size);
            }
        }
        let inner = match at {
            Position::Result => Position::Inside { input: false, output: true },
            _ => Position::Inside { input: plan.input || !plan.output, output: plan.output },
        };
        self.rule(&buffer.element, inner);
    }

    /// The size of an array that the library hands out must lie where the server can look: not behind another such pointer.
    fn behind_pointer(&mut self, size: &Expr) {
        let mut found = false;
        size.walk(&mut |e| found |= matches!(&e.kind, ExprKind::Element(base, _) if reads_memory(base)));
        if found {
            self.push(
                size.span,
                "the size of what the library hands out lies behind another pointer",
                "it cannot be read there after the call",
                "use a member of the struct that the argument itself points to",
            );
        }
    }

    fn push(&mut self, span: crate::syntax::source::Span, message: &str, label: &str, help: &str) {
        self.diagnostics.push(Diagnostic::error(span, message).label(label).help(help));
    }
}

fn name(at: Position) -> &'static str {
    match at {
        Position::Argument => "on an argument",
        Position::Contextual => "on a contextual argument",
        Position::Result => "on what is returned",
        Position::Inside { output: false, .. } => "inside what flows in",
        Position::Inside { .. } => "inside what comes out",
        Position::CallbackArgument => "on a parameter of a callback",
        Position::CallbackResult => "on what a callback returns",
    }
}

/// True if values of a type that cross as they are would carry addresses or handles.
fn translated(ty: &Type) -> bool {
    match &ty.kind {
        TypeKind::Array { of, .. } => {
            of.handle.is_some()
                || matches!(of.kind, TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_))
                || translated(of)
        }
        _ => false,
    }
}
