//! Tensors that safetensors keep in one and GGUF in two, or the other way round: the keys and values of compressed
//! attention, gate and up of gpt-oss' experts. Which rows go where is what loading knows (`parts/cut.rs`).

use weights::{Bytes, Dtype, Tensor};

use super::tensors::floats;
use crate::parts::Cut;
use crate::{Config, Error};

/// A tensor of GGUF, cut out of one of safetensors matrix by matrix.
pub struct TensorPiece {
    pub stem: &'static str,
    cuts: Vec<Cut>,
    shape: Vec<usize>,
    /// What the cuts count.
    rows: RowOrder,
}

#[derive(Copy, Clone, Eq, PartialEq)]
enum RowOrder {
    OfMatrices,
    /// Biases are cut number by number, and are f32.
    OfNumbers,
}

/// What becomes of a tensor called `stem`; `None` where it stays one.
pub fn pieces(config: &Config, stem: &str, suffix: &str, source: &Tensor) -> Result<Option<Vec<TensorPiece>>, Error> {
    let is_packed = source.dtype.block_len() > 1;
    let n_embd = config.n_embd;
    Ok(match (stem, suffix, config.mla, config.experts) {
        ("attn_kv_b", "weight", Some(mla), _) => {
            let n = config.n_heads;
            expect(source, &[n * (mla.nope_dim + mla.v_dim), mla.kv_rank])?;
            let keys = (0..n).map(|head| Cut::keys_of(head, &mla)).collect();
            let values = (0..n).map(|head| Cut::values_of(head, &mla)).collect();
            Some(vec![
                TensorPiece::matrices("attn_k_b", keys, vec![n, mla.kv_rank, mla.nope_dim]),
                TensorPiece::matrices("attn_v_b", values, vec![n, mla.v_dim, mla.kv_rank]),
            ])
        }
        ("ffn_gate_up_exps", _, _, Some(experts)) => {
            let (n, n_ff) = (experts.n, experts.n_ff);
            let is_bias = suffix == "bias";
            let shape: &[usize] = match (is_bias, is_packed) {
                (true, _) => &[n, 2 * n_ff],
                (false, true) => &[n, 2 * n_ff, n_embd],
                (false, false) => &[n, n_embd, 2 * n_ff],
            };
            expect(source, shape)?;
            let piece = |stem: &'static str, which: usize| {
                let in_rows = |expert| Cut::alternating(expert, which, n_ff);
                let transposed = |expert| Cut::alternating_transposed(expert, which, n_embd);
                if is_bias {
                    let cuts = (0..n).map(in_rows).collect();
                    return TensorPiece { stem, cuts, shape: vec![n, n_ff], rows: RowOrder::OfNumbers };
                }
                let cuts = (0..n).map(|expert| if is_packed { in_rows(expert) } else { transposed(expert) }).collect();
                TensorPiece::matrices(stem, cuts, vec![n, n_ff, n_embd])
            };
            Some(vec![piece("ffn_gate_exps", 0), piece("ffn_up_exps", 1)])
        }
        // A stack of plain numbers is kept the other way round.
        ("ffn_down_exps", "weight", _, Some(experts)) if source.shape.len() == 3 && !is_packed => {
            let (n, n_ff) = (experts.n, experts.n_ff);
            expect(source, &[n, n_ff, n_embd])?;
            let cuts = (0..n).map(|expert| Cut::transposed(expert * n_ff, n_ff)).collect();
            Some(vec![TensorPiece::matrices("ffn_down_exps", cuts, vec![n, n_embd, n_ff])])
        }
        _ => None,
    })
}

impl TensorPiece {
    fn matrices(stem: &'static str, cuts: Vec<Cut>, shape: Vec<usize>) -> Self {
        Self { stem, cuts, shape, rows: RowOrder::OfMatrices }
    }

    pub fn tensor(self, name: String, source: &Tensor) -> Result<Tensor, Error> {
        let (from, bytes) = (source.dtype, source.bytes.clone());
        let is_bias = self.rows == RowOrder::OfNumbers;
        // Packed rows cannot be transposed as they are.
        let is_decoded = from.block_len() > 1 && self.cuts.iter().any(|cut| cut.transposed.is_some());
        let dtype = if is_bias || is_decoded { Dtype::F32 } else { from };
        let n_rows = if is_bias { source.n_elements() } else { source.n_rows() };
        let n: usize = self.shape.iter().product();
        let n_bytes = n / dtype.block_len() * dtype.block_bytes();
        let Self { cuts, shape, .. } = self;
        let bytes = Bytes::made(n_bytes, move || {
            let decoded: Option<Vec<u8>> =
                (dtype != from).then(|| floats(from, &bytes, 0.0).iter().flat_map(|x| x.to_le_bytes()).collect());
            let rows = decoded.as_deref().unwrap_or(&bytes);
            let row_bytes = rows.len() / n_rows.max(1);
            let mut all = Vec::with_capacity(n_bytes);
            cuts.iter().for_each(|cut| all.extend(cut.pick_bytes(rows, row_bytes, dtype.block_bytes())));
            bytes.release_pages();
            all
        });
        Ok(Tensor::new(name, dtype, shape, bytes)?)
    }
}

fn expect(source: &Tensor, shape: &[usize]) -> Result<(), Error> {
    if source.shape == shape {
        return Ok(());
    }
    let (name, found) = (source.name.clone(), source.shape.clone());
    Err(Error::Shape { name, found, expected: shape.to_vec() })
}
