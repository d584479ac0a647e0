//! Macros: found by the preprocessor, expanded here because only those that a specification
//! mentions are worth evaluating.

use crate::syntax::lexer::{Token, lex};
use std::collections::HashMap;

#[derive(Debug, Clone, PartialEq)]
pub struct Macro {
    /// None: not function-like.
    pub parameters: Option<Vec<String>>,
    pub body: String,
}

impl Macro {
    /// From the text after `#define`, name included.
    pub fn from_definition(text: &str) -> Option<(String, Macro)> {
        let text = text.trim_start();
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        if name.is_empty() {
            return None;
        }
        let (parameters, body) = match rest.strip_prefix('(') {
            Some(inner) => {
                let (list, body) = inner.split_once(')')?;
                (Some(list.split(',').map(|p| p.trim().to_string()).filter(|p| !p.is_empty()).collect()), body)
            }
            None => (None, rest),
        };
        Some((name.to_string(), Macro { parameters, body: body.trim().to_string() }))
    }
}

/// Longest expansion that is followed; macros can grow exponentially.
const MAX_EXPANSION: usize = 1 << 16;

/// The text of an object-like macro with every macro in it replaced; None if it is not one,
/// or uses what only a preprocessor can do (`#`, `##`).
pub fn expand(name: &str, macros: &HashMap<String, Macro>) -> Option<String> {
    let definition = macros.get(name).filter(|m| m.parameters.is_none())?;
    expand_text(&definition.body, macros, &mut vec![name.to_string()])
}

fn expand_text(text: &str, macros: &HashMap<String, Macro>, active: &mut Vec<String>) -> Option<String> {
    if active.len() > 64 {
        return None;
    }
    let tokens = lex(0, text);
    let word = |i: usize| text.get(tokens[i].span.start as usize..tokens[i].span.end as usize).unwrap_or("");
    let mut out = String::new();
    let mut at = 0;
    while tokens[at].token != Token::End {
        let token = tokens[at].token;
        if matches!(token, Token::Directive | Token::Unknown) || out.len() > MAX_EXPANSION {
            return None;
        }
        let name = word(at);
        at += 1;
        let found = macros.get(name).filter(|_| token == Token::Name && !active.iter().any(|a| a == name));
        let replacement = match found {
            None => name.to_string(),
            Some(Macro { parameters: None, body }) => nested(name, body, macros, active)?,
            Some(Macro { parameters: Some(_), .. }) if tokens[at].token != Token::OpenParen => name.to_string(),
            Some(Macro { parameters: Some(parameters), body }) => {
                let mut arguments = vec![String::new()];
                let mut depth = 1;
                at += 1;
                while depth > 0 {
                    match tokens[at].token {
                        Token::End => return None,
                        Token::OpenParen => depth += 1,
                        Token::CloseParen => depth -= 1,
                        Token::Comma if depth == 1 => arguments.push(String::new()),
                        _ => {}
                    }
                    if depth > 0 && !(depth == 1 && tokens[at].token == Token::Comma) {
                        let last = arguments.last_mut()?;
                        last.push_str(word(at));
                        last.push(' ');
                    }
                    at += 1;
                }
                nested(name, &substitute(body, parameters, &arguments)?, macros, active)?
            }
        };
        out += &replacement;
        out.push(' ');
    }
    Some(out)
}

fn nested(name: &str, body: &str, macros: &HashMap<String, Macro>, active: &mut Vec<String>) -> Option<String> {
    active.push(name.to_string());
    let result = expand_text(body, macros, active);
    active.pop();
    result
}

fn substitute(body: &str, parameters: &[String], arguments: &[String]) -> Option<String> {
    let mut out = String::new();
    for lexeme in lex(0, body) {
        let word = body.get(lexeme.span.start as usize..lexeme.span.end as usize)?;
        match parameters.iter().position(|p| p == word) {
            Some(n) => out += arguments.get(n)?,
            None => out += word,
        }
        out.push(' ');
        if out.len() > MAX_EXPANSION {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn macros(definitions: &[&str]) -> HashMap<String, Macro> {
        definitions.iter().filter_map(|d| Macro::from_definition(d)).collect()
    }

    fn expanded(name: &str, definitions: &[&str]) -> Option<String> {
        expand(name, &macros(definitions)).map(|t| t.split_whitespace().collect())
    }

    #[test]
    fn follows_references_and_calls() {
        assert_eq!(expanded("A", &["A (B << 2)", "B 3"]).as_deref(), Some("(3<<2)"));
        assert_eq!(expanded("A", &["A F(1, (2, 3))", "F(x, y) ((x) | (y))"]).as_deref(), Some("((1)|((2,3)))"));
        assert_eq!(expanded("cuMemAlloc", &["cuMemAlloc cuMemAlloc_v2"]).as_deref(), Some("cuMemAlloc_v2"));
        assert_eq!(expanded("f", &["f PTDS(f_v2)", "PTDS(api) api"]).as_deref(), Some("f_v2"));
    }

    #[test]
    fn gives_up_on_what_it_cannot_do() {
        assert_eq!(expanded("A", &["A A"]).as_deref(), Some("A"));
        assert_eq!(expanded("A", &["A P(x)", "P(x) x ## _ptds"]), None);
        assert_eq!(expanded("F", &["F(x) x"]), None);
        assert_eq!(expanded("A", &["A F(", "F(x) x"]), None);
        let mut growing: Vec<String> = (0..40).map(|n| format!("A{n} A{} A{}", n + 1, n + 1)).collect();
        growing.push("A40 x".into());
        let growing: Vec<&str> = growing.iter().map(String::as_str).collect();
        assert_eq!(expanded("A0", &growing), None);
    }
}
