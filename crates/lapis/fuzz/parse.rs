//! Any text is a specification or a list of mistakes, whose places lie in the text.

use aviary_lapis::parser;
use aviary_lapis::source::{SourceFiles, Span};

fn is_type(name: &str) -> bool {
    name.ends_with("_t") || name.starts_with("cl_")
}

pub fn run(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let parsed = parser::parse(0, text, &is_type);
    let mut sources = SourceFiles::default();
    sources.add("fuzz.lapis".into(), text.to_owned());
    for diagnostic in &parsed.diagnostics {
        assert!(!diagnostic.render(&sources).is_empty());
    }
    let _ = parser::parse_expression(text, Span::new(0, 0, text.len()), &is_type);
}
