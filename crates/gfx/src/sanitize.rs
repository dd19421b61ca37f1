//! What silicon would not tell: who wrote which byte, and when.
//!
//! `Shadow` remembers which bytes of an allocation a kernel wrote. `LdsShadow` remembers, per byte of a workgroup's
//! memory, the last waves that touched it since the last barrier: two waves with no barrier between them and at least
//! one plain write are a race, whatever order this emulator happened to run them in.

use std::sync::atomic::{AtomicU64, Ordering};

/// One bit per byte.
pub struct Shadow {
    bits: Vec<AtomicU64>,
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shadow({} bytes)", self.bits.len() * 64)
    }
}

impl Shadow {
    pub fn new(n_bytes: u64) -> Self {
        let n_words = n_bytes.div_ceil(64) as usize;
        // Zeroed pages come from the system untouched, so a large shadow costs nothing until it is used.
        let bits = vec![0u64; n_words].into_iter().map(AtomicU64::new).collect();
        Shadow { bits }
    }

    pub fn touch(&self, at: u64, n_bytes: u64) {
        for (word, mask) in words(at, n_bytes) {
            if let Some(bits) = self.bits.get(word)
                && bits.load(Ordering::Relaxed) & mask != mask
            {
                bits.fetch_or(mask, Ordering::Relaxed);
            }
        }
    }

    /// No byte of the range was written.
    pub fn is_untouched(&self, at: u64, n_bytes: u64) -> bool {
        words(at, n_bytes).all(|(word, mask)| self.bits.get(word).is_none_or(|b| b.load(Ordering::Relaxed) & mask == 0))
    }
}

/// Words of 64 bits and the bits of each that a byte range covers.
fn words(at: u64, n_bytes: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = at + n_bytes;
    (at / 64..end.div_ceil(64)).map(move |word| {
        let from = at.max(word * 64) - word * 64;
        let to = end.min(word * 64 + 64) - word * 64;
        let mask = if to - from == 64 { !0 } else { ((1u64 << (to - from)) - 1) << from };
        (word as usize, mask)
    })
}

const NOBODY: u32 = u32::MAX;
const SEVERAL: u32 = u32::MAX - 1;

#[derive(Copy, Clone)]
struct Cell {
    epoch: u32,
    writer: u32,
    reader: u32,
    is_atomic: bool,
    is_written: bool,
}

/// Per byte of LDS: who touched it since the last barrier.
pub struct LdsShadow {
    cells: Vec<Cell>,
    epoch: u32,
}

/// How an access touches memory.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Touch {
    Read,
    Write,
    Atomic,
}

/// What an access to LDS reveals.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Finding {
    Race { other: String },
    Uninitialised,
}

impl LdsShadow {
    pub fn new(n_bytes: usize) -> Self {
        let cell = Cell { epoch: 0, writer: NOBODY, reader: NOBODY, is_atomic: false, is_written: false };
        LdsShadow { cells: vec![cell; n_bytes], epoch: 1 }
    }

    /// All waves met: what came before is ordered.
    pub fn barrier(&mut self) {
        self.epoch += 1;
    }

    pub fn touch(&mut self, wave: u32, at: usize, n_bytes: usize, how: Touch) -> Result<(), Finding> {
        let epoch = self.epoch;
        let Some(cells) = self.cells.get_mut(at..at + n_bytes) else { return Ok(()) };
        let mut unwritten = 0;
        for cell in cells.iter_mut() {
            if cell.epoch != epoch {
                *cell = Cell { epoch, writer: NOBODY, reader: NOBODY, is_atomic: false, is_written: cell.is_written };
            }
            let both_atomic = how == Touch::Atomic && cell.is_atomic;
            if cell.writer != NOBODY && cell.writer != wave && !both_atomic {
                return Err(Finding::Race { other: format!("wave {} wrote it", name(cell.writer)) });
            }
            if how != Touch::Read {
                if cell.reader != NOBODY && cell.reader != wave {
                    return Err(Finding::Race { other: format!("wave {} read it", name(cell.reader)) });
                }
                cell.writer = if both_atomic && cell.writer != wave { SEVERAL } else { wave };
                cell.is_atomic = how == Touch::Atomic;
                cell.is_written = true;
            } else {
                cell.reader = if cell.reader == NOBODY || cell.reader == wave { wave } else { SEVERAL };
                unwritten += !cell.is_written as usize;
            }
        }
        // A wide read may run over padding that nobody needs; a read of nothing but unwritten bytes is a mistake.
        if how == Touch::Read && unwritten == n_bytes { Err(Finding::Uninitialised) } else { Ok(()) }
    }
}

fn name(wave: u32) -> String {
    if wave == SEVERAL { "several".into() } else { wave.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_knows_bytes() {
        let s = Shadow::new(200);
        assert!(s.is_untouched(0, 200));
        s.touch(60, 8);
        assert!(!s.is_untouched(67, 1));
        assert!(s.is_untouched(68, 100));
        assert!(s.is_untouched(0, 60));
        assert!(!s.is_untouched(0, 61));
    }

    #[test]
    fn lds_races_need_two_waves_and_no_barrier() {
        let mut s = LdsShadow::new(64);
        assert_eq!(s.touch(0, 0, 4, Touch::Write), Ok(()));
        assert_eq!(s.touch(0, 0, 4, Touch::Read), Ok(()));
        assert!(matches!(s.touch(1, 0, 4, Touch::Read), Err(Finding::Race { .. })));
        s.barrier();
        assert_eq!(s.touch(1, 0, 4, Touch::Read), Ok(()));
        assert_eq!(s.touch(2, 0, 4, Touch::Read), Ok(()));
        assert!(matches!(s.touch(1, 0, 4, Touch::Write), Err(Finding::Race { .. })), "wave 2 read it");
        assert_eq!(s.touch(1, 8, 4, Touch::Read), Err(Finding::Uninitialised));
        s.barrier();
        assert_eq!(s.touch(1, 16, 4, Touch::Atomic), Ok(()));
        assert_eq!(s.touch(2, 16, 4, Touch::Atomic), Ok(()));
        assert!(matches!(s.touch(3, 16, 4, Touch::Read), Err(Finding::Race { .. })));
    }
}
