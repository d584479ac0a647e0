//! Recursive-descent parser that goes on after a mistake, so that one run reports them all.

mod body;
mod expressions;
pub(crate) mod items;
mod literals;
mod sandbox;
mod types;

use crate::syntax::ast::{Item, Name, Text};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::lexer::{Lexeme, Token, lex};
use crate::syntax::source::Span;

/// Result of parsing a file, with its diagnostics.
#[derive(Debug, Default)]
pub struct Parsed {
    pub items: Vec<Item>,
    pub diagnostics: Vec<Diagnostic>,
    pub guesses: Vec<Guess>,
}

/// A `guess("reason") { ... }`: descriptors that `aviary spec init --guess` wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct Guess {
    pub reason: String,
    /// From the word to the closing brace.
    pub span: Span,
}

/// Parses a file. `is_type` knows the names of the header's types: without it `(T)-1`
/// cannot be told from a subtraction.
pub fn parse(file: u32, text: &str, is_type: &dyn Fn(&str) -> bool) -> Parsed {
    let mut parser = Parser::new(lex(file, text), text, is_type);
    let items = parser.items();
    Parsed { items, diagnostics: parser.diagnostics, guesses: parser.guesses }
}

/// Parses a text that is one expression, such as the body of a macro. `place` is where the user wrote it.
pub fn parse_expression(
    text: &str,
    place: Span,
    is_type: &dyn Fn(&str) -> bool,
) -> Option<crate::syntax::ast::AstExpr> {
    let mut tokens = lex(place.file, text);
    let mut parser = Parser::new(std::mem::take(&mut tokens), text, is_type);
    parser.place = Some(place);
    let expression = parser.expression().ok()?;
    (parser.peek() == Token::End && parser.diagnostics.is_empty()).then_some(expression)
}

/// The mistake has been reported; the caller recovers or gives up too.
#[derive(Debug, Clone, Copy)]
struct Failed;

type Parse<T> = Result<T, Failed>;

/// Deeper nesting than this is refused: recursion must not exhaust the stack on hostile input.
const DEPTH: usize = 120;

struct Parser<'a> {
    tokens: Vec<Lexeme>,
    position: usize,
    text: &'a str,
    is_type: &'a dyn Fn(&str) -> bool,
    diagnostics: Vec<Diagnostic>,
    guesses: Vec<Guess>,
    depth: usize,
    /// Where the outermost expression at hand begins.
    expression_start: Option<usize>,
    /// Overrides every span (macro bodies are not in any source file).
    place: Option<Span>,
}

impl<'a> Parser<'a> {
    fn new(tokens: Vec<Lexeme>, text: &'a str, is_type: &'a dyn Fn(&str) -> bool) -> Self {
        Parser {
            tokens,
            position: 0,
            text,
            is_type,
            diagnostics: Vec::new(),
            guesses: Vec::new(),
            depth: 0,
            expression_start: None,
            place: None,
        }
    }

    fn at(&self, ahead: usize) -> Lexeme {
        let last = self.tokens.len() - 1;
        self.tokens[(self.position + ahead).min(last)]
    }

    fn peek(&self) -> Token {
        self.at(0).token
    }

    fn peek_at(&self, ahead: usize) -> Token {
        self.at(ahead).token
    }

    fn raw(&self, span: Span) -> &'a str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    /// The text of the token `ahead`.
    fn word(&self, ahead: usize) -> &'a str {
        self.raw(self.at(ahead).span)
    }

    fn place(&self, span: Span) -> Span {
        self.place.unwrap_or(span)
    }

    fn span(&self) -> Span {
        self.place(self.at(0).span)
    }

    /// End of the token before the current one.
    fn previous(&self) -> Span {
        self.place(self.tokens[self.position.saturating_sub(1)].span)
    }

    fn since(&self, start: Span) -> Span {
        if self.place.is_some() { start } else { start.to(self.previous()) }
    }

    fn advance(&mut self) -> Lexeme {
        let lexeme = self.at(0);
        if lexeme.token != Token::End {
            self.position += 1;
        }
        lexeme
    }

    fn eat(&mut self, token: Token) -> bool {
        let found = self.peek() == token;
        if found {
            self.advance();
        }
        found
    }

    fn report(&mut self, diagnostic: Diagnostic) -> Failed {
        self.diagnostics.push(diagnostic);
        Failed
    }

    /// "expected X, found Y" at the current token.
    fn unexpected(&mut self, expected: &str) -> Failed {
        let found = match self.peek() {
            Token::End => "the end of the file".to_string(),
            _ => format!("`{}`", self.word(0).lines().next().unwrap_or("")),
        };
        let span = self.span();
        self.report(
            Diagnostic::error(span, format!("expected {expected}, found {found}"))
                .label(format!("expected {expected}")),
        )
    }

    fn expect(&mut self, token: Token, what: &str) -> Parse<Span> {
        if self.peek() == token {
            let span = self.span();
            self.advance();
            return Ok(span);
        }
        Err(self.unexpected(what))
    }

    /// A `;`: when it is missing the mistake is shown where it belongs and parsing goes on.
    fn semicolon(&mut self) -> Parse<()> {
        if self.eat(Token::Semicolon) {
            return Ok(());
        }
        let before = self.previous();
        let end = Span { start: before.end.saturating_sub(1).max(before.start), ..before };
        Err(self.report(Diagnostic::error(end, "expected `;`").label("expected `;` after this")))
    }

    fn name(&mut self, what: &str) -> Parse<Name> {
        if self.peek() != Token::Name {
            return Err(self.unexpected(what));
        }
        let span = self.span();
        let text = self.word(0).to_string();
        self.advance();
        Ok(Name { text, span })
    }

    /// One string literal (or several in a row, as in C).
    fn string(&mut self, what: &str) -> Parse<Text> {
        if self.peek() != Token::String {
            return Err(self.unexpected(what));
        }
        let start = self.span();
        let mut value = String::new();
        while self.peek() == Token::String {
            value += &literals::unquote(self.word(0));
            self.advance();
        }
        Ok(Text { value, span: self.since(start) })
    }

    /// Runs `f` one level deeper; too deep is a mistake, not a stack overflow.
    fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
        if self.depth >= DEPTH {
            let span = self.span();
            return Err(self.report(Diagnostic::error(span, "nested too deeply").label("this is beyond any use")));
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    /// Moves past the tokens of a balanced group that starts here; false at the end of the file.
    fn skip_group(&mut self) -> bool {
        let mut depth = 0usize;
        loop {
            match self.advance().token {
                Token::OpenBrace | Token::OpenParen | Token::OpenBracket => depth += 1,
                Token::CloseBrace | Token::CloseParen | Token::CloseBracket => depth = depth.saturating_sub(1),
                Token::End => return false,
                _ => {}
            }
            if depth == 0 {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
