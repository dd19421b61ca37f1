//! Pieces of the pools on their way between a device and the host. A kernel gathers the rows of many places into the
//! memory that products otherwise decode weights into, and one copy moves it. All of it is queued between two steps, so
//! neither step has to be waited for.

use gpu::{Pending, Slice};
use ops::{Exec, Indices, Layout, Place, PlaceMut, Tensor, View, ViewMut, gather_rows, scatter_rows};

use super::run::PinnedSet;
use super::{DECODED_BYTES, Device, StepMemory, exec};
use crate::Error;
use crate::cache_copy::{CacheRows, part_bytes, row_bytes};

/// Bytes of one copy, of the memory it passes through on both sides.
const PASSAGE_BYTES: usize = DECODED_BYTES / 4;
/// Rows that one copy names.
const PASSAGE_ROWS: usize = 1 << 16;
/// Where the rows' numbers stand, after the bytes.
const ROWS_AT: usize = DECODED_BYTES / 2;

/// Host memory of copies, taken when the first is made.
pub struct CopyMemory {
    rows: PinnedSet<u32>,
    bytes: PinnedSet<u8>,
    /// To the device.
    uploads: Vec<(Pending<u32>, Option<Pending<u8>>)>,
}

/// Under way to the host.
pub struct CopyOut {
    bytes: Pending<u8>,
    n_places: usize,
    /// Bytes of a place in each tensor.
    parts: Vec<usize>,
}

impl Default for CopyMemory {
    fn default() -> Self {
        Self { rows: PinnedSet::empty(PASSAGE_ROWS), bytes: PinnedSet::empty(PASSAGE_BYTES), uploads: Vec::new() }
    }
}

impl Device {
    /// Places of so many bytes that one copy takes.
    pub fn n_copied_at_once(place_bytes: usize) -> usize {
        // Rows are 256 bytes or more.
        (PASSAGE_BYTES / place_bytes.max(1)).clamp(1, PASSAGE_ROWS / 256)
    }

    /// Queues a copy of these places of a pool.
    pub fn copy_out(&mut self, tensors: &[&Tensor], n_places: usize, ids: &[u32]) -> Result<CopyOut, Error> {
        let parts: Vec<usize> = tensors.iter().map(|tensor| part_bytes(tensor, n_places)).collect();
        let n_bytes = check_size(&parts, ids.len())?;
        let rows = self.upload_rows(tensors.iter().map(|tensor| rows_of(tensor, n_places)), ids)?;
        self.settle_uploads(1)?;
        let bytes = self.copies.bytes.take(&self.queue)?;
        let Self { queue, kernels, blas, memory: StepMemory { workspace, .. }, .. } = self;
        {
            let launcher = queue.launcher();
            let gpu = exec(&launcher, kernels, blas.as_ref(), workspace);
            let mut passage = workspace.borrow_mut();
            let (mut data, numbers) = passage.weights.all_mut().split_at(ROWS_AT)?;
            let numbers = numbers.as_slice();
            let mut at = 0;
            for (tensor, part) in tensors.iter().zip(&parts) {
                let from = tensor.view();
                let (host, device) = rows.find(rows_of(tensor, n_places), numbers)?;
                let place = PlaceMut::Device(data.slice_mut(at..at + part * ids.len())?);
                let shape = [host.len(), from.n_cols()];
                let mut to = ViewMut { dtype: from.dtype, shape, layout: Layout::Rows, place };
                gather_rows(Exec::Gpu(&gpu), from, Indices { host, device: Some(device) }, &mut to)?;
                at += part * ids.len();
            }
        }
        let passage = workspace.borrow();
        let bytes = queue.download(passage.weights.slice(..n_bytes)?, bytes)?;
        Ok(CopyOut { bytes, n_places: ids.len(), parts })
    }

    /// Waits for a copy, and takes it apart.
    pub fn copied(&mut self, copy: CopyOut) -> Result<Vec<Vec<u8>>, Error> {
        let CopyOut { bytes, n_places, parts } = copy;
        let bytes = bytes.wait()?;
        let n_piece: usize = parts.iter().sum();
        let mut pieces: Vec<Vec<u8>> = (0..n_places).map(|_| Vec::with_capacity(n_piece)).collect();
        let mut at = 0;
        for part in parts {
            for (piece, bytes) in pieces.iter_mut().zip(bytes[at..].chunks(part.max(1))) {
                piece.extend_from_slice(&bytes[..part]);
            }
            at += part * n_places;
        }
        self.copies.bytes.give_back(Some(bytes));
        Ok(pieces)
    }

    /// Queues these pieces for their places.
    pub fn copy_in(
        &mut self,
        tensors: &mut [&mut Tensor],
        n_places: usize,
        pieces: &[(u32, &[u8])],
    ) -> Result<(), Error> {
        let parts: Vec<usize> = tensors.iter().map(|tensor| part_bytes(tensor, n_places)).collect();
        let n_bytes = check_size(&parts, pieces.len())?;
        // The last upload may still read its host memory; what it wrote has its place in the queue.
        self.settle_uploads(1)?;
        let mut staged = self.copies.bytes.take(&self.queue)?;
        let (mut at, mut offset) = (0, 0);
        for part in &parts {
            for (_, piece) in pieces {
                staged[at..at + part].copy_from_slice(&piece[offset..offset + part]);
                at += part;
            }
            offset += part;
        }
        let ids: Vec<u32> = pieces.iter().map(|(id, _)| *id).collect();
        let rows = self.upload_rows(tensors.iter().map(|tensor| rows_of(tensor, n_places)), &ids)?;
        let Self { queue, kernels, blas, memory: StepMemory { workspace, .. }, .. } = self;
        let upload = {
            let mut passage = workspace.borrow_mut();
            queue.upload_part(staged, 0..n_bytes, passage.weights.slice_mut(..n_bytes)?)?
        };
        if let Some(last) = self.copies.uploads.last_mut() {
            last.1 = Some(upload);
        }
        let launcher = queue.launcher();
        let gpu = exec(&launcher, kernels, blas.as_ref(), workspace);
        let passage = workspace.borrow();
        let numbers = passage.weights.slice(ROWS_AT..)?;
        let mut at = 0;
        for (tensor, part) in tensors.iter_mut().zip(&parts) {
            let (host, device) = rows.find(rows_of(tensor, n_places), numbers)?;
            let mut to = tensor.view_mut();
            let place = Place::Device(passage.weights.slice(at..at + part * ids.len())?);
            let from = View { dtype: to.dtype, shape: [host.len(), to.shape[1]], layout: Layout::Rows, place };
            scatter_rows(Exec::Gpu(&gpu), from, Indices { host, device: Some(device) }, &mut to)?;
            at += part * ids.len();
        }
        Ok(())
    }

    /// The numbers of the rows, for every kind of tensor once.
    fn upload_rows(&mut self, kinds: impl Iterator<Item = CacheRows>, ids: &[u32]) -> Result<CopyList, Error> {
        let mut rows = CopyList::default();
        for kind in kinds {
            if !rows.kinds.iter().any(|(known, _)| *known == kind) {
                let start = rows.numbers.len();
                rows.numbers.extend(kind.rows_on_device(ids.iter().copied()));
                rows.kinds.push((kind, start..rows.numbers.len()));
            }
        }
        let n = rows.numbers.len();
        if n > PASSAGE_ROWS {
            return Err(Error::Batch(format!("a copy of {n} rows")));
        }
        let mut staged = self.copies.rows.take(&self.queue)?;
        staged[..n].copy_from_slice(&rows.numbers);
        let mut passage = self.memory.workspace.borrow_mut();
        let to = passage.weights.slice_mut(ROWS_AT..ROWS_AT + 4 * n)?.cast()?;
        let upload = self.queue.upload_part(staged, 0..n, to)?;
        self.copies.uploads.push((upload, None));
        Ok(rows)
    }

    /// Takes back the host memory of all uploads but the latest `n_left`.
    fn settle_uploads(&mut self, n_left: usize) -> Result<(), Error> {
        let n_done = self.copies.uploads.len().saturating_sub(n_left);
        for (rows, bytes) in self.copies.uploads.drain(..n_done).collect::<Vec<_>>() {
            self.copies.rows.give_back(Some(rows.wait()?));
            self.copies.bytes.give_back(bytes.map(Pending::wait).transpose()?);
        }
        Ok(())
    }
}

fn rows_of(tensor: &Tensor, n_places: usize) -> CacheRows {
    CacheRows { n_places, n_parts: part_bytes(tensor, n_places) / row_bytes(tensor).max(1) }
}

fn check_size(parts: &[usize], n_pieces: usize) -> Result<usize, Error> {
    let n_bytes = parts.iter().sum::<usize>() * n_pieces;
    match n_bytes <= PASSAGE_BYTES {
        true => Ok(n_bytes),
        false => Err(Error::Batch(format!("a copy of {n_bytes} bytes, of at most {PASSAGE_BYTES}"))),
    }
}

/// Which rows of the tensors a copy is about.
#[derive(Default)]
struct CopyList {
    numbers: Vec<u32>,
    kinds: Vec<(CacheRows, std::ops::Range<usize>)>,
}

impl CopyList {
    fn find<'a>(&'a self, kind: CacheRows, numbers: Slice<'a, u8>) -> Result<(&'a [u32], Slice<'a, u32>), Error> {
        let range = self.kinds.iter().find(|(known, _)| *known == kind).map(|(_, range)| range.clone());
        let range = range.unwrap_or_default();
        let device = numbers.slice(4 * range.start..4 * range.end)?.cast()?;
        Ok((&self.numbers[range], device))
    }
}
