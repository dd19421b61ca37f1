//! Calls as Gemma 4 writes them: `call:get_weather{city:<|"|>Paris<|"|>,days:3}`, with bare keys and marks for quotes. A
//! parameter is passed on, as JSON, when it is complete.

use serde_json::{Map, Value};

use super::call_parameters::CallParameters;
use super::{Delta, ReadStep};

/// What stands for a quote.
pub(crate) const QUOTE: &str = "<|\"|>";
/// No name is longer.
const MAX_NAME: usize = 256;
/// Deeper values are passed on as text.
const MAX_DEPTH: usize = 64;

#[derive(Debug)]
pub(crate) struct BracedCall {
    index: usize,
    is_announced: bool,
    parameters: CallParameters,
    is_done: bool,
}

impl BracedCall {
    pub(crate) fn new(index: usize) -> Self {
        Self { index, is_announced: false, parameters: CallParameters::default(), is_done: false }
    }

    pub(crate) fn n_calls(&self) -> usize {
        self.index + usize::from(self.is_done)
    }

    pub(crate) fn read(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> ReadStep {
        if !self.is_announced {
            match self.read_name(held, raw, out) {
                ReadStep::Done => self.is_announced = true,
                step => return step,
            }
        }
        loop {
            let n_space = held.len() - held.trim_start_matches([' ', '\n', ',']).len();
            held.drain(..n_space);
            if held.starts_with('}') {
                held.remove(0);
                self.close(out);
                return ReadStep::Done;
            }
            let Some(end) = end_of_parameter(held) else { return ReadStep::More };
            let source: String = held.drain(..end).collect();
            let mut rest = source.as_str();
            let key = key(&mut rest);
            let value = value(&mut rest, 0).unwrap_or_else(|| Value::from(rest.trim()));
            self.parameters.push(self.index, key, value, out);
        }
    }

    /// Whether there was a call at all.
    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) -> bool {
        if self.is_announced && !self.is_done {
            self.close(out);
        }
        self.is_announced
    }

    fn read_name(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> ReadStep {
        let n_space = held.len() - held.trim_start().len();
        raw.push_str(&held[..n_space]);
        held.drain(..n_space);
        const BEFORE: &str = "call:";
        if !held.starts_with(BEFORE) {
            return if BEFORE.starts_with(held.as_str()) { ReadStep::More } else { ReadStep::Bad };
        }
        let name = &held[BEFORE.len()..];
        let n = name.find(|c: char| !c.is_alphanumeric() && !"_.-/".contains(c)).unwrap_or(name.len());
        match name[n..].chars().next() {
            None if n <= MAX_NAME => ReadStep::More,
            Some('{') if (1..=MAX_NAME).contains(&n) => {
                out.push(Delta::Call { index: self.index, name: name[..n].to_owned(), id: None });
                held.drain(..BEFORE.len() + n + 1);
                ReadStep::Done
            }
            _ => ReadStep::Bad,
        }
    }

    fn close(&mut self, out: &mut Vec<Delta>) {
        self.parameters.close(self.index, out);
        self.is_done = true;
    }
}

/// How many bytes a string at the beginning of `text` takes; `None` where it has no end yet. Zero: there is none.
fn string_len(text: &str) -> Option<usize> {
    if let Some(rest) = text.strip_prefix(QUOTE) {
        return rest.find(QUOTE).map(|at| at + 2 * QUOTE.len());
    }
    if !text.starts_with('"') {
        return Some(0);
    }
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Where a parameter ends: at a comma or a brace that belongs to no string and no inner bracket.
fn end_of_parameter(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    while at < text.len() {
        let n = string_len(&text[at..])?;
        if n > 0 {
            at += n;
            continue;
        }
        let c = text[at..].chars().next()?;
        match c {
            ',' | '}' if depth == 0 => return Some(at),
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            // A mark that has begun.
            '<' if QUOTE.starts_with(&text[at..]) => return None,
            _ => {}
        }
        at += c.len_utf8();
    }
    None
}

/// A key and the colon behind it.
fn key(rest: &mut &str) -> String {
    let text = rest.trim_start();
    if let Some(n) = string_len(text).filter(|n| *n > 0) {
        let key = string(&text[..n]);
        *rest = text[n..].trim_start().strip_prefix(':').unwrap_or(&text[n..]);
        return key;
    }
    let (key, after) = text.split_once(':').unwrap_or(("", text));
    *rest = after;
    key.trim().to_owned()
}

fn string(source: &str) -> String {
    let marked = source.strip_prefix(QUOTE).and_then(|inner| inner.strip_suffix(QUOTE));
    marked.map_or_else(|| serde_json::from_str(source).unwrap_or_else(|_| source.to_owned()), str::to_owned)
}

/// The value at the beginning of `rest`, which is moved behind it.
fn value(rest: &mut &str, depth: usize) -> Option<Value> {
    let text = rest.trim_start();
    let n = string_len(text)?;
    if n > 0 {
        *rest = &text[n..];
        return Some(Value::from(string(&text[..n])));
    }
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(inner) = text.strip_prefix('[') {
        *rest = inner;
        let mut list = Vec::new();
        while !closes(rest, ']')? {
            list.push(value(rest, depth + 1)?);
        }
        return Some(Value::from(list));
    }
    if let Some(inner) = text.strip_prefix('{') {
        *rest = inner;
        let mut object = Map::new();
        while !closes(rest, '}')? {
            let name = key(rest);
            object.insert(name, value(rest, depth + 1)?);
        }
        return Some(Value::from(object));
    }
    let n = text.find([',', ']', '}']).unwrap_or(text.len());
    *rest = &text[n..];
    let bare = text[..n].trim();
    (!bare.is_empty()).then(|| serde_json::from_str(bare).unwrap_or_else(|_| Value::from(bare)))
}

/// Whether the list or object ends here, its mark then taken; `None` at the end of the text.
fn closes(rest: &mut &str, mark: char) -> Option<bool> {
    let text = rest.trim_start_matches([' ', '\n', ',']);
    *rest = text.strip_prefix(mark).unwrap_or(text);
    if text.is_empty() { None } else { Some(text.starts_with(mark)) }
}
