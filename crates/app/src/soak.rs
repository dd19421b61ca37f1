//! `roci bench --soak`: thousands of decode steps with a batch that changes all the time. Afterwards the driver's own
//! counts must show no allocation, and the device as much free memory as after the first tenth of the steps (until then
//! the driver may take some for the graphs of shapes it meets for the first time).

use std::fmt;
use std::time::Instant;

use anyhow::{Result, bail};
use model::DeviceChoice;

use crate::drive::{StepDriver, TokenSpan, WantedLogits};
use crate::report::human_bytes;

/// What was seen; printed as one line.
pub struct SoakResult {
    n_steps: usize,
    n_tokens: usize,
    seconds: f64,
    /// Free bytes of the device at the start, after a tenth, and at the end; allocations and graphs in between.
    device: Option<([usize; 3], u64, u64)>,
}

impl fmt::Display for SoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_steps, n_tokens, seconds, device } = self;
        write!(f, "soak: {n_steps} steps, {n_tokens} tokens, {seconds:.1} s")?;
        let Some((free, n_allocations, n_graphs)) = device else { return Ok(()) };
        let [start, early, end] = free.map(|bytes| human_bytes(bytes as u64));
        write!(f, "; {n_allocations} allocations, {n_graphs} graphs; free at the start {start}, ")?;
        write!(f, "after a tenth {early}, at the end {end} ({} bytes apart)", free[1].abs_diff(free[2]))
    }
}

pub fn run(
    driver: &mut StepDriver,
    device: DeviceChoice,
    n_steps: usize,
    max_batch: usize,
    n_ctx: usize,
) -> Result<SoakResult> {
    let gpu = match device {
        DeviceChoice::Gpu { vendor, ordinal } => Some(gpu::Device::open(vendor, ordinal)?),
        DeviceChoice::Cpu => None,
    };
    let free =
        || -> Result<usize> { Ok(gpu.as_ref().map(|gpu| gpu.memory()).transpose()?.map_or(0, |m| m.free_bytes)) };
    let counters = || gpu.as_ref().map(gpu::Device::counters).unwrap_or_default();
    let mut positions = vec![0; max_batch];
    let mut random = 1_u32;
    let mut next = |n: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(random) * n as u64) >> 32) as usize
    };
    let (before, start, mut n_tokens) = (counters(), Instant::now(), 0);
    let mut memory = [free()?; 3];
    let mut batch = 1;
    for step in 0..n_steps {
        // A batch lasts some steps, as requests do; then sequences come and go.
        if step % 8 == 0 {
            batch = 1 + next(max_batch);
        }
        let tokens: Vec<[u32; 1]> = (0..batch).map(|_| [next(256) as u32]).collect();
        let spans: Vec<TokenSpan<'_>> = tokens
            .iter()
            .enumerate()
            .map(|(seq_idx, tokens)| TokenSpan { seq_idx, start: positions[seq_idx], tokens })
            .collect();
        driver.step(&spans, WantedLogits::Best)?;
        for position in &mut positions[..batch] {
            *position = (*position + 1) % n_ctx;
        }
        n_tokens += batch;
        if step == n_steps / 10 {
            memory[1] = free()?;
        }
    }
    memory[2] = free()?;
    let counted = counters() - before;
    let seconds = start.elapsed().as_secs_f64();
    let device = gpu.is_some().then_some((memory, counted.allocations, counted.graphs_built));
    let soaked = SoakResult { n_steps, n_tokens, seconds, device };
    if counted.allocations > 0 || memory[2] < memory[1] {
        bail!("device memory changed: {soaked}");
    }
    Ok(soaked)
}
