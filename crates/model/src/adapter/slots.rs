//! Adapters in the model's memory: a fixed number of slots, taken once, each with room for an adapter of the largest rank
//! that changes everything. Where all are taken, the least recently used one makes way.
//!
//! Matrices whose numbers are those of F16 or BF16 are held as f16, in units that are a power of two, so that none is lost;
//! reading them is what a step with adapters takes its time for. Others are f32 on a device, and 24 bits on a CPU (f16 would
//! change some logits by more than a thousandth). Slots have room for f32.

use std::cell::RefCell;
use std::collections::HashMap;

use batch::{AdapterId, AdapterSource};
use gpu::{Buffer, Queue};
use half::f16;
use ops::{
    Arena, Exec, ExpertPairs, F24, Indices, LowRank, LowRankEntry, LowRankProduct, MatrixWidth, PlaceMut, Routes,
    Tensor, View, ViewMut,
};
use serde::{Deserialize, Serialize};
use weights::Dtype;

use super::{AdapterFile, Fitting, WeightChange, unusable};
use crate::Error;
use crate::parts::TensorId;

/// How many adapters a model has room for, and of which rank. None by default.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AdapterLimits {
    /// Adapters that are ready at once.
    pub max_loaded: usize,
    /// The largest rank that one may have.
    pub max_rank: usize,
    /// Whether they may change experts of a mixture: there are so many that room for them is only made on demand.
    pub has_experts: bool,
}

pub struct Adapters {
    fitting: Fitting,
    limits: AdapterLimits,
    /// `[max_loaded, slot_len]`
    numbers: Tensor,
    /// What a device keeps between the two products, `[max_rows, max_rank]`; with experts `max_rows` of pairs.
    hidden: RefCell<Tensor>,
    /// Where a tensor stands in the table.
    places: HashMap<TensorId, usize>,
    /// `[n_matrices, max_loaded]` entries.
    table: Vec<u32>,
    device_table: Option<Buffer<u32>>,
    /// By slot.
    loaded: Vec<Option<LoadedAdapter>>,
    n_uses: u64,
}

struct LoadedAdapter {
    id: AdapterId,
    last_use: u64,
}

/// The adapters of a step's rows.
#[derive(Copy, Clone)]
pub struct StepAdapters<'a> {
    pub all: &'a Adapters,
    /// The slot of each row, or [`LowRankEntry::NONE`].
    pub slots: Indices<'a>,
}

impl<'a> StepAdapters<'a> {
    /// `None` where no row has an adapter: `slots` is empty then.
    pub fn of(all: Option<&'a Adapters>, slots: Indices<'a>) -> Option<Self> {
        all.filter(|_| !slots.is_empty()).map(|all| Self { all, slots })
    }
}

/// Numbers of one slot: `A`, `B` and gains of every matrix.
fn slot_len(fitting: &Fitting, limits: AdapterLimits) -> usize {
    let max_rank = limits.max_rank;
    fitting.matrices(limits.has_experts).map(|(_, [n_out, n_in])| max_rank * (n_in + n_out) + n_out).sum()
}

/// Rows of what is kept between the two products.
fn hidden_rows(fitting: &Fitting, limits: AdapterLimits, max_rows: usize) -> usize {
    if limits.has_experts { max_rows.saturating_mul(fitting.experts_of_row()) } else { max_rows }
}

impl Adapters {
    /// Bytes that [`Adapters::new`] takes, or [`Adapters::on_device`].
    pub fn bytes(fitting: &Fitting, limits: AdapterLimits, max_rows: usize, padded: fn(usize) -> usize) -> usize {
        if limits.max_loaded == 0 {
            return 0;
        }
        let n_numbers = limits.max_loaded.saturating_mul(slot_len(fitting, limits));
        let n_words = fitting.matrices(limits.has_experts).count() * limits.max_loaded * LowRankEntry::WORDS;
        let n_hidden = hidden_rows(fitting, limits, max_rows).saturating_mul(limits.max_rank);
        let all = [n_numbers, n_hidden, n_words];
        all.into_iter().map(|n| padded(n.saturating_mul(4))).fold(0, usize::saturating_add)
    }

    /// Places in the slots are numbers of 32 bits.
    pub fn check_size(fitting: &Fitting, limits: AdapterLimits) -> Result<(), Error> {
        let n_numbers = limits.max_loaded.saturating_mul(slot_len(fitting, limits));
        if u32::try_from(n_numbers).is_ok() {
            return Ok(());
        }
        let AdapterLimits { max_loaded, max_rank, .. } = limits;
        Err(unusable(format!(
            "room for {max_loaded} adapters of rank {max_rank} is more than can be addressed; lower --max-loras or \
             --max-lora-rank"
        )))
    }

    pub fn new(fitting: Fitting, limits: AdapterLimits, max_rows: usize) -> Result<Self, Error> {
        Self::check_size(&fitting, limits)?;
        let needed_bytes = Self::bytes(&fitting, limits, max_rows, Arena::padded);
        // Only the slots that are used take memory.
        let arena = Arena::sparse(needed_bytes).ok_or(Error::Memory { what: "adapters", needed_bytes })?;
        Ok(Self::carve(fitting, limits, max_rows, arena))
    }

    pub fn on_device(queue: &Queue, fitting: Fitting, limits: AdapterLimits, max_rows: usize) -> Result<Self, Error> {
        Self::check_size(&fitting, limits)?;
        let n_bytes = Self::bytes(&fitting, limits, max_rows, Arena::padded_on_device);
        let mut arena = Arena::on_device(queue.pool(n_bytes)?);
        let n_words = fitting.matrices(limits.has_experts).count() * limits.max_loaded * LowRankEntry::WORDS;
        let device_table = arena.carve_words(n_words);
        let mut adapters = Self { device_table: Some(device_table), ..Self::carve(fitting, limits, max_rows, arena) };
        adapters.upload_table(queue)?;
        Ok(adapters)
    }

    fn carve(fitting: Fitting, limits: AdapterLimits, max_rows: usize, mut arena: Arena) -> Self {
        let numbers = arena.carve(Dtype::F32, [limits.max_loaded, slot_len(&fitting, limits)]);
        let hidden = RefCell::new(arena.carve(Dtype::F32, [hidden_rows(&fitting, limits, max_rows), limits.max_rank]));
        let places: HashMap<TensorId, usize> =
            fitting.matrices(limits.has_experts).zip(0..).map(|((id, _), place)| (id, place)).collect();
        let table = LowRankEntry::default().words().repeat(places.len() * limits.max_loaded);
        let loaded = (0..limits.max_loaded).map(|_| None).collect();
        Self { fitting, limits, numbers, hidden, places, table, device_table: None, loaded, n_uses: 0 }
    }

    pub fn limits(&self) -> AdapterLimits {
        self.limits
    }

    /// The slot of an adapter that is ready.
    pub fn slot(&self, id: AdapterId) -> Option<u32> {
        let slot = self.loaded.iter().position(|loaded| loaded.as_ref().is_some_and(|loaded| loaded.id == id));
        slot.map(|slot| slot as u32)
    }

    /// Makes an adapter ready; whether anything had to be read for it.
    pub fn load(&mut self, source: &AdapterSource, in_use: &[AdapterId], queue: Option<&Queue>) -> Result<bool, Error> {
        self.n_uses += 1;
        let last_use = self.n_uses;
        if let Some(loaded) = self.loaded.iter_mut().flatten().find(|loaded| loaded.id == source.id) {
            loaded.last_use = last_use;
            return Ok(false);
        }
        let adapter = AdapterFile::open(&source.path)?;
        let path = || source.path.display();
        if adapter.id != source.id {
            return Err(unusable(format!("{}: the files have changed since the adapter was named", path())));
        }
        if adapter.rank > self.limits.max_rank {
            let (rank, max_rank) = (adapter.rank, self.limits.max_rank);
            return Err(unusable(format!("{}: rank {rank}, there is room for {max_rank}", path())));
        }
        if adapter.has_experts() && !self.limits.has_experts {
            let what = "it changes experts of a mixture, and the model was loaded without room for that; name such an \
                        adapter with --lora when the server starts";
            return Err(unusable(format!("{}: {what}", path())));
        }
        let deltas = self.fitting.fit(&adapter)?;
        let is_free =
            |loaded: &Option<LoadedAdapter>| loaded.as_ref().is_none_or(|loaded| !in_use.contains(&loaded.id));
        let free = self.loaded.iter().enumerate().filter(|(_, loaded)| is_free(loaded));
        let oldest = free.min_by_key(|(_, loaded)| loaded.as_ref().map_or(0, |loaded| loaded.last_use));
        let Some(slot) = oldest.map(|(slot, _)| slot) else {
            return Err(unusable(format!("all {} adapters that there is room for are in use", self.limits.max_loaded)));
        };
        // Until it is whole, nobody may find it.
        self.loaded[slot] = None;
        self.fill(slot, &deltas, queue)?;
        self.loaded[slot] = Some(LoadedAdapter { id: adapter.id, last_use });
        Ok(true)
    }

    fn fill(&mut self, slot: usize, deltas: &[WeightChange], queue: Option<&Queue>) -> Result<(), Error> {
        let slot_len = self.numbers.shape()[1];
        let mut numbers: Vec<f32> = Vec::with_capacity(slot_len);
        for place in 0..self.places.len() {
            self.set_entry(place, slot, LowRankEntry::default());
        }
        for delta in deltas {
            let at = |numbers: &Vec<f32>| (slot * slot_len + numbers.len()) as u32;
            let a = at(&numbers);
            let halves = Halves::of(delta);
            let triples = halves.is_none().then(|| in_triples(delta)).flatten().filter(|_| queue.is_none());
            let b = match (&halves, &triples) {
                (Some(halves), _) => push_both(&mut numbers, [&halves.a, &halves.b], f16::to_ne_bytes),
                (None, Some([a, b])) => push_both(&mut numbers, [a, b], |triple| triple),
                (None, None) => push_both(&mut numbers, [&delta.a, &delta.b], f32::to_ne_bytes),
            };
            let b = a + b as u32;
            let width = match (&halves, triples) {
                (Some(_), _) => MatrixWidth::F16,
                (None, Some(_)) => MatrixWidth::F24,
                (None, None) => MatrixWidth::F32,
            };
            let gain = delta.gain.as_ref().map(|gain| {
                let start = at(&numbers);
                numbers.extend_from_slice(gain);
                start
            });
            let rank = delta.rank as u32;
            let scale = halves.map_or(delta.scale, |halves| halves.scale);
            let place = self.places[&delta.tensor];
            self.set_entry(place, slot, LowRankEntry { rank, a, b, gain, scale, width });
        }
        if numbers.len() > slot_len {
            return Err(unusable(format!("it takes {} numbers, a slot has {slot_len}", numbers.len())));
        }
        let start = slot * slot_len * size_of::<f32>();
        let range = start..start + numbers.len() * size_of::<f32>();
        match (self.numbers.view_mut().place, queue) {
            (PlaceMut::Host(bytes), _) => {
                for (bytes, number) in bytes[range].as_chunks_mut::<4>().0.iter_mut().zip(&numbers) {
                    *bytes = number.to_ne_bytes();
                }
                Ok(())
            }
            (PlaceMut::Device(bytes), Some(queue)) => {
                let mut staged = queue.pinned::<f32>(numbers.len())?;
                staged.copy_from_slice(&numbers);
                // After every step that is queued: those may still read what was here.
                queue.upload(staged, bytes.into_slice(range)?.cast()?)?.wait()?;
                self.upload_table(queue)
            }
            (PlaceMut::Device(_), None) => unreachable!("a model on a device has a queue"),
        }
    }

    fn set_entry(&mut self, place: usize, slot: usize, entry: LowRankEntry) {
        let at = (place * self.limits.max_loaded + slot) * LowRankEntry::WORDS;
        self.table[at..][..LowRankEntry::WORDS].copy_from_slice(&entry.words());
    }

    fn upload_table(&mut self, queue: &Queue) -> Result<(), Error> {
        let Some(device) = &mut self.device_table else { return Ok(()) };
        let mut staged = queue.pinned::<u32>(self.table.len())?;
        staged.copy_from_slice(&self.table);
        queue.upload(staged, device.all_mut())?.wait()?;
        Ok(())
    }

    /// The part of the table that is about one matrix; `None` where no adapter that is ready changes it.
    fn entries(&self, tensor: TensorId) -> Result<Option<Indices<'_>>, Error> {
        self.entries_of(tensor, 1)
    }

    /// As [`Self::entries`], of this one and of those of the other experts, which follow it.
    fn entries_of(&self, tensor: TensorId, n_matrices: usize) -> Result<Option<Indices<'_>>, Error> {
        let Some(place) = self.places.get(&tensor) else { return Ok(None) };
        let n_words = self.limits.max_loaded * LowRankEntry::WORDS;
        let range = place * n_words..(place + n_matrices) * n_words;
        let host = &self.table[range.clone()];
        if host.chunks_exact(LowRankEntry::WORDS).all(|entry| entry[0] == 0) {
            return Ok(None);
        }
        let device = self.device_table.as_ref().map(|table| table.slice(range)).transpose()?;
        Ok(Some(Indices { host, device }))
    }
}

/// The matrices of a change as f16.
struct Halves {
    a: Vec<f16>,
    b: Vec<f16>,
    scale: f32,
}

impl Halves {
    /// `None` where a number would not be the same.
    fn of(change: &WeightChange) -> Option<Self> {
        let (a, a_unit) = in_halves(&change.a)?;
        let (b, b_unit) = in_halves(&change.b)?;
        let scale = (f64::from(change.scale) * a_unit * b_unit) as f32;
        (scale.is_normal() || change.scale == 0.0).then_some(Self { a, b, scale })
    }
}

/// A matrix as f16 and the unit of its numbers, a power of two that brings the largest near the largest f16.
fn in_halves(matrix: &[f32]) -> Option<(Vec<f16>, f64)> {
    /// The largest number goes between this power of two and the next.
    const TOP: i32 = 14;
    let largest = matrix.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let exponent = if largest > 0.0 { f64::from(largest).log2().floor() as i32 - TOP } else { 0 };
    let unit = f64::from(exponent).exp2();
    let halved = |x: &f32| {
        let half = f16::from_f64(f64::from(*x) / unit);
        (half.to_f64() * unit == f64::from(*x)).then_some(half)
    };
    Some((matrix.iter().map(halved).collect::<Option<_>>()?, unit))
}

/// Both matrices as the upper 24 bits of their numbers; `None` where rounding makes one infinite.
fn in_triples(change: &WeightChange) -> Option<[Vec<F24>; 2]> {
    let narrowed = |matrix: &[f32]| -> Option<Vec<F24>> {
        let is_safe = |x: &f32| x.abs() < f32::MAX / 2.0;
        matrix.iter().all(is_safe).then(|| matrix.iter().map(|x| ops::to_f24(*x)).collect())
    };
    Some([narrowed(&change.a)?, narrowed(&change.b)?])
}

/// Adds both matrices, each from the beginning of a number on; the place of the second after that of the first.
fn push_both<T: Copy, const N: usize>(numbers: &mut Vec<f32>, matrices: [&[T]; 2], bytes: fn(T) -> [u8; N]) -> usize {
    let start = numbers.len();
    let mut second = 0;
    for matrix in matrices {
        second = numbers.len() - start;
        let bytes: Vec<u8> = matrix.iter().flat_map(|number| bytes(*number)).collect();
        numbers.extend(bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            f32::from_ne_bytes(word)
        }));
    }
    second
}

impl StepAdapters<'_> {
    /// Whether any adapter that is ready changes the matrix.
    pub fn change(&self, tensor: TensorId) -> bool {
        matches!(self.all.entries(tensor), Ok(Some(_)))
    }

    /// Whether a row of the product is more than a sum: some adapter multiplies it too.
    pub fn multiply(&self, tensor: TensorId) -> bool {
        let Ok(Some(entries)) = self.all.entries(tensor) else { return false };
        entries.host.chunks_exact(LowRankEntry::WORDS).any(|entry| entry[0] > 0 && entry[3] != LowRankEntry::NONE)
    }

    /// As [`Self::change`], of any expert; `first` is the matrix of the first one.
    pub fn change_experts(&self, first: TensorId, n_experts: usize) -> bool {
        self.all.limits.has_experts && self.all.entries_of(first, n_experts).is_ok_and(|entries| entries.is_some())
    }

    /// What the adapters make of the products of pairs that lie expert by expert: `starts` says where, `rows` of which rows
    /// they are.
    pub fn apply_routed(
        &self,
        exec: Exec,
        first: TensorId,
        routes: &Routes,
        x: View,
        out: &mut ViewMut,
    ) -> Result<(), Error> {
        let n_experts = routes.starts.len() - 1;
        if !self.all.limits.has_experts {
            return Ok(());
        }
        let Some(entries) = self.all.entries_of(first, n_experts)? else { return Ok(()) };
        let n_slots = self.all.limits.max_loaded as u32;
        let slot = |expert: usize, pair: usize| match self.slots.host[routes.rows[pair] as usize] {
            LowRankEntry::NONE => LowRankEntry::NONE,
            slot => expert as u32 * n_slots + slot,
        };
        let of_expert = |expert| routes.of(expert).map(move |pair| slot(expert, pair));
        let slots: Vec<u32> = (0..n_experts).flat_map(of_expert).collect();
        let change = LowRank { numbers: self.all.numbers.view(), entries };
        let mut hidden = self.all.hidden.borrow_mut();
        let products = &mut [LowRankProduct { change, out: out.reborrow() }];
        Ok(ops::low_rank(exec, x, (&slots).into(), &mut hidden.rows_mut(x.n_rows()), products)?)
    }

    /// What the adapters make of the products of pairs that lie row by row, each with its `chosen` expert.
    pub fn apply_chosen(
        &self,
        exec: Exec,
        first: TensorId,
        n_experts: usize,
        x: View,
        chosen: View,
        out: &mut ViewMut,
    ) -> Result<(), Error> {
        if !self.all.limits.has_experts {
            return Ok(());
        }
        let Some(entries) = self.all.entries_of(first, n_experts)? else { return Ok(()) };
        let change = LowRank { numbers: self.all.numbers.view(), entries };
        let pairs = ExpertPairs { chosen, slots: self.slots, n_experts };
        let mut hidden = self.all.hidden.borrow_mut();
        Ok(ops::low_rank_experts(exec, x, change, pairs, &mut hidden.rows_mut(out.shape[0]), out)?)
    }

    /// What the adapters make of products of `x` with some matrices.
    pub fn apply(&self, exec: Exec, x: View, outs: &mut [(TensorId, ViewMut)]) -> Result<(), Error> {
        let mut products = Vec::with_capacity(outs.len());
        for (tensor, out) in outs {
            if let Some(entries) = self.all.entries(*tensor)? {
                let change = LowRank { numbers: self.all.numbers.view(), entries };
                products.push(LowRankProduct { change, out: out.reborrow() });
            }
        }
        if products.is_empty() {
            return Ok(());
        }
        let mut hidden = self.all.hidden.borrow_mut();
        Ok(ops::low_rank(exec, x, self.slots, &mut hidden.rows_mut(x.n_rows()), &mut products)?)
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::in_halves;

    #[test]
    fn halves_lose_nothing() {
        let numbers = |unit: f32| [0.0, 1.0, -0.71, 3.0e-4, 2.0e-7].map(|x| bf16::from_f32(x * unit).to_f32());
        for unit in [1.0, 1e6, 1e-6, 1e30, 1e-30] {
            let matrix = numbers(unit);
            let (halves, unit) = in_halves(&matrix).unwrap();
            let back = halves.iter().map(|half| (half.to_f64() * unit) as f32);
            assert!(back.eq(matrix), "{matrix:?}");
        }
        assert!(in_halves(&[0.0; 3]).is_some() && in_halves(&[]).is_some());
        // More bits than there are, and numbers too far apart.
        assert!(in_halves(&[1.0, 0.1]).is_none() && in_halves(&[1.0, 1e-12]).is_none());
    }
}
