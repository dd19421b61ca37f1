//! The pool for layers with a window: whether they have one of their own, and how large it is.

use ::model::BLOCK_TOKENS;

use super::{CPU_STEP, PlanSizes};

/// Texts that share the room of one full context: as many windows are kept for it.
const TEXTS_IN_A_CONTEXT: usize = 4;
/// What steps write in the pool for windows is at most one part in this many of the other pool, but room for two steps of a
/// CPU.
const STEP_SHARE: usize = 8;
const MIN_STEP_TOKENS: usize = 2 * CPU_STEP;
/// A pool for windows is worth it where it saves one block in this many.
const MIN_SAVED_SHARE: usize = 4;

/// Blocks for windows of `window` tokens beside a pool of `sizes.n_blocks`: a window for every text that the pool holds,
/// running or not, if texts fill a part of their context; and what steps write before windows move on. 0 where that
/// saves little: whatever is in the pool can be found again then, without a window.
pub(super) fn window_blocks(window: usize, sizes: PlanSizes, n_in_flight: usize) -> usize {
    let blocks = |n_tokens: usize| n_tokens.div_ceil(BLOCK_TOKENS);
    let needed = |n_blocks: usize| {
        let text = blocks(sizes.n_ctx / TEXTS_IN_A_CONTEXT).max(1);
        let most = (n_blocks / STEP_SHARE).max(blocks(MIN_STEP_TOKENS));
        let steps = blocks(sizes.max_batch_tokens.saturating_mul(n_in_flight)).min(most);
        n_blocks.div_ceil(text).saturating_mul(engine::windows::most_seen(window)).saturating_add(steps)
    };
    // The same for every size of the pool, so that a larger one never takes less.
    let one = blocks(sizes.n_ctx);
    if needed(one) > one - one / MIN_SAVED_SHARE { 0 } else { needed(sizes.n_blocks).min(sizes.n_blocks) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::model::{Config, LoadOptions};
    use weights::Checkpoint;

    /// A published shape: layers, of which one in so many sees everything, their window, KV heads and head size.
    struct Shape {
        name: &'static str,
        n_layers: usize,
        period: usize,
        window: usize,
        n_kv_heads: usize,
        head_dim: usize,
    }

    const SHAPES: [Shape; 3] = [
        Shape { name: "Gemma 3 12B", n_layers: 48, period: 6, window: 1024, n_kv_heads: 8, head_dim: 256 },
        Shape { name: "Gemma 3 27B", n_layers: 62, period: 6, window: 1024, n_kv_heads: 16, head_dim: 128 },
        Shape { name: "gpt-oss-20b", n_layers: 24, period: 2, window: 128, n_kv_heads: 8, head_dim: 64 },
    ];

    /// Of a tiny checkpoint of a family with windows, with as many and as large layers as the shape.
    fn config_of(shape: &Shape) -> Config {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/testdata/families/gemma3");
        let mut config = Config::from_checkpoint(&Checkpoint::open(folder.as_ref()).unwrap()).unwrap();
        let Shape { n_layers, period, window, n_kv_heads, head_dim, .. } = *shape;
        (config.n_layers, config.n_kv_heads, config.head_dim) = (n_layers, n_kv_heads, head_dim);
        (config.window, config.n_ctx_train) = (Some(window), 131_072);
        config.is_windowed = (0..n_layers).map(|layer_idx| !(layer_idx + 1).is_multiple_of(period)).collect();
        config.kv_sources = (0..n_layers).collect();
        config.blocks = vec![config.blocks[0]; n_layers];
        config
    }

    /// Tokens of one conversation, or of all requests of a server, that so many bytes of keys and values are good for;
    /// `windows`: with a pool of their own for layers with a window.
    fn most_tokens(config: &Config, n_bytes: usize, server_context: Option<usize>, windows: bool) -> usize {
        let fits = |n_tokens: usize| {
            let (n_blocks, n_ctx) = (n_tokens / BLOCK_TOKENS, server_context.unwrap_or(n_tokens));
            let sizes = PlanSizes { max_batch_tokens: CPU_STEP, max_logits_rows: 1, n_blocks, n_ctx, n_sequences: 1 };
            let n_window_blocks = if windows { window_blocks(config.window.unwrap(), sizes, 1) } else { 0 };
            ::model::kv_bytes(config, &LoadOptions { n_blocks, n_window_blocks, ..LoadOptions::default() }) <= n_bytes
        };
        (64..).map(|n| n * 256).take_while(|&n_tokens| fits(n_tokens)).last().unwrap_or(0)
    }

    #[test]
    fn windows_leave_the_memory_to_contexts() {
        for shape in SHAPES {
            let config = config_of(&shape);
            assert_eq!(config.window_pool(), Some(shape.window));
            // What 32,768 tokens take where every layer keeps them all.
            let whole = ::model::kv_bytes(&config, &LoadOptions { n_blocks: 2048, ..LoadOptions::default() });
            let now = [None, Some(8192), Some(32_768)].map(|server| {
                assert_eq!(most_tokens(&config, whole, server, false), 32_768, "{}", shape.name);
                most_tokens(&config, whole, server, true)
            });
            println!("{}: {} bytes, now {now:?} tokens", shape.name, whole);
            let expected = if shape.period == 2 { [1.8, 1.8, 1.8] } else { [5.2, 1.6, 3.4] };
            for (now, expected) in now.iter().zip(expected) {
                assert!(*now as f64 >= expected * 32_768.0, "{}: {now} tokens", shape.name);
            }
        }
    }

    #[test]
    fn a_pool_for_windows_is_made_only_where_it_saves() {
        let sizes = |n_ctx: usize, n_contexts: usize| PlanSizes {
            max_batch_tokens: CPU_STEP,
            max_logits_rows: 1,
            n_blocks: n_ctx * n_contexts / BLOCK_TOKENS,
            n_ctx,
            n_sequences: 1,
        };
        // A window of half of the context, and one that is nearly nothing of it.
        assert_eq!(window_blocks(4096, sizes(8192, 1), 1), 0);
        assert_eq!(window_blocks(1024, sizes(2048, 8), 1), 0);
        let [one, eight] = [1, 8].map(|n_contexts| window_blocks(128, sizes(32_768, n_contexts), 1));
        // Ten blocks for each of four texts, and a step of 512 tokens.
        assert_eq!((one, eight), (4 * 10 + 32, 32 * 10 + 32));
        let many = (1..200).map(|n| window_blocks(1024, PlanSizes { n_blocks: 512 + n * 7, ..sizes(8192, 1) }, 2));
        assert!(many.is_sorted(), "a larger pool takes no less");
    }
}
