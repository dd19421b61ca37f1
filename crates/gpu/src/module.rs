//! Loaded code and the kernels in it.
//!
//! Code is never unloaded: a kernel may still be running in a graph that nobody holds, and a whole
//! model's code is a few megabytes. A kernel is typed with its arguments, and its launch shape is
//! checked against what the compiler and the device allow before the driver sees it.

use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::args::Args;
use crate::cache::Cache;
use crate::compile::{Code, Program, Target};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::overlap;
use crate::raw;
use crate::vendor::{
    CUDA_SHARED_DEFAULT, FUNCTION_LOCAL_BYTES, FUNCTION_MAX_THREADS, FUNCTION_REGISTERS, FUNCTION_SHARED_BYTES,
};

/// Code on a device.
#[derive(Clone)]
pub struct Module {
    device: Device,
    program: Arc<Program>,
    raw: raw::Module,
}

impl Module {
    /// Compile (or take from the cache) and load.
    #[track_caller]
    pub fn load(device: &Device, program: &Program, cache: &Cache) -> Result<Self> {
        let code = program.compile(&Target::of(device), cache)?;
        Self::from_code(device, program, &code)
    }

    /// Load machine code made earlier from the same program.
    #[track_caller]
    pub fn from_code(device: &Device, program: &Program, code: &Code) -> Result<Self> {
        device.make_current()?;
        let mut module = raw::Module::NULL;
        // SAFETY: a whole code object (ELF, which carries its own length) and a valid out pointer. The
        // driver copies what it needs.
        device.check(unsafe { device.driver().module_load(&mut module, code.bytes.as_ptr().cast()) })?;
        Ok(Self { device: device.clone(), program: Arc::new(program.clone()), raw: module })
    }

    /// A program that is not compiled: its kernels can be launched, and nothing happens. To learn which programs some work
    /// needs, so that they can be compiled together.
    pub fn rehearsed(device: &Device, program: &Program) -> Self {
        Self { device: device.clone(), program: Arc::new(program.clone()), raw: raw::Module::NULL }
    }

    /// A kernel by name. It must have been declared in the program with the same arguments.
    #[track_caller]
    pub fn kernel<A: Args>(&self, name: &str) -> Result<Kernel<A::Key>> {
        let fail = |why: String| Error::Launch { kernel: name.to_owned(), why, at: Location::caller() };
        let declared = self.program.signature(name);
        if declared != Some(A::signature().as_str()) {
            let was = declared.unwrap_or("nothing of that name");
            let why = format!("program `{}` declares ({was}), asked for ({})", self.program.name(), A::signature());
            return Err(fail(why));
        }
        let symbol = CString::new(name).map_err(|_| fail("a NUL byte in its name".into()))?;
        let (raw, resources) = if self.raw == raw::Module::NULL {
            (raw::Function::NULL, Resources::unknown(&self.device))
        } else {
            let raw = self.find(&symbol)?;
            (raw, Resources::read(&self.device, raw)?)
        };
        let allowed_shared = AtomicU32::new(CUDA_SHARED_DEFAULT);
        let overlaps = self.program.is_overlapping() && overlap::is_possible(&self.device);
        let (device, name) = (self.device.clone(), name.to_owned());
        let function = Function { device, name, raw, resources, allowed_shared, overlaps };
        Ok(Kernel { function: Arc::new(function), args: PhantomData })
    }

    /// Where it was loaded.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Code that came from nowhere this layer knows: no kernel of it was declared.
    pub(crate) fn from_raw(device: &Device, raw: raw::Module) -> Self {
        Self { device: device.clone(), program: Arc::new(Program::new("image", "")), raw }
    }

    #[track_caller]
    pub(crate) fn find(&self, symbol: &CStr) -> Result<raw::Function> {
        self.device.make_current()?;
        let mut raw = raw::Function::NULL;
        // SAFETY: a loaded module, a NUL-terminated name and a valid out pointer.
        self.device.check(unsafe { self.device.driver().module_function(&mut raw, self.raw, symbol.as_ptr()) })?;
        Ok(raw)
    }
}

/// What the compiler gave a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resources {
    /// The largest block it can be launched with.
    pub max_threads: u32,
    /// Static shared memory.
    pub shared_bytes: u32,
    /// Scratch per thread: spills, and arrays indexed at run time.
    pub local_bytes: u32,
    /// Registers of a thread.
    pub registers: u32,
}

impl Resources {
    /// Of code that is not there: whatever the device allows.
    fn unknown(device: &Device) -> Self {
        let max_threads = device.properties().max_threads_per_block;
        Self { max_threads, shared_bytes: 0, local_bytes: 0, registers: 0 }
    }

    #[track_caller]
    pub(crate) fn read(device: &Device, function: raw::Function) -> Result<Self> {
        let number = |attribute: c_int| -> Result<u32> {
            let mut value: c_int = 0;
            // SAFETY: a function of a loaded module and a valid out pointer.
            device.check(unsafe { device.driver().function_attribute(&mut value, attribute, function) })?;
            Ok(value.max(0) as u32)
        };
        Ok(Self {
            max_threads: number(FUNCTION_MAX_THREADS)?,
            shared_bytes: number(FUNCTION_SHARED_BYTES)?,
            local_bytes: number(FUNCTION_LOCAL_BYTES)?,
            registers: number(FUNCTION_REGISTERS)?,
        })
    }
}

pub(crate) struct Function {
    pub device: Device,
    pub name: String,
    pub raw: raw::Function,
    pub resources: Resources,
    /// Dynamic shared memory the driver was told to allow (NVIDIA only).
    pub allowed_shared: AtomicU32,
    /// Whether it may be launched before the work in front of it is over.
    pub overlaps: bool,
}

/// A kernel that takes `A`.
pub struct Kernel<A> {
    pub(crate) function: Arc<Function>,
    args: PhantomData<fn(A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        Self { function: self.function.clone(), args: PhantomData }
    }
}

/// The shape of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block in x, y and z.
    pub threads: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
}

impl Grid {
    /// One-dimensional: `blocks` blocks of `threads` threads.
    pub const fn line(blocks: u32, threads: u32) -> Self {
        Self { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }

    /// Two-dimensional blocks in x and y.
    pub const fn plane(blocks_x: u32, blocks_y: u32, threads: u32) -> Self {
        Self { blocks: [blocks_x, blocks_y, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }

    /// With this much dynamic shared memory.
    #[must_use]
    pub const fn shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }
}

impl<A> Kernel<A> {
    /// For `unchecked`, whose caller vouches for the parameters.
    pub(crate) fn of(function: Arc<Function>) -> Self {
        Self { function, args: PhantomData }
    }

    /// The entry point's name.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// What the compiler gave it.
    pub fn resources(&self) -> Resources {
        self.function.resources
    }

    /// Blocks of this size that fit on one multiprocessor at once.
    #[track_caller]
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let Function { device, raw, .. } = &*self.function;
        self.function.check(Grid::line(1, threads).shared(shared_bytes))?;
        device.make_current()?;
        let mut blocks: c_int = 0;
        // SAFETY: a function of a loaded module, a checked block size and a valid out pointer.
        let reply = unsafe { device.driver().occupancy(&mut blocks, *raw, threads as c_int, shared_bytes as usize) };
        device.check(reply)?;
        Ok(blocks.max(0) as u32)
    }
}

impl Function {
    /// Whether there is no code behind it ([`Module::rehearsed`]).
    pub fn is_rehearsed(&self) -> bool {
        self.raw == raw::Function::NULL
    }

    /// Refuse a shape the device or the compiled kernel cannot take, with the numbers.
    #[track_caller]
    pub fn check(&self, grid: Grid) -> Result<()> {
        let fail = |why: String| Err(Error::Launch { kernel: self.name.clone(), why, at: Location::caller() });
        let limits = self.device.properties();
        for axis in 0..3 {
            let (blocks, threads) = (grid.blocks[axis], grid.threads[axis]);
            if blocks == 0 || blocks > limits.max_grid[axis] {
                return fail(format!(
                    "{blocks} blocks along axis {axis}; the device takes 1 to {}",
                    limits.max_grid[axis]
                ));
            }
            if threads == 0 || threads > limits.max_block[axis] {
                return fail(format!(
                    "{threads} threads along axis {axis}; the device takes 1 to {}",
                    limits.max_block[axis]
                ));
            }
        }
        let threads: u64 = grid.threads.iter().map(|n| u64::from(*n)).product();
        let most = self.resources.max_threads.min(limits.max_threads_per_block);
        if threads > u64::from(most) {
            return fail(format!("{threads} threads a block; it was compiled for at most {most}"));
        }
        let shared = u64::from(self.resources.shared_bytes) + u64::from(grid.shared_bytes);
        if shared > u64::from(limits.max_shared_bytes) {
            return fail(format!("{shared} bytes of shared memory; a block may have {}", limits.max_shared_bytes));
        }
        self.allow_shared(grid.shared_bytes)
    }

    #[track_caller]
    fn allow_shared(&self, bytes: u32) -> Result<()> {
        if self.is_rehearsed() || bytes <= self.allowed_shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(reply) = self.device.extras().allow_shared(self.raw, bytes) {
            self.device.check(reply)?;
        }
        self.allowed_shared.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }
}
