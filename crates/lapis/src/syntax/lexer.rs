//! Tokens of LAPIS and of the C that is embedded in it.
//!
//! The lexer never fails: what it does not know becomes [`Token::Unknown`], which is a mistake
//! only where the parser meets it, because embedded C may hold anything.

use crate::syntax::source::Span;
use logos::Logos;

#[derive(Logos, Debug, Clone, Copy, PartialEq, Eq)]
#[logos(skip r"[ \t\r\n\f]+")]
#[logos(skip(r"//[^\n]*", allow_greedy = true))]
#[logos(skip r"/\*([^*]|\*+[^*/])*\*+/")]
pub enum Token {
    /// A line for the preprocessor, with its continuations.
    #[regex(r"#([^\n\\]|\\\r?\n|\\[^\n])*", allow_greedy = true)]
    Directive,
    #[regex(r"[\p{XID_Start}_$][\p{XID_Continue}$]*")]
    Name,
    /// Digits with whatever letters follow: the parser says what is wrong with them.
    #[regex(r"(0[xX][0-9A-Fa-f]+|[0-9]+)[A-Za-z0-9_]*")]
    Integer,
    #[regex(r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFlL]?")]
    #[regex(r"[0-9]+[eE][+-]?[0-9]+[fFlL]?", priority = 5)]
    Float,
    #[regex(r#""([^"\\\n]|\\[^\n]|\\\r?\n)*""#)]
    String,
    #[regex(r"'([^'\\\n]|\\[^\n])*'")]
    Character,
    #[token("...")]
    Ellipsis,
    #[token("(")]
    OpenParen,
    #[token(")")]
    CloseParen,
    #[token("{")]
    OpenBrace,
    #[token("}")]
    CloseBrace,
    #[token("[")]
    OpenBracket,
    #[token("]")]
    CloseBracket,
    #[token(";")]
    Semicolon,
    #[token(",")]
    Comma,
    #[token("->")]
    Arrow,
    #[token(".")]
    Dot,
    #[token("=")]
    Assign,
    #[token("?")]
    Question,
    #[token(":")]
    Colon,
    #[token("+")]
    Plus,
    #[token("-")]
    Minus,
    #[token("*")]
    Star,
    #[token("/")]
    Slash,
    #[token("%")]
    Percent,
    #[token("<<")]
    ShiftLeft,
    #[token(">>")]
    ShiftRight,
    #[token("&&")]
    AndAnd,
    #[token("||")]
    OrOr,
    #[token("&")]
    And,
    #[token("|")]
    Or,
    #[token("^")]
    Xor,
    #[token("~")]
    Tilde,
    #[token("!")]
    Bang,
    #[token("<=")]
    LessEqual,
    #[token(">=")]
    GreaterEqual,
    #[token("==")]
    Equal,
    #[token("!=")]
    NotEqual,
    #[token("<")]
    Less,
    #[token(">")]
    Greater,
    /// `+=`, `++` and their like: understood only to be refused by name.
    #[regex(r"(\+|-|\*|/|%|&|\||\^|<<|>>)=|\+\+|--")]
    Mutation,
    Unknown,
    /// After the last token.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lexeme {
    pub token: Token,
    pub span: Span,
}

/// All tokens of a text, with [`Token::End`] as the last.
pub fn lex(file: u32, text: &str) -> Vec<Lexeme> {
    let mut all: Vec<Lexeme> = Token::lexer(text)
        .spanned()
        .map(|(token, range)| Lexeme {
            token: token.unwrap_or(Token::Unknown),
            span: Span::new(file, range.start, range.end),
        })
        .collect();
    all.push(Lexeme { token: Token::End, span: Span::new(file, text.len(), text.len()) });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        lex(0, text).into_iter().map(|l| l.token).collect()
    }

    #[test]
    fn comments_and_directives() {
        use Token::*;
        assert_eq!(tokens("a // it's\n/* 'x' **/ b"), [Name, Name, End]);
        assert_eq!(tokens("#include <CL/cl.h>\nx"), [Directive, Name, End]);
        assert_eq!(tokens("#define A \\\n 1\nx"), [Directive, Name, End]);
    }

    #[test]
    fn literals() {
        use Token::*;
        assert_eq!(
            tokens(r#"0x1fUL 12 1.5f 1e3 'a' '\'' "a\"b""#),
            [Integer, Integer, Float, Float, Character, Character, String, End]
        );
        assert_eq!(tokens("a->b.c...;"), [Name, Arrow, Name, Dot, Name, Ellipsis, Semicolon, End]);
        assert_eq!(tokens("a<<=b"), [Name, Mutation, Name, End]);
    }

    #[test]
    fn never_stops_at_rubbish() {
        use Token::*;
        assert_eq!(tokens("@ x \" y\nz"), [Unknown, Name, Unknown, Name, End]);
        assert_eq!(tokens("/* open"), [Slash, Star, Name, End]);
    }
}
