//! The helpers, called by machine code with arguments that the verifier has checked.

use crate::execute::helpers;
use crate::execute::jit::frame::StackFrame;
use crate::map::Map;

pub type Native = unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut StackFrame) -> u64;

/// The address of a helper's function; the verifier accepts no other numbers.
pub fn address(helper: u32) -> Native {
    match helper {
        helpers::LOOKUP => lookup,
        helpers::UPDATE => update,
        helpers::DELETE => delete,
        helpers::AMOUNT => amount,
        _ => time,
    }
}

/// The map with a number, the tenant, and the key at an address.
///
/// # Safety
/// `frame` was made by `CompiledCode::run`; `key` points to as many readable bytes as the map's
/// keys have.
unsafe fn map_and_key<'a>(number: u64, key: u64, frame: *mut StackFrame) -> Option<(&'a mut Map, u64, u64)> {
    // SAFETY: `run` holds both borrows while the code runs, and the code itself touches values only
    // through the raw addresses of `Cell`s: no other reference to the maps exists until the helper
    // returns.
    let (memory, context) = unsafe { (&mut *(*frame).memory, &*(*frame).context) };
    let map = memory.maps.get_mut(number as usize)?;
    let key = if map.declaration.key_size == 8 {
        // SAFETY: the caller's promise; no alignment is assumed.
        unsafe { (key as *const u64).read_unaligned() }
    } else {
        // SAFETY: the caller's promise; no alignment is assumed.
        u64::from(unsafe { (key as *const u32).read_unaligned() })
    };
    Some((map, context.tenant, key))
}

unsafe extern "C" fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64, frame: *mut StackFrame) -> u64 {
    // SAFETY: the verifier has checked map and key; the frame comes from the code's prologue.
    let Some((map, tenant, key)) = (unsafe { map_and_key(map, key, frame) }) else { return 0 };
    match map.lookup(tenant, key) {
        Some(at) => map.values(tenant).get(at).map_or(0, |_| map.values(tenant).as_ptr() as u64 + at as u64),
        None => 0,
    }
}

unsafe extern "C" fn update(map: u64, key: u64, value: u64, flags: u64, _: u64, frame: *mut StackFrame) -> u64 {
    // SAFETY: the verifier has checked map and key; the frame comes from the code's prologue.
    let Some((map, tenant, key)) = (unsafe { map_and_key(map, key, frame) }) else { return u64::MAX };
    let size = map.declaration.value_size as usize;
    let mut copy = [0u8; crate::limits::MAX_VALUE_BYTES as usize];
    let Some(copy) = copy.get_mut(..size) else { return u64::MAX };
    // SAFETY: the verifier has checked that `size` bytes are readable at `value`; `copy` is a local
    // array.
    unsafe { std::ptr::copy_nonoverlapping(value as *const u8, copy.as_mut_ptr(), size) };
    match map.place(tenant, key, flags) {
        Ok(at) => {
            map.values(tenant).iter().skip(at).zip(copy.iter()).for_each(|(cell, byte)| cell.set(*byte));
            0
        }
        Err(refused) => refused as i64 as u64,
    }
}

unsafe extern "C" fn delete(map: u64, key: u64, _: u64, _: u64, _: u64, frame: *mut StackFrame) -> u64 {
    // SAFETY: the verifier has checked map and key; the frame comes from the code's prologue.
    let Some((map, tenant, key)) = (unsafe { map_and_key(map, key, frame) }) else { return u64::MAX };
    map.delete(tenant, key).map_or_else(|refused| refused as i64 as u64, |()| 0)
}

unsafe extern "C" fn time(_: u64, _: u64, _: u64, _: u64, _: u64, frame: *mut StackFrame) -> u64 {
    // SAFETY: `run` holds the borrow of the context while the code runs.
    unsafe { (*(*frame).context).now_ns }
}

unsafe extern "C" fn amount(_: u64, resource: u64, _: u64, _: u64, _: u64, frame: *mut StackFrame) -> u64 {
    // SAFETY: `run` holds the borrow of the context while the code runs.
    unsafe { &*(*frame).context }.amount(resource)
}
