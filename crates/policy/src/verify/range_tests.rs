//! The result of any calculation lies within the range that the verifier calculates.

use super::range::{Range, assume};
use crate::execute::instruction::{Arithmetic, Condition};
use crate::execute::interpret::{calculate, holds};
use proptest::prelude::*;

/// Numbers near the bounds where errors are likely.
fn number() -> impl Strategy<Value = u64> {
    let edges = prop::sample::select(vec![
        0u64,
        1,
        7,
        31,
        63,
        64,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        u64::MAX,
    ]);
    prop_oneof![
        (edges, -3i64..4).prop_map(|(edge, by)| edge.wrapping_add(by as u64)),
        any::<u64>(),
        any::<u32>().prop_map(u64::from),
        0u64..100
    ]
}

/// A range as the verifier would have it, and a number in it: comparisons make the bounds, as in
/// programs.
fn ranged() -> impl Strategy<Value = (Range, u64)> {
    (number(), number(), number(), any::<u8>()).prop_map(|(value, one, other, how)| {
        let mut range = if how & 1 == 0 { Range::ANY } else { Range::constant(value) };
        for (bound, bit) in [(one, 2), (other, 4)] {
            let condition = if how & bit == 0 { Condition::LessOrEqual } else { Condition::SignedLessOrEqual };
            let truth = holds(condition, true, value, bound);
            let narrowed = assume(condition, truth, true, &range, &Range::constant(bound));
            range = narrowed.expect("the value is in the range, so one outcome is possible").0;
        }
        (range, value)
    })
}

fn has(range: &Range, value: u64) -> bool {
    range.contains(&Range::constant(value))
}

const OPERATIONS: [Arithmetic; 12] = [
    Arithmetic::Add,
    Arithmetic::Sub,
    Arithmetic::Mul,
    Arithmetic::Div,
    Arithmetic::Or,
    Arithmetic::And,
    Arithmetic::ShiftLeft,
    Arithmetic::ShiftRight,
    Arithmetic::Mod,
    Arithmetic::Xor,
    Arithmetic::Move,
    Arithmetic::ShiftRightSigned,
];

const CONDITIONS: [Condition; 11] = [
    Condition::Equal,
    Condition::NotEqual,
    Condition::Greater,
    Condition::GreaterOrEqual,
    Condition::Less,
    Condition::LessOrEqual,
    Condition::BitsSet,
    Condition::SignedGreater,
    Condition::SignedGreaterOrEqual,
    Condition::SignedLess,
    Condition::SignedLessOrEqual,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn results_lie_in_the_calculated_range((a, x) in ranged(), (b, y) in ranged(), wide: bool) {
        prop_assert!(has(&a, x) && has(&b, y));
        for operation in OPERATIONS {
            let divisor = if wide { y } else { y & 0xffff_ffff };
            if matches!(operation, Arithmetic::Div | Arithmetic::Mod) && divisor == 0 {
                continue;
            }
            let range = Range::calculate(operation, wide, &a, &b);
            let result = calculate(operation, wide, x, y);
            prop_assert!(has(&range, result), "{operation:?} {wide} {x:#x} {y:#x} = {result:#x}: {range:x?}");
        }
        prop_assert!(has(&a.low(), x & 0xffff_ffff));
        prop_assert!(has(&a.negated(wide), calculate(Arithmetic::Sub, wide, 0, x)));
    }

    #[test]
    fn comparisons_exclude_no_possible_value((a, x) in ranged(), (b, y) in ranged(), wide: bool) {
        for condition in CONDITIONS {
            let truth = holds(condition, wide, x, y);
            let narrowed = assume(condition, truth, wide, &a, &b);
            prop_assert!(narrowed.is_some(), "{condition:?} {wide} {x:#x} {y:#x} is {truth}");
            let (left, right) = narrowed.unwrap_or((a, b));
            prop_assert!(has(&left, x) && has(&right, y), "{condition:?} {wide} {x:#x} {y:#x}: {left:x?} {right:x?}");
        }
    }
}
