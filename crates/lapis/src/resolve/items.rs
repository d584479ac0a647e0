//! Declarations: everything that is not a function.

use super::{Piece, Resolver, TypeRule, pieces};
use crate::model::{
    ErrorType, Expr, HandleType, MAX_PREDEFINED, Metadata, Resource, ResourceKind, Side, Type, TypeKind,
};
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::key;
use crate::syntax::ast::{Argument, Descriptor, Item, Name, Statement, TypeName};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;

impl<'a> Resolver<'a> {
    pub(super) fn items(&mut self, items: &'a [Item]) {
        self.names(items);
        self.handle_types(items);
        for item in items {
            if let Item::DeclareMetadata(name) = item {
                self.declare_metadata(name);
            }
        }
        self.table_names(items);
        self.type_codes();
        self.outcomes(items);
        self.status_arguments_are_known();
        self.device_names(items);
        self.state_items(items);
    }

    /// Which resources lie on devices.
    fn device_names(&mut self, items: &'a [Item]) {
        for item in items {
            let Item::Resource { kind, name, devices: Some(devices) } = item else { continue };
            if *kind != ResourceKind::Continuous {
                self.report(
                    Diagnostic::error(devices.span, "an instantaneous resource lies nowhere")
                        .label("only a `continuous_rc` lies on devices"),
                );
                continue;
            }
            let utility = self.utility(&devices.text);
            let fits = utility
                .map(|known| &self.model.utility_functions[known])
                .is_some_and(|function| function.side != Side::Guest && function.parameters.len() == 2);
            if !fits {
                let message = format!("`{}` is no function of the server that names devices", devices.text);
                self.report(Diagnostic::error(devices.span, message).label("not such a utility function").help(
                    "declare it in `utility(server)`: `const char *name(uint64_t place, unsigned int number)`, NULL when there are no more",
                ));
                continue;
            }
            let resource = self.model.resources.iter_mut().find(|resource| resource.name == name.text);
            resource.into_iter().for_each(|resource| resource.devices = utility);
        }
    }

    /// Resources, registries, error arguments.
    fn names(&mut self, items: &'a [Item]) {
        let mut seen: Vec<&Name> = Vec::new();
        for item in items {
            let name = match item {
                Item::Resource { kind, name, .. } => {
                    self.model.resources.push(Resource { name: name.text.clone(), kind: *kind, devices: None });
                    name
                }
                Item::Registry(name) => {
                    self.model.registries.push(name.text.clone());
                    name
                }
                Item::StatusArgument(name) => {
                    self.status_arguments.push(name);
                    continue;
                }
                Item::ErrorArgument(name) => {
                    self.error_arguments.push(name.text.clone());
                    continue;
                }
                _ => continue,
            };
            if let Some(first) = seen.iter().find(|n| n.text == name.text) {
                self.report(
                    Diagnostic::error(name.span, format!("`{}` is declared twice", name.text))
                        .label("second declaration")
                        .related(first.span, "first declaration"),
                );
            }
            seen.push(name);
        }
    }

    fn declare_metadata(&mut self, name: &TypeName) {
        if self.metadata.is_some() {
            let message =
                Diagnostic::error(name.span, "metadata is declared twice").label(format!("`{}`", name.spelling()));
            self.report(message.help("`metadata(struct ...);` in a `type` block is for the handles of that type only"));
            return;
        }
        self.metadata = self.metadata_structure(name);
    }

    /// `metadata(struct T)` in a `type` block.
    fn type_metadata(&mut self, handle: Option<usize>, d: &Descriptor) {
        let Some(Argument::Type(name)) = d.arguments.as_ref().and_then(|a| a.first()) else { return };
        let Some(structure) = self.metadata_structure(name) else { return };
        if handle.is_some_and(|h| self.model.handle_types[h].metadata.is_some()) {
            self.report(Diagnostic::error(d.span, "a second structure for one type").label("handles carry one"));
            return;
        }
        self.set_handle(handle, d, |h| h.metadata = Some(structure));
    }

    fn metadata_structure(&mut self, name: &TypeName) -> Option<Metadata> {
        let ty = self.resolve_type(name)?;
        let spelling = name.spelling();
        let kind = self.model.metadata.iter().position(|known| *known == spelling).map_or(0, |at| at as u32 + 1);
        if !matches!(ty.kind, TypeKind::Struct(_)) {
            let message = Diagnostic::error(name.span, "metadata must be a complete struct");
            self.report(message.label(format!("`{spelling}`")));
            return None;
        }
        Some(Metadata { kind, ty })
    }

    /// After all handle types are known.
    pub(super) fn default_metadata(&mut self) {
        for handle in &mut self.model.handle_types {
            handle.metadata = handle.metadata.take().or_else(|| self.metadata.clone());
        }
    }

    /// The type-wide rules, and the handle types among them. Afterwards types can be decorated.
    fn handle_types(&mut self, items: &'a [Item]) {
        for item in items {
            let Item::Type { ty, body, span } = item else { continue };
            let name = key(&ty.spelling());
            let canonical = self.named(ty).map(|ty| self.canonical(&ty)).unwrap_or_else(|| name.clone());
            if let Some(&first) = self.rule_names.get(&name).or(self.rule_names.get(&canonical)) {
                let first = &self.type_rules[first];
                let other = first.ty.map(|ty| key(&ty.spelling())).filter(|other| *other != name);
                let diagnostic = Diagnostic::error(*span, format!("`{name}` is described twice"))
                    .label("second description")
                    .related(first.span, "first description");
                self.report(match other {
                    Some(other) => {
                        diagnostic.help(format!("`{other}` is another name of the same type: describe it once"))
                    }
                    None => diagnostic,
                });
                continue;
            }
            let body = pieces(body);
            let handle = if has(&body, "handle") || has(&body, "status") || has(&body, "status_text") {
                self.handle_type(ty, &name)
            } else {
                None
            };
            if handle.is_none() && self.resolve_type(ty).is_none() {
                continue;
            }
            self.rule_names.insert(name, self.type_rules.len());
            self.rule_names.insert(canonical, self.type_rules.len());
            self.type_descriptors(&body);
            let (codes, body) = body.into_iter().partition(is_code);
            self.type_rules.push(TypeRule { ty: Some(ty), codes, body, handle, span: *span });
        }
    }

    /// Reports what cannot stand in a `type` block, whether or not a value of the type is used.
    fn type_descriptors(&mut self, body: &[Piece<'a>]) {
        for piece in body {
            match piece {
                Piece::If { then, otherwise, .. } => {
                    self.type_descriptors(then);
                    self.type_descriptors(otherwise);
                }
                Piece::Statement(Statement::Ellipsis(span)) => self.ellipsis(*span),
                Piece::Statement(Statement::Descriptor(d)) if d.name.text == "placeholder" => self.placeholder(d),
                Piece::Statement(Statement::Descriptor(d)) => self.misplaced(d, DescriptorScope::Type),
                Piece::Statement(Statement::Contextual { span, .. }) => self.report(
                    Diagnostic::error(*span, "`contextual_argument` describes a function").label("not allowed here"),
                ),
                Piece::Statement(_) => {}
            }
        }
    }

    fn handle_type(&mut self, ty: &TypeName, name: &str) -> Option<usize> {
        let resolved = self.resolve_type(ty)?;
        let size = resolved.size();
        if !matches!(resolved.kind, TypeKind::Pointer { .. } | TypeKind::Int { .. }) || !matches!(size, 4 | 8) {
            self.report(
                Diagnostic::error(ty.span, format!("`{name}` cannot be a handle"))
                    .label(format!("{size} bytes"))
                    .help("handles are pointers or integers of 4 or 8 bytes"),
            );
            return None;
        }
        self.model.handle_types.push(HandleType::plain(name.to_string(), size));
        Some(self.model.handle_types.len() - 1)
    }

    /// A typedef of a pointer to a struct that no header defines is a handle unless the specification says otherwise.
    pub(super) fn default_handles<'t>(&mut self, types: impl Iterator<Item = &'t Type>) {
        for ty in types {
            let mut found = Vec::new();
            self.opaque_typedefs(ty, &mut found);
            for (name, canonical) in found {
                if self.rule_names.contains_key(&name) || self.rule_names.contains_key(&canonical) {
                    continue;
                }
                self.model.handle_types.push(HandleType::plain(name.clone(), 8));
                let handle = Some(self.model.handle_types.len() - 1);
                self.rule_names.insert(name, self.type_rules.len());
                self.rule_names.insert(canonical, self.type_rules.len());
                self.type_rules.push(TypeRule {
                    ty: None,
                    codes: Vec::new(),
                    body: Vec::new(),
                    handle,
                    span: Span::default(),
                });
            }
        }
    }

    fn opaque_typedefs(&self, ty: &Type, found: &mut Vec<(String, String)>) {
        match &ty.kind {
            TypeKind::Pointer { to, .. } if matches!(to.kind, TypeKind::Incomplete) => {
                let name = key(&ty.spelling);
                let typedef = self.header.typedefs.contains_key(&name);
                let defined =
                    self.header.named_type(&key(&to.spelling)).is_some_and(|t| !matches!(t.kind, TypeKind::Incomplete));
                if typedef && !defined && self.type_rule(ty).is_none() {
                    found.push((name, self.canonical(ty)));
                }
            }
            TypeKind::Pointer { to, .. } => self.opaque_typedefs(to, found),
            TypeKind::Array { of, .. } => self.opaque_typedefs(of, found),
            TypeKind::Struct(s) => s.fields.iter().for_each(|f| self.opaque_typedefs(&f.ty, found)),
            TypeKind::FunctionPointer(s) => {
                s.parameters.iter().for_each(|(_, t)| self.opaque_typedefs(t, found));
                self.opaque_typedefs(&s.result, found);
            }
            _ => {}
        }
    }

    /// `success`, `failure`, `invalid` and their like in `type` blocks.
    fn type_codes(&mut self) {
        for rule in 0..self.type_rules.len() {
            let body = self.type_rules[rule].codes.clone();
            if has(&body, "status") || has(&body, "status_text") {
                self.status_type(rule, &body, has(&body, "status"));
                continue;
            }
            let is_error = has(&body, "success");
            let (ty, span) = (self.type_rules[rule].ty, self.type_rules[rule].span);
            let mut error = ty.filter(|_| is_error).and_then(|ty| self.error_type(ty, span));
            for piece in &body {
                let Piece::Statement(Statement::Descriptor(d)) = piece else { continue };
                let handle = self.type_rules[rule].handle;
                if self.handle_code(handle, d) {
                    continue;
                }
                match d.name.text.as_str() {
                    "success" | "failure" | "unsupported" | "absent" | "lost" => {
                        let value = self.argument_value(d, 0, &Scope::constant());
                        let Some(error) = &mut error else {
                            self.report(
                                Diagnostic::error(d.span, "codes of a type that has no `success`")
                                    .label("this type does not report errors")
                                    .help("add `success(v)` to make it the error type"),
                            );
                            continue;
                        };
                        match (d.name.text.as_str(), value) {
                            ("success", Some(v)) => error.success = v,
                            ("failure", v) => error.failure = v,
                            ("unsupported", v) => error.unsupported = v,
                            ("absent", v) => error.absent = v,
                            ("lost", v) => error.lost = v,
                            _ => {}
                        }
                    }
                    _ => {}
                }
            }
            self.model.error = self.model.error.take().or(error);
        }
    }

    /// A descriptor of a handle type, with or without status. False: not such a descriptor.
    pub(super) fn handle_code(&mut self, handle: Option<usize>, d: &Descriptor) -> bool {
        match d.name.text.as_str() {
            "boxed" => {
                let value = self.argument_value(d, 0, &Scope::constant());
                self.set_handle(handle, d, |h| h.boxed = value);
            }
            "invalid" => {
                let value = self.argument_value(d, 0, &Scope::constant());
                self.set_handle(handle, d, |h| h.invalid = value);
            }
            "shaped" => {
                let shape = self.shape(d);
                self.set_handle(handle, d, |h| h.shape = shape);
            }
            "predefined" => self.predefined(handle, d),
            "metadata" => self.type_metadata(handle, d),
            "identity" => {
                let identity = self.identity(handle, d);
                self.set_handle(handle, d, |h| h.identity = identity);
            }
            "remade" => {
                let remade = self.remade(handle, d);
                self.set_handle(handle, d, |h| h.remade = remade);
            }
            "evictable" => {
                let evictable = self.evictable(handle, d);
                self.set_handle(handle, d, |h| h.evictable = evictable);
            }
            "dropped" => {
                let dropped = self.dropped(handle, d);
                self.set_handle(handle, d, |h| h.dropped = dropped);
            }
            "current" => {
                let current = self.current(handle, d);
                self.set_handle(handle, d, |h| h.current = current);
            }
            "blocker" => {
                let reason = self.reason(d);
                self.set_handle(handle, d, |h| h.blocker = reason);
            }
            _ => return false,
        }
        true
    }

    /// A value of a handle type that is no object. It must be small: so it is no id of any object.
    fn predefined(&mut self, handle: Option<usize>, d: &Descriptor) {
        let Some(value) = self.argument_value(d, 0, &Scope::constant()) else { return };
        let number = crate::resolve::terms::constants::value(&value).and_then(|v| u64::try_from(v).ok());
        match number.filter(|v| (1..=MAX_PREDEFINED).contains(v)) {
            Some(v) => self.set_handle(handle, d, |h| {
                if !h.predefined.contains(&v) {
                    h.predefined.push(v);
                }
            }),
            None => self.report(
                Diagnostic::error(value.span, "a predefined handle is a small constant")
                    .label(format!("expected a number from 1 to {MAX_PREDEFINED}"))
                    .help("larger values cannot be told from the ids of objects; NULL needs no description"),
            ),
        }
    }

    fn error_type(&mut self, name: &TypeName, span: Span) -> Option<ErrorType> {
        if let Some(first) = &self.model.error {
            let message = format!("a second error type: `{}` is one already", first.name);
            self.report(Diagnostic::error(span, message).label("only one type can have `success`"));
            return None;
        }
        let ty = self.resolve_type(name)?;
        if matches!(ty.kind, TypeKind::Pointer { .. }) {
            self.report(
                Diagnostic::error(span, format!("`{}` is a pointer: what tells of an error is an object", ty.spelling))
                    .label("lost and refused calls need one")
                    .help(
                        "add `status;`, and say with `failure(...)` and `lost(...)` how the guest makes such an object",
                    ),
            );
            return None;
        }
        let success = Expr { kind: crate::model::ExprKind::Int(0), ty: ty.clone(), span };
        Some(ErrorType {
            name: key(&ty.spelling),
            ty,
            success,
            failure: None,
            unsupported: None,
            absent: None,
            lost: None,
        })
    }

    fn set_handle(&mut self, handle: Option<usize>, d: &Descriptor, set: impl FnOnce(&mut HandleType)) {
        match handle {
            Some(handle) => set(&mut self.model.handle_types[handle]),
            None => self.report(
                Diagnostic::error(d.span, format!("`{}` without `handle`", d.name.text))
                    .label("only handles have this"),
            ),
        }
    }

    /// The `n`th argument of a descriptor as an expression.
    pub(super) fn argument_value(&mut self, d: &Descriptor, n: usize, scope: &Scope) -> Option<Expr> {
        match d.arguments.as_ref()?.get(n)? {
            Argument::Expr(ast) => self.expr(ast, scope),
            _ => None,
        }
    }
}

/// Descriptors of the type itself and not of its values.
fn is_code(piece: &Piece) -> bool {
    let info = |d: &Descriptor| crate::syntax::descriptors::find(&d.name.text);
    matches!(piece, Piece::Statement(Statement::Descriptor(d))
        if info(d).is_some_and(|i| i.scopes.contains(&DescriptorScope::Type) && !i.scopes.contains(&DescriptorScope::Value)))
}

/// True if a descriptor of that name stands in a block, conditions included.
pub(super) fn has(body: &[Piece], name: &str) -> bool {
    body.iter().any(|piece| match piece {
        Piece::Statement(Statement::Descriptor(d)) => d.name.text == name,
        Piece::Statement(_) => false,
        Piece::If { then, otherwise, .. } => has(then, name) || has(otherwise, name),
    })
}
