//! Parts of outputs that the application got ahead of the reply.

/// Parts of the arena, by begin and end.
#[derive(Default)]
pub(crate) struct Early(Vec<(u64, u64)>);

impl Early {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn note(&mut self, begin: u64, length: usize) {
        let end = begin + length as u64;
        match self.0.last_mut() {
            Some(last) if last.1 == begin => last.1 = end,
            _ => self.0.push((begin, end)),
        }
    }

    /// What is missing of `length` bytes at `begin`: how far behind `begin` each part lies, and its length.
    pub fn missing(&mut self, begin: u64, length: usize) -> Vec<(usize, usize)> {
        self.0.sort_unstable();
        let (end, mut at, mut missing) = (begin + length as u64, begin, Vec::new());
        let known = self.0.iter().copied().filter(|part| part.1 > begin && part.0 < end);
        for part in known.chain([(end, end)]) {
            if part.0 > at {
                missing.push(((at - begin) as usize, (part.0 - at) as usize));
            }
            at = at.max(part.1);
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_in_any_order_is_not_missing() {
        let mut early = Early::default();
        assert_eq!(early.missing(100, 50), [(0, 50)]);
        assert_eq!(early.missing(100, 0), []);
        for (begin, length) in [(120, 10), (130, 5), (0, 100), (105, 5), (150, 50), (107, 2)] {
            early.note(begin, length);
        }
        assert_eq!(early.missing(100, 50), [(0, 5), (10, 10), (35, 15)]);
        assert_eq!(early.missing(120, 10), []);
        assert_eq!(early.missing(90, 200), [(10, 5), (20, 10), (45, 15), (110, 90)]);
        early.clear();
        assert_eq!(early.missing(120, 10), [(0, 10)]);
    }
}
