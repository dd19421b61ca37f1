//! What a model wrote, taken apart: reasoning, text, calls of tools. One family writes calls as JSON between tags,
//! another in channels, a third as XML; a [`AnswerFormat`] says which, and is found from the chat template.
//!
//! A [`Parser`] takes the text in pieces of any size and gives [`Delta`]s; joined, they are the same however the text
//! was cut. Text is held back only while it may be the beginning of a mark, and white space until something follows.
//! Marks are often special tokens, which a detokenizer does not show: give it [`AnswerFormat::marks`] to show.

mod braced_call;
mod call_parameters;
mod channels;
mod grammar;
mod json_call;
mod markers;
mod python_call;
mod syntax;
mod tagged_call;

use serde_json::Value;

use braced_call::BracedCall;
use channels::Channels;
pub use grammar::ForcedTool;
use json_call::JsonCall;
use markers::{Found, find};
use python_call::PythonCall;
pub use syntax::AnswerFormat;
use syntax::{Body, Syntax};
use tagged_call::TaggedCall;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are explained with their variant")]
pub enum Delta {
    /// Text the model thinks aloud, apart from the answer.
    Reasoning(String),
    /// Text of the answer.
    Text(String),
    /// A call begins; calls are counted from 0. `id` only where the model wrote one before the name.
    Call { index: usize, name: String, id: Option<String> },
    /// More of the JSON text of a call's arguments.
    Arguments { index: usize, text: String },
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "as in `Delta`")]
pub struct ParsedAnswer {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Where the model wrote one.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

impl ParsedAnswer {
    /// Appends a piece.
    pub fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Text(text) => self.text.push_str(&text),
            Delta::Call { name, id, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
            Delta::Arguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
        }
    }
}

/// What a reader of one call says after looking at the text.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum ReadStep {
    /// It needs more text.
    More,
    /// The call is complete; what is left of the text is not its own.
    Done,
    /// This is no call.
    Bad,
}

/// Takes an answer apart as it grows.
#[derive(Debug)]
pub struct Parser {
    format: AnswerFormat,
    state: ParserState,
    /// Text nobody has decided about yet.
    held: String,
    /// White space that is shown if text follows it.
    space: String,
    /// Everything since a call was announced, to give back if it is none.
    raw: String,
    n_calls: usize,
    /// Nothing but white space was seen so far in this stretch of text.
    is_fresh: bool,
    /// Types of the tools' parameters, for formats that write values bare.
    tools: Value,
    channels: Channels,
    out: Vec<Delta>,
}

#[derive(Debug)]
enum ParserState {
    Text,
    Reasoning,
    /// Inside the marks around all calls, between two of them.
    Section,
    Call(CallReader),
    /// A call is read, the mark that ends it is not.
    AfterCall,
    Channels,
}

#[derive(Debug)]
enum CallReader {
    Json(JsonCall),
    Python(PythonCall),
    Braced(BracedCall),
    Tagged(TaggedCall),
}

impl Parser {
    /// `prompt` is what was rendered (its end is enough): some templates open the reasoning themselves. `tools` is the
    /// list of tools the model was told of, or null.
    pub fn new(format: &AnswerFormat, prompt: &str, tools: &Value) -> Self {
        let begins_inside = format.reasoning.is_some_and(|(open, _)| prompt.trim_end().ends_with(open));
        let state = match format.channels {
            Some(_) => ParserState::Channels,
            None if begins_inside => ParserState::Reasoning,
            None => ParserState::Text,
        };
        Self {
            format: format.clone(),
            state,
            held: String::new(),
            space: String::new(),
            raw: String::new(),
            n_calls: 0,
            is_fresh: true,
            tools: tools.clone(),
            channels: Channels::new(format.channels),
            out: Vec::new(),
        }
    }

    /// Takes more text and returns what is decided.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        self.run(false);
        std::mem::take(&mut self.out)
    }

    /// Ends the answer: what was held back is what it looks like.
    pub fn finish(&mut self) -> Vec<Delta> {
        if self.n_calls > 0 && self.holds_cut_mark() {
            self.held.clear();
        }
        self.run(true);
        if let ParserState::Call(reader) = &mut self.state {
            let is_announced = match reader {
                CallReader::Json(call) => call.finish(&mut self.out),
                CallReader::Python(call) => call.finish(&mut self.out),
                CallReader::Braced(call) => call.finish(&mut self.out),
                CallReader::Tagged(call) => call.finish(&mut self.out),
            };
            let raw = std::mem::take(&mut self.raw);
            // Behind a call it is another one, cut before it had a name.
            if !is_announced && self.n_calls == 0 {
                self.text(&raw);
            }
        }
        // A tail of white space is text unless it only stood around calls.
        if self.n_calls == 0 && !self.is_fresh {
            let space = std::mem::take(&mut self.space);
            self.emit_text(space);
        }
        self.state = ParserState::Text;
        std::mem::take(&mut self.out)
    }

    /// What is held back is the beginning of a mark, and nothing else.
    fn holds_cut_mark(&self) -> bool {
        let mut marks = self.format.openers();
        if let Some(syntax) = self.format.tools {
            marks.push(syntax.call.1);
            marks.extend(syntax.section.map(|(_, close)| close));
        }
        marks.retain(|mark| !mark.is_empty());
        matches!(find(&self.held, &marks, false), Found::Partial { start: 0 })
    }

    /// The whole of an answer at once.
    pub fn parse(format: &AnswerFormat, prompt: &str, tools: &Value, text: &str) -> ParsedAnswer {
        let mut parser = Self::new(format, prompt, tools);
        let mut answer = ParsedAnswer::default();
        let deltas = parser.push(text).into_iter().chain(parser.finish());
        deltas.for_each(|delta| answer.add(delta));
        answer
    }

    fn run(&mut self, is_last: bool) {
        loop {
            let goes_on = match &self.state {
                ParserState::Text => self.read_text(is_last),
                ParserState::Reasoning => self.read_reasoning(is_last),
                ParserState::Section => self.read_section(is_last),
                ParserState::Call(_) => self.read_call(),
                ParserState::AfterCall => self.read_after_call(is_last),
                ParserState::Channels => {
                    self.channels.read(&mut self.held, is_last, &mut self.n_calls, &mut self.out);
                    false
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Each of these says whether there is more to do.
    fn read_text(&mut self, is_last: bool) -> bool {
        let syntax = self.format.tools;
        if self.is_fresh && syntax.is_some_and(|syntax| syntax.is_bare) && self.may_begin_bare() {
            let trimmed = self.held.trim_start();
            if trimmed.is_empty() {
                return false;
            }
            let n_space = self.held.len() - trimmed.len();
            self.space.push_str(&self.held[..n_space]);
            self.held.drain(..n_space);
            return self.begin_call(String::new());
        }
        let found = find(&self.held, &self.format.openers(), is_last);
        let before: String = self.held.drain(..found.start()).collect();
        self.text(&before);
        let Found::Mark { mark, .. } = found else { return false };
        self.held.drain(..mark.len());
        if self.format.dropped.contains(&mark) {
            // White space around it is layout.
            self.space.clear();
            self.is_fresh = true;
            return true;
        }
        if self.format.reasoning.is_some_and(|(open, _)| open == mark) {
            self.space.clear();
            self.state = ParserState::Reasoning;
            return true;
        }
        match syntax.and_then(|syntax| syntax.section) {
            Some((open, _)) if open == mark => {
                self.raw.push_str(mark);
                self.state = ParserState::Section;
                true
            }
            _ => self.begin_call(mark.to_owned()),
        }
    }

    /// Whether the text so far may be a call without any mark: a JSON object, or a Python list, right at the beginning.
    fn may_begin_bare(&self) -> bool {
        let is_python = self.format.tools.is_some_and(|syntax| matches!(syntax.body, Body::Python));
        let first = if is_python { '[' } else { '{' };
        self.held.trim_start().chars().next().is_none_or(|c| c == first)
    }

    fn begin_call(&mut self, mark: String) -> bool {
        self.raw.push_str(&mark);
        let Some(syntax) = self.format.tools else { return false };
        let reader = match syntax.body {
            Body::Json(keys) => CallReader::Json(JsonCall::object(keys, syntax, self.n_calls)),
            Body::Named(_) => CallReader::Json(JsonCall::named(syntax, self.n_calls)),
            Body::Python => CallReader::Python(PythonCall::new(self.n_calls)),
            Body::Braced => CallReader::Braced(BracedCall::new(self.n_calls)),
            Body::Tagged(tags) => CallReader::Tagged(TaggedCall::new(tags, self.n_calls)),
        };
        self.state = ParserState::Call(reader);
        true
    }

    fn read_reasoning(&mut self, is_last: bool) -> bool {
        let Some((_, close)) = self.format.reasoning else { return false };
        let found = find(&self.held, &[close], is_last);
        let before: String = self.held.drain(..found.start()).collect();
        let before = if self.is_fresh { before.trim_start().to_owned() } else { before };
        if !before.is_empty() {
            self.is_fresh = false;
            // White space before the closing mark is layout.
            let trimmed = before.trim_end();
            if !trimmed.is_empty() {
                let space = std::mem::take(&mut self.space);
                self.out.push(Delta::Reasoning(space + trimmed));
            }
            self.space.push_str(&before[trimmed.len()..]);
        }
        let Found::Mark { mark, .. } = found else {
            if is_last {
                self.space.clear();
            }
            return false;
        };
        self.held.drain(..mark.len());
        self.space.clear();
        self.is_fresh = true;
        self.state = ParserState::Text;
        true
    }

    fn read_section(&mut self, is_last: bool) -> bool {
        let Some(Syntax { section: Some((_, close)), call: (open, _), .. }) = self.format.tools else { return false };
        let trimmed = self.held.trim_start_matches([' ', '\t', '\r', '\n', ',']);
        let n_space = self.held.len() - trimmed.len();
        self.raw.push_str(&self.held[..n_space]);
        self.held.drain(..n_space);
        if self.held.is_empty() {
            return false;
        }
        let marks: Vec<&str> = [*open, *close].into_iter().filter(|mark| !mark.is_empty()).collect();
        match find(&self.held, &marks, is_last) {
            Found::Mark { start: 0, mark } if mark == *close && mark != *open => {
                self.held.drain(..mark.len());
                self.leave_section();
                true
            }
            Found::Mark { start: 0, mark } => {
                self.held.drain(..mark.len());
                self.begin_call(mark.to_owned())
            }
            Found::Partial { start: 0 } => false,
            // Some write the first call, or a list of calls, without a mark of its own.
            _ if open.is_empty() || self.held.starts_with(['{', '[']) => self.begin_call(String::new()),
            _ => {
                self.leave_section();
                true
            }
        }
    }

    /// Back to text; a section without a call was none.
    fn leave_section(&mut self) {
        let raw = std::mem::take(&mut self.raw);
        self.state = ParserState::Text;
        self.is_fresh = true;
        if !raw.is_empty() {
            self.is_fresh = false;
            self.text(&raw);
        }
    }

    fn read_call(&mut self) -> bool {
        let ParserState::Call(reader) = &mut self.state else { return false };
        let n_before = self.out.len();
        let (step, n_calls) = match reader {
            CallReader::Json(call) => {
                let step = call.read(&mut self.held, &mut self.raw, &mut self.out);
                (step, call.n_calls())
            }
            CallReader::Python(call) => {
                let step = call.read(&mut self.held, &mut self.raw, &mut self.out);
                (step, call.n_calls())
            }
            CallReader::Braced(call) => {
                let step = call.read(&mut self.held, &mut self.raw, &mut self.out);
                (step, call.n_calls())
            }
            CallReader::Tagged(call) => {
                let step = call.read(&mut self.held, &mut self.raw, &self.tools, &mut self.out);
                (step, call.n_calls())
            }
        };
        if self.out.len() > n_before {
            self.space.clear();
            // Announced: from here on it is a call, whatever follows.
            self.raw.clear();
            self.is_fresh = false;
        }
        match step {
            ReadStep::More => false,
            ReadStep::Done => {
                self.n_calls = n_calls;
                self.raw.clear();
                self.state = ParserState::AfterCall;
                true
            }
            ReadStep::Bad => {
                let raw = std::mem::take(&mut self.raw);
                self.state = ParserState::Text;
                self.is_fresh = false;
                self.text(&raw);
                true
            }
        }
    }

    fn read_after_call(&mut self, is_last: bool) -> bool {
        let Some(syntax) = self.format.tools else { return false };
        let trimmed = self.held.trim_start();
        let n_space = self.held.len() - trimmed.len();
        self.held.drain(..n_space);
        if self.held.is_empty() && !is_last {
            return false;
        }
        let close = syntax.call.1;
        if !close.is_empty() {
            match find(&self.held, &[close], is_last) {
                Found::Mark { start: 0, mark } => drop(self.held.drain(..mark.len())),
                Found::Partial { start: 0 } => return false,
                // Some forget the closing mark.
                _ => {}
            }
        }
        self.state = if syntax.section.is_some() { ParserState::Section } else { ParserState::Text };
        self.is_fresh = true;
        !self.held.is_empty()
    }

    /// Text that is certain: white space at its end waits for what follows.
    fn text(&mut self, text: &str) {
        let text = if self.is_fresh && self.space.is_empty() { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        let trimmed = text.trim_end();
        if !trimmed.is_empty() {
            let space = std::mem::take(&mut self.space);
            self.is_fresh = false;
            self.emit_text(space + trimmed);
        }
        self.space.push_str(&text[trimmed.len()..]);
    }

    fn emit_text(&mut self, text: String) {
        if !text.is_empty() {
            self.out.push(Delta::Text(text));
        }
    }
}
