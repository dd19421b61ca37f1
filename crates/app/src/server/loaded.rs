//! One model in memory, as the server needs it: engine, tokenizer, chat template, and what clients ask about it.

use super::constraint_probe;
use super::error::{ApiError, Result as ApiResult};
use super::shares::Shares;
use crate::report::human_bytes;
use engine::Handle;
use model::TokenId;
use rocinante::{ConstraintGuard, LoadPlan, Model, Options};
use std::path::Path;
use std::sync::Arc;
use text::answer::Format;
use text::constraint::Constraint;
use text::{Ends, Message, RenderOptions, Specials, Tokenizer};

/// Texts of more bytes per token of the context are looked at piece by piece.
const USUAL_TOKEN_BYTES: usize = 8;

pub struct Loaded {
    pub name: String,
    pub tokenizer: Arc<Tokenizer>,
    pub handle: Handle,
    pub plan: LoadPlan,
    /// The family, quantisation and size, as clients are told.
    pub architecture: String,
    pub quantization: String,
    pub template_source: String,
    pub n_params: u64,
    /// How the model writes its reasoning and its calls of tools.
    pub format: Format,
    /// Who waits for it.
    pub shares: Arc<Shares>,
    model: Model,
}

impl Loaded {
    pub fn open(name: &str, path: &Path, options: &Options) -> rocinante::Result<Self> {
        let guard = ConstraintGuard::new(constraint_probe::check);
        let model = Model::open_with(path, &Options { constraint_guard: Some(guard), ..options.clone() })?;
        let (info, schedule) = (model.info().clone(), model.plan().schedule);
        Ok(Self {
            name: name.to_owned(),
            tokenizer: Arc::clone(model.tokenizer()),
            handle: model.engine().clone(),
            plan: model.plan().clone(),
            architecture: info.architecture,
            quantization: info.quantization,
            n_params: info.n_params,
            template_source: model.template().source().unwrap_or_default().to_owned(),
            format: model.format().clone(),
            shares: Shares::new(schedule.max_queue + schedule.max_running),
            model,
        })
    }

    /// Whether its chat template says anything about tools.
    pub fn knows_tools(&self) -> bool {
        self.model.template().knows_tools()
    }

    /// Whether answers can be held to this, and what is wrong if not.
    pub fn check(&self, constraint: &Constraint) -> std::result::Result<(), String> {
        self.model.check(constraint).map_err(|error| match error {
            rocinante::Error::Constraint(text) => text,
            error => error.to_string(),
        })
    }

    /// Whether it reads texts as a whole and makes vectors of them, and writes none.
    pub fn is_encoder(&self) -> bool {
        self.model.is_encoder()
    }

    /// Whether its engine still runs.
    pub fn is_alive(&self) -> bool {
        self.model.is_alive()
    }

    pub fn n_ctx(&self) -> usize {
        self.plan.n_ctx()
    }

    /// The conversation as the model was trained to read it.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> rocinante::Result<String> {
        self.model.template().render(messages, options)
    }

    /// The tokens of rendered text: the template wrote BOS itself.
    pub fn encode_rendered(&self, text: &str) -> ApiResult<Vec<TokenId>> {
        self.encode(text, Specials::Parse, self.model.template().ends())
    }

    /// The text as it is, with the BOS that the vocabulary asks for.
    pub fn encode_raw(&self, text: &str) -> ApiResult<Vec<TokenId>> {
        self.encode(text, Specials::Parse, Ends::Add)
    }

    /// The tokens of a text. One that is far too long is refused by its beginning: tokenizing takes time and memory.
    pub fn encode(&self, text: &str, specials: Specials, ends: Ends) -> ApiResult<Vec<TokenId>> {
        let encode = |text: &str| self.tokenizer.encode_with(text, specials, ends);
        let n_ctx = self.n_ctx();
        let mut n_bytes = n_ctx * USUAL_TOKEN_BYTES;
        while n_bytes < text.len() {
            let end = (0..=n_bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            let n_tokens = encode(&text[..end]).len();
            // The cut may change a few tokens before it.
            if n_tokens > n_ctx + 64 {
                let text = format!(
                    "this model's context holds {n_ctx} tokens, the text of {} bytes has more than {n_tokens}; please \
                     shorten it",
                    text.len()
                );
                return Err(ApiError::bad(text).code("context_length_exceeded"));
            }
            n_bytes *= 4;
        }
        Ok(ids(encode(text)))
    }

    /// What a text begins with: BOS where the vocabulary has one, else the token that ends texts.
    pub fn encode_start(&self) -> Vec<TokenId> {
        let first = self.tokenizer.bos().or(self.tokenizer.eos()).or(self.tokenizer.end_ids().first().copied());
        first.map(TokenId).into_iter().collect()
    }

    /// BOS where the vocabulary adds one by itself.
    pub fn encode_start_or_nothing(&self) -> Vec<TokenId> {
        ids(self.tokenizer.encode_with("", Specials::Parse, Ends::Add)).into_iter().take(1).collect()
    }

    /// What stands in the log when it is loaded.
    pub fn describe(&self) -> String {
        let (plan, memory) = (&self.plan, self.plan.memory());
        format!(
            "weights {}, keys and values {} ({} tokens, {} a request), scratch {}, {}, {}",
            human_bytes(memory.weights_bytes as u64),
            human_bytes(memory.kv_bytes as u64),
            plan.n_pool_tokens(),
            plan.n_ctx(),
            human_bytes(memory.scratch_bytes as u64),
            plan.schedule,
            self.model.device(),
        )
    }

    /// GPUs that were refused, weights held in another type, fast paths it does without.
    pub fn notes(&self) -> &[String] {
        self.model.notes()
    }
}

pub fn ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}
