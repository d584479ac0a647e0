//! Amounts that a call or an object holds, so that exactly these are returned.

/// Amounts per resource, charged and not yet returned. Most objects hold one or none.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Charges {
    parts: Vec<(usize, u64)>,
}

impl Charges {
    /// Records an amount that was charged. A zero is not worth an entry.
    pub fn add(&mut self, resource: usize, amount: u64) {
        if amount == 0 {
            return;
        }
        match self.parts.iter_mut().find(|(r, _)| *r == resource) {
            // The account itself refuses sums beyond 64 bits, so a holding of charged amounts cannot reach them.
            Some((_, sum)) => *sum = sum.saturating_add(amount),
            None => self.parts.push((resource, amount)),
        }
    }

    /// Takes up to `amount` out and says how much that was.
    pub fn take(&mut self, resource: usize, amount: u64) -> u64 {
        let Some(at) = self.parts.iter().position(|(r, _)| *r == resource) else { return 0 };
        let taken = amount.min(self.parts[at].1);
        self.parts[at].1 -= taken;
        if self.parts[at].1 == 0 {
            self.parts.swap_remove(at);
        }
        taken
    }

    pub fn merge(&mut self, other: &mut Charges) {
        for (resource, amount) in other.drain() {
            self.add(resource, amount);
        }
    }

    pub fn drain(&mut self) -> impl Iterator<Item = (usize, u64)> + use<> {
        std::mem::take(&mut self.parts).into_iter()
    }

    /// Items and amounts.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        self.parts.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_more_than_it_holds() {
        let mut holding = Charges::default();
        holding.add(3, 10);
        holding.add(3, 5);
        assert_eq!(holding.take(3, 12), 12);
        assert_eq!(holding.take(3, 12), 3);
        assert_eq!(holding.take(3, 12), 0);
        assert_eq!(holding.take(1, 12), 0);
        assert!(holding.is_empty());
    }

    #[test]
    fn merging_moves_everything() {
        let (mut a, mut b) = (Charges::default(), Charges::default());
        a.add(0, 1);
        b.add(0, 2);
        b.add(1, 4);
        a.merge(&mut b);
        assert!(b.is_empty());
        assert_eq!((a.take(0, 9), a.take(1, 9)), (3, 4));
    }
}
