//! `roci run`: one answer to standard output, or a chat. The answer is the only thing on standard
//! output; everything about it goes to standard error.

use crate::chat;
use crate::interrupt;
use crate::machine;
use crate::options::{Format, LoadArgs, print_json};
use crate::profile;
use crate::report::{HintExt, human_bytes};
use crate::sampling_args::SamplingArgs;
use crate::session::{Answer, Detail, Profiling, Request, Session};
use crate::store;
use anyhow::{Context, Result, anyhow};
use model::TokenId;
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use text::Message;

const EXAMPLES: &str = "\
Examples:
  roci run smollm2 \"Why is the sky blue?\"            answer once
  roci run smollm2                                   chat; /help shows the commands
  cat notes.txt | roci run smollm2 --system \"Summarise\"
  roci run smollm2 --raw \"Once upon a time\"          go on with this text, no chat template
  roci run smollm2 --temperature 0 \"2+2=\"            the most probable answer, always the same
  roci run smollm2 --profile=trace.json \"Hi\"          device time of every op
  roci run smollm2 --output json --logprobs 5 \"Hi\"   tokens, log-probabilities and timings
  roci run smollm2 --json-schema person.json \"Ada\"   an answer of this form

Ctrl-C stops the answer; in a chat the program goes on.";

/// Ask a model once, or chat with it
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A known name (see `roci list`), the path of a GGUF file, or hf:OWNER/REPO[:FILE]
    pub model: String,
    /// What to say to the model; without it: standard input if that is no terminal, else a chat
    pub prompt: Option<String>,
    /// How the model should behave
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Send the prompt as it is, without the model's chat template
    #[arg(long, conflicts_with = "system")]
    pub raw: bool,
    /// Report log-probabilities, with those of the N best tokens at each step (needs --output json)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub logprobs: Option<u32>,
    /// What to write to standard output
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
    /// Say more on standard error: the memory plan, how loading went, fast paths that are missing
    #[arg(short, long)]
    pub verbose: bool,
    /// Take the device time of every op (GPUs): a table on standard error, and a file for chrome://tracing
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
        return Err(anyhow!("--logprobs has nowhere to go")).hint("add --output json");
    }
    let path = store::resolve(&args.model)?;
    let is_chat = args.prompt.is_none() && std::io::stdin().is_terminal();
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None if is_chat => String::new(),
        None => read_stdin()?,
    };
    if !is_chat && prompt.trim().is_empty() {
        return Err(anyhow!("the prompt is empty"))
            .hint("give it as an argument or on standard input; at a terminal, leave it out for a chat");
    }
    let detail = if args.verbose { Detail::Much } else { Detail::Little };
    let profiling = if args.profile.is_some() { Profiling::EachOp } else { Profiling::Off };
    let session = Session::open(&path, &args.load, detail, profiling)?;
    if args.verbose {
        eprintln!("{}", session.describe());
    }
    if is_chat {
        chat::Chat::new(&session, args).run()?;
        return report_profile(&session, args);
    }
    let tokens = if args.raw {
        session.encode_raw(&prompt)
    } else {
        let system = args.system.iter().map(|system| Message::new("system", system.as_str()));
        session.encode_chat(&system.chain([Message::new("user", prompt)]).collect::<Vec<_>>())?
    };
    let seed = args.sampling.pick_seed();
    let request = request(&session, args, tokens, seed)?;
    let guard = interrupt::arm()?;
    let mut out = std::io::stdout().lock();
    let is_json = args.output == Format::Json;
    let answer = session.generate(&request, &guard, &mut |text| {
        if !is_json {
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    if is_json {
        drop(out);
        print_json(&answer_json(&session, &request, &answer, seed))?;
    } else {
        if !answer.text.ends_with('\n') {
            writeln!(out)?;
        }
        eprintln!("{}", summary(&session, &answer));
    }
    report_profile(&session, args)?;
    if guard.is_hit() {
        drop(session);
        std::process::exit(i32::from(interrupt::EXIT_STATUS));
    }
    Ok(())
}

fn report_profile(session: &Session, args: &Args) -> Result<()> {
    let (Some(path), Some((steps, limits))) = (&args.profile, session.take_profile()) else { return Ok(()) };
    profile::write_trace(path, &steps, &limits)?;
    eprintln!("{}\n  {} for chrome://tracing", profile::table(&steps, &limits), path.display());
    Ok(())
}

pub fn request(session: &Session, args: &Args, prompt: Vec<TokenId>, seed: u64) -> Result<Request> {
    Ok(Request {
        prompt,
        sampling: args.sampling.sampling(seed, &session.tokenizer),
        max_tokens: args.sampling.max_tokens,
        stop: args.sampling.stop.clone(),
        logprobs: args.logprobs.map(|n| n as usize),
        constraint: args.sampling.form.constraint()?,
    })
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    let text = String::from_utf8(bytes).context("standard input is not UTF-8 text")?;
    // What a shell adds is not meant.
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

/// The one line after an answer.
pub fn summary(session: &Session, answer: &Answer) -> String {
    let usage = &answer.usage;
    let speed = |speed: Option<f64>| speed.map(|speed| format!(" ({speed:.1}/s)")).unwrap_or_default();
    let cached = match usage.n_cached_prompt {
        0 => String::new(),
        n => format!(", {n} of them cached"),
    };
    let note = match answer.reason_name() {
        "length" => ", ended by --max-tokens",
        "context" => ", ended by the context",
        "cancelled" => ", stopped",
        _ => "",
    };
    let memory = machine::peak_bytes().map(|n| format!(", {} peak memory", human_bytes(n))).unwrap_or_default();
    format!(
        "{} prompt tokens{cached}{}, {} generated{}{note}, first token after {:.2} s, {}{memory}",
        usage.n_prompt,
        speed(answer.prompt_speed()),
        usage.n_generated,
        speed(answer.decode_speed()),
        usage.timings.ttft.as_secs_f64(),
        session.device,
    )
}

fn answer_json(session: &Session, request: &Request, answer: &Answer, seed: u64) -> serde_json::Value {
    let piece = |token: TokenId| session.tokenizer.token_text(token.0);
    let logprobs = request.logprobs.map(|_| {
        let steps = answer.steps.iter().map(|step| {
            let top = step
                .top
                .iter()
                .map(|&(token, logprob)| json!({"token": token.0, "piece": piece(token), "logprob": logprob}));
            json!({"token": step.token.0, "piece": piece(step.token), "logprob": step.logprob,
                   "top": top.collect::<Vec<_>>()})
        });
        steps.collect::<Vec<_>>()
    });
    let timings = &answer.usage.timings;
    json!({
        "model": session.path,
        "text": answer.text,
        "tokens": answer.steps.iter().map(|step| step.token.0).collect::<Vec<_>>(),
        "finish_reason": answer.reason_name(),
        "prompt_tokens": request.prompt.iter().map(|token| token.0).collect::<Vec<_>>(),
        "logprobs": logprobs,
        "seed": seed,
        "timings": {
            "load_s": session.load_time.as_secs_f64(),
            "prompt_n": answer.usage.n_prompt,
            "prompt_cached_n": answer.usage.n_cached_prompt,
            "prompt_s": timings.prefill.as_secs_f64(),
            "prompt_per_second": answer.prompt_speed(),
            "generated_n": answer.usage.n_generated,
            "generated_s": timings.decode.as_secs_f64(),
            "generated_per_second": answer.decode_speed(),
            "first_token_s": timings.ttft.as_secs_f64(),
        },
        "device": session.device,
        "threads": session.plan.options.n_threads,
        "peak_memory_bytes": machine::peak_bytes(),
    })
}
