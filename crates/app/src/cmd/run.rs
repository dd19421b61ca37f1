//! `roci run`: one answer to standard output, or a chat. The answer is the only thing on standard
//! output; everything about it goes to standard error.

use crate::chat;
use crate::interrupt;
use crate::model_file;
use crate::options::{Format, LoadArgs, print_json};
use crate::profile;
use crate::report::{self, HintExt, human_bytes};
use crate::sampling_args::SamplingArgs;
use crate::store;
use anyhow::{Context, Result, anyhow};
use rocinante::{
    AnswerEvent, Finish, Message, Model, Next, Piece, Request, Splitter, TokenId, Watch, WholeAnswer, Workload,
};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// How often Ctrl-C is looked for while the model is silent.
const INTERRUPT_POLL: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
Examples:
  roci run smollm2 \"Why is the sky blue?\"            answer once
  roci run smollm2                                   chat; /help shows the commands
  cat notes.txt | roci run smollm2 \"Summarise this\"   text from a pipe stands before the prompt
  roci run smollm2 --file a.rs --file b.rs \"What differs?\"
  roci run smollm2 --raw \"Once upon a time\"          continue this text, without a chat template
  roci run smollm2 --temperature 0 \"2+2=\"            always the most probable answer
  roci run smollm2 --profile=trace.json \"Hi\"          device time of every op
  roci run smollm2 --output json --logprobs 5 \"Hi\"   tokens, log-probabilities and timings
  roci run smollm2 --json-schema person.json \"Ada\"   an answer that matches this schema

Ctrl-C stops the answer; a chat continues.";

/// Ask a model once, or chat with it
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A known name (see `roci list`), a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    pub model: String,
    /// The prompt, appended to piped text and --file; without any of them, start a chat
    pub prompt: Option<String>,
    /// Put the text of a file before the prompt; repeatable
    #[arg(long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Send the prompt as is, without the chat template
    #[arg(long, conflicts_with = "system")]
    pub raw: bool,
    /// Report log-probabilities, including the N best tokens at each step (needs --output json)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub logprobs: Option<u32>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
    /// Print the memory plan, load times and missing fast paths to standard error
    #[arg(short, long)]
    pub verbose: bool,
    /// Measure the device time of every op (GPUs): a table on standard error, and a trace file for chrome://tracing
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = profile::FILE,
          conflicts_with_all = ["debug_sync", "ranges"])]
    pub profile: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

pub fn main(args: &Args) -> Result<()> {
    if args.logprobs.is_some() && args.output != Format::Json {
        return Err(anyhow!("--logprobs needs JSON output")).hint("add --output json");
    }
    let path = store::resolve(&args.model)?;
    let prompt = prompt(args)?;
    if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
        return Err(anyhow!("the prompt is empty"))
            .hint("pass it as an argument or on standard input; at a terminal, omit it to chat");
    }
    let mut options = args.load.options(Workload::Conversation);
    options.measures_loading = args.verbose;
    if args.profile.is_some() {
        options.watch = Watch::Profile;
    }
    if options.watch == Watch::Off {
        // A GPU that faults takes its process along; the answer goes on in the next one.
        super::engine::in_process_for_gpus(&mut options)?;
    }
    let model = model_file::load(&path, &options)?;
    if args.verbose {
        eprintln!("{}", describe(&model));
    }
    if model.template().is_base() && !args.raw {
        report::note("a base model without a chat template: the prompt is continued as plain text");
    }
    let Some(prompt) = prompt else {
        chat::Chat::new(&model, args).run()?;
        return report_profile(&model, args);
    };
    let tokens = if args.raw {
        model.encode_raw(&prompt)
    } else {
        let system = args.system.iter().map(|system| Message::new("system", system.as_str()));
        let messages: Vec<Message> = system.chain([Message::new("user", prompt)]).collect();
        model.chat_prompt(&messages).map_err(|error| model_file::hinted(&path, error))?.tokens
    };
    let seed = args.load.seeded(&args.sampling).pick_seed();
    let request = request(&model, &args.sampling, args.logprobs, seed)?;
    let guard = interrupt::arm()?;
    let mut out = std::io::stdout().lock();
    let is_json = args.output == Format::Json;
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
        eprintln!("{}", summary(&model, &answer));
    }
    report_profile(&model, args)?;
    if guard.is_hit() {
        drop(model);
        std::process::exit(i32::from(interrupt::EXIT_STATUS));
    }
    Ok(())
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
    parts.extend(args.prompt.clone());
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
    interrupt: &interrupt::Guard,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<WholeAnswer> {
    let hinted = |error| model_file::hinted(model.path(), error);
    let splitter = Splitter::plain(model.tokenizer(), request.stop.clone(), false);
    let mut answer = model.answer(prompt, request, splitter).map_err(hinted)?;
    let mut whole = WholeAnswer::default();
    let mut is_cancelled = false;
    loop {
        if interrupt.is_hit() && !is_cancelled {
            is_cancelled = true;
            answer.cancel();
        }
        match answer.next_timeout(INTERRUPT_POLL).map_err(hinted)? {
            Next::TimedOut => {}
            Next::Ended => return Ok(whole),
            Next::Event(event) => {
                if let AnswerEvent::Piece(Piece::Text { text, .. }) = &event {
                    show(text)?;
                }
                whole.add(event);
            }
        }
    }
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
        max_tokens: Some(sampling.max_tokens),
        stop: sampling.stop.clone(),
        logprobs: logprobs.map(|n| n as usize),
        constraint: sampling.form.constraint()?,
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
        "{} prompt tokens{cached}{}, {} generated{}{note}, first token after {:.2} s, {}{memory}",
        usage.n_prompt,
        speed(usage.prompt_speed()),
        usage.n_generated,
        speed(usage.decode_speed()),
        usage.timings.ttft.as_secs_f64(),
        model.device(),
    )
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
        "device": model.device(),
        "threads": model.plan().options.n_threads,
        "peak_memory_bytes": rocinante::peak_bytes(),
    })
}
