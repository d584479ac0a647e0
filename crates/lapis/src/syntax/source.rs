//! Source text and places in it.

use std::path::{Path, PathBuf};

/// A range of bytes in one source file of a specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Which file: an index that the front end hands out (imports make several).
    pub file: u32,
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(file: u32, start: usize, end: usize) -> Self {
        Span { file, start: clamp(start), end: clamp(end) }
    }

    /// From the start of this span to the end of `other` (of the same file).
    pub fn to(self, other: Span) -> Span {
        Span { file: self.file, start: self.start, end: other.end.max(self.end) }
    }
}

/// Offsets are 32 bits wide: the loader refuses files beyond [`SourceFile::MAX_SOURCE_BYTES`].
fn clamp(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

/// One file of a specification.
#[derive(Debug, Clone)]
pub struct SourceFile {
    pub path: PathBuf,
    pub text: String,
}

impl SourceFile {
    /// Largest specification that is read, in bytes.
    pub const MAX_SOURCE_BYTES: u64 = 16 << 20;
}

/// The files that [`Span::file`] refers to.
#[derive(Debug, Clone, Default)]
pub struct SourceFiles {
    files: Vec<SourceFile>,
}

impl SourceFiles {
    pub fn add(&mut self, path: PathBuf, text: String) -> u32 {
        self.files.push(SourceFile { path, text });
        clamp(self.files.len() - 1)
    }

    pub fn file(&self, index: u32) -> Option<&SourceFile> {
        self.files.get(index as usize)
    }

    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// The text of a span; empty for one that lies nowhere.
    pub fn text(&self, span: Span) -> &str {
        self.file(span.file).and_then(|f| f.text.get(span.start as usize..span.end as usize)).unwrap_or("")
    }

    /// Path, line and column (both from 1) of the start of a span.
    pub fn position(&self, span: Span) -> Option<(&Path, usize, usize)> {
        let file = self.file(span.file)?;
        let before = file.text.get(..span.start as usize)?;
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |n| n + 1) + 1;
        Some((&file.path, line, column))
    }

    /// The span of the line (from 1) in a file, without its indentation and line end.
    pub fn line(&self, file: u32, line: usize) -> Option<Span> {
        let text = &self.file(file)?.text;
        let start = if line <= 1 { 0 } else { text.match_indices('\n').nth(line - 2).map(|(n, _)| n + 1)? };
        let rest = text.get(start..)?;
        let content = &rest[..rest.find('\n').unwrap_or(rest.len())];
        let indent = content.len() - content.trim_start().len();
        Some(Span::new(file, start + indent, start + content.trim_end().len()))
    }
}
