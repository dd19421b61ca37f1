//! A kernel launch under construction: values and addresses in the order of the kernel's parameters.

use std::ffi::c_void;

use gpu::Grid;

use super::{CudaFunction, CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, DriverError};

/// Elements a block of [`LaunchConfig::for_num_elems`] covers.
const THREADS: u32 = 256;
/// Elements for each thread of a kernel that takes any grid: its threads move 16 bytes at a time.
const ELEMENTS_PER_THREAD: u32 = 8;
/// So many blocks keep any GPU busy: smaller grids stay as they are.
const ENOUGH_BLOCKS: u32 = 2048;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchConfig {
    pub grid_dim: (u32, u32, u32),
    pub block_dim: (u32, u32, u32),
    pub shared_mem_bytes: u32,
}

impl LaunchConfig {
    /// A thread for each of `n` elements.
    pub fn for_num_elems(n: u32) -> Self {
        Self { grid_dim: (n.div_ceil(THREADS), 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }

    /// The same elements with fewer threads, where there would be very many. H200: a block that finds nothing to do takes as
    /// long to begin as one that does.
    fn with_fewer_threads(mut self) -> Self {
        if let ((x, 1, 1), (THREADS, 1, 1)) = (self.grid_dim, self.block_dim) {
            self.grid_dim.0 = x.div_ceil(ELEMENTS_PER_THREAD).max(x.min(ENOUGH_BLOCKS));
        }
        self
    }
}

/// One argument: a value, copied when it is pushed, so that it need not outlive the call.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Value([u8; 8]);

pub struct LaunchArgs<'a> {
    stream: &'a CudaStream,
    function: &'a CudaFunction,
    values: Vec<Value>,
    /// Values too wide for a slot make the launch fail.
    too_wide: Option<usize>,
    /// Streams whose memory this one uses: they wait for the kernel. References, and no guards: Candle moves
    /// its output away while the builder is still in scope.
    owners: Vec<&'a CudaStream>,
}

impl<'a> LaunchArgs<'a> {
    pub(crate) fn new(stream: &'a CudaStream, function: &'a CudaFunction) -> Self {
        Self { stream, function, values: Vec::with_capacity(16), too_wide: None, owners: Vec::new() }
    }

    fn push<T: DeviceRepr>(&mut self, value: &T) {
        if size_of::<T>() > size_of::<Value>() {
            self.too_wide.get_or_insert(size_of::<T>());
            return;
        }
        let mut slot = Value([0; 8]);
        // SAFETY: the value fits; its bytes are plain.
        unsafe {
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), slot.0.as_mut_ptr(), size_of::<T>())
        };
        self.values.push(slot);
    }

    fn push_memory(&mut self, address: u64, owner: &'a CudaStream) {
        self.push(&address);
        // In the usual case the memory is this stream's own.
        if !std::ptr::eq(owner, self.stream) {
            self.owners.push(owner);
        }
    }

    /// Enqueue the kernel. A grid without blocks is nothing to do.
    ///
    /// # Safety
    /// The arguments are the kernel's, in number, order and type, and every slice is as long as it takes it to be.
    pub unsafe fn launch(&mut self, config: LaunchConfig) -> Result<(), DriverError> {
        let config = if self.function.takes_any_grid() { config.with_fewer_threads() } else { config };
        let LaunchConfig { grid_dim: (x, y, z), block_dim: (bx, by, bz), shared_mem_bytes: shared_bytes } = config;
        if let Some(bytes) = self.too_wide {
            return Err(DriverError::new(format!("a kernel argument of {bytes} bytes; 8 at most")));
        }
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        let mut pointers: Vec<*mut c_void> =
            self.values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let grid = Grid { blocks: [x, y, z], threads: [bx, by, bz], shared_bytes };
        for owner in &self.owners {
            self.stream.join(owner)?;
        }
        // SAFETY: each pointer is to a value of 8 bytes, as wide as any parameter; the rest is the caller's.
        unsafe { self.stream.inner()?.launch(self.function.kernel(), grid, &mut pointers)? };
        for owner in &self.owners {
            owner.join(self.stream)?;
        }
        Ok(())
    }
}

/// # Safety
/// The argument is pushed as what a kernel's parameter of that type reads.
pub unsafe trait PushKernelArg<T> {
    fn arg(&mut self, argument: T) -> &mut Self;
}

// SAFETY: the value's own bytes.
unsafe impl<'b, T: DeviceRepr> PushKernelArg<&'b T> for LaunchArgs<'_> {
    fn arg(&mut self, argument: &'b T) -> &mut Self {
        self.push(argument);
        self
    }
}

macro_rules! memory {
    ($($ty:ty),*) => {$(
        // SAFETY: the address of the memory, in order with the stream it belongs to.
        unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b $ty> for LaunchArgs<'a> {
            fn arg(&mut self, argument: &'b $ty) -> &mut Self {
                self.push_memory(argument.address, &argument.stream);
                self
            }
        }

        // SAFETY: as above.
        unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut $ty> for LaunchArgs<'a> {
            fn arg(&mut self, argument: &'b mut $ty) -> &mut Self {
                self.push_memory(argument.address, &argument.stream);
                self
            }
        }
    )*};
}

memory!(CudaSlice<T>, CudaView<'b, T>, CudaViewMut<'b, T>);
