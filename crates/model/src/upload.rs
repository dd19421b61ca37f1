//! Weights on their way to a device: from the mapped file through two pinned buffers, so that filling one, copying the
//! other and laying out what arrived go on at once.

use gpu::{Buffer, Pending, Pinned};
use ops::{Layout, Place, Tensor, View, pack_rows};
use weights::Dtype;

use crate::Error;
use crate::device::Device;

/// A piece on its way: large enough for the bus, small enough to overlap.
const PIECE_BYTES: usize = 64 << 20;
/// What one filling thread takes at a time.
const MIN_SHARE: usize = 4 << 20;

pub struct Upload<'d> {
    device: &'d Device,
    n_threads: usize,
    lanes: [Lane; 2],
    next: usize,
}

/// One pinned buffer and its place on the device.
struct Lane {
    pinned: Option<Pinned<u8>>,
    pending: Option<Pending<u8>>,
    arrived: Buffer<u8>,
}

impl<'d> Upload<'d> {
    pub fn new(device: &'d Device, n_threads: usize) -> Result<Self, Error> {
        let lane = || -> Result<Lane, Error> {
            let queue = &device.queue;
            Ok(Lane { pinned: Some(queue.pinned(PIECE_BYTES)?), pending: None, arrived: queue.alloc(PIECE_BYTES)? })
        };
        Ok(Self { device, n_threads: n_threads.max(1), lanes: [lane()?, lane()?], next: 0 })
    }

    /// Copies `bytes`, a matrix in rows, to `tensor` in the tensor's layout.
    pub fn send(&mut self, dtype: Dtype, bytes: &[u8], tensor: &mut Tensor) -> Result<(), Error> {
        let [n_rows, n_cols] = tensor.shape();
        let row_bytes = bytes.len() / n_rows.max(1);
        let rows_each = (PIECE_BYTES / row_bytes.max(1)).min(n_rows);
        if rows_each == 0 {
            return Err(Error::Batch(format!("a row of {row_bytes} bytes is too long to upload")));
        }
        for first in (0..n_rows).step_by(rows_each) {
            let n = rows_each.min(n_rows - first);
            let piece = &bytes[first * row_bytes..(first + n) * row_bytes];
            let lane = &mut self.lanes[self.next];
            self.next = 1 - self.next;
            let mut pinned = match (lane.pending.take(), lane.pinned.take()) {
                (Some(pending), _) => pending.wait()?,
                (None, Some(pinned)) => pinned,
                (None, None) => self.device.queue.pinned(PIECE_BYTES)?,
            };
            fill(&mut pinned[..piece.len()], piece, self.n_threads);
            let to = lane.arrived.slice_mut(..piece.len())?;
            lane.pending = Some(self.device.queue.upload_part(pinned, 0..piece.len(), to)?);
            let place = Place::Device(lane.arrived.slice(..piece.len())?);
            let source = View { dtype, shape: [n, n_cols], layout: Layout::Rows, place };
            self.device.with_exec(|gpu| pack_rows(gpu, source, first, &mut tensor.view_mut()))?;
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<(), Error> {
        for lane in &mut self.lanes {
            if let Some(pending) = lane.pending.take() {
                pending.wait()?;
            }
        }
        Ok(self.device.queue.wait()?)
    }
}

fn fill(to: &mut [u8], from: &[u8], n_threads: usize) {
    let share = from.len().div_ceil(n_threads).max(MIN_SHARE);
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}
