//! The enqueue-only interface of a queue, and all that an op ever sees of the device.
//!
//! A `Launcher` can launch, copy on the device and fill. It cannot allocate, wait or read back: those
//! need the `Queue`. A graph capture hands out the same type, so an op that works live works captured.

use std::cell::{Cell, RefCell};
use std::mem::size_of;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::args::{ArgList, Args};
use crate::buffer::{Allocation, Element, Slice, SliceMut};
use crate::device::Device;
use crate::driver::Reply;
use crate::error::{Error, Result};
use crate::event::{Event, Timed};
use crate::module::{Grid, Kernel};
use crate::overlap::LaunchShape;
use crate::queue::{Core, OpSpan, QueueId};

/// What a capture must keep alive for as long as its graph: captured launches point at their arguments
/// in some drivers, and the memory they name must not be freed.
#[derive(Default)]
pub(crate) struct Tape {
    #[allow(clippy::vec_box, reason = "the driver may hold their addresses, and the vector moves when it grows")]
    pub arguments: Vec<Box<ArgList>>,
    pub memory: Vec<Arc<Allocation>>,
}

impl Tape {
    fn keep(&mut self, allocation: &Arc<Allocation>) {
        if !self.memory.iter().any(|kept| Arc::ptr_eq(kept, allocation)) {
            self.memory.push(allocation.clone());
        }
    }
}

/// What an op has to do at least, for its share of the device's limits.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Read and written.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
}

/// Enqueues work on a queue, or into a capture.
pub struct Launcher<'q> {
    core: &'q Core,
    tape: Option<&'q RefCell<Tape>>,
    op: Cell<Option<&'static str>>,
    work: Cell<Work>,
}

impl<'q> Launcher<'q> {
    pub(crate) fn live(core: &'q Core) -> Self {
        Self { core, tape: None, op: Cell::new(None), work: Cell::default() }
    }

    pub(crate) fn capturing(core: &'q Core, tape: &'q RefCell<Tape>) -> Self {
        Self { core, tape: Some(tape), op: Cell::new(None), work: Cell::default() }
    }

    /// The queue's device.
    pub fn device(&self) -> &Device {
        &self.core.shared.device
    }

    /// The queue that memory must belong to.
    pub fn queue_id(&self) -> QueueId {
        self.core.shared.id
    }

    /// Whether work is being recorded instead of run.
    pub fn is_capturing(&self) -> bool {
        self.tape.is_some()
    }

    /// Name the work that follows, until the guard is dropped: for errors, for profiler ranges and for
    /// the per-op times of `Queue::set_profiling`.
    pub fn op(&self, name: &'static str) -> Op<'_, 'q> {
        let before = self.op.replace(Some(name));
        if let Some(ranges) = self.core.hooks.borrow().ranges {
            ranges.push(name);
        }
        let is_timed = self.tape.is_none() && self.core.hooks.borrow().profile.is_some();
        let start = is_timed.then(|| self.keep_error(Event::record(&self.core.shared))).flatten();
        Op { launcher: self, name, before, start }
    }

    /// Adds to the work of the op that ends next.
    pub fn count(&self, work: Work) {
        let so_far = self.work.get();
        self.work.set(Work { bytes: so_far.bytes + work.bytes, flops: so_far.flops + work.flops });
    }

    /// Enqueues a kernel; every argument must belong to this queue.
    #[track_caller]
    pub fn launch<A: Args>(&self, kernel: &Kernel<A::Key>, grid: Grid, args: &A) -> Result<()> {
        let function = &*kernel.function;
        if function.device != *self.device() {
            let why = format!("it was loaded on {:?}, this queue is on {:?}", function.device, self.device());
            return Err(Error::Launch { kernel: function.name.clone(), why, at: Location::caller() });
        }
        function.check(grid)?;
        if function.is_rehearsed() {
            return Ok(());
        }
        let Some(tape) = self.tape else {
            let mut list = ArgList::new(self.queue_id(), None);
            args.put(&mut list)?;
            return self.launch_list(function, grid, &mut list);
        };
        let mut tape = tape.borrow_mut();
        let mut list = Box::new(ArgList::new(self.queue_id(), Some(std::mem::take(&mut tape.memory))));
        let put = args.put(&mut list);
        tape.memory = list.keep.take().unwrap_or_default();
        put?;
        let launched = self.launch_list(function, grid, &mut list);
        tape.arguments.push(list);
        launched
    }

    #[track_caller]
    fn launch_list(&self, function: &crate::module::Function, grid: Grid, list: &mut ArgList) -> Result<()> {
        let driver = self.core.shared.ready()?;
        let ([x, y, z], [bx, by, bz]) = (grid.blocks, grid.threads);
        let stream = self.core.shared.stream;
        if function.overlaps {
            let shape = LaunchShape { grid: grid.blocks, block: grid.threads, shared_bytes: grid.shared_bytes, stream };
            // SAFETY: as below; and its program says that every kernel waits before it touches earlier work.
            let reply = unsafe { self.device().extras().launch_early(function.raw, shape, list.as_array()) };
            if let Some(reply) = reply {
                driver.counts.launch.fetch_add(1, Ordering::Relaxed);
                return self.enqueued(reply);
            }
        }
        // SAFETY: the function's parameters were checked against the argument struct when it was compiled;
        // every address in the list belongs to this queue and to an allocation that is alive, because its
        // slice is borrowed here and memory is freed only after the work enqueued before (a capture keeps it); the
        // shape was checked; the array and its values stay in place during the call, and in a capture for
        // the graph's life. The argument array is the one form that means the same on both vendors.
        let reply = unsafe {
            let extra = std::ptr::null_mut();
            driver.launch(function.raw, x, y, z, bx, by, bz, grid.shared_bytes, stream, list.as_array(), extra)
        };
        self.enqueued(reply)
    }

    /// Copy between two ranges of the same length.
    #[track_caller]
    pub fn copy<T: Element>(&self, from: Slice<'_, T>, to: SliceMut<'_, T>) -> Result<()> {
        self.own(from.allocation())?;
        self.own(to.allocation())?;
        if from.len() != to.len() {
            return Err(Error::bounds("copy", format!("{} elements into {}", from.len(), to.len())));
        }
        if from.is_empty() {
            return Ok(());
        }
        let driver = self.core.shared.ready()?;
        // SAFETY: both ranges lie in live allocations of this queue, and the target is borrowed uniquely, so
        // they do not overlap.
        self.enqueued(unsafe {
            driver.copy_on_device(to.address(), from.address(), from.bytes(), self.core.shared.stream)
        })
    }

    /// Set every byte to zero.
    #[track_caller]
    pub fn zero<T: Element>(&self, to: SliceMut<'_, T>) -> Result<()> {
        self.own(to.allocation())?;
        if to.is_empty() {
            return Ok(());
        }
        let driver = self.core.shared.ready()?;
        // SAFETY: the range lies in a live allocation of this queue.
        self.enqueued(unsafe { driver.fill_u8(to.address(), 0, to.bytes(), self.core.shared.stream) })
    }

    /// Set every element to `value`. For elements of 1 or 4 bytes.
    #[track_caller]
    pub fn fill<T: Element>(&self, to: SliceMut<'_, T>, value: T) -> Result<()> {
        self.own(to.allocation())?;
        if to.is_empty() {
            return Ok(());
        }
        let driver = self.core.shared.ready()?;
        let stream = self.core.shared.stream;
        let from = std::ptr::from_ref(&value);
        // SAFETY: the range lies in a live allocation of this queue; an element of that size, which has no
        // padding, is read as the plain number of the same size.
        self.enqueued(unsafe {
            match size_of::<T>() {
                1 => driver.fill_u8(to.address(), from.cast::<u8>().read(), to.len(), stream),
                4 => driver.fill_u32(to.address(), from.cast::<u32>().read(), to.len(), stream),
                n => return Err(Error::bounds("fill", format!("elements of {n} bytes; 1 or 4 can be filled"))),
            }
        })
    }

    /// Check that memory belongs to this queue, and keep it for a capture.
    #[track_caller]
    pub(crate) fn own(&self, allocation: &Arc<Allocation>) -> Result<()> {
        let (owner, user) = (allocation.shared.id, self.queue_id());
        if owner != user {
            let at = Location::caller();
            return Err(Error::Foreign { what: "a buffer", owner: owner.0, user: user.0, at });
        }
        if let Some(tape) = self.tape {
            tape.borrow_mut().keep(allocation);
        }
        Ok(())
    }

    /// The answer to something enqueued; with `DebugSync::EachOp` also its completion.
    #[track_caller]
    pub(crate) fn enqueued(&self, reply: Reply<i32>) -> Result<()> {
        let shared = &self.core.shared;
        shared.judge_op(reply, self.op.get())?;
        if self.tape.is_none() && self.core.hooks.borrow().is_debug_sync {
            let what = format!("{} ({})", self.op.get().unwrap_or("unnamed op"), reply.call);
            shared.wait_so_far(&what).map_err(|error| error.during(self.op.get()))?;
        }
        Ok(())
    }

    fn keep_error<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.core.shared.keep_late(error)).ok()
    }
}

/// The guard of `Launcher::op`.
#[must_use = "the op ends when this is dropped"]
pub struct Op<'a, 'q> {
    launcher: &'a Launcher<'q>,
    name: &'static str,
    before: Option<&'static str>,
    start: Option<Event<Timed>>,
}

impl Drop for Op<'_, '_> {
    fn drop(&mut self) {
        let core = self.launcher.core;
        let work = self.launcher.work.take();
        if let Some(start) = self.start.take()
            && let Some(stop) = self.launcher.keep_error(Event::record(&core.shared))
            && let Some(profile) = &mut core.hooks.borrow_mut().profile
        {
            profile.push(OpSpan { name: self.name, start, stop, work });
        }
        if let Some(ranges) = core.hooks.borrow().ranges {
            ranges.pop();
        }
        self.launcher.op.set(self.before);
    }
}
