//! Functions whose arguments depend on the value of one of them.

use crate::folder::Folder;
use aviary_lapis::{generate, lower};

const HEADER: &[u8] = b"#include <stdarg.h>\ntypedef struct thing_object *thing; struct pair { int a, b; };\n\
    int ctl(thing t, int request, ...); int vctl(thing t, int request, va_list list); int plain(thing t, int request);\n\
    enum { LEVEL = 1, NAME = 2, OTHER = 3, NONE = 4 };\n";

fn told(name: &str, ctl: &str, list: &str, plain: &str) -> Option<String> {
    let text = format!(
        "type(int) {{ success(0); failure(1); lost(2); unsupported(3); }}\nctl(thing t, int request, ...) {{ {ctl} }}\n\
         vctl(thing t, int request, va_list list) {{ {list} }}\nplain(thing t, int request) {{ {plain} }}\n"
    );
    Folder::new(&format!("varargs-{name}"), HEADER, &text).load().err().map(|e| e.to_string())
}

const CASES: &str = "case LEVEL: int; case NAME, OTHER: const char * { in; string; } case NONE: void; \
    case 9: thing; case 10: double; case 11: int * { out; }";

#[test]
fn what_follows_is_told_by_another_argument() {
    let good = format!("varargs(request) {{ {CASES} }}");
    let list = format!("varargs(request, list) {{ {CASES} }}");
    assert_eq!(told("good", &good, &list, ""), None);
    let of = |cases: &str| format!("varargs(request) {{ {cases} }}");
    let each = "varargs(request) { each const char * { in; string; } }";
    assert_eq!(told("each", each, &list, ""), None);
    let cases = [
        (String::new(), list.clone(), "", "takes any number of arguments"),
        (of(""), list.clone(), "", "`varargs` without a `case`"),
        (of("case LEVEL: int; case LEVEL: int;"), list.clone(), "", "a `case` has constants of its own"),
        (of("case request: int;"), list.clone(), "", "unknown name `request`"),
        (of("case LEVEL: struct pair;"), list.clone(), "", "cannot follow as an argument"),
        (of("case LEVEL: int *;"), list.clone(), "", "a pointer without a description"),
        (of("case LEVEL: int * { out; buffer(other); }"), list.clone(), "", "unknown name `other`"),
        (of("case LEVEL: int { in; buffer(3); }"), list.clone(), "", "is not a buffer"),
        (of("each const char *;"), list.clone(), "", "a pointer without a description"),
        (of("each int;"), list.clone(), "", "`each` stands alone"),
        (of("each double;"), list.clone(), "", "`each` stands alone"),
        (of("each thing; case LEVEL: int;"), list.clone(), "", "`each` stands alone"),
        (of("string;"), list.clone(), "", "`string` cannot describe"),
        ("varargs(t) { case 1: int; }".into(), list.clone(), "", "does not choose what follows"),
        ("varargs(request, request) { case 1: int; }".into(), list, "", "does not choose what follows"),
        (good.clone(), "varargs(request) { case 1: int; }".into(), "", "does not choose what follows"),
        (good.clone(), "varargs(list, request) { case 1: int; }".into(), "", "does not choose what follows"),
        (
            good.clone(),
            "argument(list) { null; }".into(),
            "varargs(request) { case 1: int; }",
            "does not choose what follows",
        ),
    ];
    for (n, (ctl, list, plain, expected)) in cases.into_iter().enumerate() {
        let message = told(&n.to_string(), &ctl, &list, plain).expect(&ctl);
        assert!(message.contains(expected), "{ctl} {list} {plain}: {message}");
    }
}

/// What the build compiles for both sides is C without a warning.
#[test]
fn functions_that_take_and_give_what_follows_are_c() {
    let described = [
        format!("ctl(thing t, int request, ...) {{ varargs(request) {{ {CASES} }} }}"),
        format!("vctl(thing t, int request, va_list list) {{ varargs(request, list) {{ {CASES} }} }}"),
        "tell(thing t, unsigned char kind, ...) { varargs(kind) { case 1: void; case 2: unsigned long; } }".into(),
        "join(int n, ...) { varargs(n) { each const char * { in; string; } } }".into(),
    ];
    let header = [HEADER, b"void tell(thing t, unsigned char kind, ...); int join(int n, ...);\n"].concat();
    let folder = Folder::new("varargs-c", &header, &described.join("\n"));
    let model = folder.load().unwrap_or_else(|d| panic!("{d}")).model;
    let sources = generate::generate(&model, &lower::lower(&model), 1);
    let place = |name: &str| folder.0.join(name);
    std::fs::write(place("api_types.h"), "#include \"h.h\"\n").expect("written");
    for (name, text) in [("guest.c", &sources.guest_shims), ("server.c", &sources.server_shims)] {
        std::fs::write(place(name), text).expect("written");
        let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
        let done = std::process::Command::new("cc").args(flags).arg(place(name)).output().expect("a compiler");
        assert!(done.status.success(), "{}\n{text}", String::from_utf8_lossy(&done.stderr));
    }
}
