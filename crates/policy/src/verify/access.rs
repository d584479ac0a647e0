//! Memory accesses of a program: their bounds, and the knowledge after them.

use super::range::Range;
use super::state::{Region, State, Value, in_frame};
use super::{Environment, Problem};
use crate::context::Context;
use crate::execute::instruction::Register;
use crate::limits;

const NULL_HELP: &str = "test it first: `if (!value) return 0;`";

impl Environment<'_> {
    fn size(&self, region: Region) -> i64 {
        match region {
            Region::Entry(map) => self.maps.get(map).map_or(0, |map| i64::from(map.value_size)),
            Region::Data(section) => self.data.get(section).map_or(0, |data| data.bytes as i64),
        }
    }

    fn name(&self, region: Region) -> String {
        match region {
            Region::Entry(map) => match self.maps.get(map) {
                Some(map) => format!("a value of map `{}`", map.name),
                None => "a map's value".into(),
            },
            Region::Data(_) => "the global variables".into(),
        }
    }

    /// Checks that `bytes` from this address on lie within its region.
    fn check_block(&self, region: Region, low: i64, high: i64, offset: i64, bytes: i64) -> Result<(), Problem> {
        let size = self.size(region);
        let (low, high) = (low.saturating_add(offset), high.saturating_add(offset));
        if low >= 0 && high.saturating_add(bytes) <= size {
            return Ok(());
        }
        let name = self.name(region);
        let place = if low == high { format!("offset {low}") } else { format!("an offset between {low} and {high}") };
        Err(Problem::new(format!("touches {bytes} bytes at {place} of {name}, which has {size} bytes"))
            .help("test the index against a constant limit before it is used"))
    }

    /// Checks a load through `base`; returns the loaded value.
    pub(super) fn load(&self, state: &State, base: Register, offset: i16, bytes: u8) -> Result<Value, Problem> {
        let (offset, size) = (i64::from(offset), i64::from(bytes));
        match state.get(base) {
            Value::Context { offset: start } => {
                let at = start.saturating_add(offset);
                if at < 0 || at + size > Context::VISIBLE as i64 {
                    return Err(outside_context(at, size));
                }
                if at % size != 0 {
                    return Err(Problem::new(format!("reads {size} bytes across fields of the context")));
                }
                Ok(Value::number(Range::of_bytes(bytes)))
            }
            Value::Stack { offset: start } => {
                let at = start.saturating_add(offset);
                check_stack(at, size)?;
                state.load(at, bytes).map_err(|problem| {
                    Problem::new(format!("{problem} (at {at} from the frame pointer)")).help("initialise the variable")
                })
            }
            Value::Block { maybe_null, .. } if maybe_null != 0 => Err(null(base)),
            Value::Block { region, low, high, .. } => {
                self.check_block(region, low, high, offset, size)?;
                Ok(Value::number(Range::of_bytes(bytes)))
            }
            other => Err(no_memory(base, &other)),
        }
    }

    /// Checks a store of `value` through `base`.
    pub(super) fn store(
        &self,
        state: &mut State,
        base: Register,
        offset: i16,
        bytes: u8,
        value: Value,
    ) -> Result<(), Problem> {
        let (offset, size) = (i64::from(offset), i64::from(bytes));
        let number = matches!(value, Value::Number { .. });
        match state.get(base) {
            Value::Context { .. } => {
                Err(Problem::new("writes to the context, which is read-only").help("keep data between runs in a map"))
            }
            Value::Stack { offset: start } => {
                let at = start.saturating_add(offset);
                check_stack(at, size)?;
                if !number && bytes != 8 {
                    return Err(Problem::new(format!("stores a part of {}", value.describe())));
                }
                state.store(at, bytes, value);
                Ok(())
            }
            Value::Block { maybe_null, .. } if maybe_null != 0 => Err(null(base)),
            Value::Block { region, low, high, .. } => {
                if !number {
                    return Err(Problem::new(format!(
                        "stores {} in {}: addresses must not leave the program",
                        value.describe(),
                        self.name(region)
                    )));
                }
                if let Region::Data(section) = region
                    && !self.data.get(section).is_some_and(|data| data.writable)
                {
                    return Err(Problem::new("writes to a constant"));
                }
                self.check_block(region, low, high, offset, size)
            }
            other => Err(no_memory(base, &other)),
        }
    }

    /// Checks that `bytes` of numbers are readable at the address in a register, as a helper reads
    /// them.
    pub(super) fn readable(&self, state: &State, register: Register, bytes: i64, what: &str) -> Result<(), Problem> {
        match state.get(register) {
            Value::Stack { offset } => {
                if !in_frame(offset, bytes) {
                    return Err(Problem::new(format!(
                        "the {what} in r{register} ({bytes} bytes at {offset} from the frame pointer) is not within the stack"
                    )));
                }
                state.numbers(offset, bytes).map_err(|problem| {
                    Problem::new(format!("the {what} of {bytes} bytes in r{register}: the helper {problem}"))
                        .help("the variable must be initialised and as large as the map's declaration says")
                })
            }
            Value::Context { offset } => {
                if offset < 0 || offset % 8 != 0 || offset.saturating_add(bytes) > Context::VISIBLE as i64 {
                    return Err(outside_context(offset, bytes));
                }
                Ok(())
            }
            Value::Block { maybe_null, .. } if maybe_null != 0 => Err(null(register)),
            Value::Block { region, low, high, .. } => self.check_block(region, low, high, 0, bytes),
            other => Err(Problem::new(format!(
                "the {what} in r{register} must be the address of {bytes} bytes, but is {}",
                other.describe()
            ))),
        }
    }
}

fn check_stack(at: i64, size: i64) -> Result<(), Problem> {
    if !in_frame(at, size) {
        return Err(Problem::new(format!(
            "touches {size} bytes at {at} from the frame pointer; the stack is -{} to 0",
            limits::MAX_STACK_BYTES
        ))
        .help("keep large things in a map"));
    }
    if at % size != 0 {
        return Err(Problem::new(format!(
            "touches {size} bytes of the stack at {at}, which is not a multiple of {size}"
        )));
    }
    Ok(())
}

fn outside_context(at: i64, size: i64) -> Problem {
    Problem::new(format!("reads {size} bytes at offset {at} of the context, which has {} bytes", Context::VISIBLE))
        .help("use the fields of __sk_buff in aviary_policy.h, and the helpers for what is not there")
}

pub(super) fn null(register: Register) -> Problem {
    Problem::new(format!("r{register} may be NULL here: the map may have no such entry")).help(NULL_HELP)
}

fn no_memory(base: Register, value: &Value) -> Problem {
    Problem::new(format!("uses r{base} as an address, but it is {}", value.describe()))
}
