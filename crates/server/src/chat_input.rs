//! What a chat request of any API family is translated to: a conversation, tools, the shape of the answer, and
//! settings. Families fill a [`ChatInput`]; [`prepare`] turns it into tokens, a constraint and a splitter for the answer.

use super::App;
use super::error::{ApiError, Result};
use super::generation::{Caller, GenerationRequest};
use super::loaded::Loaded;
use super::sampling::SamplingParams;
use super::tools;
use rocinante::{ControlTokens, Splitter};
use serde_json::{Map, Value};
use std::sync::Arc;
use text::{Message, RenderOptions, unshield};

/// A chat, whatever the wire format it came in.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    pub messages: Vec<Message>,
    /// As OpenAI writes them: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    pub tools: Vec<Value>,
    pub choice: ToolChoice,
    pub is_parallel: bool,
    pub shape: AnswerShape,
    /// Whether the model should think first, where its template can say so.
    pub thinking: Option<bool>,
    /// The last message is the beginning of the answer.
    pub continues: bool,
    /// Nothing is put after the last message.
    pub is_open: bool,
    /// Further variables for the template.
    pub extra: Map<String, Value>,
    pub params: SamplingParams,
    pub stop: Vec<String>,
    pub logprobs: Option<usize>,
    pub n: usize,
    pub max_tokens: Option<usize>,
    /// Control tokens in messages are read as such.
    pub parses_specials: bool,
    /// With how much of the prompt is read, while it is.
    pub progress: bool,
    /// A text that the answer is expected to be like.
    pub prediction: Option<String>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// What the text of an answer must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum AnswerShape {
    #[default]
    Text,
    Json,
    Schema(Value),
    Regex(String),
    /// Lark, or GBNF as llama.cpp has it.
    Grammar(String),
}

/// Renders and tokenizes on a thread that may take its time, and checks all settings.
pub async fn prepare(
    app: &App,
    model: &Arc<Loaded>,
    mut input: ChatInput,
    caller: Caller,
) -> Result<(GenerationRequest, Splitter)> {
    model.preset.complete(&mut input);
    let sampling = input.params.sampling(model, &app.defaults)?;
    let owned = Arc::clone(model);
    let work = move || -> Result<_> {
        let text = render(&owned, &input)?;
        let prompt = owned.encode_rendered(&text)?;
        let text = unshield(&text);
        let constraint = tools::constraint(&owned, &input, &text)?;
        let splitter = tools::splitter(&owned, &input, &text);
        Ok((input, prompt, constraint, splitter))
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?;
    let (input, prompt, constraint, splitter) = done?;
    let max_tokens = input.max_tokens.or(input.params.max_tokens()).or(app.defaults.max_tokens);
    let max_tokens = input.params.limit(max_tokens, prompt.len(), model);
    Ok((
        GenerationRequest {
            prompt,
            sampling,
            max_tokens,
            logprobs: input.logprobs,
            prompt_logprobs: false,
            progress: input.progress,
            constraint,
            guesses: input.params.guesses(input.prediction),
            n: input.n,
            caller,
        },
        splitter,
    ))
}

/// The conversation as the model reads it, up to where its answer begins. Control tokens that users wrote are shielded.
pub fn render(model: &Loaded, input: &ChatInput) -> Result<String> {
    let (messages, beginning, continues) = match input.messages.as_slice() {
        [] => return Err(ApiError::bad("there are no messages").param("messages")),
        [before @ .., last] if input.continues && last.role == "assistant" => (before, last.content.trim_end(), true),
        all => (all, "", false),
    };
    let is_told = !input.tools.is_empty() && input.choice != ToolChoice::None;
    let told = is_told && !model.knows_tools();
    let messages = if told { &tools::spell_out(messages, &input.tools) } else { messages };
    let tools = (is_told && !told).then(|| Value::Array(input.tools.clone()));
    let add_generation_prompt = !input.is_open || continues;
    let mut options = RenderOptions { add_generation_prompt, tools, extra: input.extra.clone() };
    // A constraint holds from the first token on: there is no room to think.
    let thinking = if input.shape == AnswerShape::Text { input.thinking } else { Some(false) };
    if let Some(thinking) = thinking {
        options.set_thinking(thinking);
    }
    let control_tokens = if input.parses_specials { ControlTokens::Parsed } else { ControlTokens::Text };
    let mut text = model.render(messages, &options, control_tokens).map_err(|error| {
        ApiError::bad(format!("the model's chat template refused the conversation: {error}")).param("messages")
    })?;
    text.push_str(beginning);
    Ok(text)
}
