//! The order of eviction: least recently used first, and the end of a text before its beginning, since a block is
//! useless without those before it.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use crate::Name;

#[derive(Debug, Default)]
pub struct Recency {
    order: BTreeSet<RecencyKey>,
    places: HashMap<Name, (RecencyKey, u64)>,
    n_bytes: u64,
}

/// When it was used, how deep it lies, what it is.
type RecencyKey = (u64, Reverse<u32>, Name);

impl Recency {
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn contains(&self, name: &Name) -> bool {
        self.places.contains_key(name)
    }

    pub fn names(&self) -> impl Iterator<Item = Name> {
        self.places.keys().copied()
    }

    /// Used at `when`; `n_bytes` is what it takes.
    pub fn note(&mut self, name: Name, when: u64, depth: u32, n_bytes: u64) {
        self.remove(&name);
        let place = (when, Reverse(depth), name);
        self.order.insert(place);
        self.places.insert(name, (place, n_bytes));
        self.n_bytes += n_bytes;
    }

    /// Says what it took.
    pub fn remove(&mut self, name: &Name) -> Option<u64> {
        let (place, n_bytes) = self.places.remove(name)?;
        self.order.remove(&place);
        self.n_bytes -= n_bytes;
        Some(n_bytes)
    }

    pub fn first_to_go(&self) -> Option<Name> {
        self.order.first().map(|(.., name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeptKind, PrefixKey};

    #[test]
    fn the_end_of_the_oldest_text_goes_first() {
        let name = |i: u8| Name { key: PrefixKey([i; 16]), kind: KeptKind::Block };
        let mut recency = Recency::default();
        for (i, when, depth) in [(1, 7, 1), (2, 7, 2), (3, 5, 1), (4, 5, 2)] {
            recency.note(name(i), when, depth, 10);
        }
        recency.note(name(4), 9, 2, 30);
        assert_eq!(recency.n_bytes(), 60);
        let mut order = Vec::new();
        while let Some(first) = recency.first_to_go() {
            recency.remove(&first);
            order.push(first.key.0[0]);
        }
        assert_eq!((order, recency.n_bytes(), recency.len()), (vec![3, 2, 1, 4], 0, 0));
    }
}
