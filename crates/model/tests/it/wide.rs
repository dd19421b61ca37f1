//! The tiny checkpoints with every width eight times as large and random packed weights: rows that fill the blocks of
//! any type, without quantising anything.

use weights::{Bytes, Checkpoint, Dtype, Metadata, Tensor, Value};

const FACTOR: usize = 8;
const WIDTHS: [&str; 10] = [
    "embedding_length",
    "feed_forward_length",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "rope.dimension_count",
    "attention.indexer.key_length",
];
/// Tensors whose first dimension counts something else: tokens, experts, heads, positions, classes.
const COUNTED: [&str; 10] = [
    "token_embd.weight",
    "output.weight",
    "position_embd",
    "token_types",
    "ffn_gate_inp",
    "_exps",
    "attn_k_b",
    "attn_v_b",
    "cls.output",
    "indexer.proj",
];
const UNCHANGED: [&str; 4] = ["attn_sinks", "exp_probs_b", "cls.output.bias", "ffn_gate_inp.bias"];

/// A wide checkpoint, and the same with its weights decoded to f32.
pub fn widen(tiny: &Checkpoint, dtype: Dtype, seed: u64) -> (Checkpoint, Checkpoint) {
    let mut metadata = Metadata::default();
    for (key, value) in tiny.metadata().iter() {
        let is_width = WIDTHS.iter().any(|name| key.ends_with(name));
        let value = match value.as_integer().filter(|_| is_width) {
            Some(n) => Value::U32(n as u32 * FACTOR as u32),
            None => value.clone(),
        };
        metadata.set(key, value);
    }
    let mut state = seed;
    let mut bits = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let (mut packed, mut plain) = (Vec::new(), Vec::new());
    for tensor in tiny.tensors() {
        let shape = wide_shape(tensor);
        let n: usize = shape.iter().product();
        let n_cols = *shape.last().unwrap();
        let make =
            |dtype, bytes| Tensor::new(tensor.name.clone(), dtype, shape.clone(), Bytes::from_vec(bytes)).unwrap();
        if tensor.dtype == Dtype::F32 {
            // Norms, biases, routers: their numbers again and again.
            let bytes: Vec<u8> = tensor.bytes.iter().copied().cycle().take(4 * n).collect();
            packed.push(make(Dtype::F32, bytes.clone()));
            plain.push(make(Dtype::F32, bytes));
            continue;
        }
        let dtype = if n_cols.is_multiple_of(dtype.block_len()) { dtype } else { Dtype::Q8_0 };
        let mut bytes = vec![0; dtype.row_bytes(n).unwrap()];
        ops::quant::randomize(dtype, 1.0 / (n_cols as f32).sqrt(), &mut bits, &mut bytes);
        let mut numbers = vec![0.0_f32; n];
        ops::quant::dequantize(dtype, &bytes, &mut numbers);
        packed.push(make(dtype, bytes));
        let mut decoded = vec![0; 4 * n];
        ops::quant::quantize(Dtype::F32, &numbers, &mut decoded);
        plain.push(make(Dtype::F32, decoded));
    }
    (Checkpoint::from_parts(metadata.clone(), packed).unwrap(), Checkpoint::from_parts(metadata, plain).unwrap())
}

/// A checkpoint as it is with its matrices in a type, and the same with these decoded to f32. Rows that do not fill the blocks
/// of the type stay as they are.
pub fn pack(tiny: &Checkpoint, dtype: Dtype) -> (Checkpoint, Checkpoint) {
    let (mut packed, mut plain) = (Vec::new(), Vec::new());
    for tensor in tiny.tensors() {
        // Norms, biases, convolutions, routers.
        let is_matrix = tensor.dtype != Dtype::F32 && tensor.shape.last().unwrap().is_multiple_of(dtype.block_len());
        let kind = if is_matrix { dtype } else { tensor.dtype };
        let mut numbers = vec![0.0; tensor.n_elements()];
        ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
        let make = |dtype: Dtype, numbers: &[f32]| {
            let mut bytes = vec![0; dtype.row_bytes(numbers.len()).unwrap()];
            ops::quant::quantize(dtype, numbers, &mut bytes);
            Tensor::new(tensor.name.clone(), dtype, tensor.shape.clone(), Bytes::from_vec(bytes)).unwrap()
        };
        packed.push(make(kind, &numbers));
        ops::quant::dequantize(kind, &packed.last().unwrap().bytes, &mut numbers);
        plain.push(make(Dtype::F32, &numbers));
    }
    let metadata = tiny.metadata();
    (
        Checkpoint::from_parts(metadata.clone(), packed).unwrap(),
        Checkpoint::from_parts(metadata.clone(), plain).unwrap(),
    )
}

fn wide_shape(tensor: &Tensor) -> Vec<usize> {
    let name = &tensor.name;
    if name == "output.bias" || UNCHANGED.iter().any(|part| name.contains(part)) {
        return tensor.shape.clone();
    }
    let is_counted = |part: &&str| if **part == *"output.weight" { name == part } else { name.contains(*part) };
    // A norm of its own for each head.
    let is_of_heads = name.ends_with("_norm.weight") && tensor.shape.len() == 2;
    let n_counted = usize::from(is_of_heads || COUNTED.iter().any(is_counted));
    tensor.shape.iter().enumerate().map(|(i, n)| if i < n_counted { *n } else { n * FACTOR }).collect()
}
