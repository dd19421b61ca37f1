//! One allocation, carved: weights, scratch and KV pool are each taken once and split by name, never per op. It lies in
//! host memory, or in device memory that the caller took.
//!
//! A [`Tensor`] owns its own part of the arena, so that the borrow checker sees the parts as separate and a view of
//! one can be read while another is written.

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapMut;
use weights::Dtype;

use crate::view::matrix_bytes;
use crate::{Layout, Place, PlaceMut, View, ViewMut};

/// Cache line and widest vector.
const ALIGN: usize = 64;

/// Memory of a fixed size whose parts are handed out once each.
pub struct Arena {
    source: ArenaMemory,
    used_bytes: usize,
}

enum ArenaMemory {
    Host(Arc<HostMapping>),
    Device(gpu::MemoryPool),
}

/// The mapping, and where it starts; the mapping itself is only kept alive.
struct HostMapping {
    start: NonNull<u8>,
    len: usize,
    _memory: MmapMut,
}

// SAFETY: `HostMapping` only owns the memory; each byte is reached through exactly one `Region`.
unsafe impl Send for HostMapping {}
// SAFETY: as above.
unsafe impl Sync for HostMapping {}

#[derive(Copy, Clone)]
enum Pages {
    Large,
    Small,
}

/// Exclusive owner of one part of an arena.
enum Region {
    Host { block: Arc<HostMapping>, offset: usize, len: usize },
    Device(gpu::Buffer<u8>),
}

/// A named matrix inside an arena.
pub struct Tensor {
    dtype: Dtype,
    shape: [usize; 2],
    layout: Layout,
    region: Region,
}

impl Arena {
    /// Bytes that a tensor takes in an arena, its padding included.
    pub fn bytes_for(dtype: Dtype, shape: [usize; 2]) -> usize {
        Self::padded(matrix_bytes(Layout::Rows, dtype, shape).unwrap_or(usize::MAX))
    }

    /// `n_bytes` with the padding that keeps the next part aligned.
    pub fn padded(n_bytes: usize) -> usize {
        n_bytes.saturating_add(ALIGN - 1) & !(ALIGN - 1)
    }

    /// As [`Arena::padded`], on a device.
    pub fn padded_on_device(n_bytes: usize) -> usize {
        n_bytes.saturating_add(gpu::ALIGNMENT - 1) & !(gpu::ALIGNMENT - 1)
    }

    /// Zeroed memory in large pages where the system has them, or `None` if it refuses. For what is used as a whole.
    pub fn new(n_bytes: usize) -> Option<Self> {
        Self::with_pages(n_bytes, Pages::Large)
    }

    /// Zeroed memory in small pages: only what is touched takes memory. For what is used here and there.
    pub fn sparse(n_bytes: usize) -> Option<Self> {
        Self::with_pages(n_bytes, Pages::Small)
    }

    fn with_pages(n_bytes: usize, pages: Pages) -> Option<Self> {
        let mut memory = MmapMut::map_anon(n_bytes.max(ALIGN)).ok()?;
        // A hint: without large pages everything is right and reads a fifth slower.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(match pages {
            Pages::Large => memmap2::Advice::HugePage,
            Pages::Small => memmap2::Advice::NoHugePage,
        });
        let start = NonNull::new(memory.as_mut_ptr())?;
        let block = Arc::new(HostMapping { start, len: memory.len(), _memory: memory });
        Some(Self { source: ArenaMemory::Host(block), used_bytes: 0 })
    }

    /// Device memory that the caller took, carved from its start on.
    pub fn on_device(pool: gpu::MemoryPool) -> Self {
        Self { source: ArenaMemory::Device(pool), used_bytes: 0 }
    }

    /// The next `len` bytes of device memory, for what is no matrix. Panics as [`Arena::carve`] does, and on the host.
    pub fn carve_bytes(&mut self, len: usize) -> gpu::Buffer<u8> {
        self.carve_plain(len)
    }

    /// As [`Arena::carve_bytes`], in words.
    pub fn carve_words(&mut self, len: usize) -> gpu::Buffer<u32> {
        self.carve_plain(len)
    }

    fn carve_plain<T: gpu::Element>(&mut self, len: usize) -> gpu::Buffer<T> {
        let ArenaMemory::Device(pool) = &mut self.source else { panic!("plain memory is carved on a device only") };
        pool.carve(len).expect("an arena that was planned large enough")
    }

    /// The next part, as a matrix.
    ///
    /// # Panics
    /// If the arena was planned too small: the plan and the carving disagree, which is a bug.
    pub fn carve(&mut self, dtype: Dtype, shape: [usize; 2]) -> Tensor {
        self.carve_as(Layout::Rows, dtype, shape)
    }

    /// The next part, in a layout of its own. Panics as [`Arena::carve`] does.
    pub fn carve_as(&mut self, layout: Layout, dtype: Dtype, shape: [usize; 2]) -> Tensor {
        let len = matrix_bytes(layout, dtype, shape).expect("a shape that fills its blocks");
        let region = match &mut self.source {
            ArenaMemory::Host(block) => {
                let needed = Self::padded(len);
                assert!(needed <= block.len - self.used_bytes, "the arena was planned too small for {shape:?}");
                let offset = self.used_bytes;
                self.used_bytes += needed;
                Region::Host { block: Arc::clone(block), offset, len }
            }
            ArenaMemory::Device(pool) => {
                Region::Device(pool.carve(len).expect("an arena that was planned large enough"))
            }
        };
        Tensor { dtype, shape, layout, region }
    }
}

impl Tensor {
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    pub fn view(&self) -> View<'_> {
        self.rows(self.shape[0])
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.rows_mut(self.shape[0])
    }

    /// The first `n_rows` rows.
    pub fn rows(&self, n_rows: usize) -> View<'_> {
        let len = self.first_rows_len(n_rows);
        let place = match &self.region {
            Region::Host { block, offset, .. } => {
                // SAFETY: carve() gave `offset..offset + len` of the live block to this region alone; `&self` lends it
                // shared.
                Place::Host(unsafe { std::slice::from_raw_parts(block.start.as_ptr().add(*offset), len) })
            }
            Region::Device(buffer) => Place::Device(buffer.slice(..len).expect("rows of the tensor")),
        };
        View { dtype: self.dtype, shape: [n_rows, self.shape[1]], layout: self.layout, place }
    }

    pub fn rows_mut(&mut self, n_rows: usize) -> ViewMut<'_> {
        let len = self.first_rows_len(n_rows);
        let place = match &mut self.region {
            Region::Host { block, offset, .. } => {
                // SAFETY: as in `rows`; `&mut self` lends it exclusively.
                PlaceMut::Host(unsafe { std::slice::from_raw_parts_mut(block.start.as_ptr().add(*offset), len) })
            }
            Region::Device(buffer) => PlaceMut::Device(buffer.slice_mut(..len).expect("rows of the tensor")),
        };
        ViewMut { dtype: self.dtype, shape: [n_rows, self.shape[1]], layout: self.layout, place }
    }

    /// The first `n` numbers of an f32 tensor as a column: a row's number of something that needs no memory of its own.
    pub fn column_mut(&mut self, n: usize) -> ViewMut<'_> {
        self.narrow_mut([n, 1])
    }

    /// The first numbers of an f32 tensor as a matrix of another shape: layers of one model may differ in their widths.
    pub fn narrow(&self, shape: [usize; 2]) -> View<'_> {
        assert_eq!(self.dtype, Dtype::F32, "numbers of an f32 tensor");
        let n = shape[0] * shape[1];
        let place = match self.rows(n.div_ceil(self.shape[1].max(1))).place {
            Place::Host(bytes) => Place::Host(&bytes[..n * 4]),
            Place::Device(bytes) => Place::Device(bytes.slice(..n * 4).expect("numbers of the tensor")),
        };
        View { dtype: Dtype::F32, shape, layout: Layout::Rows, place }
    }

    /// As [`Tensor::narrow`], to be changed.
    pub fn narrow_mut(&mut self, shape: [usize; 2]) -> ViewMut<'_> {
        assert_eq!(self.dtype, Dtype::F32, "numbers of an f32 tensor");
        let n = shape[0] * shape[1];
        let place = match self.rows_mut(n.div_ceil(self.shape[1].max(1))).place {
            PlaceMut::Host(bytes) => PlaceMut::Host(&mut bytes[..n * 4]),
            PlaceMut::Device(bytes) => PlaceMut::Device(bytes.into_slice(..n * 4).expect("numbers of the tensor")),
        };
        ViewMut { dtype: Dtype::F32, shape, layout: Layout::Rows, place }
    }

    /// The numbers of an f32 tensor on the host.
    pub fn f32s(&self, n_rows: usize) -> &[f32] {
        assert_eq!(self.dtype, Dtype::F32, "numbers of an f32 tensor");
        let Place::Host(bytes) = self.rows(n_rows).place else { panic!("the host reads host memory only") };
        bytemuck::cast_slice(bytes)
    }

    /// As [`Tensor::f32s`], to be filled by the host.
    pub fn f32s_mut(&mut self, n_rows: usize) -> &mut [f32] {
        assert_eq!(self.dtype, Dtype::F32, "numbers of an f32 tensor");
        let PlaceMut::Host(bytes) = self.rows_mut(n_rows).place else { panic!("the host fills host memory only") };
        bytemuck::cast_slice_mut(bytes)
    }

    fn first_rows_len(&self, n_rows: usize) -> usize {
        let whole = match &self.region {
            Region::Host { len, .. } => *len,
            Region::Device(buffer) => buffer.len(),
        };
        if n_rows == self.shape[0] {
            return whole;
        }
        assert!(n_rows < self.shape[0], "{n_rows} rows of a tensor of {}", self.shape[0]);
        assert_eq!(self.layout, Layout::Rows, "tiles and planes are taken whole");
        whole.checked_div(self.shape[0]).unwrap_or(0) * n_rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_disjoint_and_zeroed() {
        let shapes = [[3, 5], [1, 1], [7, 16]];
        let total = shapes.iter().map(|&shape| Arena::bytes_for(Dtype::F32, shape)).sum();
        let mut arena = Arena::new(total).unwrap();
        let mut parts: Vec<Tensor> = shapes.iter().map(|&shape| arena.carve(Dtype::F32, shape)).collect();
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.f32s(part.shape[0]).iter().all(|&x| x == 0.0));
            part.view_mut().f32s("test", "part").unwrap().fill(i as f32 + 1.0);
        }
        for (i, part) in parts.iter().enumerate() {
            let numbers = part.f32s(part.shape[0]);
            assert_eq!(numbers.as_ptr() as usize % ALIGN, 0);
            assert!(numbers.iter().all(|&x| x == i as f32 + 1.0));
        }
    }
}
