//! Lays weights out for this machine's products, once, when they are loaded.
//!
//! Packed formats become tiles of sixteen rows where the CPU has vectors and we have tiles for them; everything else
//! stays in rows.
//! The copy replaces the file's pages: it lies in large pages, which alone reads a quarter faster than a mapped file
//! (EPYC Zen 4, 2 threads: 38 against 30 GB/s).

use gpu::{Grid, Kernel, Slice, SliceMut};
use weights::Dtype;

use crate::Isa;
use crate::formats::{BlockFormat, for_block};
use crate::gpu::formats::FormatSet;
use crate::gpu::unit::{DefineValues, kernels};
use crate::gpu::{count, format_number};
use crate::tiles::{TILE_ROWS, TileFormat, has_tiles};
use crate::view::{SharedPtr, matrix_bytes};
use crate::{Error, Exec, Gpu, Layout, View, ViewMut};

const OP: &str = "pack";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct Pack<'a> {
        src: Slice<'a, u8>,
        dst: SliceMut<'a, u8>,
        n_rows: u32,
        n_groups: u32,
        first_row: u32,
        n_src_groups: u32,
    }
}

kernels! {
    pub(crate) struct PackKernels in "pack"; defines { FORMAT: DefineValues::Formats(FormatSet::Packed) } {
        pack: Kernel<Pack<'static>> = ["pack"],
    }
}

/// As [`packed`], for any GPU.
pub fn packed_on_device(dtype: Dtype, shape: [usize; 2]) -> Result<(Layout, usize), Error> {
    format_number(dtype)?;
    let layout = if dtype.block_len() == 1 { Layout::Rows } else { Layout::Planes };
    match matrix_bytes(layout, dtype, shape) {
        Some(n_bytes) => Ok((layout, n_bytes)),
        None => Err(Error::Argument { op: OP, what: format!("{shape:?} of {dtype} is not a whole number of blocks") }),
    }
}

/// The layout that weights of this type take on this executor, and the bytes it needs.
pub fn packed(exec: Exec, dtype: Dtype, shape: [usize; 2]) -> Result<(Layout, usize), Error> {
    let layout = match exec {
        Exec::Cpu(pool) if pool.isa() < Isa::Avx2 || !has_tiles(dtype) => Layout::Rows,
        Exec::Cpu(_) => Layout::Tiles,
        Exec::Gpu(_) => return packed_on_device(dtype, shape),
    };
    match matrix_bytes(layout, dtype, shape) {
        Some(n_bytes) => Ok((layout, n_bytes)),
        None => Err(Error::Argument { op: OP, what: format!("{shape:?} of {dtype} is not a whole number of blocks") }),
    }
}

/// Copies `src`, in rows, to `dst` in `dst`'s layout.
pub fn pack(exec: Exec, src: View, dst: &mut ViewMut) -> Result<(), Error> {
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return pack_rows(gpu, src, 0, dst),
    };
    dst.expect_shape(OP, "dst", src.shape)?;
    if src.layout != Layout::Rows {
        return Err(Error::Argument { op: OP, what: "src must lie in rows".into() });
    }
    if src.dtype != dst.dtype {
        return Err(Error::Argument { op: OP, what: format!("{} cannot become {}", src.dtype, dst.dtype) });
    }
    let from = src.host_bytes(OP, "src")?;
    let (dtype, [n_rows, n_cols], layout) = (src.dtype, src.shape, dst.layout);
    let to = dst.host_bytes(OP, "dst")?;
    let n_bytes = to.len();
    let to = SharedPtr::new(to);
    if layout == Layout::Planes {
        return Err(Error::Argument { op: OP, what: "planes are for a GPU".into() });
    }
    if layout == Layout::Rows {
        pool.run_ranges(n_bytes, 1 << 20, |range, _| {
            // SAFETY: ranges do not overlap and lie inside both.
            unsafe { to.slice(range.start, range.len()) }.copy_from_slice(&from[range]);
        });
        return Ok(());
    }
    let n_strips = n_rows.div_ceil(TILE_ROWS);
    for_block!(dtype,
        P => {
            let n_blocks = n_cols / P::LEN;
            pool.run_ranges(n_strips, 1, |strips, _| {
                for strip in strips {
                    // SAFETY: each strip belongs to one range and lies inside dst.
                    let tiles = unsafe { to.slice(strip * n_blocks * P::TILE_BYTES, n_blocks * P::TILE_BYTES) };
                    pack_strip::<P>(from, n_rows, n_blocks, strip, tiles);
                }
            });
        },
        P => { let _: Option<P> = None; unreachable!("plain numbers have no tiles: matrix_bytes refused them") }
    );
    Ok(())
}

/// Puts `src`, some whole rows of a matrix on the device, where they belong in `dst`: a matrix may come in pieces.
pub fn pack_rows(gpu: &Gpu, src: View, first_row: usize, dst: &mut ViewMut) -> Result<(), Error> {
    let ([n_rows, n_cols], [n_src, n_src_cols]) = (dst.shape, src.shape);
    if n_src_cols != n_cols || first_row.checked_add(n_src).is_none_or(|end| end > n_rows) || src.dtype != dst.dtype {
        let what =
            format!("{n_src} rows of {n_src_cols} {} at {first_row} of {:?} {}", src.dtype, dst.shape, dst.dtype);
        return Err(Error::Argument { op: OP, what });
    }
    let from = src.device_bytes(OP, "src")?;
    let (dtype, layout) = (dst.dtype, dst.layout);
    let to = dst.device_bytes(OP, "dst")?;
    if from.is_empty() {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    if layout == Layout::Rows {
        let row_bytes = from.len() / n_src;
        let to = to.into_slice(first_row * row_bytes..first_row * row_bytes + from.len())?;
        return Ok(gpu.launcher.copy(from, to)?);
    }
    let kernels = PackKernels::get(gpu.kernels, &[format_number(dtype)?])?;
    let n_src_groups = count(OP, "groups", n_src * (n_cols / 32))?;
    let args = Pack {
        src: from,
        dst: to,
        n_rows: count(OP, "rows", n_rows)?,
        n_groups: count(OP, "groups", n_cols / 32)?,
        first_row: count(OP, "rows", first_row)?,
        n_src_groups,
    };
    Ok(gpu.launcher.launch(&kernels.pack, Grid::line(n_src_groups.div_ceil(THREADS), THREADS), &args)?)
}

fn pack_strip<P: TileFormat>(from: &[u8], n_rows: usize, n_blocks: usize, strip: usize, tiles: &mut [u8]) {
    const MAX_BYTES: usize = 256;
    let zeros = [0; MAX_BYTES];
    for (b, tile) in tiles.chunks_exact_mut(P::TILE_BYTES).enumerate() {
        let blocks: [&[u8]; TILE_ROWS] = std::array::from_fn(|i| {
            let row = strip * TILE_ROWS + i;
            if row < n_rows { &from[(row * n_blocks + b) * P::BYTES..][..P::BYTES] } else { &zeros[..P::BYTES] }
        });
        P::pack_tile(&blocks, tile);
    }
}
