//! What there is to know about a model in memory besides its engine: plain data, so that it can come from the process
//! that loaded it.

use std::time::{Duration, Instant};

use ::model::Model as LoadedModel;
use engine::EngineOptions;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::load_plan::LoadPlan;
use crate::model_files::{ModelFiles, ModelInfo, describe_loading};
use crate::options::Options;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ModelSummary {
    pub plan: LoadPlan,
    pub info: ModelInfo,
    /// In words.
    pub device: String,
    pub notes: Vec<String>,
    /// From the start of planning to a running engine.
    pub load_time: Duration,
}

impl ModelSummary {
    /// Of a model that was loaded as planned, since `start`.
    pub fn of(
        files: &ModelFiles,
        options: &Options,
        plan: LoadPlan,
        model: &LoadedModel,
        start: Instant,
    ) -> Result<Self> {
        let mut notes = files.notes().to_vec();
        notes.extend(plan.device.notes());
        notes.extend(plan.blas_refused.clone());
        notes.extend(model.notes());
        if options.measures_loading {
            notes.extend(describe_loading(model)?);
        }
        Ok(Self { info: files.info()?, device: model.device(), plan, notes, load_time: start.elapsed() })
    }

    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            // An encoder was given room for whole texts.
            max_batch_tokens: self.plan.options.max_batch_tokens,
            prefill_chunk: self.plan.schedule.prefill_chunk,
            max_running: self.plan.schedule.max_running,
            max_queue: self.plan.schedule.max_queue,
            n_ctx: Some(self.plan.n_ctx()),
            ..EngineOptions::default()
        }
    }
}
