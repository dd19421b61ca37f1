//! Answers that are kept: responses, so that a later request can go on from them, and chat completions, to be looked at
//! again. In memory, a fixed number of each, and of bytes in all; the oldest leave.

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

impl Stored {
    /// What it takes in memory, about.
    fn weight(&self) -> usize {
        let message = |message: &Message| {
            let extra = message.extra.iter().map(|(key, value)| key.len() + ENTRY_BYTES + weight(value));
            message.role.len() + message.content.len() + ENTRY_BYTES + extra.sum::<usize>()
        };
        let events = self.job.as_ref().map_or(0, |job| job.n_bytes());
        let input = self.input.iter().map(weight).sum::<usize>();
        weight(&self.response) + input + self.messages.iter().map(message).sum::<usize>() + events
    }
}

/// A field of an object beside its name and value: hash, index, room that is not used.
const ENTRY_BYTES: usize = 64;

fn weight(value: &Value) -> usize {
    let mut n_bytes = 0;
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        n_bytes += size_of::<Value>();
        match value {
            Value::String(text) => n_bytes += text.len(),
            Value::Array(items) => todo.extend(items),
            Value::Object(fields) => {
                n_bytes += fields.keys().map(|key| key.len() + ENTRY_BYTES).sum::<usize>();
                todo.extend(fields.values());
            }
            _ => {}
        }
    }
    n_bytes
}

#[derive(Debug)]
pub struct Store {
    kept: Mutex<Kept>,
    max: usize,
    max_bytes: usize,
    pub unknown: Unknown,
}

#[derive(Debug, Default)]
struct Kept {
    /// With what each takes.
    by_id: HashMap<String, (Stored, usize)>,
    order: VecDeque<String>,
    n_bytes: usize,
}

impl Kept {
    fn remove(&mut self, id: &str) -> Option<Stored> {
        let (stored, n_bytes) = self.by_id.remove(id)?;
        self.n_bytes -= n_bytes;
        Some(stored)
    }

    /// The oldest leave until there is room.
    fn make_room(&mut self, max: usize, max_bytes: usize) {
        while self.order.len() > max || self.n_bytes > max_bytes {
            let Some(oldest) = self.order.pop_front() else { return };
            self.remove(&oldest);
        }
    }
}

impl Store {
    pub fn new(max: usize, max_bytes: usize, unknown: Unknown) -> Self {
        Self { kept: Mutex::default(), max, max_bytes, unknown }
    }

    /// What it keeps takes so many bytes.
    pub fn n_bytes(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).n_bytes
    }

    /// Keeps an answer; one that was being made is put in its place, and keeps its job.
    pub fn insert(&self, id: &str, mut stored: Stored) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if self.max == 0 {
            return;
        }
        let before = kept.remove(id);
        if let Some(before) = &before {
            stored.job = stored.job.or(before.job.clone());
        }
        let n_bytes = stored.weight();
        kept.n_bytes += n_bytes;
        kept.by_id.insert(id.to_owned(), (stored, n_bytes));
        if before.is_none() {
            kept.order.push_back(id.to_owned());
        }
        kept.make_room(self.max, self.max_bytes);
    }

    pub fn get(&self, id: &str, group: u64) -> Option<Stored> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_id.get(id).map(|(stored, _)| stored).filter(|stored| stored.group == group).cloned()
    }

    /// Changes an answer and says what it is then.
    pub fn update(&self, id: &str, group: u64, change: impl FnOnce(&mut Stored)) -> Option<Stored> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (stored, n_bytes) = kept.by_id.get_mut(id).filter(|(stored, _)| stored.group == group)?;
        change(stored);
        let (stored, before) = (stored.clone(), std::mem::replace(n_bytes, stored.weight()));
        let now = *n_bytes;
        kept.n_bytes = kept.n_bytes - before + now;
        kept.make_room(self.max, self.max_bytes);
        Some(stored)
    }

    /// The answers that are wanted, the oldest first.
    pub fn list(&self, group: u64, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let all = kept.order.iter().filter_map(|id| kept.by_id.get(id)).map(|(stored, _)| stored);
        let own = all.filter(|stored| stored.group == group).map(|stored| &stored.response);
        own.filter(|response| is_wanted(response)).cloned().collect()
    }

    /// What was there.
    pub fn remove(&self, id: &str, group: u64) -> Option<Stored> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_id.get(id).filter(|(stored, _)| stored.group == group)?;
        kept.order.retain(|other| other != id);
        kept.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_and_others_see_nothing() {
        let store = Store::new(2, 1 << 20, Unknown::Refuse);
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

    #[test]
    fn bytes_are_bounded_whatever_the_number() {
        let store = Store::new(1_000, 1 << 20, Unknown::Refuse);
        let stored = |n_bytes: usize| Stored {
            response: "x".repeat(n_bytes).into(),
            input: Vec::new(),
            messages: Vec::new(),
            group: 1,
            job: None,
        };
        for i in 0..100 {
            store.insert(&format!("id{i}"), stored(100_000));
            assert!(store.n_bytes() <= 1 << 20);
        }
        assert_eq!(store.list(1, |_| true).len(), 10);
        store.insert("huge", stored(2 << 20));
        assert!(store.get("huge", 1).is_none() && store.n_bytes() == 0, "it does not fit, and all others left before");
        store.insert("small", stored(10));
        store.update("small", 1, |stored| stored.response = "y".repeat(500_000).into());
        assert!(store.n_bytes() > 500_000);
        store.remove("small", 1);
        assert_eq!(store.n_bytes(), 0);
        let numbers: Vec<Value> = vec![0.into(); 1_000];
        assert!(weight(&numbers.into()) >= 1_000 * size_of::<Value>());
    }
}
