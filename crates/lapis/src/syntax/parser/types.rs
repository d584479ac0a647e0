//! C types and parameters.

use crate::syntax::ast::{Name, Parameter, TypeName};
use crate::syntax::lexer::Token;
use crate::syntax::parser::{Failed, Parse, Parser};

const BUILT_IN: [&str; 13] = [
    "void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "_Bool", "_Complex", "__int128",
    "_Float16",
];
const TAGS: [&str; 3] = ["struct", "union", "enum"];
const QUALIFIERS: [&str; 8] =
    ["const", "volatile", "restrict", "__restrict", "__restrict__", "_Nullable", "_Nonnull", "_Null_unspecified"];

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
            } else if word == "_Atomic" && words.is_empty() {
                self.advance();
                // `_Atomic(int)`: the type inside, which the header knows better.
                if self.peek() == Token::OpenParen && !self.skip_group() {
                    return Err(Failed);
                }
                words.push("_Atomic");
                named = true;
                continue;
            } else if BUILT_IN.contains(&word) && !named {
                words.push(word);
            // A header may have a type of its own of this name.
            } else if word == "bool" && words.is_empty() && !self.is_known_type(word) {
                words.push("_Bool");
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
        let mut name = None;
        let parts = self.declarator(&mut name)?;
        match parts.as_slice() {
            [] => {}
            // `char *names[]`
            [Suffix::Array] => {
                ty.array = true;
                ty.pointers.push(false);
            }
            _ => ty.function = true,
        }
        ty.span = self.since(start);
        let name = name.unwrap_or_else(|| Name { text: format!("#{number}"), span: self.since(start) });
        Ok(Parameter { ty: Some(ty), name })
    }

    /// The parts around a name, after the base type and its stars: `(*(*get)(int))(float)`, `m[3][4]`. Answers what
    /// it makes of the type, from inside out; nothing for a plain name.
    fn declarator(&mut self, name: &mut Option<Name>) -> Parse<Vec<Suffix>> {
        let mut parts = Vec::new();
        if self.peek() == Token::OpenParen && self.begins_declarator() {
            self.advance();
            // A calling convention: `void (CALL *f)(int)`
            while self.peek() == Token::Name && self.peek_at(1) != Token::CloseParen {
                self.advance();
            }
            self.pointers();
            while self.peek() == Token::Name && self.peek_at(1) == Token::Name {
                self.advance();
            }
            parts = self.declarator(name)?;
            parts.push(Suffix::Pointer);
            self.expect(Token::CloseParen, "`)`")?;
        } else if self.peek() == Token::Name {
            *name = Some(self.name("a parameter name")?);
        }
        loop {
            let suffix = match self.peek() {
                Token::OpenBracket => Suffix::Array,
                Token::OpenParen => Suffix::Function,
                _ => return Ok(parts),
            };
            if !self.skip_group() {
                return Err(Failed);
            }
            parts.push(suffix);
        }
    }

    /// True if the parenthesis here holds a declarator, and no parameters: a star comes first, or a word and a star.
    fn begins_declarator(&self) -> bool {
        let mut ahead = 1;
        while self.peek_at(ahead) == Token::Name && !self.begins_type(ahead) {
            ahead += 1;
        }
        self.peek_at(ahead) == Token::Star
    }
}

/// One step from a declarator to its type.
enum Suffix {
    Array,
    Function,
    Pointer,
}

pub(super) fn is_type_keyword(word: &str) -> bool {
    BUILT_IN.contains(&word)
        || TAGS.contains(&word)
        || QUALIFIERS.contains(&word)
        || ["_Atomic", "bool"].contains(&word)
}

/// The usual spelling of a base type: `long unsigned` is `unsigned long`.
fn normal(words: &[&str]) -> String {
    if !words.iter().all(|w| BUILT_IN.contains(w)) {
        return words.join(" ");
    }
    let count = |word: &str| words.iter().filter(|w| **w == word).count();
    let unsigned = count("unsigned") > 0;
    if let Some(own) = ["_Bool", "_Complex", "_Float16"].iter().find(|word| count(word) > 0) {
        // Other words may be part of it (`long double _Complex`).
        let rest = ["long", "float", "double"].iter().flat_map(|word| std::iter::repeat_n(*word, count(word)));
        return [*own].into_iter().chain(rest).collect::<Vec<_>>().join(" ");
    }
    if count("__int128") > 0 {
        return if unsigned { "unsigned __int128".into() } else { "__int128".into() };
    }
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
