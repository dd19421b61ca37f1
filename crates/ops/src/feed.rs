//! The tokens of a step, some of which only the device knows: the step before chose them, and the host has not read
//! them yet.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Error, Exec, Gpu, Indices, NOT_NUMBERS, View, ViewMut};

const OP: &str = "feed";
const THREADS: u32 = 256;
/// In place of an index: the token is given.
pub const GIVEN: u32 = u32::MAX;

gpu::args! {
    pub(crate) struct Feed<'a> {
        given: Slice<'a, u32>,
        sources: Slice<'a, u32>,
        chosen: Slice<'a, u32>,
        out: SliceMut<'a, u32>,
        n_rows: u32,
    }
}

kernels! {
    pub(crate) struct FeedKernels in "feed" {
        feed: Kernel<Feed<'static>> = ["feed"],
    }
}

/// `out[i] = given[i]` where `sources[i]` is [`GIVEN`], else `chosen[sources[i]]`: tokens as bits in `[n, 1]`, as
/// [`sample`](crate::sample) leaves them. Token 0 stands in for a choice that failed.
pub fn feed(exec: Exec, given: Indices, sources: Indices, chosen: View, out: &mut ViewMut) -> Result<(), Error> {
    let n_rows = given.len();
    out.expect_shape(OP, "out", [n_rows, 1])?;
    let is_source = |source: &u32| *source == GIVEN || (*source as usize) < chosen.n_rows();
    if sources.len() != n_rows || chosen.n_cols() != 1 || !sources.host.iter().all(is_source) {
        let what = format!("{} sources among {:?} for {n_rows} tokens", sources.len(), chosen.shape);
        return Err(Error::Argument { op: OP, what });
    }
    match exec {
        Exec::Cpu(_) => {
            let (chosen, out) = (chosen.f32s(OP, "chosen")?, out.f32s(OP, "out")?);
            for ((&given, &source), out) in given.host.iter().zip(sources.host).zip(out) {
                let token = if source == GIVEN { given } else { chosen[source as usize].to_bits() };
                *out = f32::from_bits(if token == NOT_NUMBERS { 0 } else { token });
            }
            Ok(())
        }
        Exec::Gpu(_) if n_rows == 0 => Ok(()),
        Exec::Gpu(gpu) => launch(gpu, given, sources, chosen, out),
    }
}

fn launch(gpu: &Gpu, given: Indices, sources: Indices, chosen: View, out: &mut ViewMut) -> Result<(), Error> {
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 16 * given.len() as u64, flops: 0 });
    let kernels = FeedKernels::get(gpu.kernels, &[])?;
    let n_rows = count(OP, "tokens", given.len())?;
    let args = Feed {
        given: given.on_device(OP, "given")?,
        sources: sources.on_device(OP, "sources")?,
        chosen: chosen.device_f32s(OP, "chosen")?.cast()?,
        out: out.device_f32s(OP, "out")?.cast()?,
        n_rows,
    };
    Ok(gpu.launcher.launch(&kernels.feed, Grid::line(n_rows.div_ceil(THREADS), THREADS), &args)?)
}
