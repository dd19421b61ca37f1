//! Calls whose arguments are JSON: an object with a name and arguments, a list of such objects, or a name, a mark and
//! the arguments. Read one character at a time, so that arguments can be passed on while they are being written.

use super::markers::{Found, find};
use super::syntax::{Body, CallKeys, NAME, Syntax};
use super::{Delta, ReadStep};

#[derive(Debug)]
pub(crate) struct JsonCall {
    keys: &'static CallKeys,
    syntax: &'static Syntax,
    mode: CallMode,
    is_list: bool,
    /// Objects open around the keys being read, beyond the first.
    n_nested: usize,
    index: usize,
    name: Option<String>,
    id: Option<String>,
    is_announced: bool,
    /// Arguments that came before the name, or that are being read as a string.
    kept: String,
    has_arguments: bool,
}

#[derive(Debug)]
enum CallMode {
    /// Before a name that stands outside the JSON.
    Name,
    Begin,
    Key,
    KeyText(Quoted),
    Colon(CallKey),
    Value(CallKey),
    Text(CallKey, Quoted),
    /// Inside a value of this key.
    Nested(CallKey, Depth),
    Scalar(CallKey),
    /// Everything that follows is a program.
    Code,
    End,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum CallKey {
    Name,
    Arguments,
    Id,
    /// An object that holds the others.
    Wrapper,
    Other,
}

/// A string with its quotes, until the closing one.
#[derive(Debug, Default)]
struct Quoted {
    raw: String,
    is_escaped: bool,
}

impl Quoted {
    /// Takes a character and says whether the string ends with it.
    fn push(&mut self, c: char) -> bool {
        if self.raw.is_empty() {
            self.raw.push('"');
        }
        self.raw.push(c);
        let is_end = c == '"' && !self.is_escaped;
        self.is_escaped = c == '\\' && !self.is_escaped;
        is_end
    }

    fn text(&self) -> Option<String> {
        serde_json::from_str(&self.raw).ok()
    }
}

#[derive(Debug, Default)]
struct Depth {
    n_open: usize,
    in_text: bool,
    is_escaped: bool,
}

impl Depth {
    /// Takes a character and says whether the value ends with it.
    fn push(&mut self, c: char) -> bool {
        if self.in_text {
            self.in_text = c != '"' || self.is_escaped;
            self.is_escaped = c == '\\' && !self.is_escaped;
            return false;
        }
        match c {
            '"' => self.in_text = true,
            '{' | '[' => self.n_open += 1,
            '}' | ']' => self.n_open = self.n_open.saturating_sub(1),
            _ => {}
        }
        self.n_open == 0
    }
}

impl JsonCall {
    pub(crate) fn object(keys: &'static CallKeys, syntax: &'static Syntax, index: usize) -> Self {
        Self {
            keys,
            syntax,
            mode: CallMode::Begin,
            is_list: false,
            n_nested: 0,
            index,
            name: None,
            id: None,
            is_announced: false,
            kept: String::new(),
            has_arguments: false,
        }
    }

    pub(crate) fn named(syntax: &'static Syntax, index: usize) -> Self {
        Self { mode: CallMode::Name, ..Self::object(&super::syntax::KEYS, syntax, index) }
    }

    /// Calls read so far, those before this one included.
    pub(crate) fn n_calls(&self) -> usize {
        self.index
    }

    /// Takes what it can from `held`; before the call is announced, what was taken is kept in `raw` too.
    pub(crate) fn read(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> ReadStep {
        if matches!(self.mode, CallMode::Name) {
            match self.read_name(held, raw, out) {
                ReadStep::Done => {}
                step => return step,
            }
        }
        let mut arguments = String::new();
        let mut n_taken = 0;
        let mut step = ReadStep::More;
        for (at, c) in held.char_indices() {
            let (taken, result) = self.take(c, &mut arguments, out);
            n_taken = if taken { at + c.len_utf8() } else { at };
            if result != ReadStep::More {
                step = result;
                break;
            }
        }
        self.pass_on(&mut arguments, out);
        if !self.is_announced && self.index == 0 || step == ReadStep::Bad {
            raw.push_str(&held[..n_taken]);
        }
        held.drain(..n_taken);
        // What was announced is a call, however it ends.
        if step == ReadStep::Bad && self.is_announced {
            self.index += 1;
            return ReadStep::Done;
        }
        step
    }

    /// Ends the call where the answer ends, and says whether there was one.
    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) -> bool {
        if matches!(self.mode, CallMode::Code) && self.is_announced {
            out.push(Delta::Arguments { index: self.index, text: "\"}".to_owned() });
        }
        self.is_announced || self.index > 0
    }

    fn read_name(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> ReadStep {
        let Body::Named(after) = self.syntax.body else { return ReadStep::Bad };
        let trimmed = held.trim_start();
        // Older models of the family write a list of objects here.
        match trimmed.chars().next() {
            None => return ReadStep::More,
            Some('[' | '{') if !after.iter().any(|mark| mark.starts_with('[') && trimmed.starts_with(mark)) => {
                self.mode = CallMode::Begin;
                return ReadStep::Done;
            }
            Some(_) => {}
        }
        match find(held, after, false) {
            Found::Mark { start, mark } => {
                let (name, id) = clean_name(&held[..start]);
                if name.is_empty() || name.contains(['\n', '{', '<']) {
                    return ReadStep::Bad;
                }
                raw.push_str(&held[..start + mark.len()]);
                held.drain(..start + mark.len());
                (self.name, self.id) = (Some(name), id);
                self.announce(out);
                self.mode = CallMode::Value(CallKey::Arguments);
                ReadStep::Done
            }
            // Names are short; anything longer is not one.
            Found::Partial { start } | Found::Nothing { start } if start > 256 => ReadStep::Bad,
            _ => ReadStep::More,
        }
    }

    /// One character: whether it was taken, and what follows from it.
    fn take(&mut self, c: char, arguments: &mut String, out: &mut Vec<Delta>) -> (bool, ReadStep) {
        let is_space = c.is_ascii_whitespace();
        match &mut self.mode {
            CallMode::Begin => return self.begin_call(c, arguments, out),
            CallMode::Key => match c {
                _ if is_space || c == ',' => {}
                '"' => self.mode = CallMode::KeyText(Quoted::default()),
                '}' if self.n_nested > 0 => self.n_nested -= 1,
                '}' => return (true, self.end_object(arguments, out)),
                _ => return (false, ReadStep::Bad),
            },
            CallMode::KeyText(quoted) => {
                if quoted.push(c) {
                    let Some(key) = quoted.text() else { return (true, ReadStep::Bad) };
                    let key = self.keys.kind(&key);
                    // A call without a mark around it must look like one from its first key on.
                    if self.syntax.is_bare && key == CallKey::Other && self.name.is_none() && self.n_nested == 0 {
                        return (true, ReadStep::Bad);
                    }
                    self.mode = CallMode::Colon(key);
                }
            }
            CallMode::Colon(key) => match c {
                _ if is_space => {}
                ':' => self.mode = CallMode::Value(*key),
                _ => return (false, ReadStep::Bad),
            },
            CallMode::Value(key) => {
                if is_space {
                    return (true, ReadStep::More);
                }
                let key = *key;
                return self.begin_value(key, c, arguments);
            }
            CallMode::Text(key, quoted) => {
                if quoted.push(c) {
                    let key = *key;
                    let Some(text) = quoted.text() else { return (true, ReadStep::Bad) };
                    return (true, self.end_text(key, text, arguments, out));
                }
            }
            CallMode::Nested(key, depth) => {
                let (key, is_end) = (*key, depth.push(c));
                if key == CallKey::Arguments {
                    arguments.push(c);
                }
                if is_end {
                    return (true, self.end_value(key));
                }
            }
            CallMode::Scalar(key) => {
                let key = *key;
                if matches!(c, ',' | '}' | ']') || is_space {
                    let step = self.end_value(key);
                    return if step == ReadStep::More { self.take(c, arguments, out) } else { (false, step) };
                }
                if key == CallKey::Arguments {
                    arguments.push(c);
                }
            }
            CallMode::Code => {
                let quoted = serde_json::Value::from(c.to_string()).to_string();
                arguments.push_str(&quoted[1..quoted.len() - 1]);
            }
            CallMode::Name | CallMode::End => return (false, ReadStep::Done),
        }
        (true, ReadStep::More)
    }

    /// What stands before an object: a list's bracket, a comma, or code that is the call.
    fn begin_call(&mut self, c: char, arguments: &mut String, out: &mut Vec<Delta>) -> (bool, ReadStep) {
        match c {
            _ if c.is_ascii_whitespace() => {}
            '[' if !self.is_list => self.is_list = true,
            ',' if self.is_list && self.index > 0 => {}
            ']' if self.is_list => return (true, if self.index > 0 { ReadStep::Done } else { ReadStep::Bad }),
            '{' => self.mode = CallMode::Key,
            _ if self.syntax.code.is_some() && !self.syntax.call.0.is_empty() && !self.is_list => {
                self.name = self.syntax.code.map(str::to_owned);
                self.announce(out);
                arguments.push_str("{\"code\":\"");
                self.mode = CallMode::Code;
                return self.take(c, arguments, out);
            }
            _ => return (false, ReadStep::Bad),
        }
        (true, ReadStep::More)
    }

    /// A quoted value is complete.
    fn end_text(&mut self, key: CallKey, text: String, arguments: &mut String, out: &mut Vec<Delta>) -> ReadStep {
        self.mode = CallMode::Key;
        match key {
            CallKey::Name | CallKey::Wrapper => {
                self.name = Some(text);
                self.announce(out);
                arguments.push_str(&std::mem::take(&mut self.kept));
            }
            CallKey::Id => self.id = Some(text),
            CallKey::Arguments => return self.end_arguments(&text, arguments),
            CallKey::Other => {}
        }
        ReadStep::More
    }

    fn begin_value(&mut self, key: CallKey, c: char, arguments: &mut String) -> (bool, ReadStep) {
        self.has_arguments |= key == CallKey::Arguments;
        match c {
            '"' => self.mode = CallMode::Text(key, Quoted::default()),
            '{' if key == CallKey::Wrapper => {
                self.n_nested += 1;
                self.mode = CallMode::Key;
            }
            '{' | '[' if key != CallKey::Name => {
                let mut depth = Depth::default();
                depth.push(c);
                self.mode = CallMode::Nested(key, depth);
                if key == CallKey::Arguments {
                    arguments.push(c);
                }
            }
            '}' | ']' | ',' | ':' => return (false, ReadStep::Bad),
            _ if key == CallKey::Name => return (false, ReadStep::Bad),
            _ => {
                self.mode = CallMode::Scalar(key);
                if key == CallKey::Arguments {
                    arguments.push(c);
                }
            }
        }
        (true, ReadStep::More)
    }

    fn end_value(&mut self, key: CallKey) -> ReadStep {
        self.mode = CallMode::Key;
        if key == CallKey::Arguments && matches!(self.syntax.body, Body::Named(_)) && !self.is_list && self.is_announced
        {
            self.mode = CallMode::End;
            self.index += 1;
            self.is_announced = false;
            return ReadStep::Done;
        }
        ReadStep::More
    }

    /// Arguments written as a string of JSON.
    fn end_arguments(&mut self, text: &str, arguments: &mut String) -> ReadStep {
        arguments.push_str(text);
        self.end_value(CallKey::Arguments)
    }

    fn end_object(&mut self, arguments: &mut String, out: &mut Vec<Delta>) -> ReadStep {
        if !self.is_announced {
            return ReadStep::Bad;
        }
        if !self.has_arguments {
            arguments.push_str("{}");
        }
        self.pass_on(arguments, out);
        self.index += 1;
        (self.name, self.id, self.is_announced, self.has_arguments) = (None, None, false, false);
        self.mode = CallMode::Begin;
        if self.is_list { ReadStep::More } else { ReadStep::Done }
    }

    fn announce(&mut self, out: &mut Vec<Delta>) {
        if let (false, Some(name)) = (self.is_announced, &self.name) {
            out.push(Delta::Call { index: self.index, name: name.clone(), id: self.id.clone() });
            self.is_announced = true;
        }
    }

    /// Sends what was read of the arguments, or keeps it until the name is known.
    fn pass_on(&mut self, arguments: &mut String, out: &mut Vec<Delta>) {
        if arguments.is_empty() {
            return;
        }
        let text = std::mem::take(arguments);
        if self.is_announced {
            out.push(Delta::Arguments { index: self.index, text });
        } else if matches!(self.mode, CallMode::End) {
            out.push(Delta::Arguments { index: self.index - 1, text });
        } else {
            self.kept.push_str(&text);
        }
    }
}

impl CallKeys {
    fn kind(&self, key: &str) -> CallKey {
        match key {
            _ if self.name.contains(&key) => CallKey::Name,
            _ if self.arguments.contains(&key) => CallKey::Arguments,
            _ if self.id.contains(&key) => CallKey::Id,
            "function" => CallKey::Wrapper,
            "type" => CallKey::Id,
            _ => CallKey::Other,
        }
    }
}

/// A name without what families put around it: `functions.f:0` (which is also the call's id), `f[CALL_ID]x`.
fn clean_name(text: &str) -> (String, Option<String>) {
    let text = text.trim();
    if let Some((name, id)) = text.split_once("[CALL_ID]") {
        return (name.trim().to_owned(), Some(id.trim().to_owned()));
    }
    if let Some((id, name)) = text.split_once(NAME) {
        return (name.trim().to_owned(), Some(id.trim().to_owned()).filter(|id| !id.is_empty()));
    }
    let bare = text.strip_prefix("functions.").unwrap_or(text);
    match bare.rsplit_once(':') {
        Some((name, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
            (name.to_owned(), Some(text.to_owned()))
        }
        _ => (bare.to_owned(), None),
    }
}
