//! One wave: its registers, its masks, and the workgroup memory it shares.
//!
//! Vector registers are rows of `N` lanes; sources that are no register are copied into spare rows first, so that
//! every handler reads rows and nothing else. The scalar file holds exec (126, 127) too; writes to it go through
//! `set_scalar`, which keeps the per-lane mask in step.

use crate::error::{Cause, Fault};
use crate::exec::Counters;
use crate::isa::code;
use crate::memory::{Lease, Memory};
use crate::sanitize::LdsShadow;

/// Spare rows after 256 VGPRs and 256 AGPRs: two for each source, two for a result that needs finishing.
pub const ROW_AGPR: u16 = 256;
pub const ROW_SOURCE: u16 = 512;
pub const ROW_RESULT: u16 = 518;
pub const ROW_SPARE: u16 = 520;
pub const N_ROWS: usize = 522;

/// What fresh registers and memory hold: recognisable, and no sensible number.
pub const POISON: u32 = 0xdead_beef;

pub struct Wave<const N: usize> {
    pub v: Vec<[u32; N]>,
    pub s: [u32; 128],
    pub scc: bool,
    /// All ones in the lanes that exec enables, and whether that is all of them.
    pub live: [u32; N],
    pub is_full: bool,
    /// Instruction index in the current program, and the absolute address for far jumps.
    pub next: u32,
    pub far: u64,
    /// Address of the current program's first instruction.
    pub code_base: u64,
    pub scratch: Vec<u8>,
    pub scratch_written: Vec<bool>,
    pub scratch_bytes: u32,
    pub mode: u32,
    pub id: u32,
    pub is_done: bool,
    pub n_run: u64,
    pub fault: Option<Cause>,
    pub lease: Lease,
    pub counters: Counters,
}

/// What the waves of a workgroup share.
pub struct Group<'a> {
    pub lds: Vec<u8>,
    pub lds_shadow: Option<LdsShadow>,
    pub memory: &'a Memory,
    pub id: [u32; 3],
    /// Keep shadows of what is written.
    pub is_checked: bool,
    /// Report reads of what nobody wrote (AMD's own copy kernels may read anything).
    pub reports_unwritten: bool,
}

impl<const N: usize> Wave<N> {
    pub fn new() -> Self {
        Wave {
            v: vec![[0; N]; N_ROWS],
            s: [0; 128],
            scc: false,
            live: [0; N],
            is_full: false,
            next: 0,
            far: 0,
            code_base: 0,
            scratch: Vec::new(),
            scratch_written: Vec::new(),
            scratch_bytes: 0,
            mode: 0,
            id: 0,
            is_done: false,
            n_run: 0,
            fault: None,
            lease: Lease::default(),
            counters: Counters::default(),
        }
    }

    /// Back to the state of a wave that has not started.
    pub fn reset(&mut self, n_vgprs: usize, n_agprs: usize, scratch_bytes: u32, is_checked: bool) {
        self.v[..n_vgprs.min(256)].fill([POISON; N]);
        let agpr = ROW_AGPR as usize;
        self.v[agpr..agpr + n_agprs.min(256)].fill([POISON; N]);
        self.s = [POISON; 128];
        self.s[code::NULL as usize] = 0;
        self.scc = false;
        self.next = 0;
        self.scratch.clear();
        self.scratch.resize(scratch_bytes as usize * N, 0xa5);
        self.scratch_written.clear();
        if is_checked {
            self.scratch_written.resize(scratch_bytes as usize * N, false);
        }
        self.scratch_bytes = scratch_bytes;
        self.mode = 0xf0;
        self.is_done = false;
        self.n_run = 0;
        self.fault = None;
    }

    pub fn exec(&self) -> u64 {
        self.mask(code::EXEC)
    }

    /// A lane mask in the scalar file: one register in wave32, a pair in wave64.
    #[inline(always)]
    pub fn mask(&self, at: u16) -> u64 {
        let lo = self.s[at as usize & 127] as u64;
        if N == 64 { lo | (self.s[(at as usize + 1) & 127] as u64) << 32 } else { lo }
    }

    #[inline(always)]
    pub fn set_mask(&mut self, at: u16, mask: u64) {
        if N == 64 {
            self.set_scalar64(at, mask);
        } else {
            self.set_scalar(at, mask as u32);
        }
    }

    #[inline(always)]
    pub fn set_scalar(&mut self, at: u16, value: u32) {
        if at == code::NULL || at > 127 {
            return;
        }
        self.s[at as usize] = value;
        if at >= code::EXEC {
            let exec = self.exec();
            self.live = spread(exec);
            self.is_full = exec == u64::MAX >> (64 - N);
        }
    }

    /// A 32-bit scalar source.
    #[inline(always)]
    pub fn scalar(&self, at: u16, literal: u32) -> u32 {
        match at {
            0..=127 => self.s[at as usize],
            code::LITERAL => literal,
            _ => self.constant(at),
        }
    }

    #[inline(never)]
    fn constant(&self, at: u16) -> u32 {
        match at {
            128..=192 => at as u32 - 128,
            193..=208 => (192 - at as i32) as u32,
            // Flat apertures: high halves of the shared and private base (the limits are the low halves' end).
            235 => 0,
            236 => !0,
            237 => 0,
            238 => !0,
            240..=248 => INLINE_FLOATS[at as usize - 240].to_bits(),
            251 => (self.mask(code::VCC) == 0) as u32,
            252 => (self.exec() == 0) as u32,
            code::SCC => self.scc as u32,
            _ => 0,
        }
    }

    #[inline(always)]
    pub fn scalar64(&self, at: u16, literal: u32) -> u64 {
        match at {
            code::NULL => 0,
            0..=126 => self.s[at as usize] as u64 | (self.s[at as usize + 1] as u64) << 32,
            128..=208 => self.constant(at) as i32 as i64 as u64,
            235 => SHARED_BASE,
            237 => PRIVATE_BASE,
            236 => SHARED_BASE | 0xffff_ffff,
            238 => PRIVATE_BASE | 0xffff_ffff,
            240..=248 => inline_double(at).to_bits(),
            code::LITERAL => literal as u64,
            _ => self.constant(at) as u64,
        }
    }

    #[inline(always)]
    pub fn set_scalar64(&mut self, at: u16, value: u64) {
        if at == code::EXEC {
            // Both halves first: the lanes' masks are derived once.
            self.s[at as usize] = value as u32;
            self.set_scalar(at + 1, (value >> 32) as u32);
        } else if at != code::NULL {
            self.set_scalar(at, value as u32);
            self.set_scalar(at + 1, (value >> 32) as u32);
        }
    }

    /// Writes a row in the live lanes. All of them are live in most code, which needs no blending.
    #[inline(always)]
    pub fn put(&mut self, dst: u16, value: &[u32; N]) {
        debug_assert!((dst as usize) < N_ROWS);
        // SAFETY: lowering names rows of the register file only (`Handler`).
        let to = unsafe { self.v.get_unchecked_mut(dst as usize) };
        if self.is_full {
            *to = *value;
        } else {
            for l in 0..N {
                to[l] = (value[l] & self.live[l]) | (to[l] & !self.live[l]);
            }
        }
    }

    /// Records why the wave stops; the run loop turns it into a `Fault`.
    pub fn stop(&mut self, cause: Cause) -> super::Flow {
        self.fault = Some(cause);
        super::Flow::Fault
    }
}

impl<const N: usize> Default for Wave<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The model hook's flat apertures (ROCr hands out the same bases to the code it compiles for).
pub const SHARED_BASE: u64 = 0x4000_0000_0000_0000;
pub const PRIVATE_BASE: u64 = 0x5000_0000_0000_0000;

/// Codes 240 to 248; the last is 1 / (2 pi).
pub const INLINE_FLOATS: [f32; 9] = [0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, f32::from_bits(0x3e22_f983)];

/// The same as doubles: the last has more digits than the float.
pub fn inline_double(at: u16) -> f64 {
    if at == 248 { f64::from_bits(0x3fc4_5f30_6dc9_c882) } else { INLINE_FLOATS[at as usize - 240] as f64 }
}

/// A lane mask as one word per lane.
#[inline(always)]
pub fn spread<const N: usize>(mask: u64) -> [u32; N] {
    let mut rows = [0; N];
    let halves = [mask as u32, (mask >> 32) as u32];
    let mut lane = 0;
    while lane < N {
        rows[lane] = if halves[lane / 32] & (1 << (lane % 32)) != 0 { !0 } else { 0 };
        lane += 1;
    }
    rows
}

/// The reverse: which lanes hold all ones (others must hold zero). For handlers, which are compiled for AVX2.
///
/// # Safety
/// On x86-64 the CPU has AVX2, which the emulator checks when it starts.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
pub fn gather<const N: usize>(rows: &[u32; N]) -> u64 {
    let mut mask = 0;
    for (n, eight) in rows.as_chunks::<8>().0.iter().enumerate() {
        mask |= (signs(eight) as u64) << (8 * n);
    }
    mask
}

/// The sign bits of eight words. The compiler does not find this instruction by itself: a plain loop took a quarter of
/// the time of a matrix-vector kernel.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn signs(eight: &[u32; 8]) -> u32 {
    use std::arch::x86_64::{_mm256_castsi256_ps, _mm256_loadu_si256, _mm256_movemask_ps};
    // SAFETY: the load reads the 32 bytes of `eight`.
    let words = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
    _mm256_movemask_ps(_mm256_castsi256_ps(words)) as u32
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn signs(eight: &[u32; 8]) -> u32 {
    eight.iter().rev().fold(0, |mask, word| mask << 1 | word >> 31)
}

/// Adds what the wave itself does not know.
pub fn fault(cause: Cause, inst_offset: i64, op: &'static str, words: Vec<u32>, group: [u32; 3], wave: u32) -> Fault {
    Fault { offset: inst_offset, op, words, workgroup: group, wave, cause }
}
