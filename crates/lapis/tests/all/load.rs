//! `load` on whole specifications.

use aviary_lapis::model::{Count, ErrorPlace, ExprKind, Function, Kind, Plan, Rule, Support, TypeKind};
use aviary_lapis::{Diagnostics, Loaded, Options, load};
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn loaded(name: &str) -> Loaded {
    load(&path(name), &Options::default()).unwrap_or_else(|d| panic!("{d}"))
}

fn mistakes(name: &str, options: &Options) -> Diagnostics {
    load(&path(name), options).err().unwrap_or_else(|| panic!("{name} has no mistakes"))
}

/// Diagnostics without the folder that the tests run in.
fn text(diagnostics: &Diagnostics) -> String {
    diagnostics
        .to_string()
        .replace(&format!("{}/", path("").display()), "")
        .replace(&format!("{}", path("").display()), "")
}

fn function<'a>(loaded: &'a Loaded, name: &str) -> &'a Function {
    loaded.model.functions.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("no function {name}"))
}

fn plan(rule: &Rule) -> &Plan {
    match rule {
        Rule::Plan(plan) => plan,
        Rule::If { .. } => panic!("a condition: {rule:?}"),
    }
}

#[test]
fn small_api() {
    let loaded = loaded("small.lapis");
    let model = &loaded.model;
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(model.api.soname, "libsmall.so.1");
    // The header's functions and none of those that it includes, under the names of their symbols.
    let names: Vec<&str> = model.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "sm_open_v2",
            "sm_close",
            "sm_create",
            "sm_destroy",
            "sm_write",
            "sm_read",
            "sm_run",
            "sm_listen",
            "sm_find",
            "sm_hint",
            "sm_printf",
            "sm_undescribed"
        ]
    );
    // Declared handle types first, then those that are handles by default.
    let handles: Vec<&str> = model.handle_types.iter().map(|h| h.name.as_str()).collect();
    assert_eq!(handles, ["sm_buffer", "sm_device"]);
    let error = model.error.as_ref().expect("an error type");
    assert_eq!(error.failure.as_ref().map(|e| &e.kind), Some(&ExprKind::Int(-1)));
    assert_eq!(error.lost.as_ref().map(|e| &e.kind), Some(&ExprKind::Int(-2)));
}

#[test]
fn functions_without_a_description_are_unsupported() {
    let loaded = loaded("small.lapis");
    assert_eq!(function(&loaded, "sm_undescribed").support, Support::Unsupported);
    assert_eq!(function(&loaded, "sm_printf").support, Support::Unsupported);
    assert_eq!(function(&loaded, "sm_close").support, Support::Remote);
}

#[test]
fn errors_are_found_where_they_are_reported() {
    let loaded = loaded("small.lapis");
    assert_eq!(function(&loaded, "sm_close").error, ErrorPlace::Return);
    assert_eq!(function(&loaded, "sm_hint").error, ErrorPlace::Nowhere);
    let find = function(&loaded, "sm_find");
    assert_eq!(find.error, ErrorPlace::Parameter(1));
    // The error argument needs no description.
    let error = plan(&find.arguments[1]);
    assert!(error.output && !error.input && matches!(error.kind, Kind::Buffer(_)));
    assert!(matches!(plan(&find.result).kind, Kind::Handle { handle: 0, .. }));
}

#[test]
fn buffers_and_conditions() {
    let loaded = loaded("small.lapis");
    let read = function(&loaded, "sm_read");
    let Rule::If { condition, then, otherwise } = &read.arguments[1] else { panic!("no condition") };
    assert!(matches!(&condition.kind, ExprKind::Call(..)));
    for (rule, returned) in [(then, true), (otherwise, false)] {
        let plan = plan(rule);
        let Kind::Buffer(buffer) = &plan.kind else { panic!("not a buffer") };
        assert!(plan.output && !plan.input);
        assert!(matches!(&buffer.count, Count::Elements(e) if e.kind == ExprKind::Parameter(2)));
        assert_eq!(buffer.returned.is_some(), returned);
    }
    let write = function(&loaded, "sm_write");
    assert!(matches!(write.asynchronous.as_ref().map(|e| &e.kind), Some(ExprKind::Binary(..))));
}

#[test]
fn structs_translate_what_needs_it() {
    let loaded = loaded("small.lapis");
    let run = function(&loaded, "sm_run");
    let Kind::Buffer(buffer) = &plan(&run.arguments[1]).kind else { panic!("not a buffer") };
    let Kind::Struct { fields, .. } = &plan(&buffer.element).kind else { panic!("not a struct") };
    let found: Vec<(&str, usize)> = fields.iter().map(|(f, _)| (f.name.as_str(), f.offset)).collect();
    // `first` shares its place with `buffers[0]`: translating it twice would be once too often.
    assert_eq!(found, [("device", 0), ("values", 16), ("buffers[0]", 24), ("buffers[1]", 32)]);
    let Kind::Buffer(values) = &plan(&fields[1].1).kind else { panic!("not a buffer") };
    let Count::Elements(count) = &values.count else { panic!("no count") };
    // batches[index].count
    let ExprKind::Field(element, 8) = &count.kind else { panic!("{count:?}") };
    assert!(matches!(&element.kind, ExprKind::Element(_, index) if index.kind == ExprKind::Index(0)));
}

#[test]
fn callbacks_know_their_context() {
    let loaded = loaded("small.lapis");
    let listen = function(&loaded, "sm_listen");
    let Kind::Callback(callback) = &plan(&listen.arguments[1]).kind else { panic!("not a callback") };
    assert!(callback.once);
    assert_eq!((callback.userdata, callback.userdata_argument), (Some(2), Some(2)));
    assert_eq!(callback.parameters, ["buffer", "status", "context"]);
    assert!(matches!(plan(&callback.arguments[0]).kind, Kind::Handle { handle: 0, .. }));
    assert!(matches!(&callback.signature.result.kind, TypeKind::Void));
}

#[test]
fn ten_mistakes_in_one_run() {
    let diagnostics = mistakes("mistakes.lapis", &Options::default());
    insta::assert_snapshot!(text(&diagnostics));
    assert!(diagnostics.errors().count() >= 10);
}

fn cuda() -> Options {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cache/cuda-headers/cuda.h");
    assert!(header.exists(), "cuda.h is missing: run crates/lapis/tests/fetch-cuda-header.sh");
    Options { headers: vec![header], ..Options::default() }
}

#[test]
fn figure_4_as_printed() {
    let diagnostics = mistakes("figure4-printed.lapis", &cuda());
    insta::assert_snapshot!(text(&diagnostics));
}

#[test]
fn figure_4_corrected() {
    let loaded = load(&path("figure4.lapis"), &cuda()).unwrap_or_else(|d| panic!("{d}"));
    let described: Vec<&str> =
        loaded.model.functions.iter().filter(|f| f.support == Support::Remote).map(|f| f.name.as_str()).collect();
    assert_eq!(described, ["cuMemAlloc_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuLaunchKernel"]);
    let carried = loaded.model.handle_types.iter().map(|h| h.metadata.as_ref().map(|m| (m.kind, m.ty.size())));
    assert!(carried.into_iter().all(|m| m == Some((1, 4 + 64 + 4 + 64 * 8))));
    let launch = function(&loaded, "cuLaunchKernel");
    let Kind::Buffer(parameters) = &plan(&launch.arguments[9]).kind else { panic!("not a buffer") };
    let Rule::If { then, otherwise, .. } = &parameters.element else { panic!("no condition") };
    let Kind::Buffer(handle) = &plan(then).kind else { panic!("not a buffer") };
    assert!(matches!(plan(&handle.element).kind, Kind::Handle { .. }));
    assert!(plan(then).input, "elements flow as their buffer does");
    let Kind::Buffer(bytes) = &plan(otherwise).kind else { panic!("not a buffer") };
    assert_eq!(bytes.element_type.size(), 1);
    let synchronize = function(&loaded, "cuStreamSynchronize");
    let Kind::Buffer(buffers) = &plan(&synchronize.contextual[0].rule).kind else { panic!("not a buffer") };
    let element = plan(&buffers.element);
    assert!(element.output && !element.input && element.object.deallocate);
}

#[test]
fn a_pointer_to_an_unknown_struct_is_one_handle_type_const_or_not() {
    let dir = std::env::temp_dir().join(format!("aviary-const-handle-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let header = "typedef struct thing thing;\nint thing_size(const thing *t);\nvoid thing_end(thing *t);\n";
    std::fs::write(dir.join("thing.h"), header).unwrap();
    let spec = "#include \"thing.h\"\napi(\"thing\", \"1\", \"libthing.so\");\ntype(thing *) { handle; }\n\
                thing_size(const thing *t) { }\nthing_end(thing *t) { argument(t) { deallocate; } }\n";
    std::fs::write(dir.join("thing.lapis"), spec).unwrap();
    let loaded = aviary_lapis::load(&dir.join("thing.lapis"), &aviary_lapis::Options::default());
    let provisional = aviary_lapis::init(&dir.join("thing.h"), &aviary_lapis::InitOptions::default());
    std::fs::remove_dir_all(&dir).unwrap();
    let model = loaded.unwrap_or_else(|d| panic!("{d}")).model;
    assert_eq!(model.handle_types.len(), 1);
    let provisional = provisional.unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(provisional.matches("{ handle; }").count(), 1, "{provisional}");
    assert!(!provisional.contains("placeholder("), "{provisional}");
}

/// Diagnostics of a specification with these lines, and these files beside it.
fn with_files(lines: &str, files: &[(&str, &str)]) -> Result<aviary_lapis::Loaded, String> {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("aviary-policy-file-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("thing.h"), "int thing_count(int n);\n").unwrap();
    let spec = "#include \"thing.h\"\napi(\"thing\", \"1\", \"libthing.so\");\n";
    std::fs::write(dir.join("thing.lapis"), format!("{spec}{lines}")).unwrap();
    files.iter().for_each(|(name, text)| std::fs::write(dir.join(name), text).unwrap());
    let loaded = aviary_lapis::load(&dir.join("thing.lapis"), &aviary_lapis::Options::default());
    std::fs::remove_dir_all(&dir).unwrap();
    loaded.map_err(|diagnostics| diagnostics.to_string())
}

#[test]
fn a_policy_is_compiled_and_verified() {
    let good = "#include \"aviary_policy.h\"\nint schedule(__sk_buff *skb) { return 1; }\n";
    let loaded = with_files("policy(\"p.c\");\n", &[("p.c", good)]).unwrap_or_else(|d| panic!("{d}"));
    let object = loaded.model.policy.expect("there is one").object.expect("a compiler for eBPF");
    assert!(object.starts_with(b"\x7fELF"));
    assert!(with_files("", &[]).unwrap_or_else(|d| panic!("{d}")).model.policy.is_none());
    let missing = with_files("policy(\"not_there.c\");\n", &[]).unwrap_err();
    assert!(
        missing.contains("there is no policy file `not_there.c`") && missing.contains("thing.lapis:3:8"),
        "{missing}"
    );
    let twice = with_files("policy(\"p.c\");\npolicy(\"p.c\");\n", &[("p.c", good)]).unwrap_err();
    assert!(twice.contains("a second `policy`"), "{twice}");
    let null = "#include \"aviary_policy.h\"\nmap_def m;\ns64 schedule(__sk_buff *skb) {\n\
                u32 t = 1;\n  u64 *v = map_lookup_elem(&m, &t);\n  return *v;\n}\n";
    let refused = with_files("policy(\"p.c\");\n", &[("p.c", null)]).unwrap_err();
    for part in ["the policy `p.c` is refused", "NULL", "p.c:6: return *v;", "help:", "thing.lapis:3:8"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let broken = with_files("policy(\"p.c\");\n", &[("p.c", "int schedule(")]).unwrap_err();
    assert!(broken.contains("the policy `p.c` does not compile") && broken.contains("expected"), "{broken}");
}

#[test]
fn charges_on_devices_name_their_devices() {
    let names = "utility(server) { const char *names(unsigned long place, unsigned int n) { return 0; } }\n";
    let with = |declaration: &str, charge: &str| {
        let text = format!("{names}{declaration}\nthing_count(int n) {{ {charge} }}\n");
        with_files(&text, &[]).map(|loaded| loaded.model.resources[0].devices.is_some())
    };
    let lies = "continuous_rc memory(names);";
    assert_eq!(with(lies, "allocates_rc(memory, n, 1);"), Ok(true));
    assert_eq!(with("continuous_rc memory;", "allocates_rc(memory, n);"), Ok(false));
    for (declaration, charge, expected) in [
        (lies, "allocates_rc(memory, n);", "`memory` lies on devices: on which?"),
        (lies, "deallocates_rc(memory, n);", "`memory` lies on devices: on which?"),
        ("continuous_rc memory;", "allocates_rc(memory, n, 1);", "`memory` does not lie on devices"),
        ("continuous_rc memory(nobody);", "", "`nobody` is no function of the server that names devices"),
        ("instantaneous_rc calls(names);", "", "an instantaneous resource lies nowhere"),
    ] {
        let error = with(declaration, charge).unwrap_err();
        assert!(error.contains(expected), "{declaration} {charge}: {error}");
    }
}

#[test]
fn a_local_answer_comes_before_contextual_arguments() {
    let dir = std::env::temp_dir().join(format!("aviary-local-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(path("small.h"), dir.join("small.h")).unwrap();
    let text = "#include \"small.h\"\napi(\"small\", \"1\", \"libsmall.so.1\");\ntype(sm_status) { success(SM_OK); }\n\
        sm_hint(sm_device device, int level) {\n  contextual_argument int twice = level * 2;\n\
        if (twice == 0) { local(SM_OK); }\n}\n";
    std::fs::write(dir.join("small.lapis"), text).unwrap();
    let said = load(&dir.join("small.lapis"), &Options::default()).err().map(|d| d.to_string()).unwrap_or_default();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(said.contains("a conditional `local` cannot use `twice`"), "{said}");
    assert!(!said.contains("`async`"), "{said}");
}
