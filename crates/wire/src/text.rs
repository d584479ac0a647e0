//! Texts of a peer on their way to a log or a terminal.
//!
//! A program's name, a version or a reason comes from a process that may be hostile. Printed as it is, it could move the
//! cursor, set the terminal's title, or look like another line of the log.

use std::fmt::{self, Write};

/// Shows a text with every character escaped (`\n`, `\u{1b}`) that does something other than appear: control
/// characters, ends of lines, changes of direction, invisible ones. Everything else, backslashes included, stays, so
/// that escaping twice changes nothing.
///
/// ```
/// use aviary_wire::Shown;
///
/// // A peer's text cannot end a line of the log or move the cursor.
/// assert_eq!(Shown("a\nb").to_string().lines().count(), 1);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Shown<T>(pub T);

impl<T: fmt::Display> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper(f), "{}", self.0)
    }
}

/// The same as a text of its own, for tables that count its characters.
pub fn shown(text: impl fmt::Display) -> String {
    Shown(text).to_string()
}

struct Escaper<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, letter)) = rest.char_indices().find(|(_, letter)| acts(*letter)) {
            write!(self.0, "{}{}", &rest[..at], letter.escape_default())?;
            rest = &rest[at + letter.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// True if a terminal or a reader of lines does something other than show it.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            // Joiners and marks of direction; ends of lines, embeddings and overrides; isolates and operators.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            // Letters of tags, which are invisible.
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_acts_is_escaped_and_what_appears_stays() {
        let hostile = "3.0\x1b[2J\r\naviary[node]: ended\u{9b}31m\u{7}\u{202e}gpj\u{2028}\0";
        let expected = r"3.0\u{1b}[2J\r\naviary[node]: ended\u{9b}31m\u{7}\u{202e}gpj\u{2028}\u{0}";
        assert_eq!(shown(hostile), expected);
        for harmless in ["", r#"C:\x "quoted""#, "ÄÖ 東京 λ", "a b'c"] {
            assert_eq!(shown(harmless), harmless);
        }
        assert_eq!(format!("[{}]", Shown(format_args!("{}\t{}", 1, "\x08"))), r"[1\t\u{8}]");
    }

    proptest! {
        #[test]
        fn nothing_that_acts_is_left_and_twice_is_once(text in any::<String>()) {
            let once = shown(&text);
            prop_assert!(!once.chars().any(acts));
            prop_assert_eq!(shown(&once), once);
        }
    }
}
