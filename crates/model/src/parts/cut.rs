//! Which rows of a tensor of the checkpoint are one matrix of the model: every other row, the rows of one head, columns
//! instead of rows. Loading and exporting cut by the same rules.

use weights::Dtype;

use crate::Mla;

/// Rows of a tensor: `len` from `first` on, then again every `step`, `n` times in all.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Cut {
    pub first: usize,
    pub len: usize,
    pub step: usize,
    pub n: usize,
    /// The rows become columns, and these columns rows.
    pub transposed: Option<Columns>,
}

/// Columns of a tensor: from `first` on in steps, `n` at most.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Columns {
    first: usize,
    step: usize,
    n: usize,
}

impl Columns {
    const ALL: Self = Self { first: 0, step: 1, n: usize::MAX };

    /// Those of a tensor of so many.
    pub fn of(self, n_cols: usize) -> impl Iterator<Item = usize> {
        (self.first..n_cols).step_by(self.step).take(self.n)
    }
}

impl Cut {
    pub fn rows(first: usize, len: usize) -> Self {
        Self { first, len, step: len, n: 1, transposed: None }
    }

    pub fn transposed(first: usize, len: usize) -> Self {
        Self { transposed: Some(Columns::ALL), ..Self::rows(first, len) }
    }

    /// Some columns of all `n_rows` rows, as rows.
    pub fn columns(n_rows: usize, first: usize, n: usize) -> Self {
        Self { transposed: Some(Columns { first, step: 1, n }), ..Self::rows(0, n_rows) }
    }

    /// Of one head of `kv_b_proj`, which has each head's keys and then its values: the keys, by the compressed vector's
    /// numbers.
    pub fn keys_of(head: usize, mla: &Mla) -> Self {
        Self::transposed(head * (mla.nope_dim + mla.v_dim), mla.nope_dim)
    }

    /// As [`Cut::keys_of`], the values.
    pub fn values_of(head: usize, mla: &Mla) -> Self {
        Self::rows(head * (mla.nope_dim + mla.v_dim) + mla.nope_dim, mla.v_dim)
    }

    /// Gate (`which` 0) or up (1) of one expert, where safetensors have both in one stack, row by row in turns.
    pub fn alternating(expert: usize, which: usize, n_ff: usize) -> Self {
        Self { first: expert * 2 * n_ff + which, len: 1, step: 2, n: n_ff, transposed: None }
    }

    /// As [`Cut::alternating`], of plain numbers, which are kept the other way round.
    pub fn alternating_transposed(expert: usize, which: usize, n_embd: usize) -> Self {
        let columns = Columns { first: which, step: 2, n: usize::MAX };
        Self { transposed: Some(columns), ..Self::rows(expert * n_embd, n_embd) }
    }

    /// Gate or up of one expert, where safetensors have both in one stack of `[inputs, gates, ups]`.
    pub fn half_transposed(expert: usize, which: usize, n_embd: usize, n_ff: usize) -> Self {
        let columns = Columns { first: which * n_ff, step: 1, n: n_ff };
        Self { transposed: Some(columns), ..Self::rows(expert * n_embd, n_embd) }
    }

    pub fn n_rows(&self) -> usize {
        self.len * self.n
    }

    /// Rows or numbers that it reaches over.
    pub fn end(&self) -> usize {
        self.first + self.step * self.n.saturating_sub(1) + self.len
    }

    pub fn is_whole(&self) -> bool {
        self.transposed.is_none() && self.first == 0 && (self.n == 1 || self.step == self.len)
    }

    /// The indices it means, in order.
    pub fn picked(&self) -> impl Iterator<Item = usize> + use<> {
        let Cut { first, len, step, n, .. } = *self;
        (0..n).flat_map(move |i| (0..len).map(move |j| first + i * step + j))
    }

    /// The numbers it means, decoded; `bytes` are all rows that it reaches over.
    pub fn numbers(&self, dtype: Dtype, bytes: &[u8], n_cols: usize) -> Vec<f32> {
        let mut all = vec![0.0_f32; n_cols * self.end()];
        ops::quant::dequantize(dtype, bytes, &mut all);
        let rows: Vec<usize> = self.picked().collect();
        match self.transposed {
            Some(columns) => columns
                .of(n_cols)
                .flat_map(|col| rows.iter().map(move |row| (row, col)))
                .map(|(row, col)| all[row * n_cols + col])
                .collect(),
            None => rows.iter().flat_map(|row| &all[row * n_cols..][..n_cols]).copied().collect(),
        }
    }

    /// Those of rows of `row_bytes` each, without decoding them. Numbers of rows to be transposed take `number_bytes`.
    pub fn pick_bytes(&self, bytes: &[u8], row_bytes: usize, number_bytes: usize) -> Vec<u8> {
        let rows: Vec<&[u8]> = self.picked().map(|row| &bytes[row * row_bytes..][..row_bytes]).collect();
        let Some(columns) = self.transposed else { return rows.concat() };
        let columns = columns.of(row_bytes / number_bytes);
        let numbers = columns.flat_map(|col| rows.iter().map(move |row| &row[col * number_bytes..][..number_bytes]));
        let mut out = Vec::new();
        numbers.for_each(|number| out.extend_from_slice(number));
        out
    }
}
