//! Calls whose arguments are JSON: an object with a name and arguments, a list of such objects, or a name, a mark and
//! the arguments. Read one character at a time, so that arguments can be passed on while they are being written.

use super::markers::{Found, find};
use super::syntax::{Body, CallKeys, Syntax};
use super::{Delta, Step};

#[derive(Debug)]
pub(crate) struct JsonCall {
    keys: &'static CallKeys,
    syntax: &'static Syntax,
    mode: Mode,
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
enum Mode {
    /// Before a name that stands outside the JSON.
    Name,
    Begin,
    Key,
    KeyText(Quoted),
    Colon(Key),
    Value(Key),
    Text(Key, Quoted),
    /// Inside a value of this key.
    Nested(Key, Depth),
    Scalar(Key),
    /// Everything that follows is a program.
    Code,
    End,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Key {
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
            mode: Mode::Begin,
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
        Self { mode: Mode::Name, ..Self::object(&super::syntax::KEYS, syntax, index) }
    }

    /// Calls read so far, those before this one included.
    pub(crate) fn n_calls(&self) -> usize {
        self.index
    }

    /// Takes what it can from `held`; before the call is announced, what was taken is kept in `raw` too.
    pub(crate) fn read(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> Step {
        if matches!(self.mode, Mode::Name) {
            match self.read_name(held, raw, out) {
                Step::Done => {}
                step => return step,
            }
        }
        let mut arguments = String::new();
        let mut n_taken = 0;
        let mut step = Step::More;
        for (at, c) in held.char_indices() {
            let (taken, result) = self.take(c, &mut arguments, out);
            n_taken = if taken { at + c.len_utf8() } else { at };
            if result != Step::More {
                step = result;
                break;
            }
        }
        self.pass_on(&mut arguments, out);
        if !self.is_announced && self.index == 0 || step == Step::Bad {
            raw.push_str(&held[..n_taken]);
        }
        held.drain(..n_taken);
        // What was announced is a call, however it ends.
        if step == Step::Bad && self.is_announced {
            self.index += 1;
            return Step::Done;
        }
        step
    }

    /// Ends the call where the answer ends, and says whether there was one.
    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) -> bool {
        if matches!(self.mode, Mode::Code) && self.is_announced {
            out.push(Delta::Arguments { index: self.index, text: "\"}".to_owned() });
        }
        self.is_announced || self.index > 0
    }

    fn read_name(&mut self, held: &mut String, raw: &mut String, out: &mut Vec<Delta>) -> Step {
        let Body::Named(after) = self.syntax.body else { return Step::Bad };
        let trimmed = held.trim_start();
        // Older models of the family write a list of objects here.
        match trimmed.chars().next() {
            None => return Step::More,
            Some('[' | '{') if !after.iter().any(|mark| mark.starts_with('[') && trimmed.starts_with(mark)) => {
                self.mode = Mode::Begin;
                return Step::Done;
            }
            Some(_) => {}
        }
        match find(held, after, false) {
            Found::Mark { start, mark } => {
                let (name, id) = clean_name(&held[..start]);
                if name.is_empty() || name.contains(['\n', '{', '<']) {
                    return Step::Bad;
                }
                raw.push_str(&held[..start + mark.len()]);
                held.drain(..start + mark.len());
                (self.name, self.id) = (Some(name), id);
                self.announce(out);
                self.mode = Mode::Value(Key::Arguments);
                Step::Done
            }
            // A name is short; what goes on and on is none.
            Found::Partial { start } | Found::Nothing { start } if start > 256 => Step::Bad,
            _ => Step::More,
        }
    }

    /// One character: whether it was taken, and what follows from it.
    fn take(&mut self, c: char, arguments: &mut String, out: &mut Vec<Delta>) -> (bool, Step) {
        let is_space = c.is_ascii_whitespace();
        match &mut self.mode {
            Mode::Begin => return self.begin_call(c, arguments, out),
            Mode::Key => match c {
                _ if is_space || c == ',' => {}
                '"' => self.mode = Mode::KeyText(Quoted::default()),
                '}' if self.n_nested > 0 => self.n_nested -= 1,
                '}' => return (true, self.end_object(arguments, out)),
                _ => return (false, Step::Bad),
            },
            Mode::KeyText(quoted) => {
                if quoted.push(c) {
                    let Some(key) = quoted.text() else { return (true, Step::Bad) };
                    let key = self.keys.kind(&key);
                    // A call without a mark around it must look like one from its first key on.
                    if self.syntax.is_bare && key == Key::Other && self.name.is_none() && self.n_nested == 0 {
                        return (true, Step::Bad);
                    }
                    self.mode = Mode::Colon(key);
                }
            }
            Mode::Colon(key) => match c {
                _ if is_space => {}
                ':' => self.mode = Mode::Value(*key),
                _ => return (false, Step::Bad),
            },
            Mode::Value(key) => {
                if is_space {
                    return (true, Step::More);
                }
                let key = *key;
                return self.begin_value(key, c, arguments);
            }
            Mode::Text(key, quoted) => {
                if quoted.push(c) {
                    let key = *key;
                    let Some(text) = quoted.text() else { return (true, Step::Bad) };
                    return (true, self.end_text(key, text, arguments, out));
                }
            }
            Mode::Nested(key, depth) => {
                let (key, is_end) = (*key, depth.push(c));
                if key == Key::Arguments {
                    arguments.push(c);
                }
                if is_end {
                    return (true, self.end_value(key));
                }
            }
            Mode::Scalar(key) => {
                let key = *key;
                if matches!(c, ',' | '}' | ']') || is_space {
                    let step = self.end_value(key);
                    return if step == Step::More { self.take(c, arguments, out) } else { (false, step) };
                }
                if key == Key::Arguments {
                    arguments.push(c);
                }
            }
            Mode::Code => {
                let quoted = serde_json::Value::from(c.to_string()).to_string();
                arguments.push_str(&quoted[1..quoted.len() - 1]);
            }
            Mode::Name | Mode::End => return (false, Step::Done),
        }
        (true, Step::More)
    }

    /// What stands before an object: a list's bracket, a comma, or code that is the call.
    fn begin_call(&mut self, c: char, arguments: &mut String, out: &mut Vec<Delta>) -> (bool, Step) {
        match c {
            _ if c.is_ascii_whitespace() => {}
            '[' if !self.is_list => self.is_list = true,
            ',' if self.is_list && self.index > 0 => {}
            ']' if self.is_list => return (true, if self.index > 0 { Step::Done } else { Step::Bad }),
            '{' => self.mode = Mode::Key,
            _ if self.syntax.code.is_some() && !self.syntax.call.0.is_empty() && !self.is_list => {
                self.name = self.syntax.code.map(str::to_owned);
                self.announce(out);
                arguments.push_str("{\"code\":\"");
                self.mode = Mode::Code;
                return self.take(c, arguments, out);
            }
            _ => return (false, Step::Bad),
        }
        (true, Step::More)
    }

    /// A quoted value is complete.
    fn end_text(&mut self, key: Key, text: String, arguments: &mut String, out: &mut Vec<Delta>) -> Step {
        self.mode = Mode::Key;
        match key {
            Key::Name | Key::Wrapper => {
                self.name = Some(text);
                self.announce(out);
                arguments.push_str(&std::mem::take(&mut self.kept));
            }
            Key::Id => self.id = Some(text),
            Key::Arguments => return self.end_arguments(&text, arguments),
            Key::Other => {}
        }
        Step::More
    }

    fn begin_value(&mut self, key: Key, c: char, arguments: &mut String) -> (bool, Step) {
        self.has_arguments |= key == Key::Arguments;
        match c {
            '"' => self.mode = Mode::Text(key, Quoted::default()),
            '{' if key == Key::Wrapper => {
                self.n_nested += 1;
                self.mode = Mode::Key;
            }
            '{' | '[' if key != Key::Name => {
                let mut depth = Depth::default();
                depth.push(c);
                self.mode = Mode::Nested(key, depth);
                if key == Key::Arguments {
                    arguments.push(c);
                }
            }
            '}' | ']' | ',' | ':' => return (false, Step::Bad),
            _ if key == Key::Name => return (false, Step::Bad),
            _ => {
                self.mode = Mode::Scalar(key);
                if key == Key::Arguments {
                    arguments.push(c);
                }
            }
        }
        (true, Step::More)
    }

    fn end_value(&mut self, key: Key) -> Step {
        self.mode = Mode::Key;
        if key == Key::Arguments && matches!(self.syntax.body, Body::Named(_)) && !self.is_list && self.is_announced {
            self.mode = Mode::End;
            self.index += 1;
            self.is_announced = false;
            return Step::Done;
        }
        Step::More
    }

    /// Arguments written as a string of JSON.
    fn end_arguments(&mut self, text: &str, arguments: &mut String) -> Step {
        arguments.push_str(text);
        self.end_value(Key::Arguments)
    }

    fn end_object(&mut self, arguments: &mut String, out: &mut Vec<Delta>) -> Step {
        if !self.is_announced {
            return Step::Bad;
        }
        if !self.has_arguments {
            arguments.push_str("{}");
        }
        self.pass_on(arguments, out);
        self.index += 1;
        (self.name, self.id, self.is_announced, self.has_arguments) = (None, None, false, false);
        self.mode = Mode::Begin;
        if self.is_list { Step::More } else { Step::Done }
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
        } else if matches!(self.mode, Mode::End) {
            out.push(Delta::Arguments { index: self.index - 1, text });
        } else {
            self.kept.push_str(&text);
        }
    }
}

impl CallKeys {
    fn kind(&self, key: &str) -> Key {
        match key {
            _ if self.name.contains(&key) => Key::Name,
            _ if self.arguments.contains(&key) => Key::Arguments,
            _ if self.id.contains(&key) => Key::Id,
            "function" => Key::Wrapper,
            "type" => Key::Id,
            _ => Key::Other,
        }
    }
}

/// A name without what families put around it: `functions.f:0` (which is also the call's id), `f[CALL_ID]x`.
fn clean_name(text: &str) -> (String, Option<String>) {
    let text = text.trim();
    if let Some((name, id)) = text.split_once("[CALL_ID]") {
        return (name.trim().to_owned(), Some(id.trim().to_owned()));
    }
    let bare = text.strip_prefix("functions.").unwrap_or(text);
    match bare.rsplit_once(':') {
        Some((name, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
            (name.to_owned(), Some(text.to_owned()))
        }
        _ => (bare.to_owned(), None),
    }
}
