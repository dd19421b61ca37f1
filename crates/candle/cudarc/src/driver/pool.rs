//! Memory that streams keep for later: a block given back is handed out again for the next request of
//! its size, so that a loop that repeats itself allocates nothing after its first round.
//!
//! A block belongs to one stream, whose order makes reuse safe: whatever used it before was enqueued
//! before. Sizes are rounded up to a quarter of a power of two, which wastes a fifth at most. Small blocks are
//! cut from larger allocations, so that a context that grows with every token seldom asks the driver.
//!
//! `ROCI_CANDLE_POOL=off` makes every slice an allocation of its own, as long as the slice and no longer, for tools that
//! watch memory: a block handed out again looks written, and a rounded one has room behind its end.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use gpu::unchecked::Stream;

const SMALLEST: usize = 512;
/// Blocks of up to so many bytes are cut from slabs.
const LARGEST_CUT: usize = 1 << 20;
const SLAB: usize = 16 << 20;
/// Where blocks begin in a slab: any kernel's widest access.
const ALIGNMENT: usize = 256;

pub(crate) struct Pool {
    /// Idle blocks by size.
    idle: Mutex<Idle>,
    keeps: bool,
}

#[derive(Default)]
struct Idle {
    by_size: HashMap<usize, Vec<u64>>,
    /// Addresses and sizes.
    slabs: Vec<(u64, usize)>,
    /// What is left of the newest slab: its next address, and how many bytes follow.
    rest: (u64, usize),
}

impl Idle {
    /// Free what is idle; how many bytes that were. Slabs stay, with what was cut from them.
    fn clear(&mut self, stream: &Stream) -> usize {
        let mut freed = 0;
        for (size, addresses) in self.by_size.extract_if(|size, _| *size > LARGEST_CUT) {
            freed += size * addresses.len();
            for address in addresses {
                // SAFETY: taken from this stream with this size, idle, and owned by nobody but the list.
                unsafe { stream.free(address, size) };
            }
        }
        freed
    }

    /// A block from what is left of the newest slab.
    fn cut(&mut self, size: usize) -> Option<u64> {
        let (address, left) = self.rest;
        let taken = size.next_multiple_of(ALIGNMENT);
        (taken <= left).then(|| {
            self.rest = (address + taken as u64, left - taken);
            address
        })
    }
}

/// The size that a request of so many bytes gets.
pub(crate) fn rounded(bytes: usize) -> usize {
    let bytes = bytes.max(SMALLEST);
    let step = (bytes.next_power_of_two() / 8).max(SMALLEST / 4);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

impl Pool {
    pub fn new() -> Self {
        Self { idle: Mutex::default(), keeps: std::env::var_os("ROCI_CANDLE_POOL").is_none_or(|value| value != "off") }
    }

    /// An address with room for `bytes`, from the idle blocks or from the device. Where the device is full,
    /// what is idle goes back to it first.
    pub fn take(&self, stream: &Stream, bytes: usize) -> gpu::Result<u64> {
        if !self.keeps {
            return stream.alloc(bytes.max(1));
        }
        let size = rounded(bytes);
        let is_cut = size <= LARGEST_CUT;
        let mut idle = self.lock();
        if let Some(address) = idle.by_size.get_mut(&size).and_then(Vec::pop) {
            return Ok(address);
        }
        if let Some(address) = is_cut.then(|| idle.cut(size)).flatten() {
            return Ok(address);
        }
        let wanted = if is_cut { SLAB } else { size };
        let mut answer = stream.alloc(wanted);
        if matches!(answer, Err(gpu::Error::OutOfMemory { .. })) && idle.clear(stream) > 0 {
            answer = stream.alloc(wanted);
        }
        if !is_cut {
            return answer;
        }
        // A nearly full device may have room for the block alone.
        let slab = match answer {
            Err(gpu::Error::OutOfMemory { .. }) => {
                let least = size.next_multiple_of(ALIGNMENT);
                (stream.alloc(least)?, least)
            }
            answer => (answer?, SLAB),
        };
        idle.slabs.push(slab);
        idle.rest = slab;
        Ok(idle.cut(size).expect("a slab has room for the block that it was taken for"))
    }

    /// Take a block back. Work enqueued before may still use it.
    pub fn give(&self, stream: &Stream, address: u64, bytes: usize) {
        if !self.keeps {
            // SAFETY: taken from this stream with this size, and its owner is gone.
            unsafe { stream.free(address, bytes.max(1)) };
            return;
        }
        self.lock().by_size.entry(rounded(bytes)).or_default().push(address);
    }

    /// Free everything.
    ///
    /// # Safety
    /// No block is in use any more.
    pub unsafe fn close(&self, stream: &Stream) {
        let mut idle = self.lock();
        idle.clear(stream);
        for (slab, bytes) in std::mem::take(&mut *idle).slabs {
            // SAFETY: taken from this stream with this size; the caller knows that nobody owns a part of it.
            unsafe { stream.free(slab, bytes) };
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Idle, rounded};

    #[test]
    fn blocks_of_a_slab_do_not_overlap() {
        let mut idle = Idle { rest: (1 << 20, 2048), ..Idle::default() };
        let blocks: Vec<u64> = std::iter::from_fn(|| idle.cut(640)).collect();
        assert_eq!(blocks, [1 << 20, (1 << 20) + 768], "640 bytes take three times {ALIGNMENT}, and two such fit");
        assert_eq!(idle.cut(512), Some((1 << 20) + 1536));
        assert_eq!(idle.cut(1), None);
    }

    #[test]
    fn sizes_grow_by_a_quarter_at_most() {
        assert_eq!([rounded(0), rounded(1), rounded(512), rounded(513)], [512, 512, 512, 640]);
        for bytes in (600..5_000_000).step_by(977) {
            let got = rounded(bytes);
            assert!(got >= bytes && got <= bytes + bytes / 4 + 128, "{bytes} gets {got}");
            assert_eq!(rounded(got), got, "a block goes back where it came from");
        }
    }
}
