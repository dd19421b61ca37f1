//! Storage for keys and values, indexed by block: one allocation for all layers. Who owns a block is decided
//! elsewhere.

use ops::{Arena, KV_BLOCK, Kv, KvSlot, Tensor};
use serde::{Deserialize, Serialize};
use weights::Dtype;

use crate::{Config, Error};

/// How many blocks there are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct KvBlocks {
    pub n_blocks: usize,
    /// Of the pool for layers with a window; 0 where those share the others' blocks.
    pub n_window_blocks: usize,
}

/// In which of the two pools a layer keeps its keys and values.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum KvPool {
    /// Of whole contexts.
    Whole,
    /// Of windows.
    Windows,
}

impl KvBlocks {
    pub fn pool_of(self, config: &Config, layer_idx: usize) -> KvPool {
        let is_apart = self.n_window_blocks > 0 && config.window_pool().is_some();
        if is_apart && config.window_of(layer_idx).is_some() { KvPool::Windows } else { KvPool::Whole }
    }

    /// Blocks of each layer.
    fn of(self, config: &Config, layer_idx: usize) -> usize {
        match self.pool_of(config, layer_idx) {
            KvPool::Whole => self.n_blocks,
            KvPool::Windows => self.n_window_blocks,
        }
    }
}

pub struct KvCache {
    /// `None` for layers without attention, and for those that read another's.
    layers: Vec<Option<KvLayer>>,
    /// Of each layer: whose keys and values it reads.
    sources: Vec<usize>,
    /// Of each layer: where its keys and values are.
    pools: Vec<KvPool>,
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
        let one = KvBlocks { n_blocks: 1, n_window_blocks: 0 };
        let mut sizes = KvCache::shapes(config, one).flatten().map(|[_, cols]| cols / KV_BLOCK);
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
    fn shape(config: &Config, layer_idx: usize, blocks: KvBlocks) -> Option<[usize; 2]> {
        let (heads, n_blocks) = (config.heads_of(layer_idx), blocks.of(config, layer_idx));
        let keeps = config.blocks[layer_idx].attends && config.keeps_kv(layer_idx);
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

    fn shapes(config: &Config, blocks: KvBlocks) -> impl Iterator<Item = Option<[usize; 2]>> {
        (0..config.n_layers).map(move |layer_idx| Self::shape(config, layer_idx, blocks))
    }

    /// Bytes of the whole pool.
    pub fn bytes(config: &Config, kv_type: KvType, blocks: KvBlocks) -> usize {
        let layers = Self::shapes(config, blocks).flatten();
        let index = Self::index_shapes(config, blocks.n_blocks).flatten();
        let index = index.map(|shape| Arena::bytes_for(kv_type.index_dtype(), shape)).fold(0, usize::saturating_add);
        layers.fold(index, |sum, shape| sum.saturating_add(Arena::bytes_for(kv_type.dtype(), shape).saturating_mul(2)))
    }

    /// As [`KvCache::bytes`], on a device.
    pub fn bytes_on_device(config: &Config, kv_type: KvType, blocks: KvBlocks) -> usize {
        let layers = Self::shapes(config, blocks).flatten();
        let bytes = |[rows, cols]: [usize; 2]| {
            Arena::padded_on_device(rows.saturating_mul(kv_type.block_bytes(cols / KV_BLOCK)))
        };
        let index_bytes = |[rows, cols]: [usize; 2]| {
            Arena::padded_on_device(rows.saturating_mul(cols).saturating_mul(kv_type.index_dtype().block_bytes()))
        };
        let index =
            Self::index_shapes(config, blocks.n_blocks).flatten().map(index_bytes).fold(0, usize::saturating_add);
        layers.fold(index, |sum, shape| sum.saturating_add(bytes(shape).saturating_mul(2)))
    }

    pub fn new(config: &Config, kv_type: KvType, blocks: KvBlocks) -> Result<Self, Error> {
        let needed_bytes = Self::bytes(config, kv_type, blocks);
        // A short context touches a little of every head's part: large pages would clear all of it.
        let mut arena = Arena::sparse(needed_bytes).ok_or(Error::Memory { what: "the KV pool", needed_bytes })?;
        Ok(Self::carve(config, kv_type, blocks, &mut arena))
    }

    /// Of a model that reads another's.
    pub fn empty() -> Self {
        Self { layers: Vec::new(), sources: Vec::new(), pools: Vec::new() }
    }

    /// From an arena that has room for it.
    pub fn carve(config: &Config, kv_type: KvType, blocks: KvBlocks, arena: &mut Arena) -> Self {
        let mut layer = |(shape, index): (_, Option<[usize; 2]>)| KvLayer {
            k: arena.carve(kv_type.dtype(), shape),
            v: arena.carve(kv_type.dtype(), shape),
            index: index.map(|shape| arena.carve(kv_type.index_dtype(), shape)),
        };
        let shapes = Self::shapes(config, blocks).zip(Self::index_shapes(config, blocks.n_blocks));
        let layers = shapes.map(|(shape, index)| shape.map(|shape| layer((shape, index)))).collect();
        let pools = (0..config.n_layers).map(|layer_idx| blocks.pool_of(config, layer_idx)).collect();
        Self { layers, sources: config.kv_sources.clone(), pools }
    }

    pub fn dtype(&self) -> Dtype {
        self.layers.iter().flatten().next().map_or(Dtype::F16, |layer| layer.k.view().dtype)
    }

    pub fn pool_of(&self, layer_idx: usize) -> KvPool {
        self.pools[layer_idx]
    }

    pub fn has_windows(&self) -> bool {
        self.pools.contains(&KvPool::Windows)
    }

    /// Keys, then values, then what the indexer has, of each layer that keeps its own in this pool.
    pub fn tensors(&self, pool: KvPool) -> impl Iterator<Item = &Tensor> {
        let layers = self.layers.iter().zip(&self.pools).filter(move |(_, of)| **of == pool);
        layers.flat_map(|(layer, _)| layer).flat_map(|layer| [&layer.k, &layer.v].into_iter().chain(&layer.index))
    }

    pub fn tensors_mut(&mut self, pool: KvPool) -> impl Iterator<Item = &mut Tensor> {
        let layers = self.layers.iter_mut().zip(&self.pools).filter(move |(_, of)| **of == pool);
        layers
            .flat_map(|(layer, _)| layer)
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
