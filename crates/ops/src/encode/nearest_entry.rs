//! The entry of a codebook with the least error, exactly and without looking at most of them.
//!
//! Each weight rounded by itself gives the least error there can be. If a codebook lists those roundings, that is the
//! entry. Else entries are looked at by their first half, and only those whose *excess* (the error beyond the least)
//! is still below the best one found: first the excess of two weights, then of four, then of all.

/// What each code is worth.
pub(super) type CodeLevels<const RADIX: usize> = [f32; RADIX];

/// Entries of `LEN` codes below `RADIX`. A half (quarter) of an entry is numbered by its codes, the first counting ones.
pub(super) struct Codebook<const LEN: usize, const RADIX: usize> {
    codes: Vec<[u8; LEN]>,
    /// By the numbers of both halves: the entry, or `NONE`.
    by_codes: Vec<u16>,
    /// By the number of the first half: where its entries start in `seconds`, and where the next one's.
    starts: Vec<u16>,
    seconds: Vec<Second>,
}

/// An entry among those with the same first half.
struct Second {
    half: u8,
    entry: u16,
}

const NONE: u16 = u16::MAX;

/// The most codes a quarter and a half can have: two of three levels or one of eight, squared.
const MAX_QUARTERS: usize = 9;
const MAX_HALVES: usize = MAX_QUARTERS * MAX_QUARTERS;

/// An entry, and its sums of `w x level` and `w level level`.
#[derive(Clone, Copy)]
pub(super) struct NearestEntry {
    pub entry: u16,
    pub xl: f32,
    pub ll: f32,
}

impl<const LEN: usize, const RADIX: usize> Codebook<LEN, RADIX> {
    const N_QUARTERS: usize = if LEN == 8 { RADIX * RADIX } else { RADIX };
    const N_HALVES: usize = Self::N_QUARTERS * Self::N_QUARTERS;

    /// From entries with their codes in as many bits as the largest needs.
    pub(super) fn new(entries: &[u16]) -> Self {
        const { assert!(LEN == 4 || LEN == 8) };
        const { assert!(Self::N_QUARTERS <= MAX_QUARTERS) };
        let bits = (RADIX - 1).ilog2() as usize + 1;
        let codes: Vec<[u8; LEN]> = entries
            .iter()
            .map(|entry| std::array::from_fn(|i| (entry >> (bits * i) & ((1 << bits) - 1)) as u8))
            .collect();
        let mut by_codes = vec![NONE; Self::N_HALVES * Self::N_HALVES];
        let mut by_first: Vec<Vec<Second>> = (0..Self::N_HALVES).map(|_| Vec::new()).collect();
        for (entry, codes) in codes.iter().enumerate() {
            let (first, second) = halves::<LEN, RADIX>(codes);
            by_codes[second * Self::N_HALVES + first] = entry as u16;
            by_first[first].push(Second { half: second as u8, entry: entry as u16 });
        }
        let mut starts = vec![0];
        let mut seconds = Vec::new();
        for list in by_first {
            seconds.extend(list);
            starts.push(seconds.len() as u16);
        }
        Self { codes, by_codes, starts, seconds }
    }

    /// The entry with the least error for `scale`.
    #[inline]
    pub(super) fn search(
        &self,
        x: &[f32; LEN],
        w: &[f32; LEN],
        levels: &CodeLevels<RADIX>,
        scale: f32,
    ) -> NearestEntry {
        let (excess, free) = excesses(x, w, levels, scale);
        let (first, second) = halves::<LEN, RADIX>(&free);
        let listed = self.by_codes[second * Self::N_HALVES + first];
        let entry = if listed == NONE { self.nearest(&excess, first) } else { listed };
        let (mut xl, mut ll) = (0.0, 0.0);
        for (i, code) in self.codes[usize::from(entry)].iter().enumerate() {
            let level = levels[usize::from(*code)];
            xl += w[i] * x[i] * level;
            ll += w[i] * level * level;
        }
        NearestEntry { entry, xl, ll }
    }

    /// The entry with the least sum of excesses; `first` is the half whose own excess is zero.
    fn nearest(&self, excess: &[[f32; LEN]; RADIX], first: usize) -> u16 {
        let quarters: [[f32; MAX_QUARTERS]; 4] = std::array::from_fn(|quarter| {
            std::array::from_fn(|number| match number {
                _ if number >= Self::N_QUARTERS => f32::INFINITY,
                _ if LEN == 8 => excess[number % RADIX][2 * quarter] + excess[number / RADIX][2 * quarter + 1],
                _ => excess[number][quarter],
            })
        });
        let mut seconds = [0.0; MAX_HALVES];
        for (high, line) in seconds.chunks_exact_mut(Self::N_QUARTERS).take(Self::N_QUARTERS).enumerate() {
            for (to, low) in line.iter_mut().zip(&quarters[2]) {
                *to = low + quarters[3][high];
            }
        }
        let mut best = (0, f32::INFINITY);
        let look = |first: usize, of_first: f32, best: &mut (u16, f32)| {
            let (start, end) = (self.starts[first], self.starts[first + 1]);
            for second in &self.seconds[usize::from(start)..usize::from(end)] {
                let sum = of_first + seconds[usize::from(second.half)];
                if sum < best.1 {
                    *best = (second.entry, sum);
                }
            }
        };
        look(first, 0.0, &mut best);
        for high in 0..Self::N_QUARTERS {
            let of_high = quarters[1][high];
            if of_high >= best.1 {
                continue;
            }
            for low in 0..Self::N_QUARTERS {
                let of_first = of_high + quarters[0][low];
                if of_first < best.1 {
                    look(high * Self::N_QUARTERS + low, of_first, &mut best);
                }
            }
        }
        best.0
    }
}

/// The error of every code at every weight beyond the least there, and the codes that have the least.
#[inline]
fn excesses<const LEN: usize, const RADIX: usize>(
    x: &[f32; LEN],
    w: &[f32; LEN],
    levels: &CodeLevels<RADIX>,
    scale: f32,
) -> ([[f32; LEN]; RADIX], [u8; LEN]) {
    let mut costs = [[0.0; LEN]; RADIX];
    let mut least = [f32::INFINITY; LEN];
    let mut free = [0; LEN];
    for (code, (costs, level)) in costs.iter_mut().zip(levels).enumerate() {
        let level = level * scale;
        for i in 0..LEN {
            costs[i] = w[i] * level * (level - 2.0 * x[i]);
            free[i] = if costs[i] < least[i] { code as u8 } else { free[i] };
            least[i] = least[i].min(costs[i]);
        }
    }
    for costs in &mut costs {
        for i in 0..LEN {
            costs[i] -= least[i];
        }
    }
    (costs, free)
}

#[inline]
fn halves<const LEN: usize, const RADIX: usize>(codes: &[u8; LEN]) -> (usize, usize) {
    let number = |codes: &[u8]| codes.iter().rev().fold(0, |sum, code| sum * RADIX + usize::from(*code));
    (number(&codes[..LEN / 2]), number(&codes[LEN / 2..]))
}
