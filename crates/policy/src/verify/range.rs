//! Bounds of a number: as an unsigned and as a signed one.

use crate::execute::instruction::{Arithmetic, Condition};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
    pub signed_min: i64,
    pub signed_max: i64,
}

const LOW: u64 = u32::MAX as u64;

impl Range {
    pub const ANY: Self = Self { min: 0, max: u64::MAX, signed_min: i64::MIN, signed_max: i64::MAX };
    /// The range of any 32 bits.
    pub const WORD: Self = Self { min: 0, max: LOW, signed_min: 0, signed_max: LOW as i64 };

    pub const fn constant(value: u64) -> Self {
        Self { min: value, max: value, signed_min: value as i64, signed_max: value as i64 }
    }

    /// The range of an unsigned load of `bytes` bytes.
    pub fn of_bytes(bytes: u8) -> Self {
        if bytes >= 8 { Self::ANY } else { Self::unsigned(0, (1 << (8 * u32::from(bytes))) - 1) }
    }

    fn unsigned(min: u64, max: u64) -> Self {
        Self { min, max, ..Self::ANY }.settled().unwrap_or(Self::ANY)
    }

    fn signed(signed_min: i64, signed_max: i64) -> Self {
        Self { signed_min, signed_max, ..Self::ANY }.settled().unwrap_or(Self::ANY)
    }

    pub fn value(&self) -> Option<u64> {
        (self.min == self.max).then_some(self.min)
    }

    /// True if every value of `other` lies in this range.
    pub fn contains(&self, other: &Self) -> bool {
        self.min <= other.min
            && self.max >= other.max
            && self.signed_min <= other.signed_min
            && self.signed_max >= other.signed_max
    }

    /// Narrows each pair of bounds by the other; `None`: no value is left.
    fn settled(mut self) -> Option<Self> {
        for _ in 0..2 {
            if self.min > self.max || self.signed_min > self.signed_max {
                return None;
            }
            // Within one half, both orders agree.
            if (self.signed_min < 0) == (self.signed_max < 0) {
                self.min = self.min.max(self.signed_min as u64);
                self.max = self.max.min(self.signed_max as u64);
            }
            if self.min > self.max {
                return None;
            }
            if ((self.min as i64) < 0) == ((self.max as i64) < 0) {
                self.signed_min = self.signed_min.max(self.min as i64);
                self.signed_max = self.signed_max.min(self.max as i64);
            }
        }
        (self.min <= self.max && self.signed_min <= self.signed_max).then_some(self)
    }

    /// The low 32 bits, as a 32-bit instruction reads and leaves them.
    pub fn low(&self) -> Self {
        if self.max <= LOW {
            *self
        } else if self.min >> 32 == self.max >> 32 {
            Self::unsigned(self.min & LOW, self.max & LOW)
        } else {
            Self::WORD
        }
    }

    /// The result of an instruction other than `Move`.
    pub fn calculate(operation: Arithmetic, wide: bool, left: &Self, right: &Self) -> Self {
        if wide {
            return calculate(operation, 64, left, right);
        }
        let (left, right) = (left.low(), right.low());
        if operation == Arithmetic::ShiftRightSigned && left.max > i32::MAX as u64 {
            return Self::WORD;
        }
        calculate(operation, 32, &left, &right).low()
    }

    pub fn negated(&self, wide: bool) -> Self {
        Self::calculate(Arithmetic::Sub, wide, &Self::constant(0), self)
    }
}

/// The result in 64 bits; only shifts depend on the width of the instruction.
fn calculate(operation: Arithmetic, bits: u64, left: &Range, right: &Range) -> Range {
    use Arithmetic::{Add, And, Div, Mod, Move, Mul, Or, ShiftLeft, ShiftRight, ShiftRightSigned, Sub, Xor};
    match operation {
        Add => add(left, right),
        Sub => sub(left, right),
        Mul => match left.max.checked_mul(right.max) {
            Some(max) => Range::unsigned(left.min * right.min, max),
            None => Range::ANY,
        },
        // The verifier has refused divisors that can be 0.
        Div => Range::unsigned(left.min / right.max.max(1), left.max / right.min.max(1)),
        Mod => Range::unsigned(0, left.max.min(right.max.saturating_sub(1))),
        And => match (left.value(), right.value()) {
            (Some(a), Some(b)) => Range::constant(a & b),
            _ => Range::unsigned(0, left.max.min(right.max)),
        },
        Or => Range::unsigned(left.min.max(right.min), ones(left.max | right.max)),
        Xor => Range::unsigned(0, ones(left.max | right.max)),
        ShiftLeft => match right.value().map(|by| by & (bits - 1)) {
            Some(by) if left.max.leading_zeros() as u64 >= by => Range::unsigned(left.min << by, left.max << by),
            _ => Range::ANY,
        },
        ShiftRight => match right.value().map(|by| by & (bits - 1)) {
            Some(by) => Range::unsigned(left.min >> by, left.max >> by),
            None => Range::unsigned(0, left.max),
        },
        ShiftRightSigned => match right.value().map(|by| by & (bits - 1)) {
            Some(by) => Range::signed(left.signed_min >> by, left.signed_max >> by),
            None => Range::signed(left.signed_min.min(0), left.signed_max.max(-1)),
        },
        Move => *right,
    }
}

fn add(left: &Range, right: &Range) -> Range {
    let mut sum = Range::ANY;
    if let Some(max) = left.max.checked_add(right.max) {
        (sum.min, sum.max) = (left.min + right.min, max);
    }
    let low = left.signed_min.checked_add(right.signed_min);
    if let (Some(min), Some(max)) = (low, left.signed_max.checked_add(right.signed_max)) {
        (sum.signed_min, sum.signed_max) = (min, max);
    }
    sum.settled().unwrap_or(Range::ANY)
}

fn sub(left: &Range, right: &Range) -> Range {
    let mut difference = Range::ANY;
    if left.min >= right.max {
        (difference.min, difference.max) = (left.min - right.max, left.max - right.min);
    }
    let low = left.signed_min.checked_sub(right.signed_max);
    if let (Some(min), Some(max)) = (low, left.signed_max.checked_sub(right.signed_min)) {
        (difference.signed_min, difference.signed_max) = (min, max);
    }
    difference.settled().unwrap_or(Range::ANY)
}

/// The lowest number that consists of ones only and is not below `value`.
fn ones(value: u64) -> u64 {
    u64::MAX.checked_shr(value.leading_zeros()).unwrap_or(0)
}

/// The ranges of both sides if the condition is true (`holds`) or false; `None`: the outcome is
/// impossible.
pub fn assume(condition: Condition, holds: bool, wide: bool, left: &Range, right: &Range) -> Option<(Range, Range)> {
    if wide {
        return assume_wide(condition, holds, left, right);
    }
    let (low_left, low_right) = (left.low(), right.low());
    let signed = matches!(
        condition,
        Condition::SignedGreater
            | Condition::SignedGreaterOrEqual
            | Condition::SignedLess
            | Condition::SignedLessOrEqual
    );
    if signed && (low_left.max > i32::MAX as u64 || low_right.max > i32::MAX as u64) {
        return Some((*left, *right));
    }
    let (new_left, new_right) = assume_wide(condition, holds, &low_left, &low_right)?;
    // Knowledge of the low half holds for the whole number only if the upper half is zero.
    Some((if left.max <= LOW { new_left } else { *left }, if right.max <= LOW { new_right } else { *right }))
}

fn assume_wide(condition: Condition, holds: bool, left: &Range, right: &Range) -> Option<(Range, Range)> {
    use Condition::{
        BitsSet, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual, SignedGreater, SignedGreaterOrEqual,
        SignedLess, SignedLessOrEqual,
    };
    let swapped = |pair: Option<(Range, Range)>| pair.map(|(right, left)| (left, right));
    match (condition, holds) {
        (Equal, true) | (NotEqual, false) => equal(left, right),
        (Equal, false) | (NotEqual, true) => different(left, right),
        (Less, true) | (GreaterOrEqual, false) => less(left, right, 1),
        (LessOrEqual, true) | (Greater, false) => less(left, right, 0),
        (Greater, true) | (LessOrEqual, false) => swapped(less(right, left, 1)),
        (GreaterOrEqual, true) | (Less, false) => swapped(less(right, left, 0)),
        (SignedLess, true) | (SignedGreaterOrEqual, false) => signed_less(left, right, 1),
        (SignedLessOrEqual, true) | (SignedGreater, false) => signed_less(left, right, 0),
        (SignedGreater, true) | (SignedLessOrEqual, false) => swapped(signed_less(right, left, 1)),
        (SignedGreaterOrEqual, true) | (SignedLess, false) => swapped(signed_less(right, left, 0)),
        (BitsSet, _) => match (left.value(), right.value()) {
            (Some(a), Some(b)) if (a & b != 0) != holds => None,
            _ => Some((*left, *right)),
        },
    }
}

fn equal(left: &Range, right: &Range) -> Option<(Range, Range)> {
    let both = Range {
        min: left.min.max(right.min),
        max: left.max.min(right.max),
        signed_min: left.signed_min.max(right.signed_min),
        signed_max: left.signed_max.min(right.signed_max),
    }
    .settled()?;
    Some((both, both))
}

fn different(left: &Range, right: &Range) -> Option<(Range, Range)> {
    let without = |range: &Range, value: Option<u64>| {
        let mut range = *range;
        let Some(value) = value else { return Some(range) };
        if range.value() == Some(value) {
            return None;
        }
        // An excluded bound moves by one; this leaves a value, since the range has more than one.
        range.min += u64::from(range.min == value);
        range.max -= u64::from(range.max == value);
        range.signed_min = range.signed_min.saturating_add(i64::from(range.signed_min == value as i64));
        range.signed_max = range.signed_max.saturating_sub(i64::from(range.signed_max == value as i64));
        range.settled()
    };
    Some((without(left, right.value())?, without(right, left.value())?))
}

/// The ranges narrowed by left + gap <= right.
fn less(left: &Range, right: &Range, gap: u64) -> Option<(Range, Range)> {
    let (mut left, mut right) = (*left, *right);
    left.max = left.max.min(right.max.checked_sub(gap)?);
    right.min = right.min.max(left.min.checked_add(gap)?);
    Some((left.settled()?, right.settled()?))
}

fn signed_less(left: &Range, right: &Range, gap: i64) -> Option<(Range, Range)> {
    let (mut left, mut right) = (*left, *right);
    left.signed_max = left.signed_max.min(right.signed_max.checked_sub(gap)?);
    right.signed_min = right.signed_min.max(left.signed_min.checked_add(gap)?);
    Some((left.settled()?, right.settled()?))
}
