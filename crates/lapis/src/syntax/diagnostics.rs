//! Messages about a specification, in the layout of rustc's.

use crate::syntax::source::{SourceFiles, Span};
pub use annotate_snippets::Renderer;
use annotate_snippets::{AnnotationKind, Level, Snippet};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
}

/// One mistake: where it is, what was expected, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    pub message: String,
    pub span: Option<Span>,
    /// The label of the place itself.
    pub label: String,
    /// Other places that matter, each with its explanation.
    pub related: Vec<(Span, String)>,
    pub help: Vec<String>,
    /// The mistake is a placeholder that `aviary spec init` left on purpose.
    pub placeholder: bool,
    /// The place is a guess of `aviary spec init --guess`.
    pub guess: bool,
}

impl Diagnostic {
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            span: Some(span),
            label: String::new(),
            related: Vec::new(),
            help: Vec::new(),
            placeholder: false,
            guess: false,
        }
    }

    pub fn warning(span: Span, message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(span, message) }
    }

    /// A mistake that has no place in a specification (a missing file).
    pub fn global(message: impl Into<String>) -> Self {
        Diagnostic { span: None, ..Diagnostic::error(Span::default(), message) }
    }

    pub fn guess(mut self) -> Self {
        self.guess = true;
        self
    }

    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    pub fn related(mut self, span: Span, label: impl Into<String>) -> Self {
        self.related.push((span, label.into()));
        self
    }

    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Adds "did you mean", if there is something similar.
    pub fn suggest(self, similar: Option<&str>) -> Self {
        match similar {
            Some(name) => self.help(format!("did you mean `{name}`?")),
            None => self,
        }
    }

    pub fn placeholder(mut self) -> Self {
        self.placeholder = true;
        self
    }

    /// The message with its source lines, without colours.
    pub fn render(&self, sources: &SourceFiles) -> String {
        self.render_with(sources, &Renderer::plain())
    }

    pub fn render_with(&self, sources: &SourceFiles, renderer: &Renderer) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = level.primary_title(self.message.as_str()).elements(self.snippets(sources));
        for help in &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        renderer.render(&[group])
    }

    /// One snippet for each file that has a label, the primary one first.
    fn snippets<'a>(&'a self, sources: &'a SourceFiles) -> Vec<Snippet<'a, annotate_snippets::Annotation<'a>>> {
        let Some(primary) = self.span else { return Vec::new() };
        let mut files = vec![primary.file];
        for (span, _) in &self.related {
            if !files.contains(&span.file) {
                files.push(span.file);
            }
        }
        files.iter().filter_map(|&f| self.snippet(sources, primary, f)).collect()
    }

    fn snippet<'a>(
        &'a self,
        sources: &'a SourceFiles,
        primary: Span,
        index: u32,
    ) -> Option<Snippet<'a, annotate_snippets::Annotation<'a>>> {
        let file = sources.file(index)?;
        let mut snippet = Snippet::source(file.text.as_str()).path(file.path.to_string_lossy());
        if primary.file == index {
            let mark = AnnotationKind::Primary.span(range(primary, &file.text));
            let label = Some(self.label.as_str()).filter(|l| !l.is_empty());
            snippet = snippet.annotation(mark.label(label));
        }
        for (span, label) in self.related.iter().filter(|(s, _)| s.file == index) {
            let mark = AnnotationKind::Context.span(range(*span, &file.text));
            snippet = snippet.annotation(mark.label(label.as_str()));
        }
        Some(snippet)
    }
}

/// A span as a range that certainly lies within the text, on character boundaries.
fn range(span: Span, text: &str) -> std::ops::Range<usize> {
    let floor = |n: usize| (0..=n.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    let start = floor(span.start as usize);
    start..floor(span.end as usize).max(start)
}

/// Everything that is wrong with a specification.
#[derive(Debug, Clone, Default)]
pub struct Diagnostics {
    pub list: Vec<Diagnostic>,
    pub sources: SourceFiles,
}

impl Diagnostics {
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter().filter(|d| d.severity == Severity::Error)
    }

    pub fn render_with(&self, renderer: &Renderer) -> String {
        let mut text = String::new();
        for diagnostic in &self.list {
            text += &diagnostic.render_with(&self.sources, renderer);
            text += "\n\n";
        }
        text
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render_with(&Renderer::plain()).trim_end())
    }
}

impl std::error::Error for Diagnostics {}
