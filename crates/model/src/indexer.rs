//! DeepSeek's sparse attention. In addition to its keys and values, a token has one short key for the layer's indexer.
//! A row compares those keys with a few queries of its own, and attention sees only the best-scoring tokens. A layer
//! without an indexer uses the choice of the one before it.

use ops::{IndexQueries, Indices, Pairing, Product, Spans, Tensor, View};

use crate::decoder::Context;
use crate::parts::{IndexerParts, Norm};
use crate::scratch::{IndexScratch, MaxRows};
use crate::{Config, Error};

/// Of a key's norm; no file says it.
const NORM_EPS: f32 = 1e-6;

/// What an indexer is made of.
#[derive(Copy, Clone, Debug)]
pub struct Indexer {
    pub n_heads: usize,
    pub head_dim: usize,
    /// Tokens that a row attends to.
    pub n_chosen: usize,
    pub pairing: Pairing,
}

impl Config {
    /// Tokens of the longest context whose tokens are ever chosen among; 0 where all are seen anyway.
    pub(crate) fn indexed_context(&self, rows: MaxRows) -> usize {
        self.indexer.map_or(0, |indexer| if rows.context > indexer.n_chosen { rows.context } else { 0 })
    }
}

/// The rows of a step, as an indexer sees them.
pub struct IndexedRows<'a> {
    pub n: usize,
    pub angles: View<'a>,
    /// Where their keys are kept.
    pub slots: Indices<'a>,
    /// `None` where every row attends to all tokens that it sees.
    pub spans: Option<Spans<'a>>,
}

/// The product of the layer's input that becomes the tokens' keys, and where tokens are chosen the one that becomes weights.
pub fn products_of_input<'w, 'o>(
    context: Context<'w>,
    parts: &IndexerParts,
    n: usize,
    chooses: bool,
    s: &'o mut IndexScratch,
    products: &mut Vec<Product<'w, 'o>>,
) {
    products.push(Product::write(context.weights.view(parts.k), s.k.rows_mut(n)));
    if chooses {
        products.push(Product::write(context.weights.view(parts.weights), s.weights.rows_mut(n)));
    }
}

/// Keeps the new tokens' keys; where a row sees more tokens than it may attend to, chooses them.
pub fn choose(
    context: Context,
    parts: &IndexerParts,
    rows: IndexedRows,
    keys: &mut Tensor,
    s: &mut IndexScratch,
) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let IndexedRows { n, angles, slots, spans } = rows;
    let Some(Indexer { n_heads, head_dim, n_chosen, pairing }) = config.indexer else { return Ok(()) };
    let Norm { weight, bias } = parts.k_norm;
    let bias = bias.map(|bias| weights.view(bias));
    let k = &mut s.k_normed.rows_mut(n);
    ops::layernorm(exec, s.k.rows(n), weights.view(weight), bias, NORM_EPS, k)?;
    ops::rope(exec, k, angles, head_dim, pairing)?;
    ops::store_index_keys(exec, k.as_view(), slots, &mut keys.view_mut())?;
    let Some(spans) = spans else { return Ok(()) };
    ops::rope(exec, &mut s.q.rows_mut(n), angles, head_dim, pairing)?;
    let queries = IndexQueries { q: s.q.rows(n), weights: s.weights.rows(n), keys: keys.view(), n_heads, n_chosen };
    Ok(ops::choose_tokens(exec, queries, spans, &mut s.scores.view_mut(), &mut s.chosen.rows_mut(n))?)
}
