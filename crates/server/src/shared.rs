//! A model in memory that several names may use: names of one file are one engine. What the engine counts is credited to
//! one of its names at a time, so that sums over names are right.

use engine::Stats;
use rocinante::Model;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct SharedModel {
    /// Its file, whatever it was called by.
    file: Option<PathBuf>,
    model: Model,
    credit: Mutex<Credit>,
}

#[derive(Default)]
struct Credit {
    /// The name that what is counted now belongs to.
    name: Option<String>,
    /// What was credited to names that have left.
    settled: Stats,
}

impl Deref for SharedModel {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl SharedModel {
    pub fn new(file: Option<PathBuf>, model: Model) -> Self {
        Self { file, model, credit: Mutex::default() }
    }

    pub fn is_of(&self, file: &Path) -> bool {
        self.file.as_deref() == Some(file)
    }

    /// What was counted that belongs to this name.
    pub fn counters(&self, name: &str) -> Stats {
        let mut credit = self.lock();
        match credit.name.get_or_insert_with(|| name.to_owned()) == name {
            true => since(&self.model.engine().latest_stats(), &credit.settled),
            false => Stats::default(),
        }
    }

    /// The name leaves, with what was counted for it. The next one that asks takes its place.
    pub fn settle(&self, name: &str) -> Stats {
        let mut credit = self.lock();
        if credit.name.get_or_insert_with(|| name.to_owned()) != name {
            return Stats::default();
        }
        let now = self.model.engine().latest_stats();
        credit.name = None;
        let settled = std::mem::replace(&mut credit.settled, now.clone());
        since(&now, &settled)
    }

    fn lock(&self) -> MutexGuard<'_, Credit> {
        self.credit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of `now` without those of `before`.
pub fn since(now: &Stats, before: &Stats) -> Stats {
    let mut left = now.clone();
    left.n_steps -= before.n_steps.min(now.n_steps);
    left.n_tokens_computed -= before.n_tokens_computed.min(now.n_tokens_computed);
    left.n_tokens_cached -= before.n_tokens_cached.min(now.n_tokens_cached);
    left.n_preemptions -= before.n_preemptions.min(now.n_preemptions);
    left.n_failed -= before.n_failed.min(now.n_failed);
    left.drafted = now.drafted.since(before.drafted);
    left.masks = now.masks.since(before.masks);
    left.n_logits_read -= before.n_logits_read.min(now.n_logits_read);
    left.kept.counters = now.kept.counters.since(before.kept.counters);
    for (left, before) in left.n_steps_by_rows.iter_mut().zip(before.n_steps_by_rows) {
        *left = left.saturating_sub(before);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_left() {
        let mut now = Stats { n_steps: 7, n_tokens_computed: 30, n_failed: 1, ..Stats::default() };
        now.n_steps_by_rows[2] = 5;
        let mut before = Stats { n_steps: 3, n_tokens_computed: 10, ..Stats::default() };
        before.n_steps_by_rows[2] = 1;
        (now.n_logits_read, before.n_logits_read) = (9, 8);
        (now.masks.n_rows, before.masks.n_rows) = (6, 4);
        let left = since(&now, &before);
        assert_eq!((left.n_logits_read, left.masks.n_rows), (1, 2));
        assert_eq!((left.n_steps, left.n_tokens_computed, left.n_failed, left.n_steps_by_rows[2]), (4, 20, 1, 4));
    }
}
