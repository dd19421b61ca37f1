//! Faults on demand, in debug builds only: how tests of recovery break engines.
//!
//! `ROCI_FAULT` is a list with one item for each process of an engine, in order: `abort@40` aborts in its 40th step,
//! `abort@0` while it loads; also `hang`, `kill`, `panic`, `error` (the step fails), `memory` (an allocation is
//! refused), `segv` (a page fault), `none`. `poison=7`, for every process, aborts in any step that contains token 7.

use ::model::Model as LoadedModel;
use engine::Forward;

/// The model, or one that breaks as the environment says.
#[cfg(not(debug_assertions))]
pub(crate) fn injected(model: LoadedModel, _n_before: u32) -> impl Forward {
    model
}

/// The model, or one that breaks as the environment says.
#[cfg(debug_assertions)]
pub(crate) fn injected(model: LoadedModel, n_before: u32) -> impl Forward {
    let script = std::env::var("ROCI_FAULT").unwrap_or_default();
    injection::Faulty::new(model, injection::Fault::parse(&script, n_before))
}

/// Breaks this process before it loads anything, if the environment says so.
#[cfg(not(debug_assertions))]
pub(crate) fn while_loading(_n_before: u32) {}

/// Breaks this process before it loads anything, if the environment says so.
#[cfg(debug_assertions)]
pub(crate) fn while_loading(n_before: u32) {
    let script = std::env::var("ROCI_FAULT").unwrap_or_default();
    if let injection::Fault::At(kind, 0) = injection::Fault::parse(&script, n_before) {
        // Kinds that a step would return are none here.
        let _ = injection::strike(kind, 0);
    }
}

#[cfg(debug_assertions)]
mod injection {
    use super::LoadedModel;
    use batch::{
        AdapterId, AdapterSource, Batch, CacheBytes, CachePlace, Capacity, CopyTicket, Embeds, Forward, Rows,
        StepError, Ticket, WindowLimits,
    };
    use std::time::Duration;

    #[derive(Clone, Debug, PartialEq)]
    pub enum Fault {
        None,
        /// In a step of this number, from 1.
        At(FaultKind, u64),
        /// In a step with this token.
        Poison(u32),
    }

    #[derive(Copy, Clone, Debug, PartialEq)]
    pub enum FaultKind {
        Abort,
        Hang,
        Kill,
        Panic,
        Error,
        Memory,
        Segv,
    }

    impl Fault {
        /// The item of a script for the process that comes after `n_before` others.
        pub fn parse(script: &str, n_before: u32) -> Self {
            if let Some(token) = script.strip_prefix("poison=").and_then(|token| token.parse().ok()) {
                return Self::Poison(token);
            }
            let item = script.split(',').nth(n_before as usize).and_then(|item| item.split_once('@'));
            let Some((name, step)) = item else { return Self::None };
            let kinds = [
                ("abort", FaultKind::Abort),
                ("hang", FaultKind::Hang),
                ("kill", FaultKind::Kill),
                ("panic", FaultKind::Panic),
                ("error", FaultKind::Error),
                ("memory", FaultKind::Memory),
                ("segv", FaultKind::Segv),
            ];
            let kind = kinds.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind);
            match (kind, step.parse()) {
                (Some(kind), Ok(step)) => Self::At(kind, step),
                _ => Self::None,
            }
        }
    }

    pub struct Faulty {
        model: LoadedModel,
        fault: Fault,
        n_steps: u64,
    }

    impl Faulty {
        pub fn new(model: LoadedModel, fault: Fault) -> Self {
            Self { model, fault, n_steps: 0 }
        }
    }

    /// Breaks this process, or the step.
    pub fn strike(kind: FaultKind, step: u64) -> Result<(), StepError> {
        eprintln!("fault injected in step {step}: {kind:?}");
        match kind {
            FaultKind::Abort => std::process::abort(),
            FaultKind::Hang => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            // The handler that Rust installs for the second signal expects it to come again.
            FaultKind::Kill | FaultKind::Segv => {
                let signal = if kind == FaultKind::Kill { "-9" } else { "-11" };
                let own = std::process::id().to_string();
                for _ in 0..2 {
                    let _ = std::process::Command::new("kill").args([signal, &own]).status();
                }
                Ok(())
            }
            FaultKind::Panic => panic!("a fault was injected"),
            FaultKind::Error => Err("a fault was injected".into()),
            FaultKind::Memory => std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u8; 1 << 40]>()),
        }
    }

    impl Forward for Faulty {
        fn capacity(&self) -> Capacity {
            Forward::capacity(&self.model)
        }

        fn n_states(&self) -> usize {
            Forward::n_states(&self.model)
        }

        fn windows(&self) -> Option<WindowLimits> {
            Forward::windows(&self.model)
        }

        fn max_draft_rows(&self) -> usize {
            Forward::max_draft_rows(&self.model)
        }

        fn draft(&mut self, batch: &Batch) -> Result<Rows<'_>, StepError> {
            Forward::draft(&mut self.model, batch)
        }

        fn max_in_flight(&self) -> usize {
            Forward::max_in_flight(&self.model)
        }

        fn chooses(&self) -> bool {
            Forward::chooses(&self.model)
        }

        fn chooses_later(&self) -> bool {
            Forward::chooses_later(&self.model)
        }

        fn choose(&mut self, ticket: &Ticket, batch: &Batch, n_unchosen: usize) -> Result<(), StepError> {
            Forward::choose(&mut self.model, ticket, batch, n_unchosen)
        }

        fn is_row_invariant(&self) -> bool {
            Forward::is_row_invariant(&self.model)
        }

        fn max_adapters(&self) -> usize {
            Forward::max_adapters(&self.model)
        }

        fn load_adapter(&mut self, adapter: &AdapterSource, in_use: &[AdapterId]) -> Result<(), StepError> {
            Forward::load_adapter(&mut self.model, adapter, in_use)
        }

        fn cache_bytes(&self) -> CacheBytes {
            Forward::cache_bytes(&self.model)
        }

        fn copy_out(&mut self, places: &[CachePlace]) -> Result<CopyTicket, StepError> {
            Forward::copy_out(&mut self.model, places)
        }

        fn copied(&mut self, ticket: CopyTicket) -> Result<Vec<Vec<u8>>, StepError> {
            Forward::copied(&mut self.model, ticket)
        }

        fn copy_in(&mut self, pieces: &[(CachePlace, &[u8])]) -> Result<(), StepError> {
            Forward::copy_in(&mut self.model, pieces)
        }

        fn submit(&mut self, batch: &Batch) -> Result<Ticket, StepError> {
            self.n_steps += 1;
            match self.fault {
                Fault::At(kind, step) if step == self.n_steps => strike(kind, self.n_steps)?,
                Fault::Poison(token) if batch.tokens.iter().any(|other| other.0 == token) => {
                    strike(FaultKind::Abort, self.n_steps)?
                }
                _ => {}
            }
            Forward::submit(&mut self.model, batch)
        }

        fn wait(&mut self, ticket: Ticket) -> Result<Rows<'_>, StepError> {
            Forward::wait(&mut self.model, ticket)
        }

        fn fault(&self) -> Option<String> {
            Forward::fault(&self.model)
        }

        fn embeds(&self) -> Embeds {
            Forward::embeds(&self.model)
        }

        fn score(&self, hidden: &[f32]) -> Option<Vec<f32>> {
            Forward::score(&self.model, hidden)
        }

        fn project(&self, pooled: &[f32]) -> Option<Vec<f32>> {
            Forward::project(&self.model, pooled)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn one_item_for_each_process() {
            let script = "abort@4,hang@2,none,error@9";
            let faults: Vec<Fault> = (0..5).map(|n| Fault::parse(script, n)).collect();
            let at = Fault::At;
            assert_eq!(
                faults,
                [at(FaultKind::Abort, 4), at(FaultKind::Hang, 2), Fault::None, at(FaultKind::Error, 9), Fault::None]
            );
            assert_eq!(Fault::parse("poison=7", 3), Fault::Poison(7));
            assert_eq!(Fault::parse("", 0), Fault::None);
        }
    }
}
