//! Answers that are kept: responses, so that a later request can go on from them, and chat completions, to be looked at
//! again. In memory, a fixed number of each, the oldest leave.

use super::background::Job;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// What makes the answer, where nobody waits for it.
    pub job: Option<Arc<Job>>,
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

    /// Keeps an answer; one that was being made is put in its place, and keeps its job.
    pub fn insert(&self, id: &str, mut stored: Stored) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if self.max == 0 {
            return;
        }
        if let Some(before) = kept.by_id.get_mut(id) {
            stored.job = stored.job.or(before.job.take());
            *before = stored;
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

    /// Changes an answer and says what it is then.
    pub fn update(&self, id: &str, group: u64, change: impl FnOnce(&mut Stored)) -> Option<Stored> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = kept.by_id.get_mut(id).filter(|stored| stored.group == group)?;
        change(stored);
        Some(stored.clone())
    }

    /// The answers that are wanted, the oldest first.
    pub fn list(&self, group: u64, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let all = kept.order.iter().filter_map(|id| kept.by_id.get(id)).filter(|stored| stored.group == group);
        all.map(|stored| &stored.response).filter(|response| is_wanted(response)).cloned().collect()
    }

    /// What was there.
    pub fn remove(&self, id: &str, group: u64) -> Option<Stored> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_id.get(id).filter(|stored| stored.group == group)?;
        kept.order.retain(|other| other != id);
        kept.by_id.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_and_others_see_nothing() {
        let store = Store::new(2, Unknown::Refuse);
        let stored =
            |group| Stored { response: Value::Null, input: Vec::new(), messages: Vec::new(), group, job: None };
        for (id, group) in [("a", 1), ("b", 1), ("c", 2)] {
            store.insert(id, stored(group));
        }
        assert!(store.get("a", 1).is_none(), "it left");
        assert!(store.get("b", 1).is_some());
        assert!(store.get("c", 1).is_none(), "it is another's");
        assert!(store.update("c", 1, |stored| stored.response = 7.into()).is_none());
        assert_eq!(store.update("b", 1, |stored| stored.response = 7.into()).unwrap().response, 7);
        assert_eq!((store.list(1, |_| true), store.list(1, Value::is_null)), (vec![Value::from(7)], vec![]));
        store.insert("b", stored(1));
        assert_eq!(store.list(1, |_| true), [Value::Null], "put in its place, not a second one");
        assert!(store.remove("c", 1).is_none());
        assert!(store.remove("c", 2).is_some());
        assert!(store.remove("c", 2).is_none());
    }
}
