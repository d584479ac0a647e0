//! `sandbox` blocks: what they say, and the mistakes in them.

use aviary_lapis::{Options, load};
use std::path::{Path, PathBuf};

/// A specification of the small test API with `text` at its end.
fn with(name: &str, text: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let folder = std::env::temp_dir().join(format!("aviary-lapis-sandbox-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("spec.lapis");
    let small = tests.join("small.lapis");
    std::fs::write(&path, format!("import \"{}\";\n{text}\n", small.display())).expect("a file");
    path
}

fn mistakes(name: &str, rule: &str) -> String {
    let path = with(name, &format!("sandbox {{ {rule} }}"));
    let text = load(&path, &Options::default()).err().map(|d| d.to_string());
    std::fs::remove_dir_all(path.parent().expect("a folder")).expect("removed");
    text.unwrap_or_else(|| panic!("no mistake: {rule}"))
}

#[test]
fn blocks_add_up() {
    let path = with(
        "sum",
        r#"sandbox { read("/etc/a", "/etc/b"); device("/dev/a*"); ioctl("F", "1-80"); }
           sandbox { syscalls("flock"); syscalls("mkdirat", "mkdir"); }"#,
    );
    let loaded = load(&path, &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    let sandbox = loaded.model.sandbox.expect("a block");
    assert_eq!(sandbox.read, ["/etc/a", "/etc/b"]);
    assert_eq!(sandbox.devices, ["/dev/a*"]);
    assert_eq!(sandbox.system_calls, ["flock", "mkdirat", "mkdir"]);
    assert_eq!(sandbox.ioctls, ["F", "1-80"]);
    std::fs::remove_dir_all(path.parent().expect("a folder")).expect("removed");
}

#[test]
fn specification_without_a_block_says_nothing_and_an_empty_one_does() {
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small.lapis");
    assert_eq!(load(&small, &Options::default()).expect("a specification").model.sandbox, None);
    let path = with("empty", "sandbox { }");
    let loaded = load(&path, &Options::default()).expect("a specification");
    assert_eq!(loaded.model.sandbox, Some(Default::default()));
    std::fs::remove_dir_all(path.parent().expect("a folder")).expect("removed");
}

#[test]
fn mistakes_are_told_where_they_are() {
    for (name, rule, told) in [
        ("rule", r#"reads("/etc/a");"#, "`reads` is no rule of a sandbox"),
        ("help", r#"syscall("flock");"#, "syscalls"),
        ("call", r#"syscalls("flocks");"#, "`flocks` is no system call"),
        ("never", r#"syscalls("ptrace");"#, "never allows `ptrace`"),
        ("relative", r#"read("etc/a");"#, "a relative path"),
        ("up", r#"read("/etc/../root");"#, "`..` leads elsewhere"),
        ("all", r#"read("/");"#, "all of the machine"),
        ("node", r#"device("/etc/a");"#, "not in /dev"),
        ("dev", r#"device("/dev/*");"#, "not in /dev"),
        ("request", r#"ioctl("FF");"#, "`FF` stands for no requests of ioctl"),
        ("number", r#"ioctl("9-2");"#, "`9-2` stands for no requests"),
        ("text", "read(4);", "expected a string"),
        ("end", r#"read("/etc/a")"#, "expected `;`"),
    ] {
        let text = mistakes(name, rule);
        assert!(text.contains(told) && text.contains("spec.lapis"), "{rule}: {text}");
    }
}
