//! Items: what stands at the top level of a file.

use crate::model::{ResourceKind, Side};
use crate::syntax::ast::{Block, Directive, FunctionItem, Item, Name, TableFrom, Text, TypeName};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::lexer::Token;
use crate::syntax::parser::{Failed, Parse, Parser, types};
use crate::syntax::source::Span;

impl Parser<'_> {
    pub(super) fn items(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        while self.peek() != Token::End {
            let before = self.position;
            match self.item() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => {}
                Err(_) => self.recover_item(before),
            }
        }
        items
    }

    /// To the end of the item: past a `;` outside braces or past a block.
    fn recover_item(&mut self, before: usize) {
        if self.position == before {
            self.advance();
        }
        loop {
            match self.peek() {
                Token::End | Token::Directive => return,
                Token::Semicolon | Token::CloseBrace => {
                    self.advance();
                    return;
                }
                Token::OpenBrace => {
                    self.skip_group();
                    self.eat(Token::Semicolon);
                    return;
                }
                _ => {
                    self.advance();
                }
            }
        }
    }

    fn item(&mut self) -> Parse<Option<Item>> {
        match self.peek() {
            Token::Semicolon => {
                self.advance();
                Ok(None)
            }
            Token::Directive => self.directive().map(Some),
            Token::Name => self.named_item().map(Some),
            _ => Err(self.unexpected("a declaration or a function")),
        }
    }

    fn directive(&mut self) -> Parse<Item> {
        let span = self.span();
        let line = self.word(0);
        self.advance();
        let text = line.get(1..).unwrap_or("").trim_start();
        let (word, rest) = text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len()));
        let rest = without_comment(rest);
        let kind = match word {
            "include" | "support" => {
                let Some((path, quoted)) = header(rest) else {
                    return Err(self.report(
                        Diagnostic::error(span, format!("expected a header after `#{word}`"))
                            .help(format!("write `#{word} <header.h>` or `#{word} \"header.h\"`")),
                    ));
                };
                if word == "include" {
                    Directive::Include { path, quoted }
                } else {
                    Directive::Support { path, quoted }
                }
            }
            "define" => Directive::Define(rest.to_string()),
            _ => {
                return Err(self.report(
                    Diagnostic::error(span, format!("unknown line `#{word}`"))
                        .label("not part of the language")
                        .help("outside `utility` blocks only `#include`, `#support` and `#define` are understood"),
                ));
            }
        };
        Ok(Item::Directive { kind, span })
    }

    fn named_item(&mut self) -> Parse<Item> {
        let start = self.span();
        let text_call = self.peek_at(1) == Token::OpenParen && self.peek_at(2) == Token::String;
        let call = self.peek_at(1) == Token::OpenParen;
        let named = self.peek_at(1) == Token::Name;
        match self.word(0) {
            "api" if text_call => self.api(start),
            "policy" if text_call => self.one_text().map(Item::Policy),
            "dropin" | "dropin_if_missing" if text_call => {
                let only_if_missing = self.word(0) == "dropin_if_missing";
                Ok(Item::DropIn { soname: self.one_text()?, only_if_missing })
            }
            "program" if text_call => self.one_text().map(Item::Program),
            "library" if text_call => self.one_text().map(Item::Library),
            "versions_any" if self.peek_at(1) == Token::Semicolon => {
                self.advance();
                self.semicolon()?;
                Ok(Item::VersionsAny)
            }
            "versions" if text_call => self.one_text().map(Item::Versions),
            "environment" if text_call => {
                let (name, value) = self.two_texts()?;
                Ok(Item::Environment { name, value })
            }
            "file" if text_call => {
                let (path, content) = self.two_texts()?;
                Ok(Item::File { path, content })
            }
            "import" if self.peek_at(1) == Token::String => {
                self.advance();
                let path = self.string("the path of a specification")?;
                self.semicolon()?;
                Ok(Item::Import(path))
            }
            "continuous_rc" if named => self.resource(ResourceKind::Continuous),
            "instantaneous_rc" if named => self.resource(ResourceKind::Instantaneous),
            "buf_registry" if named => {
                self.advance();
                let name = self.name("a name")?;
                self.semicolon()?;
                Ok(Item::Registry(name))
            }
            "declare_metadata" if call => {
                let ty = self.parenthesised_type()?;
                self.semicolon()?;
                Ok(Item::DeclareMetadata(ty))
            }
            "error_argument" if call => self.named_argument().map(Item::ErrorArgument),
            "status_argument" if call => self.named_argument().map(Item::StatusArgument),
            "stateless" if call => Ok(Item::Stateless(self.stateless()?)),
            "quiesce" if call => {
                let [name] = self.names_in_parentheses(["the name of a utility function"])?;
                Ok(Item::Quiesce(name))
            }
            "stays" if call => {
                let [name] = self.names_in_parentheses(["the name of a utility function"])?;
                Ok(Item::Stays(name))
            }
            "contents" if call => {
                let [name] = self.names_in_parentheses(["the name of a utility function"])?;
                Ok(Item::Contents(name))
            }
            "session_state_cbs" if call => {
                let [write, read] =
                    self.names_in_parentheses(["the function that saves", "the function that restores"])?;
                Ok(Item::SessionState { write, read })
            }
            "table" if call => {
                let ty = self.parenthesised_type()?;
                let name = self.name("the name of the table")?;
                let source = self.table_source()?;
                Ok(Item::Table { ty, name, source })
            }
            "type" if call => {
                let ty = self.parenthesised_type()?;
                let span = self.since(start);
                Ok(Item::Type { ty, body: self.block()?, span })
            }
            "outcome" if call => {
                let ty = self.parenthesised_type()?;
                let span = self.since(start);
                Ok(Item::Outcome { ty, body: self.block()?, span })
            }
            "sandbox" if self.peek_at(1) == Token::OpenBrace => self.sandbox(start),
            "pass_environment" if call => self.pass_environment(),
            "utility" => self.utility(start),
            "typedef" => self.declaration(start),
            "struct" | "union" | "enum" if self.declares_tag() => self.declaration(start),
            "override" if named => {
                self.advance();
                self.function(true)
            }
            _ => self.function(false),
        }
    }

    /// `struct X {`, `struct X;`, `enum {`: a declaration and not the result type of a function.
    fn declares_tag(&self) -> bool {
        self.peek_at(1) == Token::OpenBrace || matches!(self.peek_at(2), Token::OpenBrace | Token::Semicolon)
    }

    /// `from e;` or `from e { ... }` behind the name of a table, or nothing but `;`.
    fn table_source(&mut self) -> Parse<Option<TableFrom>> {
        if self.peek() != Token::Name || self.word(0) != "from" {
            self.semicolon()?;
            return Ok(None);
        }
        self.advance();
        let address = self.expression()?;
        let body = if self.peek() == Token::OpenBrace {
            self.block()?
        } else {
            self.semicolon()?;
            Block::default()
        };
        Ok(Some(TableFrom { address, body }))
    }

    fn one_text(&mut self) -> Parse<Text> {
        self.advance();
        self.expect(Token::OpenParen, "`(`")?;
        let text = self.string("a string")?;
        self.expect(Token::CloseParen, "`)`")?;
        self.semicolon()?;
        Ok(text)
    }

    fn two_texts(&mut self) -> Parse<(Text, Text)> {
        self.advance();
        self.expect(Token::OpenParen, "`(`")?;
        let first = self.string("a string")?;
        self.expect(Token::Comma, "`,`")?;
        let second = self.string("a string")?;
        self.expect(Token::CloseParen, "`)`")?;
        self.semicolon()?;
        Ok((first, second))
    }

    fn api(&mut self, start: Span) -> Parse<Item> {
        self.advance();
        self.expect(Token::OpenParen, "`(`")?;
        let name = self.string("the name of the API")?;
        self.expect(Token::Comma, "`,`")?;
        let version = if self.peek() == Token::String {
            self.string("the version")?
        } else {
            let span = self.span();
            let value = self.word(0).to_string();
            if !matches!(self.peek(), Token::Integer | Token::Float) {
                return Err(self.unexpected("the version"));
            }
            self.advance();
            Text { value, span }
        };
        self.expect(Token::Comma, "`,`")?;
        let soname = self.string("the name of the vendor library")?;
        self.expect(Token::CloseParen, "`)`")?;
        self.semicolon()?;
        Ok(Item::Api { name, version, soname, span: self.since(start) })
    }

    fn resource(&mut self, kind: ResourceKind) -> Parse<Item> {
        self.advance();
        let name = self.name("the name of the resource")?;
        let mut devices = None;
        if self.peek() == Token::OpenParen {
            self.advance();
            devices = Some(self.name("the utility function that names devices")?);
            self.expect(Token::CloseParen, "`)`")?;
        }
        self.semicolon()?;
        Ok(Item::Resource { kind, name, devices })
    }

    fn parenthesised_type(&mut self) -> Parse<TypeName> {
        self.advance();
        self.expect(Token::OpenParen, "`(`")?;
        let ty = self.type_name()?;
        self.expect(Token::CloseParen, "`)`")?;
        Ok(ty)
    }

    fn named_argument(&mut self) -> Parse<Name> {
        let [name] = self.names_in_parentheses(["the name of a parameter"])?;
        Ok(name)
    }

    fn stateless(&mut self) -> Parse<Vec<Name>> {
        self.advance();
        self.expect(Token::OpenParen, "`(`")?;
        let mut names = vec![self.name("the name of a function")?];
        while self.peek() == Token::Comma {
            self.advance();
            names.push(self.name("the name of a function")?);
        }
        self.expect(Token::CloseParen, "`)`")?;
        self.semicolon()?;
        Ok(names)
    }

    /// The rest of an item that is a word and names in parentheses.
    fn names_in_parentheses<const COUNT: usize>(&mut self, expected: [&str; COUNT]) -> Parse<[Name; COUNT]> {
        self.advance();
        let mut names = Vec::new();
        for (at, expected) in expected.into_iter().enumerate() {
            let (token, text) = if at == 0 { (Token::OpenParen, "`(`") } else { (Token::Comma, "`,`") };
            self.expect(token, text)?;
            names.push(self.name(expected)?);
        }
        self.expect(Token::CloseParen, "`)`")?;
        self.semicolon()?;
        names.try_into().map_err(|_| self.unexpected("names"))
    }

    /// struct, union, enum or typedef: everything up to its `;`, as C text.
    fn declaration(&mut self, start: Span) -> Parse<Item> {
        self.c_text(start, false)?;
        let span = self.since(start);
        Ok(Item::Declaration { code: self.raw(span).to_string(), span })
    }

    /// Moves past C up to a `;` outside braces or, if `functions`, past the body of a function.
    fn c_text(&mut self, start: Span, functions: bool) -> Parse<()> {
        loop {
            match self.peek() {
                Token::End => {
                    return Err(self.report(
                        Diagnostic::error(start, "this declaration does not end").label("its `;` or `}` is missing"),
                    ));
                }
                Token::Semicolon => {
                    self.advance();
                    return Ok(());
                }
                Token::OpenBrace => {
                    let body = self.position > 0 && self.tokens[self.position - 1].token == Token::CloseParen;
                    self.balanced(start)?;
                    if body && functions {
                        return Ok(());
                    }
                }
                Token::OpenParen | Token::OpenBracket => self.balanced(start)?,
                _ => {
                    self.advance();
                }
            }
        }
    }

    fn balanced(&mut self, start: Span) -> Parse<()> {
        if self.skip_group() {
            return Ok(());
        }
        Err(self.report(Diagnostic::error(start, "unbalanced braces in C text").label("this has no end")))
    }

    fn utility(&mut self, start: Span) -> Parse<Item> {
        self.advance();
        let side = if self.peek() == Token::OpenParen { self.side()? } else { Side::Both };
        match self.peek() {
            Token::String => {
                let path = self.string("the path of a C file")?;
                self.semicolon()?;
                Ok(Item::UtilityFile { side, path })
            }
            Token::OpenBrace => {
                let open = self.span();
                self.balanced(start)?;
                let span = Span { start: open.start + 1, end: self.previous().end.saturating_sub(1), ..open };
                self.eat(Token::Semicolon);
                Ok(Item::Utility { side, code: self.raw(span).to_string(), span })
            }
            _ => {
                let first = self.span();
                self.c_text(start, true)?;
                let span = self.since(first);
                Ok(Item::Utility { side, code: self.raw(span).to_string(), span })
            }
        }
    }

    fn side(&mut self) -> Parse<Side> {
        self.advance();
        let name = self.name("`guest` or `server`")?;
        self.expect(Token::CloseParen, "`)`")?;
        match name.text.as_str() {
            "guest" => Ok(Side::Guest),
            "server" => Ok(Side::Server),
            "both" => Ok(Side::Both),
            other => {
                let similar = crate::syntax::suggest::similar(other, ["guest", "server"]);
                Err(self.report(
                    Diagnostic::error(name.span, format!("`{other}` is not a side"))
                        .label("expected `guest` or `server`")
                        .suggest(similar),
                ))
            }
        }
    }

    /// `[result] [table.]name(parameters) { ... }`
    fn function(&mut self, overriding: bool) -> Parse<Item> {
        let start = self.span();
        let result = if self.function_name_here() { None } else { Some(self.type_name()?) };
        let mut name = self.name("the name of a function")?;
        let mut table = None;
        if self.eat(Token::Dot) {
            table = Some(name);
            name = self.name("the name of a member")?;
        }
        if self.peek() != Token::OpenParen {
            let similar = crate::syntax::suggest::similar(&name.text, ITEMS)
                .or_else(|| result.as_ref().and_then(|r| crate::syntax::suggest::similar(&r.base, ITEMS)));
            let span = self.since(start);
            return Err(self.report(
                Diagnostic::error(span, "expected a declaration or a function").label("neither").suggest(similar),
            ));
        }
        self.advance();
        let (parameters, variadic) = self.parameters()?;
        let head = self.since(start);
        let body = self.function_body(head)?;
        Ok(Item::Function(FunctionItem { overriding, result, table, name, parameters, variadic, body, head }))
    }

    /// `name(` or `table.name(`, so no result type.
    fn function_name_here(&self) -> bool {
        self.peek_at(1) == Token::OpenParen && !types::is_type_keyword(self.word(0)) || self.peek_at(1) == Token::Dot
    }

    fn function_body(&mut self, head: Span) -> Parse<Block> {
        match self.peek() {
            Token::OpenBrace => self.block(),
            Token::Semicolon => {
                self.advance();
                Err(self.report(
                    Diagnostic::error(head, "a description needs a body")
                        .label("no body follows")
                        .help("write `{ }` for a function without descriptors, or `{ unsupported; }`"),
                ))
            }
            _ => {
                self.unexpected("`{`");
                Err(Failed)
            }
        }
    }
}

const ITEMS: [&str; 32] = [
    "api",
    "import",
    "override",
    "continuous_rc",
    "instantaneous_rc",
    "policy",
    "struct",
    "typedef",
    "enum",
    "declare_metadata",
    "buf_registry",
    "utility",
    "type",
    "outcome",
    "error_argument",
    "status_argument",
    "stateless",
    "quiesce",
    "stays",
    "contents",
    "session_state_cbs",
    "table",
    "environment",
    "file",
    "dropin",
    "dropin_if_missing",
    "program",
    "library",
    "versions",
    "versions_any",
    "sandbox",
    "pass_environment",
];

/// True if an item of the language begins with that word.
pub fn is_item(word: &str) -> bool {
    ITEMS.contains(&word)
}

/// A preprocessor line without the comment at its end; quotes protect what is in them.
fn without_comment(text: &str) -> &str {
    let mut quote = None;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match quote {
            Some(q) if c == q && previous != '\\' => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if previous == '/' && (c == '/' || c == '*') => return text[..at - 1].trim(),
            _ => {}
        }
        previous = c;
    }
    text.trim()
}

fn header(text: &str) -> Option<(String, bool)> {
    let (inner, quoted) = match text.strip_prefix('<') {
        Some(rest) => (rest.strip_suffix('>')?, false),
        None => (text.strip_prefix('"')?.strip_suffix('"')?, true),
    };
    (!inner.is_empty() && !inner.contains(['"', '>', '\n', '\\'])).then(|| (inner.trim().to_string(), quoted))
}
