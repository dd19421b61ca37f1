//! Matrix products with a bias and an activation in the same kernel: hipBLASLt | cuBLASLt.
//!
//! A [`Matmul`] is planned once for shapes, orders and number types; the library's heuristic lists the algorithms it
//! has, and the best by its guess is taken unless another is chosen. hipBLASLt brings kernels for some GPUs only; on
//! the others a plan is refused with that reason.

mod calls;
mod matmul;

use std::rc::Rc;

use gpu::foreign::Binding;
use gpu::{Buffer, Queue};

#[doc(hidden)]
pub use calls::{AMD_SIZES, NVIDIA_SIZES};
pub use calls::{Calls, Epilogue};
use calls::{Handle, Host};
pub use matmul::{Matmul, MatmulAlgorithm};

use crate::error::{Result, report_late};
use crate::workspace::Workspace;

/// The numbers of every enum, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] = &[
    calls::DataType::NUMBERS,
    calls::Compute::NUMBERS,
    calls::Operation::NUMBERS,
    Epilogue::NUMBERS,
    calls::ProductAttribute::NUMBERS,
    calls::LayoutAttribute::NUMBERS,
    calls::PreferenceAttribute::NUMBERS,
];

/// A handle of one queue. Clones are the same handle.
#[derive(Clone)]
pub struct BlasLt {
    inner: Rc<Inner>,
}

struct Inner {
    calls: &'static Calls,
    handle: Handle,
    binding: Binding,
    work: Workspace,
}

impl BlasLt {
    /// A handle whose workspace grows with what is asked of it.
    #[track_caller]
    pub fn new(queue: &Queue) -> Result<Self> {
        let binding = Binding::new(queue)?;
        let work = Workspace::growing(&binding)?;
        Self::make(binding, work)
    }

    /// A handle that works in `workspace` alone: algorithms that need more are not listed.
    #[track_caller]
    pub fn with_workspace(queue: &Queue, workspace: Buffer<u8>) -> Result<Self> {
        let binding = Binding::new(queue)?;
        let work = Workspace::fixed(&binding, workspace)?;
        Self::make(binding, work)
    }

    #[track_caller]
    fn make(binding: Binding, work: Workspace) -> Result<Self> {
        let calls = Calls::get(binding.vendor())?;
        binding.enter()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; the current device is the queue's.
        unsafe { calls.create(&mut handle) }?;
        Ok(Self { inner: Rc::new(Inner { calls, handle, binding, work }) })
    }

    /// `hipBLASLt (libhipblaslt.so.1)`
    pub fn library(&self) -> String {
        self.inner.calls.opened.label()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Products under way work in the workspace, whose end waits for them.
        if self.binding.enter().is_err() {
            return; // a dead queue: the library would wait for it
        }
        // SAFETY: a handle that is destroyed once; products under way do not need it.
        report_late(&self.binding, unsafe { self.calls.destroy(self.handle) });
    }
}

type Destroy = unsafe fn(&Calls, Handle) -> Result<()>;

/// An object of the library that is destroyed with this.
struct Descriptor {
    lt: BlasLt,
    handle: Handle,
    destroy: Destroy,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made once and destroyed once. The library reads descriptors while a function is called, not afterwards.
        report_late(&self.lt.inner.binding, unsafe { (self.destroy)(self.lt.inner.calls, self.handle) });
    }
}

/// The address of something on the host.
fn host<T>(value: &T) -> Host {
    std::ptr::from_ref(value).cast()
}
