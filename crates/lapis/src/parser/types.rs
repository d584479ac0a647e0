//! C types and parameters.

use super::{Failed, Parse, Parser};
use crate::ast::{Name, Parameter, TypeName};
use crate::lexer::Token;

const BUILT_IN: [&str; 9] = ["void", "char", "short", "int", "long", "float", "double", "signed", "unsigned"];
const TAGS: [&str; 3] = ["struct", "union", "enum"];
const QUALIFIERS: [&str; 4] = ["const", "volatile", "restrict", "__restrict"];

impl Parser<'_> {
    /// True if the token `ahead` certainly or (by the header) presumably begins a type.
    pub(super) fn begins_type(&self, ahead: usize) -> bool {
        let word = self.word(ahead);
        self.peek_at(ahead) == Token::Name && (is_type_keyword(word) || self.is_known_type(word))
    }

    pub(super) fn is_known_type(&self, word: &str) -> bool {
        (self.is_type)(word)
    }

    /// A type without a declarator's name: `const struct foo *`.
    pub(super) fn type_name(&mut self) -> Parse<TypeName> {
        let start = self.span();
        let mut constant = false;
        let mut words: Vec<&str> = Vec::new();
        let mut named = false;
        while self.peek() == Token::Name {
            let word = self.word(0);
            if QUALIFIERS.contains(&word) {
                constant |= word == "const";
            } else if TAGS.contains(&word) && words.is_empty() {
                words.push(word);
                self.advance();
                if self.peek() != Token::Name {
                    return Err(self.unexpected("a name"));
                }
                words.push(self.word(0));
                named = true;
            } else if word == "_Bool" || BUILT_IN.contains(&word) && !named {
                words.push(word);
            } else if words.is_empty() {
                words.push(word);
                named = true;
            } else {
                break;
            }
            self.advance();
        }
        if words.is_empty() {
            return Err(self.unexpected("a type"));
        }
        let pointers = self.pointers();
        Ok(TypeName {
            base: normal(&words),
            constant,
            pointers,
            array: false,
            function: false,
            span: self.since(start),
        })
    }

    fn pointers(&mut self) -> Vec<bool> {
        let mut pointers = Vec::new();
        while self.eat(Token::Star) {
            pointers.push(false);
            while self.peek() == Token::Name && QUALIFIERS.contains(&self.word(0)) {
                if self.word(0) == "const" {
                    pointers.pop();
                    pointers.push(true);
                }
                self.advance();
            }
        }
        pointers
    }

    /// The parameter list of a function, after its `(`; eats the `)`. True: it ends with `...`.
    pub(super) fn parameters(&mut self) -> Parse<(Vec<Parameter>, bool)> {
        let mut parameters = Vec::new();
        if self.eat(Token::CloseParen) {
            return Ok((parameters, false));
        }
        if self.word(0) == "void" && self.peek_at(1) == Token::CloseParen {
            self.advance();
            self.advance();
            return Ok((parameters, false));
        }
        loop {
            if self.eat(Token::Ellipsis) {
                self.expect(Token::CloseParen, "`)`")?;
                return Ok((parameters, true));
            }
            let number = parameters.len();
            parameters.push(self.parameter(number)?);
            if self.eat(Token::CloseParen) {
                return Ok((parameters, false));
            }
            self.expect(Token::Comma, "`,` or `)`")?;
        }
    }

    /// One parameter; an unnamed one is called by its number, which no expression can mention.
    fn parameter(&mut self, number: usize) -> Parse<Parameter> {
        let start = self.span();
        let mut ty = self.type_name()?;
        if self.peek() == Token::OpenParen {
            return self.function_parameter(ty);
        }
        let name = if self.peek() == Token::Name {
            self.name("a parameter name")?
        } else {
            Name { text: format!("#{number}"), span: self.since(start) }
        };
        while self.peek() == Token::OpenBracket {
            ty.array = true;
            if !self.skip_group() {
                return Err(Failed);
            }
        }
        if ty.array {
            ty.pointers.push(false);
        }
        ty.span = self.since(start);
        Ok(Parameter { ty: Some(ty), name })
    }

    /// `void (CALL *name)(int, void *)`, after the result type.
    fn function_parameter(&mut self, mut ty: TypeName) -> Parse<Parameter> {
        let start = ty.span;
        self.expect(Token::OpenParen, "`(`")?;
        while self.peek() == Token::Name && self.peek_at(1) != Token::CloseParen {
            self.advance();
        }
        self.expect(Token::Star, "`*`")?;
        while self.peek() == Token::Name && self.peek_at(1) == Token::Name {
            self.advance();
        }
        let name = self.name("the name of the function pointer")?;
        self.expect(Token::CloseParen, "`)`")?;
        if self.peek() != Token::OpenParen || !self.skip_group() {
            return Err(self.unexpected("the parameters of the function pointer"));
        }
        ty.function = true;
        ty.span = self.since(start);
        Ok(Parameter { ty: Some(ty), name })
    }
}

pub(super) fn is_type_keyword(word: &str) -> bool {
    BUILT_IN.contains(&word) || TAGS.contains(&word) || QUALIFIERS.contains(&word) || word == "_Bool"
}

/// The usual spelling of a base type: `long unsigned` is `unsigned long`.
fn normal(words: &[&str]) -> String {
    if !words.iter().all(|w| BUILT_IN.contains(w)) {
        return words.join(" ");
    }
    let count = |word: &str| words.iter().filter(|w| **w == word).count();
    let unsigned = count("unsigned") > 0;
    let base = if count("char") > 0 {
        return ["char", "unsigned char", "signed char"][if unsigned { 1 } else { 2 * count("signed").min(1) }].into();
    } else if count("short") > 0 {
        "short"
    } else if count("long") > 1 {
        "long long"
    } else if count("double") > 0 {
        return if count("long") > 0 { "long double".into() } else { "double".into() };
    } else if count("long") > 0 {
        "long"
    } else if unsigned || count("int") + count("signed") > 0 {
        "int"
    } else {
        return words.join(" ");
    };
    if unsigned { format!("unsigned {base}") } else { base.into() }
}
