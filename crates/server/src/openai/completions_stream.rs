//! Completions as a stream of chunks, and the four lists in which OpenAI tells about tokens.

use super::{finish_reason, total, usage};
use crate::error::ApiError;
use crate::loaded::Loaded;
use crate::stream::{Encoder, StreamMessage};
use model::TokenId;
use rocinante::{AnswerEvent, AnswerUsage, Finished, Piece, TokenLogprob};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What stands before the answers, `n` of them to each prompt.
pub struct Echoes {
    /// Empty where nothing does.
    pub texts: Vec<String>,
    pub first_tokens: Vec<TokenId>,
    /// Whether the prompts' tokens come with their log-probabilities.
    pub is_scored: bool,
    pub n: usize,
}

/// Tokens, their log-probabilities, the best ones at their place, and where in the text they begin, in characters.
#[derive(Default)]
pub struct Lists {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    offset: usize,
}

impl Lists {
    /// Text that no token stands for.
    pub fn skip(&mut self, text: &str) {
        self.offset += text.chars().count();
    }

    pub fn add(&mut self, token: &TokenLogprob, model: &Loaded) {
        let text = |token: TokenId| model.tokenizer.token_text(token.0);
        // JSON has no infinities.
        let finite = |logprob: f32| if logprob.is_finite() { logprob } else { -9999.0 };
        let top = token.top.iter().map(|&(token, logprob)| (text(token), Value::from(finite(logprob))));
        let top = top.collect::<Map<_, _>>().into();
        self.push(text(token.token), finite(token.logprob).into(), top);
    }

    /// The first token has nothing before it to be likely after: it is given, and 0 is the logarithm of that. Typed
    /// clients take no null here.
    pub fn add_prompt(&mut self, first: TokenId, rest: &[TokenLogprob], model: &Loaded) {
        self.push(model.tokenizer.token_text(first.0), 0.0.into(), json!({}));
        rest.iter().for_each(|token| self.add(token, model));
    }

    fn push(&mut self, text: String, logprob: Value, top: Value) {
        self.text_offset.push(self.offset);
        self.offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(logprob);
        self.top_logprobs.push(top);
    }

    /// What was added since the last time.
    pub fn take(&mut self) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset, offset } = std::mem::take(self);
        self.offset = offset;
        json!({"tokens": tokens, "token_logprobs": token_logprobs, "top_logprobs": top_logprobs,
            "text_offset": text_offset})
    }
}

pub struct CompletionEncoder {
    id: String,
    created: u64,
    name: String,
    model: Arc<Loaded>,
    include_usage: bool,
    echoes: Echoes,
    usages: Vec<AnswerUsage>,
    lists: Vec<Lists>,
}

impl CompletionEncoder {
    pub fn new(
        id: String,
        created: u64,
        name: String,
        model: Arc<Loaded>,
        include_usage: bool,
        echoes: Echoes,
    ) -> Self {
        let n_choices = echoes.texts.len() * echoes.n;
        let usages = vec![AnswerUsage::default(); n_choices];
        let lists = (0..n_choices).map(|_| Lists::default()).collect();
        Self { id, created, name, model, include_usage, echoes, usages, lists }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut value = json!({"id": self.id, "object": "text_completion", "created": self.created,
            "model": self.name, "choices": choices});
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn text(&self, choice: usize, text: &str, logprobs: Value, finish: Option<&str>) -> StreamMessage {
        self.chunk(json!([{"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}])).into()
    }

    fn echo(&self, choice: usize) -> &str {
        &self.echoes.texts[choice / self.echoes.n]
    }
}

impl Encoder for CompletionEncoder {
    fn start(&mut self) -> Vec<StreamMessage> {
        // A prompt with scores is shown when they are there.
        if self.echoes.is_scored {
            return Vec::new();
        }
        for choice in 0..self.lists.len() {
            let echo = self.echoes.texts[choice / self.echoes.n].as_str();
            self.lists[choice].skip(echo);
        }
        let shown = (0..self.usages.len()).filter(|&choice| !self.echo(choice).is_empty());
        shown.map(|choice| self.text(choice, self.echo(choice), Value::Null, None)).collect()
    }

    fn update(&mut self, choice: usize, update: AnswerEvent) -> Vec<StreamMessage> {
        match update {
            AnswerEvent::Prompt(tokens) => {
                let first = self.echoes.first_tokens[choice / self.echoes.n];
                self.lists[choice].add_prompt(first, &tokens, &self.model);
                let shown = self.lists[choice].take();
                vec![self.text(choice, self.echo(choice), shown, None)]
            }
            AnswerEvent::Piece(Piece::Text { text, logprobs: tokens }) => {
                let lists = &mut self.lists[choice];
                tokens.iter().for_each(|token| lists.add(token, &self.model));
                let shown = if tokens.is_empty() { Value::Null } else { lists.take() };
                vec![self.text(choice, &text, shown, None)]
            }
            AnswerEvent::Piece(_) | AnswerEvent::Progress { .. } | AnswerEvent::Token(_) => Vec::new(),
            AnswerEvent::Finished(Finished { finish, usage, .. }) => {
                self.usages[choice] = usage;
                vec![self.text(choice, "", Value::Null, Some(finish_reason(finish)))]
            }
        }
    }

    fn end(&mut self) -> Vec<StreamMessage> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut value = self.chunk(json!([]));
        value["usage"] = usage(&total(self.usages.iter(), self.echoes.n));
        vec![value.into()]
    }

    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage> {
        vec![error.openai().into()]
    }
}
