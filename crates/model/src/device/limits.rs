//! The upper limits of a device, from its tuning file or measured with a copy: the scale of profiles.

use std::time::Instant;

use gpu::{Buffer, Timed};

use super::Device;
use crate::Error;
use crate::watch::DeviceLimits;

/// One copy of the measurement of the bus.
const BUS_BYTES: usize = 32 << 20;

impl Device {
    /// Bytes a second from pinned memory to the device.
    pub fn measure_bus(&self) -> Result<f64, Error> {
        const N_COPIES: usize = 16;
        let mut staging = self.staging();
        let n_bytes = BUS_BYTES.min(staging.len());
        let mut pinned = self.queue.pinned(n_bytes)?;
        let mut start = None;
        for _ in 0..=N_COPIES {
            pinned = self.queue.upload(pinned, staging.slice_mut(..n_bytes)?)?.wait()?;
            // The first copy wakes everything up.
            start.get_or_insert_with(Instant::now);
        }
        let seconds = start.map_or(0.0, |start| start.elapsed().as_secs_f64());
        Ok((N_COPIES * n_bytes) as f64 / seconds.max(1e-9))
    }

    /// What this device can do at most: what is known of the chip, else what a copy does now.
    pub(super) fn measure_limits(&self) -> Result<DeviceLimits, Error> {
        let tuning = self.kernels.tuning();
        let memory_bytes_per_s = match tuning.memory_gb_s {
            0 => self.measure_memory()?,
            known => f64::from(known) * 1e9,
        };
        Ok(DeviceLimits { memory_bytes_per_s, matrix_flops_per_s: f64::from(tuning.matrix_tflops) * 1e12 })
    }

    fn measure_memory(&self) -> Result<f64, Error> {
        const N_COPIES: usize = 8;
        let mut staging = self.staging();
        let half = staging.len() / 2;
        let copy = |staging: &mut Buffer<u8>| -> Result<(), Error> {
            let (to, from) = staging.slice_mut(..2 * half)?.split_at(half)?;
            Ok(self.queue.launcher().copy(from.as_slice(), to)?)
        };
        copy(&mut staging)?;
        let start = self.queue.record::<Timed>()?;
        for _ in 0..N_COPIES {
            copy(&mut staging)?;
        }
        let time = self.queue.record::<Timed>()?.since(&start)?;
        // A clock that stands still (the software GPU's) tells nothing.
        Ok(if time.is_zero() { 0.0 } else { (2 * N_COPIES * half) as f64 / time.as_secs_f64() })
    }
}
