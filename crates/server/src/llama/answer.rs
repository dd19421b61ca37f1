//! Answers in llama.cpp's words: as a whole, and as a stream of events.

use crate::error::ApiError;
use crate::loaded::Loaded;
use crate::openai::chat_answer;
use crate::stream::{Encoder, StreamMessage};
use engine::{Mirostat, Sampling};
use model::TokenId;
use rocinante::{AnswerEvent, AnswerUsage, Finish, Finished, Piece, TokenLogprob, WholeAnswer};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What is known of an answer before there is one.
#[derive(Clone)]
pub struct LlamaFrame {
    pub model: Arc<Loaded>,
    pub name: String,
    pub prompt: String,
    pub settings: Value,
    pub has_probs: bool,
    pub returns_tokens: bool,
    /// The only parts of the answer that are sent; empty: all.
    pub fields: Vec<String>,
}

impl LlamaFrame {
    pub fn whole(&self, index: usize, answer: &WholeAnswer) -> Value {
        let mut value = self.last(index, &answer.text, &answer.usage, answer.finish, answer.stop.as_deref());
        if self.returns_tokens {
            value["tokens"] = answer.tokens.iter().map(|token| token.token.0).collect();
        }
        self.add_probs(&mut value, &answer.logprobs);
        self.chosen(value)
    }

    /// What stands at the end of an answer, or is all of it.
    fn last(&self, index: usize, text: &str, usage: &AnswerUsage, finish: Finish, stop: Option<&str>) -> Value {
        let why = match finish {
            Finish::Length | Finish::Context | Finish::Cancelled => "limit",
            Finish::StopString => "word",
            Finish::End | Finish::ToolCalls => "eos",
        };
        json!({"index": index, "content": text, "tokens": [], "id_slot": 0, "stop": true, "model": self.name,
            "tokens_predicted": usage.n_generated, "tokens_evaluated": usage.n_prompt,
            "generation_settings": self.settings, "prompt": self.prompt, "has_new_line": text.contains('\n'),
            "truncated": finish == Finish::Context, "stop_type": why, "stopping_word": stop.unwrap_or_default(),
            "tokens_cached": usage.n_cached, "timings": timings(usage, 1)})
    }

    fn add_probs(&self, value: &mut Value, logprobs: &[TokenLogprob]) {
        if !self.has_probs {
            return;
        }
        let mut probs = chat_answer::logprobs(logprobs, &self.model);
        for (prob, token) in probs.iter_mut().zip(logprobs) {
            prob["id"] = token.token.0.into();
            for (top, &(token, _)) in prob["top_logprobs"].as_array_mut().into_iter().flatten().zip(&token.top) {
                top["id"] = token.0.into();
            }
        }
        value["completion_probabilities"] = probs.into();
    }

    /// Of an answer, what was asked for.
    fn chosen(&self, value: Value) -> Value {
        if self.fields.is_empty() {
            return value;
        }
        let pointer = |field: &str| value.pointer(&format!("/{field}")).cloned();
        let found = self.fields.iter().filter_map(|field| Some((field.clone(), pointer(field)?)));
        Value::Object(found.collect::<Map<_, _>>())
    }
}

/// The settings of a generation under the names that requests have for them.
pub fn generation_settings(sampling: &Sampling, max_tokens: Option<usize>, stop: &[String]) -> Value {
    let window = |n: usize| i64::try_from(n).unwrap_or(-1);
    let n_predict = max_tokens.map_or(-1, window);
    let Mirostat { tau, eta } = sampling.mirostat.unwrap_or_default();
    let biases = sampling.logit_bias.iter().map(|&(TokenId(token), bias)| json!({"token": token, "bias": bias}));
    let banned = sampling.banned.iter().map(|&TokenId(token)| json!({"token": token, "bias": null}));
    let order: Vec<&str> = sampling.order.iter().map(|stage| stage.name()).collect();
    json!({"seed": sampling.seed, "temperature": sampling.temperature, "dynatemp_range": sampling.dynatemp_range,
        "dynatemp_exponent": sampling.dynatemp_exponent, "top_k": sampling.top_k, "top_p": sampling.top_p,
        "min_p": sampling.min_p, "top_n_sigma": sampling.top_n_sigma, "typical_p": sampling.typical_p,
        "xtc_probability": sampling.xtc.probability, "xtc_threshold": sampling.xtc.threshold,
        "repeat_last_n": window(sampling.penalty_window), "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry.multiplier, "dry_base": sampling.dry.base,
        "dry_allowed_length": sampling.dry.allowed_length, "dry_penalty_last_n": window(sampling.dry.window),
        "mirostat": if sampling.mirostat.is_some() { 2 } else { 0 }, "mirostat_tau": tau, "mirostat_eta": eta,
        "min_tokens": sampling.min_tokens, "samplers": order, "stop": stop, "n_predict": n_predict,
        "max_tokens": n_predict, "logit_bias": biases.chain(banned).collect::<Value>()})
}

/// Where the time of so many answers went. The first token of each is the prompt's: those after it took the time of the
/// answer.
pub fn timings(usage: &AnswerUsage, n_answers: usize) -> Value {
    let speed = |n: usize, ms: f64| if n > 0 && ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
    let per_token = |n: usize, ms: f64| if n > 0 { ms / n as f64 } else { 0.0 };
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let n_read = usage.n_prompt.saturating_sub(usage.n_cached);
    let n_steps = usage.n_generated.saturating_sub(n_answers);
    let (prompt_ms, predicted_ms) = (ms(usage.timings.prefill), ms(usage.timings.decode));
    let mut value = json!({"cache_n": usage.n_cached, "prompt_n": n_read, "prompt_ms": prompt_ms,
        "prompt_per_token_ms": per_token(n_read, prompt_ms), "prompt_per_second": speed(n_read, prompt_ms),
        "predicted_n": usage.n_generated, "predicted_ms": predicted_ms,
        "predicted_per_token_ms": per_token(n_steps, predicted_ms),
        "predicted_per_second": speed(n_steps, predicted_ms)});
    if usage.drafted.n_tokens > 0 {
        value["draft_n"] = usage.drafted.n_tokens.into();
        value["draft_n_accepted"] = usage.drafted.n_accepted.into();
    }
    value
}

/// An answer as events, each with the text that is certain by then.
pub struct LlamaEncoder {
    frames: Vec<LlamaFrame>,
    sent: Vec<SentSoFar>,
}

/// What was sent of an answer.
#[derive(Clone, Default)]
struct SentSoFar {
    n_tokens: usize,
    /// Tokens that were generated since.
    tokens: Vec<TokenId>,
    has_new_line: bool,
}

impl LlamaEncoder {
    pub fn new(frames: Vec<LlamaFrame>) -> Self {
        Self { sent: vec![SentSoFar::default(); frames.len()], frames }
    }
}

impl Encoder for LlamaEncoder {
    fn start(&mut self) -> Vec<StreamMessage> {
        Vec::new()
    }

    fn update(&mut self, choice: usize, update: AnswerEvent) -> Vec<StreamMessage> {
        let (frame, sent) = (&self.frames[choice], &mut self.sent[choice]);
        match update {
            AnswerEvent::Token(token) => {
                sent.n_tokens += 1;
                sent.tokens.push(token.token);
                Vec::new()
            }
            AnswerEvent::Piece(Piece::Text { text, logprobs }) => {
                sent.has_new_line |= text.contains('\n');
                let tokens: Vec<u32> = sent.tokens.drain(..).map(|token| token.0).collect();
                let mut value = json!({"index": choice, "content": text, "tokens": tokens, "stop": false,
                    "id_slot": -1, "tokens_predicted": sent.n_tokens, "tokens_evaluated": 0});
                frame.add_probs(&mut value, &logprobs);
                vec![value.into()]
            }
            AnswerEvent::Progress { n_read, n_prompt } => {
                vec![
                    json!({"index": choice, "content": "", "tokens": [], "stop": false, "id_slot": -1,
                    "prompt_progress": {"total": n_prompt, "processed": n_read}})
                    .into(),
                ]
            }
            AnswerEvent::Finished(Finished { finish, usage, stop }) => {
                let mut value = frame.last(choice, "", &usage, finish, stop.as_deref());
                value["has_new_line"] = sent.has_new_line.into();
                vec![frame.chosen(value).into()]
            }
            AnswerEvent::Piece(_) | AnswerEvent::Prompt(_) => Vec::new(),
        }
    }

    fn end(&mut self) -> Vec<StreamMessage> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage> {
        vec![error.llama().into()]
    }
}
