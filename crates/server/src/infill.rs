//! `/infill`: text between two others, for models that were trained for it; and the same for `suffix` of completions.

use super::App;
use super::blocking;
use super::error::{ApiError, Result};
use super::generation::{self, Caller, GenerationRequest};
use super::json::Json;
use super::loaded::Loaded;
use super::sampling::{Knobs, Stop};
use super::stream::{Encoder, Framing, StreamMessage, respond};
use super::whole;
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use model::TokenId;
use rocinante::{AnswerEvent, AnswerUsage, Finish, Finished, Piece, Splitter};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use text::{Ends, Specials};

/// What families call the marks before, after and between.
const MARKS: [(&str, &str, &str); 6] = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
];

/// More bytes than tokens have, but for a few: what does not fit into the context by this is not tokenized.
const MAX_TOKEN_BYTES: usize = 16;

/// What they put between files.
const FILE_MARKS: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

#[derive(Debug, Deserialize)]
pub struct InfillRequest {
    #[serde(default)]
    pub model: String,
    #[serde(default)]
    pub input_prefix: String,
    #[serde(default)]
    pub input_suffix: String,
    /// More of the beginning.
    #[serde(default)]
    pub prompt: String,
    #[serde(default, alias = "max_tokens")]
    pub n_predict: Option<i64>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_k: Option<i64>,
    #[serde(default)]
    pub min_p: Option<f32>,
    #[serde(default)]
    pub seed: Option<i64>,
    #[serde(default)]
    pub stop: Option<Stop>,
    #[serde(default)]
    pub stream: Option<bool>,
    /// Other files, as the editors' plugins send them.
    #[serde(default)]
    pub input_extra: Vec<Extra>,
}

#[derive(Debug, Deserialize)]
pub struct Extra {
    #[serde(default)]
    pub filename: Option<String>,
    pub text: String,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<InfillRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.model).await?;
    let knobs = Knobs {
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        min_p: body.min_p,
        seed: body.seed,
        ..Knobs::default()
    };
    let stop = body.stop.as_ref().map(Stop::texts).transpose()?.unwrap_or_default();
    let max_tokens = body.n_predict.and_then(|n| usize::try_from(n).ok()).or(app.defaults.max_tokens);
    let sampling = knobs.sampling(&model, &app.defaults)?;
    let (is_stream, owned) = (body.stream == Some(true), Arc::clone(&model));
    let prompt = blocking::run(move || {
        let before = format!("{}{}", body.input_prefix, body.prompt);
        let mut prompt = encode(&owned, &before, &body.input_suffix)?.ok_or_else(|| {
            ApiError::bad(format!("`{}` cannot fill in the middle: its vocabulary has no tokens for it", owned.name))
                .code("unsupported_model")
        })?;
        add_extra(&owned, &body.input_extra, &mut prompt, max_tokens);
        Ok(prompt)
    });
    let prompt = prompt.await?;
    let request = GenerationRequest {
        prompt,
        sampling,
        max_tokens,
        logprobs: None,
        prompt_logprobs: false,
        progress: false,
        constraint: None,
        guesses: knobs.guesses(None),
        n: 1,
        caller,
    };
    let answers = generation::start(&app, &model, &request, &Splitter::plain(&model.tokenizer, stop, false))?;
    if is_stream {
        return Ok(respond(answers, InfillEncoder { model: model.name.clone() }, Framing::Events));
    }
    let whole = whole::collect(answers, 1).await?.remove(0);
    Ok(axum::Json(last(&model.name, &whole.text, &whole.usage, whole.finish)).into_response())
}

/// What stands at the end of an answer, or is all of it.
fn last(model: &str, text: &str, usage: &AnswerUsage, finish: Finish) -> Value {
    let why = match finish {
        Finish::Length | Finish::Context | Finish::Cancelled => "limit",
        Finish::StopString => "word",
        Finish::End | Finish::ToolCalls => "eos",
    };
    json!({"content": text, "model": model, "stop": true, "stop_type": why, "tokens_evaluated": usage.n_prompt,
        "tokens_cached": usage.n_cached, "tokens_predicted": usage.n_generated})
}

struct InfillEncoder {
    model: String,
}

impl Encoder for InfillEncoder {
    fn start(&mut self) -> Vec<StreamMessage> {
        Vec::new()
    }

    fn update(&mut self, _choice: usize, update: AnswerEvent) -> Vec<StreamMessage> {
        match update {
            AnswerEvent::Piece(Piece::Text { text, .. }) => vec![json!({"content": text, "stop": false}).into()],
            AnswerEvent::Finished(Finished { finish, usage, .. }) => vec![last(&self.model, "", &usage, finish).into()],
            AnswerEvent::Piece(_) | AnswerEvent::Progress { .. } | AnswerEvent::Prompt(_) | AnswerEvent::Token(_) => {
                Vec::new()
            }
        }
    }

    fn end(&mut self) -> Vec<StreamMessage> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage> {
        vec![error.openai().into()]
    }
}

/// Puts other files before the one to fill in, for models that were trained with several: each after a mark, with its
/// name. What does not fit is left out from the front, since editors send the latest last; for other models all of it.
fn add_extra(model: &Loaded, files: &[Extra], prompt: &mut Vec<TokenId>, max_tokens: Option<usize>) {
    let Some(separator) = FILE_MARKS.iter().find_map(|mark| model.tokenizer.token_id(mark)) else { return };
    let answer = max_tokens.unwrap_or(usize::MAX).min(model.n_ctx() / 4) + 1;
    let room = model.n_ctx().saturating_sub(prompt.len() + answer);
    let texts = files.iter().map(|file| format!("{}\n{}\n", file.filename.as_deref().unwrap_or("file"), file.text));
    let texts = texts.chain((!files.is_empty()).then(|| "this\n".to_owned()));
    // From the last to the first, and no further than there is room: editors send megabytes.
    let mut parts: Vec<Vec<TokenId>> = Vec::new();
    let mut n_tokens = 0;
    for text in texts.rev() {
        if n_tokens >= room {
            break;
        }
        let ids = model.tokenizer.encode(end_of(&text, room * MAX_TOKEN_BYTES), Specials::Plain);
        let part: Vec<TokenId> = std::iter::once(separator).chain(ids).map(TokenId).collect();
        n_tokens += part.len();
        parts.push(part);
    }
    let mut tokens: Vec<TokenId> = parts.into_iter().rev().flatten().collect();
    tokens.drain(..tokens.len().saturating_sub(room));
    let at = model.encode_start_or_nothing().len();
    prompt.splice(at..at, tokens);
}

/// At most so many of a text's last bytes.
fn end_of(text: &str, n_bytes: usize) -> &str {
    let start = text.len().saturating_sub(n_bytes);
    &text[(start..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(start)..]
}

/// Beginning, end, and the mark after which the model writes what is between. `None`: the model knows no such marks.
pub fn encode(model: &Loaded, before: &str, after: &str) -> Result<Option<Vec<TokenId>>> {
    let id = |mark: &str| model.tokenizer.token_id(mark).map(TokenId);
    let marks = MARKS.iter().find_map(|(a, b, c)| Some((id(a)?, id(b)?, id(c)?)));
    let Some((prefix, suffix, middle)) = marks else { return Ok(None) };
    let plain = |text: &str| model.encode(text, Specials::Plain, Ends::None);
    let mut tokens = model.encode_start_or_nothing();
    tokens.push(prefix);
    tokens.extend(plain(before)?);
    tokens.push(suffix);
    tokens.extend(plain(after)?);
    tokens.push(middle);
    Ok(Some(tokens))
}

/// For models without marks: the suffix is shown first, then the prefix is continued.
pub fn encode_in_words(model: &Loaded, before: &str, after: &str) -> Result<Vec<TokenId>> {
    model.encode_raw(&format!("The text ends with:\n{after}\n\nThe whole text:\n{before}"))
}
