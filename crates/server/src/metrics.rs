//! What an operator sees at `/metrics`: counters and histograms as requests go by, gauges read from the engines when
//! asked. The figures that routers of several servers read (llm-d, the Gateway API's inference extension) stand under
//! vLLM's names too.

use super::App;
use super::llama;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use rocinante::{Finish, Finished};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS: [f64; 19] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

const TOKENS: [f64; 14] =
    [1.0, 4.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32768.0, 131072.0];

/// A gauge that has not been set for this long belongs to a model that was unloaded, and is no longer shown.
const GAUGE_LIFE: Duration = Duration::from_secs(1);

/// Starts recording; once in a process.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_tokens".into()), &TOKENS)?;
    let handle = builder.idle_timeout(MetricKindMask::GAUGE, Some(GAUGE_LIFE)).install_recorder()?;
    describe();
    Ok(handle)
}

/// What stands above each metric on the page. Those under vLLM's names are described by vLLM.
fn describe() {
    describe_histogram!("roci_time_to_first_token_seconds", "From a request's arrival to its first token");
    describe_histogram!("roci_inter_token_seconds", "Between two tokens of an answer");
    describe_histogram!("roci_queue_time_seconds", "From a request's arrival to its first step");
    describe_histogram!("roci_http_request_seconds", "From a request's headers to the last byte of its answer");
    describe_counter!("roci_http_requests_total", "Requests that were answered, by route and status");
    describe_counter!("roci_requests_refused_total", "Requests that were told to come back later");
    describe_counter!("roci_answers_abandoned_total", "Answers whose client went away");
    describe_counter!("roci_engine_deaths_total", "Processes of engines that died");
    describe_counter!("roci_engine_requests_resumed_total", "Requests that continued in the next process");
    describe_counter!("roci_engine_requests_refused_total", "Requests refused because they crash engines");
    describe_gauge!("roci_engine_up", "Whether the engine of a loaded model is up");
    describe_counter!("roci_answers_total", "Answers that ended, by why");
    describe_counter!("roci_prompt_tokens_total", "Tokens of prompts, cached ones too");
    describe_counter!("roci_generated_tokens_total", "Tokens of answers");
    describe_counter!("roci_prefix_hit_tokens_total", "Tokens of prompts that were in the cache");
    describe_counter!("roci_engine_steps_total", "Passes through the model");
    describe_counter!("roci_engine_tokens_computed_total", "Tokens that went through the model");
    describe_counter!("roci_engine_tokens_reused_total", "Tokens that were in the cache instead");
    describe_counter!("roci_engine_logits_rows_total", "Rows of logits that were read back to choose a token from");
    describe_counter!("roci_engine_masks_total", "Grammar masks computed while the device computed their step");
    describe_counter!("roci_engine_masks_late_total", "Of those, masks that their step went on without");
    describe_counter!("roci_engine_masks_wait_us_total", "How long steps waited for masks, in microseconds");
    describe_counter!("roci_engine_preemptions_total", "Requests put back for others, to be computed again");
    describe_counter!("roci_engine_failures_total", "Requests that the engine could not finish");
    describe_gauge!("roci_requests_running", "Requests in the engine's steps now");
    describe_gauge!("roci_requests_waiting", "Requests in the queue now");
    describe_gauge!(
        "roci_kv_used_ratio",
        "Part of the blocks of keys and values that requests hold, 0 to 1, of the fuller pool"
    );
    describe_gauge!("roci_kv_blocks", "Blocks of keys and values there are");
    describe_gauge!("roci_kv_blocks_held", "Blocks that requests hold");
    describe_gauge!("roci_kv_blocks_cached", "Blocks that are kept for prompts that begin alike");
    describe_gauge!("roci_kv_window_blocks", "Blocks of the pool for layers with a window, where these have one");
    describe_gauge!("roci_kv_window_blocks_held", "Those of them that requests hold");
    describe_gauge!("roci_kept_blocks", "Blocks and states that are kept outside the pool, by where: host or disk");
    describe_gauge!("roci_kept_bytes", "What they take");
    describe_counter!("roci_kept_restored_total", "Blocks and states that went back to the pool, by where from");
    describe_counter!("roci_kept_broken_total", "Kept blocks that were cut, changed or gone, and computed again");
    describe_counter!("roci_kept_dropped_total", "Blocks that were not kept because the disk did not take them");
    describe_gauge!("roci_weights_bytes", "Memory of the model's weights");
    describe_gauge!("roci_kv_bytes", "Memory of its keys and values");
    describe_gauge!("roci_scratch_bytes", "Memory for its steps");
    describe_gauge!("roci_memory_resident_bytes", "Memory of this process that is in RAM");
    describe_histogram!("vllm:e2e_request_latency_seconds", "From a request's arrival to its last token");
    describe_histogram!("vllm:request_prefill_time_seconds", "From a request's first step to its first token");
    describe_histogram!("vllm:request_decode_time_seconds", "From a request's first token to its last");
    describe_histogram!("vllm:request_inference_time_seconds", "From a request's first step to its last token");
    describe_histogram!("vllm:request_time_per_output_token_seconds", "A request's decode time by its tokens");
    describe_histogram!("vllm:request_prompt_tokens", "Tokens of a request's prompt");
    describe_histogram!("vllm:request_generation_tokens", "Tokens that a request generated");
    describe_counter!("roci_key_tokens_total", "Tokens that the requests of a key took");
    describe_counter!("roci_key_requests_total", "Requests of a key");
    describe_gauge!("roci_kept_bytes", "What the server keeps for clients, reckoned");
    describe_gauge!("roci_models_loaded", "Models in memory; names of one file are one");
    describe_counter!("roci_kv_events_total", "Changes of prefix caches that were published");
    describe_counter!("roci_kv_events_skipped_total", "Batches of them that a slow reader did not get");
    describe_gauge!("roci_info", "The version of this program");
}

/// A request was told to come back later.
pub fn refused() {
    counter!("roci_requests_refused_total").increment(1);
}

/// A client went away before its answer was whole.
pub fn abandoned(model: &str, n_prompt: usize, n_generated: usize) {
    counter!("roci_answers_abandoned_total").increment(1);
    for name in ["roci_prompt_tokens_total", "vllm:prompt_tokens_total"] {
        counter!(name, "model_name" => model.to_owned()).increment(n_prompt as u64);
    }
    for name in ["roci_generated_tokens_total", "vllm:generation_tokens_total"] {
        counter!(name, "model_name" => model.to_owned()).increment(n_generated as u64);
    }
}

/// Tokens that a key's requests took, those its clients gave up included.
pub fn key_tokens(key: &str, n_prompt: usize, n_generated: usize) {
    for (kind, n) in [("prompt", n_prompt), ("generated", n_generated)] {
        counter!("roci_key_tokens_total", "key" => key.to_owned(), "kind" => kind).increment(n as u64);
    }
}

pub fn key_request(key: &str, status: u16) {
    counter!("roci_key_requests_total", "key" => key.to_owned(), "status" => status.to_string()).increment(1);
}

pub fn first_token(model: &str, after: Duration) {
    let model = model.to_owned();
    histogram!("roci_time_to_first_token_seconds", "model_name" => model.clone()).record(after);
    histogram!("vllm:time_to_first_token_seconds", "model_name" => model).record(after);
}

pub fn next_token(model: &str, after: Duration) {
    let model = model.to_owned();
    histogram!("roci_inter_token_seconds", "model_name" => model.clone()).record(after);
    histogram!("vllm:inter_token_latency_seconds", "model_name" => model).record(after);
}

/// Why an answer ended, as operators are told.
pub fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::StopString | Finish::ToolCalls => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Cancelled => "cancelled",
    }
}

pub fn finished(model: &str, finished: &Finished) {
    let (model, reason, usage) = (model.to_owned(), reason(finished.finish), &finished.usage);
    counter!("roci_answers_total", "model_name" => model.clone(), "finished_reason" => reason).increment(1);
    counter!("vllm:request_success_total", "model_name" => model.clone(), "finished_reason" => reason).increment(1);
    for name in ["roci_prompt_tokens_total", "vllm:prompt_tokens_total"] {
        counter!(name, "model_name" => model.clone()).increment(usage.n_prompt as u64);
    }
    for name in ["roci_generated_tokens_total", "vllm:generation_tokens_total"] {
        counter!(name, "model_name" => model.clone()).increment(usage.n_generated as u64);
    }
    for name in ["roci_prefix_hit_tokens_total", "vllm:prefix_cache_hits_total"] {
        counter!(name, "model_name" => model.clone()).increment(usage.n_cached as u64);
    }
    counter!("vllm:prefix_cache_queries_total", "model_name" => model.clone()).increment(usage.n_prompt as u64);
    for name in ["roci_queue_time_seconds", "vllm:request_queue_time_seconds"] {
        histogram!(name, "model_name" => model.clone()).record(usage.timings.queue);
    }
    llama::TOTALS.answered(usage);
    let engine::Timings { queue, prefill, decode, .. } = usage.timings;
    let per_token = decode.as_secs_f64() / usage.n_generated.saturating_sub(1).max(1) as f64;
    for (name, value) in [
        ("vllm:e2e_request_latency_seconds", (queue + prefill + decode).as_secs_f64()),
        ("vllm:request_prefill_time_seconds", prefill.as_secs_f64()),
        ("vllm:request_decode_time_seconds", decode.as_secs_f64()),
        ("vllm:request_inference_time_seconds", (prefill + decode).as_secs_f64()),
        ("vllm:request_time_per_output_token_seconds", per_token),
        ("vllm:request_prompt_tokens", usage.n_prompt as f64),
        ("vllm:request_generation_tokens", usage.n_generated as f64),
    ] {
        histogram!(name, "model_name" => model.clone()).record(value);
    }
}

/// An engine's process died; so many of its requests go on in the next one. Without a death, the counters begin at 0.
pub fn engine_died(model: &str, n_deaths: u64, n_kept: usize, n_refused: usize) {
    let labels = [("model_name", model.to_owned())];
    counter!("roci_engine_deaths_total", &labels).increment(n_deaths);
    counter!("roci_engine_requests_resumed_total", &labels).increment(n_kept as u64);
    counter!("roci_engine_requests_refused_total", &labels).increment(n_refused as u64);
}

pub fn request(route: &str, status: u16, elapsed: Duration) {
    let (route, status) = (route.to_owned(), status.to_string());
    counter!("roci_http_requests_total", "route" => route.clone(), "status" => status).increment(1);
    histogram!("roci_http_request_seconds", "route" => route).record(elapsed);
}

/// The page for Prometheus: the gauges as they are now, and everything recorded.
pub fn render(app: &App) -> String {
    let Some(handle) = &app.metrics else { return String::new() };
    gauge!("roci_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!("roci_memory_resident_bytes").set(resident_bytes() as f64);
    for (what, n_bytes) in kept(app) {
        gauge!("roci_kept_bytes", "what" => what).set(n_bytes as f64);
    }
    gauge!("roci_models_loaded").set(app.models.n_engines() as f64);
    for model in app.models.loaded() {
        let (stats, name) = (model.engine().latest_stats(), model.name.clone());
        let labels = || [("model_name", name.clone())];
        let used = stats.kv_used_ratio();
        for (name, value) in [
            ("roci_requests_running", stats.n_running as f64),
            ("vllm:num_requests_running", stats.n_running as f64),
            ("roci_requests_waiting", stats.n_waiting as f64),
            ("vllm:num_requests_waiting", stats.n_waiting as f64),
            ("roci_kv_used_ratio", used),
            ("vllm:kv_cache_usage_perc", used),
            ("roci_kv_blocks", stats.n_blocks as f64),
            ("roci_kv_blocks_held", stats.n_blocks_held as f64),
            ("roci_kv_blocks_cached", stats.n_blocks_cached as f64),
            ("roci_kv_window_blocks", stats.n_window_blocks as f64),
            ("roci_kv_window_blocks_held", stats.n_window_blocks_held as f64),
            ("roci_weights_bytes", model.plan().memory().weights_bytes as f64),
            ("roci_kv_bytes", model.plan().memory().kv_bytes as f64),
            ("roci_scratch_bytes", model.plan().memory().scratch_bytes as f64),
            ("roci_engine_up", f64::from(u8::from(model.is_up()))),
        ] {
            gauge!(name, &labels()).set(value);
        }
        let engine::Kept { sizes, .. } = stats.kept;
        let at = |place: &'static str| [("model_name", name.clone()), ("place", place.to_owned())];
        gauge!("roci_kept_blocks", &at("host")).set(sizes.n_on_host as f64);
        gauge!("roci_kept_blocks", &at("disk")).set(sizes.n_on_disk as f64);
        gauge!("roci_kept_bytes", &at("host")).set(sizes.host_bytes as f64);
        gauge!("roci_kept_bytes", &at("disk")).set(sizes.disk_bytes as f64);
        for note in model.notes() {
            gauge!("roci_model_note_info", "model_name" => name.clone(), "note" => note.clone()).set(1.0);
        }
        let config = [
            ("model_name", name.clone()),
            ("block_size", model::BLOCK_TOKENS.to_string()),
            ("num_gpu_blocks", stats.n_blocks.to_string()),
        ];
        gauge!("vllm:cache_config_info", &config).set(1.0);
    }
    for entry in app.models.entries() {
        let stats = entry.counters();
        let labels = || [("model_name", entry.name.clone())];
        for (name, value) in [
            ("roci_engine_steps_total", stats.n_steps),
            ("roci_engine_tokens_computed_total", stats.n_tokens_computed),
            ("roci_engine_tokens_reused_total", stats.n_tokens_cached),
            ("roci_engine_preemptions_total", stats.n_preemptions),
            ("vllm:num_preemptions_total", stats.n_preemptions),
            ("vllm:spec_decode_num_drafts_total", stats.drafted.n_drafts),
            ("vllm:spec_decode_num_draft_tokens_total", stats.drafted.n_tokens),
            ("vllm:spec_decode_num_accepted_tokens_total", stats.drafted.n_accepted),
            ("roci_engine_failures_total", stats.n_failed),
            ("roci_engine_logits_rows_total", stats.n_logits_read),
            ("roci_engine_masks_total", stats.masks.n_rows),
            ("roci_engine_masks_late_total", stats.masks.n_late),
            ("roci_engine_masks_wait_us_total", stats.masks.wait.as_micros() as u64),
            ("roci_kept_broken_total", stats.kept.counters.n_broken),
            ("roci_kept_dropped_total", stats.kept.counters.n_dropped),
        ] {
            counter!(name, &labels()).absolute(value);
        }
        let restored = [("host", stats.kept.counters.n_from_host), ("disk", stats.kept.counters.n_from_disk)];
        for (place, value) in restored {
            let labels = [("model_name", entry.name.clone()), ("place", place.to_owned())];
            counter!("roci_kept_restored_total", &labels).absolute(value);
        }
    }
    handle.run_upkeep();
    handle.render() + &iteration_tokens(app) + &lora_info(app) + &llama::TOTALS.render(app)
}

/// Which adapters are asked for, under vLLM's name and in its labels; the value is the time. Written by hand, since a
/// recorder would keep a series for every set of names there ever was.
fn lora_info(app: &App) -> String {
    const NAME: &str = "vllm:lora_requests_info";
    let names = |ids: &[engine::AdapterId]| {
        ids.iter().filter_map(|&id| app.models.adapter_name(id)).collect::<Vec<_>>().join(",")
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut lines = String::new();
    for model in app.models.loaded() {
        let max_loaded = model.plan().options.adapters.max_loaded;
        if max_loaded == 0 || model.preset.adapted.is_some() {
            continue;
        }
        let stats = model.engine().latest_stats();
        let (running, waiting) = (names(&stats.running_adapters), names(&stats.waiting_adapters));
        let labels =
            format!("running_lora_adapters={running:?},waiting_lora_adapters={waiting:?},max_lora=\"{max_loaded}\"");
        lines.push_str(&format!("{NAME}{{{labels}}} {now}\n"));
    }
    match lines.is_empty() {
        true => lines,
        false => format!("# HELP {NAME} Adapters of running and of waiting requests\n# TYPE {NAME} gauge\n{lines}"),
    }
}

/// A histogram that engines count themselves, in Prometheus's words.
fn iteration_tokens(app: &App) -> String {
    const NAME: &str = "vllm:iteration_tokens_total";
    let mut text = format!("# HELP {NAME} Rows of a pass through the model\n# TYPE {NAME} histogram\n");
    for entry in app.models.entries() {
        let (stats, model) = (entry.counters(), &entry.name);
        let mut n_steps = 0;
        let bounds = engine::STEP_BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, n) in bounds.zip(stats.n_steps_by_rows) {
            n_steps += n;
            text.push_str(&format!("{NAME}_bucket{{model_name={model:?},le=\"{bound}\"}} {n_steps}\n"));
        }
        text.push_str(&format!("{NAME}_sum{{model_name={model:?}}} {}\n", stats.n_tokens_computed));
        text.push_str(&format!("{NAME}_count{{model_name={model:?}}} {n_steps}\n"));
    }
    text
}

/// What the server keeps for clients, in bytes.
pub fn kept(app: &App) -> [(&'static str, usize); 4] {
    let constraints = app.models.loaded().map(|model| model.constraint_bytes()).sum();
    [
        ("responses", app.store.n_bytes()),
        ("chats", app.chats.n_bytes()),
        ("constraints", constraints),
        ("bodies", app.body.used_bytes()),
    ]
}

/// Memory of this process that is in RAM.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
