//! Chains of structs, and where they can stand.

use crate::folder::Folder;

const HEADER: &[u8] = b"typedef struct { int kind; void *next; int value; } small; typedef struct { int kind; void *next; small *other; } leads;\n\
    typedef struct { int other; int kind; void *next; } moved; typedef struct { int kind; void *next; char much[5000]; } large;\n\
    typedef struct { void *kind; void *next; } odd; typedef union { int kind; void *next; } either;\n\
    typedef struct { void *first; int number; } head; int f(head *x); int g(void *x); head h(void);\n";

const LINK: &str = "link(1, small);";

fn told(name: &str, text: &str) -> Option<String> {
    Folder::new(&format!("chains-{name}"), HEADER, text).load().err().map(|e| e.to_string())
}

#[test]
fn chains_are_described_whole() {
    let chain = |flow: &str, names: &str, body: &str| {
        format!(
            "f(head *x) {{ failure(1); argument(x) {{ {flow} element {{ field(first) {{ chain({names}) {{ {body} }} }} }} }} }}"
        )
    };
    let good = chain("in; out;", "kind, next", &format!("{LINK} unknown(drop);"));
    assert_eq!(told("good", &good), None);
    assert_eq!(told("in", &chain("in;", "kind, next", &format!("{LINK} unknown(refuse);"))), None);
    let cases = [
        (chain("out;", "kind, next", &format!("{LINK} unknown(drop);")), "`chain` cannot stand"),
        (chain("in;", "kind, next", LINK), "what becomes of links that nothing describes?"),
        (
            chain("in;", "kind, next", &format!("{LINK} unknown(keep);")),
            "what becomes of links that nothing describes?",
        ),
        (chain("in;", "kind, next", "unknown(drop);"), "a chain without links"),
        (chain("in;", "kin, next", &format!("{LINK} unknown(drop);")), "is no link of this chain"),
        (chain("in;", "kind, value", &format!("{LINK} unknown(drop);")), "is no link of this chain"),
        (chain("in;", "kind, next", "link(1, odd); unknown(drop);"), "is no link of this chain"),
        (chain("in;", "kind, next", "link(1, int); unknown(drop);"), "a link is a struct"),
        (chain("in;", "kind, next", "link(1, either); unknown(drop);"), "a link is a struct"),
        (chain("in;", "kind, next", "link(1, leads); unknown(drop);"), "a link with a pointer or handle: `other`"),
        (chain("in;", "kind, next", "link(1, large); unknown(drop);"), "a link is too large"),
        (
            chain("in;", "kind, next", &format!("{LINK} link(2, moved); unknown(drop);")),
            "the links of a chain begin alike",
        ),
        (chain("in;", "kind, next", &format!("{LINK} {LINK} unknown(drop);")), "two links of one kind"),
        (chain("in;", "kind, next", &format!("{LINK} buffer(3); unknown(drop);")), "`buffer` cannot describe a chain"),
        (chain("in;", "kind, next", "if (1) { link(1, small); } unknown(drop);"), "a condition in a chain"),
        (chain("in;", "kind, next", &format!("{LINK} unknown(drop); }} string; {{")), "expected"),
        (
            format!("g(void *x) {{ argument(x) {{ chain(kind, next) {{ {LINK} unknown(drop); }} }} }}"),
            "`chain` cannot stand",
        ),
        (
            format!(
                "h(void) {{ return_value {{ field(first) {{ chain(kind, next) {{ {LINK} unknown(drop); }} }} }} }}"
            ),
            "`chain` cannot stand",
        ),
        (chain("in;", "kind, next", "").replace("field(first)", "field(number)"), "begins no chain"),
    ];
    for (n, (text, expected)) in cases.into_iter().enumerate() {
        let message = told(&n.to_string(), &text).expect(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}
