//! Dynamo's `LLMEngine` over one model: loaded by `start`, asked by `generate`, dropped by `cleanup`.

use async_trait::async_trait;
use dynamo_backend_common::{
    CommonArgs, DisaggregationMode, DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine,
    LLMEngineOutput, LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest, WorkerConfig,
};
use futures::stream::BoxStream;
use rocinante::{Device, EngineNotice, EngineProcess, Model, Options, Scheduling, Splitter, Workload};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::{self, BLOCK_TOKENS, RANK};
use crate::failure::{shut_down, told};
use crate::load;
use crate::request::{Wanted, translate};
use crate::stream::{Ending, count, stream};

/// What this program takes on its command line.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "roci-dynamo-worker", about = "Serve a model as a worker of NVIDIA Dynamo")]
pub struct EngineArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// GGUF file or folder of safetensors to compute with
    #[arg(long, value_name = "PATH")]
    pub model_path: PathBuf,
    /// What Dynamo's frontend takes the tokenizer and the chat template from: a folder with tokenizer.json and
    /// config.json, or a name on the Hub. Not needed where the model is such a folder
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    /// Name that clients ask for [default: that of the file or folder]
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Where to compute
    #[arg(long, default_value_t, value_parser = parse_device)]
    pub device: Device,
    /// Tokens that a prompt and its answer may have together
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Maximum number of requests generating at once
    #[arg(long, value_name = "N")]
    pub max_running: Option<usize>,
    /// Size of the pool of keys and values
    #[arg(long, value_name = "TOKENS")]
    pub kv_tokens: Option<usize>,
    /// The same request gives the same answer bit for bit, whatever else is computed
    #[arg(long)]
    pub deterministic: bool,
}

fn parse_device(text: &str) -> Result<Device, String> {
    text.parse().map_err(|_| format!("expected {}", rocinante::device_names()))
}

/// This worker reads prompts and generates, and has nothing to be controlled by.
fn refuse_other_roles(asked: &CommonArgs) -> anyhow::Result<()> {
    let mode = asked.disaggregation_mode;
    anyhow::ensure!(
        mode == DisaggregationMode::Aggregated,
        "--disaggregation-mode {}: this worker can only be `agg`, which reads prompts and generates",
        mode.as_str()
    );
    anyhow::ensure!(!asked.route_to_encoder, "--route-to-encoder: this worker takes tokens only, no images or sounds");
    anyhow::ensure!(!asked.enable_rl, "--enable-rl: this worker has no routes for reinforcement learning");
    Ok(())
}

/// What becomes of the engine's process.
fn tell(notice: &EngineNotice) {
    match notice {
        EngineNotice::Progress(text) => tracing::debug!("{text}"),
        EngineNotice::Stderr(line) => tracing::info!("engine: {line}"),
        EngineNotice::Died { .. } | EngineNotice::Resumed { .. } | EngineNotice::FellBack => tracing::warn!("{notice}"),
        EngineNotice::Unavailable(_) => tracing::error!("unavailable: {notice}"),
    }
}

/// Where the engine runs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// In a child, which may die without taking requests along. Its program is this one, started with `engine`.
    Process,
    /// On a thread.
    Thread,
}

/// One model as Dynamo's worker.
pub struct RociEngine {
    path: PathBuf,
    name: String,
    options: Options,
    model: Mutex<Option<Arc<Model>>>,
}

impl RociEngine {
    /// The engine, and how Dynamo is to announce it.
    pub fn new(args: &EngineArgs, isolation: Isolation) -> anyhow::Result<(Self, WorkerConfig)> {
        refuse_other_roles(&args.common)?;
        let EngineArgs { common, model_path, tokenizer, served_model_name, .. } = args.clone();
        anyhow::ensure!(
            tokenizer.is_some() || !model_path.is_file(),
            "Dynamo's frontend cannot read the tokenizer of `{}`\nhint: name the original model's folder, or its name on the \
             Hub, with --tokenizer",
            model_path.display()
        );
        let stem = model_path.file_stem().unwrap_or(model_path.as_os_str()).to_string_lossy().into_owned();
        let name = served_model_name.unwrap_or(stem);
        let process = match isolation {
            Isolation::Process => Some(EngineProcess::this_program(["engine".into()])?.observed_by(tell)),
            Isolation::Thread => None,
        };
        let scheduling =
            Scheduling { max_running: args.max_running, kv_tokens: args.kv_tokens, ..Scheduling::default() };
        let options = Options {
            device: args.device,
            context: args.context,
            deterministic: args.deterministic,
            tells_cache: true,
            process,
            workload: Workload::Server(scheduling),
            ..Options::default()
        };
        let config = WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            model_name: tokenizer.unwrap_or_else(|| model_path.to_string_lossy().into_owned()),
            served_model_name: Some(name.clone()),
            endpoint_types: common.endpoint_types,
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            runtime: common.runtime,
            ..WorkerConfig::default()
        };
        Ok((Self { path: model_path, name, options, model: Mutex::new(None) }, config))
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Model>>> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn model(&self) -> Result<Arc<Model>, DynamoError> {
        self.slot().clone().ok_or_else(|| shut_down("the model is not loaded"))
    }

    fn config(&self, model: &Model) -> EngineConfig {
        let (plan, pool) = (model.plan(), model.plan().n_pool_tokens());
        let llm = LlmRegistration {
            context_length: Some(count(model.context())),
            kv_cache_block_size: Some(BLOCK_TOKENS),
            total_kv_blocks: Some(pool as u64 / u64::from(BLOCK_TOKENS)),
            max_num_seqs: Some(plan.schedule.max_running as u64),
            max_num_batched_tokens: Some(plan.schedule.max_batch_tokens as u64),
            ..LlmRegistration::default()
        };
        EngineConfig {
            model: self.name.clone(),
            served_model_name: Some(self.name.clone()),
            llm: Some(llm),
            ..EngineConfig::default()
        }
    }
}

#[async_trait]
impl LLMEngine for RociEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (path, options) = (self.path.clone(), self.options.clone());
        tracing::info!(model = %path.display(), "loading");
        let opened = tokio::task::spawn_blocking(move || Model::open_with(path, &options)).await;
        let model = opened.map_err(|error| shut_down(error.to_string()))?.map_err(|error| told(&error))?;
        tracing::info!(device = model.device(), "loaded");
        model.notes().iter().for_each(|note| tracing::info!("{note}"));
        let config = self.config(&model);
        *self.slot() = Some(Arc::new(model));
        Ok(config)
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        ctx: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let model = self.model()?;
        let Wanted { prompt, request, stop_tokens, min_tokens } = translate(&request, &model)?;
        let has_logprobs = request.logprobs.is_some();
        if let Some(constraint) = &request.constraint {
            let (model, constraint) = (Arc::clone(&model), constraint.clone());
            let checked = tokio::task::spawn_blocking(move || model.check(&constraint)).await;
            checked.map_err(|error| shut_down(error.to_string()))?.map_err(|error| told(&error))?;
        }
        let ending = Ending { stop_tokens, min_tokens, has_logprobs, n_prompt: prompt.len() };
        let splitter = Splitter::plain(model.tokenizer(), request.stop.clone(), has_logprobs);
        let answer = model.answer(prompt, &request, splitter).map_err(|error| told(&error))?;
        Ok(stream(answer, ending, ctx))
    }

    async fn is_quiescent(&self) -> Result<Option<bool>, DynamoError> {
        let is_quiet = |model: Arc<Model>| {
            let stats = model.engine().latest_stats();
            stats.n_running == 0 && stats.n_waiting == 0
        };
        Ok(Some(self.slot().clone().is_none_or(is_quiet)))
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        let model = self.slot().take();
        // Waits for the engine, or for its process.
        tokio::task::spawn_blocking(move || drop(model)).await.map_err(|error| shut_down(error.to_string()))
    }

    /// One token, which shows that the engine computes. A worker that was given up is found so and can be replaced.
    async fn health_check_payload(&self) -> Result<Option<serde_json::Value>, DynamoError> {
        Ok(Some(serde_json::json!({"token_ids": [0], "stop_conditions": {"max_tokens": 1}})))
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let log = self.model()?.engine().kv_log();
        let on_ready = Box::new(move |publisher| {
            cache::follow(log, publisher).map_err(|error| shut_down(format!("no thread for KV events: {error}")))
        });
        Ok(vec![KvEventSource::Push { on_ready, dp_rank: RANK }])
    }

    async fn setup_metrics(&self, _ctx: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let model = Arc::downgrade(&self.model()?);
        Ok(MetricsBindings {
            dp_ranks: vec![RANK],
            on_publisher_ready: Some(Box::new(move |publisher| {
                load::follow(model, publisher).map_err(|error| shut_down(format!("no thread for metrics: {error}")))
            })),
        })
    }
}
