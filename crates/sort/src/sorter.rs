//! The passes of a sort, from the host's side.

use gpu::{Buffer, Device, Error, Queue, Slice, SliceMut};
use kernel::{Loaded, Objects};

use crate::kernels::radix::{self, DESCENDING, DIGIT_BITS, DIGITS, TILE, TILES_PER_GROUP};
use crate::key::{Bits, Key, Pass, Payload, Word};

static OBJECTS: Objects = include!("../objects/objects.rs");

/// Which end comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortOrder {
    #[default]
    Ascending,
    Descending,
}

/// The kernels, loaded on one device. Every call enqueues on the queue it is given and returns.
pub struct Sorter {
    pub(crate) kernels: Loaded,
}

/// Keys an index of 32 bits can reach, with room for a whole last tile.
const MAX_LEN: usize = (u32::MAX - TILE) as usize;

impl Sorter {
    /// Loads the kernels; an error names the chips there is code for.
    #[track_caller]
    pub fn new(device: &Device) -> gpu::Result<Self> {
        // SAFETY: a test rebuilds the objects from `kernels.rs` and compares them.
        let kernels = unsafe { OBJECTS.load(device) }?;
        Ok(Self { kernels })
    }

    /// Sorts in place, the smallest first.
    #[track_caller]
    pub fn sort<K: Key>(&self, queue: &Queue, keys: SliceMut<'_, K>) -> gpu::Result<()> {
        self.sort_by(queue, keys, SortOrder::Ascending)
    }

    /// Sorts in place, the largest first.
    #[track_caller]
    pub fn sort_desc<K: Key>(&self, queue: &Queue, keys: SliceMut<'_, K>) -> gpu::Result<()> {
        self.sort_by(queue, keys, SortOrder::Descending)
    }

    /// Sorts in place. Equal keys keep their order.
    #[track_caller]
    pub fn sort_by<K: Key>(&self, queue: &Queue, keys: SliceMut<'_, K>, order: SortOrder) -> gpu::Result<()> {
        let keys = keys.cast::<K::Bits>()?;
        let mut passes = Passes::new::<K>(self, queue, keys.len(), order)?;
        let mut other = queue.alloc::<K::Bits>(keys.len())?;
        let [mut from, mut to] = [keys, other.all_mut()];
        for shift in shifts::<K::Bits>() {
            passes.rank(from.as_slice(), shift)?;
            let pass = Pass { keys: from.as_slice(), kind: passes.kind, shift };
            passes.launch(&K::Bits::scatter(pass, passes.counts.all(), to.reborrow()))?;
            std::mem::swap(&mut from, &mut to);
        }
        if shifts::<K::Bits>().count() % 2 == 1 {
            queue.launcher().copy(from.as_slice(), to)?;
        }
        Ok(())
    }

    /// Sorts keys in place and moves each value with its key.
    #[track_caller]
    pub fn sort_by_key<K: Key, V: Payload>(
        &self,
        queue: &Queue,
        keys: SliceMut<'_, K>,
        values: SliceMut<'_, V>,
        order: SortOrder,
    ) -> gpu::Result<()> {
        if keys.len() != values.len() {
            let why = format!("{} keys and {} values", keys.len(), values.len());
            return Err(Error::Bounds { what: "sort_by_key", why, at: std::panic::Location::caller() });
        }
        let (keys, values) = (keys.cast::<K::Bits>()?, values.cast::<V::Word>()?);
        let mut passes = Passes::new::<K>(self, queue, keys.len(), order)?;
        let mut other_keys = queue.alloc::<K::Bits>(keys.len())?;
        let mut other_values = queue.alloc::<V::Word>(keys.len())?;
        let [mut from, mut to] = [(keys, values), (other_keys.all_mut(), other_values.all_mut())];
        for shift in shifts::<K::Bits>() {
            passes.rank(from.0.as_slice(), shift)?;
            let pass = Pass { keys: from.0.as_slice(), kind: passes.kind, shift };
            let moved = (from.1.as_slice(), to.1.reborrow());
            passes.launch(&V::Word::scatter(pass, passes.counts.all(), to.0.reborrow(), moved))?;
            std::mem::swap(&mut from, &mut to);
        }
        if shifts::<K::Bits>().count() % 2 == 1 {
            queue.launcher().copy(from.0.as_slice(), to.0)?;
            queue.launcher().copy(from.1.as_slice(), to.1)?;
        }
        Ok(())
    }

    /// The indices that would sort `keys`, which stay as they are.
    #[track_caller]
    pub fn argsort<K: Key>(&self, queue: &Queue, keys: Slice<'_, K>, order: SortOrder) -> gpu::Result<Buffer<u32>> {
        Ok(self.sorted(queue, keys, order)?.1)
    }

    /// The first `k` of the sorted keys with their indices: the largest ones if `order` is descending.
    #[track_caller]
    pub fn top_k<K: Key>(
        &self,
        queue: &Queue,
        keys: Slice<'_, K>,
        k: usize,
        order: SortOrder,
    ) -> gpu::Result<(Buffer<K>, Buffer<u32>)> {
        let (sorted, indices) = self.sorted(queue, keys, order)?;
        let (mut best, mut places) = (queue.alloc(k)?, queue.alloc(k)?);
        queue.launcher().copy(sorted.slice(..k)?, best.all_mut())?;
        queue.launcher().copy(indices.slice(..k)?, places.all_mut())?;
        Ok((best, places))
    }

    #[track_caller]
    fn sorted<K: Key>(
        &self,
        queue: &Queue,
        keys: Slice<'_, K>,
        order: SortOrder,
    ) -> gpu::Result<(Buffer<K>, Buffer<u32>)> {
        let n = keys.len();
        let mut sorted = queue.alloc::<K>(n)?;
        let mut indices = queue.alloc::<u32>(n)?;
        let launcher = queue.launcher();
        launcher.copy(keys, sorted.all_mut())?;
        self.kernels.launch_over(&launcher, n, &radix::iota(indices.all_mut()))?;
        self.sort_by_key(queue, sorted.all_mut(), indices.all_mut(), order)?;
        Ok((sorted, indices))
    }
}

fn shifts<B>() -> impl Iterator<Item = u32> {
    (0..size_of::<B>() as u32).map(|byte| byte * DIGIT_BITS)
}

/// What the passes of one sort share.
struct Passes<'a> {
    sorter: &'a Sorter,
    queue: &'a Queue,
    kind: u32,
    n_tiles: u32,
    counts: Buffer<u32>,
    groups: Buffer<u32>,
}

impl<'a> Passes<'a> {
    #[track_caller]
    fn new<K: Key>(sorter: &'a Sorter, queue: &'a Queue, n: usize, order: SortOrder) -> gpu::Result<Self> {
        if n > MAX_LEN {
            let why = format!("{n} keys, and an index of 32 bits reaches {MAX_LEN}");
            return Err(Error::Bounds { what: "sort", why, at: std::panic::Location::caller() });
        }
        let n_tiles = n.div_ceil(TILE as usize);
        let n_groups = n_tiles.div_ceil(TILES_PER_GROUP as usize);
        Ok(Self {
            sorter,
            queue,
            kind: K::KIND | if order == SortOrder::Descending { DESCENDING } else { 0 },
            n_tiles: n_tiles as u32,
            counts: queue.alloc(n_tiles * DIGITS as usize)?,
            groups: queue.alloc(n_groups * DIGITS as usize)?,
        })
    }

    /// The place of each tile's first key of every digit, into `counts`.
    fn rank<B: Bits>(&mut self, keys: Slice<'_, B>, shift: u32) -> gpu::Result<()> {
        if self.n_tiles == 0 {
            return Ok(());
        }
        let launcher = self.queue.launcher();
        let kernels = &self.sorter.kernels;
        launcher.zero(self.groups.all_mut())?;
        let pass = Pass { keys, kind: self.kind, shift };
        kernels.launch(&launcher, self.n_tiles, &B::histogram(pass, self.counts.all_mut(), self.groups.all_mut()))?;
        kernels.launch(&launcher, 1, &radix::scan_groups(self.groups.all_mut()))?;
        let n_groups = self.n_tiles.div_ceil(TILES_PER_GROUP);
        kernels.launch(&launcher, n_groups, &radix::scan_tiles(self.groups.all(), self.counts.all_mut()))
    }

    fn launch(&self, scatter: &kernel::Call<'_>) -> gpu::Result<()> {
        if self.n_tiles == 0 {
            return Ok(());
        }
        self.sorter.kernels.launch(&self.queue.launcher(), self.n_tiles, scatter)
    }
}
