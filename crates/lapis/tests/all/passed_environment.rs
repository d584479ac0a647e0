//! `pass_environment(...)`: what it says, and the mistakes in it.

use aviary_lapis::{Options, load};
use std::path::{Path, PathBuf};

/// A specification of the small test API with `text` at its end.
fn with(name: &str, text: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let folder = std::env::temp_dir().join(format!("aviary-lapis-environment-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("spec.lapis");
    std::fs::write(&path, format!("import \"{}\";\n{text}\n", tests.join("small.lapis").display())).expect("a file");
    path
}

#[test]
fn names_of_several_items_add_up_and_count_once() {
    let path = with("sum", r#"pass_environment("A", "B_1"); pass_environment("B_1", "_C");"#);
    let loaded = load(&path, &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(loaded.model.passed_variables, ["A", "B_1", "_C"]);
    std::fs::remove_dir_all(path.parent().expect("a folder")).expect("removed");
}

#[test]
fn names_that_choose_code_and_names_that_are_none_are_mistakes() {
    let many: Vec<String> = (0..65).map(|n| format!("\"V{n}\"")).collect();
    for (name, names, told) in [
        ("loader", r#""LD_PRELOAD""#, "chooses code"),
        ("own", r#""AVIARY_SERVER""#, "chooses code"),
        ("path", r#""PATH""#, "chooses code"),
        ("star", r#""POCL_*""#, "no name of a variable"),
        ("value", r#""A=B""#, "no name of a variable"),
        ("digit", r#""1A""#, "no name of a variable"),
        ("nothing", r#""""#, "no name of a variable"),
        ("many", many.join(", ").as_str(), "at most 64"),
    ] {
        let path = with(name, &format!("pass_environment({names});"));
        let text = load(&path, &Options::default()).err().map(|d| d.to_string()).unwrap_or_default();
        assert!(text.contains(told), "{name}: {text}");
        std::fs::remove_dir_all(path.parent().expect("a folder")).expect("removed");
    }
}
