//! 8-bit floats (E4M3, E5M2) and 8-bit integers with scales beside them: one for the tensor, one a row, or one a block
//! of rows and columns. `X_scale_inv` and `X_scale` both hold what a weight is multiplied with; the first name is that of
//! block scales. Without a scale, 8-bit floats are numbers of F16.

use ::safetensors::tensor::Dtype as Kind;
use serde_json::Value;

use super::super::reader::StoredTensor;
use super::PackedTensors;
use super::make::{bad, e4m3, e5m2, numbers, rounded, rounded_type};
use crate::{Result, Tensor};

/// What to call it, where a tensor is one of ours to decode.
pub(super) fn scheme_of(kind: Kind, name: &str, pieces: &PackedTensors) -> Option<&'static str> {
    // Scales may be 8-bit floats themselves; they go with their weights.
    let is_scale = name.ends_with("_scale") || name.ends_with("_scale_inv");
    let has_scale = ["_scale", "_scale_inv"].iter().any(|end| pieces.by_name.contains_key(&format!("{name}{end}")));
    match kind {
        Kind::F8_E4M3 | Kind::F8_E5M2 if !is_scale => Some("F8"),
        Kind::I8 if has_scale => Some("I8 with scales"),
        _ => None,
    }
}

pub(super) fn tensor(name: &str, pieces: &mut PackedTensors, config: &Value) -> Result<Tensor> {
    let weight = pieces.need(name, name)?;
    let scales = match pieces.take(&format!("{name}_scale_inv")) {
        Some(scales) => Some(scales),
        None => pieces.take(&format!("{name}_scale")),
    };
    if pieces.take(&format!("{name}_zero_point")).is_some_and(|zeros| zeros.bytes.iter().any(|&byte| byte != 0)) {
        return Err(bad(&weight, "8-bit weights with zero points are not supported yet"));
    }
    let (decode, largest): (fn(u8) -> f32, f32) = match weight.kind {
        Kind::F8_E4M3 => (e4m3, 448.0),
        Kind::F8_E5M2 => (e5m2, 57_344.0),
        _ => (|byte| f32::from(byte as i8), 128.0),
    };
    let n_in = weight.shape.last().copied().unwrap_or(1).max(1);
    let blocks = match &scales {
        None => Blocks { rows: usize::MAX, cols: usize::MAX, n_rows: usize::MAX, n_col_blocks: 1, n_row_blocks: 1 },
        Some(scales) => Blocks::of(&weight, scales, config)?,
    };
    let scales = scales.as_ref().map_or(Ok(vec![1.0]), numbers)?;
    let dtype = rounded_type(&scales, largest);
    let (shape, bytes) = (weight.shape.clone(), weight.bytes.clone());
    rounded(name.to_owned(), dtype, shape, move |row, out| {
        for (i, x) in out.iter_mut().enumerate() {
            *x = decode(bytes[row * n_in + i]) * scales[blocks.idx(row, i)];
        }
    })
}

/// Which scale a weight takes.
struct Blocks {
    /// Weights of a block.
    rows: usize,
    cols: usize,
    /// Rows of one matrix, where several lie behind each other.
    n_rows: usize,
    n_row_blocks: usize,
    n_col_blocks: usize,
}

impl Blocks {
    fn idx(&self, row: usize, col: usize) -> usize {
        let (matrix, row) = (row / self.n_rows, row % self.n_rows);
        (matrix * self.n_row_blocks + row / self.rows) * self.n_col_blocks + col / self.cols
    }

    fn of(weight: &StoredTensor, scales: &StoredTensor, config: &Value) -> Result<Self> {
        let (n_rows, n_cols) = match weight.shape.as_slice() {
            [.., n_rows, n_cols] => ((*n_rows).max(1), (*n_cols).max(1)),
            _ => (1, weight.shape.last().copied().unwrap_or(1).max(1)),
        };
        let n_matrices = (weight.bytes.len() / n_rows / n_cols).max(1);
        let n_scales = scales.shape.iter().product::<usize>();
        let one = Self { rows: n_rows, cols: n_cols, n_rows, n_row_blocks: 1, n_col_blocks: 1 };
        if n_scales == 1 && n_matrices == 1 {
            return Ok(one);
        }
        let block = block_size(config);
        let (n_row_blocks, n_col_blocks) = match scales.shape.as_slice() {
            [n] if *n == n_rows && n_matrices == 1 => (*n, 1),
            [n] if *n == n_matrices => (1, 1),
            [outer @ .., rows, cols] if outer.iter().product::<usize>() == n_matrices => (*rows, *cols),
            _ => return Err(bad(scales, format!("shape {:?} for weights of {:?}", scales.shape, weight.shape))),
        };
        // The last block of a row or column may be cut short, so its size comes from the configuration if it is there.
        let size = |n: usize, n_blocks: usize, said: Option<usize>| match said {
            Some(size) if size > 0 && n.div_ceil(size) == n_blocks => Some(size),
            _ if n_blocks > 0 && n.is_multiple_of(n_blocks) => Some(n / n_blocks),
            _ => None,
        };
        let rows = size(n_rows, n_row_blocks, block.map(|[rows, _]| rows));
        let cols = size(n_cols, n_col_blocks, block.map(|[_, cols]| cols));
        match (rows, cols) {
            (Some(rows), Some(cols)) => Ok(Self { rows, cols, n_rows, n_row_blocks, n_col_blocks }),
            _ => Err(bad(
                scales,
                format!("shape {:?} cuts weights of {:?} in no even blocks", scales.shape, weight.shape),
            )),
        }
    }
}

/// `weight_block_size`, or compressed-tensors' `block_structure`.
fn block_size(config: &Value) -> Option<[usize; 2]> {
    let groups = config["config_groups"].as_object();
    let structure = groups.and_then(|groups| groups.values().next()).map(|group| &group["weights"]["block_structure"]);
    let place = if config["weight_block_size"].is_array() { Some(&config["weight_block_size"]) } else { structure };
    let sizes = place?.as_array()?;
    match sizes.as_slice() {
        [rows, cols] => Some([rows.as_u64()? as usize, cols.as_u64()? as usize]),
        _ => None,
    }
}
