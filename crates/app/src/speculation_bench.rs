//! `roci bench --speculate`: how much guessing ahead gains for a text that repeats its prompt (a program is rewritten) and
//! for one that does not (a story). Both are real answers through the engine, in turns with and without guesses.

use crate::cmd::bench::{Args, Samples};
use crate::options::{ReportFormat, print_json};
use crate::progress::{self, Counted};
use crate::report::HintExt;
use crate::{model_file, store};
use anyhow::{Result, anyhow};
use rocinante::{Drafted, Message, Model, Request, Workload};
use serde_json::json;

/// What is asked, under the name it is reported with.
const TASKS: [(&str, &str); 2] = [
    (
        "rewrite",
        "Rename the class `Inventory` to `Warehouse` in this program, and change nothing else. Answer with the whole \
         program.\n\n```python\n",
    ),
    ("story", "Tell a long story about a lighthouse keeper who finds an old map."),
];
const PROGRAM: &str = include_str!("speculation_bench.py");

/// One task with and without guesses.
struct TaskPair {
    task: &'static str,
    off: Samples,
    on: Samples,
    drafted: Drafted,
    /// Whether both gave the same tokens every time.
    is_same: bool,
}

pub fn main(args: &Args) -> Result<()> {
    if args.synthetic.is_some() {
        return Err(anyhow!("--speculate needs a model that writes text")).hint("omit --synthetic and name a model");
    }
    let path = store::resolve(args.model_name())?;
    let mut options = args.load.options(Workload::Conversation);
    options.speculate = args.speculation.resolve()?;
    let model = model_file::load(&path, &options)?;
    let bar = progress::bar("measuring", Some((TASKS.len() * args.repetitions) as u64), Counted::Things);
    let mut pairs = Vec::new();
    for (task, question) in TASKS {
        pairs.push(measure(args, &model, task, question, &bar)?);
    }
    bar.finish_and_clear();
    if args.output == ReportFormat::Json {
        return print_json(&json!({
            "model": args.model_name(),
            "device": model.device(),
            "threads": model.plan().options.n_threads,
            "speculate": options.speculate.to_string(),
            "results": pairs.iter().map(TaskPair::json).collect::<Vec<_>>(),
        }));
    }
    println!("{}, {}, --speculate {}", args.model_name(), model.device(), options.speculate);
    pairs.iter().for_each(|pair| println!("{}", pair.line()));
    Ok(())
}

fn measure(
    args: &Args,
    model: &Model,
    task: &'static str,
    question: &str,
    bar: &indicatif::ProgressBar,
) -> Result<TaskPair> {
    let question = if question.ends_with('\n') { format!("{question}{PROGRAM}```") } else { question.to_owned() };
    let messages = [Message::new("user", question)];
    let samples = || Samples { test: task.to_owned(), n_tokens: args.generate, per_second: Vec::new() };
    let mut pair = TaskPair { task, off: samples(), on: samples(), drafted: Drafted::default(), is_same: true };
    for repetition in 0..=args.repetitions {
        let mut answers = Vec::new();
        for (samples, max_draft) in [(&mut pair.off, Some(0)), (&mut pair.on, None)] {
            let request = Request { max_tokens: Some(args.generate), max_draft, ..Request::default() };
            let answer = model.chat(&messages, request).and_then(|answer| answer.whole());
            let answer = answer.map_err(|error| model_file::hinted(model.path(), error))?;
            // The first of each is a warm-up.
            if let Some(speed) = answer.usage.decode_speed().filter(|_| repetition > 0) {
                samples.per_second.push(speed);
            }
            answers.push(answer);
        }
        pair.drafted += answers[1].usage.drafted;
        pair.is_same &= answers[0].text == answers[1].text;
        bar.inc(u64::from(repetition > 0));
    }
    Ok(pair)
}

impl TaskPair {
    fn gain(&self) -> f64 {
        self.on.median() / self.off.median()
    }

    fn acceptance(&self) -> f64 {
        self.drafted.n_accepted as f64 / self.drafted.n_tokens.max(1) as f64
    }

    fn line(&self) -> String {
        let (low, high) = self.on.range();
        let note = if self.is_same { "" } else { ", another text (see --deterministic)" };
        format!(
            "{:8} {:>8.1} tokens/s without guesses, {:.1} with ({low:.1} to {high:.1}): {:.2}x, {:.0} % of guesses right{note}",
            self.task,
            self.off.median(),
            self.on.median(),
            self.gain(),
            100.0 * self.acceptance(),
        )
    }

    fn json(&self) -> serde_json::Value {
        json!({"test": self.task, "tokens": self.on.n_tokens, "tokens_per_second": self.on.median(),
               "tokens_per_second_off": self.off.median(), "gain": self.gain(), "samples": self.on.per_second,
               "samples_off": self.off.per_second, "draft_tokens": self.drafted.n_tokens,
               "accepted_tokens": self.drafted.n_accepted, "same_text": self.is_same})
    }
}
