//! Raw addresses and streams without any check: for code that stands in for another GPU layer, whose
//! callers pass pointers and never heard of a `Slice`.
//!
//! Everything else of this crate proves with types what is left to the caller here: that an address is
//! alive, that its bytes suffice, that a kernel takes these arguments, that work on two streams is in
//! order. What stays as it is elsewhere: no default stream, no synchronous copy, errors with the call's
//! name, the first fault poisons the stream, a deadline on every wait, and code compiled once and cached.

use std::ffi::{CString, c_int, c_void};
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::args::Args;
use crate::buffer::Allocation;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::{Event, Untimed};
use crate::foreign::Binding;
use crate::module::{Function, Grid, Module, Resources};
use crate::pinned::Pinned;
use crate::raw::{self, Address};
use crate::shared::{Block, QueueShared};
use crate::vendor::CUDA_SHARED_DEFAULT;

pub use crate::unchecked_blas::{BatchedProduct, Blas, Matrix, Number};

/// A non-blocking stream. Any thread may use it; what one thread enqueues keeps its order.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<QueueShared>,
}

impl Stream {
    /// A new stream on the device.
    #[track_caller]
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { shared: Arc::new(QueueShared::new(device)?) })
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The vendor's own handle (`hipStream_t` or `CUstream`), alive as long as any clone of this.
    pub fn handle(&self) -> *mut c_void {
        self.shared.stream.0
    }

    /// This stream as a vendor's library sees it.
    pub fn binding(&self) -> Binding {
        Binding::of_shared(self.shared.clone())
    }

    /// How long any one wait may take before the stream counts as hung (120 s unless set).
    pub fn set_deadline(&self, deadline: Duration) {
        self.shared.set_deadline(deadline);
    }

    /// Device memory whose contents are whatever was there. It is lost unless `free` gets it back.
    #[track_caller]
    pub fn alloc(&self, bytes: usize) -> Result<Address> {
        let allocation = Allocation::new(&self.shared, bytes)?;
        Ok(allocation.into_address())
    }

    /// Waits for the work enqueued so far and gives memory back. An error waits for the next call.
    ///
    /// # Safety
    /// `address` came from `alloc` on this stream with this size, is freed once, and no other stream uses it.
    pub unsafe fn free(&self, address: Address, bytes: usize) {
        self.shared.release(Block::Device { address, bytes });
    }

    /// Page-locked host memory, zeroed.
    #[track_caller]
    pub fn pinned(&self, bytes: usize) -> Result<Pinned<u8>> {
        Pinned::new(&self.shared, bytes)
    }

    /// # Safety
    /// Both ranges are alive and `bytes` long, and the host's is not written until the copy is over.
    #[track_caller]
    pub unsafe fn copy_to_device(&self, to: Address, from: *const c_void, bytes: usize) -> Result<()> {
        let driver = self.shared.ready()?;
        // SAFETY: the caller's.
        self.shared.judge(unsafe { driver.copy_to_device(to, from, bytes, self.shared.stream) })
    }

    /// # Safety
    /// Both ranges are alive and `bytes` long, and the host's is not touched until the copy is over.
    #[track_caller]
    pub unsafe fn copy_to_host(&self, to: *mut c_void, from: Address, bytes: usize) -> Result<()> {
        let driver = self.shared.ready()?;
        // SAFETY: the caller's.
        self.shared.judge(unsafe { driver.copy_to_host(to, from, bytes, self.shared.stream) })
    }

    /// # Safety
    /// Both ranges are alive, `bytes` long and do not overlap.
    #[track_caller]
    pub unsafe fn copy_on_device(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        let driver = self.shared.ready()?;
        // SAFETY: the caller's.
        self.shared.judge(unsafe { driver.copy_on_device(to, from, bytes, self.shared.stream) })
    }

    /// # Safety
    /// The range is alive and `bytes` long.
    #[track_caller]
    pub unsafe fn zero(&self, at: Address, bytes: usize) -> Result<()> {
        let driver = self.shared.ready()?;
        // SAFETY: the caller's.
        self.shared.judge(unsafe { driver.fill_u8(at, 0, bytes, self.shared.stream) })
    }

    /// Enqueue a kernel. The shape is checked, the arguments are not.
    ///
    /// # Safety
    /// `arguments` holds one pointer for each parameter of the kernel, to a value of its type; every
    /// address among the values is alive and as long as the kernel takes it to be.
    #[track_caller]
    pub unsafe fn launch(&self, kernel: &Kernel, grid: Grid, arguments: &mut [*mut c_void]) -> Result<()> {
        let function = &*kernel.function;
        if function.device != *self.device() {
            let why = format!("it was loaded on {:?}, this stream is on {:?}", function.device, self.device());
            return Err(Error::Launch { kernel: function.name.clone(), why, at: Location::caller() });
        }
        function.check(grid)?;
        let driver = self.shared.ready()?;
        let ([x, y, z], [bx, by, bz]) = (grid.blocks, grid.threads);
        let (stream, extra) = (self.shared.stream, std::ptr::null_mut());
        // SAFETY: a function of a module that is never unloaded, a checked shape, and the caller's arguments.
        self.shared.judge(unsafe {
            driver.launch(function.raw, x, y, z, bx, by, bz, grid.shared_bytes, stream, arguments.as_mut_ptr(), extra)
        })
    }

    /// An event after everything enqueued so far.
    #[track_caller]
    pub fn record(&self) -> Result<Event<Untimed>> {
        Event::record(&self.shared)
    }

    /// Whatever is enqueued from now on comes after everything `other` has been given so far.
    #[track_caller]
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        let event = other.record()?;
        let driver = self.shared.ready_outside_capture("an order between streams")?;
        // SAFETY: a recorded event and a live stream; an event may be recorded again once a wait is enqueued.
        self.shared.judge(unsafe { driver.stream_wait_event(self.shared.stream, event.raw(), 0) })
    }

    /// Block until everything enqueued so far is done.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.shared.wait_so_far("the stream")
    }

    /// Keep an error of a call that cannot report it; the next call on this stream does.
    pub fn report_later(&self, error: Error) {
        self.shared.keep_late(error);
    }

    pub(crate) fn shared(&self) -> &Arc<QueueShared> {
        &self.shared
    }
}

/// A kernel whose parameters nobody compared with its arguments.
#[derive(Clone)]
pub struct Kernel {
    function: Arc<Function>,
}

impl Kernel {
    /// A kernel of loaded code, by name.
    #[track_caller]
    pub fn find(module: &Module, name: &str) -> Result<Self> {
        let device = module.device();
        let fail = |why: String| Error::Launch { kernel: name.to_owned(), why, at: Location::caller() };
        let symbol = CString::new(name).map_err(|_| fail("a NUL byte in its name".into()))?;
        let raw = module.find(&symbol)?;
        let resources = Resources::read(device, raw)?;
        let allowed_shared = AtomicU32::new(CUDA_SHARED_DEFAULT);
        let (device, name) = (device.clone(), name.to_owned());
        Ok(Self { function: Arc::new(Function { device, name, raw, resources, allowed_shared, overlaps: false }) })
    }

    /// The same kernel as one that takes `A`, for a [`Launcher`](crate::Launcher).
    ///
    /// # Safety
    /// Its parameters are those of `A`, in number, order and type.
    pub unsafe fn typed<A: Args>(self) -> crate::Kernel<A::Key> {
        crate::Kernel::of(self.function)
    }

    /// The entry point's name.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// What the compiler gave it.
    pub fn resources(&self) -> Resources {
        self.function.resources
    }
}

/// Load code that the driver understands as it is: a code object, or, on NVIDIA, PTX text that ends with a NUL.
///
/// # Safety
/// `image` is a whole image of a kind this driver knows; a driver may read past the end of a broken one.
#[track_caller]
pub unsafe fn load_image(device: &Device, image: &[u8]) -> Result<Module> {
    device.make_current()?;
    let mut module = raw::Module::NULL;
    // SAFETY: the caller's, and a valid out pointer.
    device.check(unsafe { device.driver().module_load(&mut module, image.as_ptr().cast()) })?;
    Ok(Module::from_raw(device, module))
}

/// Load a code object (`.hsaco`, `.cubin`, a bundle) or PTX text from a file.
///
/// # Safety
/// As for [`load_image`]; a file that is neither an ELF file, a bundle nor text is refused.
#[track_caller]
pub unsafe fn load_file(device: &Device, path: &Path) -> Result<Module> {
    let fail = |why: String| Error::Code { path: path.display().to_string(), why };
    let mut image = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    let is_code = image.starts_with(b"\x7fELF") || image.starts_with(b"__CLANG_OFFLOAD_BUNDLE__");
    let is_text = !image.is_empty() && !image.contains(&0) && std::str::from_utf8(&image).is_ok();
    if !is_code && !is_text {
        return Err(fail(format!("{} bytes that are neither a code object nor text", image.len())));
    }
    if is_text {
        image.push(0); // where the driver stops reading
    }
    // SAFETY: the caller's.
    unsafe { load_image(device, &image) }
}

/// A device attribute by the vendor's own number.
#[track_caller]
pub fn attribute(device: &Device, number: c_int) -> Result<c_int> {
    let mut value: c_int = 0;
    // SAFETY: a valid out pointer; ordinals and handles are the same numbers in both APIs, and an unknown
    // attribute is an error.
    device.check(unsafe { device.driver().device_attribute(&mut value, number, device.ordinal() as c_int) })?;
    Ok(value)
}
