//! How fast Candle is on this GPU through our crates:
//!
//!     bench [--elements N] [--rounds N] [--layers N] [--width N] [--vocabulary N] [--model MODEL.gguf]
//!
//! Elementwise ops beside a copy on the device, with launches, allocations and waits of each; the products of one token and
//! of a prompt through the Q4_K weights of an 8B Llama (made up, `--layers` of 32, `--width` of 4096, `--vocabulary` of
//! 128,256), and greedy decoding through candle-transformers of that model, or of `--model`. The first call of each op is
//! told apart: with an empty `ROCI_KERNEL_CACHE`, that is the compiler's time.

mod made_up;

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor, gguf_file};
use candle_core::{DType, Device, Module, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use made_up::Size;

/// Tokens of the prompt.
const N_PROMPT: usize = 512;

struct Options {
    n_elements: usize,
    n_rounds: usize,
    size: Size,
    model: Option<String>,
}

fn options() -> Result<Options> {
    let size = Size { width: 4096, n_layers: 32, vocabulary: 128_256 };
    let mut options = Options { n_elements: 1 << 26, n_rounds: 50, size, model: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--elements" => options.n_elements = value.parse().context("--elements")?,
            "--rounds" => options.n_rounds = value.parse().context("--rounds")?,
            "--layers" => options.size.n_layers = value.parse().context("--layers")?,
            "--width" => options.size.width = value.parse().context("--width")?,
            "--vocabulary" => options.size.vocabulary = value.parse().context("--vocabulary")?,
            "--model" => options.model = Some(value),
            _ => bail!("unknown argument {name}"),
        }
    }
    // Every dimension is made of whole blocks of 256.
    if options.n_rounds == 0 || options.n_elements < 64 || options.size.width == 0 || options.size.width % 1024 != 0 {
        bail!("--rounds must be at least 1, --elements 64, --width a multiple of 1024");
    }
    if options.size.vocabulary < 2 {
        bail!("--vocabulary must be at least 2");
    }
    Ok(options)
}

/// Calls of the driver so far: launches, allocations, waits.
fn calls(device: &Device) -> Result<[u64; 3]> {
    let stream = device.as_cuda_device()?.cuda_stream();
    let counters = stream.context().device().counters();
    Ok([counters.launches, counters.allocations, counters.waits])
}

struct Measured {
    first_ms: f64,
    seconds: f64,
    /// Launches, allocations and waits of one round; the wait at the end is not counted.
    calls: [f64; 3],
}

fn measure(device: &Device, n_rounds: usize, run: impl Fn() -> candle_core::Result<Tensor>) -> Result<Measured> {
    let start = Instant::now();
    run()?;
    device.synchronize()?;
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    run()?;
    device.synchronize()?;
    let (before, start) = (calls(device)?, Instant::now());
    for _ in 0..n_rounds {
        run()?;
    }
    let after = calls(device)?;
    device.synchronize()?;
    let seconds = start.elapsed().as_secs_f64() / n_rounds as f64;
    let calls = std::array::from_fn(|i| (after[i] - before[i]) as f64 / n_rounds as f64);
    Ok(Measured { first_ms, seconds, calls })
}

fn elementwise(options: &Options, device: &Device) -> Result<()> {
    let shape = (options.n_elements / 64, 64);
    let n = (shape.0 * shape.1) as f64;
    let x = Tensor::rand(0.5f32, 1.5, shape, device)?;
    let y = Tensor::rand(0.5f32, 1.5, shape, device)?;
    let half = x.to_dtype(DType::F16)?;
    let choice = x.gt(&y)?;
    type Op<'a> = (&'a str, f64, Box<dyn Fn() -> candle_core::Result<Tensor> + 'a>);
    // With the bytes that each reads and writes for an element.
    let ops: [Op; 14] = [
        ("copy", 8.0, Box::new(|| x.copy())),
        ("neg", 8.0, Box::new(|| x.neg())),
        ("exp", 8.0, Box::new(|| x.exp())),
        ("gelu", 8.0, Box::new(|| x.gelu())),
        ("silu", 8.0, Box::new(|| x.silu())),
        ("affine", 8.0, Box::new(|| x.affine(2.0, 1.0))),
        ("add", 12.0, Box::new(|| &x + &y)),
        ("mul", 12.0, Box::new(|| &x * &y)),
        ("add f16", 6.0, Box::new(|| &half + &half)),
        ("lt", 9.0, Box::new(|| x.lt(&y))),
        ("where", 13.0, Box::new(|| choice.where_cond(&x, &y))),
        ("cast to f16", 6.0, Box::new(|| x.to_dtype(DType::F16))),
        ("transposed copy", 8.0, Box::new(|| x.t()?.contiguous())),
        ("softmax", 8.0, Box::new(|| candle_nn::ops::softmax_last_dim(&x))),
    ];
    println!("| op on {n} elements | first call ms | us | GB/s | of copy | launches | allocations | waits |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let mut copy = None;
    for (name, bytes, op) in ops {
        let Measured { first_ms, seconds, calls: [launches, allocations, waits] } =
            measure(device, options.n_rounds, op)?;
        let rate = n * bytes / seconds / 1e9;
        let of_copy = 100.0 * rate / *copy.get_or_insert(rate);
        let us = seconds * 1e6;
        println!(
            "| {name} | {first_ms:.0} | {us:.1} | {rate:.1} | {of_copy:.0} % | {launches} | {allocations} | {waits} |"
        );
    }
    Ok(())
}

/// An 8B Llama's products for one token, or for many.
fn products(options: &Options, device: &Device, n_tokens: usize) -> Result<()> {
    let (width, kv_width, inner) = (options.size.width, options.size.kv_width(), options.size.inner());
    // Queries, keys, values, output, gate, up, down.
    let of_layer: [(usize, usize); 7] = [
        (width, width),
        (kv_width, width),
        (kv_width, width),
        (width, width),
        (inner, width),
        (inner, width),
        (width, inner),
    ];
    let format = GgmlDType::Q4K;
    let shapes: Vec<(usize, usize)> = (0..options.size.n_layers).flat_map(|_| of_layer).collect();
    let (mut weights, mut bytes) = (Vec::new(), 0);
    for &(rows, columns) in &shapes {
        let data = made_up::q4_k(rows, columns);
        bytes += data.len();
        let tensor = QTensor::new(QStorage::from_data(Cow::Owned(data), device, format)?, (rows, columns))?;
        weights.push((QMatMul::from_qtensor(tensor)?, Tensor::ones((n_tokens, columns), DType::F32, device)?));
    }
    let all = || weights.iter().try_fold(None, |_, (weight, x)| weight.forward(x).map(Some)).map(Option::unwrap);
    let n_rounds = if n_tokens == 1 { options.n_rounds } else { options.n_rounds.div_ceil(10) };
    let Measured { first_ms, seconds, calls: [launches, allocations, waits] } = measure(device, n_rounds, all)?;
    let (ms, rate, layers) = (seconds * 1e3, bytes as f64 / seconds / 1e9, options.size.n_layers);
    let products: usize = shapes.iter().map(|(rows, columns)| rows * columns * n_tokens).sum();
    let teraflops = 2.0 * products as f64 / seconds / 1e12;
    println!("\nQ4_K products, tokens: {n_tokens}, {layers} layers of {width}: {ms:.2} ms,");
    println!("{rate:.1} GB/s of weights, {teraflops:.1} Tflop/s, first call {first_ms:.0} ms;");
    println!("{launches} launches, {allocations} allocations, {waits} waits");
    Ok(())
}

fn decode<R: Read + Seek>(name: &str, file: &mut R, n_tokens: usize, device: &Device) -> Result<()> {
    let content = gguf_file::Content::read(file)?;
    let mut model = ModelWeights::from_gguf(content, file, device)?;
    let mut next = Tensor::new(&[1u32], device)?.unsqueeze(0)?;
    let (mut before, mut start) = (calls(device)?, Instant::now());
    for at in 0..=n_tokens {
        next = model.forward(&next, at)?.argmax(1)?.unsqueeze(0)?;
        if at == 0 {
            // The first token compiles.
            device.synchronize()?;
            (before, start) = (calls(device)?, Instant::now());
        }
    }
    let after = calls(device)?;
    device.synchronize()?;
    let each = start.elapsed().as_secs_f64() / n_tokens as f64;
    let [launches, allocations, waits] = std::array::from_fn(|i| (after[i] - before[i]) as f64 / n_tokens as f64);
    println!("\n{name}: {:.2} ms a token, {:.1} tokens/s;", each * 1e3, 1.0 / each);
    println!("{launches:.1} launches, {allocations:.2} allocations, {waits:.2} waits a token");
    Ok(())
}

fn main() -> Result<()> {
    let options = options()?;
    let device = Device::new_cuda(0)?;
    println!("{:?}\n", device.as_cuda_device()?.cuda_stream().context());
    elementwise(&options, &device)?;
    let Size { n_layers, width, .. } = options.size;
    if n_layers > 0 {
        products(&options, &device, 1)?;
        products(&options, &device, N_PROMPT)?;
    }
    if let Some(path) = &options.model {
        let mut file = File::open(path).with_context(|| path.to_owned())?;
        decode(path, &mut file, options.n_rounds, &device)?;
    } else if n_layers > 0 {
        let name = format!("a Llama of {n_layers} layers of {width}, Q4_K, made up");
        decode(&name, &mut made_up::llama(&options.size)?, options.n_rounds, &device)?;
    }
    Ok(())
}
