//! Cursors, states and where they can stand.

mod folder;

use aviary_lapis::{generate, lower};
use folder::Folder;

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
        "call.state(e0, 152, 40, false)",
        "call.state(e0, 152, 40, true)",
        "call.raw((e0 + 0) as *const u8, 40)",
        "call.raw((e0 + 144) as *const u8, 8)",
    ] {
        assert!(plain(&sources.guest).contains(&plain(wanted)), "{wanted}: {}", sources.guest);
    }
    for wanted in ["call.state_scratch(e0, 24,", "call.reply_cursor(", "call.state(1u32, 152, 152, true)"] {
        assert!(plain(&sources.server).contains(&plain(wanted)), "{wanted}: {}", sources.server);
    }
}
