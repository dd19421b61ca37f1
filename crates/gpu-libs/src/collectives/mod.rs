//! Collectives between GPUs: RCCL | NCCL.
//!
//! A [`Communicator`] is one member's end, bound to one queue. Members are threads or processes that call the same
//! function at the same time, or several queues of one thread, whose calls then stand in a [`group`]. Nothing is
//! waited for: a function enqueues its work, which waits on the device for the other members.

mod calls;
mod group;

use std::marker::PhantomData;

use gpu::foreign::{Address, Binding};
use gpu::{Queue, Slice, SliceMut, Vendor};

#[doc(hidden)]
pub use calls::SIZES;
pub use calls::{Calls, DataType, Message, Reduction, UniqueId};
use calls::{Handle, Int};
pub use group::{Group, group};

use crate::error::{Result, ensure, int, report_late};

/// The numbers of every enum, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] = &[DataType::NUMBERS, Reduction::NUMBERS, calls::Status::NUMBERS];

impl UniqueId {
    /// An id for a new communicator.
    #[track_caller]
    pub fn new(vendor: Vendor) -> Result<Self> {
        let mut id = Self([0; 128]);
        // SAFETY: a valid out pointer of the size that the library writes.
        unsafe { Calls::get(vendor)?.unique_id(&mut id) }?;
        Ok(id)
    }
}

/// One member's end of a communicator.
pub struct Communicator {
    calls: &'static Calls,
    handle: Handle,
    binding: Binding,
    rank: usize,
    ranks: usize,
    /// The library's objects are one thread's at a time.
    not_send: PhantomData<*mut ()>,
}

impl Communicator {
    /// Becomes member number `rank` of `ranks`. Waits for all others, which are elsewhere and do the same.
    #[track_caller]
    pub fn join(queue: &Queue, id: UniqueId, rank: usize, ranks: usize) -> Result<Self> {
        let binding = Binding::new(queue)?;
        let calls = Calls::get(binding.vendor())?;
        group::refuse_inside("join")?;
        let handle = Self::init(calls, &binding, id, rank, ranks)?;
        Ok(Self { calls, handle, binding, rank, ranks, not_send: PhantomData })
    }

    /// A communicator of the queues of one thread, which are each on a device of its own.
    #[track_caller]
    pub fn of(queues: &[&Queue]) -> Result<Vec<Self>> {
        const CALL: &str = "Communicator::of";
        ensure(CALL, !queues.is_empty(), || "no queues".into())?;
        let vendor = queues[0].device().vendor();
        let same = queues.iter().all(|queue| queue.device().vendor() == vendor);
        ensure(CALL, same, || "devices of two vendors".into())?;
        let bindings = queues.iter().map(|queue| Ok(Binding::new(queue)?)).collect::<Result<Vec<Binding>>>()?;
        let calls = Calls::get(vendor)?;
        let id = UniqueId::new(vendor)?;
        group::refuse_inside(CALL)?;
        let mut handles = vec![std::ptr::null_mut(); queues.len()];
        // SAFETY: a group without operations.
        unsafe { calls.group_start() }?;
        let mut begun = Ok(());
        for (rank, (binding, handle)) in bindings.iter().zip(&mut handles).enumerate() {
            begun = begun.and_then(|()| {
                binding.enter()?;
                let (ranks, rank) = (int(CALL, "the members", queues.len())?, int(CALL, "a member", rank)?);
                // SAFETY: an out pointer that is valid until the group's end.
                unsafe { calls.join(handle, ranks, id, rank) }
            });
        }
        // SAFETY: the group that was started above.
        let ended = unsafe { calls.group_end() };
        begun.and(ended)?;
        let ranks = handles.len();
        let member = |(rank, (binding, handle))| Self { calls, handle, binding, rank, ranks, not_send: PhantomData };
        Ok(bindings.into_iter().zip(handles).enumerate().map(member).collect())
    }

    #[track_caller]
    fn init(calls: &Calls, binding: &Binding, id: UniqueId, rank: usize, ranks: usize) -> Result<Handle> {
        const CALL: &str = "Communicator::join";
        ensure(CALL, rank < ranks, || format!("member {rank} of {ranks}"))?;
        let (rank, ranks) = (int(CALL, "a member", rank)?, int(CALL, "the members", ranks)?);
        binding.enter()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; the current device is the queue's.
        unsafe { calls.join(&mut handle, ranks, id, rank) }?;
        Ok(handle)
    }

    /// This member's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many members there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// `RCCL (librccl.so.1)`
    pub fn library(&self) -> String {
        self.calls.opened.label()
    }

    /// What went wrong in work that was enqueued earlier, at another member or between them.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let mut status: Int = 0;
        // SAFETY: a live communicator and a valid out pointer.
        unsafe { self.calls.asynchronous_error(self.handle, &mut status) }?;
        self.calls.opened.check("a collective under way".into(), status)
    }

    /// `to` becomes the reduction of all members' `from`.
    #[track_caller]
    pub fn all_reduce<T: Message>(&self, by: Reduction, from: Slice<'_, T>, to: SliceMut<'_, T>) -> Result<()> {
        group::refuse_inside("all_reduce")?;
        self.enqueue_all_reduce(by, &from, &to)
    }

    /// `data` becomes the reduction of all members' `data`.
    #[track_caller]
    pub fn all_reduce_in_place<T: Message>(&self, by: Reduction, data: SliceMut<'_, T>) -> Result<()> {
        group::refuse_inside("all_reduce")?;
        self.enqueue_all_reduce_in_place(by, &data)
    }

    /// `root`'s `to` becomes the reduction of all members' `from`; the others' stays.
    #[track_caller]
    pub fn reduce<T: Message>(
        &self,
        by: Reduction,
        root: usize,
        from: Slice<'_, T>,
        to: SliceMut<'_, T>,
    ) -> Result<()> {
        group::refuse_inside("reduce")?;
        self.enqueue_reduce(by, root, &from, &to)
    }

    /// All members' `data` becomes `root`'s.
    #[track_caller]
    pub fn broadcast<T: Message>(&self, root: usize, data: SliceMut<'_, T>) -> Result<()> {
        group::refuse_inside("broadcast")?;
        self.enqueue_broadcast(root, &data)
    }

    /// `to` becomes all members' `from`, one after the other.
    #[track_caller]
    pub fn all_gather<T: Message>(&self, from: Slice<'_, T>, to: SliceMut<'_, T>) -> Result<()> {
        group::refuse_inside("all_gather")?;
        self.enqueue_all_gather(&from, &to)
    }

    /// `to` becomes this member's part of the reduction of all members' `from`.
    #[track_caller]
    pub fn reduce_scatter<T: Message>(&self, by: Reduction, from: Slice<'_, T>, to: SliceMut<'_, T>) -> Result<()> {
        group::refuse_inside("reduce_scatter")?;
        self.enqueue_reduce_scatter(by, &from, &to)
    }

    /// Sends to a member that receives as many. Exchanges stand in a [`group`], or both wait for each other.
    #[track_caller]
    pub fn send<T: Message>(&self, peer: usize, from: Slice<'_, T>) -> Result<()> {
        group::refuse_inside("send")?;
        self.enqueue_send(peer, &from)
    }

    /// Receives from a member that sends as many.
    #[track_caller]
    pub fn receive<T: Message>(&self, peer: usize, to: SliceMut<'_, T>) -> Result<()> {
        group::refuse_inside("receive")?;
        self.enqueue_receive(peer, &to)
    }

    #[track_caller]
    fn enqueue_all_reduce<T: Message>(&self, by: Reduction, from: &Slice<'_, T>, to: &SliceMut<'_, T>) -> Result<()> {
        same_length("all_reduce", from.len(), to.len())?;
        let (at_from, at_to) = (self.binding.input(from)?, self.binding.output(to)?);
        self.all_reduce_at::<T>(by, at_from, at_to, to.len())
    }

    #[track_caller]
    fn enqueue_all_reduce_in_place<T: Message>(&self, by: Reduction, data: &SliceMut<'_, T>) -> Result<()> {
        let at = self.binding.output(data)?;
        self.all_reduce_at::<T>(by, at, at, data.len())
    }

    #[track_caller]
    fn all_reduce_at<T: Message>(&self, by: Reduction, from: Address, to: Address, n: usize) -> Result<()> {
        let (number, by) = self.choices::<T>(by);
        self.binding.enter()?;
        // SAFETY: n elements of this queue's memory each; the stream lives as long as the binding.
        unsafe { self.calls.all_reduce(from, to, n, number, by, self.handle, self.binding.stream()) }
    }

    #[track_caller]
    fn enqueue_reduce<T: Message>(
        &self,
        by: Reduction,
        root: usize,
        from: &Slice<'_, T>,
        to: &SliceMut<'_, T>,
    ) -> Result<()> {
        same_length("reduce", from.len(), to.len())?;
        let (root, n) = (self.member("reduce", root)?, from.len());
        let (at_from, at_to) = (self.binding.input(from)?, self.binding.output(to)?);
        let (number, by) = self.choices::<T>(by);
        self.binding.enter()?;
        // SAFETY: n elements of this queue's memory each; the stream lives as long as the binding.
        unsafe { self.calls.reduce(at_from, at_to, n, number, by, root, self.handle, self.binding.stream()) }
    }

    #[track_caller]
    fn enqueue_broadcast<T: Message>(&self, root: usize, data: &SliceMut<'_, T>) -> Result<()> {
        let (root, at, n) = (self.member("broadcast", root)?, self.binding.output(data)?, data.len());
        let number = T::TYPE.number(self.binding.vendor());
        self.binding.enter()?;
        // SAFETY: n elements of this queue's memory; the stream lives as long as the binding.
        unsafe { self.calls.broadcast(at, at, n, number, root, self.handle, self.binding.stream()) }
    }

    #[track_caller]
    fn enqueue_all_gather<T: Message>(&self, from: &Slice<'_, T>, to: &SliceMut<'_, T>) -> Result<()> {
        self.parts("all_gather", from.len(), to.len())?;
        let (at_from, at_to) = (self.binding.input(from)?, self.binding.output(to)?);
        let number = T::TYPE.number(self.binding.vendor());
        self.binding.enter()?;
        // SAFETY: as many elements of this queue's memory as were checked; the stream lives as long as the binding.
        unsafe { self.calls.all_gather(at_from, at_to, from.len(), number, self.handle, self.binding.stream()) }
    }

    #[track_caller]
    fn enqueue_reduce_scatter<T: Message>(
        &self,
        by: Reduction,
        from: &Slice<'_, T>,
        to: &SliceMut<'_, T>,
    ) -> Result<()> {
        self.parts("reduce_scatter", to.len(), from.len())?;
        let (at_from, at_to) = (self.binding.input(from)?, self.binding.output(to)?);
        let (number, by) = self.choices::<T>(by);
        self.binding.enter()?;
        // SAFETY: as many elements of this queue's memory as were checked; the stream lives as long as the binding.
        unsafe { self.calls.reduce_scatter(at_from, at_to, to.len(), number, by, self.handle, self.binding.stream()) }
    }

    #[track_caller]
    fn enqueue_send<T: Message>(&self, peer: usize, from: &Slice<'_, T>) -> Result<()> {
        let (peer, at) = (self.member("send", peer)?, self.binding.input(from)?);
        let number = T::TYPE.number(self.binding.vendor());
        self.binding.enter()?;
        // SAFETY: this queue's memory; the stream lives as long as the binding.
        unsafe { self.calls.send(at, from.len(), number, peer, self.handle, self.binding.stream()) }
    }

    #[track_caller]
    fn enqueue_receive<T: Message>(&self, peer: usize, to: &SliceMut<'_, T>) -> Result<()> {
        let (peer, at) = (self.member("receive", peer)?, self.binding.output(to)?);
        let number = T::TYPE.number(self.binding.vendor());
        self.binding.enter()?;
        // SAFETY: this queue's memory; the stream lives as long as the binding.
        unsafe { self.calls.receive(at, to.len(), number, peer, self.handle, self.binding.stream()) }
    }

    fn choices<T: Message>(&self, by: Reduction) -> (Int, Int) {
        let vendor = self.binding.vendor();
        (T::TYPE.number(vendor), by.number(vendor))
    }

    #[track_caller]
    fn member(&self, call: &'static str, rank: usize) -> Result<Int> {
        ensure(call, rank < self.ranks, || format!("member {rank} of {}", self.ranks))?;
        int(call, "a member", rank)
    }

    /// The whole is one part for each member.
    #[track_caller]
    fn parts(&self, call: &'static str, part: usize, whole: usize) -> Result<()> {
        ensure(call, part.checked_mul(self.ranks) == Some(whole), || {
            format!("parts of {part} elements of {} members in {whole}", self.ranks)
        })
    }
}

#[track_caller]
fn same_length(call: &'static str, from: usize, to: usize) -> Result<()> {
    ensure(call, from == to, || format!("{from} elements into {to}"))
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Work under way uses the communicator; on a dead queue it will not end, and is called off.
        let is_done = self.binding.wait().is_ok();
        // SAFETY: a communicator that is destroyed once.
        let gone = unsafe { if is_done { self.calls.destroy(self.handle) } else { self.calls.abort(self.handle) } };
        report_late(&self.binding, gone);
    }
}
