//! The used and free parts of the heap: pure bookkeeping, in units of a page.
//!
//! The heap is a row of extents without gaps. Each extent records its length and state at its first
//! and at its last unit, so that neighbours find each other. Free extents are linked in lists by
//! size, four per doubling. *Dirty* extents, whose pages may still hold data, have lists apart from
//! *clean* ones, which read as zeros and occupy no memory.

use std::ops::Range;

pub const UNIT_BYTES: usize = 4096;

const MAX_LENGTH: u32 = (1 << 30) - 1;
/// The number that stands for no unit.
const NONE: u32 = u32::MAX;
/// Lists per state: `class_of(MAX_LENGTH)` is 115.
const CLASSES: usize = 120;
/// Extents examined in the one size class whose members may be too short.
const MAX_SEARCH_STEPS: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnitState {
    Used = 1,
    Dirty = 2,
    Clean = 3,
}

/// The record of one unit; zeros in a unit where no extent begins or ends.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Unit {
    /// State and length of the extent that begins here.
    head: u32,
    /// State and length of the extent that ends here.
    foot: u32,
    /// Neighbours in the list of the free extent that begins here.
    previous: u32,
    next: u32,
}

fn pack(length: u32, state: UnitState) -> u32 {
    length | (state as u32) << 30
}

fn unpack(word: u32) -> Option<(u32, UnitState)> {
    let state = match word >> 30 {
        1 => UnitState::Used,
        2 => UnitState::Dirty,
        3 => UnitState::Clean,
        _ => return None,
    };
    Some((word & MAX_LENGTH, state))
}

/// The list for extents of this length; every extent in it is at least as long as the shortest
/// length of the class.
fn class_of(length: u32) -> usize {
    if length < 4 {
        return length as usize;
    }
    let group = length.ilog2();
    4 * (group as usize - 1) + ((length >> (group - 2)) & 3) as usize
}

fn shortest_of(class: usize) -> u32 {
    if class < 4 {
        return class as u32;
    }
    (4 + class as u32 % 4) << (class / 4 - 1)
}

struct Lists {
    first: [u32; CLASSES],
    /// Bit set of the lists that are not empty.
    filled: u128,
}

impl Lists {
    const EMPTY: Lists = Lists { first: [NONE; CLASSES], filled: 0 };
}

pub struct Extents<'a> {
    units: &'a mut [Unit],
    dirty: Lists,
    clean: Lists,
    /// Units in dirty extents, whose memory is kept.
    kept: u32,
}

impl<'a> Extents<'a> {
    pub const fn none() -> Extents<'a> {
        Extents { units: &mut [], dirty: Lists::EMPTY, clean: Lists::EMPTY, kept: 0 }
    }

    /// The heap as one clean extent. `units` are zeros.
    pub fn new(units: &'a mut [Unit]) -> Extents<'a> {
        let length = units.len() as u32;
        let mut extents = Extents { units, ..Extents::none() };
        extents.put(0, length, UnitState::Clean);
        extents
    }

    fn lists(&mut self, state: UnitState) -> &mut Lists {
        if state == UnitState::Dirty { &mut self.dirty } else { &mut self.clean }
    }

    fn mark(&mut self, at: u32, length: u32, state: UnitState) {
        let word = pack(length, state);
        self.units[at as usize].head = word;
        self.units[(at + length - 1) as usize].foot = word;
    }

    fn unmark(&mut self, at: u32, length: u32) {
        self.units[at as usize].head = 0;
        self.units[(at + length - 1) as usize].foot = 0;
    }

    /// Adds a free extent, without merging it with its neighbours.
    fn put(&mut self, at: u32, length: u32, state: UnitState) {
        if length == 0 {
            return;
        }
        self.mark(at, length, state);
        let class = class_of(length);
        let lists = self.lists(state);
        let next = std::mem::replace(&mut lists.first[class], at);
        lists.filled |= 1 << class;
        self.units[at as usize].previous = NONE;
        self.units[at as usize].next = next;
        if next != NONE {
            self.units[next as usize].previous = at;
        }
        if state == UnitState::Dirty {
            self.kept += length;
        }
    }

    /// Removes a free extent from its list and from the records.
    fn remove(&mut self, at: u32, length: u32, state: UnitState) {
        let Unit { previous, next, .. } = self.units[at as usize];
        if next != NONE {
            self.units[next as usize].previous = previous;
        }
        if previous != NONE {
            self.units[previous as usize].next = next;
        } else {
            let class = class_of(length);
            let lists = self.lists(state);
            lists.first[class] = next;
            if next == NONE {
                lists.filled &= !(1 << class);
            }
        }
        if state == UnitState::Dirty {
            self.kept -= length;
        }
        self.unmark(at, length);
    }

    /// Finds a free extent of this state with at least `length` units.
    fn find(&mut self, length: u32, state: UnitState) -> Option<(u32, u32)> {
        let own = class_of(length);
        let fits = if shortest_of(own) < length { own + 1 } else { own };
        let lists = self.lists(state);
        let class = (lists.filled >> fits).trailing_zeros() as usize + fits;
        let mut at = if class < CLASSES { lists.first[class] } else { lists.first[own] };
        for _ in 0..MAX_SEARCH_STEPS {
            let (found, _) = unpack(self.units.get(at as usize)?.head)?;
            if found >= length {
                return Some((at, found));
            }
            at = self.units[at as usize].next;
        }
        None
    }

    /// Takes `length` units whose first number plus `base` is a multiple of `align`. Returns that
    /// number, and true if the units read as zeros.
    pub fn take(&mut self, length: u32, align: u32, base: u64) -> Option<(u32, bool)> {
        let wanted = length.checked_add(align - 1).filter(|n| *n < MAX_LENGTH && length > 0)?;
        for state in [UnitState::Dirty, UnitState::Clean] {
            let Some((found, available)) = self.find(wanted, state) else { continue };
            self.remove(found, available, state);
            let address = base + u64::from(found);
            let at = found + (address.next_multiple_of(u64::from(align)) - address) as u32;
            self.put(found, at - found, state);
            self.put(at + length, found + available - at - length, state);
            self.mark(at, length, UnitState::Used);
            return Some((at, state == UnitState::Clean));
        }
        None
    }

    /// The length of the used extent that begins at this unit; `None` if none begins there.
    pub fn length(&self, at: u32) -> Option<u32> {
        match unpack(self.units.get(at as usize)?.head)? {
            (length, UnitState::Used) => Some(length),
            _ => None,
        }
    }

    /// Frees a used extent, which becomes dirty. Returns the whole free extent that contains it
    /// after merging; `None` if no used extent begins there.
    pub fn give_back(&mut self, at: u32) -> Option<Range<u32>> {
        let length = self.length(at)?;
        self.unmark(at, length);
        Some(self.merge(at, length, UnitState::Dirty))
    }

    /// Merges a free range with the neighbours of equal state.
    fn merge(&mut self, mut at: u32, mut length: u32, state: UnitState) -> Range<u32> {
        let before = at.checked_sub(1).and_then(|last| unpack(self.units[last as usize].foot));
        if let Some((more, neighbour)) = before
            && neighbour == state
        {
            at -= more;
            length += more;
            self.remove(at, more, state);
        }
        let behind = self.units.get((at + length) as usize).and_then(|unit| unpack(unit.head));
        if let Some((more, neighbour)) = behind
            && neighbour == state
        {
            self.remove(at + length, more, state);
            length += more;
        }
        self.put(at, length, state);
        at..at + length
    }

    /// Grows or shrinks a used extent in place. False: there is no room behind it.
    pub fn resize(&mut self, at: u32, length: u32) -> bool {
        let Some(now) = self.length(at).filter(|_| length > 0) else { return false };
        if length > now {
            let (behind, more) = (at + now, length - now);
            match self.units.get(behind as usize).and_then(|unit| unpack(unit.head)) {
                Some((available, state)) if state != UnitState::Used && available >= more => {
                    self.remove(behind, available, state);
                    self.put(behind + more, available - more, state);
                }
                _ => return false,
            }
        }
        self.unmark(at, now);
        self.mark(at, length, UnitState::Used);
        if length < now {
            self.merge(at + length, now - length, UnitState::Dirty);
        }
        true
    }

    /// Free units whose memory is kept.
    pub fn kept(&self) -> u32 {
        self.kept
    }

    /// Any dirty extent.
    pub fn first_dirty(&self) -> Option<Range<u32>> {
        let class = self.dirty.filled.trailing_zeros() as usize;
        let at = *self.dirty.first.get(class)?;
        let (length, _) = unpack(self.units.get(at as usize)?.head)?;
        Some(at..at + length)
    }

    /// Marks a dirty extent as clean, after its memory was returned to the system.
    pub fn cleaned(&mut self, extent: Range<u32>) {
        let length = extent.end - extent.start;
        self.remove(extent.start, length, UnitState::Dirty);
        self.merge(extent.start, length, UnitState::Clean);
    }

    /// The first used extent at or behind `at`, a unit where an extent begins.
    pub fn used_from(&self, mut at: u32) -> Option<Range<u32>> {
        loop {
            let (length, state) = unpack(self.units.get(at as usize)?.head)?;
            if state == UnitState::Used {
                return Some(at..at + length);
            }
            at += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_hold_their_lengths() {
        for length in (1..100_000).chain([MAX_LENGTH - 1, MAX_LENGTH]) {
            let class = class_of(length);
            assert!(class < CLASSES && shortest_of(class) <= length, "{length}");
            assert!(shortest_of(class + 1) > length, "{length}");
        }
    }

    /// Checks that every unit belongs to exactly one extent and that free neighbours differ in
    /// state.
    fn check(extents: &Extents) {
        let (mut at, mut kept, mut last) = (0, 0, UnitState::Used);
        while (at as usize) < extents.units.len() {
            let (length, state) = unpack(extents.units[at as usize].head).unwrap();
            assert_eq!(extents.units[(at + length - 1) as usize].foot, pack(length, state));
            for inner in at + 1..at + length {
                assert_eq!(extents.units[inner as usize].head, 0, "unit {inner}");
                assert_eq!(extents.units[inner as usize - 1].foot, 0, "unit {inner}");
            }
            assert!(state == UnitState::Used || state != last, "two free neighbours of one state at {at}");
            if state == UnitState::Dirty {
                kept += length;
            }
            (at, last) = (at + length, state);
        }
        assert_eq!(kept, extents.kept());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(u32, u32),
        GiveBack(usize),
        Resize(usize, u32),
        Clean,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1u32..60, 0u32..4).prop_map(|(length, align)| Step::Take(length, 1 << align)),
            2 => any::<usize>().prop_map(Step::GiveBack),
            2 => (any::<usize>(), 1u32..60).prop_map(|(which, length)| Step::Resize(which, length)),
            1 => Just(Step::Clean),
        ]
    }

    proptest! {
        #[test]
        fn records_stay_consistent(steps in prop::collection::vec(step(), 1..200)) {
            let mut units = vec![Unit::default(); 512];
            let mut extents = Extents::new(&mut units);
            let mut used: Vec<(u32, u32)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(length, align) => if let Some((at, _)) = extents.take(length, align, 3) {
                        prop_assert!((at + 3).is_multiple_of(align));
                        prop_assert!(used.iter().all(|(start, n)| at + length <= *start || start + n <= at));
                        used.push((at, length));
                    },
                    Step::GiveBack(which) if !used.is_empty() => {
                        let (at, _) = used.swap_remove(which % used.len());
                        extents.give_back(at);
                        prop_assert_eq!(extents.length(at), None);
                    }
                    Step::Resize(which, length) if !used.is_empty() => {
                        let which = which % used.len();
                        let (at, now) = used[which];
                        let done = extents.resize(at, length);
                        prop_assert!(done || length > now);
                        if done {
                            used[which].1 = length;
                        }
                    }
                    Step::Clean => while let Some(extent) = extents.first_dirty() {
                        extents.cleaned(extent);
                    },
                    _ => {}
                }
                check(&extents);
                for (at, length) in &used {
                    prop_assert_eq!(extents.length(*at), Some(*length));
                }
            }
            for (at, _) in used {
                extents.give_back(at);
            }
            while let Some(extent) = extents.first_dirty() {
                extents.cleaned(extent);
            }
            check(&extents);
            prop_assert_eq!(extents.take(512, 1, 0), Some((0, true)));
        }
    }

    #[test]
    fn freed_extent_is_reused_and_not_reported_as_zero() {
        let mut units = vec![Unit::default(); 100];
        let mut extents = Extents::new(&mut units);
        assert_eq!(extents.take(10, 1, 0), Some((0, true)));
        assert_eq!(extents.take(10, 1, 0), Some((10, true)));
        assert_eq!(extents.give_back(0), Some(0..10));
        assert_eq!(extents.give_back(0), None);
        assert_eq!(extents.take(4, 1, 0), Some((0, false)));
        assert_eq!(extents.used_from(4), Some(10..20));
        assert!(!extents.resize(10, 91) && extents.resize(10, 90));
        assert_eq!(extents.take(7, 1, 0), None);
        assert_eq!(extents.length(5), None, "inside a free extent");
        extents.give_back(5);
        assert_eq!(extents.take(6, 1, 0), Some((4, false)));
    }
}
