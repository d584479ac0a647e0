//! Functions that say by a number, without an error type, that they failed.

use crate::folder::Folder;
use aviary_lapis::{generate, lower};

const HEADER: &[u8] = b"typedef struct st *st; typedef long number; typedef int status; st make(void);\n\
    int end(st s); int end_into(st s, int *left); number count(st s, int *to, unsigned long n);\n\
    unsigned long widen(st s, unsigned long by); void none(st s); status say(st s);\n";

const REST: &str = "type(status) { success(0); failure(1); } make(void) { return_value { allocate; } }\n";

fn load(name: &str, text: &str) -> Result<aviary_lapis::Loaded, aviary_lapis::Diagnostics> {
    Folder::new(&format!("outcomes-{name}"), HEADER, &format!("{REST}{text}")).load()
}

#[test]
fn mistakes_in_outcomes_are_reported() {
    let cases = [
        ("end(st s) { fails(ret < 0); }", "what does a call return that is refused?"),
        ("end(st s) { fails(ret < 0, 1); }", "`failure` is a value of success"),
        ("end(st s) { fails(ret < 0, -1); lost(0); }", "`lost` is a value of success"),
        ("end(st s) { fails(ret < 0, -1); fails(ret < 1, -1); }", "`fails` is given twice"),
        ("end(st s) { if (s) { fails(ret < 0, -1); } }", "`fails` cannot be conditional"),
        ("end_into(st s, int *left) { fails(*left < 0, -1); }", "unknown name `left`"),
        ("none(st s) { fails(ret < 0); }", "`ret` has no value here"),
        ("say(st s) { fails(ret < 0, -1); }", "`say` reports errors already"),
        ("outcome(status) { fails(ret < 0, -1); }", "`status` is the error type"),
        ("outcome(number) { failure(-1); }", "an `outcome` without `fails`"),
        ("outcome(number) { fails(ret < 0, 3); }", "`failure` is a value of success"),
        ("outcome(number) { fails(ret < 0); }", "what does a call return that is refused?"),
        ("outcome(number) { fails(ret < 0, -1); async; }", "`async` cannot describe an outcome"),
        ("outcome(number) { if (1) { fails(ret < 0, -1); } }", "an `outcome` has no conditions"),
        (
            "outcome(number) { fails(ret < 0, -1); } outcome(number) { fails(ret < 0, -1); }",
            "the outcome of `number` is described twice",
        ),
    ];
    for (n, (text, expected)) in cases.into_iter().enumerate() {
        let reported = load(&format!("mistake-{n}"), text).expect_err(text).to_string();
        assert!(reported.contains(expected), "{text}: {reported}");
    }
}

/// The guest's and the server's text of one function.
fn sources(name: &str, text: &str) -> (String, String) {
    let loaded = load(name, text).expect(text);
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 0);
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    (plain(&sources.guest), plain(&sources.server))
}

#[test]
fn both_sides_ask_the_same_condition() {
    let cases = [
        (
            "one",
            "count(st s, int *to, unsigned long n) { fails(ret < 0, -1); argument(to) { out; buffer(n); } }",
            "(retasi128)<(0asi128)",
        ),
        (
            "all",
            "outcome(number) { fails(ret < 0, -1); } count(st s, int *to, unsigned long n) { argument(to) { out; buffer(n); } }",
            "(retasi128)<(0asi128)",
        ),
        // What a function says comes first.
        (
            "own",
            "outcome(number) { fails(ret < 0, -1); } count(st s, int *to, unsigned long n) { fails(ret < 5, 4); argument(to) { out; buffer(n); } }",
            "(retasi128)<(5asi128)",
        ),
        // In C the constant is converted to what is returned.
        (
            "wide",
            "widen(st s, unsigned long by) { fails(ret > (unsigned long)-24, (unsigned long)-1); }",
            "(retasi128)>(18446744073709551592asi128)",
        ),
        ("end", "end(st s) { failure(-1); argument(s) { deallocate; } }", "(retasi128)==(-1asi128)"),
    ];
    for (name, text, condition) in cases {
        let (guest, server) = sources(name, text);
        assert!(guest.contains(condition), "{text}: {guest}");
        assert!(server.contains(condition), "{text}: {server}");
    }
    // With an output, or 0 for a failure, nothing is guessed.
    for (name, text) in [
        ("output", "end_into(st s, int *left) { failure(-1); argument(s) { deallocate; } argument(left) { out; } }"),
        ("zero", "end(st s) { failure(0); argument(s) { deallocate; } }"),
        ("unsaid", "end(st s) { argument(s) { deallocate; } }"),
    ] {
        let (guest, _) = sources(name, text);
        assert!(!guest.contains("(retasi128)=="), "{text}: {guest}");
        let warnings = format!("{:?}", load(name, text).expect(text).warnings);
        assert!(warnings.contains("ends an object, whatever it returns"), "{text}: {warnings}");
    }
    assert!(load("never", "end(st s) { fails(0, 0); argument(s) { deallocate; } }").expect("fine").warnings.is_empty());
    assert!(
        load("said", "end(st s) { fails(ret != 0, 1); argument(s) { deallocate; } }")
            .expect("fine")
            .warnings
            .is_empty()
    );
}
