//! A GPU by its number. AMD's devices come first, then NVIDIA's.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use gpu::{Device, Vendor};

use super::{CudaModule, CudaStream, DriverError, sys};
use crate::nvrtc::Ptx;

pub struct CudaContext {
    device: Device,
    ordinal: usize,
    /// One for the context's life, made when first asked for.
    stream: Mutex<Weak<CudaStream>>,
}

/// The device with this number: opened once, kept for the process.
pub(crate) fn open(ordinal: usize) -> Result<Device, DriverError> {
    static OPEN: OnceLock<Mutex<HashMap<usize, Device>>> = OnceLock::new();
    let mut open = OPEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.get(&ordinal) {
        return Ok(device.clone());
    }
    let (vendor, of_vendor) = find(ordinal)?;
    let device = Device::open(vendor, of_vendor)?;
    open.insert(ordinal, device.clone());
    Ok(device)
}

/// Which vendor's device has this number, and its number there.
fn find(ordinal: usize) -> Result<(Vendor, u32), DriverError> {
    let (mut rest, mut reasons) = (ordinal, Vec::new());
    for vendor in Vendor::ALL {
        match Device::count(vendor) {
            Ok(count) if rest < count as usize => return Ok((vendor, rest as u32)),
            Ok(count) => {
                rest -= count as usize;
                reasons.push(format!("{vendor}: {count} devices"));
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(DriverError::new(format!("no GPU with number {ordinal}: {}", reasons.join("; "))))
}

/// `gfx1100` is 11 and 0, `gfx90a` 9 and 0, `sm_90` 9 and 0. AMD's last two digits are minor and stepping.
pub(crate) fn capability(arch: &str) -> (u32, u32) {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    if let Some(digits) = arch.strip_prefix("sm_") {
        let (major, minor) = digits.split_at(digits.len().saturating_sub(1));
        return (number(major), number(minor));
    }
    let digits = arch.strip_prefix("gfx").unwrap_or(arch).split(':').next().unwrap_or_default();
    let Some(split) = digits.len().checked_sub(2).filter(|split| digits.is_char_boundary(*split)) else {
        return (0, 0);
    };
    (number(&digits[..split]), number(&digits[split..split + 1]))
}

impl CudaContext {
    pub fn new(ordinal: usize) -> Result<Arc<Self>, DriverError> {
        Ok(Arc::new(Self { device: open(ordinal)?, ordinal, stream: Mutex::default() }))
    }

    /// The devices of both vendors. A vendor whose driver is missing has none.
    pub fn device_count() -> Result<i32, DriverError> {
        Ok(Vendor::ALL.into_iter().map(|vendor| Device::count(vendor).unwrap_or(0) as i32).sum())
    }

    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub fn cu_device(&self) -> sys::CUdevice {
        self.ordinal as sys::CUdevice
    }

    pub fn name(&self) -> Result<String, DriverError> {
        Ok(self.device.properties().display_name().to_owned())
    }

    pub fn compute_capability(&self) -> Result<(i32, i32), DriverError> {
        let (major, minor) = capability(&self.device.properties().arch);
        Ok((major as i32, minor as i32))
    }

    /// Free and total bytes. What the streams' pools keep for later counts as used.
    pub fn mem_get_info(&self) -> Result<(usize, usize), DriverError> {
        let memory = self.device.memory()?;
        Ok((memory.free_bytes, memory.total_bytes))
    }

    /// The device layer's handle.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Nothing to do: every call makes its device current.
    pub fn bind_to_thread(&self) -> Result<(), DriverError> {
        Ok(())
    }

    pub fn new_stream(self: &Arc<Self>) -> Result<Arc<CudaStream>, DriverError> {
        CudaStream::new(self)
    }

    /// This context's one stream, the same for every thread: what two threads enqueue keeps its order.
    /// There is no default stream. Where none can be made, the stream says so when it is first used.
    pub fn per_thread_stream(self: &Arc<Self>) -> Arc<CudaStream> {
        let mut kept = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = kept.upgrade() {
            return stream;
        }
        let stream = CudaStream::new(self).unwrap_or_else(|error| CudaStream::failed(self, error));
        *kept = Arc::downgrade(&stream);
        stream
    }

    /// As [`Self::per_thread_stream`].
    pub fn default_stream(self: &Arc<Self>) -> Arc<CudaStream> {
        self.per_thread_stream()
    }

    /// Load source. Nothing is compiled before a kernel is asked for.
    pub fn load_module(self: &Arc<Self>, source: Ptx) -> Result<Arc<CudaModule>, DriverError> {
        CudaModule::load(self, source)
    }

    /// Streams are always kept in order where memory crosses from one to another, without events per slice.
    pub fn is_event_tracking(&self) -> bool {
        true
    }

    /// Has no effect: there are no events to turn off.
    ///
    /// # Safety
    /// None is needed; cudarc's is unsafe.
    pub unsafe fn disable_event_tracking(&self) {}
}

impl fmt::Debug for CudaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaContext({})", self.device.label())
    }
}

impl PartialEq for CudaContext {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device
    }
}

#[cfg(test)]
mod tests {
    use super::capability;

    #[test]
    fn capabilities_of_both_vendors() {
        for (arch, want) in [("gfx1100", (11, 0)), ("gfx90a:sramecc+:xnack-", (9, 0)), ("gfx942", (9, 4))] {
            assert_eq!(capability(arch), want, "{arch}");
        }
        assert_eq!((capability("sm_90"), capability("sm_121"), capability("x")), ((9, 0), (12, 1), (0, 0)));
    }
}
