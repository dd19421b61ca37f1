//! A model in memory behind its engine, with its tokenizer and chat template: the basis of `roci run`, `roci serve` and
//! Rust programs.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::model::{Attention, DeviceLimits, Numerics, Profiler, StepProfile, TokenId, Watch};
use engine::{Event, Handle, Helpers, SessionFile, Submit, VectorRequest};
use text::answer::AnswerFormat;
use text::constraint::Constraint;
use text::{Ends, Message, RenderOptions, Specials, Tokenizer};
use weights::Checkpoint;

use crate::adapter::Adapter;
use crate::answer::Answer;
use crate::device::ChosenDevice;
use crate::keep;
use crate::load_plan::LoadPlan;
use crate::masks::Masks;
use crate::model_files::{ModelFiles, ModelInfo};
use crate::model_summary::ModelSummary;
use crate::options::Options;
#[cfg(unix)]
use crate::process::{self, EngineProcess};
use crate::request::Request;
use crate::speculate::Speculation;
use crate::splitter::Splitter;
use crate::template::{ControlTokens, Prompt, Template, ids};
use crate::text_forms::TextForms;
use crate::vectors::PendingVector;
use crate::{Error, Result};

/// Vectors of one call that are with the engine at a time: enough to fill its steps, and its queue stays open.
const MAX_VECTORS_AT_ONCE: usize = 64;

/// A model, ready to answer. Share it behind a reference or an `Arc`: requests may come from several threads.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    tokenizer: Arc<Tokenizer>,
    template: Template,
    forms: TextForms,
    masks: Masks,
    handle: Handle,
    about: ModelSummary,
    profiler: Option<Profiler>,
    /// The engine's process, where it has one.
    watch: Option<worker::StatusWatch>,
}

impl Model {
    /// Opens a GGUF file (or any part of a split one) or a folder of safetensors, on the best device that works here.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Options::default())
    }

    /// As [`open`](Self::open), with choices of the caller's.
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        #[cfg(unix)]
        if let Some(process) = &options.process {
            return Self::open_in(process, path.as_ref(), options);
        }
        Self::load(&ModelFiles::open_with(path, options)?, options)
    }

    /// Behind an engine in a process of its own, where its device asks for one.
    #[cfg(unix)]
    fn open_in(process: &EngineProcess, path: &Path, options: &Options) -> Result<Self> {
        let files = ModelFiles::open(path)?;
        let chosen = files.choose_device(options.device)?;
        if !process.is_for(chosen.choice) {
            return Self::load_on(&ModelFiles::open_with(path, options)?, options, chosen);
        }
        let device = chosen.device();
        // The vocabulary is read here meanwhile.
        let (started, tokenizer) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| files.tokenizer());
            let started = process::start(path, &Options { device, ..options.clone() }, process);
            (started, tokenizer.join().unwrap_or(Err(Error::NoVocabulary("reading it failed"))))
        });
        let (handle, mut about, watch) = started?;
        let tokenizer = Arc::new(tokenizer?);
        let template = template(&files, options, &tokenizer)?;
        let forms = TextForms::of(files.checkpoint())?;
        let masks = Masks::guarded(Arc::clone(&tokenizer), options.constraint_guard.clone());
        about.notes.extend(chosen.notes());
        if about.plan.options.device == chosen.choice {
            about.plan.device = chosen;
        }
        let path = path.to_owned();
        Ok(Self { path, tokenizer, template, forms, masks, handle, about, profiler: None, watch: Some(watch) })
    }

    /// From a checkpoint that is already open, or was made in memory.
    pub fn from_checkpoint(checkpoint: Checkpoint, options: &Options) -> Result<Self> {
        let path = checkpoint.path().unwrap_or(Path::new("")).to_owned();
        Self::load(&ModelFiles::of(checkpoint, path), options)
    }

    /// Plans, loads, and starts the engine, on a thread of this process.
    pub fn load(files: &ModelFiles, options: &Options) -> Result<Self> {
        Self::load_on(files, options, files.choose_device(options.device)?)
    }

    fn load_on(files: &ModelFiles, options: &Options, device: ChosenDevice) -> Result<Self> {
        let start = Instant::now();
        let mut speculation = Speculation::load(files, options, &device)?;
        let plan = files.plan_beside(options, device, speculation.beside_bytes)?;
        if options.watch == Watch::Profile && plan.options.device == ::model::DeviceChoice::Cpu {
            return Err(Error::NoProfile);
        }
        let (mut model, tokenizer) = files.load_with_tokenizer(&plan)?;
        speculation.attach_to(&mut model)?;
        let tokenizer = Arc::new(tokenizer);
        let template = template(files, options, &tokenizer)?;
        let forms = TextForms::of(files.checkpoint())?;
        let profiler = model.profiler();
        let mut about = ModelSummary::of(files, options, plan, &model, start)?;
        about.notes.extend(speculation.note());
        let masks = Masks::guarded(Arc::clone(&tokenizer), options.constraint_guard.clone());
        let Speculation { drafter, drafting, .. } = speculation;
        let (store, notes) = keep::open(files.checkpoint(), options, &about.plan, &model);
        about.notes.extend(notes);
        let tells_cache = options.tells_cache;
        let engine_options = engine::EngineOptions { tells_cache, drafting, ..about.engine_options() };
        let handle = engine::start_helped(
            model,
            engine_options,
            Helpers { masks: Some(Box::new(masks.clone())), drafter, store },
        );
        let path = files.path().to_owned();
        Ok(Self { path, tokenizer, template, forms, masks, handle, about, profiler, watch: None })
    }

    /// Continues a text as it is.
    pub fn complete(&self, prompt: &str, request: Request) -> Result<Answer> {
        let splitter = Splitter::plain(&self.tokenizer, request.stop.clone(), request.logprobs.is_some());
        self.answer(self.encode_raw(prompt), &request, splitter)
    }

    /// Answers a conversation, rendered as the model was trained to read it.
    pub fn chat(&self, messages: &[Message], request: Request) -> Result<Answer> {
        self.chat_with(messages, &generation(), request)
    }

    /// As [`chat`](Self::chat), with tools or variables for the template. Reasoning and tool calls come as events of
    /// their own.
    pub fn chat_with(&self, messages: &[Message], options: &RenderOptions, request: Request) -> Result<Answer> {
        let prompt = self.prompt(messages, options)?;
        let tools = options.tools.as_ref().and_then(|tools| tools.as_array()).map_or(&[][..], Vec::as_slice);
        let format = if tools.is_empty() { self.format().without_tools() } else { self.format().clone() };
        let (stop, has_logprobs) = (request.stop.clone(), request.logprobs.is_some());
        let splitter = Splitter::new(&self.tokenizer, stop, has_logprobs, format, &prompt.text, tools);
        self.answer(prompt.tokens, &request, splitter)
    }

    /// The conversation up to where the answer begins.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Prompt> {
        self.prompt(messages, &generation())
    }

    /// The conversation as the model was trained to read it. Control tokens in what users wrote are text.
    pub fn prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<Prompt> {
        let text = self.template.render(&self.tokenizer, messages, options, ControlTokens::Text)?;
        let tokens = self.template.encode(&self.tokenizer, &text);
        Ok(Prompt { text: text::unshield(&text).into_owned(), tokens })
    }

    /// Answers tokens; `splitter` reads the answer. What can be known to be wrong is an error here, before anything is
    /// computed.
    pub fn answer(&self, prompt: Vec<TokenId>, request: &Request, splitter: Splitter) -> Result<Answer> {
        if self.is_encoder() {
            return Err(Error::Encoder);
        }
        let (n_prompt, n_ctx, n_ctx_train) = (prompt.len(), self.context(), self.about.plan.n_ctx_train);
        if n_prompt == 0 {
            return Err(Error::EmptyPrompt);
        }
        if n_prompt >= n_ctx {
            return Err(Error::PromptTooLong { n_prompt, n_ctx, n_ctx_train });
        }
        Answer::start(&self.handle, &self.tokenizer, prompt, request, splitter)
    }

    /// Writes a session file: `text` for its reader ([`Session::open`](crate::Session::open)), and what the engine has
    /// computed of these tokens, for a model that is opened with [`Keep::session`](crate::Keep::session). Needs a model that
    /// was opened so itself; the file need not have been there.
    pub fn save_session(
        &self,
        path: &Path,
        text: Vec<u8>,
        tokens: &[TokenId],
        adapter: Option<&Adapter>,
    ) -> Result<()> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let session = Some(SessionFile { path, text });
        // The last token of a full context is not computed anyway.
        let tokens = tokens[..tokens.len().min(self.context().saturating_sub(1))].to_vec();
        let adapter = adapter.map(|adapter| adapter.source().clone());
        let submit = Submit { session, adapter, ..Submit::new(self.handle.next_request_id(), tokens, 0) };
        for event in self.handle.submit(submit)? {
            match event {
                Event::Finished { .. } => return Ok(()),
                Event::Failed { error, .. } => return Err(Error::Session(error)),
                _ => {}
            }
        }
        Err(Error::Session(self.handle.stopped().unwrap_or_else(|| "the engine is going down".to_owned())))
    }

    /// The estimated memory of compiled constraints.
    pub fn constraint_bytes(&self) -> usize {
        self.masks.kept_bytes()
    }

    /// Whether answers can be held to this, before any is asked for.
    pub fn check(&self, constraint: &Constraint) -> Result<()> {
        self.masks.compile(constraint, self.handle.n_vocab()).map(drop).map_err(Error::from)
    }

    /// The text as a vector of length 1, as the model was trained to make it: from its first token, its last, or the
    /// mean of all, and with the prompt that its files name for texts in general, if they do.
    ///
    /// ```no_run
    /// # fn main() -> rocinante::Result<()> {
    /// let model = rocinante::Model::open("nomic-embed-text.gguf")?;
    /// let [cat, kitten, tax] = ["a cat", "a kitten", "the tax law of 1913"].map(|text| model.embed(text));
    /// let (cat, kitten, tax) = (cat?, kitten?, tax?);
    /// let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    /// assert!(dot(&cat, &kitten) > dot(&cat, &tax));
    /// # Ok(())
    /// # }
    /// ```
    pub fn embed(&self, text: &str) -> Result<Vec<f32>> {
        self.embed_prompted(None, text)
    }

    /// As [`embed`](Self::embed), with the prompt of that name in the model's files before the text: many embedders read
    /// questions and documents with different ones.
    pub fn embed_prompted(&self, prompt: Option<&str>, text: &str) -> Result<Vec<f32>> {
        let text = self.forms.prompted(prompt, text)?;
        self.vector(self.handle.embed_request(self.encode_raw(&text)))?.wait()
    }

    /// The vectors of several texts, made together.
    pub fn embed_all(&self, texts: Vec<Vec<TokenId>>) -> Result<Vec<Vec<f32>>> {
        self.vectors(texts.into_iter().map(|tokens| self.handle.embed_request(tokens)).collect())
    }

    /// How well each text fits the question, in the order of the texts. Needs a reranker.
    pub fn rerank(&self, query: &str, documents: &[impl AsRef<str>]) -> Result<Vec<f32>> {
        if self.handle.embeds().head.is_none() {
            return Err(Error::NoScores);
        }
        let pairs = documents.iter().map(|document| self.forms.pair(&self.tokenizer, query, document.as_ref()));
        let requests = pairs.map(|(tokens, n_first)| self.handle.score_request(tokens, n_first)).collect();
        let scores = self.vectors(requests)?;
        Ok(scores.into_iter().map(|scores| scores.first().copied().unwrap_or(f32::NAN)).collect())
    }

    /// Starts to make a vector or a score; see [`Handle::embed_request`] and [`Handle::score_request`].
    pub fn vector(&self, embed: VectorRequest) -> Result<PendingVector> {
        PendingVector::start(&self.handle, embed)
    }

    fn vectors(&self, requests: Vec<VectorRequest>) -> Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(requests.len());
        let mut pending = VecDeque::new();
        for request in requests {
            if pending.len() == MAX_VECTORS_AT_ONCE {
                vectors.extend(pending.pop_front().map(PendingVector::wait).transpose()?);
            }
            pending.push_back(self.vector(request)?);
        }
        for vector in pending {
            vectors.push(vector.wait()?);
        }
        Ok(vectors)
    }

    /// The text as it is, with the tokens around it that the vocabulary asks for.
    pub fn encode_raw(&self, text: &str) -> Vec<TokenId> {
        ids(self.tokenizer.encode_with(text, Specials::Parse, Ends::Add))
    }

    /// The tokens of a conversation that was rendered.
    pub fn encode_rendered(&self, text: &str) -> Vec<TokenId> {
        self.template.encode(&self.tokenizer, text)
    }

    /// The steps since the last call and the limits of the device, where op times are measured.
    pub fn take_profile(&self) -> Option<(Vec<StepProfile>, DeviceLimits)> {
        self.profiler.as_ref().map(|profiler| (profiler.take(), profiler.limits))
    }

    /// Whether it is an encoder: it reads whole texts, computes embeddings and cannot generate text.
    pub fn is_encoder(&self) -> bool {
        self.handle.embeds().attention == Attention::Full
    }

    /// Whether its engine still runs.
    pub fn is_alive(&self) -> bool {
        self.handle.stopped().is_none()
    }

    /// The state of the process that its engine runs in; `None`: it runs in this one.
    pub fn engine_status(&self) -> Option<worker::EngineStatus> {
        self.watch.as_ref().map(worker::StatusWatch::status)
    }

    /// Why there is no engine and will be none: its process died too often.
    pub fn unavailable(&self) -> Option<String> {
        match self.engine_status()?.phase {
            worker::Phase::Unavailable(why) => Some(why),
            _ => None,
        }
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Turns text into tokens and back.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// How conversations are written for it.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// What it reads around texts that become vectors and scores.
    pub fn text_forms(&self) -> &TextForms {
        &self.forms
    }

    /// How it writes its reasoning and its tool calls.
    pub fn format(&self) -> &AnswerFormat {
        self.template.format()
    }

    /// Family, type and size.
    pub fn info(&self) -> &ModelInfo {
        &self.about.info
    }

    /// What was decided before loading.
    pub fn plan(&self) -> &LoadPlan {
        &self.about.plan
    }

    /// Whether the same request gives the same answer bit for bit, as [`Options::deterministic`] asks.
    pub fn is_deterministic(&self) -> bool {
        self.about.plan.options.numerics == Numerics::RowInvariant
    }

    /// The longest prompt and answer together, in tokens.
    pub fn context(&self) -> usize {
        self.about.plan.n_ctx()
    }

    /// Where it computes, in words.
    pub fn device(&self) -> &str {
        &self.about.device
    }

    /// What a person should know about how it was loaded: GPUs that were refused, weights held in another type, fast
    /// paths it does without.
    pub fn notes(&self) -> &[String] {
        &self.about.notes
    }

    /// Why [`Device::Auto`](crate::Device::Auto) found no GPU of a vendor, a sentence for each vendor. Empty where a device
    /// was named.
    pub fn absent_gpus(&self) -> &[String] {
        &self.plan().device.absent
    }

    /// From the start of planning to a running engine.
    pub fn load_time(&self) -> Duration {
        self.about.load_time
    }

    /// The engine itself, for what is not offered here.
    pub fn engine(&self) -> &Handle {
        &self.handle
    }
}

fn generation() -> RenderOptions {
    RenderOptions { add_generation_prompt: true, ..RenderOptions::default() }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}

/// The chat template that was asked for, or the file's own.
fn template(files: &ModelFiles, options: &Options, tokenizer: &Arc<Tokenizer>) -> Result<Template> {
    match &options.chat_template {
        Some(source) => Template::new(Some(source.clone()), tokenizer),
        None => files.template(tokenizer),
    }
}
