//! Rows of the embedding table, decoded to f32.

use crate::quant::{Float, Format, TILE_ROWS, dequantize, for_dtype};
use crate::{Error, Exec, Layout, View, ViewMut};

const OP: &str = "embed";

/// `out[i] = table[tokens[i]]`; `table` is `[n_vocab, n_embd]` in any type and layout, `out` `[n_tokens, n_embd]` f32.
pub fn embed(exec: Exec, table: View, tokens: &[u32], out: &mut ViewMut) -> Result<(), Error> {
    let [n_vocab, n_embd] = table.shape;
    out.expect_shape(OP, "out", [tokens.len(), n_embd])?;
    if let Some(token) = tokens.iter().find(|token| **token as usize >= n_vocab) {
        return Err(Error::Argument { op: OP, what: format!("token {token} of a table of {n_vocab}") });
    }
    let bytes = table.host_bytes(OP, "table")?;
    let out = out.f32s(OP, "out")?;
    let Exec::Cpu(_) = exec;
    if n_embd == 0 {
        return Ok(());
    }
    // A few microseconds a row: not worth waking anybody.
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(n_embd)) {
        match table.layout {
            Layout::Rows => {
                let row_bytes = bytes.len() / n_vocab;
                dequantize(table.dtype, &bytes[token as usize * row_bytes..][..row_bytes], out);
            }
            Layout::Tiles => for_dtype!(table.dtype,
                P => row_of_tiles::<P>(bytes, token as usize, out),
                P => unreachable!("{:?}: plain numbers have no tiles", P::NO_TILES)
            ),
        }
    }
    Ok(())
}

fn row_of_tiles<P: Format>(bytes: &[u8], row: usize, out: &mut [f32]) {
    let strip_bytes = out.len() / P::LEN * P::TILE_BYTES;
    let strip = &bytes[row / TILE_ROWS * strip_bytes..][..strip_bytes];
    let mut block = [0; 256];
    for (tile, out) in strip.chunks_exact(P::TILE_BYTES).zip(out.chunks_exact_mut(P::LEN)) {
        P::unpack_row(tile, row % TILE_ROWS, &mut block[..P::BYTES]);
        P::decode(&block[..P::BYTES], out);
    }
}
