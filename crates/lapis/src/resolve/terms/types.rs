//! Types: from their names, with their type-wide rules.

use crate::model::{Struct, Type, TypeKind};
use crate::resolve::Resolver;
use crate::syntax::ast::TypeName;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;

pub fn int(bytes: usize, signed: bool, spelling: &str) -> Type {
    Type { kind: TypeKind::Int { bytes, signed }, spelling: spelling.into(), handle: None }
}

pub fn c_int() -> Type {
    int(4, true, "int")
}

pub fn size_t() -> Type {
    int(8, false, "size_t")
}

pub fn void() -> Type {
    Type { kind: TypeKind::Void, spelling: "void".into(), handle: None }
}

pub fn pointer(to: Type) -> Type {
    let star = if to.spelling.ends_with('*') { "*" } else { " *" };
    let spelling = format!("{}{star}", to.spelling);
    Type {
        kind: TypeKind::Pointer { constant: to.spelling.starts_with("const "), to: Box::new(to) },
        spelling,
        handle: None,
    }
}

/// The same type for the C compiler, names and constness aside.
pub fn same(a: &Type, b: &Type) -> bool {
    match (&a.kind, &b.kind) {
        (TypeKind::Pointer { to: a, .. }, TypeKind::Pointer { to: b, .. }) => same(a, b),
        (TypeKind::Array { of: a, .. }, TypeKind::Pointer { to: b, .. })
        | (TypeKind::Pointer { to: a, .. }, TypeKind::Array { of: b, .. }) => same(a, b),
        (TypeKind::Array { of: a, count: n }, TypeKind::Array { of: b, count: m }) => n == m && same(a, b),
        (TypeKind::Struct(a), TypeKind::Struct(b)) => {
            a.size == b.size && a.union == b.union && a.fields.len() == b.fields.len()
        }
        // Where the specification cannot see the struct, or the function, its name has to do.
        (TypeKind::Incomplete, TypeKind::Struct(_)) | (TypeKind::Struct(_), TypeKind::Incomplete) => tag(a) == tag(b),
        (TypeKind::Pointer { to, .. }, TypeKind::FunctionPointer(_)) => matches!(to.kind, TypeKind::Incomplete),
        (TypeKind::Incomplete, TypeKind::Incomplete) => tag(a) == tag(b) || a.spelling == b.spelling,
        (TypeKind::FunctionPointer(_), TypeKind::FunctionPointer(_)) => true,
        (a, b) => a == b,
    }
}

fn tag(ty: &Type) -> &str {
    tag_of(&ty.spelling)
}

fn tag_of(spelling: &str) -> &str {
    bare(spelling).trim_start_matches("struct ").trim_start_matches("union ")
}

/// A spelling without qualifiers at the top.
pub fn bare(spelling: &str) -> &str {
    let mut text = spelling.trim();
    loop {
        let before = text;
        if !text.contains('*') {
            text = text.trim_start_matches("const ").trim_start_matches("volatile ");
        }
        for suffix in ["const", "volatile", "restrict", "__restrict"] {
            if let Some(rest) = text.strip_suffix(suffix)
                && rest.ends_with([' ', '*'])
            {
                text = rest.trim_end();
            }
        }
        if text == before {
            return text;
        }
    }
}

/// One spelling for all ways to write a type.
pub fn key(spelling: &str) -> String {
    let words: Vec<&str> = bare(spelling).split_whitespace().collect();
    words.join(" ").replace("* ", "*").replace(" *", "*")
}

/// Numbers that no register of ours holds, as the header's reader sees them: bytes.
fn wide(base: &str) -> Option<TypeKind> {
    let (size, align) = match base {
        "_Float16" => (2, 2),
        "_Complex float" => (8, 4),
        "_Complex double" => (16, 8),
        "long double" | "__int128" | "unsigned __int128" => (16, 16),
        "_Complex long double" => (32, 16),
        _ => return None,
    };
    Some(TypeKind::Struct(Struct { name: base.into(), size, align, union: false, fields: Vec::new() }))
}

pub fn describe(ty: &Type) -> String {
    format!("`{}`", ty.spelling)
}

impl<'a> Resolver<'a> {
    /// The type of that name; what is wrong with it is reported.
    pub(in crate::resolve) fn resolve_type(&mut self, name: &TypeName) -> Option<Type> {
        let Some(mut ty) = self.base_type(&name.base) else {
            let message = format!("unknown type `{}`", name.base);
            let names = self.header.typedefs.keys().chain(self.header.tags.keys());
            let similar = similar(&name.base, names.map(String::as_str)).map(String::from);
            self.report(
                Diagnostic::error(name.span, message)
                    .label("neither the header nor the specification declares it")
                    .suggest(similar.as_deref()),
            );
            return None;
        };
        if name.constant {
            ty.spelling = format!("const {}", ty.spelling);
        }
        for _ in &name.pointers {
            ty = pointer(ty);
        }
        Some(self.decorate(&ty))
    }

    /// The same silently, and without its handles.
    pub(in crate::resolve) fn named(&self, name: &TypeName) -> Option<Type> {
        let base = self.base_type(&name.base)?;
        Some(name.pointers.iter().fold(base, |ty, _| pointer(ty)))
    }

    fn base_type(&self, base: &str) -> Option<Type> {
        let (kind, spelling) = match base {
            "void" => return Some(void()),
            "char" | "signed char" => (TypeKind::Int { bytes: 1, signed: true }, base),
            "unsigned char" | "_Bool" => (TypeKind::Int { bytes: 1, signed: false }, base),
            "short" => (TypeKind::Int { bytes: 2, signed: true }, base),
            "unsigned short" => (TypeKind::Int { bytes: 2, signed: false }, base),
            "int" => (TypeKind::Int { bytes: 4, signed: true }, base),
            "unsigned int" => (TypeKind::Int { bytes: 4, signed: false }, base),
            "long" | "long long" => (TypeKind::Int { bytes: 8, signed: true }, base),
            "unsigned long" | "unsigned long long" => (TypeKind::Int { bytes: 8, signed: false }, base),
            "float" => (TypeKind::Float { bytes: 4 }, base),
            "double" => (TypeKind::Float { bytes: 8 }, base),
            _ if wide(base).is_some() => (wide(base)?, base),
            _ => {
                let named = self.header.named_type(base).cloned();
                let incomplete = || {
                    let tagged = base.starts_with("struct ") || base.starts_with("union ");
                    tagged.then(|| Type { kind: TypeKind::Incomplete, spelling: base.into(), handle: None })
                };
                return named.or_else(incomplete);
            }
        };
        Some(Type { kind, spelling: spelling.into(), handle: None })
    }

    /// One name for all ways to write a pointer to an unknown struct: typedefs of it, of the struct, `const` or not.
    /// Other types go by their own name: two typedefs of a number are two types.
    pub(in crate::resolve) fn canonical(&self, ty: &Type) -> String {
        self.pointed_struct(ty).unwrap_or_else(|| key(&ty.spelling))
    }

    fn pointed_struct(&self, ty: &Type) -> Option<String> {
        match &ty.kind {
            TypeKind::Pointer { to, .. } if matches!(to.kind, TypeKind::Incomplete | TypeKind::Struct(_)) => {
                let mut name = tag(to).to_string();
                for _ in 0..16 {
                    let Some(alias) = self.header.aliases.get(&name) else { break };
                    name = tag_of(alias).to_string();
                }
                Some(format!("struct {name}*"))
            }
            TypeKind::Pointer { to, .. } => Some(format!("{}*", self.pointed_struct(to)?)),
            _ => None,
        }
    }

    /// The index of the rule for values of a type: by its own name, or that of a typedef it stands for.
    pub(in crate::resolve) fn type_rule(&self, ty: &Type) -> Option<usize> {
        let mut name = key(&ty.spelling);
        for _ in 0..16 {
            if let Some(&rule) = self.rule_names.get(&name) {
                return Some(rule);
            }
            let Some(alias) = self.header.aliases.get(&name) else { break };
            name = key(alias);
        }
        self.rule_names.get(&self.canonical(ty)).copied()
    }

    /// The same type with the handles in it marked.
    pub(in crate::resolve) fn decorate(&self, ty: &Type) -> Type {
        let handle = self.type_rule(ty).and_then(|r| self.type_rules[r].handle);
        let kind = match &ty.kind {
            TypeKind::Pointer { to, constant } => {
                TypeKind::Pointer { to: Box::new(self.decorate(to)), constant: *constant }
            }
            TypeKind::Array { of, count } => TypeKind::Array { of: Box::new(self.decorate(of)), count: *count },
            TypeKind::Struct(s) => {
                let mut s = s.clone();
                for field in &mut s.fields {
                    field.ty = self.decorate(&field.ty);
                }
                TypeKind::Struct(s)
            }
            TypeKind::FunctionPointer(s) => TypeKind::FunctionPointer(Box::new(self.decorate_signature(s))),
            other => other.clone(),
        };
        Type { kind, spelling: ty.spelling.clone(), handle }
    }

    pub(in crate::resolve) fn decorate_signature(
        &self,
        signature: &crate::model::Signature,
    ) -> crate::model::Signature {
        crate::model::Signature {
            parameters: signature.parameters.iter().map(|(n, t)| (n.clone(), self.decorate(t))).collect(),
            result: self.decorate(&signature.result),
            variadic: signature.variadic,
            foreign: signature.foreign.clone(),
        }
    }
}
