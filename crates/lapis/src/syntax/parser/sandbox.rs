//! `sandbox { ... }` and `pass_environment(...)`: what the vendor's library needs of its machine, and what of the
//! application's environment it gets.

use crate::syntax::ast::{Item, SandboxRule, Text};
use crate::syntax::lexer::Token;
use crate::syntax::parser::{Parse, Parser};
use crate::syntax::source::Span;

impl Parser<'_> {
    /// The rules are calls with strings; which ones there are is the loader's business.
    pub(super) fn sandbox(&mut self, start: Span) -> Parse<Item> {
        self.advance();
        self.expect(Token::OpenBrace, "`{`")?;
        let mut rules = Vec::new();
        while !self.eat(Token::CloseBrace) {
            let name = self.name("a rule or `}`")?;
            let texts = self.strings()?;
            rules.push(SandboxRule { name, texts });
        }
        Ok(Item::Sandbox { rules, span: self.since(start) })
    }

    pub(super) fn pass_environment(&mut self) -> Parse<Item> {
        self.advance();
        Ok(Item::PassEnvironment(self.strings()?))
    }

    /// `("...", "...");`
    fn strings(&mut self) -> Parse<Vec<Text>> {
        self.expect(Token::OpenParen, "`(`")?;
        let mut texts = vec![self.string("a string")?];
        while self.eat(Token::Comma) {
            texts.push(self.string("a string")?);
        }
        self.expect(Token::CloseParen, "`)`")?;
        self.semicolon()?;
        Ok(texts)
    }
}
