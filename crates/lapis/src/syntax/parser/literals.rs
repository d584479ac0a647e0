//! Values of C literals.

/// The bytes of a string literal, quotes included in `text`. Unknown escapes stand for themselves.
pub fn unquote(text: &str) -> String {
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or("");
    let mut out = String::new();
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('\r') => {
                chars.next_if_eq(&'\n');
            }
            Some('\n') | None => {}
            Some('x') => out.extend(number(&mut chars, 16, 2)),
            Some(digit @ '0'..='7') => {
                let mut rest = digit.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(next) = chars.next_if(|c| c.is_digit(8)) else { break };
                    rest = rest * 8 + next.to_digit(8).unwrap_or(0);
                }
                out.extend(char::from_u32(rest));
            }
            Some(other) => out.push(escape(other)),
        }
    }
    out
}

fn escape(c: char) -> char {
    match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'v' => '\x0b',
        other => other,
    }
}

fn number(chars: &mut std::iter::Peekable<std::str::Chars>, radix: u32, digits: usize) -> Option<char> {
    let mut value = 0;
    for _ in 0..digits {
        let Some(digit) = chars.next_if(|c| c.is_digit(radix)) else { break };
        value = value * radix + digit.to_digit(radix)?;
    }
    char::from_u32(value)
}

/// Value of a character literal; None unless it is exactly one character.
pub fn character(text: &str) -> Option<i128> {
    let value = unquote(text);
    let mut chars = value.chars();
    let first = chars.next()?;
    (chars.next().is_none()).then_some(i128::from(first as u32))
}

/// Value of an integer literal, and whether its suffix says unsigned and long.
pub fn integer(text: &str) -> Option<(i128, bool, bool)> {
    let hexadecimal = text.len() > 1 && text[..2].eq_ignore_ascii_case("0x");
    let end = if hexadecimal {
        2 + text[2..].find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len() - 2)
    } else {
        text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())
    };
    let (digits, suffix) = text.split_at(end);
    let value = if hexadecimal {
        i128::from_str_radix(&digits[2..], 16).ok()?
    } else if digits.len() > 1 && digits.starts_with('0') {
        i128::from_str_radix(digits, 8).ok()?
    } else {
        digits.parse().ok()?
    };
    let suffix = suffix.to_ascii_lowercase();
    matches!(suffix.as_str(), "" | "u" | "l" | "ul" | "lu" | "ll" | "ull" | "llu").then_some((
        value,
        suffix.contains('u'),
        suffix.contains('l'),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings() {
        assert_eq!(unquote(r#""a\n\x41\101\"""#), "a\nAA\"");
        assert_eq!(unquote("\""), "");
    }

    #[test]
    fn integers() {
        assert_eq!(integer("0x1fUL"), Some((31, true, true)));
        assert_eq!(integer("017"), Some((15, false, false)));
        assert_eq!(integer("18446744073709551615u"), Some((u64::MAX.into(), true, false)));
        assert_eq!(integer("12ab"), None);
        assert_eq!(integer("089"), None);
        assert_eq!(character("'\\0'"), Some(0));
        assert_eq!(character("''"), None);
    }
}
