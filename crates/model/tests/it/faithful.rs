//! How far every weight type is from f32 arithmetic on the same weights: the mean divergence of SmolLM2's next-token
//! probabilities. The weights are decoded to f32 for the truth, so that what is measured is the products' own rounding
//! and not what the type lost. llama.cpp's 8-bit activations give 0.0026 on Q4_1; the bound is a fifth of it.
//!
//! Each type is a test of its own, because some encoders search for minutes; a line per type is printed for the table
//! in `docs/developer/accuracy.md`. A folder named by `ROCI_FAITHFUL_CACHE` keeps the encoded models, for whoever changes products
//! and not encoders.

use std::path::PathBuf;

use model::{KvType, Model};
use weights::{Bytes, Checkpoint, Dtype, GgufWriter, Tensor};

use crate::support::{argmax, batch, log_softmax, smollm2, table, with_dtype};
use crate::truth::{golden, load};

/// Mean divergence a token, in nats.
const BOUND: f64 = 0.0005;

/// The everyday list, in the shapes of the file. Rows of 576 hold no blocks of 256: with Q4_K and Q6_K they are Q8_0
/// there, and whole in the tests below.
#[test]
fn every_type_stays_close_to_f32() {
    let Some(checkpoint) = smollm2() else { return };
    let tokens = text_of_golden(256);
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K] {
        let other = (dtype != Dtype::Q4_1).then(|| with_dtype(&checkpoint, dtype));
        let quantised = other.as_ref().unwrap_or(&checkpoint);
        let truth = truth_of(quantised, &tokens);
        distance(quantised, &truth, &tokens, KvType::F16).expect_close(&format!("{dtype}"));
    }
}

/// A model whose every matrix is of that type, whatever is left of its mind.
macro_rules! whole {
    ($($name:ident: $dtype:ident,)*) => {
        $(#[test]
        #[ignore = "encodes a whole model, the IQ types for minutes"]
        fn $name() {
            stays_close_in_whole(Dtype::$dtype);
        })*

        #[test]
        fn no_type_is_forgotten() {
            let listed = [$(Dtype::$dtype,)*];
            let is_computed = |dtype: &Dtype| dtype.block_len() > 1;
            for dtype in Dtype::ALL.into_iter().filter(is_computed) {
                assert!(listed.contains(&dtype), "{dtype}");
            }
        }
    };
}

whole! {
    f16: F16,
    bf16: BF16,
    q4_0: Q4_0,
    q4_1: Q4_1,
    q5_0: Q5_0,
    q5_1: Q5_1,
    q8_0: Q8_0,
    q2_k: Q2K,
    q3_k: Q3K,
    q4_k: Q4K,
    q5_k: Q5K,
    q6_k: Q6K,
    tq1_0: TQ1_0,
    tq2_0: TQ2_0,
    mxfp4: MXFP4,
    nvfp4: NVFP4,
    q1_0: Q1_0,
    q2_0: Q2_0,
    iq4_nl: IQ4NL,
    iq4_xs: IQ4XS,
    iq3_s: IQ3S,
    iq3_xxs: IQ3XXS,
    iq2_s: IQ2S,
    iq2_xs: IQ2XS,
    iq2_xxs: IQ2XXS,
    iq1_s: IQ1S,
    iq1_m: IQ1M,
}

/// The bound holds with keys and values in f32: what one or two bits leave of this model amplifies even the rounding of
/// f16 ones, and it is the products that are looked at. The default, f16, is printed beside it.
fn stays_close_in_whole(dtype: Dtype) {
    let Some(checkpoint) = smollm2() else { return };
    let quantised = kept(dtype).unwrap_or_else(|| with_dtype(&widened(&checkpoint), dtype));
    keep(dtype, &quantised);
    assert!(quantised.tensors().iter().all(|tensor| tensor.shape.len() < 2 || tensor.dtype == dtype));
    let tokens = text_of_golden(256);
    let truth = truth_of(&quantised, &tokens);
    let exact = distance(&quantised, &truth, &tokens, KvType::F32);
    let default = distance(&quantised, &truth, &tokens, KvType::F16);
    let row = |d: &Distance| format!("{:.1e} | {:.1e} | {:.1} %", d.mean, d.worst, 100.0 * d.same_top);
    println!("| {dtype} | {} | {} |", row(&exact), row(&default));
    exact.expect_close(&format!("{dtype}"));
}

fn place_of(dtype: Dtype) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("ROCI_FAITHFUL_CACHE")?).join(format!("{dtype}.gguf")))
}

/// The model in a type as an earlier run encoded it.
fn kept(dtype: Dtype) -> Option<Checkpoint> {
    let path = place_of(dtype).filter(|path| path.exists())?;
    Some(Checkpoint::open(&path).expect("a file that an earlier run wrote"))
}

fn keep(dtype: Dtype, quantised: &Checkpoint) {
    if let Some(path) = place_of(dtype).filter(|path| !path.exists()) {
        GgufWriter::copy(&path, quantised).expect("the folder that ROCI_FAITHFUL_CACHE names");
    }
}

struct Distance {
    mean: f64,
    worst: f64,
    /// The share of places with the same most likely token.
    same_top: f64,
}

impl Distance {
    fn expect_close(&self, what: &str) {
        println!("{what}: mean KL {:.2e}, worst {:.2e}, same top {:.4}", self.mean, self.worst, self.same_top);
        assert!(self.mean <= BOUND, "{what}: mean KL {:.2e}", self.mean);
    }
}

fn truth_of(quantised: &Checkpoint, tokens: &[u32]) -> Vec<Row> {
    rows(&mut load(&with_dtype(quantised, Dtype::F32), KvType::F32), tokens)
}

fn distance(quantised: &Checkpoint, truth: &[Row], tokens: &[u32], kv_type: KvType) -> Distance {
    let found = rows(&mut load(quantised, kv_type), tokens);
    let divergences: Vec<f64> =
        truth.iter().zip(&found).map(|(t, f)| kl_divergence(&t.logprobs, &f.logprobs)).collect();
    let n = divergences.len() as f64;
    let n_same = truth.iter().zip(&found).filter(|(t, f)| t.top == f.top).count();
    Distance {
        mean: divergences.iter().sum::<f64>() / n,
        worst: divergences.iter().copied().fold(0.0, f64::max),
        same_top: n_same as f64 / n,
    }
}

fn text_of_golden(n_tokens: usize) -> Vec<u32> {
    let tokens = golden().into_iter().flat_map(|run| [run.prompt, run.out].concat());
    tokens.take(n_tokens).collect()
}

#[test]
fn a_wider_model_is_the_same_model() {
    let Some(checkpoint) = smollm2() else { return };
    let tokens = text_of_golden(48);
    let truth = truth_of(&checkpoint, &tokens);
    let found = rows(&mut load(&widened(&checkpoint), KvType::F32), &tokens);
    let worst = truth.iter().zip(&found).map(|(t, f)| kl_divergence(&t.logprobs, &f.logprobs)).fold(0.0, f64::max);
    assert!(worst < 1e-6, "{worst:.2e}");
}

/// SmolLM2 in F32 with 768 columns for 576, and 12 heads for 9: what is added is zero, and the norms' weights make up
/// for the mean over more numbers. Every row then holds whole blocks of 256.
fn widened(checkpoint: &Checkpoint) -> Checkpoint {
    const NARROW: usize = 576;
    const WIDE: usize = 768;
    let part = NARROW as f32 / WIDE as f32;
    // The widths and their wider forms: the stream and the queries, keys and values of 3 heads for 4, all else as it is.
    let wider = |n: usize| match n {
        NARROW => WIDE,
        192 => 256,
        n => n,
    };
    let mut metadata = checkpoint.metadata().clone();
    let eps = "llama.attention.layer_norm_rms_epsilon";
    metadata.set(eps, metadata.f32(eps).unwrap().unwrap() * part);
    metadata.set("llama.embedding_length", WIDE as u32);
    metadata.set("llama.attention.head_count", 12_u32);
    metadata.set("llama.attention.head_count_kv", 4_u32);
    let tensors = checkpoint.tensors().iter().map(|tensor| {
        let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
        let mut numbers = vec![0.0; n_rows * n_cols];
        ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
        let is_norm = tensor.shape.len() < 2;
        if is_norm {
            numbers.iter_mut().for_each(|x| *x *= part.sqrt());
        }
        let (to_rows, to_cols) = (if is_norm { 1 } else { wider(n_rows) }, wider(n_cols));
        let mut out = vec![0.0_f32; to_rows * to_cols];
        for (to, from) in out.chunks_exact_mut(to_cols).zip(numbers.chunks_exact(n_cols)) {
            to[..n_cols].copy_from_slice(from);
        }
        let shape = if is_norm { vec![to_cols] } else { vec![to_rows, to_cols] };
        let mut bytes = vec![0; 4 * out.len()];
        ops::quant::quantize(Dtype::F32, &out, &mut bytes);
        Tensor::new(tensor.name.clone(), Dtype::F32, shape, Bytes::from_vec(bytes)).unwrap()
    });
    Checkpoint::from_parts(metadata, tensors.collect()).unwrap()
}

/// What comes after one place of the text.
struct Row {
    logprobs: Vec<f64>,
    top: u32,
}

/// The rows after every token, computed in one batch.
fn rows(model: &mut Model, tokens: &[u32]) -> Vec<Row> {
    let blocks = table(0, tokens.len());
    let n_vocab = model.config().n_vocab;
    let output = model.forward(&batch(tokens, 0, &blocks, true)).unwrap();
    output.logits.chunks(n_vocab).map(|row| Row { logprobs: log_softmax(row), top: argmax(row) }).collect()
}

fn kl_divergence(truth: &[f64], found: &[f64]) -> f64 {
    truth.iter().zip(found).map(|(t, f)| t.exp() * (t - f)).sum()
}
