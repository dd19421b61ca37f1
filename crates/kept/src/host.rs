//! Blocks in host memory, up to a number of bytes. A block that goes back to the pool is removed, so two contexts that
//! take turns need room for only one.

use std::collections::HashMap;

use crate::{Entry, Name, recency::Recency};

#[derive(Debug)]
pub struct HostTier {
    blocks: HashMap<Name, (Entry, Vec<u8>)>,
    recency: Recency,
    max_bytes: u64,
}

impl HostTier {
    pub fn new(max_bytes: u64) -> Self {
        Self { blocks: HashMap::new(), recency: Recency::default(), max_bytes }
    }

    pub fn n_bytes(&self) -> u64 {
        self.recency.n_bytes()
    }

    pub fn len(&self) -> usize {
        self.recency.len()
    }

    pub fn contains(&self, name: &Name) -> bool {
        self.recency.contains(name)
    }

    /// Takes a block in. What has to make room, which may be the block itself, comes back.
    pub fn put(&mut self, entry: Entry, bytes: Vec<u8>, when: u64) -> Vec<(Entry, Vec<u8>)> {
        let mut gone = Vec::new();
        self.recency.note(entry.name, when, entry.depth, bytes.len() as u64);
        self.blocks.insert(entry.name, (entry, bytes));
        while self.recency.n_bytes() > self.max_bytes {
            let Some(first) = self.recency.first_to_go() else { break };
            gone.extend(self.take(&first));
        }
        gone
    }

    pub fn get(&self, name: &Name) -> Option<&(Entry, Vec<u8>)> {
        self.blocks.get(name)
    }

    pub fn blocks(&self) -> impl Iterator<Item = &(Entry, Vec<u8>)> {
        self.blocks.values()
    }

    pub fn take(&mut self, name: &Name) -> Option<(Entry, Vec<u8>)> {
        self.recency.remove(name);
        self.blocks.remove(name)
    }
}
