//! The kind of value that descriptors make: one plan from one list of descriptors.

use crate::model::{
    Buffer, BufferWay, Count, Expr, ExprKind, HandleType, Kind, Lifetime, Plan, Referring, Rule, Type, TypeKind,
};
use crate::resolve::data::values::{Role, Value};
use crate::resolve::terms::scope::{Scope, shift};
use crate::resolve::terms::types::{describe, size_t};
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Argument, AstExprKind, Descriptor};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;

/// Descriptors that say by themselves what a value is; at most one of them may apply.
const KINDS: [&str; 18] = [
    "handle",
    "string",
    "opaque",
    "device_address",
    "token",
    "null",
    "within",
    "callback",
    "userdata",
    "given",
    "chain",
    "zerocopy",
    "mapped",
    "unmap",
    "frees",
    "resident",
    "function_pointer",
    "table",
];
/// Descriptors that only a buffer has.
const BUFFER: [&str; 14] = [
    "buffer",
    "null_terminated",
    "cursor",
    "history",
    "scratch",
    "element",
    "returned",
    "written",
    "rows",
    "planes",
    "no_copy",
    "in_place",
    "aligned",
    "type_cast",
];
/// Descriptors that only a handle has.
const HANDLE: [&str; 11] = [
    "handle",
    "retain",
    "release",
    "ends_with",
    "refers",
    "refers_as",
    "through",
    "uses",
    "uses_read",
    "shares",
    "tells",
];
/// Descriptors that say how much there is behind a pointer; at most one of them may apply.
const EXTENTS: [&str; 4] = ["buffer", "null_terminated", "cursor", "scratch"];
/// Descriptors that may stand with any kind of value.
const ANY_KIND: [&str; 17] = [
    "constant",
    "in",
    "out",
    "type_cast",
    "allocate",
    "deallocate",
    "obj_record",
    "obj_depends_on",
    "obj_state_cbs",
    "lifetime_call",
    "lifetime_manual",
    "lifetime_coupled",
    "lifetime_until",
    "bound",
    "owned",
    "owned_until",
    "freed_by",
];
const LIFETIMES: [&str; 8] = [
    "bound",
    "lifetime_call",
    "lifetime_manual",
    "lifetime_coupled",
    "lifetime_until",
    "owned",
    "owned_until",
    "freed_by",
];

/// The descriptors of one value, looked up by name.
pub(in crate::resolve) struct Descriptors<'a> {
    pub all: Vec<&'a Descriptor>,
}

impl<'a> Descriptors<'a> {
    pub(in crate::resolve) fn get(&self, name: &str) -> Option<&'a Descriptor> {
        self.all.iter().rev().find(|d| d.name.text == name).copied()
    }

    pub(in crate::resolve) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(in crate::resolve) fn any(&self, names: &[&str]) -> Option<&'a Descriptor> {
        self.all.iter().rev().find(|d| names.contains(&d.name.text.as_str())).copied()
    }

    /// The bodies of all scopes of that name.
    fn bodies(&self, name: &str) -> Vec<Piece<'a>> {
        let scopes = self.all.iter().filter(|d| d.name.text == name);
        scopes.filter_map(|d| d.body.as_ref()).flat_map(pieces).collect()
    }
}

impl<'a> Resolver<'a> {
    /// `general` are the descriptors of the type, `own` those of the value: its own kind and direction win.
    pub(in crate::resolve) fn plan(
        &mut self,
        general: &[&'a Descriptor],
        own: &[&'a Descriptor],
        handle: Option<usize>,
        value: &Value,
        scope: &Scope,
    ) -> Rule {
        self.contradictions(own, value);
        let mine = Descriptors { all: own.to_vec() };
        let own_kind = mine.any(&KINDS).is_some();
        let own_direction = mine.any(&["in", "out"]).is_some();
        let inherited = general.iter().filter(|d| {
            let name = d.name.text.as_str();
            !(own_kind && KINDS.contains(&name) || own_direction && matches!(name, "in" | "out"))
        });
        let all = Descriptors { all: inherited.chain(own).copied().collect() };
        let mut plan = self.plain(value);
        plan.hidden = value.hidden.clone();
        plan.span = own.first().map_or(value.span, |d| d.span);
        (plan.input, plan.output) = self.direction(&all, value);
        plan.object.allocate = all.has("allocate");
        plan.object.deallocate = all.has("deallocate");
        plan.lifetime = self.lifetime(&all, scope);
        self.objects(&all, &mut plan, scope);
        self.handle_memory(&all, &mut plan, scope);
        let before = self.diagnostics.len();
        plan.kind = self.kind(&all, handle, &mut plan, value, scope);
        self.recorded(&all, &mut plan, &value.name, scope);
        self.tells(&all, &mut plan);
        if self.diagnostics.len() == before {
            self.meaningless(&mine, &plan.kind, value);
        }
        let constant = all.get("constant").and_then(|d| self.constants(d, &plan, value, scope));
        let rule = Rule::Plan(Box::new(plan));
        match constant {
            Some((condition, constant)) => {
                Rule::If { condition, then: Rule::Plan(constant.into()).into(), otherwise: rule.into() }
            }
            None => rule,
        }
    }

    /// Reports descriptors that say nothing about a value of that kind.
    fn meaningless(&mut self, own: &Descriptors, kind: &Kind, value: &Value) {
        let (what, meant): (&str, &[&str]) = match kind {
            Kind::Scalar | Kind::Nothing => ("a plain value", &[]),
            Kind::Struct { .. } => ("a struct", &["field", "sized", "state"]),
            Kind::Handle { .. } => ("a handle", &HANDLE),
            Kind::Buffer(_) => ("a buffer", &BUFFER),
            Kind::String => ("a string", &["string"]),
            Kind::Callback(_) => ("a callback", &["callback", "once", "posted", "unless_lost", "held_by"]),
            Kind::Userdata => ("userdata", &["userdata"]),
            Kind::Given { .. } => ("what was passed before", &["given"]),
            Kind::Chain(_) => ("a chain", &["chain"]),
            Kind::Zerocopy { .. } => ("zero-copy memory", &["zerocopy", "buffer"]),
            Kind::Mapped(_) => ("mapped memory", &["mapped", "mapped_read", "mapped_write"]),
            Kind::Unmap => ("mapped memory that ends", &["unmap"]),
            Kind::Frees => ("memory that ends", &["frees"]),
            Kind::Resident { .. } => ("memory of the library's", &["resident"]),
            Kind::Number(_) => ("a number", &["opaque", "device_address", "token"]),
            Kind::Null => ("always NULL", &["null"]),
            Kind::Constant { .. } => ("a constant", &["constant"]),
            Kind::Within { .. } => ("an address in an argument", &["within"]),
            Kind::Unknown => return,
            Kind::FunctionPointer { .. } => ("a function of this API", &["function_pointer"]),
            Kind::Table(_) => ("a table", &["table"]),
        };
        for d in &own.all {
            let name = d.name.text.as_str();
            // Two kinds at once and descriptors out of place have been reported as such.
            let judged = KINDS.contains(&name)
                || crate::syntax::descriptors::find(name).is_none_or(|i| !i.scopes.contains(&DescriptorScope::Value));
            if !judged && !meant.contains(&name) && !ANY_KIND.contains(&name) {
                self.report(
                    Diagnostic::error(d.span, format!("`{name}` says nothing here: {} is {what}", value.name))
                        .label("without effect"),
                );
            }
        }
    }

    fn direction(&self, all: &Descriptors, value: &Value) -> (bool, bool) {
        if all.has("in") || all.has("out") { (all.has("in"), all.has("out")) } else { (value.input, value.output) }
    }

    fn contradictions(&mut self, own: &[&'a Descriptor], value: &Value) {
        for group in [KINDS.as_slice(), LIFETIMES.as_slice(), EXTENTS.as_slice()] {
            let found: Vec<_> = own.iter().filter(|d| group.contains(&d.name.text.as_str())).collect();
            if let [first, second, ..] = found.as_slice() {
                let twice = first.name.text == second.name.text;
                let message = if twice {
                    format!("`{}` is given twice for {}", first.name.text, value.name)
                } else {
                    format!("`{}` contradicts `{}`", second.name.text, first.name.text)
                };
                self.report(
                    Diagnostic::error(second.span, message)
                        .label("only one of them can hold")
                        .related(first.span, "the other"),
                );
            }
        }
        for pair in [["allocate", "deallocate"], ["retain", "release"], ["refers", "through"], ["uses", "uses_read"]] {
            let [Some(first), Some(second)] = pair.map(|n| own.iter().find(|d| d.name.text == n)) else { continue };
            let message = format!("`{}` contradicts `{}`", second.name.text, first.name.text);
            self.report(
                Diagnostic::error(second.span, message)
                    .label("only one of them can hold")
                    .related(first.span, "the other"),
            );
        }
    }

    fn lifetime(&mut self, all: &Descriptors, scope: &Scope) -> Lifetime {
        let Some(d) = all.any(&LIFETIMES) else {
            // A function that may be called later must outlive the call that announces it.
            return if all.has("callback") { Lifetime::Manual } else { Lifetime::Call };
        };
        match d.name.text.as_str() {
            "lifetime_manual" => Lifetime::Manual,
            "lifetime_coupled" => self.argument_value(d, 0, scope).map_or(Lifetime::Call, Lifetime::Coupled),
            "lifetime_until" => {
                let token = self.argument_value(d, 0, scope);
                let poll = self.server_utility(d, 1);
                match (token, poll) {
                    (Some(token), Some(poll)) => Lifetime::Until { token, poll },
                    _ => Lifetime::Call,
                }
            }
            "bound" => self.argument_value(d, 0, scope).map_or(Lifetime::Call, Lifetime::Bound),
            "owned" | "owned_until" | "freed_by" => self.library_memory(d, scope),
            _ => Lifetime::Call,
        }
    }

    fn objects(&mut self, all: &Descriptors, plan: &mut Plan, scope: &Scope) {
        for d in all.all.iter().filter(|d| d.name.text == "ends_with") {
            let Some(owner) = self.argument_value(d, 0, scope) else { continue };
            if owner.ty.handle.is_none() {
                let label = format!("this is {}", describe(&owner.ty));
                self.report(Diagnostic::error(owner.span, "a handle ends with another handle").label(label));
                continue;
            }
            plan.object.ends_with.push(owner);
        }
        if let Some(d) = all.any(&["refers", "refers_as", "through"])
            && let Some(e) = self.argument_value(d, 0, scope)
        {
            plan.object.referring = Some(match d.name.text.as_str() {
                "refers" => Referring::Sets { place: e },
                "through" => Referring::Uses { failure: e },
                _ => Referring::Copies { from: e },
            });
            if let Some(Referring::Copies { from }) =
                plan.object.referring.as_ref().filter(|r| r.expr().ty.handle.is_none())
                && d.name.text == "refers_as"
            {
                let label = format!("this is {}", describe(&from.ty));
                self.report(Diagnostic::error(from.span, "`refers_as` names another handle").label(label));
            }
        }
    }

    fn kind(
        &mut self,
        all: &Descriptors<'a>,
        handle: Option<usize>,
        plan: &mut Plan,
        value: &Value,
        scope: &Scope,
    ) -> Kind {
        let ty = &value.ty;
        let Some(d) = all.any(&KINDS) else {
            return match handle {
                Some(_) if self.no_buffer(all, value) => Kind::Unknown,
                Some(handle) => Kind::Handle { handle, retain: all.has("retain"), release: all.has("release") },
                None => self.structural(all, plan, value, scope),
            };
        };
        match d.name.text.as_str() {
            "handle" => {
                self.no_buffer(all, value);
                let handle = handle.or(ty.handle).or_else(|| self.implicit_handle(d, ty));
                handle.map_or(Kind::Unknown, |handle| Kind::Handle {
                    handle,
                    retain: all.has("retain"),
                    release: all.has("release"),
                })
            }
            "string" => {
                if !matches!(ty.pointee().map(|p| &p.kind), Some(TypeKind::Int { bytes: 1, .. })) {
                    self.report(
                        Diagnostic::error(d.span, format!("{} is not a string", describe(ty)))
                            .label("strings are pointers to `char`")
                            .help("use `type_cast(const char *)` if it is one"),
                    );
                }
                Kind::String
            }
            "opaque" | "device_address" | "token" | "null" => self.number(d, value),
            "within" => self.within(d, value, scope),
            "callback" => {
                if all.has("lifetime_call") {
                    plan.lifetime = Lifetime::Call;
                }
                self.callback(d, all, value)
            }
            "userdata" => Kind::Userdata,
            "given" => self.given(d),
            "chain" => self.chain(d, value),
            "zerocopy" => Kind::Zerocopy { count: all.get("buffer").and_then(|b| self.argument_value(b, 0, scope)) },
            "mapped" => self.mapped(d, all, scope),
            "unmap" => Kind::Unmap,
            "frees" => Kind::Frees,
            "resident" => self.argument_value(d, 0, scope).map_or(Kind::Unknown, |bytes| Kind::Resident { bytes }),
            "function_pointer" => match self.argument_value(d, 0, scope) {
                Some(name) => Kind::FunctionPointer { name },
                None => Kind::Unknown,
            },
            _ => self.table_kind(d),
        }
    }

    /// A handle type that only this value declares.
    fn implicit_handle(&mut self, d: &Descriptor, ty: &Type) -> Option<usize> {
        let name = self.canonical(ty);
        if let Some(known) = self.model.handle_types.iter().position(|h| h.name == name) {
            return Some(known);
        }
        let size = ty.size();
        if !matches!(ty.kind, TypeKind::Pointer { .. } | TypeKind::Int { .. }) || !matches!(size, 4 | 8) {
            self.report(
                Diagnostic::error(d.span, format!("{} cannot be a handle", describe(ty)))
                    .label("handles are pointers or integers of 4 or 8 bytes"),
            );
            return None;
        }
        self.model.handle_types.push(HandleType::plain(name, size));
        Some(self.model.handle_types.len() - 1)
    }

    fn table_kind(&mut self, d: &Descriptor) -> Kind {
        let name = match d.arguments.as_deref() {
            Some([Argument::Expr(crate::syntax::ast::AstExpr { kind: AstExprKind::Name(name), .. })]) => name.as_str(),
            _ => "",
        };
        if let Some(table) = self.model.tables.iter().position(|t| t.name == name) {
            return Kind::Table(table);
        }
        let near = similar(name, self.model.tables.iter().map(|t| t.name.as_str())).map(String::from);
        self.report(
            Diagnostic::error(d.span, format!("unknown table `{name}`"))
                .label("no `table` of this name")
                .suggest(near.as_deref()),
        );
        Kind::Unknown
    }

    /// Without a descriptor of its kind a value is what its C type is.
    fn structural(&mut self, all: &Descriptors<'a>, plan: &mut Plan, value: &Value, scope: &Scope) -> Kind {
        let result = matches!(value.role, Role::Result | Role::CallbackResult);
        match &value.ty.kind {
            TypeKind::Void if result => Kind::Nothing,
            TypeKind::Pointer { to, .. } => {
                let to = to.as_ref().clone();
                self.pointer(all, plan, value, &to, scope)
            }
            TypeKind::FunctionPointer(_) => {
                self.undescribed(
                    value,
                    "a function pointer",
                    "describe it as `callback(...) { }`, or `null` if the library need not have it",
                );
                Kind::Unknown
            }
            TypeKind::Struct(s) => {
                let s = s.clone();
                self.no_buffer(all, value);
                self.structure(all, plan, value, &s, scope)
            }
            TypeKind::Array { of, .. } => {
                let of = of.as_ref().clone();
                self.array_element(value, &of)
            }
            _ => {
                self.no_buffer(all, value);
                Kind::Scalar
            }
        }
    }

    /// Reports descriptors of buffers on what is no buffer.
    fn no_buffer(&mut self, all: &Descriptors, value: &Value) -> bool {
        let mut wrong: Vec<&str> = BUFFER.into_iter().filter(|name| *name != "type_cast").collect();
        if value.role == Role::Argument {
            wrong.push("out");
            wrong.extend(value.ty.handle.is_none().then_some("in"));
        }
        let wrong = wrong.as_slice();
        if let Some(d) = all.any(wrong) {
            self.report(
                Diagnostic::error(d.span, format!("`{}` on {}", d.name.text, value.name))
                    .label(format!("{} is not a buffer", describe(&value.ty)))
                    .help("numbers, structs and handles cross as they are and need no such descriptor"),
            );
        }
        all.any(wrong).is_some()
    }

    fn undescribed(&mut self, value: &Value, what: &str, help: &str) {
        self.report(
            Diagnostic::error(value.span, format!("{} is {what} without a description", value.name))
                .label(describe(&value.ty))
                .help(help),
        );
    }

    fn pointer(&mut self, all: &Descriptors<'a>, plan: &mut Plan, value: &Value, to: &Type, scope: &Scope) -> Kind {
        if value.role == Role::Argument && self.is_state(to) {
            (plan.input, plan.output) = (true, true);
            return self.buffer(all, plan, value, to, scope);
        }
        if all.has("bound") {
            (plan.input, plan.output) = (true, false);
            return self.buffer(all, plan, value, to, scope);
        }
        let explicit = all.any(&["in", "out"]).is_some();
        let described = explicit || all.any(&BUFFER).is_some() || all.any(&LIFETIMES).is_some();
        let nested = matches!(value.role, Role::Element | Role::Field);
        if !described || (!explicit && !nested && !all.has("no_copy")) {
            if matches!(value.role, Role::Result | Role::CallbackResult)
                && all.any(&["buffer", "null_terminated"]).is_some()
            {
                plan.output = true;
            } else if matches!(to.kind, TypeKind::Incomplete) && !described {
                self.undescribed(
                    value,
                    "a pointer to an unknown struct",
                    "describe its type with `type(...) { handle; }`, or the value as `null`, `token` or `device_address`",
                );
                return Kind::Unknown;
            } else {
                let help = match value.role {
                    Role::Result | Role::CallbackResult => {
                        "say what is returned: `handle`, `string`, `buffer(n)`, `mapped(n)`, `token`, `device_address`, ..."
                    }
                    _ if described => "say which way the data flows: `in`, `out` or both",
                    _ => {
                        "say which way the data flows (`in`, `out`) and how much (`buffer(n)`), or `string`, `handle`, `userdata`, `null`, `token`, `device_address`"
                    }
                };
                self.undescribed(value, "a pointer", help);
                return Kind::Unknown;
            }
        }
        if all.has("scratch") || all.has("no_copy") && !explicit {
            (plan.input, plan.output) = (false, false);
        }
        self.buffer(all, plan, value, to, scope)
    }

    fn buffer(&mut self, all: &Descriptors<'a>, plan: &Plan, value: &Value, to: &Type, scope: &Scope) -> Kind {
        let way = match all.any(&["cursor", "scratch", "no_copy"]).map(|d| d.name.text.as_str()) {
            Some("cursor") => BufferWay::Cursor,
            Some("scratch") => BufferWay::Scratch,
            Some("no_copy") if self.is_state(to) => BufferWay::Resting,
            _ => BufferWay::Fixed,
        };
        let count = match (all.any(&["buffer", "cursor", "scratch"]), all.get("null_terminated")) {
            (Some(d), _) => self.size(d, scope).map_or(Count::One, Count::Elements),
            (None, Some(d)) => self.terminated(d, scope),
            (None, None) => Count::One,
        };
        if matches!(count, Count::One) && matches!(to.kind, TypeKind::Void) && all.any(&EXTENTS).is_none() {
            self.report(
                Diagnostic::error(plan.span, format!("the size of {} is unknown", value.name))
                    .label(format!("{} needs `buffer(n)`", describe(&value.ty)))
                    .help("`n` counts bytes for `void *`"),
            );
        }
        let (count, rows) = self.rows(all, count, scope);
        let returned = all.get("returned").and_then(|d| self.size(d, scope));
        let inner = scope.enter_element();
        let place = value.place.clone().map(|mut place| {
            shift(&mut place);
            let handed_out = matches!(value.role, Role::Element | Role::Field) && plan.output && !plan.input;
            if handed_out && matches!(to.kind, TypeKind::Struct(_)) {
                return Expr { kind: ExprKind::Here(0), ty: to.clone(), span: value.span };
            }
            let index = Expr { kind: ExprKind::Index(0), ty: size_t(), span: value.span };
            Expr { kind: ExprKind::Element(place.into(), index.into()), ty: to.clone(), span: value.span }
        });
        let element = Value {
            ty: to.clone(),
            place,
            input: plan.input,
            output: plan.output,
            role: Role::Element,
            name: format!("an element of {}", value.name),
            span: plan.span,
            hidden: None,
        };
        let body = all.bodies("element");
        let copied = plan.input || plan.output;
        let rule = match &to.kind {
            TypeKind::Incomplete if body.is_empty() => {
                self.undescribed(
                    &element,
                    "a struct of unknown size",
                    "use a header that defines it, or `null` if the library need not have it",
                );
                Rule::Plan(Box::new(self.plain(&element)))
            }
            // Untouched pointers in memory that is not copied need no description.
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_)
                if body.is_empty() && !copied && to.handle.is_none() =>
            {
                Rule::Plan(Box::new(Plan { kind: Kind::Scalar, ..self.plain(&element) }))
            }
            _ => self.rule(body, &element, &inner),
        };
        Kind::Buffer(Box::new(Buffer {
            element: rule,
            element_type: to.clone(),
            count,
            returned,
            written: all.has("written"),
            rows,
            no_copy: all.has("no_copy") && way != BufferWay::Resting || way == BufferWay::Scratch,
            zerocopy: false,
            way,
            in_place: all.has("in_place"),
            align: all.get("aligned").map_or(1, |d| self.alignment(d)),
            history: all.get("history").map_or(0, |d| self.history(d)),
            scratch_resource: all.get("scratch").and_then(|d| self.scratch_resource(d)),
        }))
    }
}
