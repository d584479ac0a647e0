//! A C table of all functions of an API, for the test that hands each of them addresses of another process
//! (tests/pointers): whatever a specification says, the API server survives them.

use crate::model::{Function, Model, Signature, Type, TypeKind};
use std::fmt::Write;

/// The table: one entry per function that a program can call, and how it is called. The program that includes it has
/// the rest.
pub fn table(model: &Model) -> String {
    let mut text = format!("/* The functions of {}: `aviary spec pointers` wrote this. */\n", model.api.name);
    model.preamble.iter().for_each(|line| text.extend([line, "\n"]));
    let _ = writeln!(text, "#include \"cases.h\"\n\nconst char *const pointers_library = {:?};\n", model.api.soname);
    let called: Vec<&Function> =
        model.functions.iter().filter(|f| f.member_of.is_none() && !f.signature.variadic).collect();
    for (id, function) in called.iter().enumerate() {
        caller(&mut text, id, function.declared());
    }
    text.push_str("\nconst struct pointers_function pointers_functions[] = {\n");
    for (id, function) in called.iter().enumerate() {
        let parameters = function.declared().parameters.iter().map(|(_, ty)| parameter(ty));
        let parameters: Vec<String> = parameters.collect();
        let count = parameters.len();
        let list = if parameters.is_empty() { "{0}".to_string() } else { parameters.join(", ") };
        let _ = writeln!(text, "    {{{:?}, call_{id}, {count}, {{{list}}}}},", function.name);
    }
    text.push_str("    {0},\n};\n");
    text
}

/// A function that calls one of these parameters with values that are words, or zeroed structs.
fn caller(text: &mut String, id: usize, signature: &Signature) {
    let result = match &signature.result.kind {
        TypeKind::Struct(_) => signature.result.spelling.as_str(),
        TypeKind::Float { .. } => "double",
        TypeKind::Void => "void",
        _ => "uint64_t",
    };
    let types: Vec<&str> = signature.parameters.iter().map(|(_, ty)| class(ty)).collect();
    let types = if types.is_empty() { "void".into() } else { types.join(", ") };
    let values: Vec<String> = signature.parameters.iter().enumerate().map(|(n, (_, ty))| value(n, ty)).collect();
    let _ = writeln!(text, "static void call_{id}(void *function, const union pointers_value *values) {{");
    let _ = writeln!(text, "    (void)values;\n    (({result} (*)({types}))function)({});\n}}", values.join(", "));
}

/// The type with which a value is passed: every integer and pointer has a register of eight bytes.
fn class(ty: &Type) -> &str {
    match &ty.kind {
        TypeKind::Struct(_) => &ty.spelling,
        TypeKind::Float { bytes: 4 } => "float",
        TypeKind::Float { .. } => "double",
        _ => "uint64_t",
    }
}

fn value(n: usize, ty: &Type) -> String {
    match &ty.kind {
        TypeKind::Struct(_) => format!("*(const {} *)values[{n}].memory", ty.spelling),
        TypeKind::Float { .. } => format!("values[{n}].number"),
        _ => format!("values[{n}].word"),
    }
}

/// The entry of one parameter: its kind, its bytes, its type by name.
fn parameter(ty: &Type) -> String {
    let kind = match &ty.kind {
        TypeKind::FunctionPointer(_) => "POINTERS_CALLBACK",
        TypeKind::Pointer { .. } => "POINTERS_POINTER",
        TypeKind::Struct(_) if ty.translated().is_empty() => "POINTERS_STRUCT",
        TypeKind::Struct(_) => "POINTERS_STRUCT_WITH_POINTERS",
        TypeKind::Float { .. } => "POINTERS_FLOAT",
        _ => "POINTERS_INTEGER",
    };
    let name = ty.spelling.trim_start_matches("const ");
    format!("{{{kind}, {}, {name:?}}}", ty.size())
}
