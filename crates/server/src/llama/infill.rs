//! `/infill`: text between two others, for models that were trained for it; and the same for `suffix` of completions.

use super::completion::{Answered, LlamaCompletion, answer};
use crate::App;
use crate::blocking;
use crate::error::{ApiError, Result};
use crate::generation::Caller;
use crate::json::{self, UnknownFields};
use crate::loaded::Loaded;
use crate::openai::chat::{RequestBody, count};
use crate::prompt::CompletionPrompt;
use axum::Extension;
use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use model::TokenId;
use serde::Deserialize;
use std::sync::Arc;
use text::{Ends, Specials};

/// What families call the marks before, after and between.
const MARKS: [(&str, &str, &str); 8] = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek, with wide bars.
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
];

/// More bytes than tokens have, but for a few: what does not fit into the context by this is not tokenized.
const MAX_TOKEN_BYTES: usize = 16;

/// What they put between files.
const FILE_MARKS: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct InfillRequest {
    pub input_prefix: String,
    pub input_suffix: String,
    /// Other files, as the editors' plugins send them.
    pub input_extra: Vec<Extra>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Extra {
    #[serde(default)]
    pub filename: Option<String>,
    pub text: String,
}

/// A body of `/infill`: what stands around, and the fields of `/completion`, whose `prompt` is more of the beginning.
pub struct InfillBody {
    body: RequestBody<LlamaCompletion>,
    own: InfillRequest,
}

impl<S: Send + Sync> FromRequest<S> for InfillBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> std::result::Result<Self, ApiError> {
        let parse = |bytes: &[u8], unknown: &mut UnknownFields| {
            Ok(Self { body: RequestBody::parse(bytes, unknown)?, own: json::parse_part(bytes, unknown)? })
        };
        json::read(request, parse).await
    }
}

pub async fn infill(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: InfillBody,
) -> Result<Response> {
    let InfillBody { mut body, own } = body;
    let model = app.models.get(&body.fields.model).await?;
    let more = match body.own.prompt.take() {
        None => String::new(),
        Some(CompletionPrompt::Text(text)) => text,
        Some(_) => return Err(ApiError::bad("expected a text, which follows `input_prefix`").param("prompt")),
    };
    let wanted = body.own.n_predict.and_then(|n| usize::try_from(n).ok());
    let max_tokens = wanted.or(body.fields.max_tokens.map(count)).or(app.defaults.max_tokens);
    let owned = Arc::clone(&model);
    let prompt = blocking::run(move || {
        let before = format!("{}{more}", own.input_prefix);
        let mut prompt = encode(&owned, &before, &own.input_suffix)?.ok_or_else(|| {
            ApiError::bad(format!("`{}` cannot fill in the middle: its vocabulary has no tokens for it", owned.name))
                .code("unsupported_model")
        })?;
        add_extra(&owned, &own.input_extra, &mut prompt, max_tokens);
        Ok(prompt)
    });
    match answer(&app, &model, caller, &body, vec![prompt.await?]).await? {
        Answered::Stream(response) => Ok(response),
        Answered::Whole(mut values) => Ok(axum::Json(values.remove(0)).into_response()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks that llama.cpp knows, out of its source.
    #[test]
    fn marks_are_those_of_llama_cpp() {
        let Some(models) = test_support::fetched::path(test_support::fetched::VOCABULARIES) else { return };
        let source = std::fs::read_to_string(models.join("../src/llama-vocab.cpp")).unwrap();
        let known = |kind: &str| -> Vec<&str> {
            let (_, rest) = source.split_once(&format!("// find FIM_{kind} token")).expect("it looks for them");
            let (search, _) = rest.split_once("// find FIM_").expect("others follow");
            let marks: Vec<&str> =
                search.split("t.first == \"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
            assert!(marks.len() > 5, "{search}");
            marks
        };
        let own: [Vec<&str>; 3] =
            [MARKS.map(|marks| marks.0), MARKS.map(|marks| marks.1), MARKS.map(|marks| marks.2)].map(Vec::from);
        for (kind, own) in ["PRE", "SUF", "MID"].into_iter().zip(own) {
            let missing: Vec<&str> = known(kind).into_iter().filter(|mark| !own.contains(mark)).collect();
            assert!(missing.is_empty(), "{kind}: {missing:?}");
        }
    }
}
