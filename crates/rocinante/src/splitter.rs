//! From tokens to what a reader is shown: whole characters, stop strings held back, reasoning and tool calls kept apart
//! from the text, log-probabilities with the text they belong to. Pure: tokens in, pieces out.

use std::sync::Arc;

use ::model::TokenId;
use serde_json::Value;
use text::answer::{AnswerFormat, Delta, Parser};
use text::{Detokenizer, StopMatcher, Tokenizer};

use crate::ids;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text for the reader.
    Text {
        /// Never half a character.
        text: String,
        /// The tokens it came from, where log-probabilities were asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// What the model thinks before it answers.
    Reasoning(String),
    /// A call of a tool begins.
    ToolCall {
        /// Counts the calls of this answer.
        index: usize,
        /// The model's own id, or a random one.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments.
    ToolArguments {
        /// Of which call.
        index: usize,
        /// JSON, as the model writes it.
        text: String,
    },
}

/// A token with its log-probability, and the best ones at its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token that was chosen.
    pub token: TokenId,
    /// Natural logarithm of its probability; NaN unless it was asked for.
    pub logprob: f32,
    /// The most probable tokens, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// How answers are read; the same for all answers to one request.
#[derive(Clone, Debug)]
struct SplitterSettings {
    tokenizer: Arc<Tokenizer>,
    stop: Vec<String>,
    has_logprobs: bool,
    /// `None`: text is only text.
    format: Option<AnswerFormat>,
    /// The end of what was rendered: it may have opened the reasoning.
    prompt: String,
    tools: Value,
}

/// Reads one answer.
#[derive(Debug)]
pub struct Splitter {
    settings: SplitterSettings,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    parser: Option<Parser>,
    /// All of the text, where stop strings are looked for.
    seen: String,
    logprobs: Vec<TokenLogprob>,
    ready: Vec<Piece>,
    is_stopped: bool,
    /// What the call that came last was given so far; `None` before the first.
    last_arguments: Option<String>,
    n_reasoning: usize,
}

impl Splitter {
    /// For text that is only text.
    pub fn plain(tokenizer: &Arc<Tokenizer>, stop: Vec<String>, has_logprobs: bool) -> Self {
        let tokenizer = Arc::clone(tokenizer);
        Self::of(SplitterSettings {
            tokenizer,
            stop,
            has_logprobs,
            format: None,
            prompt: String::new(),
            tools: Value::Null,
        })
    }

    /// For an answer that may reason and call tools in the model's own way.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        stop: Vec<String>,
        has_logprobs: bool,
        format: AnswerFormat,
        prompt: &str,
        tools: &[Value],
    ) -> Self {
        let format = (format.has_tools() || format.has_reasoning()).then_some(format);
        let end = prompt.char_indices().rev().nth(200).map_or(0, |(at, _)| at);
        Self::of(SplitterSettings {
            tokenizer: Arc::clone(tokenizer),
            stop,
            has_logprobs,
            format,
            prompt: prompt[end..].to_owned(),
            tools: tools.to_vec().into(),
        })
    }

    fn of(settings: SplitterSettings) -> Self {
        let detokenizer = Detokenizer::new(Arc::clone(&settings.tokenizer));
        let (detokenizer, parser) = match &settings.format {
            Some(format) => {
                let parser = Parser::new(format, &settings.prompt, &settings.tools);
                (detokenizer.showing(&format.marks()), Some(parser))
            }
            None => (detokenizer, None),
        };
        Self {
            detokenizer,
            matcher: StopMatcher::new(settings.stop.clone()),
            parser,
            settings,
            seen: String::new(),
            logprobs: Vec::new(),
            ready: Vec::new(),
            is_stopped: false,
            last_arguments: None,
            n_reasoning: 0,
        }
    }

    /// One for another answer to the same request.
    pub fn fresh(&self) -> Self {
        Self::of(self.settings.clone())
    }

    /// Adds a token; says whether a stop string is complete now.
    pub fn push(&mut self, token: TokenId, logprob: f32, top: Vec<(TokenId, f32)>) -> bool {
        if self.is_stopped {
            return false;
        }
        if self.settings.has_logprobs && !self.settings.tokenizer.is_end(token.0) {
            self.logprobs.push(TokenLogprob { token, logprob, top });
        }
        let text = self.detokenizer.push(token.0);
        let n_before = self.ready.len();
        let is_stopped = self.show(&text);
        let is_reasoning = |piece: &Piece| matches!(piece, Piece::Reasoning(_));
        self.n_reasoning += usize::from(self.ready[n_before..].iter().any(is_reasoning));
        is_stopped
    }

    /// The answer is over: what was held back is text.
    pub fn finish(&mut self) {
        if !self.is_stopped {
            let rest = self.detokenizer.finish();
            if !self.show(&rest) {
                let held = self.matcher.finish();
                self.read(&held);
            }
        }
        if let Some(parser) = &mut self.parser {
            let deltas = parser.finish();
            self.emit(deltas);
        }
    }

    fn show(&mut self, text: &str) -> bool {
        if !self.settings.stop.is_empty() {
            self.seen.push_str(text);
        }
        let step = self.matcher.push(text);
        self.is_stopped = step.is_stopped;
        self.read(&step.text);
        step.is_stopped
    }

    fn read(&mut self, text: &str) {
        let deltas = match &mut self.parser {
            Some(parser) => parser.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Text(text.to_owned())],
        };
        self.emit(deltas);
    }

    fn emit(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            let piece = match delta {
                Delta::Text(text) => Piece::Text { text, logprobs: std::mem::take(&mut self.logprobs) },
                Delta::Reasoning(text) => Piece::Reasoning(text),
                Delta::Call { index, name, id } => {
                    self.last_arguments = Some(String::new());
                    Piece::ToolCall { index, id: id.unwrap_or_else(|| ids::new("call_")), name }
                }
                Delta::Arguments { index, text } => {
                    if let Some(arguments) = &mut self.last_arguments {
                        arguments.push_str(&text);
                    }
                    Piece::ToolArguments { index, text }
                }
            };
            if !matches!(piece, Piece::Text { .. }) {
                self.logprobs.clear();
            }
            self.ready.push(piece);
        }
    }

    /// What can be shown now.
    pub fn take(&mut self) -> impl Iterator<Item = Piece> + use<> {
        std::mem::take(&mut self.ready).into_iter()
    }

    /// The stop string that ended the answer.
    pub fn stop_string(&self) -> Option<String> {
        if !self.is_stopped {
            return None;
        }
        let ends =
            self.settings.stop.iter().filter_map(|stop| Some((self.seen.find(stop.as_str())? + stop.len(), stop)));
        ends.min_by_key(|&(end, stop)| (end, usize::MAX - stop.len())).map(|(_, stop)| stop.clone())
    }

    /// There are calls, and the last of them is complete.
    pub fn has_whole_tool_calls(&self) -> bool {
        self.last_arguments.as_deref().is_some_and(|text| serde_json::from_str::<Value>(text).is_ok())
    }

    /// Tokens that were reasoning.
    pub fn n_reasoning_tokens(&self) -> usize {
        self.n_reasoning
    }
}
