//! The effect of one instruction on the state.

use super::access::null;
use super::range::{Range, assume};
use super::state::{Region, State, Value};
use super::{Environment, Problem, Successor};
use crate::execute::helpers::{self, Answer, Argument};
use crate::execute::instruction::{Arithmetic, AtomicOperation, Condition, Instruction, Operand, Register};

/// Largest distance in bytes of an address from its region; farther ones are useless.
const FAR: i64 = 1 << 30;

pub fn step(environment: &Environment<'_>, instruction: &Instruction, state: &mut State) -> Result<Successor, Problem> {
    match *instruction {
        Instruction::Alu { operation: Arithmetic::Move, wide, to, from } => copy(state, wide, to, from)?,
        Instruction::Alu { wide, operation, to, from } => {
            let right = read(state, from)?;
            let left = set(state, to)?;
            let value = calculate(operation, wide, left, right)?;
            state.set(to, value);
        }
        Instruction::Negate { wide, to } => {
            let range = number(state, to, "negates")?;
            state.set(to, Value::number(range.negated(wide)));
        }
        Instruction::ByteOrder { to, bits, .. } => {
            number(state, to, "reorders")?;
            state.set(to, Value::number(Range::of_bytes(bits / 8)));
        }
        Instruction::LoadConstant { to, value } => state.set(to, Value::number(Range::constant(value))),
        Instruction::LoadMap { to, map } => state.set(to, Value::Map(map)),
        Instruction::LoadData { to, section, offset } => {
            let at = i64::from(offset);
            state.set(to, Value::Block { region: Region::Data(section), low: at, high: at, maybe_null: 0 });
        }
        Instruction::Half => {}
        Instruction::Load { bytes, to, base, offset } => {
            let value = environment.load(state, base, offset, bytes)?;
            state.set(to, value);
        }
        Instruction::Store { bytes, base, offset, from } => {
            let value = read(state, from)?;
            environment.store(state, base, offset, bytes, value)?;
        }
        Instruction::Atomic { wide, operation, fetch, base, offset, register } => {
            atomic(environment, state, (wide, operation, fetch), (base, offset), register)?;
        }
        Instruction::Jump { target } => return Ok(Successor::To(target)),
        Instruction::Branch { wide, condition, left, right, target } => {
            return branch(state, wide, condition, left, right, target);
        }
        Instruction::Call { helper } => call(environment, state, helper)?,
        Instruction::Exit => {
            if environment.answers {
                number(state, 0, "returns")?;
            }
            return Ok(Successor::End);
        }
    }
    Ok(Successor::Fall)
}

/// The value of a register that was written.
fn set(state: &State, register: Register) -> Result<Value, Problem> {
    match state.get(register) {
        Value::Unset => Err(Problem::new(format!("reads r{register}, which was never set"))
            .help("initialise the variable; every path of a function must return a value")),
        value => Ok(value),
    }
}

fn number(state: &State, register: Register, verb: &str) -> Result<Range, Problem> {
    match set(state, register)? {
        Value::Number { range, .. } => Ok(range),
        other => Err(Problem::new(format!("{verb} r{register}, which is {}, not a number", other.describe()))),
    }
}

fn read(state: &State, from: Operand) -> Result<Value, Problem> {
    match from {
        Operand::Register(register) => set(state, register),
        Operand::Immediate(value) => Ok(Value::number(Range::constant(i64::from(value) as u64))),
    }
}

fn copy(state: &mut State, wide: bool, to: Register, from: Operand) -> Result<(), Problem> {
    let value = read(state, from)?;
    let Value::Number { range, link } = value else {
        if !wide {
            return Err(Problem::new(format!("copies half of {}", value.describe())));
        }
        state.set(to, value);
        return Ok(());
    };
    let Operand::Register(source) = from else {
        state.set(to, Value::number(if wide { range } else { range.low() }));
        return Ok(());
    };
    if wide || range.max <= u64::from(u32::MAX) {
        // Source and destination are one number afterwards.
        let link = if link == 0 { state.new_link() } else { link };
        state.set(source, Value::Number { range, link });
        state.set(to, Value::Number { range, link });
    } else {
        state.set(to, Value::number(range.low()));
    }
    Ok(())
}

fn calculate(operation: Arithmetic, wide: bool, left: Value, right: Value) -> Result<Value, Problem> {
    match (left, right) {
        (Value::Number { range: a, .. }, Value::Number { range: b, .. }) => {
            let divisor = if wide { b } else { b.low() };
            if matches!(operation, Arithmetic::Div | Arithmetic::Mod) && divisor.min == 0 {
                return Err(
                    Problem::new("divides by a number that may be 0").help("test it first: `if (!divisor) ...`")
                );
            }
            Ok(Value::number(Range::calculate(operation, wide, &a, &b)))
        }
        (address, Value::Number { range, .. }) if wide && operation == Arithmetic::Add => {
            moved(address, range.signed_min, range.signed_max)
        }
        (Value::Number { range, .. }, address) if wide && operation == Arithmetic::Add => {
            moved(address, range.signed_min, range.signed_max)
        }
        (address, Value::Number { range, .. }) if wide && operation == Arithmetic::Sub => {
            let back = |by: i64| by.checked_neg().ok_or_else(|| unbounded(&address));
            moved(address, back(range.signed_max)?, back(range.signed_min)?)
        }
        (a, b) => {
            let address = if matches!(a, Value::Number { .. }) { b } else { a };
            Err(Problem::new(format!(
                "calculates with {}: only adding and subtracting numbers is possible",
                address.describe()
            ))
            .help("addresses must not become numbers; keep arrays small and index them with checked numbers"))
        }
    }
}

fn unbounded(address: &Value) -> Problem {
    Problem::new(format!("moves {} by a number without known bounds", address.describe()))
        .help("test the index against a constant limit before it is used (`if (index >= LIMIT) return 0;`)")
}

/// An address moved by a number between two bounds.
fn moved(address: Value, low: i64, high: i64) -> Result<Value, Problem> {
    if low < -FAR || high > FAR {
        return Err(unbounded(&address));
    }
    let near = |at: i64| if at.abs() <= FAR { Ok(at) } else { Err(unbounded(&address)) };
    match address {
        Value::Context { offset } if low == high => Ok(Value::Context { offset: near(offset + low)? }),
        Value::Stack { offset } if low == high => Ok(Value::Stack { offset: near(offset + low)? }),
        Value::Block { region, low: from, high: to, maybe_null: 0 } => {
            Ok(Value::Block { region, low: near(from + low)?, high: near(to + high)?, maybe_null: 0 })
        }
        Value::Block { .. } => {
            Err(Problem::new("calculates with an address that may be NULL")
                .help("test it first: `if (!value) return 0;`"))
        }
        Value::Context { .. } | Value::Stack { .. } => {
            Err(Problem::new(format!("moves {} by a number that is not constant", address.describe()))
                .help("arrays with a variable index belong into a map's value or a global variable"))
        }
        _ => Err(Problem::new(format!("calculates with {}", address.describe()))),
    }
}

fn atomic(
    environment: &Environment<'_>,
    state: &mut State,
    (wide, operation, fetch): (bool, AtomicOperation, bool),
    (base, offset): (Register, i16),
    register: Register,
) -> Result<(), Problem> {
    let bytes = if wide { 8 } else { 4 };
    number(state, register, "combines memory with")?;
    if operation == AtomicOperation::CompareExchange {
        number(state, 0, "compares memory with")?;
    }
    if matches!(state.get(base), Value::Context { .. }) {
        return Err(Problem::new("writes to the context, which is read-only"));
    }
    if !matches!(environment.load(state, base, offset, bytes)?, Value::Number { .. }) {
        return Err(Problem::new("changes an address in memory"));
    }
    environment.store(state, base, offset, bytes, Value::ANY)?;
    let old = Value::number(Range::of_bytes(bytes));
    if operation == AtomicOperation::CompareExchange {
        state.set(0, old);
    } else if fetch {
        state.set(register, old);
    }
    Ok(())
}

fn branch(
    state: &mut State,
    wide: bool,
    condition: Condition,
    left: Register,
    right: Operand,
    target: usize,
) -> Result<Successor, Problem> {
    let (a, b) = (set(state, left)?, read(state, right)?);
    let (Value::Number { range: a, link: link_a }, Value::Number { range: b, link: link_b }) = (a, b) else {
        return null_test(state, wide, condition, a, b, target);
    };
    let outcome = |holds: bool| {
        let (new_a, new_b) = assume(condition, holds, wide, &a, &b)?;
        let mut next = Box::new(state.clone());
        next.set(left, Value::Number { range: new_a, link: link_a });
        if link_a != 0 {
            next.learn(link_a, new_a);
        }
        if let Operand::Register(right) = right
            && right != left
        {
            next.set(right, Value::Number { range: new_b, link: link_b });
            // If both sides are one number, the first has been narrowed already.
            if link_b != 0 && link_b != link_a {
                next.learn(link_b, new_b);
            }
        }
        Some(next)
    };
    Ok(Successor::Either { target, taken: outcome(true), not_taken: outcome(false) })
}

/// Compares an address with NULL, the only comparison of addresses that is allowed.
fn null_test(
    state: &State,
    wide: bool,
    condition: Condition,
    left: Value,
    right: Value,
    target: usize,
) -> Result<Successor, Problem> {
    let zero = Value::number(Range::constant(0));
    let equal = matches!(condition, Condition::Equal);
    if !wide || right != zero || !matches!(condition, Condition::Equal | Condition::NotEqual) {
        let address = if matches!(left, Value::Number { .. }) { right } else { left };
        return Err(Problem::new(format!("compares {} with something else than NULL", address.describe()))
            .help("a program must not learn the values of addresses"));
    }
    let outcome = |null: bool| match left {
        Value::Block { maybe_null, .. } if maybe_null != 0 => {
            let mut next = Box::new(state.clone());
            next.resolve(maybe_null, null);
            Some(next)
        }
        _ if null => None,
        _ => Some(Box::new(state.clone())),
    };
    Ok(Successor::Either { target, taken: outcome(equal), not_taken: outcome(!equal) })
}

pub fn unknown_helper(number: u32) -> Problem {
    Problem::new(format!("there is no helper {number}")).help("aviary_policy.h declares all helpers")
}

fn call(environment: &Environment<'_>, state: &mut State, number_of: u32) -> Result<(), Problem> {
    let helper = helpers::find(number_of).ok_or_else(|| unknown_helper(number_of))?;
    let mut map = None;
    for (register, argument) in (1..).zip(helper.arguments) {
        let value = set(state, register)?;
        let wrong = |expected: &str| {
            Problem::new(format!("{} wants {expected} in r{register}, but it is {}", helper.name, value.describe()))
        };
        let declared = map.and_then(|map: usize| environment.maps.get(map));
        match (argument, value) {
            (Argument::Map, Value::Map(index)) => map = Some(index),
            (Argument::Map, _) => return Err(wrong("the address of a map")),
            (Argument::Context, Value::Context { offset: 0 }) => {}
            (Argument::Context, _) => return Err(wrong("the context")),
            (Argument::Number, Value::Number { .. }) => {}
            (Argument::Number, Value::Block { maybe_null, .. }) if maybe_null != 0 => return Err(null(register)),
            (Argument::Number, _) => return Err(wrong("a number")),
            (Argument::Key, _) => {
                let bytes = declared.map_or(0, |map| i64::from(map.key_size));
                environment.readable(state, register, bytes, "key")?;
            }
            (Argument::Value, _) => {
                let bytes = declared.map_or(0, |map| i64::from(map.value_size));
                environment.readable(state, register, bytes, "value")?;
            }
        }
    }
    for register in 0..=5 {
        state.set(register, Value::Unset);
    }
    let answer = match (helper.answer, map) {
        (Answer::Entry, Some(map)) => {
            let maybe_null = state.new_link();
            Value::Block { region: Region::Entry(map), low: 0, high: 0, maybe_null }
        }
        _ => Value::ANY,
    };
    state.set(0, answer);
    Ok(())
}
