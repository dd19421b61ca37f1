//! Low-rank changes of products: rows of several adapters, of none, and of one that leaves the matrix alone, at odd sizes.

use half::f16;
use ops::{
    Exec, ExpertPairs, F24, Indices, LowRank, LowRankEntry, LowRankProduct, MatrixWidth, View, ViewMut, low_rank,
    low_rank_experts, to_f24,
};

use crate::card::cards;
use crate::support::{Random, assert_close, pools};

/// Adapters in one array: two that change the matrix, one of them with gains, and one that does not.
struct Table {
    numbers: Vec<f32>,
    entries: Vec<LowRankEntry>,
}

impl Table {
    fn new(random: &mut Random, n_in: usize, n_out: usize) -> Self {
        Self::with(random, n_in, n_out, [MatrixWidth::F32, MatrixWidth::F32, MatrixWidth::F16, MatrixWidth::F16])
    }

    fn with(random: &mut Random, n_in: usize, n_out: usize, widths: [MatrixWidth; 4]) -> Self {
        let mut table = Self { numbers: random.numbers(3), entries: vec![LowRankEntry::default()] };
        let kinds = [(1, 1.0, false), (5, -0.375, true), (5, 3.1, true), (16, 0.7, false)];
        for ((rank, scale, has_gain), width) in kinds.into_iter().zip(widths) {
            let a = table.push(random, rank * n_in, width);
            let b = table.push(random, rank * n_out, width);
            let gain = has_gain.then(|| table.push(random, n_out, MatrixWidth::F32));
            table.entries.push(LowRankEntry { rank: rank as u32, a, b, gain, scale, width });
        }
        table
    }

    /// Some of the halves are subnormal.
    fn push(&mut self, random: &mut Random, n: usize, width: MatrixWidth) -> u32 {
        let start = self.numbers.len() as u32;
        let sizes = [1.0, 1e-5, 0.01].into_iter().cycle();
        let numbers = random.numbers(n).into_iter().zip(sizes);
        let bytes: Vec<u8> = match width {
            MatrixWidth::F32 => numbers.flat_map(|(x, _)| x.to_le_bytes()).collect(),
            MatrixWidth::F16 => numbers.flat_map(|(x, size)| f16::from_f32(x * size).to_le_bytes()).collect(),
            MatrixWidth::F24 => numbers.flat_map(|(x, size)| to_f24(x * size)).collect(),
        };
        let word = |bytes: &[u8]| {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            f32::from_le_bytes(word)
        };
        self.numbers.extend(bytes.chunks(4).map(word));
        assert_eq!(self.numbers.len(), start as usize + LowRankEntry::matrix_len(n, width));
        start
    }

    fn number(&self, start: u32, at: usize, width: MatrixWidth) -> f64 {
        let byte = |i: usize| self.numbers[start as usize + i / 4].to_le_bytes()[i % 4];
        match width {
            MatrixWidth::F32 => f64::from(self.numbers[start as usize + at]),
            MatrixWidth::F16 => f16::from_le_bytes([byte(2 * at), byte(2 * at + 1)]).to_f64(),
            MatrixWidth::F24 => f64::from(f32::from_le_bytes([0, byte(3 * at), byte(3 * at + 1), byte(3 * at + 2)])),
        }
    }

    fn words(&self) -> Vec<u32> {
        self.entries.iter().flat_map(|entry| entry.words()).collect()
    }

    fn truth(&self, x: &[f32], n_in: usize, start: &[f32], n_out: usize, slots: &[u32]) -> Vec<f64> {
        let mut out: Vec<f64> = start.iter().map(|x| f64::from(*x)).collect();
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != LowRankEntry::NONE) {
            let LowRankEntry { rank, a, b, gain, scale, width } = self.entries[*slot as usize];
            let x = &x[row * n_in..][..n_in];
            let hidden: Vec<f64> = (0..rank as usize)
                .map(|k| (0..n_in).map(|i| self.number(a, k * n_in + i, width) * f64::from(x[i])).sum())
                .collect();
            for (o, out) in out[row * n_out..][..n_out].iter_mut().enumerate() {
                let change: f64 =
                    hidden.iter().enumerate().map(|(k, h)| h * self.number(b, k * n_out + o, width)).sum();
                *out = (*out + f64::from(scale) * change)
                    * gain.map_or(1.0, |gain| self.number(gain, o, MatrixWidth::F32));
            }
        }
        out
    }
}

#[test]
fn low_rank_equals_f64() {
    let mut random = Random::new(18);
    for (n_rows, n_in, n_out) in [(1, 1, 1), (1, 64, 48), (7, 33, 65), (23, 576, 192), (70, 40, 300)] {
        let table = Table::new(&mut random, n_in, n_out);
        let (x, start) = (random.activations(n_rows * n_in), random.numbers(n_rows * n_out));
        let kinds = [LowRankEntry::NONE, 2, 0, 4, 1, 3, 2];
        let slots: Vec<u32> = (0..n_rows).map(|row| kinds[(row * 5 + row / 7) % kinds.len()]).collect();
        let what = format!("{n_rows} x {n_in} x {n_out}");
        let narrow = Table::with(&mut random, n_in, n_out, [MatrixWidth::F24; 4]);
        for (table, what) in [(&table, what.clone()), (&narrow, format!("{what}, 24 bits"))] {
            let (words, truth) = (table.words(), table.truth(&x, n_in, &start, n_out, &slots));
            for pool in pools() {
                let (mut out, mut hidden) = (start.clone(), vec![0.0; n_rows * 16]);
                let change =
                    LowRank { numbers: View::of_f32(&table.numbers, table.numbers.len()), entries: (&words).into() };
                let (x, slots) = (View::of_f32(&x, n_in), Indices::from(&slots));
                let (mut hidden, mut view) = (ViewMut::of_f32(&mut hidden, 16), ViewMut::of_f32(&mut out, n_out));
                let products = &mut [LowRankProduct { change, out: view.reborrow() }];
                low_rank(Exec::Cpu(&pool), x, slots, &mut hidden, products).unwrap();
                assert_close(&format!("{what} {}", pool.isa()), &out, &truth, 1e-5);
            }
        }
        let (words, truth) = (table.words(), table.truth(&x, n_in, &start, n_out, &slots));
        for card in cards().iter() {
            let out = card.low_rank((&x, n_in), (&table.numbers, &words), &slots, (&start, n_out));
            assert_close(&format!("{what} {}", card.name()), &out, &truth, 1e-5);
        }
    }
}

/// Pairs of rows and experts: of each expert the table's adapters in another order, with `x` a row for each pair and a row
/// for all pairs of a row.
#[test]
fn experts_equal_f64() {
    let mut random = Random::new(19);
    let (n_experts, n_used) = (5, 3);
    for (n_rows, n_in, n_out) in [(1, 33, 48), (9, 64, 70)] {
        let table = Table::new(&mut random, n_in, n_out);
        let n_slots = table.entries.len();
        let entry_of = |expert: usize, slot: usize| (slot * 2 + expert) % n_slots;
        let all = (0..n_experts).flat_map(|expert| (0..n_slots).map(move |slot| entry_of(expert, slot)));
        let words: Vec<u32> = all.flat_map(|at| table.entries[at].words()).collect();
        let n_pairs = n_rows * n_used;
        let chosen: Vec<u32> = (0..n_pairs).map(|pair| (pair * 7 % n_experts) as u32).collect();
        let kinds = [1, LowRankEntry::NONE, 4, 0, 2];
        let slots: Vec<u32> = (0..n_rows).map(|row| kinds[row % kinds.len()]).collect();
        let own = |pair: usize| match slots[pair / n_used] {
            LowRankEntry::NONE => LowRankEntry::NONE,
            slot => entry_of(chosen[pair] as usize, slot as usize) as u32,
        };
        let own: Vec<u32> = (0..n_pairs).map(own).collect();
        let start = random.numbers(n_pairs * n_out);
        for n_x in [n_rows, n_pairs] {
            let x = random.activations(n_x * n_in);
            let share = n_pairs / n_x;
            let spread: Vec<f32> = (0..n_pairs).flat_map(|pair| x[pair / share * n_in..][..n_in].to_vec()).collect();
            let truth = table.truth(&spread, n_in, &start, n_out, &own);
            let what = format!("{n_x} of {n_pairs} x {n_in} x {n_out}");
            for pool in pools() {
                let (mut out, mut hidden) = (start.clone(), vec![0.0; n_pairs * 16]);
                let numbers = View::of_f32(&table.numbers, table.numbers.len());
                let change = LowRank { numbers, entries: (&words).into() };
                let bits: Vec<f32> = chosen.iter().map(|expert| f32::from_bits(*expert)).collect();
                let pairs = ExpertPairs { chosen: View::of_f32(&bits, 1), slots: (&slots).into(), n_experts };
                let (mut hidden, mut view) = (ViewMut::of_f32(&mut hidden, 16), ViewMut::of_f32(&mut out, n_out));
                let x = View::of_f32(&x, n_in);
                low_rank_experts(Exec::Cpu(&pool), x, change, pairs, &mut hidden, &mut view).unwrap();
                assert_close(&format!("{what} {}", pool.isa()), &out, &truth, 1e-5);
            }
            for card in cards().iter() {
                let experts = (&chosen[..], n_experts);
                let out = card.low_rank_experts((&x, n_in), (&table.numbers, &words), &slots, experts, (&start, n_out));
                assert_close(&format!("{what} {}", card.name()), &out, &truth, 1e-5);
            }
        }
    }
}

/// Several products at once, of which some adapters leave one alone.
#[test]
fn products_together_equal_each_alone() {
    let mut random = Random::new(20);
    let (n_rows, n_in, widths) = (11, 70, [40, 33]);
    let tables = widths.map(|n_out| Table::new(&mut random, n_in, n_out));
    let x = random.activations(n_rows * n_in);
    let slots: Vec<u32> = (0..n_rows).map(|row| [3, LowRankEntry::NONE, 1, 0, 2][row % 5]).collect();
    let starts = widths.map(|n_out| random.numbers(n_rows * n_out));
    let mut words = tables.each_ref().map(Table::words);
    words[1][3 * LowRankEntry::WORDS] = 0;
    for pool in pools() {
        let run = |which: &[usize], outs: &mut [Vec<f32>; 2]| {
            let mut hidden = vec![0.0; n_rows * 16];
            let outs = outs.iter_mut().enumerate().filter(|(i, _)| which.contains(i));
            let mut products: Vec<LowRankProduct> = outs
                .map(|(i, out)| {
                    let numbers = View::of_f32(&tables[i].numbers, tables[i].numbers.len());
                    let change = LowRank { numbers, entries: (&words[i]).into() };
                    LowRankProduct { change, out: ViewMut::of_f32(out, widths[i]) }
                })
                .collect();
            let (x, mut hidden) = (View::of_f32(&x, n_in), ViewMut::of_f32(&mut hidden, 16));
            low_rank(Exec::Cpu(&pool), x, (&slots).into(), &mut hidden, &mut products).unwrap();
        };
        let [mut together, mut alone] = [starts.clone(), starts.clone()];
        run(&[0, 1], &mut together);
        run(&[0], &mut alone);
        run(&[1], &mut alone);
        assert_eq!(together, alone);
    }
}

#[test]
fn entries_outside_the_numbers_are_refused() {
    let pool = &pools()[0];
    let (x, numbers) = ([1.0; 4], [1.0; 11]);
    let check = |entry: LowRankEntry, slot: u32, is_good: bool| {
        let (mut out, mut hidden) = (vec![0.0; 3], vec![0.0; 2]);
        let words = entry.words();
        let change = LowRank { numbers: View::of_f32(&numbers, 11), entries: (&words).into() };
        let (mut hidden, mut view) = (ViewMut::of_f32(&mut hidden, 2), ViewMut::of_f32(&mut out, 3));
        let products = &mut [LowRankProduct { change, out: view.reborrow() }];
        let done = low_rank(Exec::Cpu(pool), View::of_f32(&x, 4), (&[slot]).into(), &mut hidden, products);
        assert_eq!(done.is_ok(), is_good, "{entry:?} {slot}: {done:?}");
    };
    let entry = LowRankEntry { rank: 1, a: 0, b: 4, gain: Some(8), scale: 1.0, width: MatrixWidth::F32 };
    check(entry, 0, true);
    check(entry, LowRankEntry::NONE, true);
    check(entry, 1, false);
    check(LowRankEntry { a: 8, ..entry }, 0, false);
    check(LowRankEntry { b: 9, ..entry }, 0, false);
    check(LowRankEntry { b: 9, width: MatrixWidth::F16, ..entry }, 0, true);
    check(LowRankEntry { b: 10, width: MatrixWidth::F16, ..entry }, 0, false);
    check(LowRankEntry { b: 8, width: MatrixWidth::F24, ..entry }, 0, true);
    check(LowRankEntry { b: 9, width: MatrixWidth::F24, ..entry }, 0, false);
    check(LowRankEntry { gain: Some(9), ..entry }, 0, false);
    check(LowRankEntry { rank: 3, gain: None, ..entry }, 0, false);
}

#[test]
fn numbers_of_24_bits_are_rounded_to_the_nearest() {
    let back = |x: f32| {
        let [low, middle, high]: F24 = to_f24(x);
        f32::from_le_bytes([0, low, middle, high])
    };
    for x in [0.0, -0.0, 1.0, -1.5, 0.1, 3.3e-38, 1e-42, -2.7e30, 65_537.0, 1.000_015_3] {
        let near = back(x);
        assert!((near - x).abs() <= x.abs() / 65_536.0 + 2e-43, "{x} {near}");
        assert_eq!(back(near), near);
    }
    // In the middle between two: the even one.
    assert_eq!(back(f32::from_bits(0x3f80_0080)).to_bits(), 0x3f80_0000);
    assert_eq!(back(f32::from_bits(0x3f80_0180)).to_bits(), 0x3f80_0200);
}
