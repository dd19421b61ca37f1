//! One model, ready to answer: its engine, tokenizer and chat template. Wires `weights`, `model`,
//! `engine` and `text`; knows nothing of terminals.

use crate::interrupt;
use crate::load::{self, PROMPT_STEP, Plan, Use};
use crate::model_file::{self, Template};
use crate::options::LoadArgs;
use crate::report::{self, HintExt};
use anyhow::{Context, Result, anyhow, bail};
use engine::{Event, FinishReason, Handle, Sampling, Submit, Usage};
use model::TokenId;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use text::constraint::Constraint;
use text::{Detokenizer, Ends, Message, RenderOptions, Specials, StopMatcher, Tokenizer};

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
    /// How loading went and which fast paths are missing, if asked for.
    notes: Vec<String>,
    /// The times of every op, if asked for.
    profiler: Option<model::Profiler>,
}

/// How much a session says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Little,
    Much,
}

/// Whether ops take their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profiling {
    Off,
    EachOp,
}

/// What to generate.
#[derive(Debug)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    pub sampling: Sampling,
    pub max_tokens: usize,
    pub stop: Vec<String>,
    pub logprobs: Option<usize>,
    /// The form the answer must have.
    pub constraint: Option<Constraint>,
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
    pub fn open(path: &Path, args: &LoadArgs, detail: Detail, profiling: Profiling) -> Result<Self> {
        let start = Instant::now();
        let checkpoint = load::open(path, args)?;
        let mut plan = load::plan(&checkpoint, args, Use::ONE_SEQUENCE).map_err(report::about(path))?;
        if plan.n_ctx > plan.n_ctx_train {
            let (n_ctx, n_train) = (plan.n_ctx, plan.n_ctx_train);
            let error = anyhow!("--context {n_ctx} is more than the {n_train} tokens the model was trained for");
            return Err(error).with_hint(|| format!("use --context {n_train} or less"));
        }
        if profiling == Profiling::EachOp {
            if plan.options.device == model::DeviceChoice::Cpu {
                return Err(anyhow!("--profile takes the times of ops on a GPU, and this model runs on the CPU"))
                    .hint("`roci devices` shows what can compute here; --device chooses");
            }
            plan.options.watch = model::Watch::Profile;
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
        let mut notes = Vec::new();
        if detail == Detail::Much {
            notes.extend(load::describe_loading(&model)?);
            notes.extend(model.notes());
        }
        let profiler = model.profiler();
        let handle = engine::start(model, options, Some(rocinante::masks::factory(Arc::clone(&tokenizer))));
        let load_time = start.elapsed();
        Ok(Self { path: path.to_owned(), tokenizer, template, handle, plan, device, load_time, notes, profiler })
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

    /// The steps since the last call, with what the device can do at most.
    pub fn take_profile(&self) -> Option<(Vec<model::StepProfile>, model::DeviceLimits)> {
        self.profiler.as_ref().map(|profiler| (profiler.take(), profiler.limits))
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
        submit.constraint = request.constraint.as_ref().map(Constraint::to_spec);
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
                Ok(Event::Failed { error, .. }) => {
                    let is_form = error.contains("the constraint cannot be used");
                    let failed = anyhow!("generation failed: {error}");
                    return match is_form {
                        true => {
                            Err(failed).hint("look at --json-schema, --grammar or --regex again; see `roci run --help`")
                        }
                        false => Err(failed),
                    };
                }
                Ok(Event::Prompt { .. } | Event::Vector { .. } | Event::Stats(_)) | Err(RecvTimeoutError::Timeout) => {}
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

    /// The memory plan and how loading went, for `-v`.
    pub fn describe(&self) -> String {
        let plan = &self.plan;
        let mut lines = vec![
            format!("{}: {}, trained for {} tokens", self.path.display(), self.device, plan.n_ctx_train),
            plan.lines(),
        ];
        lines.extend(self.notes.iter().cloned());
        if self.is_template_default() {
            lines.push("the file has no chat template, using ChatML".to_owned());
        }
        lines.join("\n")
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
