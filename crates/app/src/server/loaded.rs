//! One model in memory, as the server needs it: engine, tokenizer, chat template, and what clients ask about it.

use super::constraint_probe;
use super::error::{ApiError, Result as ApiResult};
use super::shares::Shares;
use crate::load::{self, Plan, Use};
use crate::model_file::{self, Template};
use crate::options::LoadArgs;
use crate::report::human_bytes;
use anyhow::{Result, anyhow, bail};
use engine::{EngineOptions, Handle};
use model::TokenId;
use rocinante::masks::Masks;
use std::path::Path;
use std::sync::Arc;
use text::answer::Format;
use text::constraint::Constraint;
use text::{Ends, Message, RenderOptions, Specials, Tokenizer};

/// Texts of more bytes per token of the context are looked at piece by piece.
const USUAL_TOKEN_BYTES: usize = 8;

/// How models are loaded and scheduled; the same for all.
#[derive(Clone, Debug)]
pub struct LoadSettings {
    pub load: LoadArgs,
    pub max_running: usize,
    pub max_queue: usize,
    pub max_batch_tokens: usize,
    pub prefill_chunk: usize,
    /// Tokens in the pool of keys and values, shared by all requests; `None`: by the memory there is.
    pub kv_tokens: Option<usize>,
}

pub struct Loaded {
    pub name: String,
    pub tokenizer: Arc<Tokenizer>,
    template: Template,
    pub handle: Handle,
    pub plan: Plan,
    pub device: String,
    /// `general.architecture`, quantisation and size, as clients are told.
    pub architecture: String,
    pub quantization: String,
    pub template_source: String,
    pub n_params: u64,
    /// Compiles constraints; the engine has a clone.
    masks: Masks,
    /// How the model writes its reasoning and its calls of tools.
    pub format: Format,
    /// Who waits for it.
    pub shares: Arc<Shares>,
}

impl Loaded {
    pub fn open(name: &str, path: &Path, settings: &LoadSettings) -> Result<Self> {
        let checkpoint = load::open(path, &settings.load)?;
        let plan = plan(&checkpoint, settings).map_err(crate::report::about(path))?;
        if plan.n_ctx > plan.n_ctx_train {
            bail!("--context {} is more than the {} tokens it was trained for", plan.n_ctx, plan.n_ctx_train);
        }
        let (tokenizer, model) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| model_file::open_tokenizer(&checkpoint));
            let model = load::load(&checkpoint, &plan);
            (tokenizer.join().unwrap_or_else(|_| Err(anyhow!("reading the vocabulary failed"))), model)
        });
        let (tokenizer, model) = (Arc::new(tokenizer?), model?);
        let template = model_file::open_template(&checkpoint, &tokenizer)?;
        let options = EngineOptions {
            // An encoder was given room for whole texts.
            max_batch_tokens: settings.max_batch_tokens.max(plan.options.max_batch_tokens),
            prefill_chunk: settings.prefill_chunk,
            max_running: settings.max_running,
            max_queue: settings.max_queue,
            n_ctx: Some(plan.n_ctx),
            ..EngineOptions::default()
        };
        let device = model.device();
        let masks = Masks::guarded(Arc::clone(&tokenizer), Arc::new(constraint_probe::check));
        let handle = engine::start(model, options, Some(Box::new(masks.clone())));
        let metadata = checkpoint.metadata();
        let n_params = checkpoint.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum();
        let template_source = metadata.string("tokenizer.chat_template")?.unwrap_or(text::DEFAULT_TEMPLATE).to_owned();
        Ok(Self {
            name: name.to_owned(),
            tokenizer,
            template,
            handle,
            plan,
            device,
            architecture: metadata.string("general.architecture")?.unwrap_or("unknown").to_owned(),
            quantization: commonest_type(&checkpoint),
            n_params,
            masks,
            format: Format::detect(&template_source),
            shares: Shares::new(settings.max_queue + settings.max_running),
            template_source,
        })
    }

    /// Whether its chat template says anything about tools.
    pub fn knows_tools(&self) -> bool {
        self.template_source.contains("tools") && self.format.has_tools()
    }

    /// Whether answers can be held to this, and what is wrong if not.
    pub fn check(&self, constraint: &Constraint) -> std::result::Result<(), String> {
        self.masks.compile(constraint, self.handle.n_vocab()).map(drop)
    }

    /// What compiled constraints are reckoned to take.
    pub fn constraint_bytes(&self) -> usize {
        self.masks.kept_bytes()
    }

    /// Whether it reads texts as a whole and makes vectors of them, and writes none.
    pub fn is_encoder(&self) -> bool {
        self.handle.embeds().attention == model::Attention::Full
    }

    /// Whether its engine still runs.
    pub fn is_alive(&self) -> bool {
        self.handle.stopped().is_none()
    }

    pub fn n_ctx(&self) -> usize {
        self.plan.n_ctx
    }

    /// The conversation as the model was trained to read it.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> text::Result<String> {
        self.template.template.render(messages, options)
    }

    /// The tokens of rendered text: the template wrote BOS itself, and control tokens that users wrote are shielded.
    pub fn encode_rendered(&self, text: &str) -> ApiResult<Vec<TokenId>> {
        self.encode_by(text, |text| self.tokenizer.encode_shielded(text))
    }

    /// The text as it is, with the BOS that the vocabulary asks for.
    pub fn encode_raw(&self, text: &str) -> ApiResult<Vec<TokenId>> {
        self.encode(text, Specials::Parse, Ends::Add)
    }

    pub fn encode(&self, text: &str, specials: Specials, ends: Ends) -> ApiResult<Vec<TokenId>> {
        self.encode_by(text, |text| self.tokenizer.encode_with(text, specials, ends))
    }

    /// The tokens of a text. One that is far too long is refused by its beginning: tokenizing takes time and memory.
    fn encode_by(&self, text: &str, encode: impl Fn(&str) -> Vec<u32>) -> ApiResult<Vec<TokenId>> {
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

    pub fn describe(&self) -> String {
        let plan = &self.plan;
        format!(
            "weights {}, keys and values {} ({} tokens, {} a request), scratch {}, {}",
            human_bytes(plan.memory.weights_bytes as u64),
            human_bytes(plan.memory.kv_bytes as u64),
            plan.options.n_blocks * model::BLOCK_TOKENS,
            plan.n_ctx,
            human_bytes(plan.memory.scratch_bytes as u64),
            self.device,
        )
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}

/// Room for as many full contexts as memory allows, up to all that may run.
fn plan(checkpoint: &weights::Checkpoint, settings: &LoadSettings) -> Result<Plan> {
    let purpose = |n_sequences| Use {
        n_sequences,
        max_batch_tokens: settings.max_batch_tokens,
        max_logits_rows: settings.max_running,
    };
    let mut n_sequences = settings.max_running.clamp(1, DEFAULT_FULL_CONTEXTS);
    if let Some(n_tokens) = settings.kv_tokens {
        let one = load::plan(checkpoint, &settings.load, purpose(1))?;
        n_sequences = n_tokens.div_ceil(one.n_ctx).max(1);
        return load::plan(checkpoint, &settings.load, purpose(n_sequences));
    }
    // With one sequence first: a context that must shrink shrinks only when even that does not fit.
    let one = load::plan(checkpoint, &settings.load, purpose(1))?;
    let args = LoadArgs { context: u32::try_from(one.n_ctx).ok(), ..settings.load.clone() };
    while n_sequences > 1 {
        match load::plan(checkpoint, &args, purpose(n_sequences)) {
            Ok(plan) => return Ok(plan),
            Err(_) => n_sequences /= 2,
        }
    }
    Ok(one)
}

/// Requests rarely use their whole context; blocks are shared by all.
const DEFAULT_FULL_CONTEXTS: usize = 8;

pub fn ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}

/// The type that most of the weights have.
fn commonest_type(checkpoint: &weights::Checkpoint) -> String {
    let mut sizes = std::collections::BTreeMap::<String, usize>::new();
    for tensor in checkpoint.tensors() {
        *sizes.entry(tensor.dtype.to_string()).or_default() += tensor.bytes.len();
    }
    sizes.into_iter().max_by_key(|&(_, size)| size).map_or_else(String::new, |(name, _)| name)
}
