//! A cheap, clonable owner of a range of bytes: part of a mapped file, or of a `Vec` made in memory.
//!
//! Tensors hold one each, so a checkpoint's file stays mapped as long as any of its tensors lives. There is no promise
//! about the alignment of the first byte: readers decode little-endian values, they do not cast.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;

/// A range of bytes: mapped from a file, owned, or made on first use. Clones share them.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<Owner>,
    start: usize,
    len: usize,
}

enum Owner {
    Mapped(Mmap),
    Vec(Vec<u8>),
    /// Made when they are first looked at.
    Made {
        make: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
        n_bytes: usize,
        made: OnceLock<Vec<u8>>,
    },
}

impl Bytes {
    /// Takes ownership; nothing is copied.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { owner: Arc::new(Owner::Vec(bytes)), start: 0, len }
    }

    /// Bytes that are made when they are first looked at, as where a file's packing is turned into another. `make` must
    /// give `n_bytes` of them.
    pub fn made(n_bytes: usize, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Self {
        let owner = Owner::Made { make: Box::new(make), n_bytes, made: OnceLock::new() };
        Self { owner: Arc::new(owner), start: 0, len: n_bytes }
    }

    /// Maps the whole file, read-only. The bytes are read from disk as they are touched.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is read-only and only ever seen as `&[u8]`, for which every bit pattern is valid. What no
        // check of ours can exclude is another process writing to or cutting the file meanwhile: the numbers would
        // change, or the kernel would raise SIGBUS. Everything that steers control flow (counts, offsets, names) is
        // copied out and checked while the file is opened; tensor data only feeds arithmetic.
        let map = unsafe { Mmap::map(file)? };
        let len = map.len();
        Ok(Self { owner: Arc::new(Owner::Mapped(map)), start: 0, len })
    }

    /// Known without making them: the length of the slice would have to look.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether they lie in a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(*self.owner, Owner::Mapped(_))
    }

    /// A part of these bytes, or `None` where the range does not lie inside them.
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.checked_add(1)?,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            return None;
        }
        Some(Self { owner: Arc::clone(&self.owner), start: self.start + start, len: end - start })
    }

    /// A part of these bytes.
    ///
    /// # Panics
    /// Where the range does not lie inside them, as indexing a slice does; `get` is the checked form.
    pub fn slice(&self, range: impl RangeBounds<usize> + fmt::Debug) -> Self {
        match self.get((range.start_bound().cloned(), range.end_bound().cloned())) {
            Some(bytes) => bytes,
            None => panic!("range {range:?} lies outside {} bytes", self.len),
        }
    }

    /// Takes the pages of a mapped range out of this process's resident memory, as after copying a tensor into another
    /// layout. The bytes stay valid: touching them again reads them from the file again. Does nothing for bytes that
    /// live in a `Vec`, and nothing on systems without madvise.
    pub fn release_pages(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(map) = &*self.owner
            && self.len > 0
        {
            // SAFETY: DONTNEED may lose data only where pages differ from the file. This mapping is shared and
            // read-only (`Mmap::map`), so no page ever does, and the next touch faults the same bytes in again. The
            // range lies inside the map: `get` is the only way to narrow it and keeps start + len <= map.len().
            let advised =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.start, self.len) };
            // Advice the kernel refuses costs memory, not correctness, and no caller could act on it.
            drop(advised);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.owner {
            Owner::Mapped(map) => map,
            Owner::Vec(bytes) => bytes,
            Owner::Made { make, n_bytes, made } => made.get_or_init(|| {
                let bytes = make();
                assert_eq!(bytes.len(), *n_bytes, "bytes made for a tensor");
                bytes
            }),
        };
        &all[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_vec(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_mapped() { "mapped" } else { "in memory" };
        write!(f, "Bytes({} bytes at {}, {place})", self.len, self.start)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Bytes;
    use crate::{Dtype, Tensor};

    #[test]
    fn slices_nest_and_share_one_owner() {
        let all = Bytes::from_vec((0..10).collect());
        let part = all.slice(2..8);
        assert_eq!(&*part, &[2, 3, 4, 5, 6, 7]);
        assert_eq!(&*part.slice(1..=2), &[3, 4]);
        assert_eq!(&*part.slice(6..), &[] as &[u8]);
        drop(all);
        assert_eq!(part[0], 2);
    }

    #[test]
    fn bytes_are_made_when_they_are_looked_at_and_not_before() {
        let n_made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_made);
        let bytes = Bytes::made(8, move || {
            counter.fetch_add(1, Ordering::Relaxed);
            vec![7; 8]
        });
        let tensor = Tensor::new("x", Dtype::F32, vec![2], bytes).unwrap();
        let second = tensor.bytes.slice(4..);
        assert_eq!((tensor.bytes.len(), second.len(), second.is_empty()), (8, 4, false));
        assert_eq!(n_made.load(Ordering::Relaxed), 0);
        assert_eq!(&*second, &[7; 4]);
        assert_eq!((tensor.bytes[0], n_made.load(Ordering::Relaxed)), (7, 1));
    }

    #[test]
    fn ranges_outside_are_refused() {
        let part = Bytes::from_vec(vec![0; 10]).slice(2..8);
        assert!(part.get(0..7).is_none());
        assert!(part.get(7..).is_none());
        assert!(part.get(0..=usize::MAX).is_none());
        let (from, to) = (3, 2);
        assert!(part.get(from..to).is_none());
    }
}
