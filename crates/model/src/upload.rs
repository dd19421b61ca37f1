//! Weights on their way to a device: from the mapped file to their place, through a fixed set of pinned buffers that
//! several threads fill. The disk, the filling threads, the bus and the device work at once.
//!
//! Nothing is allocated on the device. Packed weights pass through the scratch memory that products use later, where a
//! kernel lays them out; plain numbers are copied straight to their place. The queue runs in order, so one such buffer
//! is enough.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpu::{Buffer, Pending, Pinned};
use ops::{Layout, Place, PlaceMut, Tensor, View, pack_rows};
use weights::Dtype;

use crate::Error;
use crate::device::Device;

/// What a pinned buffer holds: large enough for the bus, small enough to overlap.
const PIECE_BYTES: usize = 4 << 20;
/// More threads than this do not fill faster than a bus takes.
const MAX_FILLERS: usize = 12;
/// Buffers on the bus or on their way back, besides one that each thread fills.
const N_IN_FLIGHT: usize = 4;

/// A matrix of the checkpoint, in rows, and where it goes.
pub struct UploadJob<'a> {
    pub dtype: Dtype,
    pub from: JobSource<'a>,
    pub to: &'a mut Tensor,
}

pub enum JobSource<'a> {
    File(&'a weights::Bytes),
    Made(Vec<u8>),
}

/// How loading went.
#[derive(Copy, Clone, Debug)]
pub struct UploadReport {
    pub n_bytes: usize,
    pub time: Duration,
}

/// Some bytes of a job that travel together.
struct UploadPiece {
    job_idx: usize,
    bytes: Range<usize>,
    rows: Range<usize>,
}

impl JobSource<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            JobSource::File(bytes) => bytes,
            JobSource::Made(bytes) => bytes,
        }
    }
}

/// Copies every job to its place, and waits until all of them are there.
pub fn upload(device: &Device, jobs: Vec<UploadJob>, n_threads: usize) -> Result<UploadReport, Error> {
    let start = Instant::now();
    let (mut sources, mut targets) = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len()));
    let mut pieces = Vec::new();
    for (job_idx, UploadJob { dtype, from, to }) in jobs.into_iter().enumerate() {
        cut(job_idx, from.bytes().len(), to.layout(), to.shape()[0], &mut pieces);
        sources.push(from);
        targets.push((dtype, to));
    }
    let n_bytes = pieces.iter().map(|piece| piece.bytes.len()).sum();
    let largest = pieces.iter().map(|piece| piece.bytes.len()).max().unwrap_or(0);
    let n_fillers = n_threads.clamp(1, MAX_FILLERS).min(pieces.len());
    let fillers = Fillers::new(&sources, &pieces);
    let (free, to_fill) = mpsc::channel();
    let to_fill = Mutex::new(to_fill);
    let (done, filled) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..n_fillers {
            let (done, to_fill, fillers) = (done.clone(), &to_fill, &fillers);
            scope.spawn(move || fillers.work(to_fill, &done));
        }
        drop(done);
        for _ in 0..(n_fillers + N_IN_FLIGHT).min(pieces.len()) {
            give(&free, device.queue.pinned(largest)?);
        }
        // `free` ends with this closure, whatever happens, and the threads with it.
        send(device, &pieces, &mut targets, free, &filled)
    })?;
    device.queue.wait()?;
    Ok(UploadReport { n_bytes, time: start.elapsed() })
}

/// Whole rows where a kernel lays them out, else plain bytes.
fn cut(job_idx: usize, n_bytes: usize, layout: Layout, n_rows: usize, pieces: &mut Vec<UploadPiece>) {
    if layout == Layout::Rows {
        let starts = (0..n_bytes).step_by(PIECE_BYTES);
        pieces.extend(starts.map(|at| UploadPiece { job_idx, bytes: at..(at + PIECE_BYTES).min(n_bytes), rows: 0..0 }));
        return;
    }
    let row_bytes = n_bytes.checked_div(n_rows).unwrap_or(0);
    let rows_each = PIECE_BYTES.checked_div(row_bytes).unwrap_or(0).max(1);
    pieces.extend((0..n_rows).step_by(rows_each).map(|first| {
        let rows = first..(first + rows_each).min(n_rows);
        UploadPiece { job_idx, bytes: rows.start * row_bytes..rows.end * row_bytes, rows }
    }));
}

/// What the filling threads share.
struct Fillers<'a> {
    sources: &'a [JobSource<'a>],
    pieces: &'a [UploadPiece],
    next: AtomicUsize,
    /// Pieces of each job that are still to be read.
    n_left: Vec<AtomicUsize>,
}

impl<'a> Fillers<'a> {
    fn new(sources: &'a [JobSource<'a>], pieces: &'a [UploadPiece]) -> Self {
        let n_left: Vec<AtomicUsize> = sources.iter().map(|_| AtomicUsize::new(0)).collect();
        for piece in pieces {
            n_left[piece.job_idx].fetch_add(1, Ordering::Relaxed);
        }
        Self { sources, pieces, next: AtomicUsize::new(0), n_left }
    }

    /// Fills one free buffer after the other with the next piece, until there are no more of either.
    fn work(&self, to_fill: &Mutex<Receiver<Pinned<u8>>>, done: &Sender<(usize, Pinned<u8>)>) {
        loop {
            let buffer = to_fill.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(mut buffer) = buffer else { return };
            let piece_idx = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(piece_idx) else { return };
            let source = &self.sources[piece.job_idx];
            buffer[..piece.bytes.len()].copy_from_slice(&source.bytes()[piece.bytes.clone()]);
            let is_last = self.n_left[piece.job_idx].fetch_sub(1, Ordering::AcqRel) == 1;
            if let (true, JobSource::File(bytes)) = (is_last, source) {
                bytes.release_pages();
            }
            if done.send((piece_idx, buffer)).is_err() {
                return;
            }
        }
    }
}

fn give(free: &Sender<Pinned<u8>>, buffer: Pinned<u8>) {
    // Threads that have nothing left to fill are gone; the buffer goes with them.
    let _ = free.send(buffer);
}

/// Enqueues what the threads filled, in whatever order it comes, and gives them their buffers back.
fn send(
    device: &Device,
    pieces: &[UploadPiece],
    targets: &mut [(Dtype, &mut Tensor)],
    free: Sender<Pinned<u8>>,
    filled: &Receiver<(usize, Pinned<u8>)>,
) -> Result<(), Error> {
    let mut staging = device.staging();
    let mut in_flight: VecDeque<Pending<u8>> = VecDeque::new();
    let mut n_sent = 0;
    while n_sent < pieces.len() {
        let (piece_idx, buffer) = match filled.try_recv() {
            Ok(filled) => filled,
            Err(_) => match in_flight.pop_front() {
                Some(oldest) => {
                    give(&free, oldest.wait()?);
                    continue;
                }
                None => {
                    filled.recv().map_err(|_| Error::Batch("a thread that reads the weights ended early".into()))?
                }
            },
        };
        let piece = &pieces[piece_idx];
        let (dtype, tensor) = &mut targets[piece.job_idx];
        in_flight.push_back(send_piece(device, *dtype, piece, buffer, tensor, &mut staging)?);
        n_sent += 1;
    }
    in_flight.into_iter().try_for_each(|pending| pending.wait().map(drop))?;
    Ok(())
}

fn send_piece(
    device: &Device,
    dtype: Dtype,
    piece: &UploadPiece,
    buffer: Pinned<u8>,
    tensor: &mut Tensor,
    staging: &mut Buffer<u8>,
) -> Result<Pending<u8>, Error> {
    let n = piece.bytes.len();
    if tensor.layout() == Layout::Rows {
        let PlaceMut::Device(to) = tensor.view_mut().place else { unreachable!("weights of a device lie there") };
        return Ok(device.queue.upload_part(buffer, 0..n, to.into_slice(piece.bytes.clone())?)?);
    }
    let pending = device.queue.upload_part(buffer, 0..n, staging.slice_mut(..n)?)?;
    let shape = [piece.rows.len(), tensor.shape()[1]];
    let source = View { dtype, shape, layout: Layout::Rows, place: Place::Device(staging.slice(..n)?) };
    device.with_exec(|gpu| pack_rows(gpu, source, piece.rows.start, &mut tensor.view_mut()))?;
    Ok(pending)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte and every row once, in order, in pieces that fit a buffer; a longer row is a piece of its own.
    #[test]
    fn pieces_cover_a_matrix() {
        let check = |layout, n_rows: usize, row_bytes: usize, n_pieces: usize| {
            let mut pieces = Vec::new();
            cut(3, n_rows * row_bytes, layout, n_rows, &mut pieces);
            assert_eq!(pieces.len(), n_pieces, "{layout:?} {n_rows} x {row_bytes}");
            let (mut bytes, mut row) = (0, 0);
            for piece in &pieces {
                assert_eq!((piece.job_idx, piece.bytes.start), (3, bytes));
                assert!(piece.bytes.len() <= PIECE_BYTES.max(row_bytes));
                bytes = piece.bytes.end;
                if layout == Layout::Planes {
                    assert_eq!((piece.rows.start, piece.rows.len() * row_bytes), (row, piece.bytes.len()));
                    row = piece.rows.end;
                }
            }
            assert_eq!(bytes, n_rows * row_bytes);
        };
        check(Layout::Rows, 1, 4, 1);
        check(Layout::Rows, 3, PIECE_BYTES - 1, 3);
        check(Layout::Rows, 0, 18, 0);
        check(Layout::Planes, 1, 18, 1);
        check(Layout::Planes, 7, PIECE_BYTES / 2 - 1, 4);
        check(Layout::Planes, 2, PIECE_BYTES + 6, 2);
        check(Layout::Planes, 0, 18, 0);
    }
}
