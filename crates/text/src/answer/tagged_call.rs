//! Calls written as tags: a name, then a pair of tags around each parameter. Values stand bare, so whether `5` is a
//! number or a string is asked of the tool's schema. A parameter is passed on when it is complete.

use serde_json::Value;

use super::call_parameters::CallParameters;
use super::markers::{Found, find};
use super::syntax::Tags;
use super::{Delta, ReadStep};

#[derive(Debug)]
pub(crate) struct TaggedCall {
    tags: &'static Tags,
    index: usize,
    name: Option<String>,
    parameters: CallParameters,
    key: Option<String>,
    is_done: bool,
}

impl TaggedCall {
    pub(crate) fn new(tags: &'static Tags, index: usize) -> Self {
        Self { tags, index, name: None, parameters: CallParameters::default(), key: None, is_done: false }
    }

    pub(crate) fn n_calls(&self) -> usize {
        self.index + usize::from(self.is_done)
    }

    pub(crate) fn read(
        &mut self,
        held: &mut String,
        raw: &mut String,
        tools: &Value,
        out: &mut Vec<Delta>,
    ) -> ReadStep {
        loop {
            let step = match (&self.name, &self.key) {
                (None, _) => self.read_name(held, raw, out),
                (Some(_), None) => self.read_key(held, out),
                (Some(_), Some(_)) => self.read_value(held, tools, out),
            };
            // `None` means that something was read and there may be more.
            if let Some(step) = step {
                return step;
            }
        }
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) -> bool {
        if self.name.is_some() && !self.is_done {
            self.close(out);
        }
        self.name.is_some()
    }

    fn read_name(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> Option<ReadStep> {
        let trimmed = held.trim_start();
        let n_space = held.len() - trimmed.len();
        raw.push_str(&held[..n_space]);
        held.drain(..n_space);
        let (start, n_mark) = match find(held, self.tags.name_ends, false) {
            // The mark may be the beginning of the first parameter, which is then read again.
            Found::Mark { start, mark } => (start, if self.tags.keeps_name_end(mark) { 0 } else { mark.len() }),
            Found::Partial { start } | Found::Nothing { start } if start > 256 => return Some(ReadStep::Bad),
            _ => return Some(ReadStep::More),
        };
        let name = held[..start].trim().trim_matches('"').to_owned();
        if name.is_empty() || name.contains(['\n', '{', '<', ' ']) {
            return Some(ReadStep::Bad);
        }
        held.drain(..start + n_mark);
        out.push(Delta::Call { index: self.index, name: name.clone(), id: None });
        self.name = Some(name);
        None
    }

    fn read_key(&mut self, held: &mut String, out: &mut Vec<Delta>) -> Option<ReadStep> {
        let tags = self.tags;
        match find(held, &[tags.key.0, tags.end], false) {
            Found::Mark { start, mark } if mark == tags.end => {
                // If the end mark belongs to the call, the reader of the next call consumes it.
                held.drain(..start);
                self.close(out);
                Some(ReadStep::Done)
            }
            Found::Mark { start, mark } => {
                let rest = &held[start + mark.len()..];
                let Found::Mark { start: end, mark: key_end } = find(rest, &[tags.key.1], false) else {
                    return Some(ReadStep::More);
                };
                let key = rest[..end].trim().trim_matches('"').to_owned();
                let n_taken = start + mark.len() + end + key_end.len();
                held.drain(..n_taken);
                self.key = Some(key);
                None
            }
            _ => Some(ReadStep::More),
        }
    }

    fn read_value(&mut self, held: &mut String, tools: &Value, out: &mut Vec<Delta>) -> Option<ReadStep> {
        let tags = self.tags;
        let mut start = 0;
        if !tags.value.0.is_empty() {
            let Found::Mark { start: at, mark } = find(held, &[tags.value.0], false) else {
                return Some(ReadStep::More);
            };
            start = at + mark.len();
        }
        let Found::Mark { start: end, mark } = find(&held[start..], &[tags.value.1], false) else {
            return Some(ReadStep::More);
        };
        let value = held[start..start + end].to_owned();
        held.drain(..start + end + mark.len());
        let key = self.key.take().unwrap_or_default();
        // The line breaks around a value are layout.
        let value = value.strip_prefix('\n').unwrap_or(&value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let quoted = value.strip_prefix("<![CDATA[").and_then(|rest| rest.strip_suffix("]]>"));
        let value = quoted.unwrap_or(value);
        let json = to_json(value, schema_of(tools, self.name.as_deref().unwrap_or_default(), &key));
        self.parameters.push(self.index, key, json, out);
        None
    }

    fn close(&mut self, out: &mut Vec<Delta>) {
        self.parameters.close(self.index, out);
        self.is_done = true;
    }
}

/// The schema of a tool's parameter, or null.
fn schema_of<'a>(tools: &'a Value, name: &str, key: &str) -> &'a Value {
    const NONE: &Value = &Value::Null;
    let list = tools.as_array().map(Vec::as_slice).unwrap_or_default();
    let function = |tool: &'a Value| if tool["function"].is_object() { &tool["function"] } else { tool };
    let tool = list.iter().map(function).find(|tool| tool["name"] == name);
    tool.map_or(NONE, |tool| &tool["parameters"]["properties"][key])
}

/// A bare value as JSON of the type the schema names.
fn to_json(value: &str, schema: &Value) -> String {
    let takes = |kind: &str| match &schema["type"] {
        Value::String(name) => name == kind,
        Value::Array(names) => names.iter().any(|name| name == kind),
        _ => false,
    };
    let parsed = serde_json::from_str::<Value>(value.trim()).ok();
    let is_known = !schema["type"].is_null();
    match parsed {
        Some(Value::Null) if !is_known || takes("null") => "null".to_owned(),
        Some(Value::String(_)) if !is_known => value.trim().to_owned(),
        // Where a string is wanted it is one, even if it looks like a number.
        Some(parsed) if !parsed.is_string() && !takes("string") => value.trim().to_owned(),
        _ => Value::from(value).to_string(),
    }
}
