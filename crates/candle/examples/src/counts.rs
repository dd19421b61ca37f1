//! What Candle's ops cost at the driver: launches and copies of each, counted at the device layer's table of calls. After its
//! first round no op may allocate, wait or read back; `counts` ends with an error where one does, or where its launches are
//! not those named here.

use std::borrow::Cow;

use anyhow::{Result, bail};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{LayerNorm, RmsNorm, ops, rotary_emb};

const ROUNDS: u64 = 4;

/// Calls of one kind since the driver was loaded.
struct Calls {
    launches: u64,
    uploads: u64,
    device_copies: u64,
    /// Device memory and page-locked host memory.
    allocations: u64,
    waits: u64,
    read_backs: u64,
}

fn calls(device: &Device) -> Result<Calls> {
    let counters = device.as_cuda_device()?.cuda_stream().context().device().counters();
    Ok(Calls {
        launches: counters.launches,
        uploads: counters.copies_to_device,
        device_copies: counters.copies_on_device,
        allocations: counters.allocations + counters.host_allocations,
        waits: counters.waits,
        read_backs: counters.read_backs,
    })
}

type Op<'a> = Box<dyn Fn() -> candle_core::Result<Tensor> + 'a>;

/// One round of an op, after two that compile and fill the pool; the first complaint in words.
fn count(device: &Device, name: &str, launches: Option<u64>, op: &Op) -> Result<Option<String>> {
    for _ in 0..2 {
        op()?;
    }
    device.synchronize()?;
    let before = calls(device)?;
    for _ in 0..ROUNDS {
        op()?;
    }
    let after = calls(device)?;
    let of = |which: fn(&Calls) -> u64| which(&after) - which(&before);
    let each = of(|calls| calls.launches) as f64 / ROUNDS as f64;
    let (uploads, copies) = (of(|calls| calls.uploads) / ROUNDS, of(|calls| calls.device_copies) / ROUNDS);
    println!("| {name} | {each} | {uploads} | {copies} |");
    for (what, n) in [
        ("allocations", of(|calls| calls.allocations)),
        ("waits", of(|calls| calls.waits)),
        ("read-backs", of(|calls| calls.read_backs)),
    ] {
        if n != 0 {
            return Ok(Some(format!("{name}: {n} {what} in {ROUNDS} rounds")));
        }
    }
    match launches {
        Some(want) if each != want as f64 => Ok(Some(format!("{name}: {each} launches, not {want}"))),
        _ => Ok(None),
    }
}

/// Quantised weights with small positive scales, so that results stay numbers.
fn weights(device: &Device, rows: usize, columns: usize) -> Result<QMatMul> {
    let format = GgmlDType::Q4K;
    let size = rows * columns / format.block_size() * format.type_size();
    let data: Vec<u8> = (0..size).map(|i| if i % 144 < 4 { [0, 0x10][i % 2] } else { (i * 37 % 251) as u8 }).collect();
    let storage = QStorage::from_data(Cow::Owned(data), device, format)?;
    Ok(QMatMul::from_qtensor(QTensor::new(storage, (rows, columns))?)?)
}

fn main() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let f32s = |shape: &[usize]| Tensor::rand(0.5f32, 1.5, shape, &device);
    let (x, y, square) = (f32s(&[8, 256])?, f32s(&[8, 256])?, f32s(&[256, 256])?);
    let choice = x.gt(&y)?;
    let ids = Tensor::new(&[3u32, 0, 7, 1], &device)?;
    let (norm, scale) = (LayerNorm::new(f32s(&[256])?, f32s(&[256])?, 1e-5), RmsNorm::new(f32s(&[256])?, 1e-5));
    let (heads, cos, sin) = (f32s(&[1, 4, 8, 64])?, f32s(&[8, 32])?, f32s(&[8, 32])?);
    let (image, filter) = (f32s(&[1, 2, 16, 16])?, f32s(&[4, 2, 3, 3])?);
    let (up, gate, down) = (weights(&device, 512, 256)?, weights(&device, 512, 256)?, weights(&device, 256, 512)?);
    let (token, prompt) = (f32s(&[1, 256])?, f32s(&[40, 256])?);
    let feed_forward = || {
        let normed = scale.forward(&token)?;
        let inner = (gate.forward(&normed)?.silu()? * up.forward(&normed)?)?;
        &token + down.forward(&inner)?
    };
    // Launches of a round; none where a library may make the product.
    let ops: [(&str, Option<u64>, Op); 25] = [
        ("copy", Some(0), Box::new(|| x.copy())),
        ("zeros", Some(0), Box::new(|| Tensor::zeros((8, 256), DType::F32, &device))),
        ("upload", Some(0), Box::new(|| Tensor::new(&[1f32, 2.0, 3.0], &device))),
        ("exp", Some(1), Box::new(|| x.exp())),
        ("affine", Some(1), Box::new(|| x.affine(2.0, 1.0))),
        ("add", Some(1), Box::new(|| &x + &y)),
        ("add, one side broadcast", Some(1), Box::new(|| x.broadcast_add(&y.narrow(0, 0, 1)?))),
        ("less than", Some(1), Box::new(|| x.lt(&y))),
        ("where", Some(1), Box::new(|| choice.where_cond(&x, &y))),
        ("cast", Some(1), Box::new(|| x.to_dtype(DType::F16))),
        ("transposed copy", Some(1), Box::new(|| x.t()?.contiguous())),
        ("concatenation", Some(2), Box::new(|| Tensor::cat(&[&x, &y], 0))),
        ("sum of rows", Some(1), Box::new(|| x.sum(D::Minus1))),
        ("argmax", Some(1), Box::new(|| x.argmax(D::Minus1))),
        ("sort", Some(1), Box::new(|| x.arg_sort_last_dim(true))),
        ("softmax", Some(1), Box::new(|| ops::softmax_last_dim(&x))),
        ("layer norm", Some(1), Box::new(|| norm.forward(&x))),
        ("RMS norm", Some(1), Box::new(|| scale.forward(&x))),
        ("rope", Some(1), Box::new(|| rotary_emb::rope(&heads, &cos, &sin))),
        ("rows by index", Some(1), Box::new(|| x.index_select(&ids, 0))),
        ("product", None, Box::new(|| x.matmul(&square))),
        ("conv2d", None, Box::new(|| image.conv2d(&filter, 1, 1, 1, 1))),
        ("quantised product, a token", Some(2), Box::new(|| up.forward(&token))),
        ("quantised product, 40 tokens", Some(2), Box::new(|| up.forward(&prompt))),
        ("quantised feed-forward, a token", Some(10), Box::new(feed_forward)),
    ];
    println!("| op | launches | uploads | copies on the device |\n|---|--:|--:|--:|");
    let mut complaints = Vec::new();
    for (name, launches, op) in &ops {
        complaints.extend(count(&device, name, *launches, op)?);
    }
    // What does wait says so.
    let before = calls(&device)?;
    x.to_vec2::<f32>()?;
    let after = calls(&device)?;
    let (waits, read_backs) = (after.waits - before.waits, after.read_backs - before.read_backs);
    if (waits, read_backs) != (1, 1) {
        complaints.push(format!("reading back: {waits} waits, {read_backs} copies"));
    }
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n"));
    }
    println!("no allocations, no waits, no read-backs in any of them");
    Ok(())
}
