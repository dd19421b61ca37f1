//! One model in memory, as the server needs it: engine, tokenizer, chat template, and what clients ask about it.

use super::constraint_probe;
use super::error::{ApiError, Result};
#[cfg(unix)]
use super::metrics;
use super::pace::Pace;
use super::preset::Preset;
use super::shared::SharedModel;
use super::shares::Shares;
use engine::Stats;
#[cfg(unix)]
use rocinante::EngineNotice;
use rocinante::{
    ConstraintGuard, ControlTokens, EnginePhase, EngineStatus, Model, Options, Template, TokenId, human_bytes,
};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use text::answer::AnswerFormat;
use text::constraint::Constraint;
use text::{Ends, Message, RenderOptions, Specials, Tokenizer};
use tokio::sync::watch;

/// Texts of more bytes per token of the context are looked at piece by piece.
const USUAL_TOKEN_BYTES: usize = 8;

/// A model of the runtime under the name that clients call it by.
pub struct Loaded {
    pub name: String,
    pub tokenizer: Arc<Tokenizer>,
    /// Who waits for it.
    pub shares: Arc<Shares>,
    /// How quickly it answers.
    pub pace: Pace,
    /// How it is used, where its name says so.
    pub preset: Arc<Preset>,
    /// The chat template that the name says to use instead of the file's.
    template: Option<Template>,
    model: Arc<SharedModel>,
}

impl Deref for Loaded {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Loaded {
    /// Loads it; constraints are tried out in a child process first. `trouble` is told when an engine dies.
    pub fn open(
        name: &str,
        path: &Path,
        preset: &Arc<Preset>,
        options: &Options,
        trouble: watch::Sender<Option<String>>,
    ) -> rocinante::Result<Self> {
        let guard = ConstraintGuard::new(constraint_probe::check);
        let options = Options { constraint_guard: Some(guard), ..options.clone() };
        let model = Model::open_with(path, &watched(name, options, trouble))?;
        let shared = SharedModel::new(std::fs::canonicalize(path).ok(), model);
        Self::sharing(name, preset, Arc::new(shared))
    }

    /// The same model under another name.
    pub fn sharing(name: &str, preset: &Arc<Preset>, model: Arc<SharedModel>) -> rocinante::Result<Self> {
        let schedule = model.plan().schedule;
        let own = |source: &String| Template::new(Some(source.clone()), model.tokenizer());
        Ok(Self {
            name: name.to_owned(),
            tokenizer: Arc::clone(model.tokenizer()),
            shares: Shares::new(schedule.max_queue + schedule.max_running),
            pace: Pace::default(),
            template: preset.template.as_ref().map(own).transpose()?,
            preset: Arc::clone(preset),
            model,
        })
    }

    pub fn shared(&self) -> &Arc<SharedModel> {
        &self.model
    }

    /// What its engine counted that belongs to its name.
    pub fn counters(&self) -> Stats {
        self.model.counters(&self.name)
    }

    /// Its name leaves: the engine ends unless another name uses it. Returns what was counted for it.
    pub fn end(&self) -> Stats {
        if Arc::strong_count(&self.model) == 1 || !self.is_alive() {
            // The engine's last counters come with its end.
            self.engine().shutdown();
        }
        self.model.settle(&self.name)
    }

    pub fn template(&self) -> &Template {
        self.template.as_ref().unwrap_or_else(|| self.model.template())
    }

    /// How it writes its reasoning and its tool calls.
    pub fn format(&self) -> &AnswerFormat {
        self.template().format()
    }

    /// Whether its chat template says anything about tools.
    pub fn knows_tools(&self) -> bool {
        self.template().knows_tools()
    }

    /// Whether answers can be held to this, and what is wrong if not.
    pub fn check(&self, constraint: &Constraint) -> rocinante::Result<()> {
        self.model.check(constraint)
    }

    pub fn n_ctx(&self) -> usize {
        self.context()
    }

    /// Whether its engine computes now; one whose process died is not up until the next one is.
    pub fn is_up(&self) -> bool {
        let is_running = |status: EngineStatus| status.phase == EnginePhase::Running;
        self.is_alive() && self.engine_status().is_none_or(is_running)
    }

    /// The conversation as the model was trained to read it.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        control_tokens: ControlTokens,
    ) -> rocinante::Result<String> {
        self.template().render(&self.tokenizer, messages, options, control_tokens)
    }

    /// The tokens of rendered text. Control tokens that users wrote are shielded.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<TokenId>> {
        self.encode_by(text, |text| self.template().encode(&self.tokenizer, text))
    }

    /// The text as it is, with the BOS that the vocabulary asks for.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<TokenId>> {
        self.encode(text, Specials::Parse, Ends::Add)
    }

    pub fn encode(&self, text: &str, specials: Specials, ends: Ends) -> Result<Vec<TokenId>> {
        self.encode_by(text, |text| ids(self.tokenizer.encode_with(text, specials, ends)))
    }

    /// The tokens of a text. One that is far too long is refused by its beginning: tokenizing takes time and memory.
    fn encode_by(&self, text: &str, encode: impl Fn(&str) -> Vec<TokenId>) -> Result<Vec<TokenId>> {
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
                return Err(ApiError::too_long(text, n_tokens, n_ctx));
            }
            n_bytes *= 4;
        }
        Ok(encode(text))
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
        let (plan, memory) = (self.plan(), self.plan().memory());
        format!(
            "weights {}, keys and values {} ({} tokens, {} a request), scratch {}, {}, {}",
            human_bytes(memory.weights_bytes as u64),
            human_bytes(memory.kv_bytes as u64),
            plan.n_pool_tokens(),
            plan.n_ctx(),
            human_bytes(memory.scratch_bytes as u64),
            plan.schedule,
            self.device(),
        )
    }
}

/// What becomes of its engine's process is logged and counted.
#[cfg(unix)]
fn watched(name: &str, mut options: Options, trouble: watch::Sender<Option<String>>) -> Options {
    let name = name.to_owned();
    if options.process.is_some() {
        metrics::engine_died(&name, 0, 0, 0);
    }
    let hear = move |notice: &EngineNotice| match notice {
        EngineNotice::Progress(text) => tracing::debug!(model = name, "{text}"),
        EngineNotice::Stderr(line) => tracing::info!(model = name, "engine: {line}"),
        EngineNotice::Resumed { .. } | EngineNotice::FellBack => tracing::warn!(model = name, "{notice}"),
        EngineNotice::Died { death, n_kept, n_refused, .. } => {
            metrics::engine_died(&name, 1, *n_kept, *n_refused);
            trouble.send_replace(Some(death.to_string()));
            let last_words = death.stderr.join(" | ");
            tracing::error!(model = name, age_s = death.age.as_secs(), last_words, "{notice}");
        }
        EngineNotice::Unavailable(_) => tracing::error!(model = name, "unavailable: {notice}"),
    };
    options.process = options.process.map(|process| process.observed_by(hear));
    options
}

#[cfg(not(unix))]
fn watched(_name: &str, options: Options, _trouble: watch::Sender<Option<String>>) -> Options {
    options
}

/// Token ids of the runtime's type.
pub fn ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}
