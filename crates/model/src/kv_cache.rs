//! Storage for keys and values, indexed by block: one allocation for all layers. Who owns a block is decided
//! elsewhere.

use ops::{Arena, KV_BLOCK, Kv, KvSlot, Tensor};
use serde::{Deserialize, Serialize};
use weights::Dtype;

use crate::{Config, Error};

pub struct KvCache {
    /// `None` for layers without attention.
    layers: Vec<Option<KvLayer>>,
}

/// Both `[n_kv_heads * n_blocks, 16 * head_dim]`.
pub struct KvLayer {
    pub k: Tensor,
    pub v: Tensor,
}

/// The type keys and values are kept in.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum KvType {
    #[default]
    F16,
    F32,
}

impl KvType {
    pub fn dtype(self) -> Dtype {
        match self {
            KvType::F16 => Dtype::F16,
            KvType::F32 => Dtype::F32,
        }
    }
}

impl KvCache {
    fn shape(config: &Config, n_blocks: usize) -> [usize; 2] {
        [n_blocks.saturating_mul(config.n_kv_heads), KV_BLOCK * config.head_dim]
    }

    /// Bytes of the whole pool.
    pub fn bytes(config: &Config, kv_type: KvType, n_blocks: usize) -> usize {
        Arena::bytes_for(kv_type.dtype(), Self::shape(config, n_blocks)).saturating_mul(2 * config.n_attention_layers())
    }

    /// As [`KvCache::bytes`], on a device.
    pub fn bytes_on_device(config: &Config, kv_type: KvType, n_blocks: usize) -> usize {
        let [rows, cols] = Self::shape(config, n_blocks);
        let n_bytes = rows.saturating_mul(cols).saturating_mul(kv_type.dtype().block_bytes());
        Arena::padded_on_device(n_bytes).saturating_mul(2 * config.n_attention_layers())
    }

    pub fn new(config: &Config, kv_type: KvType, n_blocks: usize) -> Result<Self, Error> {
        let needed_bytes = Self::bytes(config, kv_type, n_blocks);
        // A short context touches a little of every head's part: large pages would clear all of it.
        let mut arena = Arena::sparse(needed_bytes).ok_or(Error::Memory { what: "the KV pool", needed_bytes })?;
        Ok(Self::carve(config, kv_type, n_blocks, &mut arena))
    }

    /// From an arena that has room for it.
    pub fn carve(config: &Config, kv_type: KvType, n_blocks: usize, arena: &mut Arena) -> Self {
        let shape = Self::shape(config, n_blocks);
        let mut layer = || KvLayer { k: arena.carve(kv_type.dtype(), shape), v: arena.carve(kv_type.dtype(), shape) };
        Self { layers: config.blocks.iter().map(|blocks| blocks.attends.then(&mut layer)).collect() }
    }

    pub fn dtype(&self) -> Dtype {
        self.layers.iter().flatten().next().map_or(Dtype::F16, |layer| layer.k.view().dtype)
    }

    pub fn layer_mut(&mut self, layer_idx: usize) -> &mut KvLayer {
        self.layers[layer_idx].as_mut().expect("asked for layers with attention only")
    }
}

impl KvLayer {
    pub fn view(&self) -> Kv<'_> {
        Kv { k: self.k.view(), v: self.v.view() }
    }
}

/// Where the token at `position` of a sequence lies.
pub fn slot(block_table: &[crate::BlockId], position: u32) -> KvSlot {
    let position = position as usize;
    KvSlot { block: block_table[position / KV_BLOCK].0, token: (position % KV_BLOCK) as u32 }
}
