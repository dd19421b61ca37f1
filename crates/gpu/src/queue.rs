//! A queue of work on a device. It owns a non-blocking stream, and it is the only maker of buffers,
//! pinned memory, events, graphs and BLAS handles.
//!
//! It can be moved to another thread but is neither `Clone` nor `Sync`. There is no default stream, no
//! synchronous copy and no way to name a stream. The first fault poisons it: everything after returns
//! that first error.

use std::cell::RefCell;
use std::mem::size_of;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::blas::{Blas, ProductTypes};
use crate::buffer::{Allocation, Buffer, Element, Slice, SliceMut};
use crate::counters::{self, Meter};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind, Timed, Untimed};
use crate::graph::Graph;
use crate::launcher::{Launcher, Work};
use crate::pinned::{Pending, Pinned};
use crate::pool::MemoryPool;
use crate::ranges::Ranges;
use crate::shared::{Leak, QueueShared};

/// Which queue: unique in the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueId(pub(crate) u64);

/// Whether to wait after every op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DebugSync {
    /// Never.
    Off,
    /// Slow; names the first op that fails or stalls.
    EachOp,
}

/// Whether named ops take their device times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profiling {
    /// No.
    Off,
    /// Each op, by events around it.
    EachOp,
}

/// A stream of work on one device, and the owner of the memory that is allocated from it.
pub struct Queue {
    core: Core,
}

/// What a queue and its launchers share. The `RefCell` is what makes a queue stay on one thread at a time.
pub(crate) struct Core {
    pub shared: Arc<QueueShared>,
    pub hooks: RefCell<Hooks>,
}

#[derive(Default)]
pub(crate) struct Hooks {
    pub is_debug_sync: bool,
    pub ranges: Option<&'static Ranges>,
    pub profile: Option<Vec<OpSpan>>,
}

/// A named op's place in the queue's time.
pub(crate) struct OpSpan {
    pub name: &'static str,
    pub start: Event<Timed>,
    pub stop: Event<Timed>,
    pub work: Work,
}

/// One op as it ran.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct OpTime {
    /// As [`Launcher::op`](crate::Launcher::op) was told.
    pub name: &'static str,
    /// From the start of the first op that was taken with it.
    pub start: Duration,
    /// How long it took on the device.
    pub time: Duration,
    /// What it counted with [`Launcher::count`](crate::Launcher::count).
    pub work: Work,
}

impl Queue {
    /// A new stream on the device.
    #[track_caller]
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { core: Core { shared: Arc::new(QueueShared::new(device)?), hooks: RefCell::default() } })
    }

    /// Unique in the process.
    pub fn id(&self) -> QueueId {
        self.core.shared.id
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.core.shared.device
    }

    /// The interface that ops are given.
    pub fn launcher(&self) -> Launcher<'_> {
        Launcher::live(&self.core)
    }

    /// The first fault, if there was one.
    pub fn fault(&self) -> Option<Error> {
        self.core.shared.fault().cloned()
    }

    /// Memory given up because the device did not answer.
    pub fn leaks(&self) -> Vec<Leak> {
        self.core.shared.leaks()
    }

    /// How long any one wait may take before the queue counts as hung (120 s unless set).
    pub fn set_deadline(&self, deadline: Duration) {
        self.core.shared.set_deadline(deadline);
    }

    /// From the next op on.
    pub fn set_debug_sync(&self, mode: DebugSync) {
        self.core.hooks.borrow_mut().is_debug_sync = mode == DebugSync::EachOp;
    }

    /// Show named ops as ranges in rocprof or nsys.
    pub fn show_ranges(&self) -> Result<()> {
        self.core.hooks.borrow_mut().ranges = Some(Ranges::get(self.device().vendor())?);
        Ok(())
    }

    /// From the next op on; times taken so far are dropped.
    pub fn set_profiling(&self, mode: Profiling) {
        self.core.hooks.borrow_mut().profile = (mode == Profiling::EachOp).then(Vec::new);
    }

    /// The device time of each named op since the last call. Waits for them.
    #[track_caller]
    pub fn take_profile(&self) -> Result<Vec<OpTime>> {
        let spans = self.core.hooks.borrow_mut().profile.as_mut().map(std::mem::take).unwrap_or_default();
        let Some(first) = spans.first() else { return Ok(Vec::new()) };
        let op_time = |span: &OpSpan| -> Result<OpTime> {
            let (start, time) = (span.start.since(&first.start)?, span.stop.since(&span.start)?);
            Ok(OpTime { name: span.name, start, time, work: span.work })
        };
        spans.iter().map(op_time).collect()
    }

    /// `len` elements whose contents are whatever was there.
    #[track_caller]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| Error::bounds("alloc", "too many elements"))?;
        Ok(Buffer::whole(Allocation::new(&self.core.shared, bytes)?, len))
    }

    /// Memory of `len` elements, all zero.
    #[track_caller]
    pub fn alloc_zeroed<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let mut buffer = self.alloc(len)?;
        self.launcher().zero(buffer.all_mut())?;
        Ok(buffer)
    }

    /// One allocation to carve.
    #[track_caller]
    pub fn pool(&self, bytes: usize) -> Result<MemoryPool> {
        MemoryPool::new(&self.core.shared, bytes)
    }

    /// Page-locked host memory, zeroed.
    #[track_caller]
    pub fn pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        Pinned::new(&self.core.shared, len)
    }

    /// Copy all of `from` to the device.
    #[track_caller]
    pub fn upload<T: Element>(&self, from: Pinned<T>, to: SliceMut<'_, T>) -> Result<Pending<T>> {
        let whole = 0..from.len();
        self.upload_part(from, whole, to)
    }

    /// Copy a part of `from` to the device.
    #[track_caller]
    pub fn upload_part<T: Element>(
        &self,
        from: Pinned<T>,
        part: Range<usize>,
        to: SliceMut<'_, T>,
    ) -> Result<Pending<T>> {
        self.own(from.shared().id, "pinned memory")?;
        self.own(to.queue_id(), "a buffer")?;
        let source = from.get(part.clone()).filter(|source| source.len() == to.len());
        let Some(source) = source else {
            let why = format!("elements {part:?} of {} into {}", from.len(), to.len());
            return Err(Error::bounds("upload", why));
        };
        if !source.is_empty() {
            let driver = self.core.shared.ready()?;
            let offset = part.start * size_of::<T>();
            // SAFETY: `source` was checked to lie in the pinned block and the target in a live allocation of
            // this queue, of the same length; the block is kept by the `Pending` until the copy is over.
            let reply = unsafe {
                let start = from.as_device_source().byte_add(offset);
                driver.copy_to_device(to.address(), start, to.bytes(), self.core.shared.stream)
            };
            self.core.shared.judge(reply)?;
            counters::add(&Meter::of(self.device().vendor()).bytes_to_device, to.bytes());
        }
        Pending::new(from)
    }

    /// Copy from the device into the front of `to`.
    #[track_caller]
    pub fn download<T: Element>(&self, from: Slice<'_, T>, mut to: Pinned<T>) -> Result<Pending<T>> {
        self.own(to.shared().id, "pinned memory")?;
        self.own(from.queue_id(), "a buffer")?;
        if from.len() > to.len() {
            return Err(Error::bounds("download", format!("{} elements into {}", from.len(), to.len())));
        }
        if !from.is_empty() {
            let driver = self.core.shared.ready()?;
            // SAFETY: the source lies in a live allocation of this queue and fits into the pinned block, which
            // the `Pending` keeps, unseen, until the copy is over.
            let reply = unsafe {
                driver.copy_to_host(to.as_device_target(), from.address(), from.bytes(), self.core.shared.stream)
            };
            self.core.shared.judge(reply)?;
            counters::add(&Meter::of(self.device().vendor()).bytes_to_host, from.bytes());
        }
        Pending::new(to)
    }

    /// A new buffer with these contents. Allocates and waits: for constants and tests, not for steps.
    #[track_caller]
    pub fn buffer_from<T: Element>(&self, contents: &[T]) -> Result<Buffer<T>> {
        let mut staging = self.pinned(contents.len())?;
        staging.copy_from_slice(contents);
        let mut buffer = self.alloc(contents.len())?;
        self.upload(staging, buffer.all_mut())?.wait()?;
        Ok(buffer)
    }

    /// The contents of a slice. Allocates and waits: for tests, not for steps.
    #[track_caller]
    pub fn read<T: Element>(&self, from: Slice<'_, T>) -> Result<Vec<T>> {
        let staging = self.pinned(from.len())?;
        Ok(self.download(from, staging)?.wait()?.to_vec())
    }

    /// An event after everything enqueued so far.
    #[track_caller]
    pub fn record<K: EventKind>(&self) -> Result<Event<K>> {
        Event::record(&self.core.shared)
    }

    /// Block until everything enqueued so far is done.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.core.shared.wait_so_far("the queue")
    }

    /// Give a buffer to another queue of the same device: the only way between queues. Whatever this
    /// queue was told to do with the buffer happens before anything the other queue does with it.
    #[track_caller]
    pub fn hand_over<T: Element>(&self, buffer: Buffer<T>, to: &Queue) -> Result<Buffer<T>> {
        self.own(buffer.queue_id(), "a buffer")?;
        let fail = |why: &str| Error::HandOver { why: why.to_owned(), at: Location::caller() };
        if self.device() != to.device() {
            return Err(fail("the queues are on different devices"));
        }
        let Buffer { allocation, start, len, element } = buffer;
        let mut allocation = Arc::try_unwrap(allocation)
            .map_err(|_| fail("a graph or another buffer shares the allocation, and would race with the new owner"))?;
        let event = self.record::<Untimed>()?;
        let driver = to.core.shared.ready_outside_capture("a hand-over")?;
        // SAFETY: a recorded event and a live stream of the same device.
        to.core.shared.judge(unsafe { driver.stream_wait_event(to.core.shared.stream, event.raw(), 0) })?;
        allocation.shared = to.core.shared.clone();
        Ok(Buffer { allocation: Arc::new(allocation), start, len, element })
    }

    /// Record the work of `record` instead of running it. The closure gets a `Launcher` and, since the
    /// queue is borrowed for the whole capture, can neither allocate nor wait nor read back.
    #[track_caller]
    pub fn capture<E: From<Error>>(&mut self, record: impl FnOnce(&Launcher<'_>) -> Result<(), E>) -> Result<Graph, E> {
        Graph::capture(&self.core, record)
    }

    /// Enqueue a captured graph.
    #[track_caller]
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        graph.replay(&self.core)
    }

    /// A BLAS handle that works on this queue and nowhere else, with `workspace` as its scratch memory.
    /// Each wanted kind is tried with a tiny product; those that fail are dropped with a reason.
    #[track_caller]
    pub fn blas(&self, workspace: Buffer<u8>, wanted: &[ProductTypes]) -> Result<Blas> {
        self.own(workspace.queue_id(), "a buffer")?;
        Blas::new(self, workspace, wanted)
    }

    pub(crate) fn shared(&self) -> &Arc<QueueShared> {
        &self.core.shared
    }

    /// How this crate's own BLAS gets at the stream.
    #[track_caller]
    pub(crate) fn bind<R>(&self, set: impl FnOnce(crate::raw::Stream) -> R) -> Result<R> {
        self.core.shared.ready()?;
        Ok(set(self.core.shared.stream))
    }

    #[track_caller]
    fn own(&self, owner: QueueId, what: &'static str) -> Result<()> {
        if owner == self.id() {
            return Ok(());
        }
        Err(Error::Foreign { what, owner: owner.0, user: self.id().0, at: Location::caller() })
    }
}
