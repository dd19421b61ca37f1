//! Calls that belong together: of several members in one thread, or sends and receives that wait for each other.

use std::cell::Cell;
use std::marker::PhantomData;

use gpu::{Slice, SliceMut, Vendor};

use super::{Calls, Communicator, Message, Reduction};
use crate::error::{Result, ensure};

thread_local! {
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
}

/// In a group the library remembers a call and makes it at the group's end, when a borrowed buffer may be gone: the
/// functions of [`Group`] borrow until then, those of [`Communicator`] do not.
#[track_caller]
pub(super) fn refuse_inside(call: &'static str) -> Result<()> {
    ensure(call, !IS_OPEN.get(), || "inside a group; use the group's own functions".into())
}

/// Calls of a group; see [`group`]. Each function is the communicator's of the same name.
pub struct Group<'scope, 'env: 'scope> {
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Makes the calls of `body` together: none of them waits for another one on the host or on the device. What they
/// work on is borrowed until the group has ended.
///
/// After an error of `body` the calls before it are made all the same, and may wait for members whose calls are
/// missing: drop the communicators then.
#[track_caller]
pub fn group<'env, R>(
    vendor: Vendor,
    body: impl for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<R>,
) -> Result<R> {
    /// Ends the group once, also when `body` panics.
    struct End(&'static Calls);
    impl Drop for End {
        fn drop(&mut self) {
            if IS_OPEN.replace(false) {
                // SAFETY: the group that was started below; a panic hides its result.
                let _ = unsafe { self.0.group_end() };
            }
        }
    }
    refuse_inside("group")?;
    let calls = Calls::get(vendor)?;
    // SAFETY: no preconditions.
    unsafe { calls.group_start() }?;
    IS_OPEN.set(true);
    let end = End(calls);
    let result = body(&Group { scope: PhantomData, env: PhantomData });
    IS_OPEN.set(false);
    // SAFETY: the group that was started above; everything that its calls work on is borrowed for 'env.
    let ended = unsafe { calls.group_end() };
    drop(end);
    let value = result?;
    ended.map(|()| value)
}

impl<'env> Group<'_, 'env> {
    #[track_caller]
    pub fn all_reduce<T: Message>(
        &self,
        by: &'env Communicator,
        reduction: Reduction,
        from: Slice<'env, T>,
        to: SliceMut<'env, T>,
    ) -> Result<()> {
        by.enqueue_all_reduce(reduction, &from, &to)
    }

    #[track_caller]
    pub fn all_reduce_in_place<T: Message>(
        &self,
        by: &'env Communicator,
        reduction: Reduction,
        data: SliceMut<'env, T>,
    ) -> Result<()> {
        by.enqueue_all_reduce_in_place(reduction, &data)
    }

    #[track_caller]
    pub fn reduce<T: Message>(
        &self,
        by: &'env Communicator,
        reduction: Reduction,
        root: usize,
        from: Slice<'env, T>,
        to: SliceMut<'env, T>,
    ) -> Result<()> {
        by.enqueue_reduce(reduction, root, &from, &to)
    }

    #[track_caller]
    pub fn broadcast<T: Message>(&self, by: &'env Communicator, root: usize, data: SliceMut<'env, T>) -> Result<()> {
        by.enqueue_broadcast(root, &data)
    }

    #[track_caller]
    pub fn all_gather<T: Message>(
        &self,
        by: &'env Communicator,
        from: Slice<'env, T>,
        to: SliceMut<'env, T>,
    ) -> Result<()> {
        by.enqueue_all_gather(&from, &to)
    }

    #[track_caller]
    pub fn reduce_scatter<T: Message>(
        &self,
        by: &'env Communicator,
        reduction: Reduction,
        from: Slice<'env, T>,
        to: SliceMut<'env, T>,
    ) -> Result<()> {
        by.enqueue_reduce_scatter(reduction, &from, &to)
    }

    #[track_caller]
    pub fn send<T: Message>(&self, by: &'env Communicator, peer: usize, from: Slice<'env, T>) -> Result<()> {
        by.enqueue_send(peer, &from)
    }

    #[track_caller]
    pub fn receive<T: Message>(&self, by: &'env Communicator, peer: usize, to: SliceMut<'env, T>) -> Result<()> {
        by.enqueue_receive(peer, &to)
    }
}
