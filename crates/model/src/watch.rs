//! Watching a model's steps on a GPU: waiting after every op, reporting ops to a profiler, or timing them.
//!
//! A watched step runs op by op, without captured graphs: slower in total, but with the same ops.

use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpu::OpTime;

#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum Watch {
    #[default]
    Off,
    /// Waits after every op and names the first that fails or stalls.
    DebugSync,
    /// Ranges per op for the vendor's profiler.
    Ranges,
    /// Keeps the device time of every op: see [`Model::profiler`](crate::Model::profiler).
    Profile,
}

/// One step, as it ran.
#[derive(Clone, Debug)]
pub struct StepProfile {
    pub n_rows: usize,
    pub n_seqs: usize,
    /// By the host's clock, from when the model was loaded.
    pub start: Duration,
    pub ops: Vec<OpTime>,
}

/// What a device can do at most; 0 where that is not known.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct DeviceLimits {
    pub memory_bytes_per_s: f64,
    /// f16 products with f32 sums.
    pub matrix_flops_per_s: f64,
}

/// The steps of a model that is watched, from any thread.
#[derive(Clone, Debug)]
pub struct Profiler {
    pub limits: DeviceLimits,
    began: Instant,
    steps: Arc<Mutex<Vec<StepProfile>>>,
}

impl Profiler {
    pub(crate) fn new(limits: DeviceLimits) -> Self {
        Self { limits, began: Instant::now(), steps: Arc::default() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn push(&self, step: StepProfile) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// The steps since the last call.
    pub fn take(&self) -> Vec<StepProfile> {
        std::mem::take(&mut *self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
