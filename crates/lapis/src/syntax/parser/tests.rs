use crate::model::{Binary, Side};
use crate::syntax::ast::{Argument, AstExprKind, Directive, FunctionItem, Statement};
use crate::syntax::parser::*;
use proptest::prelude::*;

fn is_type(name: &str) -> bool {
    name.ends_with("_t") || name.starts_with("cl_")
}

fn parsed(text: &str) -> Vec<Item> {
    let parsed = parse(0, text, &is_type);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    parsed.items
}

fn function(text: &str) -> FunctionItem {
    match parsed(text).pop() {
        Some(Item::Function(function)) => function,
        other => panic!("not a function: {other:?}"),
    }
}

fn expression(text: &str) -> AstExprKind {
    parse_expression(text, Span::default(), &is_type).unwrap_or_else(|| panic!("`{text}` does not parse")).kind
}

fn messages(text: &str) -> Vec<String> {
    parse(0, text, &is_type).diagnostics.into_iter().map(|d| d.message).collect()
}

#[test]
fn directives() {
    let items = parsed("#include <CL/cl.h> // OpenCL\n#support \"x.h\"\n#define URL \"http://x\" /* y */\n");
    let kinds: Vec<_> = items
        .into_iter()
        .map(|i| match i {
            Item::Directive { kind, .. } => kind,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            Directive::Include { path: "CL/cl.h".into(), quoted: false },
            Directive::Support { path: "x.h".into(), quoted: true },
            Directive::Define("URL \"http://x\"".into()),
        ]
    );
}

#[test]
fn files_and_versions_of_a_library() {
    let items = parsed("library(\"libx_omp.so.3\");\nversions_any;\nversions(\"A_1\");");
    assert!(matches!(items.as_slice(), [Item::Library(file), Item::VersionsAny, Item::Versions(one)]
        if file.value == "libx_omp.so.3" && one.value == "A_1"));
    assert!(!messages("versions_any(\"A_1\");").is_empty());
}

#[test]
fn utility_code_is_taken_as_it_is() {
    let code =
        " int f(void) { char c = '}'; /* } */ return c == '\"'; } // }\n#define X }\n static const char *s = \"}\"; ";
    let items = parsed(&format!(
        "utility(guest) {{{code}}}\nutility int g(int x) {{ return x; }}\nutility int h[] = {{ 1, 2 }};"
    ));
    let [
        Item::Utility { side: Side::Guest, code: first, .. },
        Item::Utility { code: second, .. },
        Item::Utility { code: third, .. },
    ] = items.as_slice()
    else {
        panic!("{items:?}")
    };
    assert_eq!(first, code);
    assert_eq!(second, "int g(int x) { return x; }");
    assert_eq!(third, "int h[] = { 1, 2 };");
}

#[test]
fn declarations_and_functions_that_begin_alike() {
    assert!(matches!(parsed("struct s { int a[2]; };").as_slice(), [Item::Declaration { .. }]));
    assert!(matches!(parsed("enum { A, B };").as_slice(), [Item::Declaration { .. }]));
    let returning = function("struct s *make(int n) { }");
    assert_eq!(returning.result.map(|t| t.spelling()).as_deref(), Some("struct s *"));
    let named = function("policy(int n) { }");
    assert_eq!(named.name.text, "policy");
    let member = function("ops.add(int a, int b) { }");
    assert_eq!(member.table.map(|t| t.text).as_deref(), Some("ops"));
}

#[test]
fn parameters() {
    let f = function("f(const char *const *a, unsigned long long b, int c[3], void (*d)(int, void *), uint e) { }");
    let types: Vec<_> = f.parameters.iter().filter_map(|p| p.ty.as_ref()).map(|t| t.spelling()).collect();
    assert_eq!(types, ["const char *const *", "unsigned long long", "int *", "void", "uint"]);
    assert!(f.parameters[3].ty.as_ref().is_some_and(|t| t.function));
    assert_eq!(f.parameters[3].name.text, "d");
    assert!(function("f(const char *format, ...) { unsupported; }").variadic);
}

#[test]
fn conditions_with_and_without_braces() {
    let f = function("f(int a) { if (a) async; else { sync; } contextual_argument void **b = get(a); }");
    assert!(matches!(
        f.body.statements.as_slice(),
        [Statement::If { otherwise: Some(_), .. }, Statement::Contextual { .. }]
    ));
}

#[test]
fn casts_and_products() {
    assert!(matches!(expression("(cl_uint)-1"), AstExprKind::Cast(..)));
    assert!(matches!(expression("(count)-1"), AstExprKind::Binary(Binary::Subtract, ..)));
    assert!(matches!(expression("(a) * b"), AstExprKind::Binary(Binary::Multiply, ..)));
    assert!(matches!(expression("(foo *)p"), AstExprKind::Cast(..)));
    assert!(matches!(expression("(unknown)p"), AstExprKind::Cast(..)));
    assert!(matches!(expression("sizeof(struct s)"), AstExprKind::SizeofType(_)));
    assert!(matches!(expression("sizeof(a->b)"), AstExprKind::SizeofExpr(_)));
    assert!(matches!(expression("a ? b : c ? d : e"), AstExprKind::Conditional(..)));
}

#[test]
fn precedence() {
    let AstExprKind::Binary(Binary::LogicalOr, left, _) = expression("a + b * c == d && e || f") else { panic!() };
    let AstExprKind::Binary(Binary::LogicalAnd, left, _) = left.kind else { panic!() };
    let AstExprKind::Binary(Binary::Equal, left, _) = left.kind else { panic!() };
    let AstExprKind::Binary(Binary::Add, _, right) = left.kind else { panic!() };
    assert!(matches!(right.kind, AstExprKind::Binary(Binary::Multiply, ..)));
    let AstExprKind::Binary(Binary::Subtract, left, _) = expression("a - b - c") else { panic!() };
    assert!(matches!(left.kind, AstExprKind::Binary(Binary::Subtract, ..)));
}

#[test]
fn arguments_depend_on_the_descriptor() {
    let f = function("f(void *a) { argument(a) { type_cast(int *); callback(int x, y) { } } }");
    let Statement::Descriptor(argument) = &f.body.statements[0] else { panic!() };
    let Some(body) = &argument.body else { panic!() };
    let [Statement::Descriptor(cast), Statement::Descriptor(callback)] = body.statements.as_slice() else { panic!() };
    assert!(matches!(cast.arguments.as_deref(), Some([Argument::Type(_)])));
    assert!(matches!(callback.arguments.as_deref(), Some([Argument::Parameter(_), Argument::Parameter(_)])));
}

#[test]
fn parsing_goes_on_after_a_mistake() {
    let text = "f(int a) { async sync; success(); argument(a) { in out } }\nbroken;\ng(int b) { buffer(; } }\nh(void) { x = 1; }";
    let found = messages(text);
    assert!(found.len() >= 5, "{found:?}");
    let names: Vec<_> = parse(0, "f(int) { bad bad bad; }\n@@@;\ng(void) { }", &is_type)
        .items
        .into_iter()
        .filter_map(|i| match i {
            Item::Function(f) => Some(f.name.text),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["f", "g"]);
}

#[test]
fn side_effects_are_refused_by_name() {
    for text in ["f(int a) { require(a = 1, 2); }", "f(int a) { require(a++, 2); }", "f(int a) { require(a += 1, 2); }"]
    {
        assert_eq!(messages(text), ["expressions have no side effects"], "{text}");
    }
    assert_eq!(messages("f(int a) { require(&a, 2); }"), ["addresses cannot be taken"]);
}

#[test]
fn deep_nesting_is_a_mistake_and_not_an_overflow() {
    for (open, close) in [("(", ")"), ("- ", ""), ("a ? b : ", ""), ("a[", "]"), ("(int)", "")] {
        let text = format!("f(int a) {{ require({}a{}, 1); }}", open.repeat(20_000), close.repeat(20_000));
        assert!(messages(&text).iter().any(|m| m == "nested too deeply"), "{open}");
    }
    // Left-associative chains nest in the tree though not in the parser.
    for link in ["+ a ", "[0]", "->a"] {
        let text = format!("f(int a) {{ require(a {}, 1); }}", link.repeat(20_000));
        assert_eq!(messages(&text), ["this expression is too long"], "{link}");
    }
    let blocks = format!("f(int a) {{ {} }}", "if (a) { ".repeat(20_000));
    assert!(!messages(&blocks).is_empty());
}

proptest! {
    #[test]
    fn any_text_is_parsed_without_a_panic(text in "\\PC*") {
        parse(0, &text, &is_type);
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        parse(0, &String::from_utf8_lossy(&bytes), &is_type);
    }

    /// Words of the language in any order get deeper than characters in any order.
    #[test]
    fn any_tokens_are_parsed_without_a_panic(words in proptest::collection::vec(prop::sample::select(vec![
        "f", "(", ")", "{", "}", ";", ",", "argument", "in", "out", "buffer", "if", "else", "element", "utility", "struct",
        "typedef", "type", "#include <x>\n", "\"s\"", "'c'", "1", "+", "->", "[", "]", "*", "...", "=", "?", ":", "callback",
        "contextual_argument", "sizeof", "cl_int", "api", "override", ".", "@", "/*", "*/", "\"",
    ]), 0..200)) {
        let text = words.join(" ");
        for diagnostic in parse(0, &text, &is_type).diagnostics {
            let mut sources = crate::syntax::source::SourceFiles::default();
            sources.add("x.lapis".into(), text.clone());
            prop_assert!(!diagnostic.render(&sources).is_empty());
        }
    }
}
