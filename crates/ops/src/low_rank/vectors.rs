//! The numbers of an adapter's matrices, and the two loops over them on a CPU: f32, f16 and 24 bits, with what any CPU has,
//! with AVX2 and with AVX-512.

use half::f16;

/// Sums that a dot product keeps apart where nothing is known of the CPU's vectors.
const LANES: usize = 32;

/// The upper bytes of an f32, the lowest first.
pub type F24 = [u8; 3];

/// Rounded to the 16 leading bits.
pub fn to_f24(x: f32) -> F24 {
    let bits = x.to_bits();
    // To the nearest, and in the middle to the even one.
    let [_, low, middle, high] = (bits.saturating_add(0x7f + (bits >> 8 & 1))).to_le_bytes();
    [low, middle, high]
}

/// The two loops over an adapter's numbers, for some instructions.
pub trait Vectors {
    /// # Safety
    /// The CPU has the instructions; both are of one length.
    unsafe fn dot<T: AdapterNumber>(a: &[T], x: &[f32]) -> f32;

    /// Adds rows of `B`, each times its factor.
    ///
    /// # Safety
    /// The CPU has the instructions; all are of one length.
    unsafe fn add_rows<T: AdapterNumber, const N: usize>(out: &mut [f32], b: [&[T]; N], factors: [f32; N]);
}

/// What any CPU has.
pub struct Plain;

impl Vectors for Plain {
    #[inline(always)]
    unsafe fn dot<T: AdapterNumber>(a: &[T], x: &[f32]) -> f32 {
        let mut sums = [0.0_f32; LANES];
        let (wholes, rest) = a.as_chunks::<LANES>();
        let (x_wholes, x_rest) = x.as_chunks::<LANES>();
        for (a, x) in wholes.iter().zip(x_wholes) {
            for i in 0..LANES {
                sums[i] += a[i].widened() * x[i];
            }
        }
        let rest: f32 = rest.iter().zip(x_rest).map(|(a, x)| a.widened() * x).sum();
        sums.iter().sum::<f32>() + rest
    }

    #[inline(always)]
    unsafe fn add_rows<T: AdapterNumber, const N: usize>(out: &mut [f32], b: [&[T]; N], factors: [f32; N]) {
        for (b, factor) in b.into_iter().zip(factors) {
            out.iter_mut().zip(b).for_each(|(out, b)| *out += factor * b.widened());
        }
    }
}

pub trait AdapterNumber: Copy {
    fn widened(self) -> f32;

    /// Eight numbers.
    ///
    /// # Safety
    /// They are there; the CPU has AVX and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn eight(from: *const Self) -> std::arch::x86_64::__m256;

    /// Sixteen numbers.
    ///
    /// # Safety
    /// They are there; the CPU has AVX-512F.
    #[cfg(target_arch = "x86_64")]
    unsafe fn sixteen(from: *const Self) -> std::arch::x86_64::__m512;
}

impl AdapterNumber for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(from: *const Self) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(from) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn sixteen(from: *const Self) -> std::arch::x86_64::__m512 {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm512_loadu_ps(from) }
    }
}

impl AdapterNumber for f16 {
    /// For finite numbers, in steps that compilers make vectors of: the exponent's bias is made up for by a product, which is
    /// exact for subnormal numbers too.
    #[inline(always)]
    fn widened(self) -> f32 {
        /// 2^112, by which the biases of the two types differ.
        const BIAS: f32 = f32::from_bits(0x7780_0000);
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * BIAS;
        f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(from: *const Self) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm256_cvtph_ps(std::arch::x86_64::_mm_loadu_si128(from.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn sixteen(from: *const Self) -> std::arch::x86_64::__m512 {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm512_cvtph_ps(std::arch::x86_64::_mm256_loadu_si256(from.cast())) }
    }
}

impl AdapterNumber for F24 {
    #[inline(always)]
    fn widened(self) -> f32 {
        let [low, middle, high] = self;
        f32::from_bits(u32::from_le_bytes([0, low, middle, high]))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(from: *const Self) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::{
            _mm_loadu_si128, _mm256_castsi256_ps, _mm256_set_m128i, _mm256_setr_epi8, _mm256_shuffle_epi8,
        };
        // SAFETY: eight of them are 24 bytes, of which these are the first and the last sixteen; the CPU has AVX2.
        unsafe {
            let halves = _mm256_set_m128i(_mm_loadu_si128(from.byte_add(8).cast()), _mm_loadu_si128(from.cast()));
            // Each number above a byte of zeros; the last four begin at the fifth byte of their half.
            let places = _mm256_setr_epi8(
                -1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, 4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13,
                14, 15,
            );
            _mm256_castsi256_ps(_mm256_shuffle_epi8(halves, places))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn sixteen(from: *const Self) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::{_mm256_castps_pd, _mm512_castpd_ps, _mm512_castpd256_pd512, _mm512_insertf64x4};
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = [Self::eight(from), Self::eight(from.add(8))].map(|eight| _mm256_castps_pd(eight));
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castpd256_pd512(low), high))
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub mod x86 {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_reduce_add_ps, _mm512_set1_ps,
        _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::{AdapterNumber, Plain, Vectors};

    /// AVX2, FMA and F16C.
    pub struct Avx2;
    /// AVX-512F.
    pub struct Avx512;

    /// Vectors of one step: their sums do not wait for each other.
    const STEP: usize = 4;
    /// Bytes that are asked for ahead, because CPUs look ahead no further than a page.
    const AHEAD: usize = 2048;
    const LINE: usize = 64;

    /// Asks for what comes after `n` numbers from here; it may lie behind the end.
    #[inline(always)]
    fn ask_ahead<T>(from: *const T, n: usize) {
        for at in (0..n * size_of::<T>()).step_by(LINE) {
            // SAFETY: a hint, which may be about any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast::<i8>().wrapping_add(AHEAD + at)) };
        }
    }

    impl Vectors for Avx2 {
        #[inline(always)]
        unsafe fn dot<T: AdapterNumber>(a: &[T], x: &[f32]) -> f32 {
            let n = a.len() / (8 * STEP) * (8 * STEP);
            // SAFETY: the vectors lie below `n`; the CPU has AVX2 and FMA.
            let sum = unsafe {
                let mut sums = [_mm256_setzero_ps(); STEP];
                for at in (0..n).step_by(8 * STEP) {
                    ask_ahead(a.as_ptr().add(at), 8 * STEP);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let at = at + 8 * i;
                        *sum = _mm256_fmadd_ps(T::eight(a.as_ptr().add(at)), _mm256_loadu_ps(x.as_ptr().add(at)), *sum);
                    }
                }
                let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
                let mut lanes = [0.0_f32; 8];
                _mm256_storeu_ps(lanes.as_mut_ptr(), sum);
                lanes.iter().sum::<f32>()
            };
            // SAFETY: any CPU has this.
            sum + unsafe { Plain::dot(&a[n..], &x[n..]) }
        }

        #[inline(always)]
        unsafe fn add_rows<T: AdapterNumber, const N: usize>(out: &mut [f32], b: [&[T]; N], factors: [f32; N]) {
            let n = out.len() / 8 * 8;
            // SAFETY: the vectors lie below `n`, and all are of one length; the CPU has AVX2 and FMA.
            unsafe {
                let wide = factors.map(|factor| _mm256_set1_ps(factor));
                for at in (0..n).step_by(8) {
                    let mut sum = _mm256_loadu_ps(out.as_ptr().add(at));
                    for (b, factor) in b.iter().zip(wide) {
                        ask_ahead(b.as_ptr().add(at), 8);
                        sum = _mm256_fmadd_ps(T::eight(b.as_ptr().add(at)), factor, sum);
                    }
                    _mm256_storeu_ps(out.as_mut_ptr().add(at), sum);
                }
                Plain::add_rows(&mut out[n..], b.map(|b| &b[n..]), factors);
            }
        }
    }

    impl Vectors for Avx512 {
        #[inline(always)]
        unsafe fn dot<T: AdapterNumber>(a: &[T], x: &[f32]) -> f32 {
            let n = a.len() / (16 * STEP) * (16 * STEP);
            // SAFETY: the vectors lie below `n`; the CPU has AVX-512F.
            let sum = unsafe {
                let mut sums = [_mm512_setzero_ps(); STEP];
                for at in (0..n).step_by(16 * STEP) {
                    ask_ahead(a.as_ptr().add(at), 16 * STEP);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let at = at + 16 * i;
                        *sum =
                            _mm512_fmadd_ps(T::sixteen(a.as_ptr().add(at)), _mm512_loadu_ps(x.as_ptr().add(at)), *sum);
                    }
                }
                _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])))
            };
            // SAFETY: AVX-512F includes these.
            sum + unsafe { Avx2::dot(&a[n..], &x[n..]) }
        }

        #[inline(always)]
        unsafe fn add_rows<T: AdapterNumber, const N: usize>(out: &mut [f32], b: [&[T]; N], factors: [f32; N]) {
            let n = out.len() / 16 * 16;
            // SAFETY: the vectors lie below `n`, and all are of one length; the CPU has AVX-512F.
            unsafe {
                let wide = factors.map(|factor| _mm512_set1_ps(factor));
                for at in (0..n).step_by(16) {
                    let mut sum = _mm512_loadu_ps(out.as_ptr().add(at));
                    for (b, factor) in b.iter().zip(wide) {
                        ask_ahead(b.as_ptr().add(at), 16);
                        sum = _mm512_fmadd_ps(T::sixteen(b.as_ptr().add(at)), factor, sum);
                    }
                    _mm512_storeu_ps(out.as_mut_ptr().add(at), sum);
                }
                Plain::add_rows(&mut out[n..], b.map(|b| &b[n..]), factors);
            }
        }
    }
}
