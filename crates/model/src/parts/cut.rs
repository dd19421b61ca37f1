//! Which rows of a tensor of the checkpoint are one matrix of the model: every other row, the rows of one head, columns
//! instead of rows. Loading and exporting cut by the same rules.

use crate::Mla;

/// Rows of a tensor: `len` from `first` on, then again every `step`, `n` times in all.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Cut {
    pub first: usize,
    pub len: usize,
    pub step: usize,
    pub n: usize,
    /// The rows become columns; of the rows that makes, those from the first number on, in steps of the second.
    pub turned: Option<(usize, usize)>,
}

impl Cut {
    pub fn rows(first: usize, len: usize) -> Self {
        Self { first, len, step: len, n: 1, turned: None }
    }

    pub fn turned(first: usize, len: usize) -> Self {
        Self { turned: Some((0, 1)), ..Self::rows(first, len) }
    }

    /// Of one head of `kv_b_proj`, which has each head's keys and then its values: the keys, by the compressed vector's
    /// numbers.
    pub fn keys_of(head: usize, mla: &Mla) -> Self {
        Self::turned(head * (mla.nope_dim + mla.v_dim), mla.nope_dim)
    }

    /// As [`Cut::keys_of`], the values.
    pub fn values_of(head: usize, mla: &Mla) -> Self {
        Self::rows(head * (mla.nope_dim + mla.v_dim) + mla.nope_dim, mla.v_dim)
    }

    /// Gate (`which` 0) or up (1) of one expert, where safetensors have both in one stack, row by row in turns.
    pub fn in_turns(expert: usize, which: usize, n_ff: usize) -> Self {
        Self { first: expert * 2 * n_ff + which, len: 1, step: 2, n: n_ff, turned: None }
    }

    /// As [`Cut::in_turns`], of plain numbers, which are kept the other way round.
    pub fn in_turns_turned(expert: usize, which: usize, n_embd: usize) -> Self {
        Self { turned: Some((which, 2)), ..Self::rows(expert * n_embd, n_embd) }
    }

    pub fn n_rows(&self) -> usize {
        self.len * self.n
    }

    /// Rows or numbers that it reaches over.
    pub fn end(&self) -> usize {
        self.first + self.step * self.n.saturating_sub(1) + self.len
    }

    pub fn is_whole(&self) -> bool {
        self.turned.is_none() && self.first == 0 && (self.n == 1 || self.step == self.len)
    }

    /// The indices it means, in order.
    pub fn picked(&self) -> impl Iterator<Item = usize> + use<> {
        let Cut { first, len, step, n, .. } = *self;
        (0..n).flat_map(move |i| (0..len).map(move |j| first + i * step + j))
    }

    /// Those of rows of `row_bytes` each, without decoding them. Numbers of rows to be turned take `number_bytes`.
    pub fn pick_bytes(&self, bytes: &[u8], row_bytes: usize, number_bytes: usize) -> Vec<u8> {
        let rows: Vec<&[u8]> = self.picked().map(|row| &bytes[row * row_bytes..][..row_bytes]).collect();
        let Some((first, step)) = self.turned else { return rows.concat() };
        let columns = (first..row_bytes / number_bytes).step_by(step);
        let numbers = columns.flat_map(|col| rows.iter().map(move |row| &row[col * number_bytes..][..number_bytes]));
        let mut out = Vec::with_capacity(rows.len() * row_bytes / step);
        numbers.for_each(|number| out.extend_from_slice(number));
        out
    }
}
