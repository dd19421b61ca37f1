//! Answers that are kept: responses, so that a later request can go on from them, and chat completions, to be looked at
//! again. In memory, a fixed number of each, and of bytes in all; the oldest leave. With a disk, the same answers are
//! there too, and are read when the server starts.

use super::background::BackgroundJob;
use crate::disk::{Disk, DiskTable};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use text::Message;

/// What a `previous_response_id` that is not known leads to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum UnknownResponse {
    /// 404
    #[default]
    Refuse,
    /// Start a new conversation
    Ignore,
}

/// A response as it was given, and the conversation up to and with it.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    pub response: Value,
    pub input: Vec<Value>,
    pub messages: Vec<Message>,
    /// Whose it is: others do not see it.
    pub group: u64,
    /// What makes the answer, where nobody waits for it.
    pub job: Option<Arc<BackgroundJob>>,
    /// What was asked for, where nobody waits: it is asked again if the server ends before the answer does.
    pub request: Option<Value>,
}

/// As it is on disk.
#[derive(Serialize, Deserialize)]
struct SavedResponse {
    /// Its place in the order.
    number: u64,
    response: Value,
    input: Vec<Value>,
    messages: Vec<(String, String, Map<String, Value>)>,
    group: u64,
    request: Option<Value>,
    /// Of an answer that was made in the background and is complete.
    events: Option<Vec<String>>,
}

impl SavedResponse {
    fn of(number: u64, stored: &StoredResponse) -> Self {
        let message = |message: &Message| (message.role.clone(), message.content.clone(), message.extra.clone());
        Self {
            number,
            response: stored.response.clone(),
            input: stored.input.clone(),
            messages: stored.messages.iter().map(message).collect(),
            group: stored.group,
            request: stored.request.clone(),
            events: stored.job.as_ref().and_then(|job| job.finished_events()),
        }
    }

    fn restore(self) -> StoredResponse {
        let message = |(role, content, extra)| Message { role, content, extra };
        StoredResponse {
            response: self.response,
            input: self.input,
            messages: self.messages.into_iter().map(message).collect(),
            group: self.group,
            job: self.events.map(|events| Arc::new(BackgroundJob::finished(events))),
            request: self.request,
        }
    }
}

impl StoredResponse {
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
pub struct ResponseStore {
    kept: Mutex<KeptResponse>,
    max: usize,
    max_bytes: usize,
    pub unknown: UnknownResponse,
    disk: Option<(Arc<Disk>, DiskTable)>,
}

#[derive(Debug, Default)]
struct KeptResponse {
    /// With what each takes.
    by_id: HashMap<String, (StoredResponse, usize)>,
    order: VecDeque<String>,
    n_bytes: usize,
    /// Where each stands in the order, which only grows.
    numbers: HashMap<String, u64>,
    next_number: u64,
}

impl KeptResponse {
    fn remove(&mut self, id: &str) -> Option<StoredResponse> {
        let (stored, n_bytes) = self.by_id.remove(id)?;
        self.n_bytes -= n_bytes;
        Some(stored)
    }

    /// The oldest leave until there is room; says which.
    fn make_room(&mut self, max: usize, max_bytes: usize) -> Vec<String> {
        let mut gone = Vec::new();
        while self.order.len() > max || self.n_bytes > max_bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(&oldest);
            self.numbers.remove(&oldest);
            gone.push(oldest);
        }
        gone
    }

    /// Its place in the order, the last one if it has none yet.
    fn number(&mut self, id: &str) -> u64 {
        if let Some(&number) = self.numbers.get(id) {
            return number;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(id.to_owned(), number);
        self.order.push_back(id.to_owned());
        number
    }
}

impl ResponseStore {
    pub fn new(max: usize, max_bytes: usize, unknown: UnknownResponse) -> Self {
        Self { kept: Mutex::default(), max, max_bytes, unknown, disk: None }
    }

    /// Takes over what is on disk, and keeps everything there from now on.
    pub fn on_disk(mut self, disk: Arc<Disk>, table: DiskTable) -> anyhow::Result<Self> {
        let mut all: Vec<(String, SavedResponse)> = Vec::new();
        for (id, bytes) in disk.all(table)? {
            match serde_json::from_slice(&bytes) {
                Ok(saved) => all.push((id, saved)),
                Err(error) => tracing::error!(id, %error, "a stored answer cannot be read"),
            }
        }
        all.sort_by_key(|(_, saved)| saved.number);
        let ids: Vec<String> = all.iter().map(|(id, _)| id.clone()).collect();
        for (id, saved) in all {
            self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).next_number = saved.number;
            self.insert(&id, saved.restore());
        }
        // The limits may be lower than they were.
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        ids.iter().filter(|id| !kept.by_id.contains_key(*id)).for_each(|id| disk.remove(table, id));
        self.disk = Some((disk, table));
        Ok(self)
    }

    /// Answers that were being made when the server ended.
    pub fn unfinished(&self) -> Vec<(String, StoredResponse)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |stored: &StoredResponse| {
            let status = stored.response["status"].as_str();
            stored.request.is_some() && stored.job.is_none() && matches!(status, Some("queued" | "in_progress"))
        };
        let all = kept.order.iter().filter_map(|id| Some((id, &kept.by_id.get(id)?.0)));
        all.filter(|(_, stored)| is_open(stored)).map(|(id, stored)| (id.clone(), stored.clone())).collect()
    }

    /// Writes an answer to the disk, and removes those that left.
    fn save(&self, number: u64, id: &str, stored: &StoredResponse, gone: &[String]) {
        let Some((disk, table)) = &self.disk else { return };
        if let Ok(bytes) = serde_json::to_vec(&SavedResponse::of(number, stored)) {
            disk.put(*table, id, &bytes);
        }
        gone.iter().for_each(|id| disk.remove(*table, id));
    }

    /// What it keeps takes so many bytes.
    pub fn n_bytes(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).n_bytes
    }

    /// Keeps an answer; one that was being made is put in its place, and keeps its job.
    pub fn insert(&self, id: &str, mut stored: StoredResponse) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if self.max == 0 {
            return;
        }
        let before = kept.remove(id);
        if let Some(before) = before {
            stored.job = stored.job.or(before.job);
            stored.request = stored.request.or(before.request);
        }
        let (n_bytes, number) = (stored.weight(), kept.number(id));
        kept.n_bytes += n_bytes;
        let saved = self.disk.is_some().then(|| stored.clone());
        kept.by_id.insert(id.to_owned(), (stored, n_bytes));
        let gone = kept.make_room(self.max, self.max_bytes);
        drop(kept);
        if let Some(saved) = saved {
            self.save(number, id, &saved, &gone);
        }
    }

    pub fn get(&self, id: &str, group: u64) -> Option<StoredResponse> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_id.get(id).map(|(stored, _)| stored).filter(|stored| stored.group == group).cloned()
    }

    /// Changes an answer and says what it is then.
    pub fn update(&self, id: &str, group: u64, change: impl FnOnce(&mut StoredResponse)) -> Option<StoredResponse> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (stored, n_bytes) = kept.by_id.get_mut(id).filter(|(stored, _)| stored.group == group)?;
        change(stored);
        let (stored, before) = (stored.clone(), std::mem::replace(n_bytes, stored.weight()));
        let now = *n_bytes;
        kept.n_bytes = kept.n_bytes - before + now;
        let number = kept.number(id);
        let gone = kept.make_room(self.max, self.max_bytes);
        drop(kept);
        self.save(number, id, &stored, &gone);
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
    pub fn remove(&self, id: &str, group: u64) -> Option<StoredResponse> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_id.get(id).filter(|(stored, _)| stored.group == group)?;
        kept.order.retain(|other| other != id);
        kept.numbers.remove(id);
        let stored = kept.remove(id);
        drop(kept);
        if let Some((disk, table)) = &self.disk {
            disk.remove(*table, id);
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_and_others_see_nothing() {
        let store = ResponseStore::new(2, 1 << 20, UnknownResponse::Refuse);
        let stored = |group| StoredResponse {
            response: Value::Null,
            input: Vec::new(),
            messages: Vec::new(),
            group,
            job: None,
            request: None,
        };
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
    fn answers_survive_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let disk = Disk::open(&folder.path().join("store"), None).unwrap();
            ResponseStore::new(3, 1 << 20, UnknownResponse::Refuse).on_disk(disk, DiskTable::Chats).unwrap()
        };
        let stored = |value: u64| StoredResponse {
            response: serde_json::json!({"n": value, "status": "in_progress"}),
            input: vec![1.into()],
            messages: vec![Message::new("user", "hi")],
            group: 9,
            job: None,
            request: (value == 3).then(|| "again".into()),
        };
        let store = open();
        for (id, value) in [("d", 0), ("c", 1), ("b", 2), ("a", 3)] {
            store.insert(id, stored(value));
        }
        store.update("b", 9, |stored| stored.response["n"] = 7.into());
        drop(store);
        let store = open();
        let numbers: Vec<Value> = store.list(9, |_| true).iter().map(|response| response["n"].clone()).collect();
        assert_eq!(numbers, [1, 7, 3], "the oldest left, on disk too");
        assert_eq!(store.get("a", 9).unwrap().messages[0].content, "hi");
        assert!(store.get("a", 8).is_none(), "still nobody else's");
        let unfinished: Vec<String> = store.unfinished().into_iter().map(|(id, _)| id).collect();
        assert_eq!(unfinished, ["a"]);
        store.remove("c", 9);
        store.insert("e", stored(4));
        store.insert("f", stored(5));
        drop(store);
        let numbers: Vec<Value> = open().list(9, |_| true).iter().map(|response| response["n"].clone()).collect();
        assert_eq!(numbers, [3, 4, 5]);
    }

    #[test]
    fn bytes_are_bounded_whatever_the_number() {
        let store = ResponseStore::new(1_000, 1 << 20, UnknownResponse::Refuse);
        let stored = |n_bytes: usize| StoredResponse {
            response: "x".repeat(n_bytes).into(),
            input: Vec::new(),
            messages: Vec::new(),
            group: 1,
            job: None,
            request: None,
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
