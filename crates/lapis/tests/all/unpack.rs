//! Functions whose parameters are the members of one struct.

use crate::folder::Folder;

const HEADER: &[u8] =
    b"typedef struct { unsigned long bytes; const char *name; unsigned long length; int answer; double half; } one;\n\
    typedef struct { unsigned long bytes; union { int a; float b; }; } shared; typedef struct { int many[3]; } array;\n\
    int f(one *x); int g(one *x, int y); int h(int x); int u(shared *x); int a(array *x);\n";

fn told(name: &str, text: &str) -> Option<String> {
    Folder::new(&format!("unpack-{name}"), HEADER, text).load().err().map(|e| e.to_string())
}

#[test]
fn the_members_of_a_struct_are_parameters() {
    let good = "unpack(bytes, name); sets(answer, half); argument(name) { in; buffer(length); }";
    assert_eq!(told("good", &format!("f(one *x) {{ failure(1); {good} }}")), None);
    assert_eq!(told("whole", "f(one *x) { failure(1); unpack; sets(answer); argument(name) { null; } }"), None);
    let both = "unpack(bytes); sets(answer); argument(answer) { in; out; } argument(name) { in; string; }";
    assert_eq!(told("both", &format!("f(one *x) {{ failure(1); {both} }}")), None);
    let cases = [
        ("f(one *x) { unpack(bytes); sets(answer); }", "argument `name` is a pointer without a description"),
        ("f(one *x) { unpack(byte); argument(name) { null; } }", "has no member `byte`"),
        ("f(one *x) { unpack(half); argument(name) { null; } }", "`half` is no size"),
        ("f(one *x) { unpack(bytes); sets(bytes); argument(name) { null; } }", "`bytes` is no size"),
        ("f(one *x) { unpack(bytes); sets(anser); argument(name) { null; } }", "has no member `anser`"),
        ("f(one *x) { sets(answer); }", "`sets` without `unpack`"),
        ("f(one *x) { unpack; argument(x) { in; } argument(name) { null; } }", "no parameter `x`"),
        (
            "f(one *x) { unpack; sets(answer); argument(answer) { buffer(2); } argument(name) { null; } }",
            "`buffer` on a pointer to a member",
        ),
        (
            "f(one *x) { unpack; sets(answer); argument(answer) { null; } argument(name) { null; } }",
            "`null` on a pointer to a member",
        ),
        (
            "f(one *x) { unpack; address(name_of(), 1); argument(name) { null; } } utility(server) { void *name_of(void) { return 0; } }",
            "cannot hand over values",
        ),
        ("g(one *x, int y) { unpack; }", "`g` has no struct to unpack"),
        ("h(int x) { unpack; }", "`h` has no struct to unpack"),
        ("u(shared *x) { unpack(bytes); }", "is no parameter"),
        ("a(array *x) { unpack; }", "is no parameter"),
    ];
    for (n, (text, expected)) in cases.into_iter().enumerate() {
        let message = told(&n.to_string(), text).expect(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_described_member_stands_for_those_that_share_its_bytes() {
    let header: &[u8] =
        b"typedef struct { int kind; union { const char *text; const long *list; long number; }; } fact;\n\
        int f(const fact *x); int g(fact **x, unsigned long *n);\n";
    let described = "type(fact) { field(text) { if (kind == 1) { string; } else { token; } } }";
    let load = |name: &str, text: &str| {
        Folder::new(&format!("unpack-shared-{name}"), header, text).load().err().map(|e| e.to_string())
    };
    assert_eq!(load("in", &format!("{described} f(const fact *x) {{ argument(x) {{ in; }} }}")), None);
    let handed_out =
        "g(fact **x, unsigned long *n) { argument(x) { out; element { buffer(*n); } } argument(n) { out; } }";
    assert_eq!(load("out", &format!("{described} {handed_out}")), None);
    let message = load("none", "f(const fact *x) { argument(x) { in; } }").expect("pointers");
    assert!(message.contains("is a pointer without a description"), "{message}");
}
