//! The end of a step: the last norm and the output layer, for the rows that want them, and the tokens that the device
//! chooses from the logits.

use ops::{Exec, Indices, Place, PlaceMut, Product, View, ViewMut};

use super::{Context, Decoder};
use crate::step::{Places, Step};
use crate::{Error, assistant};

/// What choosing tokens reads besides the logits.
pub struct ChoicePlaces<'d> {
    /// Of the step.
    pub n_rows: usize,
    pub n_logits_rows: usize,
    pub choices: Indices<'d>,
    pub described: Indices<'d>,
    pub adjustments: Indices<'d>,
}

impl Decoder {
    /// The last norm and the output layer, for the rows that want them.
    pub(super) fn finish(&mut self, exec: Exec, step: &Step, places: &Places) -> Result<(), Error> {
        let (config, weights, s) = (&self.config, &self.weights, &mut self.scratch);
        let (n, pooled, rows) = (places.kept.len(), places.pooled, places.logits_rows);
        let x = if step.keeps_all() { s.x.rows(n) } else { s.kept_x.rows(n) };
        let weight = weights.view(weights.parts.output.unwrap_or(weights.parts.embedding));
        let hidden = match weights.parts.output_norm {
            Some(norm) => {
                Context { exec, config, weights, adapters: None }.norm(norm, x, &mut s.hidden.rows_mut(n))?;
                s.hidden.rows(n)
            }
            None => x,
        };
        if let (false, Some(parts)) = (pooled.is_empty(), &weights.parts.assistant) {
            let (taken, out) = (&mut s.assistant.pooled, s.pooled.rows_mut(pooled.len()));
            ops::take_rows(exec, hidden, pooled, &mut taken.rows_mut(pooled.len()))?;
            ops::matmul(exec, taken.rows(pooled.len()), &mut [Product::write(weights.view(parts.out), out)])?;
        } else if !pooled.is_empty() {
            ops::take_rows(exec, hidden, pooled, &mut s.pooled.rows_mut(pooled.len()))?;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let logits_in = if rows.len() == n {
            // Ascending rows, as many as there are: all of them.
            hidden
        } else {
            ops::take_rows(exec, hidden, rows, &mut s.logits_in.rows_mut(rows.len()))?;
            s.logits_in.rows(rows.len())
        };
        let mut out = s.logits.rows_mut(rows.len());
        match weights.parts.assistant.and_then(|parts| parts.clusters) {
            Some(clusters) => {
                let context = Context::plain(exec, config, weights);
                assistant::cluster_logits(context, clusters, logits_in, weight, &mut s.assistant, &mut out)?;
            }
            None => ops::matmul(exec, logits_in, &mut [Product::write(weight, out.reborrow())])?,
        }
        if let Some(bias) = weights.parts.output_bias {
            ops::add_bias(exec, &mut out, weights.view(bias))?;
        }
        if config.logits_scale != 1.0 {
            ops::scale(exec, &mut out, config.logits_scale)?;
        }
        if let Some(cap) = config.logits_softcap {
            ops::softcap(exec, &mut out, cap)?;
        }
        if step.chooses_later() {
            return Ok(());
        }
        let (choices, described, adjustments) = (places.choices, places.described, places.adjustments);
        let (n_rows, n_logits_rows) = (places.tokens.len(), rows.len());
        self.choose(exec, &ChoicePlaces { n_rows, n_logits_rows, choices, described, adjustments })
    }

    /// Tokens for the last rows of logits, one for each choice.
    pub fn choose(&mut self, exec: Exec, places: &ChoicePlaces) -> Result<(), Error> {
        let n = places.choices.len() / ops::SampleParams::WORDS;
        if n == 0 {
            return Ok(());
        }
        let (s, n_rows) = (&mut self.scratch, places.n_logits_rows);
        if !places.adjustments.is_empty() {
            let mut logits = last_rows_mut(s.logits.rows_mut(n_rows), n)?;
            ops::adjust(exec, places.adjustments, s.tokens.rows(places.n_rows), &mut logits)?;
        }
        let logits = last_rows(s.logits.rows(n_rows), n)?;
        ops::sample(exec, logits, places.choices, &mut s.chosen.rows_mut(n))?;
        if !places.described.is_empty() {
            let chosen = s.chosen.rows(n);
            ops::describe(exec, logits, chosen, places.described, &mut s.described.rows_mut(n))?;
        }
        Ok(())
    }
}

/// The last `n` rows of f32 numbers.
fn last_rows(view: View, n: usize) -> Result<View, Error> {
    let [n_rows, n_cols] = view.shape;
    let start = (n_rows - n) * n_cols * size_of::<f32>();
    let place = match view.place {
        Place::Host(bytes) => Place::Host(&bytes[start..]),
        Place::Device(bytes) => Place::Device(bytes.slice(start..)?),
    };
    Ok(View { shape: [n, n_cols], place, ..view })
}

/// As [`last_rows`], to be changed.
fn last_rows_mut(view: ViewMut, n: usize) -> Result<ViewMut, Error> {
    let [n_rows, n_cols] = view.shape;
    let start = (n_rows - n) * n_cols * size_of::<f32>();
    let place = match view.place {
        PlaceMut::Host(bytes) => PlaceMut::Host(&mut bytes[start..]),
        PlaceMut::Device(bytes) => PlaceMut::Device(bytes.into_slice(start..)?),
    };
    Ok(ViewMut { shape: [n, n_cols], place, ..view })
}
