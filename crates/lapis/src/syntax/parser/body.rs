//! Blocks of descriptors.

use crate::syntax::ast::{Argument, Block, Descriptor, Name, Parameter, Statement};
use crate::syntax::lexer::Token;
use crate::syntax::parser::{Guess, Parse, Parser};
use crate::syntax::source::Span;

impl Parser<'_> {
    /// `{ ... }`. Mistakes inside are reported and skipped one by one.
    pub(super) fn block(&mut self) -> Parse<Block> {
        let start = self.expect(Token::OpenBrace, "`{`")?;
        self.nested(|p| {
            let mut statements = Vec::new();
            while !matches!(p.peek(), Token::CloseBrace | Token::End) {
                let before = p.position;
                if p.starts_guess() {
                    match p.guess() {
                        Ok(guessed) => statements.extend(guessed.statements),
                        Err(_) => p.recover_statement(before),
                    }
                    continue;
                }
                match p.statement() {
                    Ok(Some(statement)) => statements.push(statement),
                    Ok(None) => {}
                    Err(_) => p.recover_statement(before),
                }
            }
            p.expect(Token::CloseBrace, "`}`")?;
            Ok(Block { statements, span: p.since(start) })
        })
    }

    /// To the end of the statement at hand; never past the `}` of the block around it.
    fn recover_statement(&mut self, before: usize) {
        let broken_before = self.position > before
            && matches!(self.tokens[self.position - 1].token, Token::Semicolon | Token::CloseBrace);
        if broken_before {
            return;
        }
        // A statement that lacks its `;` is followed by the next one: go on there.
        if self.position > before && self.starts_descriptor() {
            return;
        }
        loop {
            match self.peek() {
                Token::CloseBrace | Token::End => return,
                Token::Semicolon => {
                    self.advance();
                    return;
                }
                Token::OpenBrace => {
                    self.skip_group();
                    return;
                }
                _ => {
                    self.advance();
                }
            }
        }
    }

    fn starts_descriptor(&self) -> bool {
        let word = self.word(0);
        self.peek() == Token::Name
            && (crate::syntax::descriptors::find(word).is_some() || word == "if" || word == "contextual_argument")
    }

    fn statement(&mut self) -> Parse<Option<Statement>> {
        let start = self.span();
        match self.peek() {
            Token::Semicolon => {
                self.advance();
                Ok(None)
            }
            Token::Ellipsis => {
                self.advance();
                self.eat(Token::Semicolon);
                Ok(Some(Statement::Ellipsis(start)))
            }
            Token::Name if self.word(0) == "if" => self.if_statement(start).map(Some),
            Token::Name if self.word(0) == "contextual_argument" => self.contextual(start).map(Some),
            Token::Name if self.word(0) == "each" => self.each().map(|d| Some(Statement::Descriptor(d))),
            Token::Name if self.word(0) == "case" => self.case().map(|d| Some(Statement::Descriptor(d))),
            Token::Name => self.descriptor().map(|d| Some(Statement::Descriptor(d))),
            _ => Err(self.unexpected("a descriptor")),
        }
    }

    fn starts_guess(&self) -> bool {
        self.peek() == Token::Name
            && self.word(0) == "guess"
            && matches!(self.peek_at(1), Token::OpenParen | Token::OpenBrace)
    }

    /// `guess("reason") { ... }`: what is in it counts as if it stood there alone.
    fn guess(&mut self) -> Parse<Block> {
        let start = self.span();
        self.advance();
        let mut reason = String::new();
        if self.eat(Token::OpenParen) {
            reason = self.string("the reason of the guess")?.value;
            self.expect(Token::CloseParen, "`)`")?;
        }
        let block = self.block()?;
        self.guesses.push(Guess { reason, span: self.since(start) });
        Ok(block)
    }

    fn if_statement(&mut self, start: Span) -> Parse<Statement> {
        self.advance();
        self.expect(Token::OpenParen, "`(` and a condition")?;
        let condition = self.expression()?;
        self.expect(Token::CloseParen, "`)`")?;
        let span = self.since(start);
        let then = self.branch()?;
        let otherwise = if self.peek() == Token::Name && self.word(0) == "else" {
            self.advance();
            Some(self.branch()?)
        } else {
            None
        };
        Ok(Statement::If { condition, then, otherwise, span })
    }

    /// A block or a single statement.
    fn branch(&mut self) -> Parse<Block> {
        if self.peek() == Token::OpenBrace {
            return self.block();
        }
        let start = self.span();
        let statement = self.nested(|p| p.statement())?;
        Ok(Block { statements: statement.into_iter().collect(), span: self.since(start) })
    }

    fn contextual(&mut self, start: Span) -> Parse<Statement> {
        self.advance();
        let ty = self.type_name()?;
        let name = self.name("the name of the contextual argument")?;
        self.expect(Token::Assign, "`=`")?;
        let value = self.expression()?;
        self.semicolon()?;
        Ok(Statement::Contextual { ty, name, value, span: self.since(start) })
    }

    fn descriptor(&mut self) -> Parse<Descriptor> {
        let name = self.name("a descriptor")?;
        let start = name.span;
        let arguments = if self.eat(Token::OpenParen) { Some(self.arguments(&name.text)?) } else { None };
        let span = self.since(start);
        let body = if self.peek() == Token::OpenBrace {
            let body = self.block()?;
            self.eat(Token::Semicolon);
            Some(body)
        } else {
            self.semicolon()?;
            None
        };
        Ok(Descriptor { name, arguments, body, span })
    }

    /// `case K, L: T;`, `case K: T { ... }`
    fn case(&mut self) -> Parse<Descriptor> {
        let name = self.name("`case`")?;
        let mut arguments = Vec::new();
        loop {
            arguments.push(Argument::Expr(self.expression()?));
            if self.eat(Token::Colon) {
                break;
            }
            self.expect(Token::Comma, "`,` or `:`")?;
        }
        self.followed(name, arguments)
    }

    /// `each T;`, `each T { ... }`
    fn each(&mut self) -> Parse<Descriptor> {
        let name = self.name("`each`")?;
        self.followed(name, Vec::new())
    }

    /// A type behind these arguments, and its description.
    fn followed(&mut self, name: Name, mut arguments: Vec<Argument>) -> Parse<Descriptor> {
        let start = name.span;
        arguments.push(Argument::Type(self.type_name()?));
        let span = self.since(start);
        let body = if self.peek() == Token::OpenBrace { Some(self.block()?) } else { None };
        if body.is_none() {
            self.semicolon()?;
        }
        Ok(Descriptor { name, arguments: Some(arguments), body, span })
    }

    /// The arguments of a descriptor, after `(`: what they are depends on its name.
    fn arguments(&mut self, descriptor: &str) -> Parse<Vec<Argument>> {
        let mut arguments = Vec::new();
        if self.eat(Token::CloseParen) {
            return Ok(arguments);
        }
        loop {
            arguments.push(match descriptor {
                "type_cast" | "metadata" => Argument::Type(self.type_name()?),
                "link" if arguments.len() == 1 => Argument::Type(self.type_name()?),
                "callback" => Argument::Parameter(self.callback_parameter()?),
                _ => Argument::Expr(self.expression()?),
            });
            if self.eat(Token::CloseParen) {
                return Ok(arguments);
            }
            self.expect(Token::Comma, "`,` or `)`")?;
        }
    }

    /// `name`, or `type name`.
    fn callback_parameter(&mut self) -> Parse<Parameter> {
        let bare = self.peek() == Token::Name && matches!(self.peek_at(1), Token::Comma | Token::CloseParen);
        if bare {
            return Ok(Parameter { ty: None, name: self.name("a parameter")? });
        }
        let ty = self.type_name()?;
        Ok(Parameter { ty: Some(ty), name: self.name("the name of the parameter")? })
    }
}
