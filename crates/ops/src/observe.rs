//! Observes the inputs of products: sums of squares of every input column, by weight matrix, for importance matrices.
//! When off, it costs a look at a thread-local flag. Only CPU products of the thread that asked are seen.

use std::cell::RefCell;
use std::collections::HashMap;

/// What one weight matrix was multiplied with.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Sums of squares, one a column.
    pub squares: Vec<f64>,
    pub n_rows: u64,
}

thread_local! {
    /// By the address of a matrix's first byte.
    static SEEN: RefCell<Option<HashMap<usize, Seen>>> = const { RefCell::new(None) };
}

/// Starts watching on this thread.
pub fn observe() {
    SEEN.with_borrow_mut(|seen| *seen = Some(HashMap::new()));
}

/// Stops, and hands out what was seen, by the address of a matrix's first byte.
pub fn observed() -> HashMap<usize, Seen> {
    SEEN.with_borrow_mut(Option::take).unwrap_or_default()
}

/// Whether anybody watches: then products are fed from memory, where their input can be seen.
pub(crate) fn is_on() -> bool {
    SEEN.with_borrow(Option::is_some)
}

/// `x` is `[n_rows, n_in]`.
pub(crate) fn see<'w>(x: &[f32], n_in: usize, weights: impl Iterator<Item = &'w [u8]>) {
    SEEN.with_borrow_mut(|all| {
        let Some(all) = all else { return };
        let mut squares = vec![0.0; n_in];
        for row in x.chunks_exact(n_in.max(1)) {
            squares.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
        }
        for weight in weights {
            let seen = all.entry(weight.as_ptr().addr()).or_default();
            seen.squares.resize(n_in, 0.0);
            seen.squares.iter_mut().zip(&squares).for_each(|(sum, x)| *sum += x);
            seen.n_rows += (x.len() / n_in.max(1)) as u64;
        }
    });
}
