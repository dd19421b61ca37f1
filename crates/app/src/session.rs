//! One model, ready to answer: its engine, tokenizer and chat template. Wires `weights`, `model`,
//! `engine` and `text`; knows nothing of terminals.

use crate::interrupt;
use crate::load::{self, Plan, Use};
use crate::model_file::{self, Template};
use crate::options::LoadArgs;
use crate::report::{HintExt, human_bytes};
use anyhow::{Context, Result, anyhow, bail};
use engine::{Event, FinishReason, Handle, Sampling, Submit, Usage};
use model::TokenId;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use text::{Detokenizer, Ends, Message, RenderOptions, Specials, StopMatcher, Tokenizer};

/// Tokens of a prompt that go through the model in one step.
const PROMPT_STEP: usize = 512;
/// How often Ctrl-C is looked for while the model is silent.
const INTERRUPT_POLL: Duration = Duration::from_millis(20);

/// A loaded model behind its engine.
pub struct Session {
    pub path: PathBuf,
    pub tokenizer: Arc<Tokenizer>,
    template: Template,
    handle: Handle,
    pub plan: Plan,
    /// Where it computes, in words.
    pub device: String,
    pub load_time: Duration,
}

/// What to generate.
#[derive(Debug)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    pub sampling: Sampling,
    pub max_tokens: usize,
    pub stop: Vec<String>,
    pub logprobs: Option<usize>,
}

/// One generated token.
#[derive(Debug)]
pub struct Step {
    pub token: TokenId,
    /// Only if log-probabilities were asked for.
    pub logprob: f32,
    pub top: Vec<(TokenId, f32)>,
}

/// What came out.
#[derive(Debug)]
pub struct Answer {
    pub text: String,
    pub steps: Vec<Step>,
    pub reason: FinishReason,
    pub usage: Usage,
}

impl Session {
    pub fn open(path: &Path, args: &LoadArgs) -> Result<Self> {
        let start = Instant::now();
        let checkpoint = model_file::open(path)?;
        let purpose = Use { n_sequences: 1, max_batch_tokens: PROMPT_STEP, max_logits_rows: 1 };
        let plan = load::plan(&checkpoint, args, purpose).with_context(|| format!("`{}`", path.display()))?;
        if plan.n_ctx > plan.n_ctx_train {
            let (n_ctx, n_train) = (plan.n_ctx, plan.n_ctx_train);
            let error = anyhow!("--context {n_ctx} is more than the {n_train} tokens the model was trained for");
            return Err(error).with_hint(|| format!("use --context {n_train} or less"));
        }
        // The vocabulary takes about as long to read as the weights: both at once.
        let (tokenizer, model) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| model_file::open_tokenizer(&checkpoint));
            let model = load::load(&checkpoint, &plan);
            let tokenizer = tokenizer.join().unwrap_or_else(|_| Err(anyhow!("reading the vocabulary failed")));
            (tokenizer.with_context(|| format!("`{}`", path.display())), model)
        });
        let (tokenizer, model) = (Arc::new(tokenizer?), model?);
        let template = model_file::open_template(&checkpoint, &tokenizer)?;
        let options = engine::EngineOptions {
            max_batch_tokens: plan.options.max_batch_tokens,
            // One sequence at a time: nobody else waits for the step.
            prefill_chunk: PROMPT_STEP,
            max_running: 1,
            n_ctx: Some(plan.n_ctx),
            ..engine::EngineOptions::default()
        };
        let device = model.device();
        let handle = engine::start(model, options, None);
        Ok(Self { path: path.to_owned(), tokenizer, template, handle, plan, device, load_time: start.elapsed() })
    }

    /// Where requests for vectors go.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The conversation as the model was trained to read it, up to where its answer starts.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<TokenId>> {
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let text = self
            .template
            .template
            .render(messages, &options)
            .context("the model's chat template refused the conversation")
            .hint("--raw sends the prompt as it is, without a template")?;
        // The template writes BOS itself where the model wants one.
        Ok(ids(self.tokenizer.encode_with(&text, Specials::Parse, Ends::None)))
    }

    /// The text as it is, with the BOS that the vocabulary asks for.
    pub fn encode_raw(&self, text: &str) -> Vec<TokenId> {
        ids(self.tokenizer.encode_with(text, Specials::Parse, Ends::Add))
    }

    /// Whether the file had no chat template of its own.
    pub fn is_template_default(&self) -> bool {
        self.template.is_default
    }

    /// Generates; `show` gets the text as it grows, never half a character.
    pub fn generate(
        &self,
        request: &Request,
        interrupt: &interrupt::Guard,
        show: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Answer> {
        self.check_length(request)?;
        let mut submit = Submit::new(self.handle.next_request_id(), request.prompt.clone(), request.max_tokens);
        submit.sampling = request.sampling.clone();
        submit.stop_tokens = self.tokenizer.end_ids().iter().map(|&id| TokenId(id)).collect();
        submit.logprobs = request.logprobs;
        let id = submit.id;
        let events = self.handle.submit(submit)?;

        let mut detokenizer = Detokenizer::new(self.tokenizer.clone());
        let mut matcher = StopMatcher::new(request.stop.clone());
        let mut steps = Vec::new();
        let mut text = String::new();
        let mut is_stopped = false;
        let mut is_cancelled = false;
        let (reason, usage) = loop {
            if interrupt.is_hit() && !is_cancelled {
                is_cancelled = true;
                self.handle.cancel(id)?;
            }
            match events.recv_timeout(INTERRUPT_POLL) {
                // Tokens that were under way when the answer ended are not part of it.
                Ok(Event::Token { .. }) if is_stopped => {}
                Ok(Event::Token { token, logprob, top, .. }) => {
                    steps.push(Step { token, logprob, top });
                    let step = matcher.push(&detokenizer.push(token.0));
                    text.push_str(&step.text);
                    show(&step.text)?;
                    if step.is_stopped {
                        is_stopped = true;
                        self.handle.cancel(id)?;
                    }
                }
                Ok(Event::Finished { reason, usage, .. }) => break (reason, usage),
                Ok(Event::Failed { error, .. }) => bail!("generation failed: {error}"),
                Ok(Event::Vector { .. } | Event::Stats(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the engine ended in the middle of the answer"),
            }
        };
        if !is_stopped {
            let last = matcher.push(&detokenizer.finish());
            let rest = format!("{}{}", last.text, if last.is_stopped { String::new() } else { matcher.finish() });
            text.push_str(&rest);
            show(&rest)?;
        }
        let reason = if is_stopped { FinishReason::Stop } else { reason };
        Ok(Answer { text, steps, reason, usage })
    }

    fn check_length(&self, request: &Request) -> Result<()> {
        let (n_prompt, n_ctx) = (request.prompt.len(), self.plan.n_ctx);
        if n_prompt == 0 {
            return Err(anyhow!("the prompt is empty")).hint("give some text to start from");
        }
        if n_prompt < n_ctx {
            return Ok(());
        }
        let error = anyhow!("the prompt has {n_prompt} tokens, the context holds {n_ctx}");
        let n_train = self.plan.n_ctx_train;
        Err(error).with_hint(|| match n_prompt < n_train {
            true => format!("shorten it, or use --context up to {n_train} (what the model was trained for)"),
            false => format!("shorten it: the model was trained for {n_train} tokens"),
        })
    }

    /// The memory plan, for `-v`.
    pub fn describe(&self) -> String {
        let plan = &self.plan;
        format!(
            "{}: weights {}, keys and values {} (context of {}, trained for {}), scratch {}, {}{}",
            self.path.display(),
            human_bytes(plan.memory.weights_bytes as u64),
            human_bytes(plan.memory.kv_bytes as u64),
            plan.n_ctx,
            plan.n_ctx_train,
            human_bytes(plan.memory.scratch_bytes as u64),
            self.device,
            if self.is_template_default() { "; the file has no chat template, using ChatML" } else { "" },
        )
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}

impl Answer {
    /// Prompt tokens that were computed (not taken from the cache) per second.
    pub fn prompt_speed(&self) -> Option<f64> {
        rate(self.usage.n_prompt - self.usage.n_cached_prompt.min(self.usage.n_prompt), self.usage.timings.prefill)
    }

    /// Tokens after the first per second: the first one is the prompt's.
    pub fn decode_speed(&self) -> Option<f64> {
        rate(self.usage.n_generated.saturating_sub(1), self.usage.timings.decode)
    }

    pub fn reason_name(&self) -> &'static str {
        match self.reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

fn rate(n_tokens: usize, time: Duration) -> Option<f64> {
    (n_tokens > 0 && !time.is_zero()).then(|| n_tokens as f64 / time.as_secs_f64())
}

fn ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}
