//! Low-rank changes of products: rows of several adapters, of none, and of one that leaves the matrix alone, at odd sizes.

use ops::{Exec, Indices, LowRank, LowRankEntry, View, ViewMut, low_rank};

use crate::card::cards;
use crate::support::{Random, assert_close, pools};

/// Adapters in one array: two that change the matrix, one of them with gains, and one that does not.
struct Table {
    numbers: Vec<f32>,
    entries: Vec<LowRankEntry>,
}

impl Table {
    fn new(random: &mut Random, n_in: usize, n_out: usize) -> Self {
        let mut table = Self { numbers: random.numbers(3), entries: vec![LowRankEntry::default()] };
        for (rank, has_gain) in [(1, false), (5, true), (16, false)] {
            let a = table.push(random, rank * n_in);
            let b = table.push(random, rank * n_out);
            let gain = has_gain.then(|| table.push(random, n_out));
            table.entries.push(LowRankEntry { rank: rank as u32, a, b, gain });
        }
        table
    }

    fn push(&mut self, random: &mut Random, n: usize) -> u32 {
        self.numbers.extend(random.numbers(n));
        (self.numbers.len() - n) as u32
    }

    fn words(&self) -> Vec<u32> {
        self.entries.iter().flat_map(|entry| entry.words()).collect()
    }

    fn truth(&self, x: &[f32], n_in: usize, start: &[f32], n_out: usize, slots: &[u32]) -> Vec<f64> {
        let mut out: Vec<f64> = start.iter().map(|x| f64::from(*x)).collect();
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != LowRankEntry::NONE) {
            let LowRankEntry { rank, a, b, gain } = self.entries[*slot as usize];
            let number = |at: usize| f64::from(self.numbers[at]);
            let x = &x[row * n_in..][..n_in];
            let hidden: Vec<f64> = (0..rank as usize)
                .map(|k| (0..n_in).map(|i| number(a as usize + k * n_in + i) * f64::from(x[i])).sum())
                .collect();
            for (o, out) in out[row * n_out..][..n_out].iter_mut().enumerate() {
                let change: f64 = hidden.iter().enumerate().map(|(k, h)| h * number(b as usize + k * n_out + o)).sum();
                *out = (*out + change) * gain.map_or(1.0, |gain| number(gain as usize + o));
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
        let kinds = [LowRankEntry::NONE, 2, 0, 3, 1, 2, 2];
        let slots: Vec<u32> = (0..n_rows).map(|row| kinds[(row * 5 + row / 7) % kinds.len()]).collect();
        let (words, truth) = (table.words(), table.truth(&x, n_in, &start, n_out, &slots));
        let what = format!("{n_rows} x {n_in} x {n_out}");
        for pool in pools() {
            let (mut out, mut hidden) = (start.clone(), vec![0.0; n_rows * 16]);
            let change =
                LowRank { numbers: View::of_f32(&table.numbers, table.numbers.len()), entries: (&words).into() };
            let (x, slots) = (View::of_f32(&x, n_in), Indices::from(&slots));
            let (mut hidden, mut view) = (ViewMut::of_f32(&mut hidden, 16), ViewMut::of_f32(&mut out, n_out));
            low_rank(Exec::Cpu(&pool), x, change, slots, &mut hidden, &mut view).unwrap();
            assert_close(&format!("{what} {}", pool.isa()), &out, &truth, 1e-5);
        }
        for card in cards().iter() {
            let out = card.low_rank((&x, n_in), (&table.numbers, &words), &slots, (&start, n_out));
            assert_close(&format!("{what} {}", card.name()), &out, &truth, 1e-5);
        }
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
        let done = low_rank(Exec::Cpu(pool), View::of_f32(&x, 4), change, (&[slot]).into(), &mut hidden, &mut view);
        assert_eq!(done.is_ok(), is_good, "{entry:?} {slot}: {done:?}");
    };
    let entry = LowRankEntry { rank: 1, a: 0, b: 4, gain: Some(8) };
    check(entry, 0, true);
    check(entry, LowRankEntry::NONE, true);
    check(entry, 1, false);
    check(LowRankEntry { a: 8, ..entry }, 0, false);
    check(LowRankEntry { b: 9, ..entry }, 0, false);
    check(LowRankEntry { gain: Some(9), ..entry }, 0, false);
    check(LowRankEntry { rank: 3, a: 0, b: 0, gain: None }, 0, false);
}
