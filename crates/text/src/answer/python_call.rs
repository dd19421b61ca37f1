//! Calls written as Python: `[get_weather(city="Paris", days=3), now()]`. Llama 3.2 and 4 write them so when their
//! template asks for it, LFM2 between marks of its own. A parameter is passed on, as JSON, when it is complete.

use serde_json::{Map, Value};

use super::call_parameters::CallParameters;
use super::{Delta, ReadStep};

/// No name is longer.
const MAX_NAME: usize = 256;
/// Deeper values are passed on as text.
const MAX_DEPTH: usize = 64;

#[derive(Debug)]
pub(crate) struct PythonCall {
    at: CallState,
    is_list: bool,
    /// Of the call that is read or comes next.
    index: usize,
    parameters: CallParameters,
    is_announced: bool,
}

#[derive(Debug, Eq, PartialEq)]
enum CallState {
    Start,
    /// Before a name, or the list's end.
    Name,
    Parameters,
}

impl PythonCall {
    pub(crate) fn new(index: usize) -> Self {
        Self { at: CallState::Start, is_list: false, index, parameters: CallParameters::default(), is_announced: false }
    }

    pub(crate) fn n_calls(&self) -> usize {
        self.index
    }

    pub(crate) fn read(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> ReadStep {
        loop {
            let trimmed = match self.at {
                CallState::Start => held.trim_start(),
                _ => held.trim_start_matches([' ', '\t', '\r', '\n', ',']),
            };
            let n_space = held.len() - trimmed.len();
            raw.push_str(&held[..n_space]);
            held.drain(..n_space);
            let Some(first) = held.chars().next() else { return ReadStep::More };
            let step = match self.at {
                CallState::Start => {
                    self.is_list = first == '[';
                    if self.is_list {
                        raw.push(held.remove(0));
                    }
                    self.at = CallState::Name;
                    None
                }
                CallState::Name if first == ']' && self.is_list && self.is_announced => {
                    held.remove(0);
                    Some(ReadStep::Done)
                }
                CallState::Name => self.read_name(held, out),
                CallState::Parameters if first == ')' => {
                    held.remove(0);
                    self.close(out);
                    (!self.is_list).then_some(ReadStep::Done)
                }
                CallState::Parameters => self.read_parameter(held, out),
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    /// Whether there was a call at all.
    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) -> bool {
        if self.at == CallState::Parameters {
            self.close(out);
        }
        self.is_announced
    }

    fn read_name(&mut self, held: &mut String, out: &mut Vec<Delta>) -> Option<ReadStep> {
        let n = held.find(|c: char| !c.is_alphanumeric() && !"_.-".contains(c)).unwrap_or(held.len());
        let is_name = n <= MAX_NAME && held.starts_with(|c: char| c.is_alphabetic() || c == '_');
        match held[n..].chars().next() {
            None if is_name => Some(ReadStep::More),
            Some('(') if is_name => {
                out.push(Delta::Call { index: self.index, name: held[..n].to_owned(), id: None });
                held.drain(..n + 1);
                (self.at, self.is_announced) = (CallState::Parameters, true);
                self.parameters = CallParameters::default();
                None
            }
            // After a call, what is no other one is not ours.
            _ => Some(if self.is_announced { ReadStep::Done } else { ReadStep::Bad }),
        }
    }

    fn read_parameter(&mut self, held: &mut String, out: &mut Vec<Delta>) -> Option<ReadStep> {
        let Some(end) = end_of_parameter(held) else { return Some(ReadStep::More) };
        let source: String = held.drain(..end).collect();
        let (key, value) = match source.split_once('=') {
            Some((key, value)) if is_key(key.trim()) => (key.trim().to_owned(), value),
            // A value without a name is kept under its number.
            _ => (self.parameters.len().to_string(), source.as_str()),
        };
        self.parameters.push(self.index, key, to_json(value), out);
        None
    }

    fn close(&mut self, out: &mut Vec<Delta>) {
        self.parameters.close(self.index, out);
        self.index += 1;
        self.at = CallState::Name;
    }
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Where a parameter ends: at a comma or bracket that belongs to no string and no inner bracket.
fn end_of_parameter(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut is_escaped) = (0_usize, None, false);
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None => match c {
                '"' | '\'' => quote = Some(c),
                '[' | '{' | '(' => depth += 1,
                ',' | ')' if depth == 0 => return Some(at),
                ']' | '}' | ')' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
    }
    None
}

/// A Python literal as JSON; what is none becomes a string.
fn to_json(source: &str) -> String {
    let source = source.trim();
    let mut rest = source;
    match literal(&mut rest, 0) {
        Some(value) if rest.trim().is_empty() => value.to_string(),
        _ => Value::from(source).to_string(),
    }
}

fn literal(rest: &mut &str, depth: usize) -> Option<Value> {
    *rest = rest.trim_start();
    match rest.chars().next().filter(|_| depth < MAX_DEPTH)? {
        '"' | '\'' => string(rest).map(Value::from),
        '[' => items(rest, ']', depth).map(Value::from),
        '(' => items(rest, ')', depth).map(Value::from),
        '{' => object(rest, depth).map(Value::from),
        _ => {
            let n = rest.find([',', ']', ')', '}', ':']).unwrap_or(rest.len());
            let word = rest[..n].trim();
            *rest = &rest[n..];
            match word {
                "True" | "true" => Some(true.into()),
                "False" | "false" => Some(false.into()),
                "None" | "null" => Some(Value::Null),
                number => serde_json::from_str(number).ok().filter(Value::is_number),
            }
        }
    }
}

fn items(rest: &mut &str, close: char, depth: usize) -> Option<Vec<Value>> {
    *rest = &rest[1..];
    let mut values = Vec::new();
    loop {
        if take(rest, close) {
            return Some(values);
        }
        values.push(literal(rest, depth + 1)?);
        if !take(rest, ',') && !rest.starts_with(close) {
            return None;
        }
    }
}

fn object(rest: &mut &str, depth: usize) -> Option<Map<String, Value>> {
    *rest = &rest[1..];
    let mut object = Map::new();
    loop {
        if take(rest, '}') {
            return Some(object);
        }
        let key = match literal(rest, depth + 1)? {
            Value::String(key) => key,
            other => other.to_string(),
        };
        let value = take(rest, ':').then(|| literal(rest, depth + 1))??;
        object.insert(key, value);
        if !take(rest, ',') && !rest.starts_with('}') {
            return None;
        }
    }
}

/// Takes `mark` and the white space around it.
fn take(rest: &mut &str, mark: char) -> bool {
    *rest = rest.trim_start();
    let Some(after) = rest.strip_prefix(mark) else { return false };
    *rest = after.trim_start();
    true
}

fn string(rest: &mut &str) -> Option<String> {
    let quote = rest.chars().next()?;
    let mut out = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => {
                *rest = rest[at + 1..].trim_start();
                return Some(out);
            }
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                '\n' => {}
                'u' => {
                    let code: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                    out.push(char::from_u32(u32::from_str_radix(&code, 16).ok()?)?);
                }
                c @ ('\\' | '\'' | '"' | '/') => out.push(c),
                other => out.extend(['\\', other]),
            },
            c => out.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        let check = |source: &str, json: &str| assert_eq!(to_json(source), json, "{source}");
        check("\"Paris\"", "\"Paris\"");
        check(" 'it\\'s \\n \\u00e9' ", "\"it's \\n é\"");
        check("-3.5e2", "-350.0");
        check("True", "true");
        check("None", "null");
        check("[1, 'a', (2, 3,), []]", "[1,\"a\",[2,3],[]]");
        check("{'b': {\"c\": False}, 1: 2}", "{\"b\":{\"c\":false},\"1\":2}");
        // No literal: the model's own words.
        check("datetime.now()", "\"datetime.now()\"");
        check("[1, 2", "\"[1, 2\"");
        check("", "\"\"");
        let deep = "[".repeat(1000);
        check(&deep, &format!("\"{deep}\""));
    }
}
