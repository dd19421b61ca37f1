//! An importance matrix: for every weight matrix the mean square of each input column over some text, as llama.cpp
//! stores it. Read from its GGUF form and from the older plain one; written as GGUF.

use std::collections::BTreeMap;
use std::path::Path;

use weights::{Bytes, Checkpoint, Dtype, Metadata};

use crate::{Error, Result};

/// What is wrong with a file's bytes, before the file is named.
type Parsed<T> = std::result::Result<T, String>;

/// Sums of squares, and how many rows went into them; several matrices behind each other for experts.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// The sums of each column.
    pub sums: Vec<f32>,
    /// Rows that were seen, of each matrix.
    pub counts: Vec<f32>,
}

/// How much each column of each matrix matters.
#[derive(Clone, Debug, Default)]
pub struct Importance {
    /// By the tensor's name in GGUF.
    pub by_name: BTreeMap<String, Column>,
    /// Chunks of text that were read.
    pub n_chunks: u32,
    /// Tokens of each.
    pub chunk_tokens: u32,
    /// Names of the texts.
    pub texts: Vec<String>,
}

impl Importance {
    /// Reads either form.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |why: String| Error::Importance { path: path.to_owned(), why };
        let bytes = std::fs::read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let read = if bytes.starts_with(b"GGUF") { read_gguf(bytes) } else { read_plain(&bytes) };
        read.map_err(wrong)
    }

    /// Writes the GGUF form.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set("imatrix.datasets", self.texts.clone());
        metadata.set("imatrix.chunk_count", self.n_chunks);
        metadata.set("imatrix.chunk_size", self.chunk_tokens);
        let floats = |x: &[f32]| Bytes::from_vec(x.iter().flat_map(|x| x.to_le_bytes()).collect());
        let tensors = self.by_name.iter().flat_map(|(name, column)| {
            let n = column.counts.len();
            let sums =
                (format!("{name}.in_sum2"), Dtype::F32, vec![n, column.sums.len() / n.max(1)], floats(&column.sums));
            [sums, (format!("{name}.counts"), Dtype::F32, vec![n, 1], floats(&column.counts))]
        });
        Ok(weights::gguf::write(path, &metadata, tensors)?)
    }

    /// Means for a weight matrix of `n_matrices` with `n_cols` columns, behind each other; `None` where the file says
    /// nothing about it, or nothing that fits.
    pub fn means(&self, name: &str, n_matrices: usize, n_cols: usize) -> Option<Vec<f32>> {
        let Column { sums, counts } = self.by_name.get(name)?;
        let n_known = sums.len().checked_div(n_cols).filter(|n| n * n_cols == sums.len() && *n > 0)?;
        if n_known != 1 && n_known != n_matrices {
            return None;
        }
        let mut means = Vec::with_capacity(n_matrices * n_cols);
        for matrix in 0..n_matrices {
            let matrix = matrix % n_known;
            let count = counts.get(matrix).or(counts.first()).copied().unwrap_or(0.0);
            // An expert nobody asked: all its columns count alike.
            let mean = |sum: &f32| if count > 0.0 { sum / count } else { 1.0 };
            means.extend(sums[matrix * n_cols..][..n_cols].iter().map(mean));
        }
        means.iter().all(|x| x.is_finite() && *x >= 0.0).then_some(means)
    }
}

fn read_gguf(bytes: Vec<u8>) -> Parsed<Importance> {
    let said = |error: weights::Error| error.to_string();
    let file = Checkpoint::from_bytes(Bytes::from_vec(bytes)).map_err(said)?;
    let metadata = file.metadata();
    if metadata.string("general.type").map_err(said)? != Some("imatrix") {
        return Err("a GGUF file, but no importance matrix (`general.type` is not `imatrix`)".to_owned());
    }
    let floats = |name: &str| -> Parsed<Vec<f32>> {
        let tensor = file.tensor(name).map_err(said)?;
        let mut numbers = vec![0.0; tensor.n_elements()];
        ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
        Ok(numbers)
    };
    let mut out = Importance {
        n_chunks: metadata.u32("imatrix.chunk_count").map_err(said)?.unwrap_or(0),
        chunk_tokens: metadata.u32("imatrix.chunk_size").map_err(said)?.unwrap_or(0),
        texts: metadata.strings("imatrix.datasets").map_err(said)?.unwrap_or_default().to_vec(),
        ..Importance::default()
    };
    for tensor in file.tensors() {
        if let Some(name) = tensor.name.strip_suffix(".in_sum2") {
            let column = Column { sums: floats(&tensor.name)?, counts: floats(&format!("{name}.counts"))? };
            out.by_name.insert(name.to_owned(), column);
        }
    }
    Ok(out)
}

/// The older form: a count; per entry a name, the calls, and the sums; then maybe the chunks and the text's name.
fn read_plain(bytes: &[u8]) -> Parsed<Importance> {
    let mut rest = bytes;
    let mut take = |n: usize| -> Parsed<&[u8]> {
        let (taken, left) = rest.split_at_checked(n).ok_or("it ends in the middle of an entry")?;
        rest = left;
        Ok(taken)
    };
    let number = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let size = |n: i32, what: &str| usize::try_from(n).map_err(|_| format!("{what} of {n}"));
    let n_entries = size(number(take(4)?), "entries")?;
    let mut out = Importance::default();
    for _ in 0..n_entries {
        let n_name = size(number(take(4)?), "a name's length")?;
        let name = std::str::from_utf8(take(n_name)?).map_err(|_| "a name that is not UTF-8")?.to_owned();
        let n_calls = number(take(4)?);
        let n_values = size(number(take(4)?), "values")?;
        let values = take(n_values.checked_mul(4).ok_or_else(|| format!("{n_values} values"))?)?;
        let sums = values.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
        out.by_name.insert(name, Column { sums, counts: vec![n_calls.max(1) as f32] });
    }
    if out.by_name.is_empty() {
        return Err("neither form of an importance matrix".to_owned());
    }
    if let Ok(chunks) = take(4) {
        out.n_chunks = u32::try_from(number(chunks)).unwrap_or(0);
    }
    Ok(out)
}
