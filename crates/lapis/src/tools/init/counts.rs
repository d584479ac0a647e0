//! Counts: the numbers beside pointers that say how many elements they have.

use crate::model::TypeKind;
use crate::tools::init::subject::{Subject, bytes_of};
use crate::tools::init::words::{has_word, looks_listed, looks_plural, singular, stem, words};

/// Words that a name of a number of elements has, and of a number of bytes.
pub(super) const COUNTS: [&str; 10] =
    ["count", "num", "n", "nb", "numof", "entries", "elements", "ndims", "nelem", "rank"];
pub(super) const BYTES: [&str; 6] = ["size", "bytes", "len", "length", "sizes", "nbytes"];

/// A count beside a pointer: how the specification writes it, and the sign for it.
pub(super) struct ElementCount {
    pub expression: String,
    pub parameter: usize,
    pub why: String,
}

impl Subject<'_> {
    /// The number beside a pointer that says how many elements it has; with `bytes` also one that is a size.
    pub(super) fn count(&self, n: usize, bytes: bool) -> Option<ElementCount> {
        if let Some(told) = self.evidence.get(n).and_then(|e| e.count.as_ref())
            && let Some(parameter) = self.names.iter().position(|name| name == told)
        {
            return Some(ElementCount {
                expression: told.clone(),
                parameter,
                why: format!("the header says that it has {told}"),
            });
        }
        let related = |m: usize| {
            let (own, other) = (singular(&stem(&self.names[n])), stem(&self.names[m]));
            own.len() > 1 && other.contains(&own)
        };
        let is_bound = |m: usize| {
            let name = &self.names[m];
            let counts = has_word(name, &COUNTS) || bounds_room(name) || name.to_ascii_lowercase().ends_with("count");
            let sizes = has_word(name, &BYTES) || name.to_ascii_lowercase().ends_with("size");
            // A count of elements, or of bytes where the elements are bytes.
            (bytes || !sizes) && (sizes || counts)
        };
        let value = |m: usize| matches!(self.types[m].kind, TypeKind::Int { .. });
        let behind = |m: usize| matches!(&self.types[m].kind, TypeKind::Pointer { to, constant: false } if matches!(to.kind, TypeKind::Int { .. }) && bytes_of(to) != Some(1));
        // A number that says how much there is has no count of its own.
        let constant = matches!(&self.types[n].kind, TypeKind::Pointer { constant: true, .. });
        if self.counts_itself(n) && !(constant && looks_plural(&self.names[n])) {
            return None;
        }
        let all = || (0..self.types.len()).filter(|&m| m != n && is_bound(m));
        let is_next = |m: usize| m + 1 == n || n + 1 == m;
        // By its name first, then by its place.
        let found = all()
            .find(|&m| value(m) && related(m) && (is_next(m) || !self.has_nearer(m, n)))
            .or_else(|| all().find(|&m| value(m) && is_next(m) && !self.belongs_elsewhere(m, n)))
            .or_else(|| self.far(n, &value, &is_bound));
        if let Some(m) = found {
            let name = self.names[m].clone();
            return Some(ElementCount {
                why: format!("`{name}` counts `{}`", self.names[n]),
                expression: name,
                parameter: m,
            });
        }
        if constant {
            return None;
        }
        // A number that is told and tells: nvmlX(device, unsigned int *count, thing *things).
        let is_number =
            |k: usize| matches!(&self.types[k].kind, TypeKind::Pointer { to, .. } if bytes_of(to).is_some());
        // Numbers in a row are answers, each by itself.
        let in_row = is_number(n) && n + 1 < self.types.len() && is_number(n + 1) && !looks_listed(&self.names[n]);
        let m = all().find(|&m| behind(m) && is_next(m) && (m < n && !in_row || related(m)))?;
        let only = all().filter(|&m| value(m)).count() == 0;
        only.then(|| ElementCount {
            expression: format!("*{}", self.names[m]),
            parameter: m,
            why: format!("`{}` bounds `{}`", self.names[m], self.names[n]),
        })
    }

    /// True if a number is named after the pointer, or says a length.
    pub(super) fn is_length_of(&self, count: &ElementCount, n: usize) -> bool {
        let name = self.names.get(count.parameter).map(String::as_str).unwrap_or_default();
        let own = singular(&stem(&self.names[n]));
        has_word(name, &BYTES) || own.len() > 1 && stem(name).contains(&own)
    }

    /// True if a list that the number at `m` stands beside is named alike: the number is that one's.
    pub(super) fn has_nearer(&self, m: usize, n: usize) -> bool {
        let own = singular(&stem(&self.names[n]));
        [m.checked_sub(1), Some(m + 1)]
            .into_iter()
            .flatten()
            .filter(|&k| k < self.types.len() && k != n)
            .any(|k| matches!(self.types[k].kind, TypeKind::Pointer { .. }) && stem(&self.names[k]).contains(&own))
    }

    pub(super) fn counts_itself(&self, n: usize) -> bool {
        let is_number =
            matches!(&self.types[n].kind, TypeKind::Pointer { to, .. } if matches!(to.kind, TypeKind::Int { .. }));
        is_number && (has_word(&self.names[n], &COUNTS) || has_word(&self.names[n], &BYTES))
    }

    /// True if some other parameter says how many there are of something.
    pub(super) fn is_bounded(&self, n: usize) -> bool {
        (0..self.types.len()).any(|m| {
            let number = match &self.types[m].kind {
                TypeKind::Int { .. } => true,
                TypeKind::Pointer { to, .. } => matches!(to.kind, TypeKind::Int { .. }),
                _ => false,
            };
            let name = &self.names[m];
            m != n
                && number
                && (has_word(name, &COUNTS) || has_word(name, &BYTES) || name.to_ascii_lowercase().ends_with("count"))
        })
    }

    /// True if the name of a count says that it bounds what a call fills.
    pub(super) fn is_room(&self, n: usize, count: &ElementCount) -> bool {
        let own = singular(&stem(&self.names[n]));
        self.names.get(count.parameter).is_some_and(|name| bounds_room(name) && stem(name).contains(&own))
    }

    /// True if the name of the number at `m` is that of another pointer than the one at `n`.
    pub(super) fn belongs_elsewhere(&self, m: usize, n: usize) -> bool {
        let other = stem(&self.names[m]);
        let beside = |k: usize| k + 1 == m || m + 1 == k;
        // `count, list`: the number goes with what comes behind it.
        let behind = m + 1;
        let is_list = |k: usize| matches!(self.types[k].kind, TypeKind::Pointer { .. }) && looks_plural(&self.names[k]);
        if m == n + 1 && behind < self.types.len() && is_list(behind) {
            return true;
        }
        (0..self.types.len()).filter(|&k| beside(k)).any(|k| {
            let own = singular(&stem(&self.names[k]));
            k != n
                && k != m
                && matches!(self.types[k].kind, TypeKind::Pointer { .. })
                && own.len() > 2
                && other.contains(&own)
        })
    }

    /// Several arrays with one count behind or before them all.
    pub(super) fn far(
        &self,
        n: usize,
        value: &dyn Fn(usize) -> bool,
        is_bound: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        let bounds: Vec<usize> = (0..self.types.len()).filter(|&m| value(m) && is_bound(m)).collect();
        let [m] = bounds.as_slice() else { return None };
        if self.belongs_elsewhere(*m, n) {
            return None;
        }
        let list = |k: usize| looks_plural(&self.names[k]) && matches!(self.types[k].kind, TypeKind::Pointer { .. });
        let between = || n.min(*m) + 1..n.max(*m);
        (list(n) && between().all(list)).then_some(*m)
    }

    /// The number among the members that counts the one at `n`: named after it, or the only number beside it.
    pub(super) fn members_count(&self, n: usize) -> Option<String> {
        let is_number = |m: usize| matches!(self.types[m].kind, TypeKind::Int { .. });
        let bounds =
            |m: usize| has_word(&self.names[m], &COUNTS) || has_word(&self.names[m], &["size", "length", "len"]);
        let all: Vec<usize> = (0..self.types.len()).filter(|&m| is_number(m) && bounds(m)).collect();
        let own = singular(&stem(&self.names[n]));
        let named = all.iter().find(|&&m| own.len() > 1 && stem(&self.names[m]).contains(&own));
        let only = if let [m] = all.as_slice() { Some(m).filter(|&&m| m + 1 == n || n + 1 == m) } else { None };
        named.or(only).map(|&m| self.names[m].clone())
    }
}

/// `max_values`
fn bounds_room(name: &str) -> bool {
    words(name).first().is_some_and(|word| word == "max")
}
