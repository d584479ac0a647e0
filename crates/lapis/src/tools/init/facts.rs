//! Facts about a whole header: its tables, its handles, how its functions report errors.

use crate::header::{Header, HeaderFunction, Notes};
use crate::model::{Signature, Type, TypeKind};
use crate::resolve::{bare, canonical_name, constant_value};
use crate::tools::init::endings::{Ending, ending};
use crate::tools::init::gathered::{ApiFunction, FunctionTable, GatheredApi};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Fewer members than this make no interface.
const MIN_MEMBERS: usize = 4;

/// The tables that headers define. A struct that the application hands over is one that it fills itself: callbacks.
pub fn tables<'a>(
    header: &'a Header,
    files: &[PathBuf],
    functions: &[&'a HeaderFunction],
    none: &'a Notes,
) -> Vec<FunctionTable<'a>> {
    let mut found = Vec::new();
    for (tag, ty) in &header.tags {
        let TypeKind::Struct(s) = &ty.kind else { continue };
        let own = header.tag_files.get(tag).is_some_and(|file| files.contains(file));
        let members: Vec<_> = s
            .fields
            .iter()
            .filter_map(|f| match &f.ty.kind {
                TypeKind::FunctionPointer(signature) => {
                    let notes = header.members.get(&(tag.clone(), f.name.clone())).unwrap_or(none);
                    Some((f.name.as_str(), signature.as_ref(), notes))
                }
                _ => None,
            })
            .collect();
        let mostly = members.len() >= MIN_MEMBERS && members.len() * 2 > s.fields.len();
        if own && !s.union && mostly && !is_handed_over(tag, functions, &members) {
            let plain = tag.trim_start_matches("struct ");
            found.push(FunctionTable { ty: format!("struct {plain}"), name: table_name(plain), members });
        }
    }
    found.sort_by(|a, b| a.ty.cmp(&b.ty));
    // A table is no parameter of another one's members either, except of its own.
    found
}

/// True if functions take a pointer to the struct: only then does the application have one of its own.
fn is_handed_over(tag: &str, functions: &[&HeaderFunction], own: &[(&str, &Signature, &Notes)]) -> bool {
    let plain = tag.trim_start_matches("struct ");
    let takes = |signature: &Signature| {
        signature.parameters.iter().any(|(_, ty)| {
            ty.pointee().is_some_and(|to| {
                let spelling = to.spelling.trim_start_matches("const ").trim_start_matches("struct ");
                spelling == plain
            })
        })
    };
    // The first parameter of every member is the object itself where the application fills it.
    let methods = own.iter().filter(|(_, signature, _)| takes(signature)).count();
    functions.iter().any(|f| takes(&f.signature)) || methods * 2 > own.len()
}

fn table_name(tag: &str) -> String {
    crate::tools::init::words::words(tag).join("_")
}

/// The named type that functions report errors with, and its code for success.
pub struct ErrorReporting {
    pub ty: String,
    pub success: String,
    /// An object, NULL for success.
    pub is_object: bool,
}

/// The type that most functions with a result return, if it has a code for success that is zero, or is an object of that kind.
pub fn error_type(api: &GatheredApi) -> Option<ErrorReporting> {
    let header = api.header;
    let mut counts: BTreeMap<&str, (usize, &Type)> = BTreeMap::new();
    let mut results = 0;
    for function in &api.functions {
        let result = &function.signature.result;
        if matches!(result.kind, TypeKind::Void) {
            continue;
        }
        results += 1;
        let named = header.typedefs.contains_key(&result.spelling) || result.spelling.starts_with("enum ");
        let is_number = named && matches!(result.kind, TypeKind::Int { .. });
        if is_number || is_status_name(&result.spelling) && matches!(result.kind, TypeKind::Pointer { .. }) {
            counts.entry(bare(&result.spelling)).or_insert((0, result)).0 += 1;
        }
    }
    let (ty, (count, result)) = counts.into_iter().max_by_key(|(_, (n, _))| *n)?;
    if count * 2 < results || count < 2 {
        return None;
    }
    if matches!(result.kind, TypeKind::Pointer { .. }) {
        return Some(ErrorReporting { ty: ty.to_string(), success: "NULL".into(), is_object: true });
    }
    let success = own_success(header, ty).or_else(|| any_success(header, &api.functions))?;
    Some(ErrorReporting { ty: ty.to_string(), success, is_object: false })
}

fn is_status_name(spelling: &str) -> bool {
    crate::tools::init::words::has_word(spelling, &["status", "error"])
}

/// The enumerator for success among those of the type itself.
fn own_success(header: &Header, ty: &str) -> Option<String> {
    let mut name = ty.to_string();
    let mut hops = 0;
    while let Some(alias) = header.aliases.get(&name).filter(|_| hops < 8) {
        name = alias.clone();
        hops += 1;
    }
    let members = header.enumerations.get(&name).or_else(|| header.enumerations.get(ty))?;
    let zero = members.iter().filter(|m| header.enumerators.get(*m) == Some(&0));
    let mut good: Vec<&String> = zero.filter(|m| is_success(m)).collect();
    good.sort_by_key(|m| m.len());
    good.first().map(|m| m.to_string())
}

fn is_success(name: &str) -> bool {
    let words = crate::tools::init::words::words(name);
    let ends = |with: &[&str]| words.iter().map(String::as_str).collect::<Vec<_>>().ends_with(with);
    ends(&["success"]) || ends(&["ok"]) || ends(&["no", "error"]) || ends(&["noerror"]) || ends(&["succeeded"])
}

/// A code that the header defines in another way (macros).
fn any_success(header: &Header, functions: &[ApiFunction]) -> Option<String> {
    let successful = |name: &String| is_success(name) && constant_value(header, name) == Some(0);
    let mut codes: Vec<&String> =
        header.enumerators.keys().chain(header.macros.keys()).filter(|n| successful(n)).collect();
    codes.sort_by_key(|n| (n.len(), n.as_str()));
    let prefix = functions.first()?.name.chars().take(2).collect::<String>().to_ascii_lowercase();
    let own = codes.iter().find(|n| n.to_ascii_lowercase().starts_with(&prefix));
    Some(own.or(codes.first())?.to_string())
}

/// The name under which functions that return something else take a pointer for the error.
pub fn error_argument(api: &GatheredApi, error: &str) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for function in api.functions.iter().filter(|f| f.signature.result.spelling != error) {
        let Some((name, ty)) = function.signature.parameters.last() else { continue };
        if matches!(&ty.kind, TypeKind::Pointer { to, constant: false } if to.spelling == error) {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts.into_iter().filter(|(_, n)| *n >= 2).max_by_key(|(_, n)| *n).map(|(name, _)| name.to_string())
}

/// The handle that functions take to report errors through (`TF_Status *status`), by the parameter's name.
pub fn status_argument(api: &GatheredApi, handle: &dyn Fn(&Type) -> bool) -> Option<(String, String)> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for function in &api.functions {
        let Some((name, ty)) = function.signature.parameters.last() else { continue };
        if handle(ty) && is_status_name(&ty.spelling) {
            *counts.entry((name, bare(&ty.spelling))).or_default() += 1;
        }
    }
    let ((name, ty), count) = counts.into_iter().max_by_key(|(_, n)| *n)?;
    (count * 5 >= api.functions.len()).then(|| (name.to_string(), ty.to_string()))
}

/// Pointers to structs that no header defines, typedef or not, as far as the functions use them.
pub fn handles(header: &Header, functions: &[ApiFunction]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for function in functions {
        let types = function.signature.parameters.iter().map(|(_, t)| t).chain([&function.signature.result]);
        types.for_each(|ty| note_handles(header, ty, &mut found));
    }
    for name in untyped_handles(functions) {
        // Compared by its own name: a plain `void *` is none.
        found.push((name.clone(), name));
    }
    found
}

/// A name for `void *`.
pub fn is_untyped(ty: &Type) -> bool {
    let named = !bare(&ty.spelling).contains('*');
    named && matches!(&ty.kind, TypeKind::Pointer { to, constant: false } if matches!(to.kind, TypeKind::Void))
}

/// Names for `void *` that one function makes, and another ends: objects.
fn untyped_handles(functions: &[ApiFunction]) -> Vec<String> {
    let ends = |f: &ApiFunction| matches!(ending(f.name), Ending::Ends | Ending::Drops);
    let mut found: Vec<String> = Vec::new();
    for function in functions.iter().filter(|f| ends(f)) {
        let Some((_, first)) = function.signature.parameters.first() else { continue };
        let name = bare(&first.spelling);
        let is = |ty: &Type| is_untyped(ty) && bare(&ty.spelling) == name;
        let made = |f: &ApiFunction| {
            is(&f.signature.result) || f.signature.parameters.iter().any(|(_, ty)| ty.pointee().is_some_and(is))
        };
        if is(first) && functions.iter().any(made) && found.iter().all(|known| known != name) {
            found.push(name.to_string());
        }
    }
    found
}

fn note_handles(header: &Header, ty: &Type, found: &mut Vec<(String, String)>) {
    match &ty.kind {
        TypeKind::Pointer { to, .. } if matches!(to.kind, TypeKind::Incomplete) => {
            let defined = header.named_type(&to.spelling).is_some_and(|t| !matches!(t.kind, TypeKind::Incomplete));
            // The library may know more of a struct that is only passed as const: still one handle type.
            let name = bare(&ty.spelling).replace("const ", "");
            let canonical = canonical_name(header, ty);
            if !defined && found.iter().all(|(known, _)| *known != canonical) {
                found.push((canonical, name));
            }
        }
        TypeKind::Pointer { to, .. } => note_handles(header, to, found),
        TypeKind::Struct(s) => s.fields.iter().for_each(|f| note_handles(header, &f.ty, found)),
        _ => {}
    }
}
