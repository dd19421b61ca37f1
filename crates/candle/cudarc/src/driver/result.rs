//! Calls below the owned types: device attributes.

pub use super::DriverError;

pub mod device {
    use super::super::context;
    use super::super::sys::{CUdevice, CUdevice_attribute as Attribute};
    use super::DriverError;

    /// What a device is, in CUDA's terms. On AMD the compute capability is the architecture's major and
    /// minor number, 11 and 0 for gfx1100.
    ///
    /// # Safety
    /// None is needed; cudarc's is unsafe.
    pub unsafe fn get_attribute(device: CUdevice, attribute: Attribute) -> Result<i32, DriverError> {
        let device = context::open(device.max(0) as usize)?;
        let properties = device.properties();
        let (major, minor) = context::capability(&properties.arch);
        let value = match attribute {
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => properties.max_threads_per_block,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK
            | Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => properties.max_shared_bytes,
            Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE => properties.wave_width,
            Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => properties.n_multiprocessors,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => major,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => minor,
        };
        Ok(value as i32)
    }
}
