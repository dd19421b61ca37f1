//! `roci serve`: models behind an HTTP API. What was typed, the environment and the settings file become one
//! [`Args`]; what it means for the server is built here, and `server` runs it.

use crate::options::LoadArgs;
use crate::report::HintExt;
use crate::server::connection::Times;
use crate::server::gate::Gate;
use crate::server::json::BodyLimits;
use crate::server::keys::Keys;
use crate::server::listen::{Listen, Tls};
use crate::server::models::{Registry, open_entry};
use crate::server::openai::store::{Store, Unknown};
use crate::server::origin::Policy;
use crate::server::sampling::Defaults;
use crate::server::traces::{self, Collector};
use crate::server::{self, App, config, log, metrics};
use anyhow::{Context, Result, anyhow};
use clap::{Args as _, FromArgMatches};
use rocinante::{Scheduling, Workload};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  roci serve smollm2                       then open http://127.0.0.1:8080; programs ask /v1
  roci serve chat=a.gguf code=b.gguf       two models by name, loaded when asked for
  roci key new --name alice --file keys    a key for others, and a server that asks for it:
  roci serve smollm2 --api-key-file keys --host 0.0.0.0
  roci serve --config roci.toml            settings from a file: the flags without dashes
  roci serve smollm2 --print-config        the settings that hold, as such a file

Every flag can be given as a variable: --max-queue is ROCI_MAX_QUEUE; ROCI_MODELS names models
with commas between. A flag is stronger than a variable, a variable stronger than the file.
More: docs/serving.md, docs/operators.md.";

/// Serve models over HTTP
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to serve: a known name, the path of a GGUF file or hf:OWNER/REPO[:FILE], each as NAME=MODEL for another name
    pub models: Vec<String>,
    /// Address to listen on; one that others can reach needs --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Settings in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show the settings that hold and end
    #[arg(long)]
    pub print_config: bool,
    #[command(flatten)]
    pub models_args: ModelsArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub scheduling: SchedulingArgs,
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub sampling: DefaultsArgs,
    #[command(flatten)]
    pub logs: LogArgs,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Models")]
pub struct ModelsArgs {
    /// Models in memory at once; the one unused longest leaves for another
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub max_loaded: usize,
    /// Unload a model that nobody used for so many seconds; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub idle_unload: u64,
    /// A model's name must be one of those served; without it a single model answers to any name
    #[arg(long)]
    pub strict_model_names: bool,
    /// Responses, and as many chat completions, that are kept in memory
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_stored: usize,
    /// Send embeddings as numbers also to clients that ask for base64
    #[arg(long)]
    pub no_base64: bool,
    /// What to do with a previous_response_id that is not known
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub unknown_responses: Unknown,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Scheduling")]
pub struct SchedulingArgs {
    /// Requests that generate at once [default: 64 on a CPU, 256 on a GPU]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_running: Option<usize>,
    /// Requests that may wait; one more is answered with 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub max_queue: usize,
    /// Tokens in one step of the model [default: 512 on a CPU, up to 8448 on a GPU, by its memory]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_batch_tokens: Option<usize>,
    /// Prompt tokens in a step that also generates: smaller keeps streams even, larger reads prompts faster
    /// [default: 128 on a CPU, up to 8192 on a GPU]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub prefill_chunk: Option<usize>,
    /// Tokens in the pool of keys and values that all requests share [default: eight contexts on a CPU, what is free on
    /// a GPU]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub kv_tokens: Option<usize>,
    /// A request that runs longer ends with what it has
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub request_timeout: u64,
    /// How long requests in flight may go on after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_timeout: u64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// Clients must send one of the keys in this file (see `roci key new`)
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Listen where others can reach it without asking for keys
    #[arg(long)]
    pub allow_anyone: bool,
    /// Show /metrics without a key
    #[arg(long)]
    pub open_metrics: bool,
    /// Requests a minute of one key that has no rate of its own [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Requests at once of one key that has no such limit of its own [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent: Option<u32>,
    /// Certificate chain in PEM, for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Web pages from this origin may ask; may be repeated; `*`: any [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
    /// Serve requests that address this host by NAME, where no key is asked for; may be repeated; `*`: any [default:
    /// addresses, names without a dot, .localhost, .local and .internal]
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
    /// Largest body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = positive)]
    pub max_body: usize,
    /// How long a request's headers, and then its body, may take to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub read_timeout: u64,
    /// How long a connection may stay open without a request
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub idle_timeout: u64,
    /// A client that reads nothing of its answer for so long is cut off
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub write_timeout: u64,
    /// Connections at once; those that have been idle longest make room for new ones
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub max_connections: usize,
    /// Connections at once from one address [default: half of --max-connections]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_connections_per_peer: Option<usize>,
    /// Serve no page to browsers
    #[arg(long)]
    pub no_web: bool,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "For requests that do not say")]
pub struct DefaultsArgs {
    /// Temperature
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub default_temperature: f32,
    /// Nucleus: the fewest tokens whose probabilities add up to P; 1: all
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub default_top_p: f32,
    /// The K most probable tokens only; 0: all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub default_top_k: usize,
    /// Drop tokens less probable than P times the best; 0: none. Small models at OpenAI's temperature of 1 lose their
    /// thread without it
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub default_min_p: f32,
    /// Longest answer [default: until the context is full]
    #[arg(long, value_name = "TOKENS")]
    pub default_max_tokens: Option<usize>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logs and traces")]
pub struct LogArgs {
    /// Which messages: error, warn, info, debug, or a filter of tracing
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
    /// How they look
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: log::Format,
    /// Write prompts and answers into the log too
    #[arg(long)]
    pub log_prompts: bool,
    /// Send spans to the OpenTelemetry collector at this address (OTLP over HTTP), such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a number from 1".to_owned())
}

pub fn main(typed: &Args) -> Result<()> {
    let command = Args::augment_args(clap::Command::new("roci serve")).no_binary_name(true).args_override_self(true);
    let file = typed.config.clone().or_else(|| std::env::var_os("ROCI_CONFIG").map(PathBuf::from));
    let mut arguments = config::arguments(&command, file.as_deref(), &|name| std::env::var_os(name))?;
    let own: Vec<OsString> = std::env::args_os().skip_while(|arg| arg != "serve").skip(1).collect();
    if !typed.models.is_empty() {
        // Models that were typed stand instead of the others.
        arguments.retain(|argument| argument.to_string_lossy().starts_with("--"));
    }
    arguments.extend(own);
    let matches = command.clone().try_get_matches_from(arguments).unwrap_or_else(|error| error.exit());
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if args.print_config {
        print!("{}", config::print(&command, &matches));
        return Ok(());
    }
    serve(&args)
}

fn serve(args: &Args) -> Result<()> {
    if args.models.is_empty() {
        return Err(anyhow!("there is nothing to serve")).hint("roci serve MODEL..., or `models = [...]` in --config");
    }
    let listen = listen(args)?;
    let keys = args.access.api_key_file.as_deref().map(Keys::open).transpose()?.unwrap_or_default();
    if !args.host.is_loopback() && keys.all().is_empty() && !args.access.allow_anyone {
        return Err(anyhow!("{} can be reached by others, and no key is asked for", args.host)).hint(
            "make a key with `roci key new --name NAME --file keys.txt` and add --api-key-file keys.txt, or add \
             --allow-anyone",
        );
    }
    log::install(&args.logs.log_level, args.logs.log_format)?;
    if let Some(collector) = Collector::from_env(args.logs.otlp_endpoint.as_deref(), &|name| std::env::var(name).ok()) {
        traces::install(collector);
    }
    let entries = args.models.iter().map(|model| open_entry(model)).collect::<Result<Vec<_>>>()?;
    for (i, entry) in entries.iter().enumerate() {
        if entries[..i].iter().any(|other| other.name == entry.name) {
            return Err(anyhow!("two models are named `{}`", entry.name)).hint("give one another name: NAME=MODEL");
        }
    }
    let scheduling = &args.scheduling;
    let options = args.load.options(Workload::Server(Scheduling {
        max_running: scheduling.max_running,
        max_queue: scheduling.max_queue,
        max_batch_tokens: scheduling.max_batch_tokens,
        prefill_chunk: scheduling.prefill_chunk,
        kv_tokens: scheduling.kv_tokens,
        n_models: args.models_args.max_loaded.min(entries.len()),
    }));
    let models = Registry::new(entries, options, args.models_args.max_loaded, args.models_args.strict_model_names);
    let pages = Policy {
        has_keys: !keys.all().is_empty(),
        hosts: args.access.allowed_host.clone(),
        origins: args.access.cors_origin.clone(),
    };
    let mut gate = Gate::new(keys, args.access.rate, args.access.concurrent);
    gate.metrics_need_key = !args.access.open_metrics;
    let app = Arc::new(App {
        models,
        gate,
        defaults: defaults(&args.sampling),
        fingerprint: format!("roci-{}", env!("CARGO_PKG_VERSION")),
        body: BodyLimits::new(args.access.max_body << 20, Duration::from_secs(args.access.read_timeout)),
        request_time: Duration::from_secs(args.scheduling.request_timeout.max(1)),
        log_prompts: args.logs.log_prompts,
        has_base64: !args.models_args.no_base64,
        has_page: !args.access.no_web,
        pages,
        store: Store::new(args.models_args.max_stored, args.models_args.unknown_responses),
        chats: Store::new(args.models_args.max_stored, args.models_args.unknown_responses),
        metrics: Some(metrics::install()?),
        state: server::health::State::default(),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    let idle = (args.models_args.idle_unload > 0).then(|| Duration::from_secs(args.models_args.idle_unload));
    let outcome = runtime.block_on(async {
        let listener = server::listen::bind(listen.address).await?;
        if let Err(error) = app.models.load_first().await {
            return Err(anyhow!(error.message)).hint("`roci inspect MODEL` shows what the file holds");
        }
        server::run(Arc::clone(&app), listener, listen, idle).await
    });
    // Whatever still runs after the drain is not waited for.
    runtime.shutdown_timeout(Duration::from_secs(2));
    traces::shut_down();
    outcome
}

fn listen(args: &Args) -> Result<Listen> {
    let tls = match (&args.access.tls_cert, &args.access.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::open(cert, key)?),
        _ => None,
    };
    Ok(Listen {
        address: SocketAddr::new(args.host, args.port),
        tls,
        times: Times {
            read: Duration::from_secs(args.access.read_timeout.max(1)),
            idle: Duration::from_secs(args.access.idle_timeout.max(1)),
            write: Duration::from_secs(args.access.write_timeout.max(1)),
        },
        max_connections: args.access.max_connections,
        max_per_peer: args.access.max_connections_per_peer.unwrap_or_else(|| args.access.max_connections.div_ceil(2)),
        drain: Duration::from_secs(args.scheduling.drain_timeout),
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
