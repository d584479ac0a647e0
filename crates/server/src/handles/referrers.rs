//! Which objects calls use through other objects: what was set on a kernel as its arguments.
//!
//! The vendor's library keeps the addresses and not the objects. So an object ends when its last reference is given
//! back, and a call through one on which it was set is refused from then on, until something else is set in its place.

use std::collections::HashMap;

/// Stands for an object that has ended where it was set.
pub const ENDED: u64 = 0;

/// Places of one referrer that are kept apart; what is set beyond them stays until the referrer ends.
const MAX_PLACES: usize = 4096;

/// Ids of live objects, and what they refer to.
#[derive(Default)]
pub struct Referrers {
    /// By referrer: the objects in each of its places.
    places: HashMap<u64, Vec<(u64, Vec<u64>)>>,
    /// By object: its referrers, one for each time that it is set.
    referrers: HashMap<u64, Vec<u64>>,
}

impl Referrers {
    /// False: nothing has changed.
    pub fn set(&mut self, referrer: u64, place: u64, objects: &[u64]) -> bool {
        let places = match objects {
            [] => self.places.get_mut(&referrer),
            _ => Some(self.places.entry(referrer).or_default()),
        };
        let Some(places) = places else { return false };
        let at = places.iter().position(|(at, _)| *at == place);
        let mut old = Vec::new();
        match at {
            Some(at) if places[at].1 == objects => return false,
            Some(at) => old = std::mem::replace(&mut places[at].1, objects.to_vec()),
            None if objects.is_empty() => return false,
            None if places.len() < MAX_PLACES => places.push((place, objects.to_vec())),
            None => places.last_mut().into_iter().for_each(|(_, set)| set.extend(objects)),
        }
        objects.iter().for_each(|object| self.referrers.entry(*object).or_default().push(referrer));
        old.into_iter().for_each(|object| self.unset(object, referrer));
        true
    }

    /// `to` refers to what `from` refers to.
    pub fn copy(&mut self, from: u64, to: u64) {
        for (place, objects) in self.places.get(&from).cloned().unwrap_or_default() {
            self.set(to, place, &objects);
        }
    }

    /// The referrers through which the object can be used.
    pub fn of(&self, object: u64) -> impl Iterator<Item = u64> {
        self.referrers.get(&object).into_iter().flatten().copied()
    }

    /// The objects that are set on the referrer, live ones, and [`ENDED`] for others.
    pub fn objects(&self, referrer: u64) -> impl Iterator<Item = u64> {
        self.places.get(&referrer).into_iter().flatten().flat_map(|(_, objects)| objects).copied()
    }

    /// The object has ended. Answers those that lack it.
    pub fn end(&mut self, id: u64) -> Vec<u64> {
        for (_, objects) in self.places.remove(&id).unwrap_or_default() {
            objects.into_iter().for_each(|object| self.unset(object, id));
        }
        let referrers = self.referrers.remove(&id).unwrap_or_default();
        for referrer in &referrers {
            let places = self.places.get_mut(referrer).into_iter().flatten();
            places.flat_map(|(_, objects)| objects).filter(|object| **object == id).for_each(|object| *object = ENDED);
        }
        referrers
    }

    /// Takes one of the object's places away.
    fn unset(&mut self, object: u64, referrer: u64) {
        let Some(referrers) = self.referrers.get_mut(&object) else { return };
        if let Some(at) = referrers.iter().position(|of| *of == referrer) {
            referrers.swap_remove(at);
        }
        if referrers.is_empty() {
            self.referrers.remove(&object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(referrers: &Referrers, object: u64) -> Vec<u64> {
        referrers.of(object).collect()
    }

    fn objects(referrers: &Referrers, referrer: u64) -> Vec<u64> {
        referrers.objects(referrer).collect()
    }

    #[test]
    fn an_object_has_a_referrer_until_another_is_set_in_its_place() {
        let mut referrers = Referrers::default();
        assert!(referrers.set(1, 0, &[10]) && referrers.set(1, 1, &[10]) && referrers.set(2, 0, &[10]));
        assert_eq!(of(&referrers, 10), [1, 1, 2]);
        assert!(!referrers.set(1, 0, &[10]), "the same again");
        assert!(referrers.set(1, 0, &[11]) && referrers.set(1, 1, &[]));
        assert_eq!((of(&referrers, 10), of(&referrers, 11)), (vec![2], vec![1]));
        assert!(!referrers.set(3, 0, &[]), "a plain value where nothing was set");
    }

    #[test]
    fn an_ended_object_is_lacking_until_it_is_replaced() {
        let mut referrers = Referrers::default();
        referrers.set(1, 0, &[10]);
        referrers.set(1, 1, &[11]);
        referrers.copy(1, 2);
        assert_eq!(referrers.end(10), [1, 2]);
        assert_eq!((objects(&referrers, 1), objects(&referrers, 2)), (vec![0, 11], vec![0, 11]));
        referrers.set(1, 0, &[12]);
        assert_eq!((objects(&referrers, 1), of(&referrers, 11)), (vec![12, 11], vec![1, 2]));
    }

    #[test]
    fn nothing_is_left_of_a_referrer_that_has_ended() {
        let mut referrers = Referrers::default();
        referrers.set(1, 0, &[10, 11]);
        referrers.set(10, 0, &[1]);
        assert_eq!(referrers.end(1), [10]);
        assert!(referrers.end(10).is_empty() && referrers.end(11).is_empty());
        assert!(referrers.places.is_empty() && referrers.referrers.is_empty());
    }

    #[test]
    fn places_are_bounded_and_nothing_that_was_set_beyond_them_is_forgotten() {
        let mut referrers = Referrers::default();
        for place in 0..MAX_PLACES as u64 + 10 {
            referrers.set(1, place, &[100 + place]);
        }
        assert_eq!(referrers.places[&1].len(), MAX_PLACES);
        assert_eq!(referrers.end(100 + MAX_PLACES as u64 + 5), [1]);
    }
}
