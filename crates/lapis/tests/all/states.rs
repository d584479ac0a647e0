//! Cursors, states and where they can stand.

use crate::folder::Folder;
use aviary_lapis::{generate, lower};

const HEADER: &[u8] =
    b"typedef struct { unsigned char *next; unsigned avail; char *text; void *room; unsigned room_size;\n\
    int code; struct { char bytes[100]; } own; int small; int *more; } flow;\n\
    int f(flow *x); void g(flow *x, unsigned char *p, unsigned n); flow h(void); int k(flow **x);\n";

const TYPE: &str = "type(flow) { state(own, small); field(next) { in; cursor(avail); } field(text) { null; }\n\
    field(room) { scratch(room_size); } field(more) { in; buffer(4); } }";

fn message(name: &str, specification: &str) -> String {
    Folder::new(&format!("states-{name}"), HEADER, specification).load().expect_err(specification).to_string()
}

#[test]
fn states_and_cursors_stand_where_they_can_be_kept() {
    const REST: &str = "field(text) { null; } field(room) { null; } field(more) { null; }";
    let cases = [
        ("type(flow) { state(own, smal); } f(flow *x) { }".to_string(), "has no member `smal`"),
        ("type(flow) { state(small); } f(flow *x) { }".to_string(), "no room for the key of a state"),
        (format!("{TYPE} k(flow **x) {{ argument(x) {{ in; element {{ in; }} }} }}"), "`state` describes one struct"),
        (format!("{TYPE} h(void) {{ }}"), "`state` describes one struct"),
        (format!("{TYPE} f(flow *x) {{ async; success(0); }}"), "asynchronous but changes a state"),
        (
            format!("f(flow *x) {{ argument(x) {{ in; element {{ field(next) {{ in; cursor(avail); }} {REST} }} }} }}"),
            "`cursor` describes a member of a struct that flows both ways",
        ),
        ("g(flow *x, unsigned char *p, unsigned n) { argument(x) { null; } argument(p) { in; cursor(n); } }".to_string(), "`cursor` describes"),
        (
            format!("f(flow *x) {{ argument(x) {{ in; out; element {{ field(next) {{ cursor(avail); }} {REST} }} }} }}"),
            "a cursor without a direction",
        ),
        (
            format!("f(flow *x) {{ argument(x) {{ in; out; element {{ field(next) {{ in; cursor(avail + 1); }} {REST} }} }} }}"),
            "`cursor` describes",
        ),
        ("g(flow *x, unsigned char *p, unsigned n) { argument(x) { null; } argument(p) { in; scratch(n); } }".to_string(), "`scratch` outside a state"),
        (
            "type(flow) { state(own); field(next) { in; cursor(avail); } field(text) { in; string; } field(room) { null; } field(more) { null; } } f(flow *x) { }".to_string(),
            "this cannot be a member of a state",
        ),
        (
            "type(flow) { state(own); field(next) { if (code) { null; } else { in; cursor(avail); } } field(text) { null; } field(room) { null; } field(more) { null; } } f(flow *x) { }".to_string(),
            "a member of a state depends on a condition",
        ),
        ("g(flow *x, unsigned char *p, unsigned n) { argument(x) { null; } argument(p) { in; buffer(n); aligned(3); } }".to_string(), "an alignment is a constant that is a power of two"),
        (format!("{TYPE} f(flow *x) {{ argument(x) {{ field(next) {{ in; buffer(2); }} }} }}"), "says nothing here"),
        (format!("{} f(flow *x) {{ }}", TYPE.replace("state(own, small)", "state(own, small) { shows(byte); }")), "no member named in `state(...)` is a struct with a member `byte`"),
        (format!("{} f(flow *x) {{ }}", TYPE.replace("state(own, small)", "state(own, small) { shows(bytes); }")), "no room for the key of a state"),
        (format!("{} f(flow *x) {{ }}", TYPE.replace("state(own, small)", "state(own, small) { null; }")), "`null` cannot describe a state"),
        (format!("{TYPE} f(flow *x) {{ copies; }}"), "`copies` cannot describe a function"),
        (format!("{} f(flow *x) {{ }}", TYPE.replace("cursor(avail)", "cursor(avail); history(0)")), "how far a library looks back is a constant"),
        (format!("{} f(flow *x) {{ }}", TYPE.replace("in; cursor(avail)", "out; cursor(avail); history(8)")), "`history` describes what a stream consumes"),
        ("g(flow *x, unsigned char *p, unsigned n) { argument(x) { null; } argument(p) { in; buffer(n); history(8); } }".to_string(), "`history` describes what a stream consumes"),
    ];
    for (n, (specification, expected)) in cases.into_iter().enumerate() {
        let told = message(&n.to_string(), &specification);
        assert!(told.contains(expected), "{specification}: {told}");
    }
}

#[test]
fn hidden_members_never_cross() {
    let specification = format!(
        "{TYPE} f(flow *x) {{ failure(1); }} g(flow *x, unsigned char *p, unsigned n) {{ argument(x) {{ allocate; }} argument(p) {{ null; }} }} h(void) {{ unsupported; }} k(flow **x) {{ unsupported; }}"
    );
    let loaded = Folder::new("states-hidden", HEADER, &specification).load().expect("no mistakes");
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 0);
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    // The struct has 152 bytes; those from 40 to 144 are hidden.
    for wanted in [
        "call.state(e0, 152, 40, false, false)",
        "call.state(e0, 152, 40, true, false)",
        "call.raw((e0 + 0) as *const u8, 40)",
        "call.raw((e0 + 144) as *const u8, 8)",
    ] {
        assert!(plain(&sources.guest).contains(&plain(wanted)), "{wanted}: {}", sources.guest);
    }
    for wanted in ["call.state_scratch(e0, 24,", "call.reply_cursor(", "call.state(1u32, 152, 152, true, false)"] {
        assert!(plain(&sources.server).contains(&plain(wanted)), "{wanted}: {}", sources.server);
    }
}

/// A part of a hidden member, around which the key lies.
const SHOWN_HEADER: &[u8] = b"struct own { char first[20]; int state; char more[40]; void *address; };\n\
    typedef struct { unsigned char *next; unsigned avail; struct own own; } flow;\n\
    /** Look at own.state when it returns, not at own.stateless. */\n\
    int f(flow *x);\n";

#[test]
fn shown_members_come_back_and_are_asked_for() {
    let load = |name: &str, inside: &str| {
        let specification = format!(
            "type(flow) {{ state(own) {inside} field(next) {{ in; cursor(avail); history(100); }} }} f(flow *x) {{ failure(1); }}"
        );
        Folder::new(&format!("states-shown-{name}"), SHOWN_HEADER, &specification).load()
    };
    let loaded = load("state", "{ shows(state); copies; }").expect("no mistakes");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 0);
    // A call that needs several lines ends with a comma.
    let plain = |text: &str| text.split_whitespace().collect::<String>().replace(",)", ")");
    // The struct has 88 bytes; `state` is at 36, the key behind it.
    for wanted in
        ["call.state(e0, 88, 40, false, true)", "reply.raw((e0 + 36) as *mut u8, 4)", "call.buffer_behind(", ", 100)"]
    {
        assert!(plain(&sources.guest).contains(&plain(wanted)), "{wanted}: {}", sources.guest);
    }
    for wanted in
        ["call.reply_raw((e0 + 36) as *const u8, 4)", "call.buffer_behind(history0, 100,", "call.keep_history("]
    {
        assert!(plain(&sources.server).contains(&plain(wanted)), "{wanted}: {}", sources.server);
    }
    let told = format!("{:?}", load("hidden", ";").expect("only a warning").warnings);
    assert!(
        told.contains("the header tells programs of hidden members: state") && told.contains("shows(state)"),
        "{told}"
    );
    let told = load("address", "{ shows(address); }").expect_err("an address of the server").to_string();
    assert!(told.contains("leads to memory of the server"), "{told}");
}
