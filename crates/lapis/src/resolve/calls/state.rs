//! State: what brings an object, a session or a thread back where the session moves.

use crate::model::{
    CurrentFunctions, EvictFunctions, Expr, Function, Guarded, Kind, Plan, RecordOwner, RemadeFunctions, Side,
    StateFunctions, StateRecord, Stateless, Type, TypeKind,
};
use crate::resolve::Resolver;
use crate::resolve::data::kinds::Descriptors;
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::describe;
use crate::syntax::ast::{Argument, AstExpr, AstExprKind, Descriptor, Item, Name};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;
use crate::syntax::suggest::similar;

/// Parameters and result of a utility function that the API server calls by itself.
pub(in crate::resolve) enum Prototype {
    /// `int64_t write(T object, uint64_t offset, void *to, size_t bytes)`
    Write,
    /// `int read(T object, uint64_t offset, const void *from, size_t bytes)`
    Read,
    /// `const char *name(T object)`
    Identity,
    /// `int64_t save(T object, void *to, size_t bytes)`
    Save,
    /// `T make(uint64_t references, const void *from, size_t bytes)`
    Make(usize),
    /// `int load(T object, const void *from, size_t bytes)`
    Load,
    /// `T get(void)`
    Current(usize),
    /// `int set(T object)`
    SetCurrent,
    /// `uint64_t bytes(T object)`
    EvictableBytes,
    /// `int out(T object, void *to, size_t bytes)`
    Evict,
    /// `const char *device(T object)`
    EvictableDevice,
    /// `int release(T object, uint64_t references)`
    Drop,
    /// `int64_t code(T object)`
    StatusCode,
    /// `int quiesce(void)`
    Quiesce,
    /// `const char *why(void)`
    Stays,
    /// `uint64_t bytes(void)`
    Contents,
}

impl Prototype {
    /// As it must be declared; `object`: the type whose objects it is about, nothing for those of a session.
    fn declaration(&self, name: &str, object: Option<&str>) -> String {
        let made = object.unwrap_or("T");
        let object = |more: &str| match object {
            Some(ty) if more.is_empty() => ty.to_owned(),
            Some(ty) => format!("{ty}, {more}"),
            None if more.is_empty() => "void".into(),
            None => more.to_owned(),
        };
        match self {
            Prototype::Write => format!("int64_t {name}({})", object("uint64_t offset, void *to, size_t bytes")),
            Prototype::Read => format!("int {name}({})", object("uint64_t offset, const void *from, size_t bytes")),
            Prototype::Identity => format!("const char *{name}({})", object("")),
            Prototype::Save => format!("int64_t {name}({})", object("void *to, size_t bytes")),
            Prototype::Make(_) => format!("{made} {name}(uint64_t references, const void *from, size_t bytes)"),
            Prototype::Load => format!("int {name}({})", object("const void *from, size_t bytes")),
            Prototype::Current(_) => format!("{made} {name}(void)"),
            Prototype::SetCurrent => format!("int {name}({})", object("")),
            Prototype::EvictableBytes => format!("uint64_t {name}({})", object("")),
            Prototype::Evict => format!("int {name}({})", object("void *to, size_t bytes")),
            Prototype::EvictableDevice => format!("const char *{name}({})", object("")),
            Prototype::Drop => format!("int {name}({})", object("uint64_t references")),
            Prototype::StatusCode => format!("int64_t {name}({})", object("")),
            Prototype::Quiesce => format!("int {name}(void)"),
            Prototype::Stays => format!("const char *{name}(void)"),
            Prototype::Contents => format!("uint64_t {name}(void)"),
        }
    }

    fn fits(&self, object: Option<usize>, parameters: &[Type], result: &Type) -> bool {
        let rest = match object {
            None => parameters,
            Some(object) => match parameters.split_first() {
                Some((first, rest)) if first.handle == Some(object) => rest,
                _ => return false,
            },
        };
        let int = |ty: &Type, bytes, signed| ty.kind == TypeKind::Int { bytes, signed };
        let pointer = |ty: &Type, constant: Option<bool>, to: fn(&TypeKind) -> bool| match &ty.kind {
            TypeKind::Pointer { to: pointee, constant: is } => constant.is_none_or(|c| c == *is) && to(&pointee.kind),
            _ => false,
        };
        let void = |kind: &TypeKind| matches!(kind, TypeKind::Void);
        match (self, rest) {
            (Prototype::Write, [offset, to, bytes]) => {
                int(result, 8, true) && int(offset, 8, false) && pointer(to, Some(false), void) && int(bytes, 8, false)
            }
            (Prototype::Read, [offset, from, bytes]) => {
                int(result, 4, true) && int(offset, 8, false) && pointer(from, Some(true), void) && int(bytes, 8, false)
            }
            (Prototype::Save, [to, bytes]) => {
                int(result, 8, true) && pointer(to, Some(false), void) && int(bytes, 8, false)
            }
            (Prototype::Make(handle), [references, from, bytes]) => {
                result.handle == Some(*handle)
                    && int(references, 8, false)
                    && pointer(from, Some(true), void)
                    && int(bytes, 8, false)
            }
            (Prototype::Evict, [to, bytes]) => {
                int(result, 4, true) && pointer(to, Some(false), void) && int(bytes, 8, false)
            }
            (Prototype::Load, [from, bytes]) => {
                int(result, 4, true) && pointer(from, Some(true), void) && int(bytes, 8, false)
            }
            (Prototype::Identity | Prototype::Stays | Prototype::EvictableDevice, []) => {
                pointer(result, None, |to| matches!(to, TypeKind::Int { bytes: 1, .. }))
            }
            (Prototype::Current(handle), []) => result.handle == Some(*handle),
            (Prototype::SetCurrent, []) => int(result, 4, true),
            (Prototype::EvictableBytes, []) => int(result, 8, false),
            (Prototype::Drop, [references]) => int(result, 4, true) && int(references, 8, false),
            (Prototype::StatusCode, []) => int(result, 8, true),
            (Prototype::Quiesce, []) => int(result, 4, true),
            (Prototype::Contents, []) => int(result, 8, false),
            _ => false,
        }
    }
}

impl<'a> Resolver<'a> {
    /// The index of a utility function of the server that the API server calls as `prototype` says. `object`: the
    /// handle type whose objects it is given.
    fn server_function(
        &mut self,
        descriptor: &str,
        name: &str,
        span: Span,
        prototype: &Prototype,
        object: Option<usize>,
    ) -> Option<usize> {
        let about = match prototype {
            Prototype::Make(handle) | Prototype::Current(handle) => Some(*handle),
            _ => object,
        };
        let ty = about.map(|handle| self.model.handle_types[handle].name.clone());
        let declaration = prototype.declaration(if name.is_empty() { "f" } else { name }, ty.as_deref());
        let help = format!("declare it in `utility(server)`: `{declaration}`");
        let Some(utility) = self.utility(name) else {
            let message = format!("`{descriptor}` needs a utility function here");
            self.report(Diagnostic::error(span, message).label("no utility function of this name").help(help));
            return None;
        };
        let function = &self.model.utility_functions[utility];
        let complaint = if function.side == Side::Guest {
            Some(("is not in the API server, which calls it", "a function of the guest"))
        } else if !prototype.fits(object, &function.parameters, &function.result) {
            Some(("has other parameters, or another result, than it is called with", "called by the API server"))
        } else {
            None
        };
        if let Some((what, label)) = complaint {
            self.report(Diagnostic::error(span, format!("`{name}` {what}")).label(label).help(help));
            return None;
        }
        Some(utility)
    }

    pub(in crate::resolve) fn named_function(
        &mut self,
        d: &Descriptor,
        n: usize,
        prototype: Prototype,
        object: Option<usize>,
    ) -> Option<usize> {
        let Argument::Expr(ast) = d.arguments.as_ref()?.get(n)? else { return None };
        let name = if let AstExprKind::Name(name) = &ast.kind { name.as_str() } else { "" };
        self.server_function(&d.name.text, name, ast.span, &prototype, object)
    }

    /// The index of the utility function of the server that the `n`th argument names.
    pub(in crate::resolve) fn server_utility(&mut self, d: &Descriptor, n: usize) -> Option<usize> {
        let name = self.utility_name(d, n)?;
        let utility = self.utility(&name)?;
        if self.model.utility_functions[utility].side == Side::Guest {
            let span = match d.arguments.as_ref().and_then(|arguments| arguments.get(n)) {
                Some(Argument::Expr(ast)) => ast.span,
                _ => d.span,
            };
            self.report(
                Diagnostic::error(span, format!("`{name}` is not in the API server, which calls it"))
                    .label("a function of the guest")
                    .help("declare it in `utility(server)`"),
            );
            return None;
        }
        Some(utility)
    }

    /// The name of the utility function that the `n`th argument gives.
    pub(in crate::resolve) fn utility_name(&mut self, d: &Descriptor, n: usize) -> Option<String> {
        let Argument::Expr(ast) = d.arguments.as_ref()?.get(n)? else { return None };
        let name = match &ast.kind {
            AstExprKind::Name(name) if self.utility(name).is_some() => return Some(name.clone()),
            AstExprKind::Name(name) => name.as_str(),
            _ => "",
        };
        let names = self.guest.functions.iter().chain(&self.server.functions).filter(|f| f.defined);
        let near = similar(name, names.map(|f| f.name.as_str())).map(String::from);
        self.report(
            Diagnostic::error(ast.span, format!("`{}` needs a utility function here", d.name.text))
                .label("no utility function of this name")
                .suggest(near.as_deref()),
        );
        None
    }

    /// `obj_record`, `obj_depends_on` and `obj_state_cbs` of a value whose kind is known now.
    pub(in crate::resolve) fn recorded(&mut self, all: &Descriptors, plan: &mut Plan, name: &str, scope: &Scope) {
        let handle = if let Kind::Handle { handle, .. } = plan.kind { Some(handle) } else { None };
        for d in
            all.all.iter().filter(|d| matches!(d.name.text.as_str(), "obj_record" | "obj_depends_on" | "obj_state_cbs"))
        {
            let Some(handle) = handle else {
                self.no_object(d, plan, name);
                continue;
            };
            match d.name.text.as_str() {
                "obj_record" => {
                    let keys = self.keys(d, scope);
                    if plan.object.allocate && !keys.is_empty() {
                        self.report(
                            Diagnostic::error(
                                d.span,
                                "a new object has no earlier call whose place this one could take",
                            )
                            .label("a key of a call that makes its object")
                            .help("`obj_record;` is enough: the call is kept as long as the object"),
                        );
                    }
                    plan.object.record = Some(keys);
                }
                "obj_depends_on" => {
                    let Some(object) = self.argument_value(d, 0, scope) else { continue };
                    if object.ty.handle.is_none() {
                        let label = format!("this is {}", describe(&object.ty));
                        self.report(Diagnostic::error(object.span, "an object depends on other objects").label(label));
                        continue;
                    }
                    plan.object.depends_on.push(object);
                }
                _ => {
                    let write = self.named_function(d, 0, Prototype::Write, Some(handle));
                    let read = self.named_function(d, 1, Prototype::Read, Some(handle));
                    if !plan.object.allocate {
                        self.report(
                            Diagnostic::error(d.span, "an object has its state from its beginning on")
                                .label("not where the object is made")
                                .help("put it beside the `allocate` of the function that makes the object"),
                        );
                    }
                    if let (Some(write), Some(read)) = (write, read) {
                        plan.object.state = Some(StateFunctions { write, read });
                    }
                }
            }
        }
        if plan.object.state.is_some() && plan.object.record.is_none() {
            let span = all.get("obj_state_cbs").map_or(plan.span, |d| d.span);
            self.report(
                Diagnostic::error(span, "state of an object that no call brings back")
                    .label("without `obj_record`")
                    .help("add `obj_record;`: the object has to be there before its state is restored"),
            );
        }
    }

    fn no_object(&mut self, d: &Descriptor, plan: &Plan, name: &str) {
        // The value itself has been refused already.
        if matches!(plan.kind, Kind::Unknown) {
            return;
        }
        let message = format!("`{}` is about objects, and {name} is no handle", d.name.text);
        let diagnostic = Diagnostic::error(d.span, message).label(format!("this has type {}", describe(&plan.ty)));
        self.report(match plan.kind {
            Kind::Buffer(_) => diagnostic.help("of handles in a buffer: put it into `element { ... }`"),
            _ => diagnostic
                .help("`session_record;` in the body of the function records a call that belongs to no object"),
        });
    }

    /// The keys of a record: numbers.
    fn keys(&mut self, d: &Descriptor, scope: &Scope) -> Vec<Expr> {
        let count = d.arguments.as_ref().map_or(0, Vec::len);
        let keys: Vec<Expr> = (0..count).filter_map(|n| self.argument_value(d, n, scope)).collect();
        for key in keys.iter().filter(|key| !matches!(key.ty.kind, TypeKind::Int { .. }) || key.ty.handle.is_some()) {
            self.report(
                Diagnostic::error(key.span, "a key is a number")
                    .label(format!("this has type {}", describe(&key.ty)))
                    .help("a later call with the same key takes the place of this one in the log"),
            );
        }
        keys
    }

    /// `session_record`, `thread_record`, `current_record`, `same`, `stateless`, `waits` and `blocker` of a function.
    pub(in crate::resolve) fn function_state(
        &mut self,
        d: &Descriptor,
        condition: Option<Expr>,
        function: &mut Function,
        scope: &Scope,
    ) {
        match d.name.text.as_str() {
            "session_record" | "thread_record" | "current_record" => {
                let owner = match d.name.text.as_str() {
                    "session_record" => RecordOwner::Session,
                    "thread_record" => RecordOwner::Thread,
                    _ => RecordOwner::Current,
                };
                let keys = self.keys(d, scope);
                function.records.push(StateRecord { condition, owner, keys });
            }
            "same" => {
                let Some(value) = self.argument_value(d, 0, scope) else { return };
                if value.ty.size() > 8 || !value.ty.is_plain() || value.ty.handle.is_some() {
                    self.report(
                        Diagnostic::error(value.span, "what must stay the same is a number or an address")
                            .label(format!("this has type {}", describe(&value.ty))),
                    );
                    return;
                }
                function.same.push(Guarded { condition, value });
            }
            "stateless" => {
                if let Some(handle) = self.handle_type_named(d, scope) {
                    function.stateless = Some(Stateless::StateOf(handle, d.span));
                    return;
                }
                let Some(object) = self.argument_value(d, 0, scope) else {
                    function.stateless = Some(Stateless::Nothing);
                    return;
                };
                match object.ty.handle {
                    Some(handle) => function.stateless = Some(Stateless::StateOf(handle, object.span)),
                    None => {
                        let label = format!("this is {}", describe(&object.ty));
                        self.report(
                            Diagnostic::error(object.span, "only objects have a state of their own").label(label).help(
                                "`stateless;` says that the function changes nothing, `stateless(object);` that it changes \
                                 only what the object's `obj_state_cbs` save",
                            ),
                        );
                    }
                }
            }
            "waits" => {
                function.waits = true;
                function.stateless = function.stateless.or(Some(Stateless::Nothing));
            }
            _ => function.blocker = self.reason(d),
        }
    }

    /// The handle type that the argument names, where no parameter has that name.
    fn handle_type_named(&self, d: &Descriptor, scope: &Scope) -> Option<usize> {
        let Some([Argument::Expr(AstExpr { kind: AstExprKind::Name(name), .. })]) = d.arguments.as_deref() else {
            return None;
        };
        let is_value = scope.parameters.iter().chain(&scope.contextual).any(|(known, _)| known == name);
        self.model.handle_types.iter().position(|ty| ty.name == *name).filter(|_| !is_value)
    }

    /// `stateless(f, ...);` of the file.
    pub(in crate::resolve) fn stateless_functions(&mut self, items: &'a [Item]) {
        let names =
            items.iter().flat_map(|item| if let Item::Stateless(names) = item { names.as_slice() } else { &[] });
        for name in names {
            let function = self.model.functions.iter_mut().find(|function| function.name == name.text);
            if let Some(function) = function {
                function.stateless = Some(Stateless::Nothing);
                continue;
            }
            let near = similar(&name.text, self.model.functions.iter().map(|f| f.name.as_str())).map(String::from);
            self.report(
                Diagnostic::error(name.span, format!("`{}` is no function of this API", name.text))
                    .label("not described")
                    .suggest(near.as_deref()),
            );
        }
    }

    /// `blocker("why")`
    pub(in crate::resolve) fn reason(&mut self, d: &Descriptor) -> Option<String> {
        if let Some([Argument::Expr(AstExpr { kind: AstExprKind::String(text), .. })]) = d.arguments.as_deref() {
            return Some(text.clone());
        }
        self.report(
            Diagnostic::error(d.span, "why can it not be moved?")
                .label("no text")
                .help("usage: `blocker(\"why\")`: the text completes \"it has called f: ...\""),
        );
        None
    }

    /// `identity(name)` in a `type` block.
    pub(in crate::resolve) fn identity(&mut self, handle: Option<usize>, d: &Descriptor) -> Option<usize> {
        self.named_function(d, 0, Prototype::Identity, Some(handle?))
    }

    /// `remade(save, make, load)` in a `type` block.
    pub(in crate::resolve) fn remade(&mut self, handle: Option<usize>, d: &Descriptor) -> Option<RemadeFunctions> {
        let handle = handle?;
        if self.model.handle_types[handle].size != 8 {
            let size = self.model.handle_types[handle].size;
            self.report(
                Diagnostic::error(d.span, "only objects of eight bytes can be made again by a function")
                    .label(format!("a value of this type has {size} bytes")),
            );
            return None;
        }
        let save = self.named_function(d, 0, Prototype::Save, Some(handle));
        let make = self.named_function(d, 1, Prototype::Make(handle), None);
        let load = self.named_function(d, 2, Prototype::Load, Some(handle));
        Some(RemadeFunctions { save: save?, make: make?, load: load? })
    }

    /// `evictable(bytes, out, in[, device])` in a `type` block.
    pub(in crate::resolve) fn evictable(&mut self, handle: Option<usize>, d: &Descriptor) -> Option<EvictFunctions> {
        let handle = handle?;
        let bytes = self.named_function(d, 0, Prototype::EvictableBytes, Some(handle));
        let out = self.named_function(d, 1, Prototype::Evict, Some(handle));
        let back = self.named_function(d, 2, Prototype::Load, Some(handle));
        let device = match d.arguments.as_ref().map_or(0, Vec::len) {
            4 => Some(self.named_function(d, 3, Prototype::EvictableDevice, Some(handle))?),
            _ => None,
        };
        Some(EvictFunctions { bytes: bytes?, out: out?, back: back?, device })
    }

    /// `dropped(release)` in a `type` block, behind `evictable`.
    pub(in crate::resolve) fn dropped(&mut self, handle: Option<usize>, d: &Descriptor) -> Option<usize> {
        let handle = handle?;
        if self.model.handle_types[handle].evictable.is_none() {
            self.report(
                Diagnostic::error(d.span, "nothing says how the content of these objects leaves and returns")
                    .label("not without it")
                    .help("write `evictable(bytes, out, in);` before it"),
            );
            return None;
        }
        self.named_function(d, 0, Prototype::Drop, Some(handle))
    }

    /// `current(get, set)` in a `type` block.
    pub(in crate::resolve) fn current(&mut self, handle: Option<usize>, d: &Descriptor) -> Option<CurrentFunctions> {
        let handle = handle?;
        if let Some(other) = self.model.handle_types.iter().position(|ty| ty.current.is_some()).filter(|o| *o != handle)
        {
            let name = &self.model.handle_types[other].name;
            self.report(
                Diagnostic::error(d.span, format!("`{name}` has the objects that are current on threads"))
                    .label("a second type of an API cannot"),
            );
            return None;
        }
        let get = self.named_function(d, 0, Prototype::Current(handle), None);
        let set = self.named_function(d, 1, Prototype::SetCurrent, Some(handle));
        Some(CurrentFunctions { get: get?, set: set? })
    }

    /// `current_record` needs a type whose objects are current on threads; after all types are known.
    pub(in crate::resolve) fn current_objects_are_there(&mut self) {
        if self.model.handle_types.iter().any(|ty| ty.current.is_some()) {
            return;
        }
        let recorded =
            |function: &&Function| function.records.iter().any(|record| record.owner == RecordOwner::Current);
        let spans: Vec<Span> = self.model.functions.iter().filter(recorded).map(|function| function.span).collect();
        for span in spans {
            self.report(
                Diagnostic::error(span, "`current_record` without objects that are current on threads")
                    .label("recorded for no object")
                    .help("add `current(get, set)` to the `type` block of those objects"),
            );
        }
    }

    /// `quiesce(f);`, `stays(f);`, `contents(f);` and `session_state_cbs(write, read);` of the file, after all types are known.
    pub(in crate::resolve) fn state_items(&mut self, items: &'a [Item]) {
        for item in items {
            match item {
                Item::Quiesce(name) => {
                    let found = self.state_item("quiesce", name, &Prototype::Quiesce);
                    self.model.quiesce = self.model.quiesce.or(found);
                }
                Item::Stays(name) => {
                    let found = self.state_item("stays", name, &Prototype::Stays);
                    self.model.stays = self.model.stays.or(found);
                }
                Item::Contents(name) => {
                    let found = self.state_item("contents", name, &Prototype::Contents);
                    self.model.contents = self.model.contents.or(found);
                }
                Item::SessionState { write, read } => {
                    let write = self.state_item("session_state_cbs", write, &Prototype::Write);
                    let read = self.state_item("session_state_cbs", read, &Prototype::Read);
                    if let (Some(write), Some(read)) = (write, read) {
                        self.model.state = Some(StateFunctions { write, read });
                    }
                }
                _ => {}
            }
        }
    }

    fn state_item(&mut self, item: &str, name: &Name, prototype: &Prototype) -> Option<usize> {
        self.server_function(item, &name.text, name.span, prototype, None)
    }

    /// `stateless(object)` says that the object's own functions save what changes: it must have some.
    pub(in crate::resolve) fn states_are_there(&mut self) {
        let stated: Vec<usize> = self.model.functions.iter().flat_map(Function::stated_types).collect();
        let wrong = self.model.functions.iter().filter_map(|function| match function.stateless {
            Some(Stateless::StateOf(handle, span)) if !stated.contains(&handle) => Some((handle, span)),
            _ => None,
        });
        let wrong: Vec<(usize, Span)> = wrong.collect();
        for (handle, span) in wrong {
            let name = &self.model.handle_types[handle].name;
            let message = format!("no object of type `{name}` has a state that is saved");
            self.report(
                Diagnostic::error(span, message)
                    .label("what changes here is lost")
                    .help("add `obj_state_cbs(write, read)` where such objects are made"),
            );
        }
    }
}
