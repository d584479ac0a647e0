//! Values by value: layouts that the C compiler asserts, and calls that no compiler here can make.

use crate::folder::Folder;
use aviary_lapis::{generate, init, lower};

#[test]
fn calls_that_cannot_be_made_are_refused_where_they_are_described() {
    const HEADER: &[u8] = b"struct unknown; struct unknown f(int a); int g(struct unknown v);\n\
        int __attribute__((ms_abi)) h(int a); typedef int (*cb)(struct unknown v, void *u); int k(cb f, void *u);\n";
    let cases = [
        ("f(int a) { }", "what `f` returns cannot be passed by value"),
        ("g(struct unknown v) { }", "parameter `v` of `g` cannot be passed by value"),
        ("h(int a) { }", "`h` has a calling convention of its own"),
        (
            "k(cb f, void *u) { argument(f) { callback(v, u) { argument(u) { userdata; } } } argument(u) { userdata; } }",
            "parameter `v` of the callback cannot be passed by value",
        ),
    ];
    for (n, (line, expected)) in cases.into_iter().enumerate() {
        if cfg!(not(target_arch = "x86_64")) && line.starts_with('h') {
            continue;
        }
        let message = Folder::new(&format!("refused-{n}"), HEADER, line).load().expect_err(line).to_string();
        assert!(message.contains(expected) && message.contains("main.lapis:2:"), "{line}: {message}");
    }
    let unsupported = "f(int a) { unsupported; } g(struct unknown v) { unsupported; } h(int a) { unsupported; }";
    assert!(Folder::new("unsupported", HEADER, unsupported).load().is_ok());
}

#[test]
fn layouts_are_asserted_and_only_unusual_calls_go_through_c() {
    const HEADER: &[u8] = b"struct bits { unsigned a : 3, b : 13; double d; }; struct bits f(struct bits v);\n\
        struct in { short s; long l; }; int g(int a, const struct in *p); long double h(void);\n";
    let loaded = Folder::new(
        "asserted",
        HEADER,
        "f(struct bits v) { } g(int a, const struct in *p) { argument(p) { in; } } h(void) { }",
    )
    .load()
    .expect("no mistakes");
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 0);
    for shims in [&sources.guest_shims, &sources.server_shims] {
        for wanted in [
            "_Static_assert(sizeof(struct bits) == 16 && _Alignof(struct bits) == 8",
            "_Static_assert(offsetof(struct bits, d) == 8 && sizeof(((struct bits *)0)->d) == 8",
            "_Static_assert(offsetof(struct in, l) == 8",
        ] {
            assert!(shims.contains(wanted), "{wanted}: {shims}");
        }
    }
    let entries = ["aviary_entry_0", "aviary_entry_1", "aviary_entry_2"].map(|e| sources.guest_shims.contains(e));
    assert_eq!(entries, [true, false, true]);
}

#[test]
fn labels_are_symbols_and_variables_are_named() {
    const HEADER: &[u8] = b"int f(int a) __asm__(\"f_v2\"); extern int version; extern const char *const names[];\n\
        static inline int own(int a) { return a; }\n";
    let loaded = Folder::new("labels", HEADER, "f(int a) { }").load().expect("no mistakes");
    let functions: Vec<_> = loaded.model.functions.iter().map(|f| (f.name.as_str(), f.symbol())).collect();
    assert_eq!(functions, [("f", "f_v2")]);
    let told = |name: &str| {
        let begin = format!("the guest library does not have the variable `{name}`: ");
        loaded.warnings.iter().any(|warning| warning.message.starts_with(&begin))
    };
    assert!(told("version") && told("names"), "{:?}", loaded.warnings);
}

#[test]
fn headers_need_not_be_utf_8() {
    let header = b"/* Ren\xe9e */\r\n#define ONE \\\r\n 1 /* \xe9 */\r\n#define TWO 2\r\nint f(const int *p);\r\n";
    let folder = Folder::new("latin1", header, "f(const int *p) { argument(p) { in; buffer(ONE + TWO); } }\r\n");
    assert!(folder.load().is_ok());
    let text = init(&folder.0.join("h.h"), &aviary_lapis::InitOptions::default()).expect("a specification");
    assert!(text.contains("f(const int *p)"), "{text}");
}
