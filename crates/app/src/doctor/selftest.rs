//! Known answers on a GPU: tiny random models of each weight type run on the CPU and on the device, prompt and single
//! token, and their logits are compared; then the bandwidth of device memory is measured. It runs in a child process
//! with a time limit, because a broken driver hangs or aborts.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use gpu::discovery::FoundGpu;
use model::{Batch, BlockId, DeviceChoice, LoadOptions, Model, Recipe, SeqRows, Synthetic, TokenId};
use serde::{Deserialize, Serialize};
use weights::Dtype;

/// Rows of the prompt: enough to leave the one-row kernels, odd on purpose.
const N_PROMPT: usize = 21;
/// Tokens the tiny model's pool holds.
const N_BLOCKS: usize = 4;
/// The largest difference of logits, relative to the largest logit, that rounding explains: products of many rows may go
/// through f16.
const TOLERANCE: f32 = 1e-2;
/// What one weight type may take on a device; a first run compiles its kernels.
const TIME_LIMIT_PER_TYPE: Duration = Duration::from_secs(30);
/// The types that most files are made of. Others run through the same kernels with another decoder, and compiling all of
/// them takes minutes.
const COMMON: [Dtype; 6] = [Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K];
/// Bytes copied to measure the memory: larger than any cache.
const COPY_BYTES: usize = 1 << 30;

/// The result for one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceTest {
    pub device: String,
    /// One for each weight type.
    pub types: Vec<TypeResult>,
    /// Bytes read and written a second by a copy on the device; `None` where it could not be measured.
    pub bandwidth: Option<f64>,
    /// Why the test did not end.
    pub failure: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TypeResult {
    pub weights: String,
    /// Largest difference from the CPU, relative to the largest logit; `None` where the device gave no number.
    pub prompt_error: Option<f32>,
    pub token_error: Option<f32>,
}

impl TypeResult {
    pub fn is_right(&self) -> bool {
        let is_small = |error: Option<f32>| error.is_some_and(|error| error < TOLERANCE);
        is_small(self.prompt_error) && is_small(self.token_error)
    }
}

impl DeviceTest {
    pub fn is_right(&self) -> bool {
        self.failure.is_none() && !self.types.is_empty() && self.types.iter().all(TypeResult::is_right)
    }
}

/// Which weight types are tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Types {
    Common,
    All,
}

/// Tests a device in a child process, which is this same program.
pub fn in_child(found: &FoundGpu, types: Types, patience: u32) -> DeviceTest {
    let device = format!("{}:{}", found.vendor.word(), found.ordinal);
    let failed =
        |why: String| DeviceTest { device: device.clone(), types: Vec::new(), bandwidth: None, failure: Some(why) };
    match ask_child(&device, types, patience) {
        Ok(tested) => tested,
        Err(error) => failed(format!("{error:#}")),
    }
}

fn ask_child(device: &str, types: Types, patience: u32) -> Result<DeviceTest> {
    let (more, n_types): (&[&str], usize) = match types {
        Types::Common => (&[], COMMON.len()),
        Types::All => (&["--all-types"], Dtype::ALL.len()),
    };
    let limit = TIME_LIMIT_PER_TYPE * n_types as u32 * patience;
    let program = std::env::current_exe().context("this program's own path")?;
    let mut child = Command::new(program)
        .args(["doctor", "--test-device", device])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("the self-test does not start")?;
    let began = Instant::now();
    // Both pipes hold the little that the child writes, so it never waits for us to read.
    while child.try_wait()?.is_none() {
        if began.elapsed() > limit {
            let _ = child.kill();
            return Err(anyhow!("no answer within {} s: the device or its driver hangs", limit.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().rev().find(|line| line.starts_with('{'));
    last.and_then(|line| serde_json::from_str(line).ok()).ok_or_else(|| {
        let words = String::from_utf8_lossy(&output.stderr);
        anyhow!("the self-test ended ({}) {}", output.status, words.trim().lines().last().unwrap_or_default())
    })
}

/// Tests a device in this process.
pub fn run(device: DeviceChoice, name: &str, types: Types) -> DeviceTest {
    let all = Dtype::ALL.into_iter().filter(|dtype| ops::device_dtype(*dtype) == *dtype);
    let wanted = all.filter(|dtype| types == Types::All || COMMON.contains(dtype));
    let mut results = Vec::new();
    let mut failure = None;
    for dtype in wanted {
        match compare(device, dtype) {
            Ok(result) => results.push(result),
            Err(error) => {
                failure = Some(format!("{dtype}: {error:#}"));
                break;
            }
        }
    }
    let bandwidth = if failure.is_none() { measure_bandwidth(device).ok() } else { None };
    DeviceTest { device: name.to_owned(), types: results, bandwidth, failure }
}

fn compare(device: DeviceChoice, dtype: Dtype) -> Result<TypeResult> {
    let checkpoint = model::synthetic(Synthetic::Tiny, Recipe::Uniform(dtype), 7)?;
    let load = |device| {
        let options =
            LoadOptions { device, n_blocks: N_BLOCKS, max_batch_tokens: 32, n_threads: 2, ..LoadOptions::default() };
        Model::load(&checkpoint, options)
    };
    let (mut cpu, mut card) = (load(DeviceChoice::Cpu)?, load(device)?);
    let mut errors = [None, None];
    for (error, (first, n)) in errors.iter_mut().zip([(0, N_PROMPT), (N_PROMPT, 1)]) {
        let batch = batch(first, n);
        let truth = cpu.forward(&batch)?.logits.to_vec();
        let found = card.forward(&batch)?.logits.to_vec();
        *error = distance(&truth, &found);
    }
    Ok(TypeResult { weights: dtype.to_string(), prompt_error: errors[0], token_error: errors[1] })
}

/// `n` tokens of one sequence from position `first` on; logits of the last.
fn batch(first: usize, n: usize) -> Batch {
    let tokens = (first..first + n).map(|i| TokenId((i * 37 + 106) as u32 % 320)).collect();
    Batch {
        tokens,
        positions: (first as u32..(first + n) as u32).collect(),
        seqs: vec![SeqRows {
            first_row: 0,
            n_rows: n as u32,
            block_table: (0..N_BLOCKS as u32).map(BlockId).collect(),
        }],
        logits_rows: vec![n as u32 - 1],
        ..Batch::default()
    }
}

fn distance(truth: &[f32], found: &[f32]) -> Option<f32> {
    let size = truth.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let is_number = truth.len() == found.len() && found.iter().all(|x| x.is_finite());
    is_number.then(|| truth.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / size)
}

/// Bytes a second of a copy within the device's memory, read and written.
fn measure_bandwidth(device: DeviceChoice) -> Result<f64> {
    let DeviceChoice::Gpu { vendor, ordinal } = device else { return Err(anyhow!("not a GPU")) };
    let device = gpu::Device::open(vendor, ordinal)?;
    let n_bytes = COPY_BYTES.min(device.memory()?.free_bytes / 4);
    let queue = gpu::Queue::new(&device)?;
    let (from, mut to) = (queue.alloc_zeroed::<u8>(n_bytes)?, queue.alloc_zeroed::<u8>(n_bytes)?);
    queue.launcher().copy(from.all(), to.all_mut())?;
    let begin = queue.record::<gpu::Timed>()?;
    const N: u32 = 4;
    for _ in 0..N {
        queue.launcher().copy(from.all(), to.all_mut())?;
    }
    let end = queue.record::<gpu::Timed>()?;
    end.wait()?;
    Ok(2.0 * n_bytes as f64 * f64::from(N) / end.since(&begin)?.as_secs_f64())
}
