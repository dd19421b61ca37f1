//! Candle's CUDA back end on our crates beside Candle's CPU back end, case by case:
//!
//!     compare [--seed N] [--sample N] [--only TEXT] [--list] [-v]
//!
//! Every op, on every type it takes, on inputs that lie in every way. Copies, indices, casts and integers must be equal;
//! the bounds of the rest stand with their cases. Where the CPU's result is further away than the bound allows, the same op
//! in f64 decides, and the case is named. What Candle's own CUDA back end does not offer is counted and named too.

mod case;
mod data;
mod elementwise;
mod judge;
mod quantized;
mod shaped;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};

use case::Case;
use data::Random;

struct Options {
    seed: u64,
    sample: Option<usize>,
    only: String,
    list: bool,
    verbose: bool,
}

fn options() -> Result<Options> {
    let mut options = Options { seed: 1, sample: None, only: String::new(), list: false, verbose: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => options.seed = value()?.parse().context("--seed needs a number")?,
            "--sample" => options.sample = Some(value()?.parse().context("--sample needs a number")?),
            "--only" => options.only = value()?,
            "--list" => options.list = true,
            "-v" => options.verbose = true,
            _ => bail!("unknown argument {argument}"),
        }
    }
    Ok(options)
}

enum Verdict {
    Same,
    /// Not the CPU's, but f64's.
    ByF64(String),
    /// The CPU back end has no result to compare with.
    CpuHasNone(String),
    /// Candle's CUDA back end refuses this before any of our code is asked.
    NotOffered(String),
    Different(String),
}

/// An op's result, whether it ends with an error or a panic (Candle's CPU back end has `todo!`s).
fn outcome(run: impl FnOnce() -> candle_core::Result<Tensor>) -> Result<Tensor, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(tensor)) => Ok(tensor),
        Ok(Err(error)) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
        }
    }
}

/// Whether an error is of Candle's own making: its CUDA back end names what it does not do in these words.
fn is_candles_own(error: &str) -> bool {
    [
        "unsupported dtype",
        "not supported",
        "does not support",
        "not implemented",
        "dtype mismatch in",
        "no cuda implementation",
    ]
    .iter()
    .any(|words| error.contains(words))
}

/// What crate float8, under Candle's CPU back end, recurses on until its stack is full.
const CPU_NEVER_RETURNS: [&str; 4] = [
    "to f64 and back F8E4M3",
    "cast F8E4M3 to F64",
    "upsample_bilinear2d F8E4M3",
    "upsample_bilinear2d to corners F8E4M3",
];

fn judge(case: &Case, seed: u64, device: &Device) -> Result<Verdict> {
    if CPU_NEVER_RETURNS.iter().any(|name| case.name.starts_with(name)) {
        return Ok(Verdict::CpuHasNone("its stack overflows".to_owned()));
    }
    let memory = case.memory(seed)?;
    let want = match outcome(|| case.run(&memory, &Device::Cpu)) {
        Ok(want) => want,
        Err(error) => return Ok(Verdict::CpuHasNone(error)),
    };
    let got = match outcome(|| case.run(&memory, device)) {
        Ok(got) => got,
        Err(error) if is_candles_own(&error) => return Ok(Verdict::NotOffered(error)),
        Err(error) => return Ok(Verdict::Different(error)),
    };
    let Some(difference) = judge::difference(&got, &want, case.bound)? else { return Ok(Verdict::Same) };
    if !case.has_reference {
        return Ok(Verdict::Different(difference));
    }
    let reference = match outcome(|| case.reference(&memory, want.dtype())) {
        Ok(reference) => reference,
        Err(error) => return Ok(Verdict::Different(format!("{difference}; no reference: {error}"))),
    };
    Ok(match judge::difference(&got, &reference, case.bound)? {
        None => Verdict::ByF64(difference),
        Some(from_f64) => Verdict::Different(format!("{difference}; from f64: {from_f64}")),
    })
}

fn all_cases(options: &Options) -> Result<Vec<Case>> {
    let mut cases = elementwise::cases();
    cases.extend(shaped::cases());
    cases.extend(quantized::cases()?);
    cases.retain(|case| case.name.contains(&options.only));
    if let Some(n) = options.sample {
        // A shuffle, cut off.
        let mut random = Random(options.seed);
        for i in (1..cases.len()).rev() {
            cases.swap(i, random.below(i + 1));
        }
        cases.truncate(n);
    }
    Ok(cases)
}

/// Names of one group, by the op they begin with.
fn tell(title: &str, group: &[(String, String)], verbose: bool) {
    println!("{}: {title}", group.len());
    let mut by_op: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (name, why) in group {
        if verbose {
            println!("    {name}: {why}");
            continue;
        }
        // Without the layout, which is the last word.
        let op = name.rsplit_once(' ').map_or(name.as_str(), |(op, _)| op);
        by_op.entry(op).or_insert((0, why)).0 += 1;
    }
    for (op, (n, why)) in by_op {
        println!("    {op} ({n}): {why}");
    }
}

fn main() -> Result<()> {
    let options = options()?;
    let cases = all_cases(&options)?;
    if options.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        println!("{} cases", cases.len());
        return Ok(());
    }
    let device = Device::new_cuda(0)?;
    // Panics become verdicts, which are told below.
    std::panic::set_hook(Box::new(|_| ()));
    let (mut same, mut by_f64, mut none, mut not_offered, mut different) = (0, vec![], vec![], vec![], vec![]);
    for case in &cases {
        let name = case.name.clone();
        if options.verbose {
            eprintln!("{name}");
        }
        match judge(case, options.seed, &device).with_context(|| name.clone())? {
            Verdict::Same => same += 1,
            Verdict::ByF64(why) => by_f64.push((name, why)),
            Verdict::CpuHasNone(why) => none.push((name, why)),
            Verdict::NotOffered(why) => not_offered.push((name, why)),
            Verdict::Different(why) => {
                eprintln!("DIFFERENT {name}: {why}");
                different.push((name, why));
            }
        }
    }
    let _ = std::panic::take_hook();
    println!("seed {}: {} cases compared", options.seed, same + by_f64.len() + different.len());
    println!("{same}: as on the CPU");
    tell("not as on the CPU, which is further from f64 than the bound: f64 decides", &by_f64, options.verbose);
    tell("the CPU back end has no result", &none, options.verbose);
    tell("Candle's CUDA back end does not offer it", &not_offered, options.verbose);
    tell("DIFFERENT", &different, true);
    if !different.is_empty() {
        bail!("{} of {} cases differ", different.len(), cases.len());
    }
    Ok(())
}
