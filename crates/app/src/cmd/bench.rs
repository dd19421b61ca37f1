//! `roci bench`: how fast a model reads a prompt and generates, on this machine. Drives the model
//! directly with made-up tokens: no tokenizer, no sampling, no scheduler in the figures.

use crate::drive::{StepDriver, TokenSpan, WantedLogits};
use crate::machine::Cpu;
use crate::options::{LoadArgs, ReportFormat, SpeculateArgs, print_json};
use crate::progress::{self, Counted};
use crate::report::{self, HintExt, human_bytes};
use crate::{model_file, profile, store};
use anyhow::{Context, Result, anyhow};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rocinante::{ModelFiles, Speculate, StepSizes, Workload};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  roci bench smollm2
  roci bench smollm2 --depth 4096             generation with 4,096 tokens already in the context
  roci bench smollm2 --batch 16               16 sequences decoded together (total tokens/s)
  roci bench smollm2 --points 1@0,1@4096,32@512    several of these, as SEQUENCES@DEPTH
  roci bench --synthetic llama-1b --weights Q4_K --save 1b.gguf    random weights, no model needed
  roci bench --synthetic qwen3-30b-a3b --layers 12 --weights Q4_K_M
  roci bench smollm2 --speculate ngram -n 256    real text, with and without guessed tokens
  roci bench smollm2 --output json

Figures are medians over random tokens. On a GPU every generation step chooses the best token, which the next step takes,
and is queued before the one in front has been read, as in `roci run` and `roci serve`.";

/// Prompt tokens in one step, on a CPU and on a GPU.
const PROMPT_STEP: usize = 512;
const GPU_PROMPT_STEP: usize = 2048;

/// Types for random weights, under the name that was typed.
#[derive(Debug, Clone)]
struct Weights {
    name: String,
    recipe: model::Recipe,
}

/// Measure speed
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    #[arg(required_unless_present_any = ["synthetic", "model_flag"], conflicts_with = "synthetic")]
    model: Option<String>,
    /// The model as a flag, as in llama.cpp
    #[arg(short = 'm', long = "model", value_name = "MODEL", conflicts_with_all = ["model", "synthetic"])]
    model_flag: Option<String>,
    /// Prompt tokens; 0 skips this measurement
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Tokens to generate; 0 skips this measurement
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub generate: usize,
    /// Tokens already in the context
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Sequences decoded together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count)]
    batch: usize,
    /// Several batches and depths with the same model, as SEQUENCES@DEPTH,...
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_point, conflicts_with_all = ["batch", "depth"])]
    points: Vec<Point>,
    /// Decode this many steps with a changing batch, and check that device memory does not grow
    #[arg(long, value_name = "STEPS")]
    soak: Option<usize>,
    /// Repetitions of each measurement, after one warm-up
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = parse_count)]
    pub repetitions: usize,
    /// Use random weights of this shape instead of a model
    #[arg(long, value_name = "SYNTHETIC", value_parser = shapes(), requires = "weights")]
    pub synthetic: Option<model::Synthetic>,
    /// Number of layers of the random model [default: as many as the shape has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "synthetic")]
    layers: Option<u32>,
    /// Type of the random weights: any GGUF type (F16, Q4_0, Q6_K, IQ2_XXS, ...) or Q4_K_M
    #[arg(long, value_name = "TYPE", value_parser = parse_recipe, requires = "synthetic")]
    weights: Option<Weights>,
    /// Write the random model to a GGUF file
    #[arg(long, value_name = "FILE", requires = "synthetic")]
    save: Option<PathBuf>,
    /// Measure the device time of each op for one generated token (GPUs), and write a trace file for chrome://tracing
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = profile::FILE)]
    profile: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub output: ReportFormat,
    /// Print the memory plan and load times to standard error
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub speculation: SpeculateArgs,
}

/// Shapes that can be made up, by name.
fn shapes() -> impl TypedValueParser<Value = model::Synthetic> {
    let kinds = model::Synthetic::ALL.into_iter().filter(|kind| *kind != model::Synthetic::Tiny);
    PossibleValuesParser::new(kinds.map(model::Synthetic::name))
        .map(|name| model::Synthetic::from_name(&name).expect("one of the names above"))
}

fn parse_recipe(text: &str) -> Result<Weights, String> {
    let recipe =
        model::Recipe::from_name(text).ok_or("expected a GGUF type (F16, Q4_0, Q6_K, IQ2_XXS, ...) or Q4_K_M")?;
    Ok(Weights { name: text.to_uppercase(), recipe })
}

/// Sequences decoded together, and the tokens each of them has before.
#[derive(Debug, Clone, Copy)]
struct Point {
    batch: usize,
    depth: usize,
}

impl Args {
    pub fn model_name(&self) -> &str {
        self.model.as_deref().or(self.model_flag.as_deref()).unwrap_or_default()
    }
}

impl Point {
    /// Tokens of a sequence at the end of the measurement.
    fn n_ctx(self, args: &Args) -> usize {
        self.depth + args.prompt.max(args.generate).max(1)
    }
}

fn parse_point(text: &str) -> Result<Point, String> {
    let (batch, depth) = text.split_once('@').unwrap_or((text, "0"));
    let depth = depth.parse().map_err(|_| "expected SEQUENCES@DEPTH, such as 8@512".to_owned())?;
    Ok(Point { batch: parse_count(batch)?, depth })
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

/// Tokens per second of one measurement, each time it was made.
pub struct Samples {
    pub test: String,
    pub n_tokens: usize,
    pub per_second: Vec<f64>,
}

impl Samples {
    pub fn median(&self) -> f64 {
        let mut sorted = self.per_second.clone();
        sorted.sort_by(f64::total_cmp);
        let mid = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[mid] } else { (sorted[mid - 1] + sorted[mid]) / 2.0 }
    }

    pub fn range(&self) -> (f64, f64) {
        let fold = |start, f: fn(f64, f64) -> f64| self.per_second.iter().copied().fold(start, f);
        (fold(f64::INFINITY, f64::min), fold(0.0, f64::max))
    }
}

pub fn main(args: &Args) -> Result<()> {
    if args.speculation.speculate.as_ref().is_some_and(|how| *how != Speculate::Off) {
        return crate::speculation_bench::main(args);
    }
    let (name, files) = open(args)?;
    let start = Instant::now();
    let one = [Point { batch: args.batch, depth: args.depth }];
    let points = if args.points.is_empty() { &one[..] } else { &args.points };
    crate::options::check_verbosity(args.verbose)?;
    let max_batch = points.iter().map(|point| point.batch).max().unwrap_or(1);
    // The pool is shared: enough for the point that needs the most.
    let n_blocks = points.iter().map(|point| point.batch * point.n_ctx(args).div_ceil(model::BLOCK_TOKENS)).max();
    let n_ctx = n_blocks.unwrap_or(1).div_ceil(max_batch) * model::BLOCK_TOKENS;
    if let Some(asked) = args.load.context.filter(|asked| (*asked as usize) < n_ctx) {
        return Err(anyhow!("--context {asked} is less than the {n_ctx} tokens of the measurement"))
            .hint("omit --context, or use a smaller --depth, --prompt or --generate");
    }
    let load_args =
        LoadArgs { context: Some(u32::try_from(n_ctx).context("--depth is too large")?), ..args.load.clone() };
    let choice = args.load.device.choose().choice;
    let prompt_step = if choice == model::DeviceChoice::Cpu { PROMPT_STEP } else { GPU_PROMPT_STEP };
    let max_batch_tokens = prompt_step.max(max_batch);
    let steps = StepSizes { n_sequences: max_batch, max_batch_tokens, max_logits_rows: max_batch };
    let options = load_args.options(Workload::Steps(steps));
    let (driver, plan) = StepDriver::load(&files, &options, max_batch, n_ctx)?;
    let device = driver.model().device();
    let load_s = start.elapsed().as_secs_f64();
    if args.verbose {
        eprintln!("{}", plan.lines());
        if let Some(line) = rocinante::describe_loading(driver.model())? {
            eprintln!("{line}");
        }
    }
    let mut bench = Bench { n_vocab: driver.model().config().n_vocab, driver, args, prompt_step, point: points[0] };
    let (mut samples, mut profiled) = (Vec::new(), Vec::new());
    for point in points {
        bench.point = *point;
        bench.driver.assign_blocks(point.batch, point.n_ctx(args));
        samples.extend(bench.run()?);
        if args.profile.is_some() {
            profiled.extend(bench.profile()?);
        }
    }
    if let (Some(path), Some((_, limits))) = (&args.profile, profiled.first()) {
        let steps: Vec<_> = profiled.iter().map(|(step, _)| step.clone()).collect();
        profile::write_trace(path, &steps, limits)?;
    }
    if let Some(n_steps) = args.soak {
        bench.driver.assign_blocks(max_batch, n_ctx);
        let soaked = crate::soak::run(&mut bench.driver, choice, n_steps, max_batch, n_ctx)?;
        eprintln!("{soaked}");
    }
    let file_bytes = files.checkpoint().file_bytes();
    let subject = Subject { name, file_bytes, device, n_threads: plan.options.n_threads, first: points[0], load_s };
    if args.output == ReportFormat::Json {
        return print_json(&subject.json(args, &samples));
    }
    subject.print(&samples)?;
    let mut out = std::io::stdout().lock();
    for note in bench.driver.model().notes() {
        writeln!(out, "note: {note}")?;
    }
    for (step, limits) in profiled {
        writeln!(out, "{}", profile::table(&[step], &limits))?;
    }
    Ok(())
}

/// What was measured.
struct Subject {
    name: String,
    file_bytes: u64,
    device: String,
    n_threads: usize,
    /// The first point of the measurement.
    first: Point,
    load_s: f64,
}

impl Subject {
    fn json(&self, args: &Args, samples: &[Samples]) -> serde_json::Value {
        let results = samples.iter().map(|samples| {
            json!({"test": samples.test, "tokens": samples.n_tokens, "tokens_per_second": samples.median(),
                   "samples": samples.per_second})
        });
        json!({
            "model": self.name,
            "file_bytes": self.file_bytes,
            "weights": args.weights.as_ref().map(|weights| &weights.name),
            "device": self.device,
            "cpu": Cpu::detect().name,
            "threads": self.n_threads,
            "kv_type": format!("{:?}", args.load.kv_type).to_lowercase(),
            "deterministic": args.load.deterministic,
            "prompt": args.prompt,
            "generate": args.generate,
            "depth": self.first.depth,
            "batch": self.first.batch,
            "load_s": self.load_s,
            "peak_memory_bytes": rocinante::peak_bytes(),
            "results": results.collect::<Vec<_>>(),
        })
    }

    fn print(&self, samples: &[Samples]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let size = human_bytes(self.file_bytes);
        writeln!(out, "{}, {size}, {}, loaded in {:.2} s", self.name, self.device, self.load_s)?;
        for samples in samples {
            let (low, high) = samples.range();
            writeln!(out, "{:24} {:>9.1} tokens/s  ({low:.1} to {high:.1})", samples.test, samples.median())?;
        }
        Ok(())
    }
}

fn open(args: &Args) -> Result<(String, ModelFiles)> {
    let (Some(shape), Some(weights)) = (args.synthetic, &args.weights) else {
        let spec = args.model_name();
        let sizes = StepSizes { n_sequences: 1, max_batch_tokens: 1, max_logits_rows: 1 };
        let files = model_file::open_with(&store::resolve(spec)?, &args.load.options(Workload::Steps(sizes)))?;
        return Ok((spec.to_owned(), files));
    };
    let name = match args.layers {
        Some(n) => format!("{} ({n} layers)", shape.name()),
        None => shape.name().to_owned(),
    };
    let spinner = progress::spinner(format!("making {name} with random {} weights", weights.name));
    let checkpoint = model::synthetic_layers(shape, args.layers, weights.recipe, 1)?;
    if let Some(path) = &args.save {
        spinner.set_message(format!("writing {}", path.display()));
        let n_bytes = checkpoint.tensors().iter().map(|tensor| tensor.bytes.len() as u64).sum();
        hub::disk::check_room(path, n_bytes)?;
        ::weights::GgufWriter::copy(path, &checkpoint).map_err(report::writing(path, Some(n_bytes)))?;
    }
    spinner.finish_and_clear();
    let name = format!("{name} {}", weights.name);
    Ok((name.clone(), ModelFiles::of(checkpoint, name.into())))
}

struct Bench<'a> {
    driver: StepDriver,
    args: &'a Args,
    prompt_step: usize,
    n_vocab: usize,
    point: Point,
}

impl Bench<'_> {
    fn run(&mut self) -> Result<Vec<Samples>> {
        let args = self.args;
        let Point { batch, depth } = self.point;
        let at = if depth > 0 { format!(" at depth {depth}") } else { String::new() };
        let by = if batch > 1 { format!(" x {batch}") } else { String::new() };
        let samples = |test, n_tokens| Samples { test, n_tokens, per_second: Vec::new() };
        // Among several points, the prompt is measured where one sequence has the machine for itself.
        let n_prompt = if args.points.is_empty() || batch == 1 { args.prompt } else { 0 };
        let mut prompt = samples(format!("prompt {n_prompt}{at}"), n_prompt);
        let mut generate = samples(format!("generate {}{by}{at}", args.generate), args.generate * batch);
        if n_prompt == 0 && args.generate == 0 {
            return Ok(Vec::new());
        }
        let bar = progress::bar("measuring", Some(1 + args.repetitions as u64), Counted::Things);
        bar.tick();
        // What lies before the depth stays as it is: it is written once.
        for seq_idx in 0..batch {
            let tokens = self.tokens(depth, seq_idx);
            self.driver.feed(seq_idx, 0, &tokens)?;
        }
        for repetition in 0..=args.repetitions {
            // In turns, so that a machine that gets slower hits both alike.
            for (samples, is_prompt) in [(&mut prompt, true), (&mut generate, false)] {
                if samples.n_tokens == 0 {
                    continue;
                }
                let start = Instant::now();
                if is_prompt {
                    self.prompt()?
                } else {
                    self.generate()?
                }
                let per_second = samples.n_tokens as f64 / start.elapsed().as_secs_f64();
                if repetition > 0 {
                    samples.per_second.push(per_second);
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok([prompt, generate].into_iter().filter(|samples| samples.n_tokens > 0).collect())
    }

    /// The prompt of one sequence, with the logits of its last token.
    fn prompt(&mut self) -> Result<()> {
        let tokens = self.tokens(self.args.prompt, 0);
        let n_fed = (tokens.len() - 1) / self.prompt_step * self.prompt_step;
        self.driver.feed(0, self.point.depth, &tokens[..n_fed])?;
        let last = TokenSpan { seq_idx: 0, start: self.point.depth + n_fed, tokens: &tokens[n_fed..] };
        self.driver.step(&[last], WantedLogits::Last)?;
        Ok(())
    }

    /// One token after the other in every sequence: made up, or what the device chose in the step before.
    fn generate(&mut self) -> Result<()> {
        let tokens: Vec<Vec<u32>> = (0..self.point.batch).map(|seq| self.tokens(self.args.generate, seq)).collect();
        self.driver.generate(self.point.depth, &tokens)
    }

    /// One decode step, op by op.
    fn profile(&mut self) -> Result<Option<(model::StepProfile, model::DeviceLimits)>> {
        let tokens: Vec<[u32; 1]> = (0..self.point.batch).map(|seq| [self.tokens(1, seq)[0]]).collect();
        let start = self.point.depth;
        let spans: Vec<TokenSpan<'_>> =
            tokens.iter().enumerate().map(|(seq_idx, tokens)| TokenSpan { seq_idx, start, tokens }).collect();
        self.driver.profile(&spans)
    }

    /// Made-up tokens, the same in every run.
    fn tokens(&self, n_tokens: usize, seq_idx: usize) -> Vec<u32> {
        let mut state = 0x9e37_79b9_u32 ^ seq_idx as u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((u64::from(state) * self.n_vocab as u64) >> 32) as u32
        };
        std::iter::repeat_with(next).take(n_tokens).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let check = |per_second: &[f64], expected| {
            let samples = Samples { test: String::new(), n_tokens: 1, per_second: per_second.to_vec() };
            assert_eq!(samples.median(), expected);
        };
        check(&[3.0, 1.0, 2.0], 2.0);
        check(&[4.0, 1.0, 2.0, 3.0], 2.5);
        check(&[7.0], 7.0);
    }
}
