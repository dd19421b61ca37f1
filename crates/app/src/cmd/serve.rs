//! `roci serve`: models behind an HTTP API. What was typed, the environment and the settings file become one
//! [`Args`]; what it means for the server is built here, and `server` runs it.

use crate::kv_args::KvArgs;
use crate::lora_args::LoraArgs;
use crate::options::{LoadArgs, SpeculateArgs};
use crate::report::{self, HintExt};
use crate::{model_file, serve_config as config, store};
use anyhow::{Context, Result, anyhow};
use clap::{Args as _, FromArgMatches};
use rocinante::{AdapterLimits, Scheduling, Workload};
use server::audit::Audit;
use server::connection::Timeouts;
use server::disk::{Disk, DiskTable};
use server::gate::Gate;
use server::json::BodyLimits;
use server::keys::Keys;
use server::kv_events::{self, Publisher};
use server::library;
use server::listen::{Listen, Tls};
use server::models::{Offer, Registry, ServedModel, TurnLimits};
use server::openai::store::{ResponseStore, UnknownResponse};
use server::origin::OriginPolicy;
use server::reload::Fresh;
use server::sampling::Defaults;
use server::traces::{self, Collector};
use server::{App, log, metrics};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  roci serve                               what was pulled, and known names on demand
  roci serve smollm2                       open http://127.0.0.1:8080; programs use /v1
  roci serve chat=a.gguf code=b.gguf       two models by name; the second is loaded on first use
  roci key new --name alice --file keys    create a key, then require it:
  roci serve smollm2 --api-key-file keys --host 0.0.0.0
  roci serve --config roci.toml            settings from a file (flags without dashes)
  roci serve smollm2 --print-config        print the settings in effect as such a file

Every flag can be set as a variable: --max-queue is ROCI_MAX_QUEUE; ROCI_MODELS lists models,
separated by commas. Flags override variables, and variables override the file.
See docs/user/serve.md and docs/operator/server.md.";

/// Serve models over HTTP
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Models to serve [default: those that were pulled]: a known name, a file, a folder of safetensors or
    /// hf:OWNER/REPO[:FILE]; NAME=MODEL renames one
    pub models: Vec<String>,
    /// A model as a flag, as llama.cpp has it; repeatable
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    pub model: Vec<String>,
    /// Address to listen on; one that others can reach requires --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the settings in effect and exit
    #[arg(long)]
    pub print_config: bool,
    #[command(flatten)]
    pub models_args: ModelsArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub adapters: LoraArgs,
    #[command(flatten)]
    pub speculation: SpeculateArgs,
    #[command(flatten)]
    pub scheduling: SchedulingArgs,
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub sampling: DefaultsArgs,
    #[command(flatten)]
    pub kv: KvArgs,
    #[command(flatten)]
    pub logs: LogArgs,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Models")]
pub struct ModelsArgs {
    /// Maximum number of models in memory; the least recently used is unloaded first
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub max_loaded: usize,
    /// Unload a model after this many seconds without requests; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub idle_unload: u64,
    /// How long a request waits for its model where no more fit in memory, not counting the time to load
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub model_wait: u64,
    /// How long a model in use stays in memory when another one is asked for and no more fit
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub model_turn: u64,
    /// Run engines inside the server instead of in processes of their own: a crash then ends the server
    #[arg(long)]
    pub in_process: bool,
    /// Give a model up when its engine's process has died this often in ten minutes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = positive)]
    pub max_engine_deaths: usize,
    /// Serve the only model under this name instead; repeatable, for more names
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Vec<String>,
    /// Without models and keys: offer what was pulled, and fetch nothing on demand
    #[arg(long)]
    pub no_pull: bool,
    /// Reject unknown model names; otherwise a single model answers to any name
    #[arg(long)]
    pub strict_model_names: bool,
    /// Maximum number of stored responses, and of stored chat completions
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_stored: usize,
    /// Maximum memory for stored responses and chat completions together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = positive)]
    pub max_stored_size: usize,
    /// Keep stored responses, chat completions, background answers and usage in this file, so that they survive a restart
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Encrypt the store with the key in this file (64 hexadecimal digits)
    #[arg(long, value_name = "FILE", requires = "store")]
    pub store_key_file: Option<PathBuf>,
    /// Send embeddings as numbers even to clients that ask for base64
    #[arg(long)]
    pub no_base64: bool,
    /// What to do with an unknown previous_response_id
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub unknown_responses: UnknownResponse,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Scheduling")]
pub struct SchedulingArgs {
    /// Maximum number of requests generating at once [default: 64 on a CPU, 256 on a GPU]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_running: Option<usize>,
    /// Maximum number of waiting requests; further ones get 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub max_queue: usize,
    /// Maximum number of tokens in one step [default: 512 on a CPU, up to 8448 on a GPU, by its memory]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_batch_tokens: Option<usize>,
    /// Maximum number of prompt tokens in a step that also generates: smaller gives smoother streams, larger faster prompts
    /// [default: 128 on a CPU, up to 8192 on a GPU]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub prefill_chunk: Option<usize>,
    /// Size of the shared KV cache in tokens [default: eight contexts on a CPU, what is free on a GPU]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub kv_tokens: Option<usize>,
    /// End a request after this time with what it has
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub request_timeout: u64,
    /// Time between SIGTERM, when /ready turns to 503, and refusing connections
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub drain_notice: u64,
    /// Time that requests in flight get after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_timeout: u64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// Require one of the keys in this file (see `roci key new`)
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Allow others to connect without a key
    #[arg(long)]
    pub allow_anyone: bool,
    /// Serve /metrics without a key
    #[arg(long)]
    pub open_metrics: bool,
    /// Requests per minute for keys without their own limit [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Concurrent requests for keys without their own limit [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent: Option<u32>,
    /// Append a line of JSON to this file for every request made with a key
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// Certificate chain (PEM), for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Allow web pages from this origin; repeatable; `*`: any [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
    /// Without keys, also accept requests addressed to this host name; repeatable; `*`: any [default: addresses, names
    /// without a dot, .localhost, .local and .internal]
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
    /// Maximum size of a request body, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = positive)]
    pub max_body: usize,
    /// Reject requests with unknown fields; otherwise the x-ignored-fields response header names them
    #[arg(long)]
    pub strict_fields: bool,
    /// Time limit for a request's headers, and again for its body
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub read_timeout: u64,
    /// How long a connection may stay open without a request
    #[arg(long, value_name = "SECONDS", default_value_t = 75)]
    pub idle_timeout: u64,
    /// Disconnect a client that reads nothing of its answer for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub write_timeout: u64,
    /// Maximum number of connections; those that have been idle longest make room for new ones
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub max_connections: usize,
    /// Maximum number of connections from one address [default: half of --max-connections]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_connections_per_peer: Option<usize>,
    /// Do not serve the web pages
    #[arg(long)]
    pub no_web: bool,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Defaults for requests")]
pub struct DefaultsArgs {
    /// Temperature
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub default_temperature: f32,
    /// Sample from the smallest set of tokens whose probabilities add up to P; 1: all
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub default_top_p: f32,
    /// Sample from the K most probable tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub default_top_k: usize,
    /// Drop tokens less probable than P times the most probable one; 0: none. Without it, small models derail at
    /// OpenAI's temperature of 1
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub default_min_p: f32,
    /// Maximum length of an answer [default: until the context is full]
    #[arg(long, value_name = "TOKENS")]
    pub default_max_tokens: Option<usize>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logs and traces")]
pub struct LogArgs {
    /// Log level: error, warn, info, debug, or a tracing filter
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
    /// Log format
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: log::LogFormat,
    /// Log prompts and answers too
    #[arg(long)]
    pub log_prompts: bool,
    /// Send spans to the OpenTelemetry collector at this address (OTLP over HTTP), such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

pub fn main(typed: &Args) -> Result<()> {
    let (command, matches) = read(typed)?;
    let matches = matches.unwrap_or_else(|error| error.exit());
    let mut args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    args.models.append(&mut args.model);
    if args.print_config {
        print!("{}", config::print(&command, &matches));
        return Ok(());
    }
    serve(&args)
}

/// What was typed, the environment and the settings file together, as they are now.
fn read(typed: &Args) -> Result<(clap::Command, clap::error::Result<clap::ArgMatches>)> {
    let command = Args::augment_args(clap::Command::new("roci serve")).no_binary_name(true).args_override_self(true);
    let file = typed.config.clone().or_else(|| std::env::var_os("ROCI_CONFIG").map(PathBuf::from));
    let mut arguments = config::arguments(&command, file.as_deref(), &|name| std::env::var_os(name))?;
    let own = crate::config::typed_with("serve", Vec::new());
    if !typed.models.is_empty() || !typed.model.is_empty() {
        // Models that were typed stand instead of the others.
        arguments.retain(|argument| argument.to_string_lossy().starts_with("--"));
    }
    arguments.extend(own);
    let matches = command.clone().try_get_matches_from(arguments);
    Ok((command, matches))
}

/// What SIGHUP brings: the keys and limits as they would be after a restart.
fn read_again(typed: &Args) -> Result<Fresh> {
    let args = Args::from_arg_matches(&read(typed)?.1?)?;
    let keys = args.access.api_key_file.as_deref().map(Keys::open).transpose()?.unwrap_or_default();
    if typed.access.api_key_file.is_some() && keys.all().is_empty() {
        return Err(anyhow!("no key is required any more")).hint("restart the server to do without keys");
    }
    Ok(Fresh { keys, rate: args.access.rate, concurrent: args.access.concurrent })
}

fn serve(args: &Args) -> Result<()> {
    let mut listen = listen(args)?;
    let typed = args.clone();
    listen.reader = Some(Box::new(move || read_again(&typed)));
    let keys = open_keys(args)?;
    log::install(&args.logs.log_level, args.logs.log_format)?;
    if let Some(collector) = Collector::from_env(args.logs.otlp_endpoint.as_deref(), &|name| std::env::var(name).ok()) {
        traces::install(collector);
    }
    let app = Arc::new(app(args, keys)?);
    let outcome = run(&app, listen, args.kv.settings());
    if let Some(disk) = &app.disk {
        disk.flush();
    }
    traces::shut_down();
    outcome
}

/// The keys that are required. Without any, only this machine may reach the server, unless --allow-anyone says otherwise.
fn open_keys(args: &Args) -> Result<Keys> {
    let keys = args.access.api_key_file.as_deref().map(Keys::open).transpose()?.unwrap_or_default();
    if !args.host.is_loopback() && keys.all().is_empty() && !args.access.allow_anyone {
        return Err(anyhow!("{} can be reached by others, but no key is required", args.host)).hint(
            "create a key with `roci key new --name NAME --file keys.txt` and add --api-key-file keys.txt, or add \
             --allow-anyone",
        );
    }
    Ok(keys)
}

fn app(args: &Args, keys: Keys) -> Result<App> {
    let models = registry(args, !keys.all().is_empty())?;
    let pages = OriginPolicy {
        has_keys: !keys.all().is_empty(),
        hosts: args.access.allowed_host.clone(),
        origins: args.access.cors_origin.clone(),
    };
    let mut gate = Gate::new(keys, args.access.rate, args.access.concurrent);
    gate.metrics_need_key = !args.access.open_metrics;
    gate.audit = args.access.audit_log.as_deref().map(Audit::open).transpose()?;
    let ModelsArgs { max_stored, max_stored_size, unknown_responses, .. } = args.models_args;
    // One half for responses, one for chats.
    let kept_bytes = max_stored_size << 19;
    let mut store = ResponseStore::new(max_stored, kept_bytes, unknown_responses);
    let mut chats = ResponseStore::new(max_stored, kept_bytes, unknown_responses);
    let key_file = args.models_args.store_key_file.as_deref();
    let disk = args.models_args.store.as_deref().map(|path| Disk::open(path, key_file)).transpose()?;
    if let Some(disk) = &disk {
        store = store.on_disk(Arc::clone(disk), DiskTable::Responses)?;
        chats = chats.on_disk(Arc::clone(disk), DiskTable::Chats)?;
        gate.usage.restore(&disk.all(DiskTable::Usage)?);
    }
    Ok(App {
        models,
        gate,
        defaults: defaults(&args.sampling),
        fingerprint: format!("roci-{}", env!("CARGO_PKG_VERSION")),
        body: BodyLimits::new(args.access.max_body << 20, Duration::from_secs(args.access.read_timeout))
            .strict(args.access.strict_fields),
        request_time: Duration::from_secs(args.scheduling.request_timeout.max(1)),
        log_prompts: args.logs.log_prompts,
        allows_runtime_lora: args.adapters.allow_runtime_lora,
        has_base64: !args.models_args.no_base64,
        has_page: !args.access.no_web,
        pages,
        store,
        chats,
        disk,
        metrics: Some(metrics::install()?),
        state: server::health::HealthState::default(),
    })
}

/// The models on offer, none of them loaded yet.
fn registry(args: &Args, has_keys: bool) -> Result<Arc<Registry>> {
    // A server with keys never downloads on request.
    let offer = match (args.models.is_empty(), has_keys || args.models_args.no_pull) {
        (false, _) => Offer::Given,
        (true, true) => Offer::Store,
        (true, false) => Offer::StoreAndHub,
    };
    let mut entries = match offer {
        Offer::Given => args.models.iter().map(|model| open_entry(model)).collect::<Result<Vec<_>>>()?,
        Offer::Store | Offer::StoreAndHub => library::offered()?,
    };
    rename(&mut entries, &args.models_args.served_model_name)?;
    for (i, entry) in entries.iter().enumerate() {
        if entries[..i].iter().any(|other| other.name == entry.name) {
            return Err(anyhow!("two models are named `{}`", entry.name)).hint("rename one: NAME=MODEL");
        }
    }
    let ModelsArgs { max_loaded, strict_model_names, idle_unload, model_wait, model_turn, .. } = args.models_args;
    let n_models = match offer {
        Offer::Given => max_loaded.min(entries.len()),
        Offer::Store | Offer::StoreAndHub => max_loaded,
    };
    let mut options = args.load.options(Workload::Server(scheduling(&args.scheduling, n_models)));
    options.tells_cache = args.kv.kv_events.is_some();
    options.adapters = add_adapters(&args.adapters, &mut entries)?;
    options.speculate = args.speculation.resolve()?;
    if !args.models_args.in_process {
        super::engine::in_process_of_its_own(&mut options, args.models_args.max_engine_deaths)?;
    }
    let idle_unload = (idle_unload > 0).then(|| Duration::from_secs(idle_unload));
    let turns = TurnLimits { wait: Duration::from_secs(model_wait), turn: Duration::from_secs(model_turn) };
    Ok(Registry::new(entries, options, max_loaded, turns, strict_model_names, idle_unload, offer))
}

/// Offers the adapters beside the model they change; says how much room they need.
fn add_adapters(args: &LoraArgs, entries: &mut Vec<ServedModel>) -> Result<AdapterLimits> {
    if args.lora.is_empty() {
        return Ok(args.limits(&[]));
    }
    let [base] = entries.as_slice() else {
        return Err(anyhow!("--lora is for one model, and {} are served", entries.len()))
            .hint("name the model that the adapters belong to: roci serve MODEL --lora NAME=PATH");
    };
    let adapters = args.open(&base.path)?;
    let mut adapted = Vec::new();
    for (name, adapter) in &adapters {
        if base.is_named(name) || adapted.iter().any(|entry: &ServedModel| entry.is_named(name)) {
            return Err(anyhow!("two models are named `{name}`")).hint("rename the adapter: --lora NAME=PATH");
        }
        adapted.push(server::adapters::entry(base, name, adapter.clone())?);
    }
    let limits = args.limits(&adapters);
    if let Some((name, adapter)) = adapters.iter().find(|(_, adapter)| adapter.rank() > limits.max_rank) {
        return Err(anyhow!(
            "adapter `{name}` has rank {}, more than --max-lora-rank {}",
            adapter.rank(),
            limits.max_rank
        ))
        .hint("omit --max-lora-rank to make room for all adapters of --lora");
    }
    entries.append(&mut adapted);
    Ok(limits)
}

fn scheduling(args: &SchedulingArgs, n_models: usize) -> Scheduling {
    Scheduling {
        max_running: args.max_running,
        max_queue: args.max_queue,
        max_batch_tokens: args.max_batch_tokens,
        prefill_chunk: args.prefill_chunk,
        kv_tokens: args.kv_tokens,
        n_models,
    }
}

/// Serves until a signal ends it and what runs has been drained.
fn run(app: &Arc<App>, listen: Listen, kv_events: Option<kv_events::KvEventSettings>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    let outcome = runtime.block_on(async {
        let listener = server::listen::bind(listen.address).await?;
        if let Some(settings) = kv_events {
            app.models.publish_to(Publisher::bind(&settings, listener.local_addr()?).await?);
        }
        if let Err(error) = app.models.load_first().await {
            return Err(why_not_loaded(app, error.message));
        }
        if let Some(note) = empty_store_note(&app.models) {
            report::note(&note);
        }
        server::run(Arc::clone(app), listener, listen).await
    });
    // Whatever still runs after the drain is not waited for.
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome
}

/// What `roci run` would say of the first model's file, where the file is to blame; else what the server says.
fn why_not_loaded(app: &App, message: String) -> anyhow::Error {
    let first = app.models.entries().into_iter().next();
    let of_file = first.and_then(|entry| model_file::open(&entry.path).err());
    of_file.unwrap_or_else(|| {
        let error = Err::<(), _>(anyhow!(message));
        error.hint("`roci inspect MODEL` shows what the file holds").expect_err("an error stays one")
    })
}

/// What somebody should know whose server has no model yet.
fn empty_store_note(models: &Registry) -> Option<String> {
    let rest = match models.offer() {
        _ if !models.entries().is_empty() => return None,
        Offer::Given => return None,
        Offer::StoreAndHub => {
            "one is downloaded when it is first asked for by name, on the page or through an API: smollm2 (98 MB), qwen3, \
             gemma3, ... (`roci list --all`); `roci pull NAME` downloads it beforehand"
        }
        Offer::Store => "this server downloads nothing itself: `roci pull NAME` does, and it is offered at once",
    };
    Some(format!("no model is here yet; {rest}"))
}

/// What to serve: `NAME=SPEC` or `SPEC`, whose own name is then taken.
fn open_entry(argument: &str) -> Result<ServedModel> {
    let (name, spec) = match argument.split_once('=') {
        Some((name, spec)) if !name.is_empty() && !name.contains(['/', '\\']) => (Some(name), spec),
        _ => (None, argument),
    };
    let resolved = store::resolve_named(spec)?;
    let path = resolved.path;
    let stem = || path.file_stem().map_or_else(|| spec.to_owned(), |stem| stem.to_string_lossy().into_owned());
    let is_path = spec.ends_with(".gguf") || spec.contains(['/', '\\']);
    let name = name.map_or_else(|| if is_path { stem() } else { spec.to_owned() }, str::to_owned);
    Ok(library::named(name, &path, resolved.named.as_ref())?)
}

/// `--served-model-name`: the first name stands instead of the model's own, the others beside it.
fn rename(entries: &mut Vec<ServedModel>, names: &[String]) -> Result<()> {
    let Some((first, others)) = names.split_first() else { return Ok(()) };
    if entries.len() != 1 {
        return Err(anyhow!("--served-model-name is for one model, and {} are served", entries.len()))
            .hint("name each of several models: NAME=MODEL");
    }
    if let Some(entry) = entries.pop() {
        entries.push(entry.renamed(first.clone(), others.to_vec()));
    }
    Ok(())
}

fn listen(args: &Args) -> Result<Listen> {
    let tls = match (&args.access.tls_cert, &args.access.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::open(cert, key)?),
        _ => None,
    };
    Ok(Listen {
        address: SocketAddr::new(args.host, args.port),
        tls,
        times: Timeouts {
            read: Duration::from_secs(args.access.read_timeout.max(1)),
            idle: Duration::from_secs(args.access.idle_timeout.max(1)),
            write: Duration::from_secs(args.access.write_timeout.max(1)),
        },
        max_connections: args.access.max_connections,
        max_per_peer: args.access.max_connections_per_peer.unwrap_or_else(|| args.access.max_connections.div_ceil(2)),
        notice: Duration::from_secs(args.scheduling.drain_notice),
        drain: Duration::from_secs(args.scheduling.drain_timeout),
        reader: None,
    })
}

fn defaults(args: &DefaultsArgs) -> Defaults {
    Defaults {
        temperature: args.default_temperature,
        top_p: args.default_top_p,
        top_k: args.default_top_k,
        min_p: args.default_min_p,
        max_tokens: args.default_max_tokens,
    }
}
