//! One AQL queue in shared memory: a ring of packets, a write and a read index.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::QueueInfo;
use super::packet::{self, Body, INVALID, Packet};

/// Only compute queues hold AQL packets.
const COMPUTE_AQL: u32 = 2;

pub struct Queue {
    pub id: u64,
    aperture: u64,
    ring: u64,
    n_slots: u64,
    write_pointer: u64,
    read_pointer: u64,
    pub is_compute: bool,
    pub is_closing: AtomicBool,
    pub is_closed: AtomicBool,
    /// A hang on demand: nothing here moves any more.
    pub is_hung: AtomicBool,
    /// Packets done ahead of the read index.
    done: Mutex<BTreeSet<u64>>,
    /// Packets done that were no dispatches.
    n_others: AtomicU64,
}

impl Queue {
    pub fn new(id: u64, aperture: u64, info: &QueueInfo) -> Self {
        Queue {
            id,
            aperture,
            ring: info.ring_base,
            n_slots: (info.ring_bytes as u64 / packet::BYTES).max(1),
            write_pointer: info.write_pointer,
            read_pointer: info.read_pointer,
            is_compute: info.queue_type == COMPUTE_AQL,
            is_closing: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_hung: AtomicBool::new(false),
            done: Mutex::default(),
            n_others: AtomicU64::new(0),
        }
    }

    fn done(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A 64-bit cell of the queue in host memory.
    fn cell(&self, device_address: u64) -> &AtomicU64 {
        // SAFETY: libhsakmt registered these addresses for the life of the queue, they are 8-byte aligned fields of
        // its own structures, and the scheduler stops touching them before `destroy_queue` returns.
        unsafe { AtomicU64::from_ptr((self.aperture + device_address) as *mut u64) }
    }

    pub fn write_index(&self) -> u64 {
        self.cell(self.write_pointer).load(Ordering::Acquire)
    }

    fn read_index(&self) -> u64 {
        self.cell(self.read_pointer).load(Ordering::Acquire)
    }

    fn slot(&self, index: u64) -> u64 {
        self.ring + packet::BYTES * (index % self.n_slots)
    }

    fn packet(&self, index: u64) -> Option<Packet> {
        if index >= self.write_index() {
            return None;
        }
        let at = self.slot(index);
        let mut bytes = [0u8; packet::BYTES as usize];
        // The header is published last: its word is read first, with acquire order.
        for (n, part) in bytes.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&self.cell(at + 8 * n as u64).load(Ordering::Acquire).to_le_bytes());
        }
        Packet::parse(&bytes, at)
    }

    /// What may run now by the queue's own rules: the first packet, and after it dispatches with no barrier bit,
    /// which hardware may finish in any order.
    pub fn candidates(&self, may_overtake: bool) -> Vec<(u64, Packet)> {
        let mut found = Vec::new();
        if self.is_hung.load(Ordering::Relaxed) || self.is_closing.load(Ordering::Relaxed) {
            return found;
        }
        let done = self.done();
        let first = self.read_index();
        let mut index = first;
        while let Some(packet) = self.packet(index) {
            let is_dispatch = matches!(packet.body, Body::Dispatch { .. });
            if !found.is_empty() && (packet.has_barrier || !is_dispatch) {
                break;
            }
            if !done.contains(&index) {
                found.push((index, packet));
                if !is_dispatch {
                    break;
                }
            }
            if !may_overtake && !found.is_empty() {
                break;
            }
            index += 1;
        }
        found
    }

    /// How many dispatches stand before a candidate: other packets never run ahead of their turn, so that those before
    /// it are done.
    pub fn ordinal(&self, index: u64) -> u64 {
        index - self.n_others.load(Ordering::Relaxed)
    }

    /// Frees the slot and moves the read index over everything that is done.
    pub fn retire(&self, index: u64, is_dispatch: bool) {
        if !is_dispatch {
            self.n_others.fetch_add(1, Ordering::Relaxed);
        }
        let mut done = self.done();
        // Only the header goes back to "invalid"; the producer rewrites the rest.
        let header = self.cell(self.slot(index));
        let _ = header.fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| Some(w & !0xffff | INVALID as u64));
        done.insert(index);
        let mut read = self.read_index();
        while done.remove(&read) {
            read += 1;
        }
        self.cell(self.read_pointer).store(read, Ordering::Release);
    }
}
