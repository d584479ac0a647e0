//! `init`, `coverage` and `diff`.

use aviary_lapis::coverage::State;
use aviary_lapis::init::Level;
use aviary_lapis::{InitOptions, Options, coverage, diff, init, load};
use std::fs;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// A folder of this test's own.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("aviary-lapis-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a scratch folder");
    folder
}

/// Checks a provisional specification: its mistakes are its placeholders and nothing else.
fn only_placeholders(name: &str, header: &Path) -> String {
    let text = init(header, &InitOptions::default()).unwrap_or_else(|d| panic!("{d}"));
    let folder = scratch(name);
    let spec = folder.join("provisional.lapis");
    fs::write(&spec, &text).expect("written");
    let result = load(&spec, &Options::default());
    fs::remove_dir_all(&folder).expect("removed");
    let diagnostics = result.err().unwrap_or_else(|| panic!("no placeholders"));
    for diagnostic in &diagnostics.list {
        assert!(diagnostic.placeholder, "{}", diagnostic.render(&diagnostics.sources));
    }
    assert_eq!(diagnostics.list.len(), text.matches("placeholder(").count());
    text
}

#[test]
fn provisional_specification_of_a_small_header() {
    let text = only_placeholders("init", &path("small.h"));
    let text = text.replace(&path("small.h").canonicalize().expect("a path").display().to_string(), "small.h");
    insta::assert_snapshot!(text);
}

#[test]
fn provisional_specification_of_opencl() {
    if !Path::new("/usr/include/CL/cl.h").exists() {
        panic!("CL/cl.h is missing: install opencl-headers");
    }
    let text = only_placeholders("opencl", Path::new("CL/cl.h"));
    assert!(text.contains("type(cl_int) { success(CL_SUCCESS); }"));
    assert!(text.contains("error_argument(errcode_ret);"));
    assert!(text.contains("type(cl_mem) { handle; }"));
}

#[test]
fn provisional_specification_of_cuda() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cache/cuda-headers/cuda.h");
    assert!(header.exists(), "cuda.h is missing: run crates/lapis/tests/fetch-cuda-header.sh");
    let text = only_placeholders("cuda", &header);
    assert!(text.contains("type(CUresult) { success(CUDA_SUCCESS); }"));
}

#[test]
fn a_header_that_does_not_exist() {
    let diagnostics = init(Path::new("no/such.h"), &InitOptions::default()).expect_err("no such header");
    assert!(diagnostics.to_string().contains("no/such.h"), "{diagnostics}");
}

#[test]
fn coverage_of_every_kind() {
    let loaded = load(&path("small.lapis"), &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    let all = coverage(&loaded.model);
    let state = |name: &str| all.iter().find(|c| c.function == name).map(|c| c.state);
    assert_eq!(state("sm_read"), Some(State::Supported));
    assert_eq!(state("sm_hint"), Some(State::Async));
    assert_eq!(state("sm_create"), Some(State::Recorded));
    assert_eq!(state("sm_undescribed"), Some(State::Unsupported));
    assert_eq!(all.len(), loaded.model.functions.len());
}

#[test]
fn differences_to_a_new_header() {
    let folder = scratch("diff");
    let new = folder.join("small.h");
    let text = fs::read_to_string(path("small.h")).expect("the header");
    let text = text
        .replace("sm_status sm_close(sm_device device);", "sm_status sm_close(sm_device device, int force);")
        .replace("int sm_undescribed(void);", "int sm_brand_new(void);")
        .replace("    size_t count;\n    const int", "    unsigned count;\n    const int")
        .replace("#define SM_REFUSED (-1)", "#define SM_REFUSED (-7)");
    fs::write(&new, text).expect("written");
    let report = diff(&path("small.lapis"), &new, &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    let same = diff(&path("small.lapis"), &path("small.h"), &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    fs::remove_dir_all(&folder).expect("removed");
    assert!(same.is_empty(), "{same}");
    insta::assert_snapshot!(report.to_string());
}

/// A guess that is wrong must not corrupt anything: what ends an object ends its handle, or asks.
#[test]
fn provisional_specifications_do_no_harm() {
    let folder = scratch("harm");
    let header = folder.join("harm.h");
    let text = "#include <stddef.h>
typedef struct g_s g_graph; typedef g_graph *g_graph_t; typedef struct o_s *g_op; typedef struct r_s *g_ref;
void g_shutdown();
void g_free(const char *text);
void g_graph_free(g_graph *graph);
void g_DeleteGraph(g_graph *const graph);
void g_graph_close(g_graph_t graph);
void g_op_delete(g_graph_t graph, g_op op);
int g_ref_retain(g_ref r);
int g_ref_release(g_ref r);
int g_op_release(g_op op);
int g_graph_get_free_bytes(g_graph_t graph, int *const unused);
const char *g_last_error(void);
int g_use(const g_graph *graph, g_op op);
int g_say(const char *text);
";
    fs::write(&header, text).expect("written");
    let text = only_placeholders("harmless", &header);
    fs::remove_dir_all(&folder).expect("removed");
    let line = |start: &str| {
        let lines: Vec<&str> = text.lines().skip_while(|l| !l.starts_with(start)).collect();
        let end = lines
            .iter()
            .position(|l| l.ends_with('}') && !l.starts_with(' '))
            .unwrap_or_else(|| panic!("{start}: {text}"));
        lines[..=end].join(" ")
    };
    assert_eq!(text.matches("{ handle; }").count(), 3, "{text}");
    assert_eq!(line("g_shutdown("), "g_shutdown(void) { }");
    assert!(line("g_free(").contains("placeholder(") && !line("g_free(").contains("string;"));
    for ends in ["g_graph_free(", "g_DeleteGraph(", "g_graph_close("] {
        assert!(line(ends).contains("argument(graph) { deallocate; }"), "{}", line(ends));
    }
    assert!(line("g_op_delete(").contains("placeholder("));
    assert!(line("g_ref_retain(").contains("{ retain; }") && line("g_ref_release(").contains("{ release; }"));
    assert!(line("g_op_release(").contains("{ deallocate; }"));
    assert!(!line("g_graph_get_free_bytes(").contains("deallocate"));
    assert!(line("g_last_error(").contains("placeholder("));
    assert!(line("g_use(").ends_with("{ }"));
    assert!(line("g_say(").contains("in; string;"));
}

/// Handles that are names for `void *`, directions as comments spell them, definitions that the header needs, and `bool`.
#[test]
fn provisional_specification_says_what_the_header_says() {
    const HEADER: &str = "#include <stdbool.h>\n#include <stddef.h>\n#ifdef H_MORE\ntypedef void *h_thing;\nh_thing h_create(int kind);\n\
        int h_destroy(h_thing thing);\nint h_set(h_thing thing, bool on);\nint h_plain(void *memory);\n\
        /** @param size [in,out] the room; what was written */\nint h_pack(h_thing thing, void *to, size_t *size);\n\
        /** @param width pointer to an integer that will receive the width */\nint h_size(h_thing thing, int *width);\n#endif\n";
    let folder = std::env::temp_dir().join(format!("aviary-init-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("h.h"), HEADER).unwrap();
    let headers = Options { defines: vec!["H_MORE".into()], ..Options::default() };
    let options = InitOptions { headers, level: Level::Guesses, library: None };
    let text = init(&folder.join("h.h"), &options).unwrap();
    for part in ["#define H_MORE 1\n", "type(h_thing) { handle; }", "argument(memory) { placeholder"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let size = text.lines().find(|line| line.contains("argument(size)")).unwrap();
    assert!(size.contains("in; out;"), "{size}");
    let width = text.lines().find(|line| line.contains("argument(width)")).unwrap();
    assert!(width.contains("{ out; }"), "{width}");
    let finished = "#define H_MORE\n#include \"h.h\"\napi(\"h\", \"0\", \"libh.so\");\ntype(h_thing) { handle; }\n\
        h_set(h_thing thing, bool on) { }\n";
    std::fs::write(folder.join("h.lapis"), finished).unwrap();
    let loaded = load(&folder.join("h.lapis"), &Options::default());
    let told = loaded.err().map(|wrong| wrong.to_string()).unwrap_or_default();
    assert!(!told.contains("bool"), "{told}");
    let _ = std::fs::remove_dir_all(&folder);
}
