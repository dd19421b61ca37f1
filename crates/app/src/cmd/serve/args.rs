//! The flags of `roci serve`, in the groups that `--help` shows. Each can also be a variable or a line of the settings file
//! ([`crate::serve_config`]).

use crate::keep_args::KeepArgs;
use crate::kv_args::KvArgs;
use crate::lora_args::LoraArgs;
use crate::options::{LoadArgs, SpeculateArgs, TemplateArgs};
use server::log;
use server::openai::store::UnknownResponse;
use server::sampling::Defaults;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  roci serve                               all downloaded models, and well-known names on demand
  roci serve smollm2                       open http://127.0.0.1:8080; programs use /v1
  roci serve chat=a.gguf code=b.gguf       two models by name; the second is loaded on first use
  roci key new --name alice --file keys    create a key, then require it:
  roci serve smollm2 --api-key-file keys --host 0.0.0.0
  roci serve --config roci.toml            settings from a file (flags without dashes)
  roci serve smollm2 --print-config        print the settings in effect as such a file

Every flag can be set as an environment variable: --max-queue is ROCI_MAX_QUEUE; ROCI_MODELS lists models,
separated by commas. Flags override variables, and variables override the file.
See docs/user/serve.md and docs/operator/server.md.";

/// Serve models over HTTP
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Models to serve [default: all downloaded ones]: a well-known name, a file, a folder of safetensors or
    /// hf:OWNER/REPO[:FILE]; NAME=MODEL renames one
    pub models: Vec<String>,
    /// A model as a flag, as in llama.cpp; repeatable
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
    pub template: TemplateArgs,
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
    pub keep: KeepArgs,
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
    /// How long a request waits for its model when memory is full, not counting the time to load
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub model_wait: u64,
    /// How long a model in use stays in memory when another one is requested and memory is full
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub model_turn: u64,
    /// Run engines inside the server instead of in separate processes; a crash then ends the server
    #[arg(long)]
    pub in_process: bool,
    /// Give up on a model when its engine's process has died this often in ten minutes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = positive)]
    pub max_engine_deaths: usize,
    /// Serve a single model under this name instead of its own; repeatable, for several names
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Vec<String>,
    /// Without models and keys: serve only downloaded models, and download nothing on demand
    #[arg(long)]
    pub no_pull: bool,
    /// Reject unknown model names; otherwise a single model accepts any name
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
    /// Send embeddings as numbers even to clients that request base64
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
    /// Maximum number of waiting requests; any more get 429
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
    /// End a request after this time with what it has generated
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub request_timeout: u64,
    /// Time between SIGTERM, when /ready turns to 503, and refusing connections
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub drain_notice: u64,
    /// Time for requests in flight to finish after SIGTERM
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
    /// Disconnect a client that does not read its answer for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub write_timeout: u64,
    /// Maximum number of connections; the longest idle ones are closed for new ones
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
    #[arg(long, value_name = "T", default_value_t = Defaults::default().temperature)]
    pub default_temperature: f32,
    /// Sample from the smallest set of tokens whose probabilities add up to P; 1: all
    #[arg(long, value_name = "P", default_value_t = Defaults::default().top_p)]
    pub default_top_p: f32,
    /// Sample from the K most probable tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = Defaults::default().top_k)]
    pub default_top_k: usize,
    /// Drop tokens less probable than P times the most probable one; 0: none. Without it, small models derail at
    /// OpenAI's temperature of 1
    #[arg(long, value_name = "P", default_value_t = Defaults::default().min_p)]
    pub default_min_p: f32,
    /// Maximum length of an answer [default: until the context is full]
    #[arg(long, value_name = "TOKENS")]
    pub default_max_tokens: Option<usize>,
    /// Seed of requests without one, so that the same request gets the same answer [default: random]
    #[arg(long, value_name = "N")]
    pub default_seed: Option<u64>,
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
