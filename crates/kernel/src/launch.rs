//! A kernel with its arguments, and the loaded code that runs it.

use std::collections::HashMap;
use std::sync::Mutex;

use gpu::{ArgList, Args, Device, Grid, Kernel, Launcher, Module, unchecked};

use crate::param::Given;

/// A kernel's name, its block and its arguments: what a function declared in [`kernels!`](crate::kernels) gives.
pub struct Call<'a> {
    kernel: &'static str,
    threads: u32,
    shared_bytes: u32,
    args: Vec<Box<dyn Given + 'a>>,
}

impl<'a> Call<'a> {
    #[doc(hidden)]
    pub fn new(kernel: &'static str, threads: u32, shared_bytes: u32) -> Self {
        Self { kernel, threads, shared_bytes, args: Vec::new() }
    }

    #[doc(hidden)]
    pub fn with(mut self, value: impl Given + 'a) -> Self {
        self.args.push(Box::new(value));
        self
    }

    /// Threads of a block, as the kernel declares them.
    pub fn threads(&self) -> u32 {
        self.threads
    }
}

impl Args for Call<'_> {
    type Key = Call<'static>;

    fn signature() -> String {
        "whatever its Rust source declares".to_owned()
    }

    fn put(&self, list: &mut ArgList) -> gpu::Result<()> {
        self.args.iter().try_for_each(|arg| arg.give(list))
    }
}

/// Kernels on a device.
pub struct Loaded {
    module: Module,
    found: Mutex<HashMap<&'static str, Kernel<Call<'static>>>>,
}

impl Loaded {
    /// # Safety
    /// `image` is a whole code object or PTX text that ends with a NUL, built from the file whose `kernels!` gives the
    /// calls that will be launched.
    pub(crate) unsafe fn new(device: &Device, image: &[u8]) -> gpu::Result<Self> {
        // SAFETY: the caller's.
        let module = unsafe { unchecked::load_image(device, image) }?;
        Ok(Self { module, found: Mutex::default() })
    }

    pub fn device(&self) -> &Device {
        self.module.device()
    }

    /// Enqueues the kernel on `blocks` blocks.
    #[track_caller]
    pub fn launch(&self, launcher: &Launcher<'_>, blocks: u32, call: &Call<'_>) -> gpu::Result<()> {
        let kernel = self.kernel(call.kernel)?;
        let grid = Grid { blocks: [blocks, 1, 1], threads: [call.threads, 1, 1], shared_bytes: call.shared_bytes };
        launcher.launch(&kernel, grid, call)
    }

    /// Enqueues it on as many blocks as `n` threads need; none for `n` = 0.
    #[track_caller]
    pub fn launch_over(&self, launcher: &Launcher<'_>, n: usize, call: &Call<'_>) -> gpu::Result<()> {
        match u32::try_from(n.div_ceil(call.threads as usize)).unwrap_or(u32::MAX) {
            0 => Ok(()),
            blocks => self.launch(launcher, blocks, call),
        }
    }

    #[track_caller]
    fn kernel(&self, name: &'static str) -> gpu::Result<Kernel<Call<'static>>> {
        let mut found = self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(kernel) = found.get(name) {
            return Ok(kernel.clone());
        }
        let kernel = unchecked::Kernel::find(&self.module, name)?;
        // SAFETY: the kernel and the `Call` were made from the same text, by the promise of `new`.
        let kernel = unsafe { kernel.typed::<Call<'static>>() };
        found.insert(name, kernel.clone());
        Ok(kernel)
    }
}
