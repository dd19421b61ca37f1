//! Responses that are kept, so that a later request can go on from them. In memory, a fixed number, the oldest leave.

use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use text::Message;

/// What a `previous_response_id` that is not known leads to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unknown {
    /// 404
    #[default]
    Refuse,
    /// The conversation begins anew
    Ignore,
}

/// A response as it was given, and the conversation up to and with it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub response: Value,
    pub input: Vec<Value>,
    pub messages: Vec<Message>,
    /// Whose it is: others do not see it.
    pub group: u64,
}

#[derive(Debug)]
pub struct Store {
    kept: Mutex<Kept>,
    max: usize,
    pub unknown: Unknown,
}

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<String, Stored>,
    order: VecDeque<String>,
}

impl Store {
    pub fn new(max: usize, unknown: Unknown) -> Self {
        Self { kept: Mutex::default(), max, unknown }
    }

    pub fn insert(&self, id: &str, stored: Stored) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if self.max == 0 {
            return;
        }
        while kept.order.len() >= self.max {
            if let Some(oldest) = kept.order.pop_front() {
                kept.by_id.remove(&oldest);
            }
        }
        kept.order.push_back(id.to_owned());
        kept.by_id.insert(id.to_owned(), stored);
    }

    pub fn get(&self, id: &str, group: u64) -> Option<Stored> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_id.get(id).filter(|stored| stored.group == group).cloned()
    }

    /// Whether there was one.
    pub fn remove(&self, id: &str, group: u64) -> bool {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.by_id.get(id).is_none_or(|stored| stored.group != group) {
            return false;
        }
        kept.order.retain(|other| other != id);
        kept.by_id.remove(id).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_and_others_see_nothing() {
        let store = Store::new(2, Unknown::Refuse);
        let stored = |group| Stored { response: Value::Null, input: Vec::new(), messages: Vec::new(), group };
        for (id, group) in [("a", 1), ("b", 1), ("c", 2)] {
            store.insert(id, stored(group));
        }
        assert!(store.get("a", 1).is_none(), "it left");
        assert!(store.get("b", 1).is_some());
        assert!(store.get("c", 1).is_none(), "it is another's");
        assert!(!store.remove("c", 1));
        assert!(store.remove("c", 2));
        assert!(!store.remove("c", 2));
    }
}
