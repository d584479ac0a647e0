//! A policy's maps: the memory that outlives a decision.

use crate::limits;
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A hash that contains every key: a lookup of a new key enters zeros.
    Counters,
    Hash,
    /// An array: all entries exist, as zeros, under the keys 0, 1, ...
    Array,
}

/// A `map_def` of the source. Maps with equal declarations keep their content when a policy is
/// replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    pub name: String,
    pub kind: Kind,
    /// Bytes of a key, 4 or 8.
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    /// True if each tenant has entries of its own, and room for `max_entries` of them.
    pub per_tenant: bool,
}

/// Bytes of a `map_def`.
pub const DEFINITION: usize = 20;
const PER_TENANT: u32 = 1;

impl Declaration {
    /// Reads a `map_def`; zeros stand for the defaults.
    pub fn read(name: &str, definition: &[u8; DEFINITION]) -> Result<Self, String> {
        let word = |at: usize| {
            let bytes = [definition[at * 4], definition[at * 4 + 1], definition[at * 4 + 2], definition[at * 4 + 3]];
            u32::from_le_bytes(bytes)
        };
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let kind = match word(0) {
            0 => Kind::Counters,
            1 => Kind::Hash,
            2 => Kind::Array,
            other => return Err(format!("there is no map type {other}")),
        };
        let (key_size, value_size, max_entries) = (or(word(1), 4), or(word(2), 8), or(word(3), 1024));
        if key_size != 4 && key_size != 8 {
            return Err(format!("a key has 4 or 8 bytes, not {key_size}"));
        }
        if value_size > limits::MAX_VALUE_BYTES || !value_size.is_multiple_of(8) {
            return Err(format!("a value has 8, 16, ... {} bytes, not {value_size}", limits::MAX_VALUE_BYTES));
        }
        if max_entries > limits::MAX_ENTRIES {
            return Err(format!("at most {} entries are possible, not {max_entries}", limits::MAX_ENTRIES));
        }
        if word(4) & !PER_TENANT != 0 {
            return Err(format!("unknown flags {:#x}", word(4)));
        }
        let per_tenant = word(4) & PER_TENANT != 0;
        Ok(Self { name: name.to_owned(), kind, key_size, value_size, max_entries, per_tenant })
    }

    pub fn bytes(&self) -> u64 {
        u64::from(self.value_size) * u64::from(self.max_entries)
    }
}

/// Refuses maps whose total size exceeds the limits.
pub fn check_total(declarations: &[Declaration]) -> Result<(), String> {
    let sum = |per_tenant| {
        declarations.iter().filter(|map| map.per_tenant == per_tenant).map(Declaration::bytes).sum::<u64>()
    };
    if declarations.len() > limits::MAX_MAPS {
        return Err(format!("{} maps; at most {} are possible", declarations.len(), limits::MAX_MAPS));
    }
    if sum(false) > limits::MAX_SHARED_BYTES {
        return Err(format!(
            "the shared maps have {} bytes; at most {} are possible",
            sum(false),
            limits::MAX_SHARED_BYTES
        ));
    }
    if sum(true) > limits::MAX_TENANT_BYTES {
        return Err(format!(
            "the per-tenant maps have {} bytes for each tenant; at most {} are possible",
            sum(true),
            limits::MAX_TENANT_BYTES
        ));
    }
    Ok(())
}

/// A hasher for keys that are small numbers chosen by the policy's author: speed matters,
/// resistance to collisions does not.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

type Fast<V> = HashMap<u64, V, BuildHasherDefault<Mix>>;

/// The entries of a map, or of one tenant in it. Values do not move during the table's life.
struct Table {
    index: Fast<u32>,
    free: Vec<u32>,
    used: u32,
    values: Box<[Cell<u8>]>,
}

impl Table {
    fn new(declaration: &Declaration) -> Self {
        let values = vec![Cell::new(0); declaration.bytes() as usize].into_boxed_slice();
        Self { index: Fast::default(), free: Vec::new(), used: 0, values }
    }
}

/// The reason why an update or removal was refused; the numbers are those that C programs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Missing = -2,
    Full = -7,
    Exists = -17,
    Invalid = -22,
}

pub struct Map {
    pub declaration: Declaration,
    shared: Option<Table>,
    tenants: Fast<Table>,
}

impl Map {
    pub fn new(declaration: &Declaration) -> Self {
        let shared = (!declaration.per_tenant).then(|| Table::new(declaration));
        Self { declaration: declaration.clone(), shared, tenants: Fast::default() }
    }

    fn table(&mut self, tenant: u64) -> Option<&mut Table> {
        if let Some(shared) = &mut self.shared {
            return Some(shared);
        }
        if !self.tenants.contains_key(&tenant) {
            if self.tenants.len() >= limits::MAX_TENANTS {
                return None;
            }
            self.tenants.insert(tenant, Table::new(&self.declaration));
        }
        self.tenants.get_mut(&tenant)
    }

    /// All values that a decision about this tenant can reach.
    pub fn values(&self, tenant: u64) -> &[Cell<u8>] {
        match &self.shared {
            Some(shared) => &shared.values,
            None => self.tenants.get(&tenant).map_or(&[], |table| &table.values),
        }
    }

    /// Offset of a key's value in [`Map::values`].
    pub fn lookup(&mut self, tenant: u64, key: u64) -> Option<usize> {
        let (kind, size, limit) =
            (self.declaration.kind, self.declaration.value_size as usize, self.declaration.max_entries);
        let table = self.table(tenant)?;
        if kind == Kind::Array {
            return (key < u64::from(limit)).then(|| key as usize * size);
        }
        match table.index.get(&key) {
            Some(slot) => Some(*slot as usize * size),
            None if kind == Kind::Counters => self.enter(tenant, key).ok(),
            None => None,
        }
    }

    /// Enters a new key with zeros and returns the offset of its value.
    fn enter(&mut self, tenant: u64, key: u64) -> Result<usize, Refused> {
        let (size, limit) = (self.declaration.value_size as usize, self.declaration.max_entries);
        let table = self.table(tenant).ok_or(Refused::Full)?;
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if table.used < limit => {
                table.used += 1;
                table.used - 1
            }
            None => return Err(Refused::Full),
        };
        table.index.insert(key, slot);
        let start = slot as usize * size;
        table.values[start..start + size].iter().for_each(|byte| byte.set(0));
        Ok(start)
    }

    /// Offset at which the value of a key is to be written. Flags: 0 any, 1 only new, 2 only
    /// existing keys.
    pub fn place(&mut self, tenant: u64, key: u64, flags: u64) -> Result<usize, Refused> {
        if flags > 2 {
            return Err(Refused::Invalid);
        }
        let known = match self.declaration.kind {
            Kind::Array => Some(self.lookup(tenant, key).ok_or(Refused::Full)?),
            _ => {
                let size = self.declaration.value_size as usize;
                let table = self.table(tenant).ok_or(Refused::Full)?;
                table.index.get(&key).map(|slot| *slot as usize * size)
            }
        };
        match (known, flags) {
            (Some(_), 1) => Err(Refused::Exists),
            (None, 2) => Err(Refused::Missing),
            (Some(at), _) => Ok(at),
            (None, _) => self.enter(tenant, key),
        }
    }

    pub fn delete(&mut self, tenant: u64, key: u64) -> Result<(), Refused> {
        if self.declaration.kind == Kind::Array {
            return Err(Refused::Invalid);
        }
        let table = self.table(tenant).ok_or(Refused::Missing)?;
        let slot = table.index.remove(&key).ok_or(Refused::Missing)?;
        table.free.push(slot);
        Ok(())
    }

    pub fn forget(&mut self, tenant: u64) {
        self.tenants.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: Kind, max_entries: u32, per_tenant: bool) -> Map {
        Map::new(&Declaration { name: "m".into(), kind, key_size: 8, value_size: 8, max_entries, per_tenant })
    }

    #[test]
    fn hash_is_bounded_and_reuses_deleted_entries() {
        let mut hash = map(Kind::Hash, 2, false);
        assert_eq!(hash.lookup(1, 7), None);
        let first = hash.place(1, 7, 0).unwrap();
        hash.values(1)[first].set(9);
        assert_eq!(hash.place(1, 7, 1), Err(Refused::Exists));
        assert_eq!(hash.place(1, 8, 2), Err(Refused::Missing));
        hash.place(1, 8, 0).unwrap();
        assert_eq!(hash.place(1, 9, 0), Err(Refused::Full));
        hash.delete(1, 7).unwrap();
        assert_eq!(hash.delete(1, 7), Err(Refused::Missing));
        let again = hash.place(1, 9, 0).unwrap();
        assert_eq!((again, hash.values(1)[again].get()), (first, 0), "the freed room, without its old content");
    }

    #[test]
    fn tenants_have_their_own_entries_and_room() {
        let mut counters = map(Kind::Counters, 1, true);
        let at = counters.lookup(1, 5).unwrap();
        counters.values(1)[at].set(3);
        assert_eq!(counters.lookup(1, 6), None, "tenant 1 has no more room");
        let other = counters.lookup(2, 5).unwrap();
        assert_eq!(counters.values(2)[other].get(), 0);
        counters.forget(1);
        let at = counters.lookup(1, 6).unwrap();
        assert_eq!(counters.values(1)[at].get(), 0);
    }

    #[test]
    fn array_has_its_indices_and_no_others() {
        let mut array = map(Kind::Array, 4, false);
        assert_eq!(array.lookup(0, 3), Some(24));
        assert_eq!(array.lookup(0, 4), None);
        assert_eq!(array.lookup(0, u64::MAX), None);
        assert_eq!(array.place(0, 4, 0), Err(Refused::Full));
        assert_eq!(array.delete(0, 0), Err(Refused::Invalid));
    }
}
