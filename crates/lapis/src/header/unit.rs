//! The C text that is given to libclang, and where each of its lines came from.

use crate::syntax::source::{SourceFiles, Span};
use std::path::PathBuf;

/// Text of one translation unit.
#[derive(Debug, Clone, Default)]
pub struct Unit {
    /// A name in the folder of the specification: `#include "x"` is looked up beside it.
    pub path: PathBuf,
    pub text: String,
    pub include_dirs: Vec<PathBuf>,
    pub defines: Vec<String>,
    /// Files that exist only for this unit.
    pub virtual_files: Vec<(PathBuf, String)>,
    /// Only functions and variables of the unit itself matter: its headers have been read before.
    pub own_only: bool,
    lines: usize,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone)]
struct Segment {
    /// First line in the unit, from 1, and how many there are.
    first: usize,
    count: usize,
    span: Span,
}

impl Unit {
    pub fn new(path: PathBuf, include_dirs: &[PathBuf], defines: &[String]) -> Self {
        Unit { path, include_dirs: include_dirs.to_vec(), defines: defines.to_vec(), ..Unit::default() }
    }

    /// Appends whole lines; `span` is where they stand in the specification. Returns the first line's number.
    pub fn push(&mut self, text: &str, span: Option<Span>) -> usize {
        let first = self.lines + 1;
        self.text += text;
        self.text.push('\n');
        let count = text.matches('\n').count() + 1;
        self.lines += count;
        if let Some(span) = span {
            self.segments.push(Segment { first, count, span });
        }
        first
    }

    /// The place in the specification of a line of the unit.
    pub fn origin(&self, line: usize, sources: &SourceFiles) -> Option<Span> {
        let segment = self.segments.iter().find(|s| (s.first..s.first + s.count).contains(&line))?;
        let (_, start, _) = sources.position(segment.span)?;
        let place = sources.line(segment.span.file, start + line - segment.first)?;
        // The first line of a segment may share its line with other things.
        if segment.count == 1 { Some(segment.span) } else { Some(place) }
    }
}
