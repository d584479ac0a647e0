//! `aviary spec init`: what it guesses, that a guess is never silent, and that it harms nothing; `score`.

use aviary_lapis::init::{Level, Library};
use aviary_lapis::{InitOptions, Options, Severity, init, load, score};
use std::fs;
use std::path::{Path, PathBuf};

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guesses.h")
}

fn guessed(level: Level) -> String {
    init(&header(), &InitOptions { level, ..InitOptions::default() }).unwrap_or_else(|d| panic!("{d}"))
}

/// A file of this test's own with that text.
fn written(name: &str, text: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("aviary-guesses-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a scratch folder");
    let path = folder.join(format!("{name}.lapis"));
    fs::write(&path, text).expect("written");
    path
}

/// The lines of a function's description, without its head.
fn body(text: &str, function: &str) -> String {
    let from = text.find(&format!("\n{function}(")).unwrap_or_else(|| panic!("{function} is missing:\n{text}")) + 1;
    let rest = &text[from..];
    let head = rest.find('\n').unwrap_or(rest.len());
    if rest[..head].ends_with('}') {
        return rest[..head].to_string();
    }
    rest[head + 1..].split("\n}").next().unwrap_or_default().to_string()
}

#[test]
fn guesses_of_a_header_with_everything() {
    let path = header().canonicalize().expect("a path").display().to_string();
    insta::assert_snapshot!(guessed(Level::Guesses).replace(&path, "guesses.h"));
}

#[test]
fn likely_answers_stand_beside_the_placeholders_as_comments() {
    let text = guessed(Level::Comments);
    assert!(!text.contains("guess("), "{text}");
    let body = body(&text, "gs_object_create");
    assert!(body.contains("// probably: out; element { allocate; }"), "{body}");
    assert!(body.contains("argument(object) { placeholder("), "{body}");
}

#[test]
fn guess_is_a_warning_with_its_reason() {
    let text = "#include <stdint.h>\napi(\"x\", \"1\", \"libx.so\");\n";
    let own = written("header", "");
    let small = own.with_file_name("x.h");
    fs::write(&small, "int x_get(int *value);\n").expect("written");
    let text = format!(
        "#include \"{}\"\n{text}x_get(int *value) {{ argument(value) {{ guess(\"number-out: it asks\") {{ out; }} }} }}\n",
        small.display()
    );
    let loaded = load(&written("warned", &text), &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    let guesses: Vec<_> = loaded.warnings.iter().filter(|w| w.guess).collect();
    assert_eq!(guesses.len(), 1);
    assert!(guesses[0].message.contains("number-out: it asks"), "{}", guesses[0].message);
    assert_eq!(guesses[0].severity, Severity::Warning);
}

#[test]
fn no_function_that_ends_something_has_an_empty_body() {
    for level in [Level::Comments, Level::Guesses] {
        let text = guessed(level);
        for function in ["gs_object_destroy", "gs_item_free", "gs_text_free", "gs_api.close"] {
            let body = body(&text, function);
            assert!(body.contains("deallocate;") || body.contains("placeholder("), "{function}: {body}");
            assert!(!body.contains("string;"), "a copy would be freed: {function}: {body}");
        }
        let name = body(&text, "gs_item_name");
        assert!(name.contains("who owns the string?") && !name.contains("{ string;"), "{name}");
    }
}

#[test]
fn text_with_a_length_is_no_string() {
    let text = guessed(Level::Comments);
    let body = body(&text, "gs_text");
    assert!(!body.contains("in; string;") && body.contains("placeholder("), "{body}");
}

#[test]
fn pointers_that_stand_for_a_place_are_asked_about() {
    for level in [Level::Comments, Level::Guesses] {
        let body = body(&guessed(level), "gs_advise");
        assert!(body.contains("placeholder(") && !body.contains("guess("), "{body}");
    }
}

#[test]
fn tables_that_the_library_fills_are_functions() {
    let text = guessed(Level::Comments);
    assert!(text.contains("table(struct gs_api) gs_api;"), "{text}");
    assert!(!text.contains("table(struct gs_allocator)"), "{text}");
    for member in ["gs_api.open", "gs_api.close", "gs_api.flush", "gs_api.level", "gs_api.read"] {
        assert!(text.contains(&format!("\n{member}(")), "{member}: {text}");
    }
    assert!(text.contains("gs_shutdown(void) { }") && text.contains("gs_api.flush(void) { }"), "{text}");
}

#[test]
fn error_type_is_the_one_that_functions_return() {
    assert!(guessed(Level::Comments).contains("type(gs_status) { success(GS_OK); }"));
}

#[test]
fn library_says_its_soname_and_what_it_exports() {
    let exported = ["gs_object_create", "gs_object_destroy"].map(String::from).to_vec();
    let library = Library { file: "libgs.so".into(), soname: Some("libgs.so.7".into()), exported };
    let options = InitOptions { library: Some(library), ..InitOptions::default() };
    let text = init(&header(), &options).unwrap_or_else(|d| panic!("{d}"));
    assert!(text.contains("\"libgs.so.7\""), "{text}");
    assert!(text.contains("// libgs.so does not export: ") && !text.contains("\ngs_write("), "{text}");
}

#[test]
fn score_counts_what_is_right_by_rule() {
    let small = written("header", "").with_file_name("y.h");
    fs::write(&small, "int y_get(int *value, int n, int *list);\nint y_set(const char *name);\n").expect("written");
    let head = format!("#include \"{}\"\napi(\"y\", \"1\", \"liby.so\");\n", small.display());
    let first = format!(
        "{head}y_get(int *value, int n, int *list) {{\n  argument(value) {{ guess(\"a: x\") {{ out; }} }}\n  \
         argument(list) {{ guess(\"b: x\") {{ out; buffer(n); }} }}\n}}\ny_set(const char *name) {{ argument(name) {{ in; string; }} }}\n"
    );
    // The names of parameters differ, and one buffer is another one.
    let last = format!(
        "{head}y_get(int *v, int count, int *l) {{\n  argument(v) {{ out; }}\n  argument(l) {{ out; buffer(count + 1); }}\n}}\n\
         y_set(const char *name) {{ argument(name) {{ in; string; }} }}\n"
    );
    let result = score(&written("first", &first), &written("last", &last), &Options::default())
        .unwrap_or_else(|d| panic!("{d}"));
    assert_eq!((result.total().right, result.total().wrong), (4, 1), "{result}");
    assert_eq!((result.found, result.expected), (4, 5), "{result}");
    assert_eq!(result.rules["a"].right, 1);
    assert_eq!((result.rules["b"].right, result.rules["b"].wrong), (1, 1));
    assert_eq!(result.mistakes.len(), 1);
}
