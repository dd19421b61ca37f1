//! A captured piece of work, replayed with one call.
//!
//! A graph owns its argument blobs and keeps the memory its nodes touch: some drivers hold pointers to
//! captured arguments, and a freed buffer would be written on replay. State that changes between
//! replays lives in buffers at fixed addresses and is uploaded before the replay.

use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::launcher::{Launcher, Tape};
use crate::queue::Core;
use crate::raw;
use crate::shared::QueueShared;
use crate::vendor::CAPTURE_THREAD_LOCAL;

/// A captured sequence of launches and copies that one call repeats.
pub struct Graph {
    shared: Arc<QueueShared>,
    exec: raw::GraphExec,
    n_nodes: usize,
    /// Held, never read: see the top of this file.
    tape: Option<Tape>,
}

/// Ends the capture on every way out, a panic in the caller's closure included.
struct Recording<'a> {
    shared: &'a QueueShared,
    is_open: bool,
}

impl Recording<'_> {
    fn end(&mut self) -> (crate::driver::Reply<i32>, raw::Graph) {
        self.is_open = false;
        let mut graph = raw::Graph::NULL;
        // SAFETY: the capture was begun on this stream by this thread and not ended yet.
        let reply = unsafe { self.shared.driver().capture_end(self.shared.stream, &mut graph) };
        self.shared.capturing.store(false, Ordering::Relaxed);
        (reply, graph)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let (_, graph) = self.end();
            destroy(self.shared, graph);
        }
        self.shared.release_deferred();
    }
}

fn destroy(shared: &QueueShared, graph: raw::Graph) {
    if graph != raw::Graph::NULL {
        // SAFETY: made by `capture_end`, destroyed once; executables made from it stand on their own.
        let _ = unsafe { shared.driver().graph_destroy(graph) };
    }
}

impl Graph {
    #[track_caller]
    pub(crate) fn capture<E: From<Error>>(
        core: &Core,
        record: impl FnOnce(&Launcher<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let shared = &core.shared;
        let driver = shared.ready_outside_capture("a capture")?;
        // SAFETY: a live stream that is not capturing. Thread-local mode: other threads may allocate.
        shared.judge(unsafe { driver.capture_begin(shared.stream, CAPTURE_THREAD_LOCAL) })?;
        shared.capturing.store(true, Ordering::Relaxed);
        let mut recording = Recording { shared, is_open: true };
        let tape = RefCell::new(Tape::default());
        let recorded = record(&Launcher::capturing(core, &tape));
        let (reply, graph) = recording.end();
        drop(recording);
        // The closure's own error says more than the broken capture that followed from it.
        if let Err(error) = recorded {
            destroy(shared, graph);
            return Err(error);
        }
        shared.judge(reply)?;
        let built = Self::instantiate(shared, graph, tape.into_inner());
        destroy(shared, graph);
        Ok(built?)
    }

    #[track_caller]
    fn instantiate(shared: &Arc<QueueShared>, graph: raw::Graph, tape: Tape) -> Result<Self> {
        let driver = shared.ready()?;
        let mut n_nodes = 0usize;
        // SAFETY: a live graph; a null array asks for the count alone.
        shared.judge(unsafe { driver.graph_nodes(graph, std::ptr::null_mut(), &mut n_nodes) })?;
        if n_nodes == 0 {
            return Err(Error::Capture { why: "nothing was enqueued".into(), at: Location::caller() });
        }
        let mut exec = raw::GraphExec::NULL;
        // SAFETY: a live graph and a valid out pointer.
        shared.judge(unsafe { driver.graph_instantiate(&mut exec, graph, 0) })?;
        Ok(Self { shared: shared.clone(), exec, n_nodes, tape: Some(tape) })
    }

    /// Enqueue the whole graph.
    #[track_caller]
    pub(crate) fn replay(&self, core: &Core) -> Result<()> {
        if core.shared.id != self.shared.id {
            let (owner, user) = (self.shared.id.0, core.shared.id.0);
            return Err(Error::Foreign { what: "a graph", owner, user, at: Location::caller() });
        }
        let driver = self.shared.ready_outside_capture("a replay")?;
        // SAFETY: a live executable on the queue whose memory it names; the tape keeps that memory.
        self.shared.judge(unsafe { driver.graph_launch(self.exec, self.shared.stream) })?;
        if core.hooks.borrow().is_debug_sync {
            self.shared.wait_so_far("a graph replay")?;
        }
        Ok(())
    }

    /// Launches, copies and fills in it.
    pub fn n_nodes(&self) -> usize {
        self.n_nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.shared.wait_so_far("the last replay of a graph").is_ok() {
            // SAFETY: its last replay is over; destroyed once.
            let _ = unsafe { self.shared.driver().graph_exec_destroy(self.exec) };
        } else if let Some(tape) = self.tape.take() {
            // The device may still read the blobs and write the memory.
            let bytes = tape.memory.iter().map(|allocation| allocation.bytes).sum();
            self.shared.leak("a graph and the memory it names", bytes);
            std::mem::forget(tape);
        }
    }
}
