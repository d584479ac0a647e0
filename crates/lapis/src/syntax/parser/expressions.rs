//! Expressions, by precedence climbing.

use crate::model::{Binary, Unary};
use crate::syntax::ast::{AstExpr, AstExprKind, TypeName};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::lexer::Token;
use crate::syntax::parser::{Failed, Parse, Parser, literals};
use crate::syntax::source::Span;

/// Operator and how tightly it binds; larger is tighter.
fn binary(token: Token) -> Option<(Binary, u8)> {
    Some(match token {
        Token::OrOr => (Binary::LogicalOr, 1),
        Token::AndAnd => (Binary::LogicalAnd, 2),
        Token::Or => (Binary::Or, 3),
        Token::Xor => (Binary::Xor, 4),
        Token::And => (Binary::And, 5),
        Token::Equal => (Binary::Equal, 6),
        Token::NotEqual => (Binary::NotEqual, 6),
        Token::Less => (Binary::Less, 7),
        Token::LessEqual => (Binary::LessEqual, 7),
        Token::Greater => (Binary::Greater, 7),
        Token::GreaterEqual => (Binary::GreaterEqual, 7),
        Token::ShiftLeft => (Binary::ShiftLeft, 8),
        Token::ShiftRight => (Binary::ShiftRight, 8),
        Token::Plus => (Binary::Add, 9),
        Token::Minus => (Binary::Subtract, 9),
        Token::Star => (Binary::Multiply, 10),
        Token::Slash => (Binary::Divide, 10),
        Token::Percent => (Binary::Remainder, 10),
        _ => return None,
    })
}

/// Most tokens of one expression.
const LENGTH: usize = 600;

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Parse<AstExpr> {
        let outermost = self.expression_start.is_none();
        if outermost {
            self.expression_start = Some(self.position);
        }
        let result = self.nested(|p| p.whole_expression());
        if outermost {
            self.expression_start = None;
        }
        result
    }

    /// Chains like `a + a + a` become deep trees: their length is bounded as nesting is.
    fn bounded(&mut self) -> Parse<()> {
        let start = self.expression_start.unwrap_or(self.position);
        if self.position - start <= LENGTH {
            return Ok(());
        }
        let span = self.span();
        Err(self
            .report(Diagnostic::error(span, "this expression is too long").label(format!("more than {LENGTH} tokens"))))
    }

    fn whole_expression(&mut self) -> Parse<AstExpr> {
        let expression = self.conditional()?;
        if matches!(self.peek(), Token::Assign | Token::Mutation) {
            let span = self.span();
            return Err(self.report(
                Diagnostic::error(span, "expressions have no side effects")
                    .label("this would change a value")
                    .help("to keep state, call a `utility` function from `after` or `after_server`"),
            ));
        }
        Ok(expression)
    }

    fn conditional(&mut self) -> Parse<AstExpr> {
        let condition = self.binary(0)?;
        if !self.eat(Token::Question) {
            return Ok(condition);
        }
        let then = self.expression()?;
        self.expect(Token::Colon, "`:`")?;
        let otherwise = self.nested(|p| p.conditional())?;
        let span = condition.span.to(otherwise.span);
        Ok(AstExpr { kind: AstExprKind::Conditional(condition.into(), then.into(), otherwise.into()), span })
    }

    fn binary(&mut self, minimum: u8) -> Parse<AstExpr> {
        let mut left = self.unary()?;
        while let Some((operator, tightness)) = binary(self.peek()).filter(|(_, t)| *t > minimum) {
            self.bounded()?;
            self.advance();
            let right = self.nested(|p| p.binary(tightness))?;
            let span = left.span.to(right.span);
            left = AstExpr { kind: AstExprKind::Binary(operator, left.into(), right.into()), span };
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parse<AstExpr> {
        self.nested(|p| p.unary_inner())
    }

    fn unary_inner(&mut self) -> Parse<AstExpr> {
        let start = self.span();
        let wrap: fn(Box<AstExpr>) -> AstExprKind = match self.peek() {
            Token::Minus => |e| AstExprKind::Unary(Unary::Negate, e),
            Token::Bang => |e| AstExprKind::Unary(Unary::Not, e),
            Token::Tilde => |e| AstExprKind::Unary(Unary::Complement, e),
            Token::Plus => AstExprKind::Plus,
            Token::Star => AstExprKind::Dereference,
            Token::Mutation => return Err(self.side_effect(start)),
            Token::And => {
                return Err(self.report(
                    Diagnostic::error(start, "addresses cannot be taken")
                        .label("`&` has no meaning here")
                        .help("values cross between two processes; an address means nothing on the other side"),
                ));
            }
            Token::OpenParen if self.is_cast() => return self.cast(start),
            Token::Name if self.word(0) == "sizeof" => return self.sizeof(start),
            _ => return self.postfix(),
        };
        self.advance();
        let operand = self.unary()?;
        let span = start.to(operand.span);
        Ok(AstExpr { kind: wrap(operand.into()), span })
    }

    fn side_effect(&mut self, span: Span) -> Failed {
        self.report(Diagnostic::error(span, "expressions have no side effects").label("this would change a value"))
    }

    /// `(T) x`: a type in the parentheses, or a name that can only be one.
    fn is_cast(&self) -> bool {
        if self.begins_type(1) {
            return true;
        }
        if self.peek_at(1) != Token::Name {
            return false;
        }
        match self.peek_at(2) {
            // `(T *)`, which no product ends like
            Token::Star => {
                let mut ahead = 3;
                while self.peek_at(ahead) == Token::Star || self.word(ahead) == "const" {
                    ahead += 1;
                }
                self.peek_at(ahead) == Token::CloseParen
            }
            // `(T) x`: two operands in a row
            Token::CloseParen => matches!(
                self.peek_at(3),
                Token::Name
                    | Token::Integer
                    | Token::Float
                    | Token::String
                    | Token::Character
                    | Token::Bang
                    | Token::Tilde
            ),
            _ => false,
        }
    }

    fn cast(&mut self, start: Span) -> Parse<AstExpr> {
        self.advance();
        let ty = self.type_name()?;
        self.expect(Token::CloseParen, "`)`")?;
        let operand = self.unary()?;
        let span = start.to(operand.span);
        Ok(AstExpr { kind: AstExprKind::Cast(ty, operand.into()), span })
    }

    fn sizeof(&mut self, start: Span) -> Parse<AstExpr> {
        self.advance();
        let is_type = self.peek() == Token::OpenParen
            && self.peek_at(1) == Token::Name
            && (self.begins_type(1) || matches!(self.peek_at(2), Token::CloseParen | Token::Star));
        if !is_type {
            let operand = self.unary()?;
            let span = start.to(operand.span);
            return Ok(AstExpr { kind: AstExprKind::SizeofExpr(operand.into()), span });
        }
        self.advance();
        let ty: TypeName = self.type_name()?;
        self.expect(Token::CloseParen, "`)`")?;
        Ok(AstExpr { kind: AstExprKind::SizeofType(ty), span: self.since(start) })
    }

    fn postfix(&mut self) -> Parse<AstExpr> {
        let mut value = self.primary()?;
        loop {
            let start = value.span;
            self.bounded()?;
            let kind = match self.peek() {
                Token::OpenBracket => {
                    self.advance();
                    let index = self.expression()?;
                    self.expect(Token::CloseBracket, "`]`")?;
                    AstExprKind::Element(value.into(), index.into())
                }
                Token::Dot => {
                    self.advance();
                    AstExprKind::Member(value.into(), self.name("the name of a member")?)
                }
                Token::Arrow => {
                    self.advance();
                    AstExprKind::Arrow(value.into(), self.name("the name of a member")?)
                }
                Token::Mutation if matches!(self.word(0), "++" | "--") => {
                    let span = self.span();
                    return Err(self.side_effect(span));
                }
                _ => return Ok(value),
            };
            value = AstExpr { kind, span: self.since(start) };
        }
    }

    fn primary(&mut self) -> Parse<AstExpr> {
        let span = self.span();
        let word = self.word(0);
        let kind = match self.peek() {
            Token::Integer => {
                let Some((value, unsigned, long)) = literals::integer(word) else {
                    self.advance();
                    return Err(self.report(
                        Diagnostic::error(span, format!("`{word}` is not a number")).label("malformed number"),
                    ));
                };
                AstExprKind::Int { value, unsigned, long }
            }
            Token::Float => AstExprKind::Float(word.trim_end_matches(['f', 'F', 'l', 'L']).parse().unwrap_or(0.0)),
            Token::Character => {
                let Some(value) = literals::character(word) else {
                    self.advance();
                    return Err(self.report(
                        Diagnostic::error(span, "a character literal holds one character").label("not one character"),
                    ));
                };
                AstExprKind::Int { value, unsigned: false, long: false }
            }
            Token::String => {
                let text = self.string("a string")?;
                return Ok(AstExpr { kind: AstExprKind::String(text.value), span: text.span });
            }
            Token::Name => return self.name_or_call(),
            Token::OpenParen => {
                self.advance();
                let inner = self.expression()?;
                self.expect(Token::CloseParen, "`)`")?;
                return Ok(AstExpr { kind: inner.kind, span: self.since(span) });
            }
            _ => return Err(self.unexpected("an expression")),
        };
        self.advance();
        Ok(AstExpr { kind, span })
    }

    fn name_or_call(&mut self) -> Parse<AstExpr> {
        let name = self.name("a name")?;
        let start = name.span;
        if !self.eat(Token::OpenParen) {
            return Ok(AstExpr { kind: AstExprKind::Name(name.text), span: start });
        }
        let mut arguments = Vec::new();
        if !self.eat(Token::CloseParen) {
            loop {
                arguments.push(self.expression()?);
                if self.eat(Token::CloseParen) {
                    break;
                }
                self.expect(Token::Comma, "`,` or `)`")?;
            }
        }
        Ok(AstExpr { kind: AstExprKind::Call(name, arguments), span: self.since(start) })
    }
}
