//! Function pointers that the API server calls back through.

use crate::model::{Callback, Expr, ExprKind, Kind, Rule, Signature, TypeKind};
use crate::resolve::data::kinds::Descriptors;
use crate::resolve::data::values::{Role, Value};
use crate::resolve::terms::scope::Scope;
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Argument, AstExpr, AstExprKind, Descriptor, Statement};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;

impl<'a> Resolver<'a> {
    /// The functions that keep the vendor's object alive until its callback has run.
    pub(in crate::resolve) fn held_by(&mut self, d: &Descriptor) -> Option<(usize, usize)> {
        let hold = self.server_utility(d, 0)?;
        let let_go = self.server_utility(d, 1)?;
        Some((hold, let_go))
    }

    /// `given(argument)`: the function's arguments are known to `connect_userdata`.
    pub(in crate::resolve) fn given(&mut self, d: &Descriptor) -> Kind {
        match d.arguments.as_deref() {
            Some([Argument::Expr(AstExpr { kind: AstExprKind::Name(name), .. })]) => {
                Kind::Given { name: name.clone(), argument: None }
            }
            _ => {
                self.report(
                    Diagnostic::error(d.span, "`given` names an argument of the function")
                        .label("usage: `given(argument)`"),
                );
                Kind::Unknown
            }
        }
    }

    /// Reports what a callback cannot be.
    fn check_callback(&mut self, d: &Descriptor, answers_late: bool, called_never: bool) {
        if answers_late {
            self.report(
                Diagnostic::error(d.span, "a posted callback cannot answer")
                    .label("it returns a value or has an `out` argument")
                    .help("leave `posted` out: the vendor's library then waits for the application"),
            );
        }
        if called_never {
            self.report(
                Diagnostic::error(d.span, "`unless_lost` belongs to a callback with `once`")
                    .label("this one is not called when the session is lost")
                    .help("leave `unless_lost` out"),
            );
        }
    }

    pub(in crate::resolve) fn callback(&mut self, d: &'a Descriptor, all: &Descriptors<'a>, value: &Value) -> Kind {
        let TypeKind::FunctionPointer(signature) = &value.ty.kind else {
            self.report(
                Diagnostic::error(d.span, format!("{} is not a function pointer", value.name))
                    .label(format!("it has type `{}`", value.ty.spelling))
                    .help("use `type_cast(a_function_pointer_type)` to say what it is called with"),
            );
            return Kind::Unknown;
        };
        let signature = signature.as_ref().clone();
        let names = self.callback_names(d, &signature);
        let body: Vec<Piece<'a>> = d.body.as_ref().map(pieces).unwrap_or_default();
        let [once, posted, unless_lost] =
            ["once", "posted", "unless_lost"].map(|name| all.has(name) || crate::resolve::items::has(&body, name));
        let held_by = all.get("held_by").and_then(|h| self.held_by(h));
        let types = signature.parameters.iter().map(|(_, t)| t.clone());
        let scope = Scope {
            parameters: names.iter().cloned().zip(types).collect(),
            result: Some(signature.result.clone()),
            ..Scope::default()
        };
        self.callback_statements(&body, &names);
        let arguments: Vec<Rule> =
            (0..names.len()).map(|n| self.callback_argument(&body, n, &names, &signature, &scope, d)).collect();
        let result = Value {
            ty: signature.result.clone(),
            place: None,
            input: false,
            output: true,
            role: Role::CallbackResult,
            name: "what the callback returns".into(),
            span: d.span,
            hidden: None,
        };
        let result = self.rule(
            crate::resolve::calls::functions::collect(&body, &|d| d.name.text == "return_value"),
            &result,
            &scope,
        );
        let userdata = arguments.iter().position(|r| matches!(r, Rule::Plan(p) if matches!(p.kind, Kind::Userdata)));
        let answers = !matches!(signature.result.kind, TypeKind::Void) || arguments.iter().any(is_output);
        self.check_callback(d, posted && answers, unless_lost && !once);
        let errors = (0..names.len()).filter(|n| self.is_error(&signature.parameters[*n].1)).collect();
        Kind::Callback(Box::new(Callback {
            signature,
            parameters: names,
            arguments,
            result,
            userdata,
            userdata_argument: None,
            errors,
            once,
            posted,
            unless_lost,
            held_by,
        }))
    }

    fn callback_names(&mut self, d: &Descriptor, signature: &Signature) -> Vec<String> {
        let given: Vec<&str> = d
            .arguments
            .iter()
            .flatten()
            .filter_map(|a| match a {
                Argument::Parameter(p) => Some(p.name.text.as_str()),
                _ => None,
            })
            .collect();
        let expected = signature.parameters.len();
        if !given.is_empty() && given.len() != expected {
            self.report(
                Diagnostic::error(d.span, format!("the callback takes {expected} parameters, found {}", given.len()))
                    .label("wrong number of parameters"),
            );
        }
        let name =
            |(n, (own, _)): (usize, &(String, _))| given.get(n).map_or_else(|| own.clone(), |g| (*g).to_string());
        signature.parameters.iter().enumerate().map(name).collect()
    }

    /// Reports what cannot stand in the body of a callback.
    fn callback_statements(&mut self, body: &[Piece<'a>], names: &[String]) {
        for piece in body {
            match piece {
                Piece::If { then, otherwise, .. } => {
                    self.callback_statements(then, names);
                    self.callback_statements(otherwise, names);
                }
                Piece::Statement(Statement::Ellipsis(span)) => self.ellipsis(*span),
                Piece::Statement(Statement::Descriptor(d)) => match d.name.text.as_str() {
                    "argument" => self.known_parameter(d, names),
                    "return_value" | "once" | "posted" | "unless_lost" => {}
                    _ => self.report(
                        Diagnostic::error(d.span, format!("`{}` cannot stand in a callback", d.name.text)).label(
                            "only `argument(p) { }`, `return_value { }`, `once`, `posted` and `unless_lost` can",
                        ),
                    ),
                },
                Piece::Statement(_) => {}
            }
        }
    }

    /// Reports `argument(x)` for an `x` that is no parameter.
    pub(in crate::resolve) fn known_parameter(&mut self, d: &Descriptor, names: &[String]) {
        let Some(name) = crate::resolve::calls::functions::argument_name(d) else {
            self.report(
                Diagnostic::error(d.span, "`argument` needs the name of a parameter")
                    .label("usage: `argument(name) { ... }`"),
            );
            return;
        };
        if names.iter().any(|n| n == name) {
            return;
        }
        let near = similar(name, names.iter().map(String::as_str));
        let diagnostic = Diagnostic::error(d.span, format!("no parameter `{name}`"))
            .label("not a parameter of this function")
            .suggest(near);
        self.report(diagnostic);
    }

    fn callback_argument(
        &mut self,
        body: &[Piece<'a>],
        n: usize,
        names: &[String],
        signature: &Signature,
        scope: &Scope,
        d: &Descriptor,
    ) -> Rule {
        let ty = signature.parameters[n].1.clone();
        let place = Expr { kind: ExprKind::Parameter(n), ty: ty.clone(), span: d.span };
        let value = Value {
            ty,
            place: Some(place),
            input: true,
            output: false,
            role: Role::CallbackArgument,
            name: format!("parameter `{}` of the callback", names[n]),
            span: d.span,
            hidden: None,
        };
        let body = crate::resolve::calls::functions::collect(body, &|d| {
            crate::resolve::calls::functions::argument_name(d) == Some(&names[n])
        });
        self.rule(body, &value, scope)
    }
}

/// True if the callback writes through this argument.
fn is_output(rule: &Rule) -> bool {
    match rule {
        Rule::If { then, otherwise, .. } => is_output(then) || is_output(otherwise),
        Rule::Plan(plan) => plan.output,
    }
}
