//! Short texts in shared memory, as words that everybody may load and store at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Up to `8 * WORDS` bytes, the rest NUL.
#[derive(Debug)]
#[repr(transparent)]
pub struct Text<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Text<WORDS> {
    pub const BYTES: usize = 8 * WORDS;

    /// Longer texts are cut off, between two characters.
    pub fn store(&self, text: &str) {
        for (word, value) in self.0.iter().zip(words::<WORDS>(text)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// True if it is this text, cut off as [`Text::store`] does.
    pub fn is(&self, text: &str) -> bool {
        self.0.iter().zip(words::<WORDS>(text)).all(|(word, wanted)| word.load(Ordering::Relaxed) == wanted)
    }

    /// Text that is safe on terminals: any process that shares the memory may have written any bytes.
    pub fn load(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        let text = String::from_utf8_lossy(&bytes);
        text.chars().take_while(|letter| *letter != '\0').filter(|letter| !letter.is_control()).collect()
    }
}

impl<const WORDS: usize> Default for Text<WORDS> {
    fn default() -> Self {
        Text(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

fn words<const WORDS: usize>(text: &str) -> [u64; WORDS] {
    let bytes = &text.as_bytes()[..text.floor_char_boundary(8 * WORDS)];
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_without_what_terminals_interpret() {
        let text = Text::<2>::default();
        assert_eq!(text.load(), "");
        text.store("a \u{7}device");
        assert_eq!((text.load().as_str(), text.is("a \u{7}device"), text.is("a")), ("a device", true, false));
        text.store("sixteen bytes, ä");
        assert_eq!(text.load(), "sixteen bytes, ", "the last letter does not fit as a whole");
        assert!(text.is("sixteen bytes, ä"));
        text.store("");
        assert!(text.is(""));
    }
}
