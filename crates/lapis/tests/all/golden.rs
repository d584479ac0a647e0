//! The generators' output for a small specification, compared word by word.
//!
//! After a wanted change: `UPDATE_GOLDEN=1 cargo test -p aviary-lapis --test all golden`, then read the difference.

use aviary_lapis::{Options, generate, load, lower};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn compare(name: &str, printed: &str) {
    let path = folder().join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, printed).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(printed.lines()).position(|(a, b)| a != b);
    assert_eq!(expected, printed, "{name} differs from line {:?} on", differs.map(|l| l + 1));
}

#[test]
fn stubs_and_handlers_of_a_small_api() {
    let loaded = load(&folder().join("small.lapis"), &Options::default()).unwrap();
    let program = lower::lower(&loaded.model);
    let sources = generate::generate(&loaded.model, &program, 0x5eed);
    compare("small-guest.rs", &sources.guest);
    compare("small-server.rs", &sources.server);
}

/// The hash speaks for the meaning of a specification, not for its layout.
#[test]
fn the_hash_ignores_layout_and_sees_meaning() {
    let text = std::fs::read_to_string(folder().join("small.lapis")).unwrap();
    let hash = |text: &str| {
        let dir = std::env::temp_dir().join(format!("aviary-golden-{}-{:x}", std::process::id(), text.len()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::copy(folder().join("small.h"), dir.join("small.h")).unwrap();
        std::fs::write(dir.join("small.lapis"), text).unwrap();
        let loaded = load(&dir.join("small.lapis"), &Options::default()).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        generate::spec_hash(&loaded.model, &lower::lower(&loaded.model))
    };
    let original = hash(&text);
    assert_eq!(original, hash(&format!("// a remark\n\n{text}")));
    assert_ne!(original, hash(&text.replace("buffer(count)", "buffer(count + 1)")));
}
