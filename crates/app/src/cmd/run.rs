//! `roci run`: one answer to standard output, or a chat. The answer is the only thing on standard
//! output; everything about it goes to standard error. A third of the file declares its flags.

use crate::chat;
use crate::config;
use crate::interrupt;
use crate::keep_args::KeepArgs;
use crate::lora_args::{self, NamedPath, parse_lora};
use crate::model_file;
use crate::options::{self, LoadArgs, ReportFormat, SpeculateArgs, TemplateArgs, Think, print_json};
use crate::profile;
use crate::progress;
use crate::report::{self, HintExt, counted, human_bytes};
use crate::sampling_args::SamplingArgs;
use crate::session::OpenSession;
use crate::store;
use anyhow::{Context, Result, anyhow};
use clap::{Args as _, FromArgMatches};
use hub::{Named, Parameters, Resolved};
use rocinante::{
    Adapter, AnswerEvent, Drafted, Finish, Message, Model, ModelFiles, Next, Piece, Request, Splitter, TokenId, Watch,
    WholeAnswer, Workload,
};
use serde_json::json;
use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A prompt that takes longer than this to read is told about.
const READING_IS_LONG: Duration = Duration::from_millis(400);
/// How often Ctrl-C is looked for while the model is silent.
const INTERRUPT_POLL: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
Examples:
  roci run smollm2 \"Why is the sky blue?\"            answer once
  roci run smollm2                                   chat; /help lists the commands
  cat notes.txt | roci run smollm2 \"Summarise this\"   piped text comes before the prompt
  roci run smollm2 --file a.rs --file b.rs \"What differs?\"
  roci run smollm2 --raw \"Once upon a time\"          continue this text, without a chat template
  roci run smollm2 --temperature 0 \"2+2=\"            always the most probable answer
  roci run smollm2 --session talk \"And why?\"         continue the conversation in the file `talk`
  roci run smollm2 --profile=trace.json \"Hi\"          device time of every op
  roci run smollm2 --output json --logprobs 5 \"Hi\"   tokens, log-probabilities and timings
  roci run smollm2 --json-schema person.json \"Ada\"   an answer that matches this schema
  roci run -m model.gguf -p \"Hi\" -n 64 -c 4096 -t 8   with llama.cpp's flags

Ctrl-C stops the answer; a chat continues.";

/// Ask a model once, or chat with it
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name (see `roci list --all`), a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    #[arg(required_unless_present = "model_flag")]
    pub model: Option<String>,
    /// The prompt, appended to piped text and --file; several words form one prompt; without a prompt, start a chat
    pub prompt: Vec<String>,
    /// The model as a flag, as in llama.cpp
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    pub model_flag: Option<String>,
    /// The prompt as a flag, as in llama.cpp
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", conflicts_with = "prompt")]
    pub prompt_flag: Option<String>,
    /// Put the text of a file before the prompt; repeatable
    #[arg(short, long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Send the prompt as is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "think", "chat_template_file"])]
    pub raw: bool,
    /// Whether the model thinks first, if its template supports that; some models take an effort level
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub think: Option<Think>,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Report log-probabilities, including the N best tokens at each step (needs --output json)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub logprobs: Option<u32>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub output: ReportFormat,
    /// Print the memory plan and load times to standard error
    #[arg(short, long)]
    pub verbose: bool,
    /// Measure the device time of every op (GPUs): a table on standard error, and a trace file for chrome://tracing
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = profile::FILE,
          conflicts_with_all = ["debug_sync", "ranges"])]
    pub profile: Option<PathBuf>,
    /// Use this LoRA adapter: a folder from PEFT or a GGUF file
    #[arg(long, value_name = "PATH", value_parser = parse_lora)]
    pub lora: Option<NamedPath>,
    /// Continue the conversation in this file and save it back at the end, with the model's computed state
    #[arg(long, value_name = "FILE")]
    pub session: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub keep: KeepArgs,
    #[command(flatten)]
    pub speculation: SpeculateArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl Args {
    pub fn model_name(&self) -> &str {
        self.model_flag.as_deref().or(self.model.as_deref()).unwrap_or_default()
    }
}

/// What a name's settings make of the arguments: stronger than the config file, weaker than what was typed.
fn with_settings_of(named: &Named) -> Result<Option<Args>> {
    let settings = arguments_of(&named.parameters);
    if settings.is_empty() && named.system.is_none() {
        return Ok(None);
    }
    let command = Args::augment_args(clap::Command::new("roci run")).no_binary_name(true).args_override_self(true);
    let env = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty());
    let mut before = config::section(&<crate::Cli as clap::CommandFactory>::command(), &command, &env)?;
    before.extend(settings);
    let matches = command.try_get_matches_from(config::typed_with("run", before)).context("the model's settings")?;
    let mut args = Args::from_arg_matches(&matches)?;
    args.system = args.system.or_else(|| named.system.clone());
    Ok(Some(args))
}

/// Ollama's names of settings as ours.
fn arguments_of(parameters: &Parameters) -> Vec<OsString> {
    let mut arguments = Vec::new();
    for (name, value) in parameters {
        let flag = match name.as_str() {
            "repeat_last_n" => "penalty-window".to_owned(),
            "num_ctx" => "context".to_owned(),
            "num_thread" => "threads".to_owned(),
            "mirostat_eta" => "mirostat-rate".to_owned(),
            "num_predict" => "max-tokens".to_owned(),
            // Ours is the target itself.
            "mirostat_tau" => continue,
            "mirostat" if value.as_i64() == Some(0) => continue,
            "mirostat" => {
                let target = parameters.get("mirostat_tau").and_then(serde_json::Value::as_f64).unwrap_or(5.0);
                arguments.push(format!("--mirostat={target}").into());
                continue;
            }
            other => other.replace('_', "-"),
        };
        for value in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            arguments.push(format!("--{flag}={text}").into());
        }
    }
    arguments
}

/// What every conversation with this model starts with.
pub fn beginning(system: Option<&str>, named: &Named) -> Vec<Message> {
    let system = system.map(|system| Message::new("system", system));
    let turns = named.messages.iter().map(|turn| Message::new(turn.role.as_str(), turn.content.as_str()));
    system.into_iter().chain(turns).collect()
}

pub fn main(args: &Args) -> Result<()> {
    if args.logprobs.is_some() && args.output != ReportFormat::Json {
        return Err(anyhow!("--logprobs needs JSON output")).hint("add --output json");
    }
    options::check_verbosity(args.verbose)?;
    args.sampling.warn();
    let Resolved { path, named, .. } = store::resolve_named(args.model_name())?;
    let named = named.unwrap_or_default();
    let with_named = with_settings_of(&named)?;
    let args = with_named.as_ref().unwrap_or(args);
    let prompt = prompt(args)?;
    if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
        return Err(anyhow!("the prompt is empty"))
            .hint("pass it as an argument or on standard input; at a terminal, omit it to chat");
    }
    if args.raw && args.session.is_some() && prompt.is_none() {
        return Err(anyhow!("--raw --session needs a prompt")).hint("leave out --raw to chat");
    }
    let mut session = args.session.as_deref().map(|path| OpenSession::open(path, args.raw)).transpose()?;
    let mut options = args.load.options(Workload::Conversation);
    let adapter = adapter(args, &path)?;
    if let Some(adapter) = &adapter {
        options.adapters = adapter.room();
    }
    options.chat_template = args.template.text()?.or_else(|| named.template.clone());
    options.speculate = args.speculation.resolve()?;
    options.measures_loading = args.verbose;
    options.keep = args.keep.keep(args.session.clone());
    if args.profile.is_some() {
        options.watch = Watch::Profile;
    }
    if options.watch == Watch::Off {
        // A GPU that faults takes its process along; the answer continues in the next one.
        super::engine::in_own_process_for_gpus(&mut options)?;
    }
    let model = model_file::load(&path, &options)?;
    if args.verbose {
        eprintln!("{}", describe(&model));
    }
    if model.template().is_base() && !args.raw {
        report::note("a base model without a chat template: the prompt is continued as plain text");
    }
    let Some(prompt) = prompt else {
        let mut chat = chat::Chat::new(model, args, options, named).with_adapter(adapter).with_session(session);
        chat.run()?;
        return chat.model().map_or(Ok(()), |model| report_profile(model, args));
    };
    let mut said = session.as_ref().map(OpenSession::messages).unwrap_or_default();
    let tokens = if args.raw {
        let before = session.as_mut().map(|session| session.conversation.raw.get_or_insert_default());
        match before {
            Some(text) => {
                text.push_str(&prompt);
                model.encode_raw(text)
            }
            None => model.encode_raw(&prompt),
        }
    } else {
        said.push(Message::new("user", prompt));
        let system = session.as_ref().and_then(|session| session.conversation.system.clone());
        let system = args.system.clone().or(system);
        session.iter_mut().for_each(|session| session.conversation.system = system.clone());
        let messages: Vec<Message> = beginning(system.as_deref(), &named).into_iter().chain(said.clone()).collect();
        let options = Think::render_options(args.think);
        model.prompt(&messages, &options).map_err(|error| model_file::hinted(&path, error))?.tokens
    };
    let seed = args.load.seeded(&args.sampling).pick_seed();
    let request = Request { adapter, ..request(&model, &args.sampling, args.logprobs, seed)? };
    let guard = interrupt::arm()?;
    let mut out = std::io::stdout().lock();
    let is_json = args.output == ReportFormat::Json;
    let answer = generate(&model, tokens.clone(), &request, &guard, &mut |text| {
        if !is_json {
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    if is_json {
        drop(out);
        print_json(&answer_json(&model, &tokens, &request, &answer, seed))?;
    } else {
        if !answer.text.ends_with('\n') {
            writeln!(out)?;
        }
        report::note_line(&summary(&model, &answer));
        if args.verbose {
            guesses(&answer).into_iter().for_each(|line| report::note_line(&line));
        }
    }
    if let Some(mut session) = session {
        match &mut session.conversation.raw {
            Some(text) => text.push_str(&answer.text),
            None => {
                said.push(Message::new("assistant", answer.text.as_str()));
                session.set_messages(&said);
            }
        }
        let answered = answer.tokens.iter().map(|step| step.token);
        let all: Vec<TokenId> = tokens.iter().copied().chain(answered).collect();
        session.save(&model, &all, request.adapter.as_ref())?;
    }
    report_profile(&model, args)?;
    if guard.is_hit() {
        drop(model);
        std::process::exit(i32::from(interrupt::EXIT_STATUS));
    }
    Ok(())
}

/// The adapter that was asked for, checked against the model.
fn adapter(args: &Args, path: &Path) -> Result<Option<Adapter>> {
    let Some(lora) = &args.lora else { return Ok(None) };
    let files = ModelFiles::open(path).map_err(|error| model_file::hinted(path, error))?;
    lora_args::open(&lora.path, &files).map(Some)
}

/// Everything that was given to say: files, a pipe, and the prompt, with empty lines between; `None`: a chat.
fn prompt(args: &Args) -> Result<Option<String>> {
    let mut parts = Vec::new();
    for file in &args.file {
        parts.push(super::tokenize::read_text(file)?.trim_end_matches('\n').to_owned());
    }
    let stdin = if std::io::stdin().is_terminal() { None } else { Some(read_stdin()?) };
    let has_stdin = stdin.is_some();
    parts.extend(stdin.filter(|text| !text.trim().is_empty()));
    // With `-m MODEL` the first word that is no flag belongs to the prompt. Words without quotes are one prompt.
    let first = args.model_flag.as_ref().and(args.model.clone());
    let words: Vec<String> = first.into_iter().chain(args.prompt.clone()).collect();
    parts.extend(args.prompt_flag.clone());
    parts.extend((!words.is_empty()).then(|| words.join(" ")));
    Ok((has_stdin || !parts.is_empty()).then(|| parts.join("\n\n")))
}

/// The memory plan and what it is for, for `-v`.
fn describe(model: &Model) -> String {
    let plan = model.plan();
    let (path, n_train) = (model.path().display(), plan.n_ctx_train);
    let mut lines = vec![format!("{path}: {}, trained for {n_train} tokens", model.device()), plan.lines()];
    lines.extend(plan.device.absent.iter().cloned());
    if model.template().is_missing() && !model.template().is_base() {
        lines.push("the file has no chat template, using ChatML".to_owned());
    }
    lines.join("\n")
}

/// Generates; `show` gets the text as it grows, never half a character. Ctrl-C ends the answer with what it has.
pub fn generate(
    model: &Model,
    prompt: Vec<TokenId>,
    request: &Request,
    interrupt: &interrupt::InterruptGuard,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<WholeAnswer> {
    let hinted = |error| model_file::hinted(model.path(), error);
    let splitter = Splitter::plain(model.tokenizer(), request.stop.clone(), false);
    let n_prompt = prompt.len();
    let mut answer = model.answer(prompt, request, splitter).map_err(hinted)?;
    let mut whole = WholeAnswer::default();
    let start = Instant::now();
    let mut reading: Option<indicatif::ProgressBar> = None;
    let mut is_cancelled = false;
    loop {
        if interrupt.is_hit() && !is_cancelled {
            is_cancelled = true;
            answer.cancel();
        }
        match answer.next_timeout(INTERRUPT_POLL).map_err(hinted)? {
            Next::TimedOut => {
                // A short prompt is read before anybody wonders.
                if whole.tokens.is_empty() && reading.is_none() && start.elapsed() > READING_IS_LONG {
                    reading = Some(progress::spinner(format!("reading {}", counted(n_prompt, "token"))));
                }
            }
            Next::Ended => return Ok(whole),
            Next::Event(AnswerEvent::Progress { n_read, n_prompt }) => {
                if start.elapsed() > READING_IS_LONG {
                    reading_bar(&mut reading, n_prompt).set_position(n_read as u64);
                }
            }
            Next::Event(event) => {
                if let Some(spinner) = reading.take() {
                    spinner.finish_and_clear();
                }
                if let AnswerEvent::Piece(Piece::Text { text, .. }) = &event {
                    show(text)?;
                }
                whole.add(event);
            }
        }
    }
}

/// The bar of a long prompt, in place of a spinner that may be there.
fn reading_bar(reading: &mut Option<indicatif::ProgressBar>, n_prompt: usize) -> &indicatif::ProgressBar {
    if let Some(spinner) = reading.take_if(|shown| shown.length().is_none()) {
        spinner.finish_and_clear();
    }
    reading.get_or_insert_with(|| progress::bar("reading", Some(n_prompt as u64), progress::Counted::Things))
}

fn report_profile(model: &Model, args: &Args) -> Result<()> {
    let (Some(path), Some((steps, limits))) = (&args.profile, model.take_profile()) else { return Ok(()) };
    profile::write_trace(path, &steps, &limits)?;
    eprintln!("{}\n  {} for chrome://tracing", profile::table(&steps, &limits), path.display());
    Ok(())
}

/// What was typed about the answer.
pub fn request(model: &Model, sampling: &SamplingArgs, logprobs: Option<u32>, seed: u64) -> Result<Request> {
    Ok(Request {
        sampling: sampling.sampling(seed, model.tokenizer()),
        max_tokens: sampling.max_tokens(),
        stop: sampling.stop.clone(),
        logprobs: logprobs.map(|n| n as usize),
        constraint: sampling.form.constraint()?,
        progress: true,
        ..Request::default()
    })
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    let text = String::from_utf8(bytes).context("standard input is not UTF-8 text")?;
    // What a shell adds is not meant.
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

/// Why an answer ended, for programs.
fn reason_name(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::StopString | Finish::ToolCalls => "stop",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::Cancelled => "cancelled",
    }
}

/// Where it was made; a GPU may have been given up on the way.
fn device(model: &Model) -> &str {
    match model.engine_status().is_some_and(|status| status.has_fallen_back) {
        true => "the CPU, after the GPU was given up",
        false => model.device(),
    }
}

/// The one line after an answer.
pub fn summary(model: &Model, answer: &WholeAnswer) -> String {
    let usage = &answer.usage;
    let speed = |speed: Option<f64>| speed.map(|speed| format!(" ({speed:.1}/s)")).unwrap_or_default();
    let cached = match usage.n_cached {
        0 => String::new(),
        n => format!(", {n} of them cached"),
    };
    let note = match answer.finish {
        Finish::Length => ", ended by --max-tokens",
        Finish::Context => ", ended by the context",
        Finish::Cancelled => ", stopped",
        _ => "",
    };
    let memory = rocinante::peak_bytes().map(|n| format!(", {} peak memory", human_bytes(n))).unwrap_or_default();
    format!(
        "{}{cached}{}, {} generated{}{note}, first token after {:.2} s, {}{memory}",
        counted(usage.n_prompt, "prompt token"),
        speed(usage.prompt_speed()),
        usage.n_generated,
        speed(usage.decode_speed()),
        usage.timings.ttft.as_secs_f64(),
        device(model),
    )
}

/// What speculation did for an answer, for `-v`.
pub fn guesses(answer: &WholeAnswer) -> Option<String> {
    let Drafted { n_drafts, n_tokens, n_accepted } = answer.usage.drafted;
    let acceptance = answer.usage.acceptance()?;
    // Every token that was guessed right is one that needed no step of its own.
    let n_steps = (answer.usage.n_generated as u64).saturating_sub(n_accepted).max(1);
    let per_step = answer.usage.n_generated as f64 / n_steps as f64;
    Some(format!(
        "{n_accepted} of {n_tokens} guessed tokens right ({:.0} %) in {n_drafts} steps, {per_step:.2} tokens per step",
        100.0 * acceptance
    ))
}

fn answer_json(
    model: &Model,
    prompt: &[TokenId],
    request: &Request,
    answer: &WholeAnswer,
    seed: u64,
) -> serde_json::Value {
    let piece = |token: TokenId| model.tokenizer().token_text(token.0);
    let logprobs = request.logprobs.map(|_| {
        let steps = answer.tokens.iter().map(|step| {
            let top = step
                .top
                .iter()
                .map(|&(token, logprob)| json!({"token": token.0, "piece": piece(token), "logprob": logprob}));
            json!({"token": step.token.0, "piece": piece(step.token), "logprob": step.logprob,
                   "top": top.collect::<Vec<_>>()})
        });
        steps.collect::<Vec<_>>()
    });
    let (usage, timings) = (&answer.usage, &answer.usage.timings);
    json!({
        "model": model.path(),
        "text": answer.text,
        "tokens": answer.tokens.iter().map(|step| step.token.0).collect::<Vec<_>>(),
        "finish_reason": reason_name(answer.finish),
        "prompt_tokens": prompt.iter().map(|token| token.0).collect::<Vec<_>>(),
        "logprobs": logprobs,
        "seed": seed,
        "timings": {
            "load_s": model.load_time().as_secs_f64(),
            "prompt_n": usage.n_prompt,
            "prompt_cached_n": usage.n_cached,
            "prompt_s": timings.prefill.as_secs_f64(),
            "prompt_per_second": usage.prompt_speed(),
            "generated_n": usage.n_generated,
            "generated_s": timings.decode.as_secs_f64(),
            "generated_per_second": usage.decode_speed(),
            "first_token_s": timings.ttft.as_secs_f64(),
        },
        "speculation": {
            "drafts": usage.drafted.n_drafts,
            "draft_tokens": usage.drafted.n_tokens,
            "accepted_tokens": usage.drafted.n_accepted,
        },
        "device": device(model),
        "threads": model.plan().options.n_threads,
        "peak_memory_bytes": rocinante::peak_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ollamas_settings_are_ours() {
        let recipe = "FROM x\nPARAMETER temperature 0.5\nPARAMETER num_ctx 2048\nPARAMETER num_predict -1\n\
                      PARAMETER mirostat 2\nPARAMETER mirostat_tau 4\nPARAMETER stop a\nPARAMETER stop \"b c\"\n\
                      PARAMETER repeat_last_n 32\n";
        let found = arguments_of(&hub::Modelfile::parse(recipe).unwrap().parameters);
        let expected = [
            "--mirostat=4",
            "--context=2048",
            "--max-tokens=-1",
            "--penalty-window=32",
            "--stop=a",
            "--stop=b c",
            "--temperature=0.5",
        ];
        assert_eq!(found, expected.map(OsString::from));
        // Each is one that the command line takes.
        let command = Args::augment_args(clap::Command::new("run")).no_binary_name(true);
        command.try_get_matches_from(found.into_iter().chain(["model".into()])).unwrap();
    }
}
