//! Chat completions that were asked to be kept (`store: true`): list, retrieve, change the metadata, delete, and the
//! messages that led to them. Each key sees its own.

use super::chat::ChatRequest;
use super::store::StoredResponse;
use crate::App;
use crate::error::{ApiError, Result};
use crate::generation::Caller;
use crate::json::Json;
use axum::Extension;
use axum::extract::{Path, Query, State};
use rocinante::ids;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;
/// As OpenAI has them.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// Keeps one completion when it is there.
pub struct ChatKeeper {
    app: Arc<App>,
    metadata: Map<String, Value>,
    messages: Vec<Value>,
    group: u64,
}

impl ChatKeeper {
    pub fn new(app: &Arc<App>, body: &ChatRequest, caller: Caller) -> Self {
        let message = |message: &super::messages::ChatMessage| {
            let text = message.content.as_ref().and_then(|content| content.text("").ok());
            json!({"id": ids::new("msg_"), "role": message.role, "content": text, "name": message.name})
        };
        let messages = body.messages.iter().map(message).collect();
        Self {
            app: Arc::clone(app),
            metadata: body.metadata.clone().unwrap_or_default(),
            messages,
            group: caller.group,
        }
    }

    pub fn keep(self, completion: &Value) {
        let mut response = completion.clone();
        response["metadata"] = self.metadata.into();
        let id = completion["id"].as_str().unwrap_or_default();
        let stored = StoredResponse {
            response,
            input: self.messages,
            messages: Vec::new(),
            group: self.group,
            job: None,
            request: None,
        };
        self.app.chats.insert(id, stored);
    }
}

/// At most 16 short texts.
pub fn check_metadata(metadata: &Map<String, Value>) -> Result<()> {
    let is_good = |(key, value): (&String, &Value)| {
        key.len() <= MAX_METADATA_KEY && value.as_str().is_some_and(|text| text.len() <= MAX_METADATA_VALUE)
    };
    if metadata.len() > MAX_METADATA || !metadata.iter().all(is_good) {
        let text = format!(
            "at most {MAX_METADATA} texts of at most {MAX_METADATA_VALUE} bytes, with names of at most {MAX_METADATA_KEY}"
        );
        return Err(ApiError::bad(text).param("metadata"));
    }
    Ok(())
}

fn missing(id: &str) -> ApiError {
    let text = format!(
        "there is no stored chat completion `{id}` (it may have been evicted; only those sent with `store: true` are stored)"
    );
    ApiError::not_found(text).param("completion_id")
}

/// A part of a list, as `after`, `limit` and `order` say.
pub fn page(mut all: Vec<Value>, query: &HashMap<String, String>) -> Result<Value> {
    match query.get("order").map(String::as_str) {
        None | Some("asc") => {}
        Some("desc") => all.reverse(),
        Some(_) => return Err(ApiError::bad("order must be asc or desc").param("order")),
    }
    let limit = match query.get("limit").map(|text| text.parse()) {
        None => DEFAULT_LIMIT,
        Some(Ok(n @ 1..=MAX_LIMIT)) => n,
        Some(_) => return Err(ApiError::bad(format!("limit must be 1 to {MAX_LIMIT}")).param("limit")),
    };
    if let Some(after) = query.get("after") {
        let at = all.iter().position(|item| item["id"] == **after);
        let at = at.ok_or_else(|| ApiError::not_found(format!("`{after}` is not in the list")).param("after"))?;
        all.drain(..=at);
    }
    let has_more = all.len() > limit;
    all.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (id(all.first()), id(all.last()));
    Ok(json!({"object": "list", "data": all, "first_id": first, "last_id": last, "has_more": has_more}))
}

/// With `model` and `metadata[KEY]` to narrow it.
pub async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<axum::Json<Value>> {
    let is_wanted = |completion: &Value| {
        query.iter().all(|(key, value)| match key.strip_prefix("metadata[").and_then(|key| key.strip_suffix(']')) {
            Some(key) => completion["metadata"][key] == **value,
            None => key != "model" || completion["model"] == **value,
        })
    };
    page(app.chats.list(caller.group, is_wanted), &query).map(axum::Json)
}

pub async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>> {
    app.chats.get(&id, caller.group).map(|stored| axum::Json(stored.response)).ok_or_else(|| missing(&id))
}

#[derive(Debug, Deserialize)]
pub struct Change {
    metadata: Option<Map<String, Value>>,
}

pub async fn update(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(change): Json<Change>,
) -> Result<axum::Json<Value>> {
    let metadata = change.metadata.unwrap_or_default();
    check_metadata(&metadata)?;
    let changed = app.chats.update(&id, caller.group, |stored| stored.response["metadata"] = metadata.into());
    changed.map(|stored| axum::Json(stored.response)).ok_or_else(|| missing(&id))
}

pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>> {
    match app.chats.remove(&id, caller.group) {
        Some(_) => Ok(axum::Json(json!({"id": id, "object": "chat.completion.deleted", "deleted": true}))),
        None => Err(missing(&id)),
    }
}

/// What was said before the answer.
pub async fn messages(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<axum::Json<Value>> {
    let stored = app.chats.get(&id, caller.group).ok_or_else(|| missing(&id))?;
    page(stored.input, &query).map(axum::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_list() {
        let all = || (0..5).map(|i| json!({"id": format!("c{i}")})).collect::<Vec<_>>();
        let check = |query: &[(&str, &str)], expected: &[&str], has_more: bool| {
            let query = query.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            let page = page(all(), &query).unwrap();
            let ids: Vec<&str> =
                page["data"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
            assert_eq!((ids.as_slice(), &page["has_more"]), (expected, &json!(has_more)));
        };
        check(&[], &["c0", "c1", "c2", "c3", "c4"], false);
        check(&[("limit", "2")], &["c0", "c1"], true);
        check(&[("limit", "2"), ("after", "c2")], &["c3", "c4"], false);
        check(&[("order", "desc"), ("after", "c2")], &["c1", "c0"], false);
        for (key, value) in [("limit", "0"), ("limit", "x"), ("order", "up"), ("after", "c9")] {
            assert!(page(all(), &HashMap::from([(key.into(), value.into())])).is_err(), "{key}={value}");
        }
    }
}
