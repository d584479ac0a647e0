//! Memory that the library hands out, and memory that both sides use: how it is described, and where.

use crate::folder::Folder;

const HEADER: &[u8] = b"typedef struct thing_object *thing; int make(void *p, unsigned long n, thing *t);\n\
    int end(thing t); int name(thing t, char **out); int words(thing t, char ***out, unsigned long *n);\n\
    int give(void *p); const char *last(void); int data(thing t, void **out); int use(thing t, thing other);\n\
    int many(unsigned long n, thing *all); struct pool { int version; void (*give)(struct pool *pool, void *p); };\n\
    struct pool *find(void);\n";

/// Other descriptions of the same functions take the place of these.
const DESCRIBED: [(&str, &str); 9] = [
    (
        "make",
        "make(void *p, size n, thing *t) { argument(p) { buffer(n); bound(*t); } argument(t) { out; element { allocate; } } }",
    ),
    ("end", "end(thing t) { argument(t) { deallocate; } }"),
    ("name", "name(thing t, char **out) { argument(out) { out; element { string; freed_by(give); } } }"),
    (
        "words",
        "words(thing t, char ***out, size *n) { argument(out) { out; element { buffer(*n); freed_by(give); element { string; owned(t); } } } argument(n) { out; } }",
    ),
    ("give", "give(void *p) { argument(p) { frees; } }"),
    ("last", "last(void) { return_value { string; owned_until(use); } }"),
    ("data", "data(thing t, void **out) { argument(out) { out; element { resident(8); owned(t); } } }"),
    ("use", "use(thing t, thing other) { argument(t) { uses; shares(other, 1); } argument(other) { uses_read; } }"),
    ("many", "many(size n, thing *all) { argument(all) { out; buffer(n); element { allocate; } } }"),
];

fn told(name: &str, function: &str, text: &str) -> Option<String> {
    let described = DESCRIBED.iter().map(|(name, own)| if *name == function { text } else { own });
    let all: Vec<&str> = ["#support <stdlib.h>", "type(int) { success(0); failure(1); lost(2); }"]
        .into_iter()
        .chain(described)
        .collect();
    let all = all.join("\n").replace("size ", "unsigned long ");
    Folder::new(&format!("memory-{name}"), HEADER, &all).load().err().map(|e| e.to_string())
}

#[test]
fn memory_is_described_where_it_comes_and_goes() {
    assert_eq!(told("good", "", ""), None);
    for free in ["free", "getenv"] {
        let text =
            format!("name(thing t, char **out) {{ argument(out) {{ out; element {{ string; freed_by({free}); }} }} }}");
        assert_eq!(told(free, "name", &text), None);
    }
    let cases = [
        ("end", "end(thing t) { argument(t) { uses; deallocate; } }", "a call cannot use memory through this handle"),
        (
            "name",
            "name(thing t, char **out) { argument(out) { out; element { string; freed_by(use); } } }",
            "`use` frees nothing",
        ),
        (
            "name",
            "name(thing t, char **out) { argument(out) { out; element { string; freed_by(free, give); } } }",
            "`free` cannot free this",
        ),
        (
            "name",
            "name(thing t, char **out) { argument(out) { out; element { string; freed_by(abs); } } }",
            "`abs` cannot free this",
        ),
        (
            "name",
            "name(thing t, char **out) { argument(out) { out; element { string; freed_by(none); } } }",
            "`none` frees nothing",
        ),
        (
            "name",
            "name(thing t, char **out) { cache; argument(out) { out; element { string; freed_by(give); } } }",
            "cannot come from a remembered answer",
        ),
        (
            "name",
            "name(thing t, char **out) { argument(out) { out; element { string; owned(out); } } }",
            "memory is owned by a handle",
        ),
        (
            "give",
            "give(void *p) { argument(p) { in; buffer(3); freed_by(give); } }",
            "no memory that the library hands out",
        ),
        ("last", "last(void) { return_value { string; owned_until(none); } }", "`none` is no function of the API"),
        (
            "last",
            "last(void) { on_behalf_of(none); return_value { string; } }",
            "`none` is no other function of the API",
        ),
        (
            "last",
            "last(void) { on_behalf_of(last); return_value { string; } }",
            "`last` is no other function of the API",
        ),
        (
            "data",
            "data(thing t, void **out) { argument(out) { out; element { resident(8); } } }",
            "whose memory is this?",
        ),
        (
            "data",
            "data(thing t, void **out) { argument(out) { in; out; element { resident(8); owned(t); } } }",
            "`resident` cannot stand",
        ),
        (
            "make",
            "make(void *p, size n, thing *t) { async; argument(p) { buffer(n); bound(*t); } argument(t) { out; element { allocate; } } }",
            "this cannot be bound to an object",
        ),
        (
            "use",
            "use(thing t, thing other) { async; argument(t) { uses; } }",
            "a call cannot use memory through this handle",
        ),
        ("use", "use(thing t, thing other) { argument(t) { uses; uses_read; } }", "contradicts"),
        (
            "many",
            "many(size n, thing *all) { argument(all) { out; buffer(n); element { allocate; shares(n); } } }",
            "memory is shared with a handle",
        ),
    ];
    for (n, (function, text, expected)) in cases.into_iter().enumerate() {
        let message = told(&n.to_string(), function, text).expect(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_shape_is_a_table_that_follows_the_vendors() {
    let shaped = |tables: &str| {
        let text = format!(
            "type(int) {{ success(0); failure(1); lost(2); }} type(struct pool *) {{ handle; shaped(pool); }}\n\
             {tables} find(void) {{ }}"
        );
        Folder::new("memory-shape", HEADER, &text).load().err().map(|e| e.to_string())
    };
    let found = "utility(server) { const void *any(void) { return 0; } } table(struct pool) pool from any();";
    assert_eq!(shaped(found), None);
    assert!(
        shaped("table(struct pool) pool;").is_some_and(|m| m.contains("no table `pool` that follows the vendor's"))
    );
    assert!(shaped("").is_some_and(|m| m.contains("no table `pool` that follows the vendor's")));
}
