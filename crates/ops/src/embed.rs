//! Rows of the embedding table, decoded to f32.

use gpu::{Grid, Kernel, Slice, SliceMut};
use half::f16;
use weights::Dtype;

use crate::formats::{Float, dequantize, for_block};
use crate::gpu::formats::FormatSet;
use crate::gpu::unit::{DefineValues, kernels};
use crate::gpu::{count, format_number};
use crate::tiles::{TILE_ROWS, TileFormat};
use crate::{Error, Exec, Gpu, Indices, Kernels, Layout, View, ViewMut};

const OP: &str = "embed";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct Embed<'a> {
        pub table: Slice<'a, u8>,
        pub tokens: Slice<'a, u32>,
        pub out: SliceMut<'a, f32>,
        pub n_vocab: u32,
        pub n_cols: u32,
    }
}

gpu::args! {
    pub(crate) struct DecodeF16<'a> {
        pub table: Slice<'a, u8>,
        pub out: SliceMut<'a, f16>,
        pub n_rows: u32,
        pub n_cols: u32,
        pub first_row: u32,
        pub n_out_rows: u32,
    }
}

gpu::args! {
    pub(crate) struct DecodeF32<'a> {
        pub table: Slice<'a, u8>,
        pub out: SliceMut<'a, f32>,
        pub n_rows: u32,
        pub n_cols: u32,
        pub first_row: u32,
        pub n_out_rows: u32,
    }
}

kernels! {
    pub(crate) struct EmbedKernels in "embed", overlapping; defines { FORMAT: DefineValues::Formats(FormatSet::All) } {
        embed: Kernel<Embed<'static>> = ["embed"],
        decode_f16: Kernel<DecodeF16<'static>> = ["decode_f16"],
        decode_f32: Kernel<DecodeF32<'static>> = ["decode_f32"],
    }
}

impl EmbedKernels {
    pub(crate) fn of(kernels: &Kernels, dtype: Dtype) -> Result<Self, Error> {
        Self::get(kernels, &[format_number(dtype)?])
    }
}

/// `out[i] = table[tokens[i]]`; `table` is `[n_vocab, n_embd]` in any type and layout, `out` `[n_tokens, n_embd]` f32.
pub fn embed<'t>(exec: Exec, table: View, tokens: impl Into<Indices<'t>>, out: &mut ViewMut) -> Result<(), Error> {
    let tokens = tokens.into();
    let [n_vocab, n_embd] = table.shape;
    out.expect_shape(OP, "out", [tokens.len(), n_embd])?;
    if let Some(token) = tokens.host.iter().find(|token| **token as usize >= n_vocab) {
        return Err(Error::Argument { op: OP, what: format!("token {token} of a table of {n_vocab}") });
    }
    if n_embd == 0 || tokens.is_empty() {
        return Ok(());
    }
    if let Exec::Gpu(gpu) = exec {
        return launch(gpu, table, tokens, out);
    }
    let bytes = table.host_bytes(OP, "table")?;
    let out = out.f32s(OP, "out")?;
    // A few microseconds a row: not worth waking anybody.
    for (&token, out) in tokens.host.iter().zip(out.chunks_exact_mut(n_embd)) {
        match table.layout {
            Layout::Rows => {
                let row_bytes = bytes.len() / n_vocab;
                dequantize(table.dtype, &bytes[token as usize * row_bytes..][..row_bytes], out);
            }
            Layout::Tiles => for_block!(table.dtype,
                P => row_of_tiles::<P>(bytes, token as usize, out),
                P => unreachable!("{:?}: plain numbers have no tiles", P::NO_TILES)
            ),
            Layout::Planes => {
                return Err(Error::Argument { op: OP, what: "planes are for a GPU".into() });
            }
        }
    }
    Ok(())
}

fn launch(gpu: &Gpu, table: View, tokens: Indices, out: &mut ViewMut) -> Result<(), Error> {
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (tokens.len() * table.n_cols()) as u64, flops: 0 });
    expect_device_layout(OP, &table)?;
    let args = Embed {
        table: table.device_bytes(OP, "table")?,
        tokens: tokens.on_device(OP, "tokens")?,
        out: out.device_f32s(OP, "out")?,
        n_vocab: count(OP, "rows", table.n_rows())?,
        n_cols: count(OP, "columns", table.n_cols())?,
    };
    let grid = Grid::line(count(OP, "tokens", tokens.len())?, THREADS);
    Ok(gpu.launcher.launch(&EmbedKernels::of(gpu.kernels, table.dtype)?.embed, grid, &args)?)
}

/// Packed weights lie in planes on a GPU, plain numbers in rows.
pub(crate) fn expect_device_layout(op: &'static str, weight: &View) -> Result<(), Error> {
    let expected = if weight.dtype.block_len() > 1 { Layout::Planes } else { Layout::Rows };
    if weight.layout == expected {
        return Ok(());
    }
    Err(Error::Argument { op, what: format!("{} in {:?}, a GPU takes {expected:?}", weight.dtype, weight.layout) })
}

fn row_of_tiles<P: TileFormat>(bytes: &[u8], row: usize, out: &mut [f32]) {
    let strip_bytes = out.len() / P::LEN * P::TILE_BYTES;
    let strip = &bytes[row / TILE_ROWS * strip_bytes..][..strip_bytes];
    for (tile, out) in strip.chunks_exact(P::TILE_BYTES).zip(out.chunks_exact_mut(P::LEN)) {
        P::decode_row(tile, row % TILE_ROWS, out);
    }
}
