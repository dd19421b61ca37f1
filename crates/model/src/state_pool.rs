//! Storage for the states of recurrent layers, beside the KV pool: one allocation, a slot for each sequence and each
//! checkpoint. Who owns a slot is decided elsewhere.

use ops::{Arena, Tensor};
use weights::Dtype;

use crate::{Config, Error, Recurrent};

pub struct StatePool {
    layers: Vec<Option<StateLayer>>,
}

/// One row for each slot.
pub struct StateLayer {
    /// The last inputs of each convolution, `[n_slots, (n_taps - 1) * n_cols]`.
    pub conv: Vec<Tensor>,
    /// `[n_slots, state_len]`
    pub state: Tensor,
}

fn n_recurrent_layers(config: &Config) -> usize {
    config.blocks.iter().filter(|blocks| blocks.recurs).count()
}

impl StatePool {
    /// The shapes of one layer, the state last.
    fn shapes(recurrent: &Recurrent, n_slots: usize) -> Vec<[usize; 2]> {
        let conv = recurrent.streams().into_iter().map(|n_cols| [n_slots, (recurrent.n_taps - 1) * n_cols]);
        conv.chain([[n_slots, recurrent.state_len()]]).collect()
    }

    /// Bytes of the whole pool.
    pub fn bytes(config: &Config, n_slots: usize) -> usize {
        let Some(recurrent) = &config.recurrent else { return 0 };
        let shapes = Self::shapes(recurrent, n_slots).into_iter();
        let layer: usize = shapes.map(|shape| Arena::bytes_for(Dtype::F32, shape)).sum();
        layer.saturating_mul(n_recurrent_layers(config))
    }

    /// As [`StatePool::bytes`], on a device.
    pub fn bytes_on_device(config: &Config, n_slots: usize) -> usize {
        let Some(recurrent) = &config.recurrent else { return 0 };
        let n_bytes = |[rows, cols]: [usize; 2]| rows.saturating_mul(cols).saturating_mul(size_of::<f32>());
        let shapes = Self::shapes(recurrent, n_slots).into_iter();
        let layer: usize = shapes.map(|shape| Arena::padded_on_device(n_bytes(shape))).sum();
        layer.saturating_mul(n_recurrent_layers(config))
    }

    pub fn new(config: &Config, n_slots: usize) -> Result<Self, Error> {
        if config.recurrent.is_none() {
            return Ok(Self::empty());
        }
        let needed_bytes = Self::bytes(config, n_slots);
        let failed = Error::Memory { what: "the pool of recurrent states", needed_bytes };
        let mut arena = Arena::sparse(needed_bytes).ok_or(failed)?;
        Ok(Self::carve(config, n_slots, &mut arena))
    }

    /// From an arena that has room for it.
    pub fn carve(config: &Config, n_slots: usize, arena: &mut Arena) -> Self {
        let Some(recurrent) = &config.recurrent else { return Self::empty() };
        let mut layer = || {
            let shapes = Self::shapes(recurrent, n_slots).into_iter();
            let mut tensors: Vec<Tensor> = shapes.map(|shape| arena.carve(Dtype::F32, shape)).collect();
            let state = tensors.pop().expect("the state comes last");
            StateLayer { conv: tensors, state }
        };
        Self { layers: config.blocks.iter().map(|blocks| blocks.recurs.then(&mut layer)).collect() }
    }

    /// Of a model without recurrent layers.
    pub fn empty() -> Self {
        Self { layers: Vec::new() }
    }

    /// Those of each recurrent layer.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flatten().flat_map(|layer| layer.conv.iter().chain([&layer.state]))
    }

    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.layers.iter_mut().flatten().flat_map(|layer| layer.conv.iter_mut().chain([&mut layer.state]))
    }

    pub fn layer_mut(&mut self, layer_idx: usize) -> &mut StateLayer {
        self.layers[layer_idx].as_mut().expect("asked for recurrent layers only")
    }
}
