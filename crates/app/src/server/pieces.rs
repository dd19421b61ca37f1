//! From tokens to what a client is shown: whole characters, stop strings held back, reasoning and tool calls kept apart
//! from the text, log-probabilities with the text they belong to.

use model::TokenId;
use std::sync::Arc;
use text::{Detokenizer, StopMatcher, Tokenizer};

/// A part of an answer.
#[allow(dead_code, reason = "tools and reasoning are read by parsers that are being added")]
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text {
        text: String,
        logprobs: Vec<TokenLogprob>,
    },
    Reasoning(String),
    /// A call begins; its index counts the calls of this answer.
    ToolCall {
        index: usize,
        id: String,
        name: String,
    },
    ToolArguments {
        index: usize,
        text: String,
    },
}

/// A token with its log-probability, and the best ones at its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub token: TokenId,
    pub logprob: f32,
    pub top: Vec<(TokenId, f32)>,
}

/// Reads one answer.
pub struct Splitter {
    tokenizer: Arc<Tokenizer>,
    stop: Vec<String>,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    logprobs: Vec<TokenLogprob>,
    ready: Vec<Piece>,
    is_stopped: bool,
    has_logprobs: bool,
    n_reasoning: usize,
}

impl Splitter {
    /// For text that is only text.
    pub fn plain(tokenizer: &Arc<Tokenizer>, stop: Vec<String>, has_logprobs: bool) -> Self {
        Self::new(Arc::clone(tokenizer), stop, has_logprobs)
    }

    pub fn new(tokenizer: Arc<Tokenizer>, stop: Vec<String>, has_logprobs: bool) -> Self {
        Self {
            detokenizer: Detokenizer::new(Arc::clone(&tokenizer)),
            matcher: StopMatcher::new(stop.clone()),
            tokenizer,
            stop,
            logprobs: Vec::new(),
            ready: Vec::new(),
            is_stopped: false,
            has_logprobs,
            n_reasoning: 0,
        }
    }

    /// One for another answer to the same request.
    pub fn fresh(&self) -> Self {
        Self::new(Arc::clone(&self.tokenizer), self.stop.clone(), self.has_logprobs)
    }

    /// Adds a token; says whether a stop string is complete now.
    pub fn push(&mut self, token: TokenId, logprob: f32, top: Vec<(TokenId, f32)>) -> bool {
        if self.is_stopped {
            return false;
        }
        if self.has_logprobs && !self.tokenizer.is_end(token.0) {
            self.logprobs.push(TokenLogprob { token, logprob, top });
        }
        let text = self.detokenizer.push(token.0);
        self.show(&text)
    }

    /// The answer is over: what was held back is text.
    pub fn finish(&mut self) {
        if self.is_stopped {
            return;
        }
        let rest = self.detokenizer.finish();
        if !self.show(&rest) {
            let held = self.matcher.finish();
            self.emit(held);
        }
    }

    fn show(&mut self, text: &str) -> bool {
        let step = self.matcher.push(text);
        self.is_stopped = step.is_stopped;
        self.emit(step.text);
        step.is_stopped
    }

    fn emit(&mut self, text: String) {
        if !text.is_empty() {
            self.ready.push(Piece::Text { text, logprobs: std::mem::take(&mut self.logprobs) });
        }
    }

    /// What can be shown now.
    pub fn take(&mut self) -> impl Iterator<Item = Piece> + use<> {
        std::mem::take(&mut self.ready).into_iter()
    }

    /// The stop string that ended the answer.
    pub fn stop_string(&self) -> Option<String> {
        self.is_stopped.then(|| self.stop.first().cloned().unwrap_or_default())
    }

    pub fn has_tool_calls(&self) -> bool {
        false
    }

    pub fn n_reasoning_tokens(&self) -> usize {
        self.n_reasoning
    }
}
