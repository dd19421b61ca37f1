//! Drives a model the way an engine would, one sequence at a time or several.

use model::{Batch, BlockId, Model, SeqRows, TokenId};
use weights::{Bytes, Checkpoint, Dtype, Tensor};

/// The real SmolLM2 file, if the environment names it; `ROCI_REQUIRE_MODEL=1` makes its absence a failure.
pub fn smollm2() -> Option<Checkpoint> {
    real(test_support::fetched::SMOLLM2)
}

/// The model file that a variable names.
pub fn real(variable: &str) -> Option<Checkpoint> {
    let path = test_support::fetched::path(variable)?;
    Some(Checkpoint::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The same checkpoint with every matrix in another type. From a packed type the numbers are decoded first, so F32
/// holds the same weights exactly.
pub fn with_dtype(checkpoint: &Checkpoint, dtype: Dtype) -> Checkpoint {
    let tensors = checkpoint.tensors().iter().map(|tensor| {
        let n_cols = *tensor.shape.last().unwrap();
        if tensor.shape.len() < 2 {
            return tensor.clone();
        }
        let mut numbers = vec![0.0; tensor.shape.iter().product()];
        ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
        // A row that does not fill the blocks of a K-quant becomes Q8_0, as llama-quantize falls back too.
        let dtype = if n_cols.is_multiple_of(dtype.block_len()) { dtype } else { Dtype::Q8_0 };
        let bytes = encoded(dtype, n_cols, &numbers);
        Tensor::new(tensor.name.clone(), dtype, tensor.shape.clone(), Bytes::from_vec(bytes)).unwrap()
    });
    Checkpoint::from_parts(checkpoint.metadata().clone(), tensors.collect()).unwrap()
}

/// Rows in a type, by two threads: some encoders search for minutes.
fn encoded(dtype: Dtype, n_cols: usize, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(numbers.len()).unwrap()];
    let n_first = numbers.len() / n_cols / 2 * n_cols;
    let (first, second) = bytes.split_at_mut(dtype.row_bytes(n_first).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| ops::quant::quantize(dtype, &numbers[..n_first], first));
        ops::quant::quantize(dtype, &numbers[n_first..], second);
    });
    bytes
}

/// Blocks `first..` for a sequence.
pub fn table(first: u32, n_tokens: usize) -> Vec<BlockId> {
    (first..first + n_tokens.div_ceil(16) as u32).map(BlockId).collect()
}

/// One sequence's rows, all of whose logits are wanted if `wants_all`, else the last row's.
pub fn batch(tokens: &[u32], first_position: usize, blocks: &[BlockId], wants_all: bool) -> Batch {
    let n = tokens.len() as u32;
    Batch {
        tokens: tokens.iter().map(|&t| TokenId(t)).collect(),
        positions: (first_position as u32..first_position as u32 + n).collect(),
        seqs: vec![SeqRows { first_row: 0, n_rows: n, block_table: blocks.to_vec() }],
        logits_rows: if wants_all { (0..n).collect() } else { vec![n - 1] },
        ..Batch::default()
    }
}

pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// Log-probabilities of a row of logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

/// Greedy continuation: `(token, logits)` per step until `n_tokens` or token `end`.
pub fn greedy(model: &mut Model, prompt: &[u32], n_tokens: usize, end: u32) -> Vec<(u32, Vec<f32>)> {
    let blocks = table(0, prompt.len() + n_tokens);
    let mut steps: Vec<(u32, Vec<f32>)> = Vec::new();
    let mut next = prompt.to_vec();
    let mut n_past = 0;
    while steps.len() < n_tokens && steps.last().is_none_or(|(token, _)| *token != end) {
        let logits = model.forward(&batch(&next, n_past, &blocks, false)).unwrap().logits.to_vec();
        n_past += next.len();
        next = vec![argmax(&logits)];
        steps.push((next[0], logits));
    }
    steps
}

/// All tokens of a request to an engine, and its usage.
pub fn collect(events: engine::Events) -> (Vec<TokenId>, engine::FinishReason, engine::Usage) {
    let mut tokens = Vec::new();
    for event in events {
        match event {
            engine::Event::Token { token, .. } => tokens.push(token),
            engine::Event::Finished { reason, usage, .. } => return (tokens, reason, usage),
            other => panic!("unexpected {other:?}"),
        }
    }
    panic!("the events end without a last one");
}
