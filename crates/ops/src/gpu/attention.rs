//! Attention on a GPU. `plan.rs` decides which kernel attends and how a batch becomes tiles; `flash.rs` launches the
//! kernels for many rows, `split.rs` those for few. Each kernel is declared once, beside its launch.

pub(crate) mod flash;
mod plan;
pub(crate) mod split;

use gpu::Slice;
pub(crate) use plan::SPAN_WORDS;
pub use plan::{AttentionChip, AttentionKernel, AttentionPlan, DeviceSpans};

use super::count;
use crate::attention::{Heads, Kv, OP, QuerySpan, Shaping};
use crate::kv_format::KvFormat;
use crate::{Error, Gpu, View, ViewMut};

/// What every kernel of attention reads.
struct Operands<'a> {
    q: Slice<'a, f32>,
    k_pool: Slice<'a, u8>,
    v_pool: Slice<'a, u8>,
    tiles: Slice<'a, u32>,
    spans: Slice<'a, u32>,
    tables: Slice<'a, u32>,
    sinks: Option<Slice<'a, f32>>,
    slopes: Option<Slice<'a, f32>>,
    /// Rows of so many words.
    chosen: Option<(Slice<'a, u32>, u32)>,
    heads: Heads,
    plan: AttentionPlan,
    /// Query vectors of the fullest tile.
    most_queries: usize,
    format: KvFormat,
    is_shaped: bool,
    /// 0: none.
    window: u32,
    /// 0: none.
    cap: f32,
}

pub(crate) fn launch(
    gpu: &Gpu,
    q: View,
    kv: Kv,
    heads: Heads,
    (spans, DeviceSpans { plan, tiles, words }): (&[QuerySpan], DeviceSpans),
    shaping: Shaping,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let is_vector = plan.kernel == AttentionKernel::Vector;
    if !is_vector && (shaping.slopes.is_some() || shaping.chosen.is_some()) {
        let what = format!(
            "{:?} knows no slopes and no chosen tokens; a plan for them goes without the matrix units",
            plan.kernel
        );
        return Err(Error::Argument { op: OP, what });
    }
    if spans.is_empty() {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let n_span_words = SPAN_WORDS * spans.len();
    let operands = Operands {
        q: q.device_f32s(OP, "q")?,
        k_pool: kv.k.device_bytes(OP, "k")?,
        v_pool: kv.v.device_bytes(OP, "v")?,
        tiles: tiles.slice(..2 * plan.n_tiles)?,
        spans: words.slice(..n_span_words)?,
        tables: words.slice(n_span_words..)?,
        sinks: shaping.sinks.map(|sinks| sinks.device_f32s(OP, "sinks")).transpose()?,
        slopes: shaping.slopes.map(|slopes| slopes.device_f32s(OP, "slopes")).transpose()?,
        chosen: match shaping.chosen {
            Some(chosen) => {
                Some((chosen.device_f32s(OP, "chosen")?.cast()?, count(OP, "words of choices", chosen.n_cols())?))
            }
            None => None,
        },
        heads,
        plan,
        most_queries: most_queries(spans, heads, plan),
        format: KvFormat::of(OP, kv.k.dtype, heads.head_dim)?,
        is_shaped: shaping.is_any(),
        window: count(OP, "window", shaping.window_bits())?,
        cap: shaping.softcap.unwrap_or(0.0),
    };
    let out = out.device_f32s(OP, "out")?;
    if plan.kernel.is_by_head() { flash::launch(gpu, &operands, out) } else { split::launch(gpu, &operands, out) }
}

fn most_queries(spans: &[QuerySpan], heads: Heads, plan: AttentionPlan) -> usize {
    let most_rows = spans.iter().map(|span| span.n_rows).max().unwrap_or(0);
    (most_rows * (heads.n_heads / heads.n_kv_heads)).clamp(1, plan.n_queries)
}
