//! The provisional specification of a header: what can be guessed safely, and placeholders for the rest.
//!
//! A guess is made only where being wrong would not corrupt anything; everything else becomes a
//! `placeholder("...")`, which `aviary spec check` reports as an error that says what is missing.

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::header::unit::Unit;
use crate::header::{Header, HeaderFunction};
use crate::load::{Options, quoted};
use crate::model::{Signature, Type, TypeKind};
use crate::resolve::{bare, canonical_name, constant_value};
use endings::{Ending, ending};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod endings;

/// Writes the provisional specification of `header`: a file, or a name on the include path.
pub fn init(header: &Path, options: &Options) -> Result<String, Diagnostics> {
    let mut unit = Unit::new(PathBuf::from("(init).c"), &options.include_dirs, &options.defines);
    let line = unit.push(&format!("#include {}", quoted(header)), None);
    for extra in &options.headers {
        unit.push(&format!("#include {}", quoted(extra)), None);
    }
    let fail = |list| Diagnostics { list, ..Diagnostics::default() };
    let read = Header::parse(&unit).map_err(|e| fail(vec![Diagnostic::global(e.to_string())]))?;
    if !read.problems.is_empty() {
        let message =
            |p: &crate::header::Problem| Diagnostic::global(format!("in {}: {}", header.display(), p.message));
        return Err(fail(read.problems.iter().map(message).collect()));
    }
    let files: Vec<PathBuf> = read.included.iter().filter(|(l, _)| *l == line).map(|(_, f)| f.clone()).collect();
    let functions = read.api_functions(&files);
    if functions.is_empty() {
        return Err(fail(vec![Diagnostic::global(format!("{} declares no functions", header.display()))]));
    }
    Ok(Writer::new(&read, functions).write(header))
}

/// The header as the specification names it: a relative path stays one, so that both can move together.
fn beside(header: &Path) -> String {
    if header.is_relative() && header.is_file() { format!("\"{}\"", header.display()) } else { quoted(header) }
}

struct Writer<'a> {
    header: &'a Header,
    functions: Vec<&'a HeaderFunction>,
    /// The type with which functions report errors, and its success code.
    error: Option<(String, String)>,
    error_argument: Option<String>,
    /// Handle types: how each is compared, and how the header writes it first.
    handles: Vec<(String, String)>,
    out: String,
}

impl<'a> Writer<'a> {
    fn new(header: &'a Header, functions: Vec<&'a HeaderFunction>) -> Self {
        let error = error_type(header, &functions);
        let error_argument = error.as_ref().and_then(|(ty, _)| error_argument(&functions, ty));
        let handles = handles(header, &functions);
        Writer { header, functions, error, error_argument, handles, out: String::new() }
    }

    fn write(mut self, path: &Path) -> String {
        let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        self.line("// A provisional specification, written by `aviary spec init`.");
        self.line("// Every `placeholder` stands for something that a header cannot say: replace it.");
        self.line(&format!("#include {}", beside(path)));
        self.line("");
        self.line("// Name, version and vendor library: check them.");
        self.line(&format!("api(\"{stem}\", \"0\", \"lib{stem}.so\");"));
        self.line("");
        if let Some((ty, success)) = self.error.clone() {
            self.line("// Codes for calls that are refused, not virtualized, or whose server is gone:");
            self.line("// add failure(v), unsupported(v), lost(v).");
            self.line(&format!("type({ty}) {{ success({success}); }}"));
        }
        if let Some(name) = self.error_argument.clone() {
            self.line(&format!("error_argument({name});"));
        }
        for (_, handle) in self.handles.clone() {
            self.line(&format!("type({handle}) {{ handle; }}"));
        }
        self.line("");
        for function in self.functions.clone() {
            self.function(function);
        }
        self.out
    }

    fn line(&mut self, text: &str) {
        self.out += text;
        self.out.push('\n');
    }

    fn function(&mut self, function: &HeaderFunction) {
        let Signature { parameters, result, variadic } = &function.signature;
        let names = names(parameters);
        let mut list: Vec<String> = parameters.iter().zip(&names).map(|((_, ty), name)| declare(ty, name)).collect();
        if *variadic {
            list.push("...".into());
        } else if list.is_empty() {
            list.push("void".into());
        }
        let head = format!("{}({})", function.name, list.join(", "));
        if *variadic {
            self.line(&format!("{head} {{ unsupported; }}"));
            return;
        }
        let ending = ending(&function.name);
        let mut body = self.ended(ending, parameters, &names);
        let callback = parameters.iter().any(|(_, t)| matches!(t.kind, TypeKind::FunctionPointer(_)));
        for ((own, ty), name) in parameters.iter().zip(&names) {
            let is_error = self.error_argument.as_deref() == Some(own) && self.is_error_pointer(ty);
            let freed = !matches!(ending, Ending::None | Ending::Keeps) && is_text(ty);
            let text = match freed {
                // A copy would be freed, and the memory itself never.
                true => Some(placeholder(&format!("is `{name}` memory that this call frees? who allocated it?"))),
                false => self.parameter(ty, name, callback),
            };
            if let Some(text) = text.filter(|_| !is_error) {
                body.push(format!("  argument({name}) {{ {text} }}"));
            }
        }
        body.extend(self.result(result).map(|text| format!("  return_value {{ {text} }}")));
        if body.is_empty() {
            self.line(&format!("{head} {{ }}"));
        } else {
            self.line(&format!("{head} {{"));
            body.iter().for_each(|line| self.line(line));
            self.line("}");
        }
    }

    /// The effect of a function that ends objects on its handles: one that did nothing would leave the handle of an
    /// object that is gone.
    fn ended(&self, ending: Ending, parameters: &[(String, Type)], names: &[String]) -> Vec<String> {
        let handles: Vec<usize> = (0..parameters.len()).filter(|&n| self.is_handle(&parameters[n].1)).collect();
        let line = |what: &str| handles.iter().map(|&n| format!("  argument({}) {{ {what}; }}", names[n])).collect();
        match (ending, handles.as_slice()) {
            (Ending::None, _) | (_, []) => Vec::new(),
            (Ending::Keeps, [_]) => line("retain"),
            (Ending::Drops, [one]) if self.is_kept(&parameters[*one].1) => line("release"),
            (Ending::Ends | Ending::Drops, [_]) => line("deallocate"),
            _ => {
                let what = "which of its handles does it end? `argument(x) { deallocate; }`, or nothing";
                vec![format!("  {}", placeholder(what))]
            }
        }
    }

    /// True if a function adds a reference to handles of this type.
    fn is_kept(&self, ty: &Type) -> bool {
        let name = canonical_name(self.header, ty);
        let takes =
            |f: &HeaderFunction| f.signature.parameters.iter().any(|(_, t)| canonical_name(self.header, t) == name);
        self.functions.iter().any(|f| ending(&f.name) == Ending::Keeps && takes(f))
    }

    fn is_error_pointer(&self, ty: &Type) -> bool {
        self.error.as_ref().is_some_and(|(error, _)| ty.pointee().is_some_and(|t| t.spelling == *error))
    }

    fn is_handle(&self, ty: &Type) -> bool {
        let name = canonical_name(self.header, ty);
        self.handles.iter().any(|(canonical, _)| *canonical == name)
    }

    /// The facts known of a parameter; None: nothing needs to be said.
    fn parameter(&self, ty: &Type, name: &str, callback: bool) -> Option<String> {
        if self.is_handle(ty) {
            return None;
        }
        match &ty.kind {
            TypeKind::FunctionPointer(_) => {
                Some(placeholder(&format!("is `{name}` called back? `callback(...) {{ }}`, else `null`")))
            }
            TypeKind::Pointer { to, constant } => Some(self.pointer(to, *constant, name, callback)),
            TypeKind::Struct(_) if self.translated(ty, 0) => {
                Some(placeholder(&format!("which members of `{name}` are pointers to what? use `field(f) {{ }}`")))
            }
            _ => None,
        }
    }

    fn pointer(&self, to: &Type, constant: bool, name: &str, callback: bool) -> String {
        if is_character(to, constant) {
            return "in; string;".into();
        }
        match &to.kind {
            TypeKind::Void if callback && !constant => placeholder(&format!(
                "is `{name}` the callback's context (`userdata`)? else: which way does it flow, and how many bytes?"
            )),
            TypeKind::Void if constant => {
                format!("in; {}", placeholder(&format!("how many bytes has `{name}`? `buffer(n)`")))
            }
            _ if constant => {
                format!("in; {}", placeholder(&format!("how many elements has `{name}`? `buffer(n)`, or one")))
            }
            _ => placeholder(&format!(
                "which way does `{name}` flow (`in`, `out`), and how much is it (`buffer(n)`, or one element)?"
            )),
        }
    }

    fn result(&self, ty: &Type) -> Option<String> {
        if self.is_handle(ty) {
            return None;
        }
        match &ty.kind {
            TypeKind::Pointer { .. } => {
                if is_text(ty) {
                    return Some(placeholder(
                        "who owns the string? the library (`string`), or the application, which frees it with which function?",
                    ));
                }
                Some(placeholder(
                    "what is returned? `handle`, `buffer(n)`, `mapped(n)`, `token`, `device_address`, `function_pointer(name)`, ...",
                ))
            }
            TypeKind::FunctionPointer(_) => {
                Some(placeholder("which function is returned? `function_pointer(name)`, or `null` if nobody calls it"))
            }
            TypeKind::Struct(_) if self.translated(ty, 0) => {
                Some(placeholder("which members of the result are pointers to what? use `field(f) { }`"))
            }
            _ => None,
        }
    }

    /// True if a value holds pointers that are no handles.
    fn translated(&self, ty: &Type, depth: usize) -> bool {
        if self.is_handle(ty) || depth > 8 {
            return false;
        }
        match &ty.kind {
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => true,
            TypeKind::Struct(s) => s.fields.iter().any(|f| self.translated(&f.ty, depth + 1)),
            TypeKind::Array { of, .. } => self.translated(of, depth + 1),
            _ => false,
        }
    }
}

/// `const char *`
fn is_text(ty: &Type) -> bool {
    matches!(&ty.kind, TypeKind::Pointer { to, constant } if is_character(to, *constant))
}

fn is_character(ty: &Type, constant: bool) -> bool {
    ty.spelling == "const char" || ty.spelling == "char" && constant
}

fn placeholder(what: &str) -> String {
    format!("placeholder(\"{what}\");")
}

/// Names for all parameters: those of the header, where they can be told apart.
fn names(parameters: &[(String, Type)]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (n, (name, _)) in parameters.iter().enumerate() {
        let taken = all.contains(name);
        all.push(if taken { format!("{name}_{n}") } else { name.clone() });
    }
    all
}

/// A declaration in C.
pub(crate) fn declare(ty: &Type, name: &str) -> String {
    if let Some((before, after)) = ty.spelling.split_once("(*)") {
        return format!("{before}(*{name}){after}");
    }
    if let Some((before, after)) = ty.spelling.split_once('[') {
        return format!(
            "{}{name}[{after}",
            if before.ends_with('*') { before.to_string() } else { format!("{} ", before.trim_end()) }
        );
    }
    let space = if ty.spelling.ends_with('*') { "" } else { " " };
    format!("{}{space}{name}", ty.spelling)
}

/// The named type that most functions return, if it has a code for success that is zero.
fn error_type(header: &Header, functions: &[&HeaderFunction]) -> Option<(String, String)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for function in functions {
        let result = &function.signature.result;
        let named = header.typedefs.contains_key(&result.spelling) || result.spelling.starts_with("enum ");
        if named && matches!(result.kind, TypeKind::Int { .. }) {
            *counts.entry(&result.spelling).or_default() += 1;
        }
    }
    let (ty, count) = counts.into_iter().max_by_key(|(_, n)| *n)?;
    if count * 2 < functions.len() {
        return None;
    }
    let successful = |name: &String| {
        let upper = name.to_ascii_uppercase();
        ["_SUCCESS", "_OK", "_NO_ERROR"].iter().any(|end| upper.ends_with(end))
            && constant_value(header, name) == Some(0)
    };
    let mut codes: Vec<&String> =
        header.enumerators.keys().chain(header.macros.keys()).filter(|n| successful(n)).collect();
    codes.sort_by_key(|n| (n.len(), n.as_str()));
    let prefix = functions.first()?.name.chars().take(2).collect::<String>().to_ascii_lowercase();
    let own = codes.iter().find(|n| n.to_ascii_lowercase().starts_with(&prefix));
    Some((ty.to_string(), own.or(codes.first())?.to_string()))
}

/// The name under which functions that return something else take a pointer for the error.
fn error_argument(functions: &[&HeaderFunction], error: &str) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for function in functions.iter().filter(|f| f.signature.result.spelling != error) {
        let Some((name, ty)) = function.signature.parameters.last() else { continue };
        if matches!(&ty.kind, TypeKind::Pointer { to, constant: false } if to.spelling == error) {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts.into_iter().filter(|(_, n)| *n >= 2).max_by_key(|(_, n)| *n).map(|(name, _)| name.to_string())
}

/// Pointers to structs that no header defines, typedef or not, as far as the functions use them.
fn handles(header: &Header, functions: &[&HeaderFunction]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for function in functions {
        let types = function.signature.parameters.iter().map(|(_, t)| t).chain([&function.signature.result]);
        types.for_each(|ty| note_handles(header, ty, &mut found));
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
