use super::*;
use crate::header::unit::Unit;
use crate::model::{Access, Kind};
use crate::syntax::parser::parse;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::OnceLock;

const HEADER: &str = include_str!("../../tests/small.h");
const SPEC: &str = include_str!("../../tests/small.lapis");
const CODE: &str = "int both(int x) { return x; } static int hidden = 1;";

/// The header of the tests and its utility code, read once.
fn headers() -> &'static (Header, Header) {
    static HEADERS: OnceLock<(Header, Header)> = OnceLock::new();
    HEADERS.get_or_init(|| {
        let read = |text: &str| {
            let mut unit = Unit::new(PathBuf::from("test.c"), &[], &[]);
            unit.push(text, None);
            Header::parse(&unit).unwrap_or_else(|e| panic!("{e}"))
        };
        (read(HEADER), read(CODE))
    })
}

/// Diagnostics of resolution for a specification of the small API.
fn resolved(text: &str) -> (Model, Vec<Diagnostic>) {
    let (header, utilities) = headers();
    let mut sources = SourceFiles::default();
    let file = sources.add("test.lapis".into(), text.to_string());
    let parsed = parse(file, text, &|n| header.named_type(n).is_some());
    let functions = header.functions.iter().filter(|f| f.name.starts_with("sm_")).collect();
    let input =
        Input { items: &parsed.items, sources: &sources, header, functions, guest: utilities, server: utilities };
    let (model, mut diagnostics) = resolve(&input, Model::default());
    diagnostics.extend(parsed.diagnostics);
    for diagnostic in &diagnostics {
        assert!(!diagnostic.render(&sources).is_empty());
    }
    (model, diagnostics)
}

fn constant(text: &str) -> Option<i128> {
    let spec = format!("sm_hint(sm_device device, int level) {{ lost({text}); }}");
    let (model, diagnostics) = resolved(&spec);
    let hint = model.functions.iter().find(|f| f.name == "sm_hint")?;
    assert!(diagnostics.is_empty() || hint.lost.is_none());
    super::terms::constants::value(hint.lost.as_ref()?)
}

fn message(text: &str) -> String {
    let (_, diagnostics) = resolved(text);
    diagnostics.first().map(|d| format!("{} | {}", d.message, d.help.join(" "))).unwrap_or_default()
}

#[test]
fn constants_of_the_header() {
    assert_eq!(constant("SM_REFUSED"), Some(-1));
    assert_eq!(constant("SM_GONE"), Some(-2));
    assert_eq!(constant("SM_FLAG"), Some(16));
    assert_eq!(constant("SM_FLAG | SM_BIT"), None);
    assert_eq!(constant("sizeof(sm_batch)"), Some(40));
    assert_eq!(constant("(unsigned char)-1 + 'a'"), Some(352));
    assert_eq!(constant("SM_OK ? 1 : 2"), Some(2));
    assert_eq!(constant("1 << 500"), None);
}

#[test]
fn asynchronous_calls_create_handles_only_where_the_guest_can_name_them() {
    let spec = "type(sm_status) { success(SM_OK); } error_argument(error); type(sm_device) { handle; } type(sm_buffer) { handle; } type(int) { handle; }
        sm_destroy(sm_buffer buffer) { argument(buffer) { deallocate; } }";
    let create = |body: &str| {
        message(&format!(
            "{spec} sm_create(sm_device device, size_t bytes, sm_buffer *buffer) {{ async; argument(buffer) {{ {body} }} }}"
        ))
    };
    let output = "`sm_create` is asynchronous but this is an output";
    assert_eq!(create("out; element { allocate; }"), "");
    assert_eq!(create("out; buffer(bytes); element { allocate; }"), "");
    assert_eq!(create("if (bytes) { out; element { allocate; } } else { null; }"), "");
    assert!(create("out;").starts_with(output), "it may name any object");
    assert!(create("in; out; element { allocate; }").starts_with(output));
    assert!(create("out; buffer(bytes); returned(1); element { allocate; }").starts_with(output));
    assert!(create("out; element { if (bytes) { allocate; } }").starts_with(output));
    let find =
        "sm_find(sm_device device, sm_status *error) { async; argument(error) { out; } return_value { allocate; } }";
    assert_eq!(message(&format!("{spec} {find}")), "");
    let short = "sm_undescribed(void) { async; return_value { allocate; } }";
    assert_eq!(
        message(&format!("{spec} {short}")),
        "`sm_undescribed` is asynchronous but creates a `int` | make the call synchronous"
    );
}

#[test]
fn handles_end_with_others_where_a_call_hands_them_out() {
    let spec = "type(sm_status) { success(SM_OK); } error_argument(error); type(sm_device) { handle; } type(sm_buffer) { handle; }";
    let create = |body: &str| {
        message(&format!(
            "{spec} sm_create(sm_device device, size_t bytes, sm_buffer *buffer) {{ argument(buffer) {{ {body} }} }}"
        ))
    };
    assert_eq!(create("out; element { ends_with(device); }"), "");
    assert_eq!(create("out; element { allocate; ends_with(device); }"), "", "nothing else has to end it");
    assert!(create("out; element { allocate; }").contains("never deallocated"));
    assert!(create("out; element { ends_with(bytes); }").starts_with("a handle ends with another handle"));
    assert!(create("out; element { ends_with(*buffer); }").starts_with("`ends_with` cannot read `buffer`"));
    assert!(create("in; element { ends_with(device); }").starts_with("`ends_with` on a handle that is passed in"));
    let destroy = "sm_destroy(sm_buffer buffer) { argument(buffer) { ends_with(buffer); } }";
    assert!(message(&format!("{spec} {destroy}")).starts_with("`ends_with` on a handle that is passed in"));
    let scale = "sm_create(sm_device device, size_t bytes, sm_buffer *buffer) { argument(bytes) { ends_with(device); } argument(buffer) { out; } }";
    assert!(message(&format!("{spec} {scale}")).starts_with("`ends_with` says nothing here"));
}

#[test]
fn objects_are_set_on_handles_that_are_passed_in() {
    let spec = "type(sm_status) { success(SM_OK); } type(sm_device) { handle; } type(sm_buffer) { handle; }";
    let pass =
        |buffer: &str| message(&format!("{spec} sm_destroy(sm_buffer buffer) {{ argument(buffer) {{ {buffer} }} }}"));
    assert_eq!(pass("refers(1);"), "");
    assert_eq!(pass("through(SM_OK);"), "");
    assert!(pass("refers(1); through(SM_OK);").starts_with("`through` contradicts `refers`"));
    assert!(pass("refers(1); deallocate;").starts_with("`refers` cannot stand here"));
    assert!(pass("refers_as(buffer);").starts_with("`refers_as` cannot stand here"));
    let create = |element: &str| {
        message(&format!(
            "{spec} sm_create(sm_device device, size_t bytes, sm_buffer *buffer) {{ argument(buffer) {{ out; element {{ allocate; ends_with(device); {element} }} }} }}"
        ))
    };
    assert_eq!(create("refers_as(device);"), "");
    assert!(create("refers_as(bytes);").starts_with("`refers_as` names another handle"));
    assert!(create("refers(1);").starts_with("`refers` cannot stand here"));
    assert!(create("through(SM_OK);").starts_with("`through` cannot stand here"));
}

/// Four words, one form. What an application does with mapped memory is no use of a handle.
#[test]
fn access_has_one_form_whatever_word_says_so() {
    let access = |descriptors: &str| {
        let (model, diagnostics) = resolved(&format!(
            "sm_find(sm_device device, sm_status *error) {{ argument(error) {{ out; buffer(1); }} {descriptors} }}"
        ));
        assert!(diagnostics.is_empty(), "{descriptors}: {diagnostics:?}");
        let find = model.functions.iter().find(|f| f.name == "sm_find").unwrap();
        let form = |access: &Access| [&access.read, &access.write].map(|when| format!("{when:?}")[..2].to_owned());
        let (mut used, mut mapped) = (None, None);
        find.each_plan(&mut |plan| match &plan.kind {
            Kind::Mapped(memory) => {
                assert_eq!(form(&plan.object.memory.used), ["Ne", "Ne"]);
                mapped = Some(form(&memory.access));
            }
            Kind::Handle { .. } if plan.input => used = Some(form(&plan.object.memory.used)),
            _ => {}
        });
        mapped.or(used).unwrap()
    };
    assert_eq!(access(""), ["Ne", "Ne"]);
    assert_eq!(access("argument(device) { uses; }"), ["Al", "Al"]);
    assert_eq!(access("argument(device) { uses_read; }"), ["Al", "Ne"]);
    assert_eq!(access("return_value { mapped(16); }"), ["Al", "Al"]);
    assert_eq!(access("return_value { mapped(16); mapped_write(device != 0); }"), ["Al", "If"]);
    assert_eq!(access("return_value { mapped(16); mapped_read(device != 0); }"), ["If", "Al"]);
}

#[test]
fn predefined_handles_are_small_constants() {
    let predefined = |v: &str| message(&format!("type(sm_device) {{ handle; predefined({v}); }}"));
    assert_eq!(predefined("1); predefined((sm_device)0xffff"), "");
    let wrong = "a predefined handle is a small constant | larger values cannot be told from the ids of objects; NULL needs no description";
    for v in ["0", "-1", "0x10000", "sizeof(sm_batch) * 4096"] {
        assert_eq!(predefined(v), wrong, "{v}");
    }
    assert_eq!(message("type(sm_status) { predefined(1); }"), "`predefined` without `handle` | ");
    let (model, _) = resolved("type(sm_device) { handle; predefined(2); predefined((sm_device)0x1); predefined(2); }");
    let device = model.handle_types.iter().find(|h| h.name == "sm_device").unwrap();
    assert_eq!(device.predefined, [2, 1]);
}

#[test]
fn mistakes_in_expressions() {
    let require = |e: &str| message(&format!("sm_hint(sm_device device, int level) {{ require({e}, 1); }}"));
    assert_eq!(require("levle > 0"), "unknown name `levle` | did you mean `level`?");
    assert_eq!(require("both(level, 1)"), "`both` takes 1 argument, found 2 | ");
    assert_eq!(require("bth(level)"), "unknown function `bth` | did you mean `both`?");
    assert_eq!(
        require("device + 1"),
        "arithmetic with a pointer | an address means nothing on the other side; use `p[i]` to read an element"
    );
    assert_eq!(require("*device"), "cannot read through `sm_device` | cast it first: `((type *)p)[i]`");
    assert_eq!(
        require("index < 1"),
        "`index` outside `element` | `index` is the number of the element that an enclosing `element { }` describes"
    );
    assert_eq!(
        require("hidden"),
        "`hidden` is a variable of utility code | write a `utility` function that returns it"
    );
    assert_eq!(require("(sm_thing)level"), "unknown type `sm_thing` | ");
    assert_eq!(require("metadata(device)->x"), "no metadata is declared | add `declare_metadata(struct ...);`");
    assert_eq!(require("ret == 0"), "`ret` has no value here | ");
    assert!(require("relaxed").starts_with("`require` cannot use `relaxed` | use it in the condition of `async`"));
    assert_eq!(
        require("is_handle(device)"),
        "`require` cannot use `is_handle` | transport its value: `contextual_argument T name = ...;`"
    );
}

#[test]
fn pairs_that_do_not_match() {
    let manual = "sm_read(sm_buffer buffer, void *to, size_t bytes, size_t *done) {
        argument(to) { no_copy; buffer(bytes); lifetime_manual; } argument(done) { out; } }";
    assert!(message(manual).starts_with("this buffer is never deallocated"), "{}", message(manual));
    let asynchronous = "sm_read(sm_buffer buffer, void *to, size_t bytes, size_t *done) {
        async; argument(to) { null; } argument(done) { out; } }";
    assert!(message(asynchronous).starts_with("`sm_read` is asynchronous but this is an output"));
    let account = "continuous_rc memory; sm_hint(sm_device device, int level) { allocates_rc(memory, level); }";
    assert!(message(account).starts_with("`memory` is never returned"));
}

#[test]
fn conditions_are_folded_once() {
    let text = "sm_write(sm_buffer buffer, const void *from, size_t bytes) {
        if (bytes > 8) { async; }
        if (bytes > 8) { argument(from) { in; } } else { argument(from) { in; out; } }
        argument(from) { if (bytes > 8) { buffer(bytes); } else { buffer(8); } if (SM_OK) { string; } }
    }";
    let (model, diagnostics) = resolved(text);
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    let write = model.functions.iter().find(|f| f.name == "sm_write").expect("a function");
    let crate::model::Rule::If { then, otherwise, .. } = &write.arguments[1] else { panic!("no condition") };
    let (crate::model::Rule::Plan(then), crate::model::Rule::Plan(otherwise)) = (then.as_ref(), otherwise.as_ref())
    else {
        panic!("the same condition twice")
    };
    assert!(!then.output && otherwise.output);
}

#[test]
fn too_many_conditions_are_a_mistake() {
    let conditions: String = (0..40).map(|n| format!("if (bytes > {n}) {{ in; }} ")).collect();
    let text = format!(
        "sm_write(sm_buffer buffer, const void *from, size_t bytes) {{ argument(from) {{ buffer(bytes); {conditions} }} }}"
    );
    assert!(message(&text).starts_with("too many conditions"), "{}", message(&text));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A specification that somebody is still typing never makes the compiler fall over.
    #[test]
    fn damaged_specifications_get_messages(cut in 0..SPEC.len(), length in 0..200usize, insert in "[a-z_(){};*,&>0-9\\-]{0,8}") {
        let mut text = SPEC.to_string();
        let end = (cut + length).min(text.len());
        text.replace_range(cut..end, &insert);
        resolved(&text);
    }

    /// Words exchanged for other words of the same specification keep the grammar and lose the sense.
    #[test]
    fn shuffled_specifications_get_messages(swaps in proptest::collection::vec((0..10_000usize, 0..10_000usize), 1..20)) {
        let mut lexemes: Vec<&str> = crate::syntax::lexer::lex(0, SPEC).iter().map(|l| &SPEC[l.span.start as usize..l.span.end as usize]).collect();
        let names: Vec<usize> = (0..lexemes.len()).filter(|&n| lexemes[n].chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).collect();
        for (a, b) in swaps {
            lexemes.swap(names[a % names.len()], names[b % names.len()]);
        }
        resolved(&lexemes.join(" ").replace("\"small.h\"", "\"small.h\"\n"));
    }
}

#[test]
fn descriptors_without_effect_are_mistakes() {
    let write = |d: &str| {
        message(&format!("sm_write(sm_buffer buffer, const void *from, size_t bytes) {{ argument(from) {{ {d} }} }}"))
    };
    assert_eq!(write("null; buffer(bytes);"), "`buffer` says nothing here: argument `from` is always NULL | ");
    assert_eq!(write("in; buffer(bytes); once;"), "`once` says nothing here: argument `from` is a buffer | ");
    assert!(write("in;").starts_with("the size of argument `from` is unknown"));
    assert!(write("buffer(bytes);").starts_with("argument `from` is a pointer without a description"));
    assert!(write("in; buffer(-1);").starts_with("`buffer` cannot be negative"));
    assert!(write("in; buffer(from);").starts_with("`buffer` needs a number"));
    assert!(write("in; string;").starts_with("`const void *` is not a string"));
    assert_eq!(write("in; string; type_cast(const char *);"), "");
}

/// Complaints about a specification whose functions and utility code say how state moves.
#[test]
fn wrong_uses_of_state_are_mistakes() {
    let device = |body: &str| message(&format!("sm_hint(sm_device device, int level) {{ {body} }}"));
    for (body, expected) in [
        ("argument(level) { obj_record; }", "`obj_record` is about objects, and argument `level` is no handle"),
        ("argument(device) { obj_record(device); }", "a key is a number"),
        ("argument(device) { obj_record; obj_depends_on(level); }", "an object depends on other objects"),
        (
            "argument(device) { obj_record; obj_state_cbs(both, both); }",
            "`both` has other parameters, or another result",
        ),
        ("argument(device) { obj_record; obj_state_cbs(bot, both); }", "`obj_state_cbs` needs a utility function here"),
        ("session_record(device);", "a key is a number"),
        ("thread_record(nothing);", "unknown name `nothing`"),
        ("current_record;", "`current_record` without objects that are current on threads"),
        ("same(device);", "what must stay the same is a number or an address"),
        ("stateless(level);", "only objects have a state of their own"),
        ("stateless(device);", "no object of type `sm_device` has a state that is saved"),
        ("if (level) { stateless; }", "`stateless` cannot be conditional"),
        ("blocker(3);", "why can it not be moved?"),
    ] {
        let told = device(body);
        assert!(told.starts_with(expected), "{body}: {told}");
    }
    for (text, expected) in [
        ("type(sm_device) { handle; identity(both); }", "`both` has other parameters, or another result"),
        ("type(sm_device) { handle; remade(both, both, both); }", "`both` has other parameters, or another result"),
        ("type(sm_device) { handle; remade(both, gone, both); }", "`both` has other parameters, or another result"),
        ("type(sm_device) { handle; evictable(both, both, both); }", "`both` has other parameters, or another result"),
        ("type(sm_device) { handle; evictable(both, gone, both); }", "`both` has other parameters, or another result"),
        ("type(sm_device) { handle; dropped(both); }", "nothing says how the content of these objects leaves"),
        ("type(sm_device) { handle; current(both, both); }", "`both` has other parameters, or another result"),
        ("stays(both);", "`both` has other parameters, or another result"),
        ("contents(both);", "`both` has other parameters, or another result"),
        ("quiesce(both);", "`both` has other parameters, or another result"),
        ("session_state_cbs(both, both);", "`both` has other parameters, or another result"),
        ("stateless(sm_hints);", "`sm_hints` is no function of this API"),
    ] {
        let told = message(text);
        assert!(told.starts_with(expected), "{text}: {told}");
    }
}
