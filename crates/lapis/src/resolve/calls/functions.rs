//! Functions: the description meets the prototype.

use crate::header::{HeaderFunction, macros};
use crate::model::{Contextual, ErrorPlace, Expr, ExprKind, Function, Kind, Rule, Signature, Support, Type, TypeKind};
use crate::resolve::data::values::{Role, Value};
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::{describe, key, same, void};
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{self, Argument, AstExprKind, Descriptor, FunctionItem, Item, Statement};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;
use crate::syntax::suggest::similar;
use std::collections::HashMap;

/// The pieces of all scopes that `wanted` selects, with the conditions around them.
pub(in crate::resolve) fn collect<'a>(body: &[Piece<'a>], wanted: &dyn Fn(&Descriptor) -> bool) -> Vec<Piece<'a>> {
    let mut all = Vec::new();
    for piece in body {
        match piece {
            Piece::Statement(Statement::Descriptor(d)) if wanted(d) => {
                all.extend(d.body.as_ref().map(pieces).unwrap_or_default())
            }
            Piece::Statement(_) => {}
            Piece::If { condition, then, otherwise } => {
                let (then, otherwise) = (collect(then, wanted), collect(otherwise, wanted));
                if !then.is_empty() || !otherwise.is_empty() {
                    all.push(Piece::If { condition, then, otherwise });
                }
            }
        }
    }
    all
}

/// `x` of `argument(x)`.
pub(in crate::resolve) fn argument_name(d: &Descriptor) -> Option<&str> {
    match d.arguments.as_deref() {
        Some([Argument::Expr(ast::AstExpr { kind: AstExprKind::Name(name), .. })]) if d.name.text == "argument" => {
            Some(name)
        }
        _ => None,
    }
}

impl<'a> Resolver<'a> {
    pub(in crate::resolve) fn functions(&mut self, items: &'a [Item], header: &[&'a HeaderFunction]) {
        let first = items.iter().find_map(|i| if let Item::Function(f) = i { Some(f) } else { None });
        if let Some(first) = first.filter(|f| header.is_empty() && f.table.is_none()) {
            self.report(
                Diagnostic::error(first.head, "no header declares the functions of this API")
                    .label("what is its prototype?")
                    .help("add `#include <header.h>` to the specification, or name the header with `--header`"),
            );
            return;
        }
        let descriptions = self.descriptions(items, header);
        let described = header.iter().filter(|f| descriptions.contains_key(f.name.as_str()));
        self.default_handles(
            described.flat_map(|f| {
                f.signature.parameters.iter().map(|(_, t)| t).chain(std::iter::once(&f.signature.result))
            }),
        );
        for function in header {
            let resolved = match descriptions.get(function.name.as_str()) {
                Some(item) => self.function(item, &function.signature, &function.name, None),
                None => self.undescribed_function(&function.signature, &function.name),
            };
            self.model.functions.push(Function { label: function.symbol.clone(), ..resolved });
        }
        for item in items {
            let Item::Function(item @ FunctionItem { table: Some(table), .. }) = item else { continue };
            if let Some((index, signature)) = self.table_member(table, &item.name, items) {
                let name = format!("{}.{}", table.text, item.name.text);
                let function = self.function(item, &signature, &name, Some((index, item.name.text.clone())));
                self.model.functions.push(function);
            }
        }
        self.undescribed_members(items);
        self.fill_tables();
        self.stateless_functions(items);
        self.states_are_there();
        self.current_objects_are_there();
    }

    /// The description of every function, by its name in the header.
    fn descriptions(&mut self, items: &'a [Item], header: &[&'a HeaderFunction]) -> HashMap<&'a str, &'a FunctionItem> {
        let by_name: HashMap<&str, &'a str> = header.iter().map(|f| (f.name.as_str(), f.name.as_str())).collect();
        let mut found: HashMap<&'a str, &'a FunctionItem> = HashMap::new();
        let mut members: HashMap<String, &'a FunctionItem> = HashMap::new();
        for item in items {
            let Item::Function(item) = item else { continue };
            if let Some(table) = &item.table {
                let name = format!("{}.{}", table.text, item.name.text);
                if let Some(first) = members.insert(name, item) {
                    self.described_twice(item, first);
                }
                continue;
            }
            let Some(name) = self.header_name(&item.name.text, &by_name) else {
                self.not_in_header(item, header);
                continue;
            };
            match found.get(name) {
                Some(first) if !item.overriding => self.described_twice(item, first),
                None if item.overriding => self.report(
                    Diagnostic::error(item.head, format!("nothing to override: `{name}` is not described before"))
                        .label("remove `override`, or import the specification that describes it"),
                ),
                _ => {}
            }
            found.insert(name, item);
        }
        found
    }

    /// The function that a name means: its own, or the one that a macro of that name stands for.
    fn header_name(&self, name: &str, functions: &HashMap<&str, &'a str>) -> Option<&'a str> {
        if let Some(name) = functions.get(name) {
            return Some(name);
        }
        let text = macros::expand(name, &self.header.macros)?;
        functions.get(text.trim()).copied()
    }

    fn described_twice(&mut self, item: &FunctionItem, first: &FunctionItem) {
        self.report(
            Diagnostic::error(item.head, format!("`{}` is described twice", item.name.text))
                .label("second description")
                .related(first.head, "first description")
                .help("`override` before a description replaces an imported one"),
        );
    }

    fn not_in_header(&mut self, item: &FunctionItem, header: &[&'a HeaderFunction]) {
        let name = &item.name.text;
        let near = similar(name, header.iter().map(|f| f.name.as_str()));
        let mut diagnostic = Diagnostic::error(item.name.span, format!("no header declares `{name}`"))
            .label("not a function of this API")
            .suggest(near);
        if let Some(elsewhere) = self.header.function(name) {
            let file = elsewhere.file.display();
            diagnostic =
                diagnostic.help(format!("it is declared in {file}, which no `#include` of the specification names"));
        }
        self.report(diagnostic);
    }

    fn blank(&self, signature: Signature, name: &str, span: Span) -> Function {
        Function {
            name: name.to_string(),
            label: None,
            member_of: None,
            parameters: signature.parameters.iter().map(|(n, _)| n.clone()).collect(),
            error: self.error_place(&signature, &[]),
            arguments: Vec::new(),
            result: Rule::Plan(Box::new(self.plain(&result_value(&signature.result, span)))),
            signature,
            unpacked: None,
            varargs: None,
            support: Support::Unsupported,
            contextual: Vec::new(),
            asynchronous: None,
            success: None,
            failure: None,
            unsupported: None,
            absent: None,
            lost: None,
            fails: None,
            cache: false,
            cache_if: None,
            cache_key: None,
            local_if: Vec::new(),
            flush: false,
            requirements: Vec::new(),
            apart: Vec::new(),
            address: None,
            address_values: Vec::new(),
            device_time: None,
            occupies: None,
            charges: Vec::new(),
            registered: Vec::new(),
            after: Vec::new(),
            finally: Vec::new(),
            after_server: Vec::new(),
            late: None,
            on_behalf_of: Vec::new(),
            records: Vec::new(),
            same: Vec::new(),
            stateless: None,
            waits: false,
            blocker: None,
            span,
        }
    }

    pub(in crate::resolve) fn undescribed_function(&mut self, signature: &Signature, name: &str) -> Function {
        let signature = self.decorate_signature(signature);
        let mut blank = self.blank(signature, name, Span::default());
        blank.arguments = self.plain_arguments(&blank);
        blank
    }

    fn plain_arguments(&self, function: &Function) -> Vec<Rule> {
        let parameters = function.signature.parameters.iter().enumerate();
        parameters
            .map(|(n, (_, ty))| {
                Rule::Plan(Box::new(self.plain(&argument_value(n, ty, &function.parameters[n], function.span))))
            })
            .collect()
    }

    /// True if a value of this type says how a call ended.
    pub(in crate::resolve) fn is_error(&self, ty: &Type) -> bool {
        self.model.error.as_ref().is_some_and(|error| key(&ty.spelling) == error.name)
    }

    fn error_place(&self, signature: &Signature, names: &[String]) -> ErrorPlace {
        if let Some(place) = self.status_place(signature, names) {
            return place;
        }
        let Some(error) = &self.model.error else { return ErrorPlace::Nowhere };
        if self.is_error(&signature.result) {
            return ErrorPlace::Return;
        }
        let named = |n: usize, own: &String| {
            self.error_arguments.iter().any(|e| e == own || names.get(n).is_some_and(|name| name == e))
        };
        let mut parameters = signature.parameters.iter().enumerate();
        let found =
            parameters.position(|(n, (own, ty))| named(n, own) && ty.pointee().is_some_and(|t| same(t, &error.ty)));
        found.map_or(ErrorPlace::Nowhere, ErrorPlace::Parameter)
    }

    fn function(
        &mut self,
        item: &'a FunctionItem,
        signature: &Signature,
        name: &str,
        member: Option<(usize, String)>,
    ) -> Function {
        let signature = self.decorate_signature(signature);
        let mut function = self.blank(signature, name, item.name.span);
        function.member_of = member;
        if !self.check_parameters(item, &function.signature) {
            function.arguments = self.plain_arguments(&function);
            return function;
        }
        function.parameters = item.parameters.iter().map(|p| p.name.text.clone()).collect();
        let body = pieces(&item.body);
        if let Some(d) = find(&body, "unsupported") {
            self.misplaced(d, DescriptorScope::Function);
            function.unsupported = self.argument_value(d, 0, &Scope::constant());
            function.arguments = self.plain_arguments(&function);
            return function;
        }
        // What is to become of its `...` is asked first: other mistakes would only be consequences.
        if let Some(d) = find(&body, "placeholder").filter(|_| function.signature.variadic) {
            self.placeholder(d);
            function.arguments = self.plain_arguments(&function);
            return function;
        }
        function.support = Support::Remote;
        self.unpack(&body, item, &mut function);
        let cases = self.varargs(&body, item, &mut function);
        function.error = self.error_place(&function.signature, &function.parameters);
        let types = function.signature.parameters.iter().map(|(_, t)| t.clone());
        let mut scope = Scope {
            parameters: function.parameters.iter().cloned().zip(types).collect(),
            result: Some(function.signature.result.clone()),
            ..Scope::default()
        };
        self.synchronous(&body);
        self.contextual(&body, &mut function, &mut scope);
        self.statements(&body, None, &mut function, &scope);
        self.values(&body, &mut function, &scope, item);
        self.spread(cases, &mut function, &scope);
        self.outcome(item, &body, &mut function);
        function
    }

    /// Parameter count and types against the header's.
    fn check_parameters(&mut self, item: &FunctionItem, signature: &Signature) -> bool {
        let (expected, found) = (signature.parameters.len(), item.parameters.len());
        if expected != found {
            let s = if expected == 1 { "" } else { "s" };
            let list: Vec<String> = signature.parameters.iter().map(|(n, t)| format!("{} {n}", t.spelling)).collect();
            self.report(
                Diagnostic::error(
                    item.head,
                    format!("`{}` has {expected} parameter{s}, found {found}", item.name.text),
                )
                .label("does not match the header")
                .help(format!("the header declares ({})", list.join(", "))),
            );
            return false;
        }
        for (parameter, (_, expected)) in item.parameters.iter().zip(&signature.parameters) {
            // The header decides about types that only a compiler takes apart.
            let Some(name) = parameter.ty.as_ref().filter(|t| !t.function && t.base != "_Atomic") else { continue };
            let function = matches!(expected.kind, TypeKind::FunctionPointer(_));
            if let Some(ty) = self.resolve_type(name)
                // A function as a parameter is a pointer to it.
                && !(function && matches!(ty.kind, TypeKind::Incomplete))
                && !same(&ty, expected)
            {
                self.differs(name.span, &format!("parameter `{}`", parameter.name.text), &ty, expected);
            }
        }
        if let Some(name) = &item.result
            && let Some(ty) = self.resolve_type(name)
            && !same(&ty, &signature.result)
        {
            self.differs(name.span, "what is returned", &ty, &signature.result);
        }
        true
    }

    fn differs(&mut self, span: Span, what: &str, found: &Type, header: &Type) {
        self.report(
            Diagnostic::warning(span, format!("the type of {what} differs from the header's"))
                .label(format!("{} here, {} in the header", describe(found), describe(header)))
                .help("the header's type is used"),
        );
    }

    fn contextual(&mut self, body: &[Piece<'a>], function: &mut Function, scope: &mut Scope) {
        for piece in body {
            let Piece::Statement(Statement::Contextual { ty, name, value, .. }) = piece else {
                if let Piece::If { then, otherwise, .. } = piece
                    && let Some(span) = contextual_inside(then).or_else(|| contextual_inside(otherwise))
                {
                    self.report(
                        Diagnostic::error(span, "`contextual_argument` cannot be conditional")
                            .label("inside an `if`")
                            .help("use `c ? value : NULL`"),
                    );
                }
                continue;
            };
            let (Some(ty), Some(value)) = (self.resolve_type(ty), self.expr(value, scope)) else { continue };
            scope.contextual.push((name.text.clone(), ty.clone()));
            let plain = Value {
                ty: ty.clone(),
                place: None,
                input: true,
                output: false,
                role: Role::Contextual,
                name: String::new(),
                span: name.span,
                hidden: None,
            };
            let rule = Rule::Plan(Box::new(self.plain(&plain)));
            function.contextual.push(Contextual { name: name.text.clone(), ty, value, rule });
        }
    }

    fn values(&mut self, body: &[Piece<'a>], function: &mut Function, scope: &Scope, item: &FunctionItem) {
        let local = matches!(function.support, Support::Local(_));
        for n in 0..function.parameters.len() {
            let name = function.parameters[n].clone();
            let mut own = collect(body, &|d| argument_name(d) == Some(&name));
            own.extend(self.member_direction(function, n, &own));
            let ty = function.signature.parameters[n].1.clone();
            let span = item.parameters.get(n).or(item.parameters.last()).map_or(item.head, |p| p.name.span);
            let mut value = argument_value(n, &ty, &name, span);
            let is_error = function.error == ErrorPlace::Parameter(n) && own.is_empty();
            if is_error {
                function.arguments.push(self.error_output(&value, scope));
            } else if local && own.is_empty() {
                function.arguments.push(Rule::Plan(Box::new(self.plain(&value))));
            } else if let Some(rule) = own.is_empty().then(|| self.proved_null(function, n, &value)).flatten() {
                function.arguments.push(rule);
            } else {
                value.name = format!("argument `{name}`");
                function.arguments.push(self.rule(own, &value, scope));
            }
        }
        for n in 0..function.contextual.len() {
            let name = function.contextual[n].name.clone();
            let own = collect(body, &|d| argument_name(d) == Some(&name));
            let ty = function.contextual[n].ty.clone();
            let place = Expr { kind: ExprKind::Contextual(n), ty: ty.clone(), span: item.head };
            let value = Value {
                ty,
                place: Some(place),
                input: true,
                output: false,
                role: Role::Contextual,
                name: format!("argument `{name}`"),
                span: item.head,
                hidden: None,
            };
            function.contextual[n].rule = self.rule(own, &value, scope);
        }
        let own = collect(body, &|d| d.name.text == "return_value");
        let value = result_value(&function.signature.result, item.name.span);
        function.result = if local && own.is_empty() {
            Rule::Plan(Box::new(self.plain(&value)))
        } else {
            self.rule(own, &value, scope)
        };
        self.status_result(function, scope);
        self.connect_userdata(function);
    }

    /// A status object that a call returns is new, and it crosses as an object whatever else is said of it.
    fn status_result(&mut self, function: &mut Function, scope: &Scope) {
        if !matches!(function.error, ErrorPlace::Status(_)) || matches!(function.support, Support::Local(_)) {
            return;
        }
        let mut other = None;
        each_plan(&mut function.result, &mut |plan| match plan.kind {
            Kind::Handle { .. } => plan.object.allocate = true,
            _ => other = Some(plan.span),
        });
        if let Some(span) = other {
            let ty = scope.result.as_ref().map(describe).unwrap_or_default();
            self.report(
                Diagnostic::error(span, format!("{ty} is a status object and cannot cross as something else"))
                    .label("described otherwise")
                    .help("leave the description away: a status object that a call returns is a new handle"),
            );
        }
    }

    /// The error argument needs no description: one value, written by the call.
    fn error_output(&mut self, value: &Value, scope: &Scope) -> Rule {
        let to = value.ty.pointee().cloned().unwrap_or_else(void);
        let mut plan = self.plain(value);
        (plan.input, plan.output) = (false, true);
        let element =
            Value { ty: to.clone(), input: false, output: true, role: Role::Element, place: None, ..value.clone() };
        let element = self.rule(Vec::new(), &element, &scope.enter_element());
        plan.kind = Kind::Buffer(Box::new(crate::model::Buffer::one(element, to)));
        Rule::Plan(Box::new(plan))
    }

    /// Every callback gets its context from the next `userdata` argument, or else from the last before it.
    pub(in crate::resolve) fn connect_userdata(&mut self, function: &mut Function) {
        let contexts: Vec<usize> = (0..function.arguments.len())
            .filter(|&n| any_plan(&function.arguments[n], &|p| matches!(p.kind, Kind::Userdata)))
            .collect();
        let names = function.parameters.clone();
        let named = |plan: &mut crate::model::Plan, names: &[String]| {
            if let Kind::Given { name, argument } = &mut plan.kind {
                *argument = names.iter().position(|known| known == name);
            }
        };
        for (n, rule) in function.arguments.iter_mut().enumerate() {
            let context =
                contexts.iter().copied().find(|&c| c > n).or_else(|| contexts.iter().copied().rfind(|&c| c < n));
            each_plan(rule, &mut |plan| {
                if let Kind::Callback(callback) = &mut plan.kind {
                    callback.userdata_argument = context;
                    callback.arguments.iter_mut().for_each(|rule| each_plan(rule, &mut |plan| named(plan, &names)));
                }
            });
        }
    }
}

pub(in crate::resolve) fn find<'a>(body: &[Piece<'a>], name: &str) -> Option<&'a Descriptor> {
    body.iter().find_map(|p| match p {
        Piece::Statement(Statement::Descriptor(d)) if d.name.text == name => Some(d),
        _ => None,
    })
}

fn contextual_inside(body: &[Piece]) -> Option<Span> {
    body.iter().find_map(|p| match p {
        Piece::Statement(Statement::Contextual { span, .. }) => Some(*span),
        Piece::Statement(_) => None,
        Piece::If { then, otherwise, .. } => contextual_inside(then).or_else(|| contextual_inside(otherwise)),
    })
}

pub(in crate::resolve) fn argument_value(n: usize, ty: &Type, name: &str, span: Span) -> Value {
    let place = Expr { kind: ExprKind::Parameter(n), ty: ty.clone(), span };
    Value {
        ty: ty.clone(),
        place: Some(place),
        input: true,
        output: false,
        role: Role::Argument,
        name: format!("argument `{name}`"),
        span,
        hidden: None,
    }
}

fn result_value(ty: &Type, span: Span) -> Value {
    let place = (!matches!(ty.kind, TypeKind::Void)).then(|| Expr { kind: ExprKind::Ret, ty: ty.clone(), span });
    Value {
        ty: ty.clone(),
        place,
        input: false,
        output: true,
        role: Role::Result,
        name: "what is returned".into(),
        span,
        hidden: None,
    }
}

fn any_plan(rule: &Rule, wanted: &dyn Fn(&crate::model::Plan) -> bool) -> bool {
    match rule {
        Rule::Plan(plan) => wanted(plan),
        Rule::If { then, otherwise, .. } => any_plan(then, wanted) || any_plan(otherwise, wanted),
    }
}

fn each_plan(rule: &mut Rule, visit: &mut dyn FnMut(&mut crate::model::Plan)) {
    match rule {
        Rule::Plan(plan) => visit(plan),
        Rule::If { then, otherwise, .. } => {
            each_plan(then, visit);
            each_plan(otherwise, visit);
        }
    }
}
