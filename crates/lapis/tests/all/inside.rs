//! Pointers into arguments, constants among pointers, arrays of pointers for callbacks: where they can stand.

use crate::folder::Folder;

const HEADER: &[u8] = b"typedef struct thing_object *thing; typedef int (*row)(void *context, int n, char **values, thing *things);\n\
    #define STATIC ((row)0)\n#define COPIED ((row)-1)\n\
    int parse(const char *text, char **end); char *find(const char *text, unsigned long n, int c); int rows(row f, void *context);\n\
    int count(int n); int give(thing t);\n";

/// Other descriptions of the same functions take the place of these.
const DESCRIBED: [(&str, &str); 5] = [
    (
        "parse",
        "parse(const char *text, char **end) { argument(text) { in; string; } argument(end) { out; element { within(text); } } }",
    ),
    (
        "find",
        "find(const char *text, unsigned long n, int c) { argument(text) { in; buffer(n); } return_value { within(text); } }",
    ),
    (
        "rows",
        "rows(row f, void *context) { argument(f) { constant(COPIED, STATIC); callback(context, n, values, things) { \
         argument(context) { userdata; } argument(values) { in; buffer(n); element { in; string; } } argument(things) { in; buffer(n); } } } \
         argument(context) { userdata; } }",
    ),
    ("count", "count(int n) { }"),
    ("give", "give(thing t) { }"),
];

fn told(name: &str, function: &str, text: &str) -> Option<String> {
    let described = DESCRIBED.iter().map(|(name, own)| if *name == function { text } else { own });
    let all: Vec<&str> = ["type(int) { success(0); failure(1); lost(2); }"].into_iter().chain(described).collect();
    Folder::new(&format!("inside-{name}"), HEADER, &all.join("\n")).load().err().map(|e| e.to_string())
}

#[test]
fn pointers_that_mean_the_same_on_both_sides_are_described_where_they_come_and_go() {
    assert_eq!(told("good", "", ""), None);
    let parse = |text: &str, end: &str| {
        format!("parse(const char *text, char **end) {{ argument(text) {{ {text} }} argument(end) {{ {end} }} }}")
    };
    let rows =
        |f: &str| format!("rows(row f, void *context) {{ argument(f) {{ {f} }} argument(context) {{ userdata; }} }}");
    let callback = |values: &str| {
        rows(&format!(
            "callback(context, n, values, things) {{ argument(context) {{ userdata; }} argument(values) {{ {values} }} \
             argument(things) {{ null; }} }}"
        ))
    };
    let within = "out; element { within(text); }";
    let cases = [
        ("parse", parse("null;", within), ""),
        ("parse", parse("token;", within), "the server has no memory of this argument"),
        ("parse", parse("in; buffer(3); bound(end);", within), "memory"),
        ("parse", parse("in; string;", "out; element { within(3); }"), "is not within this"),
        ("parse", parse("in; string;", "out; element { within(other); }"), "unknown name `other`"),
        ("parse", parse("in; string;", "in; out; element { within(text); }"), "`within` cannot stand"),
        ("parse", parse("in; string;", "within(text);"), "`within` cannot stand"),
        ("parse", parse("in; string;", "out; element { within(text); string; }"), "contradicts"),
        ("rows", rows("constant(COPIED);"), "a function pointer without a description"),
        ("rows", rows("constant(context); null;"), "this is no constant"),
        ("count", "count(int n) { argument(n) { constant(3); } }".into(), "is never a `constant`"),
        ("parse", parse("in; string;", "out; element { constant(3); within(text); }"), "is never a `constant`"),
        (
            "rows",
            rows(
                "callback(context, n, values, things) { argument(context) { given(context); } argument(values) { null; } argument(things) { null; } }",
            ),
            "`given(context)` cannot be told",
        ),
        (
            "rows",
            rows(
                "once; callback(context, n, values, things) { argument(context) { given(context); } argument(values) { given(f); } argument(things) { given(f); } }",
            ),
            "",
        ),
        (
            "rows",
            rows(
                "once; callback(context, n, values, things) { argument(context) { given(other); } argument(values) { null; } argument(things) { null; } }",
            ),
            "no such argument",
        ),
        (
            "rows",
            rows(
                "once; callback(context, n, values, things) { argument(context) { userdata; } argument(n) { given(f); } argument(values) { null; } argument(things) { null; } }",
            ),
            "on what is no pointer",
        ),
        ("parse", parse("in; string;", "given(text);"), "`given` cannot stand"),
        ("rows", callback("in; buffer(n); element { in; out; string; }"), "pointers or handles behind a pointer"),
        ("rows", callback("out; buffer(n); element { string; }"), "pointers or handles behind a pointer"),
        ("rows", callback("in; buffer(n); element { in; buffer(3); }"), "pointers or handles behind a pointer"),
    ];
    for (n, (function, text, expected)) in cases.into_iter().enumerate() {
        match told(&n.to_string(), function, &text) {
            Some(message) => assert!(!expected.is_empty() && message.contains(expected), "{text}: {message}"),
            None => assert_eq!(expected, "", "{text}"),
        }
    }
}
