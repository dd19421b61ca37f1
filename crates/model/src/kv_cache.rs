//! Storage for keys and values, indexed by block: one allocation for all layers. Who owns a block is decided
//! elsewhere.

use ops::{Arena, KV_BLOCK, Kv, KvSlot, Tensor};
use serde::{Deserialize, Serialize};
use weights::Dtype;

use crate::{Config, Error};

pub struct KvCache {
    /// `None` for layers without attention, and for those that read another's.
    layers: Vec<Option<KvLayer>>,
    /// Of each layer: whose keys and values it reads.
    sources: Vec<usize>,
}

/// Both `[n_kv_heads * n_blocks, 16 * head_dim]`.
pub struct KvLayer {
    pub k: Tensor,
    pub v: Tensor,
    /// What the layer's indexer keeps of each token, `[n_blocks, 16 * its head_dim]`.
    pub index: Option<Tensor>,
}

/// The type keys and values are kept in.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum KvType {
    #[default]
    F16,
    F32,
    /// Groups of 32 numbers of a token's head: 34 bytes each.
    Q8_0,
    /// The same in 18 bytes.
    Q4_0,
}

impl KvType {
    pub fn dtype(self) -> Dtype {
        match self {
            KvType::F16 => Dtype::F16,
            KvType::F32 => Dtype::F32,
            KvType::Q8_0 => Dtype::Q8_0,
            KvType::Q4_0 => Dtype::Q4_0,
        }
    }

    /// Bytes of one block's keys, and as many of its values, of one KV head: a piece that lies together. On a CPU a layer is
    /// `[n_kv_heads, n_blocks]` of them, on a device `[n_blocks, n_kv_heads]`.
    pub fn block_bytes(self, head_dim: usize) -> usize {
        let dtype = self.dtype();
        KV_BLOCK * head_dim / dtype.block_len() * dtype.block_bytes()
    }

    /// Groups of 32 numbers must fill every head.
    pub(crate) fn check(self, config: &Config) -> Result<(), Error> {
        let dtype = self.dtype();
        let mut sizes = KvCache::shapes(config, 1).flatten().map(|[_, cols]| cols / KV_BLOCK);
        match sizes.find(|head_dim| !head_dim.is_multiple_of(dtype.block_len())) {
            None => Ok(()),
            Some(head_dim) => Err(Error::KvType { dtype, head_dim }),
        }
    }

    /// The type of what indexers keep.
    fn index_dtype(self) -> Dtype {
        if self == KvType::F32 { Dtype::F32 } else { Dtype::F16 }
    }
}

impl KvCache {
    /// What a layer keeps; `None` where it keeps nothing of its own.
    fn shape(config: &Config, layer_idx: usize, n_blocks: usize) -> Option<[usize; 2]> {
        let heads = config.heads_of(layer_idx);
        let keeps = config.blocks[layer_idx].attends && config.kv_sources[layer_idx] == layer_idx;
        keeps.then(|| [n_blocks.saturating_mul(heads.n_kv_heads), KV_BLOCK * heads.head_dim])
    }

    /// What a layer's indexer keeps, where it has one.
    fn index_shape(config: &Config, layer_idx: usize, n_blocks: usize) -> Option<[usize; 2]> {
        let indexer = config.indexer.filter(|_| config.is_indexed[layer_idx])?;
        Some([n_blocks, KV_BLOCK * indexer.head_dim])
    }

    fn index_shapes(config: &Config, n_blocks: usize) -> impl Iterator<Item = Option<[usize; 2]>> {
        (0..config.n_layers).map(move |layer_idx| Self::index_shape(config, layer_idx, n_blocks))
    }

    fn shapes(config: &Config, n_blocks: usize) -> impl Iterator<Item = Option<[usize; 2]>> {
        (0..config.n_layers).map(move |layer_idx| Self::shape(config, layer_idx, n_blocks))
    }

    /// Bytes of the whole pool.
    pub fn bytes(config: &Config, kv_type: KvType, n_blocks: usize) -> usize {
        let layers = Self::shapes(config, n_blocks).flatten();
        let index = Self::index_shapes(config, n_blocks).flatten();
        let index = index.map(|shape| Arena::bytes_for(kv_type.index_dtype(), shape)).fold(0, usize::saturating_add);
        layers.fold(index, |sum, shape| sum.saturating_add(Arena::bytes_for(kv_type.dtype(), shape).saturating_mul(2)))
    }

    /// As [`KvCache::bytes`], on a device.
    pub fn bytes_on_device(config: &Config, kv_type: KvType, n_blocks: usize) -> usize {
        let layers = Self::shapes(config, n_blocks).flatten();
        let bytes = |[rows, cols]: [usize; 2]| {
            Arena::padded_on_device(rows.saturating_mul(kv_type.block_bytes(cols / KV_BLOCK)))
        };
        let index_bytes = |[rows, cols]: [usize; 2]| {
            Arena::padded_on_device(rows.saturating_mul(cols).saturating_mul(kv_type.index_dtype().block_bytes()))
        };
        let index = Self::index_shapes(config, n_blocks).flatten().map(index_bytes).fold(0, usize::saturating_add);
        layers.fold(index, |sum, shape| sum.saturating_add(bytes(shape).saturating_mul(2)))
    }

    pub fn new(config: &Config, kv_type: KvType, n_blocks: usize) -> Result<Self, Error> {
        let needed_bytes = Self::bytes(config, kv_type, n_blocks);
        // A short context touches a little of every head's part: large pages would clear all of it.
        let mut arena = Arena::sparse(needed_bytes).ok_or(Error::Memory { what: "the KV pool", needed_bytes })?;
        Ok(Self::carve(config, kv_type, n_blocks, &mut arena))
    }

    /// From an arena that has room for it.
    pub fn carve(config: &Config, kv_type: KvType, n_blocks: usize, arena: &mut Arena) -> Self {
        let mut layer = |(shape, index): (_, Option<[usize; 2]>)| KvLayer {
            k: arena.carve(kv_type.dtype(), shape),
            v: arena.carve(kv_type.dtype(), shape),
            index: index.map(|shape| arena.carve(kv_type.index_dtype(), shape)),
        };
        let shapes = Self::shapes(config, n_blocks).zip(Self::index_shapes(config, n_blocks));
        let layers = shapes.map(|(shape, index)| shape.map(|shape| layer((shape, index)))).collect();
        Self { layers, sources: config.kv_sources.clone() }
    }

    pub fn dtype(&self) -> Dtype {
        self.layers.iter().flatten().next().map_or(Dtype::F16, |layer| layer.k.view().dtype)
    }

    /// Keys, then values, then what the indexer has, of each layer that attends.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flatten().flat_map(|layer| [&layer.k, &layer.v].into_iter().chain(&layer.index))
    }

    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.layers
            .iter_mut()
            .flatten()
            .flat_map(|layer| [&mut layer.k, &mut layer.v].into_iter().chain(&mut layer.index))
    }

    pub fn layer_mut(&mut self, layer_idx: usize) -> &mut KvLayer {
        self.layers[self.sources[layer_idx]].as_mut().expect("asked for layers with attention only")
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
