//! A model in memory behind its engine, with its tokenizer and chat template.

use std::path::Path;
use std::sync::Arc;

use ::model::{Attention, BLOCK_TOKENS, Config, DeviceChoice, LoadOptions, TokenId};
use engine::{Embed, EngineOptions, Event, Handle, Normalize, Pooling};
use text::{ChatTemplate, Ends, Message, RenderOptions, Specials, Tokenizer};
use weights::Checkpoint;

use crate::answer::{Answer, Request};
use crate::{Error, Result, files, masks};

/// A context that nobody asked for is at most this.
const DEFAULT_CONTEXT: usize = 8192;
/// Rows of one step.
const STEP_TOKENS: usize = 512;
/// Rows whose logits or hidden states one step gives back.
const STEP_OUTPUTS: usize = 16;

/// Where and how a model is loaded.
#[derive(Copy, Clone, Debug, Default)]
pub struct Options {
    pub device: DeviceChoice,
    /// Tokens that an answer and its prompt may have; `None`: what the model was trained for, at most 8192.
    pub context: Option<usize>,
    /// Answers that are made at once; 0 counts as 1.
    pub n_parallel: usize,
    /// CPU threads; 0: one per core.
    pub n_threads: usize,
}

/// A model, ready to answer. Cheap to share behind a reference: requests from several threads run together.
#[derive(Debug)]
pub struct Model {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    handle: Handle,
    attention: Attention,
    device: String,
}

/// A device by its name: `cpu`, `cuda:0`, `rocm:0`.
pub fn device(name: &str) -> Result<DeviceChoice> {
    let gpu = || {
        let (word, ordinal) = name.split_once(':')?;
        Some(DeviceChoice::Gpu { vendor: gpu::Vendor::from_word(word)?, ordinal: ordinal.parse().ok()? })
    };
    match name {
        "cpu" => Ok(DeviceChoice::Cpu),
        _ => gpu().ok_or_else(|| Error::Device(name.to_owned())),
    }
}

impl Model {
    /// Opens a GGUF file (or the first of a split one), or a folder with safetensors, on the CPU.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::from_checkpoint(&Checkpoint::open(path.as_ref())?, options)
    }

    /// From a checkpoint that is already open, or was made in memory.
    pub fn from_checkpoint(checkpoint: &Checkpoint, options: Options) -> Result<Self> {
        let config = Config::from_checkpoint(checkpoint)?;
        let tokenizer = Arc::new(files::tokenizer(checkpoint)?);
        let template = files::template(files::template_source(checkpoint)?.as_deref(), &tokenizer)?;
        let n_ctx = options.context.unwrap_or(config.n_ctx_train.clamp(1, DEFAULT_CONTEXT));
        let n_parallel = options.n_parallel.max(1);
        // An encoder sees its whole text in one step, and every row of it is pooled.
        let attention = if config.is_encoder() { Attention::Full } else { Attention::Causal };
        let max_rows = if config.is_encoder() { n_ctx.max(1) } else { STEP_TOKENS.max(n_parallel) };
        let load = LoadOptions {
            device: options.device,
            n_blocks: n_ctx.div_ceil(BLOCK_TOKENS) * n_parallel,
            max_batch_tokens: max_rows,
            max_logits_rows: if config.is_encoder() { max_rows } else { STEP_OUTPUTS.max(n_parallel) },
            n_threads: options.n_threads,
            n_ctx,
            ..LoadOptions::default()
        };
        let model = ::model::Model::load(checkpoint, load)?;
        let device = model.device();
        let engine = EngineOptions {
            max_batch_tokens: max_rows,
            prefill_chunk: max_rows,
            max_running: n_parallel,
            n_ctx: Some(n_ctx),
            ..EngineOptions::default()
        };
        let handle = engine::start(model, engine, Some(masks::factory(Arc::clone(&tokenizer))));
        Ok(Self { tokenizer, template, handle, attention, device })
    }

    /// Goes on with a text as it is.
    pub fn complete(&self, prompt: &str, request: Request) -> Result<Answer> {
        let tokens = self.tokenizer.encode_with(prompt, Specials::Parse, Ends::Add);
        self.start(tokens, request)
    }

    /// Answers a conversation, rendered as the model was trained to read it.
    pub fn chat(&self, messages: &[Message], request: Request) -> Result<Answer> {
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        self.chat_with(messages, &options, request)
    }

    /// As [`chat`](Self::chat), with tools or variables for the template.
    pub fn chat_with(&self, messages: &[Message], options: &RenderOptions, request: Request) -> Result<Answer> {
        let prompt = self.template.render(messages, options)?;
        // The template writes BOS itself where the model wants one.
        self.start(self.tokenizer.encode_with(&prompt, Specials::Parse, Ends::None), request)
    }

    fn start(&self, prompt: Vec<u32>, request: Request) -> Result<Answer> {
        Answer::start(&self.handle, &self.tokenizer, prompt, request)
    }

    /// The text as a vector of length 1: the mean of its tokens' last hidden states.
    ///
    /// ```
    /// # fn main() -> rocinante::Result<()> {
    /// # let Some(path) = std::env::var_os("ROCI_SMOLLM2") else { return Ok(()) };
    /// let model = rocinante::Model::open(path)?;
    /// let [cat, kitten, tax] = ["a cat", "a kitten", "the tax law of 1913"].map(|text| model.embed(text));
    /// let (cat, kitten, tax) = (cat?, kitten?, tax?);
    /// let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    /// assert!(dot(&cat, &kitten) > dot(&cat, &tax));
    /// # Ok(())
    /// # }
    /// ```
    pub fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let tokens = self.tokenizer.encode_with(text, Specials::Plain, Ends::Add);
        let embed = Embed {
            id: self.handle.next_request_id(),
            tokens: tokens.into_iter().map(TokenId).collect(),
            pooling: Pooling::Mean,
            attention: self.attention,
            normalize: Normalize::Unit,
            priority: 0,
            group: 0,
        };
        for event in self.handle.embed(embed)? {
            match event {
                Event::Vector { vector, .. } => return Ok(vector),
                Event::Failed { error, .. } => return Err(Error::Failed(error)),
                _ => {}
            }
        }
        Err(Error::Failed("the engine ended before the answer".to_owned()))
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The longest prompt and answer together, in tokens.
    pub fn context(&self) -> usize {
        self.handle.n_ctx()
    }

    /// Where it computes, in words.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The engine itself, for what this face does not offer.
    pub fn engine(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}
