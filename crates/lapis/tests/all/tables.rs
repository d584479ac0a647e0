//! Tables that follow the vendor's.

use crate::folder::Folder;
use aviary_lapis::{coverage, generate, lower};

const HEADER: &[u8] =
    b"typedef struct { unsigned bytes; struct { short major, minor; } version; double ratio; void *more;\n\
    int (*f)(int); int (*g)(int, ...); int (*h)(void); union { int a; float b; } u; } ops;\n\
    const ops *get(void); int plain(void); extern int number;\n";

const SERVER: &str = "utility(server) { const void *theirs(void) { return 0; } int wrong(void) { return 0; } }\n\
    utility(guest) { const void *ours(void) { return 0; } }\n";

fn folder(name: &str, text: &str) -> Folder {
    Folder::new(
        &format!("tables-{name}"),
        HEADER,
        &format!("{SERVER}{text} get(void) {{ return_value {{ table(o); }} }}"),
    )
}

#[test]
fn mistakes_in_tables_are_told() {
    let cases = [
        ("table(ops) o from ours();", "this expression does not give the address of the vendor's table"),
        ("table(ops) o from wrong();", "this expression does not give the address of the vendor's table"),
        ("table(ops) o from plain();", "this expression does not give the address of the vendor's table"),
        ("table(ops) o from theirs() { sized(byte); }", "not a number of the table"),
        ("table(ops) o from theirs() { sized(more); }", "not a number of the table"),
        ("table(ops) o from theirs() { sized(u.a); }", "not a number of the table"),
        ("table(ops) o from theirs() { least(version.major.x, 3); }", "not a number of the table"),
        ("table(ops) o from theirs() { least(bytes, wrong()); }", "the limit of a member is a constant"),
        ("table(ops) o from theirs() { buffer(3); }", "`buffer` cannot describe a table"),
        ("table(ops) o from theirs() { if (1) { sized(bytes); } }", "a condition in the description of a table"),
        ("table(ops) o from theirs() { } o.f(int v) { } o.f(int v) { }", "described twice"),
        ("table(ops) o from theirs() { } o.k(int v) { }", "has no member `k`"),
        ("table(ops) o from theirs() { } o.g(int v, ...) { }", "takes any number of arguments"),
        ("table(ops) o from theirs() { longer(0); }", "a number of functions is a constant from 1 to 4096"),
        ("table(ops) o from theirs() { longer(8); }", "nothing says what a later function of this table returns"),
        ("table(ops) o from theirs() { } f(int v) { least(v, 3); }", "no header declares `f`"),
        ("table(ops) o from theirs() { } plain(void) { least(v, 3); }", "`least` cannot describe a function"),
        ("table(ops) o from;", "expected"),
        (
            "table(ops) o from theirs() { chained(bytes, more, p); } table(ops) p from theirs();",
            "not a pointer of the table",
        ),
        (
            "table(ops) o from theirs() { chained(more, ratio, p); } table(ops) p from theirs();",
            "has no pointer to the next table",
        ),
        (
            "table(ops) o from theirs() { chained(more, more, p); } table(ops) p;",
            "is no table that follows the vendor's",
        ),
        (
            "table(ops) o from theirs() { chained(more, more, p, p); } table(ops) p from theirs();",
            "`p` cannot be a link of this chain",
        ),
    ];
    for (n, (text, expected)) in cases.into_iter().enumerate() {
        let told = folder(&n.to_string(), text).load().expect_err(text).to_string();
        assert!(told.contains(expected), "{text}: {told}");
    }
}

#[test]
fn every_slot_is_a_function_and_numbers_follow() {
    let text = "table(ops) o from theirs() { sized(bytes); least(version.minor, 7); } o.f(int v) { }";
    let loaded = folder("slots", text).load().expect("no mistakes");
    let states: Vec<String> = coverage(&loaded.model).iter().map(|c| format!("{} {}", c.function, c.state)).collect();
    assert_eq!(states, ["get supported", "plain unsupported", "o.f supported", "o.g unsupported", "o.h unsupported"]);
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 0);
    // Long lists are printed with a comma at their end.
    let plain = |text: &str| text.split_whitespace().collect::<String>().replace(",]", "]").replace(",)", ")");
    for wanted in [
        "VendorTable::new(&[24, 32, 40], &[(0, 4, 56), (4, 2, 18446744073709551615), (6, 2, 7), (8, 8, 18446744073709551615)])",
        "table[3] = member_o_f as *const () as usize;",
        "table[5] = member_o_h as *const () as usize;",
        "reply.table(table_o(), &vendor_table_o)",
    ] {
        assert!(plain(&sources.guest).contains(&plain(wanted)), "{wanted}: {}", sources.guest);
    }
    for wanted in
        ["sized: Some((0, 4))", "vendor_table_o.function(24)", "call.reply_table(ret as usize, &vendor_table_o)"]
    {
        assert!(plain(&sources.server).contains(&plain(wanted)), "{wanted}: {}", sources.server);
    }
}
