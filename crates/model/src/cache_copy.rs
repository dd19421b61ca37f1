//! Copies of the contents of a model's pools, to be kept elsewhere: the keys and values of a block, or the
//! state in a slot, over all layers, as they are stored. A piece has the parts of each tensor one after another, in the
//! order of the layers; only this build knows what the bytes mean.

use std::collections::VecDeque;

use batch::{CacheBytes, CachePlace, CopyTicket};
use ops::{Exec, Tensor, ViewMut, gather_rows, scatter_rows};

use crate::decoder::Decoder;
use crate::device::{CopyOut, Device};
use crate::kv_cache::KvPool;
use crate::model::RunsOn;
use crate::{Error, Model, StepLimits};

/// Changes with what the bytes of a block or a state mean: how the pools lie, and in which order tensors come.
const CACHE_LAYOUT: u32 = 1;

/// Copies out that were queued and not asked for, oldest first.
#[derive(Default)]
pub(crate) struct Copies {
    queued: VecDeque<(u64, QueuedCopy)>,
    n_queued: u64,
}

enum QueuedCopy {
    Made(Vec<Vec<u8>>),
    OnDevice(Vec<CopyOut>),
}

/// Of which pool a place is.
#[derive(Copy, Clone, Eq, PartialEq)]
pub(crate) enum CachePool {
    Blocks,
    Windows,
    States,
}

/// How the rows of a tensor belong to the places of its pool.
#[derive(Copy, Clone, Eq, PartialEq)]
pub(crate) struct CacheRows {
    /// Blocks or slots.
    pub n_places: usize,
    /// Rows of each: one for every head.
    pub n_parts: usize,
}

impl CacheRows {
    fn of(tensor: &Tensor, n_places: usize) -> Self {
        Self { n_places, n_parts: tensor.shape()[0].checked_div(n_places).unwrap_or(0) }
    }

    /// The rows of these places, place by place, on a CPU: the pool lies head by head.
    pub fn rows(self, ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let of_place = |id: u32| (0..self.n_parts as u32).map(move |part| part * self.n_places as u32 + id);
        ids.into_iter().flat_map(of_place).collect()
    }

    /// The same on a device: the pool lies block by block.
    pub fn rows_on_device(self, ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let n_parts = self.n_parts as u32;
        ids.into_iter().flat_map(|id| id * n_parts..(id + 1) * n_parts).collect()
    }
}

/// A pool's tensors, in the order of a piece.
pub(crate) fn tensors(decoder: &Decoder, pool: CachePool) -> Vec<&Tensor> {
    match pool {
        CachePool::Blocks => decoder.kv.tensors(KvPool::Whole).collect(),
        CachePool::Windows => decoder.kv.tensors(KvPool::Windows).collect(),
        CachePool::States => decoder.states.tensors().collect(),
    }
}

fn tensors_mut(decoder: &mut Decoder, pool: CachePool) -> Vec<&mut Tensor> {
    match pool {
        CachePool::Blocks => decoder.kv.tensors_mut(KvPool::Whole).collect(),
        CachePool::Windows => decoder.kv.tensors_mut(KvPool::Windows).collect(),
        CachePool::States => decoder.states.tensors_mut().collect(),
    }
}

/// Bytes of a row.
pub(crate) fn row_bytes(tensor: &Tensor) -> usize {
    let view = tensor.view();
    view.dtype.row_bytes(tensor.shape()[1]).unwrap_or(0)
}

/// Bytes of a place's part of one tensor.
pub(crate) fn part_bytes(tensor: &Tensor, n_places: usize) -> usize {
    CacheRows::of(tensor, n_places).n_parts * row_bytes(tensor)
}

/// How many places each pool has.
#[derive(Copy, Clone)]
struct PoolSizes {
    limits: StepLimits,
    n_states: usize,
}

impl PoolSizes {
    fn of(self, pool: CachePool) -> usize {
        match pool {
            CachePool::Blocks => self.limits.n_blocks,
            CachePool::Windows => self.limits.n_window_blocks,
            CachePool::States => self.n_states,
        }
    }
}

fn pool_of(place: CachePlace) -> (CachePool, u32) {
    match place {
        CachePlace::Block(block) => (CachePool::Blocks, block.0),
        CachePlace::Window(block) => (CachePool::Windows, block.0),
        CachePlace::State(slot) => (CachePool::States, slot.0),
    }
}

impl Model {
    fn pool_sizes(&self) -> PoolSizes {
        PoolSizes { limits: self.limits, n_states: self.n_states }
    }

    fn n_places(&self, pool: CachePool) -> usize {
        self.pool_sizes().of(pool)
    }

    /// Which other models of the same weights may take this one's pieces: those that compute alike and lay their pools out
    /// alike.
    pub fn cache_layout(&self) -> String {
        let device = match &self.runs_on {
            RunsOn::Cpu(pool) => format!("cpu, {}", pool.isa()),
            RunsOn::Gpu(_) => self.device(),
        };
        // A block then has the keys and values of fewer layers.
        let windows = if self.decoder.kv.has_windows() { ", windows apart" } else { "" };
        format!("layout {CACHE_LAYOUT}{windows}, {device}")
    }

    /// Bytes of the pieces that [`copy_out`](Self::copy_out) makes.
    pub fn cache_bytes(&self) -> CacheBytes {
        let bytes = |pool| {
            let n_places = self.n_places(pool);
            tensors(&self.decoder, pool).into_iter().map(|tensor| part_bytes(tensor, n_places)).sum()
        };
        let [block, window, state] = [CachePool::Blocks, CachePool::Windows, CachePool::States].map(bytes);
        CacheBytes { block, window, state }
    }

    /// Queues a copy of these places as they are after the steps submitted so far.
    pub fn copy_out(&mut self, places: &[CachePlace]) -> Result<CopyTicket, Error> {
        self.check_places(places.iter().copied())?;
        let bytes = self.cache_bytes();
        let sizes = self.pool_sizes();
        let copy = match &mut self.runs_on {
            RunsOn::Cpu(pool) => {
                let exec = Exec::Cpu(pool);
                let piece = |place: &CachePlace| {
                    let (pool, id) = pool_of(*place);
                    let n_places = sizes.of(pool);
                    copy_one(exec, &tensors(&self.decoder, pool), n_places, id, bytes.of(*place))
                };
                QueuedCopy::Made(places.iter().map(piece).collect::<Result<_, Error>>()?)
            }
            RunsOn::Gpu(device) => {
                let mut copies = Vec::new();
                for run in places.chunk_by(|a, b| pool_of(*a).0 == pool_of(*b).0) {
                    let pool = pool_of(run[0]).0;
                    let n_places = sizes.of(pool);
                    let ids: Vec<u32> = run.iter().map(|place| pool_of(*place).1).collect();
                    for ids in ids.chunks(Device::n_copied_at_once(bytes.of(run[0]))) {
                        copies.push(device.copy_out(&tensors(&self.decoder, pool), n_places, ids)?);
                    }
                }
                QueuedCopy::OnDevice(copies)
            }
        };
        self.copies.n_queued += 1;
        self.copies.queued.push_back((self.copies.n_queued, copy));
        Ok(CopyTicket(self.copies.n_queued))
    }

    /// What a copy holds, a piece for each place.
    pub fn copied(&mut self, ticket: CopyTicket) -> Result<Vec<Vec<u8>>, Error> {
        let oldest = self.copies.queued.pop_front().filter(|(number, _)| *number == ticket.0);
        match (oldest, &mut self.runs_on) {
            (Some((_, QueuedCopy::Made(pieces))), _) => Ok(pieces),
            (Some((_, QueuedCopy::OnDevice(copies))), RunsOn::Gpu(device)) => {
                let mut pieces = Vec::new();
                for copy in copies {
                    pieces.extend(device.copied(copy)?);
                }
                Ok(pieces)
            }
            _ => Err(Error::Batch(format!("copy {} is not the oldest that was queued", ticket.0))),
        }
    }

    /// Puts what was copied out into these places, for the steps submitted from now on.
    pub fn copy_in(&mut self, pieces: &[(CachePlace, &[u8])]) -> Result<(), Error> {
        self.check_places(pieces.iter().map(|(place, _)| *place))?;
        let bytes = self.cache_bytes();
        if let Some((place, piece)) = pieces.iter().find(|(place, piece)| piece.len() != bytes.of(*place)) {
            return Err(Error::Batch(format!("{} bytes for {place:?}, which takes {}", piece.len(), bytes.of(*place))));
        }
        let sizes = self.pool_sizes();
        for run in pieces.chunk_by(|a, b| pool_of(a.0).0 == pool_of(b.0).0) {
            let pool = pool_of(run[0].0).0;
            let n_places = sizes.of(pool);
            let n_at_once = Device::n_copied_at_once(bytes.of(run[0].0));
            let run: Vec<(u32, &[u8])> = run.iter().map(|(place, piece)| (pool_of(*place).1, *piece)).collect();
            let mut tensors = tensors_mut(&mut self.decoder, pool);
            match &mut self.runs_on {
                RunsOn::Cpu(pool) => {
                    for (id, piece) in run {
                        put_one(Exec::Cpu(pool), &mut tensors, n_places, id, piece)?;
                    }
                }
                RunsOn::Gpu(device) => {
                    for run in run.chunks(n_at_once) {
                        device.copy_in(&mut tensors, n_places, run)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check_places(&self, places: impl Iterator<Item = CachePlace>) -> Result<(), Error> {
        for place in places {
            let (pool, id) = pool_of(place);
            if id as usize >= self.n_places(pool) {
                return Err(Error::Batch(format!("{place:?} of {}", self.n_places(pool))));
            }
        }
        Ok(())
    }
}

fn copy_one(exec: Exec, tensors: &[&Tensor], n_places: usize, id: u32, n_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut piece = vec![0; n_bytes];
    let mut rest = piece.as_mut_slice();
    for tensor in tensors {
        let rows = CacheRows::of(tensor, n_places).rows([id]);
        let (part, after) = rest.split_at_mut(part_bytes(tensor, n_places));
        let view = tensor.view();
        gather_rows(exec, view, &rows, &mut ViewMut::host(view.dtype, [rows.len(), view.n_cols()], part))?;
        rest = after;
    }
    Ok(piece)
}

fn put_one(exec: Exec, tensors: &mut [&mut Tensor], n_places: usize, id: u32, piece: &[u8]) -> Result<(), Error> {
    let mut rest = piece;
    for tensor in tensors {
        let rows = CacheRows::of(tensor, n_places).rows([id]);
        let (part, after) = rest.split_at(part_bytes(tensor, n_places));
        let mut to = tensor.view_mut();
        let from = ops::View::host(to.dtype, [rows.len(), to.shape[1]], part);
        scatter_rows(exec, from, &rows, &mut to)?;
        rest = after;
    }
    Ok(())
}
