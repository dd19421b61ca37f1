//! Random numbers as a function of (seed, position), with no state: a counter-based generator built on the 64-bit
//! finaliser of SplitMix64. A sequence that another engine takes up at position n draws what it would have drawn here.

/// A bijection of 64-bit numbers that flips about half the bits for any change of its input.
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 64 random bits for this seed at this position.
pub fn bits(seed: u64, position: u64) -> u64 {
    // Two rounds with the seed folded in between: neighbouring seeds do not share shifted streams.
    mix(mix(position).wrapping_add(mix(seed ^ 0xd1b5_4a32_d192_ed03)))
}

/// A uniform number in [0, 1) with 53 random bits.
pub fn uniform(seed: u64, position: u64) -> f64 {
    (bits(seed, position) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chi-square of `n` draws in 64 bins; 63 degrees of freedom, 99.99th percentile is 111.
    fn chi_square(n: usize, draw: impl Fn(u64) -> f64) -> f64 {
        let mut bins = [0u32; 64];
        for i in 0..n as u64 {
            bins[(draw(i) * 64.0) as usize] += 1;
        }
        let expected = n as f64 / 64.0;
        bins.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
    }

    #[test]
    fn uniform_along_positions_seeds_and_their_diagonals() {
        for seed in [0, 1, 42, u64::MAX] {
            assert!(chi_square(100_000, |i| uniform(seed, i)) < 111.0);
            assert!(chi_square(100_000, |i| uniform(i, seed)) < 111.0);
            assert!(chi_square(100_000, |i| uniform(i, seed.wrapping_sub(i))) < 111.0);
            assert!(chi_square(100_000, |i| uniform(i, i ^ seed)) < 111.0);
        }
    }

    #[test]
    fn neighbours_are_independent() {
        // The fractional part of the sum of independent uniforms is uniform; of correlated ones it is not.
        assert!(chi_square(100_000, |i| (uniform(7, i) + uniform(7, i + 1)).fract()) < 111.0);
        assert!(chi_square(100_000, |i| (uniform(i, 3) - uniform(i + 1, 3) + 1.0).fract()) < 111.0);
    }

    #[test]
    fn the_same_pair_gives_the_same_bits_on_every_machine() {
        // SplitMix64 seeded with 0 starts with this number in every published implementation.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(bits(1, 2), bits(1, 2));
        assert_ne!(bits(1, 2), bits(2, 1));
    }
}
