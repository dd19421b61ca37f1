//! `roci serve`: models behind an HTTP API. What was typed, the environment and the settings file become one
//! [`Args`]; what it means for the server is built here, and `server` runs it.

mod args;

use crate::lora_args::LoraArgs;
use crate::report::{self, HintExt};
use crate::{model_file, serve_config as config, store};
use anyhow::{Context, Result, anyhow};
pub use args::Args;
use args::{DefaultsArgs, ModelsArgs, SchedulingArgs};
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
use server::openai::store::ResponseStore;
use server::origin::OriginPolicy;
use server::reload::ReloadedSettings;
use server::sampling::Defaults;
use server::traces::{self, Collector};
use server::{App, log, metrics};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
fn read_again(typed: &Args) -> Result<ReloadedSettings> {
    let args = Args::from_arg_matches(&read(typed)?.1?)?;
    let keys = args.access.api_key_file.as_deref().map(Keys::open).transpose()?.unwrap_or_default();
    if typed.access.api_key_file.is_some() && keys.all().is_empty() {
        return Err(anyhow!("no key is required anymore")).hint("restart the server to run it without keys");
    }
    Ok(ReloadedSettings { keys, rate: args.access.rate, concurrent: args.access.concurrent })
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
    options.chat_template = args.template.text()?;
    options.keep = args.keep.keep(None);
    options.tells_cache = args.kv.kv_events.is_some();
    options.adapters = add_adapters(&args.adapters, &mut entries)?;
    options.speculate = args.speculation.resolve()?;
    if !args.models_args.in_process {
        super::engine::in_child_process(&mut options, args.models_args.max_engine_deaths)?;
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
        return Err(anyhow!("--lora works with one model, but {} are served", entries.len()))
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
        return Err(anyhow!("--served-model-name works with one model, but {} are served", entries.len()))
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
        seed: args.default_seed,
    }
}
