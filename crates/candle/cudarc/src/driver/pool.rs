//! Memory that streams keep for later: a block given back is handed out again for the next request of
//! its size, so that a loop that repeats itself allocates nothing after its first round.
//!
//! A block belongs to one stream, whose order makes reuse safe: whatever used it before was enqueued
//! before. Sizes are rounded up to a quarter of a power of two, which wastes a fifth at most.
//!
//! `ROCI_CANDLE_POOL=off` makes every slice an allocation of its own, as long as the slice and no longer, for tools that
//! watch memory: a block handed out again looks written, and a rounded one has room behind its end.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use gpu::unchecked::Stream;

const SMALLEST: usize = 512;

pub(crate) struct Pool {
    /// Idle blocks by size.
    idle: Mutex<HashMap<usize, Vec<u64>>>,
    keeps: bool,
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
        if let Some(address) = self.lock().get_mut(&size).and_then(Vec::pop) {
            return Ok(address);
        }
        match stream.alloc(size) {
            Err(gpu::Error::OutOfMemory { .. }) if self.clear(stream) > 0 => stream.alloc(size),
            answer => answer,
        }
    }

    /// Take a block back. Work enqueued before may still use it.
    pub fn give(&self, stream: &Stream, address: u64, bytes: usize) {
        if !self.keeps {
            // SAFETY: taken from this stream with this size, and its owner is gone.
            unsafe { stream.free(address, bytes.max(1)) };
            return;
        }
        self.lock().entry(rounded(bytes)).or_default().push(address);
    }

    /// Free what is idle; how many bytes that were.
    pub fn clear(&self, stream: &Stream) -> usize {
        let idle = std::mem::take(&mut *self.lock());
        let mut freed = 0;
        for (size, addresses) in idle {
            freed += size * addresses.len();
            for address in addresses {
                // SAFETY: taken from this stream with this size, idle, and owned by nobody but the list.
                unsafe { stream.free(address, size) };
            }
        }
        freed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Vec<u64>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

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
