//! Where the recurrent state of a sequence lies: a row of a pool for what it had before its rows of a step, and one for
//! what it has after them. Reading one row and writing another is how a sequence starts from a checkpoint.

use crate::Error;

/// The rows of one sequence in a step, and the slots of its state.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct StateSpan {
    pub first_row: usize,
    pub n_rows: usize,
    /// Holds the state before the first row; `None` starts from zeros.
    pub from: Option<u32>,
    /// Gets the state after the last row.
    pub to: u32,
    /// Gets a copy of it.
    pub copy: Option<u32>,
}

impl StateSpan {
    /// Spans must lie inside the rows, and no slot may be written twice, or read by one sequence and written by another.
    pub(crate) fn check(op: &'static str, spans: &[Self], n_rows: usize, n_slots: usize) -> Result<(), Error> {
        let bad = |what: String| Err(Error::Argument { op, what });
        for (i, span) in spans.iter().enumerate() {
            let slots = [span.from, Some(span.to), span.copy];
            if slots.into_iter().flatten().any(|slot| slot as usize >= n_slots) {
                return bad(format!("slots {slots:?} of a pool of {n_slots}"));
            }
            if span.n_rows == 0 || span.first_row + span.n_rows > n_rows {
                return bad(format!("rows {}..+{} of {n_rows}", span.first_row, span.n_rows));
            }
            let touches = |other: &Self, slot: u32| [other.from, Some(other.to), other.copy].contains(&Some(slot));
            let written = [Some(span.to), span.copy];
            let others = spans.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| other);
            let is_shared = others.clone().any(|other| written.into_iter().flatten().any(|slot| touches(other, slot)));
            let overlaps = others.clone().any(|other| {
                span.first_row < other.first_row + other.n_rows && other.first_row < span.first_row + span.n_rows
            });
            if is_shared || overlaps || span.copy == Some(span.to) || span.copy.is_some() && span.copy == span.from {
                return bad(format!("{span:?} shares its slots or rows"));
            }
        }
        Ok(())
    }
}
