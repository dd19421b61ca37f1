//! Copies blocks and states between the model's pools and the store that keeps them elsewhere. The scheduler says what
//! leaves the pool and what a sequence needs back. A block is copied out only before the step that overwrites it, so no
//! step copies more than it computes. Blocks are copied in piece by piece, and other sequences compute in between.
//!
//! Nothing here can fail a request: what cannot be copied is computed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use batch::{BLOCK_TOKENS, CacheBytes, CachePlace, CopyTicket};
use kept::{BlockStore, Entry, SessionFile, SessionWriter};

use crate::{
    engine::Engine,
    protocol::{Kept, Submit},
    scheduler::{RestorePlan, Spill, StepPlan},
};

/// Bytes that are copied in or out between two steps, beyond what a step overwrites.
const BYTES_AT_ONCE: usize = 64 << 20;
/// When the engine ends, unused blocks are written to disk for at most this long.
const TIME_TO_SAVE: Duration = Duration::from_secs(3);

pub(crate) struct Keeper {
    store: BlockStore,
    bytes: CacheBytes,
    /// Blocks of both pools that somebody else has by now, and that no step has overwritten yet.
    leaving: HashMap<CachePlace, Entry>,
    /// States of which the same holds: the next step overwrites them.
    leaving_states: Vec<Spill>,
    /// Copies out that the model makes, oldest first.
    copies: VecDeque<(CopyTicket, Vec<Entry>)>,
    /// What the pool alone has, and the disk does not; known while the engine rests.
    unsaved: Option<VecDeque<Spill>>,
}

/// Whether there is more to save.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Saving {
    Done,
    More,
    /// The disk must catch up first.
    Later,
}

impl Keeper {
    pub fn new(store: BlockStore, bytes: CacheBytes) -> Self {
        let (leaving, leaving_states, copies, unsaved) = Default::default();
        Self { store, bytes, leaving, leaving_states, copies, unsaved }
    }

    pub fn store(&self) -> &BlockStore {
        &self.store
    }

    pub fn stats(&self) -> Kept {
        Kept { counters: self.store.counters(), sizes: self.store.sizes() }
    }

    fn n_at_once(&self) -> usize {
        (BYTES_AT_ONCE / self.bytes.block.max(self.bytes.window).max(1)).max(1)
    }
}

impl Engine {
    /// A plan was made: what it pushes out of the pool is worth a copy, or is forgotten.
    pub(crate) fn note_spills(&mut self) {
        let (Some(keeper), Some(kept)) = (&mut self.keeper, self.scheduler.kept()) else { return };
        keeper.unsaved = None;
        for spill in kept.take_spills() {
            let name = spill.entry.name;
            if !keeper.store.wants(&name, keeper.bytes.of(spill.place)) {
                if !keeper.store.contains(&name) {
                    kept.remove(&name);
                }
                continue;
            }
            match spill.place {
                CachePlace::Block(_) | CachePlace::Window(_) => drop(keeper.leaving.insert(spill.place, spill.entry)),
                CachePlace::State(_) => keeper.leaving_states.push(spill),
            }
        }
    }

    /// Copies out what this step overwrites.
    pub(crate) fn spill_before(&mut self, plan: &StepPlan) -> Result<(), String> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        let mut spills = std::mem::take(&mut keeper.leaving_states);
        for chunk in &plan.chunks {
            let Some(seq) = self.scheduler.get(chunk.seq) else { continue };
            let written = chunk.first / BLOCK_TOKENS..chunk.end().div_ceil(BLOCK_TOKENS);
            let windows = written.clone().filter_map(|idx| seq.windows.get(idx)).map(CachePlace::Window);
            for place in seq.blocks[written].iter().map(|block| CachePlace::Block(*block)).chain(windows) {
                let leaving = keeper.leaving.remove(&place);
                spills.extend(leaving.map(|entry| Spill { place, entry }));
            }
        }
        self.copy_out(spills)
    }

    fn copy_out(&mut self, spills: Vec<Spill>) -> Result<(), String> {
        let Some(keeper) = self.keeper.as_mut().filter(|_| !spills.is_empty()) else { return Ok(()) };
        let places: Vec<CachePlace> = spills.iter().map(|spill| spill.place).collect();
        match self.model.copy_out(&places) {
            Ok(ticket) => {
                keeper.copies.push_back((ticket, spills.into_iter().map(|spill| spill.entry).collect()));
                Ok(())
            }
            Err(_) => self.stop_keeping(),
        }
    }

    /// Puts the copies that were queued into the store.
    pub(crate) fn collect_copies(&mut self) -> Result<(), String> {
        while let Some((ticket, entries)) = self.keeper.as_mut().and_then(|keeper| keeper.copies.pop_front()) {
            let copied = self.model.copied(ticket);
            let (Some(keeper), Ok(pieces)) = (&mut self.keeper, copied) else { return self.stop_keeping() };
            for (entry, bytes) in entries.into_iter().zip(pieces) {
                keeper.store.put(entry, bytes);
            }
        }
        self.forget_lost();
        Ok(())
    }

    fn forget_lost(&mut self) {
        let (Some(keeper), Some(kept)) = (&mut self.keeper, self.scheduler.kept()) else { return };
        keeper.store.take_lost().iter().for_each(|name| kept.remove(name));
    }

    /// Goes on copying in what running sequences begin with, a piece at a time.
    pub(crate) fn restore(&mut self) -> Result<(), String> {
        self.collect_copies()?;
        let Some(keeper) = &self.keeper else { return Ok(()) };
        let Some(plan) = self.scheduler.next_restore(keeper.n_at_once()) else { return Ok(()) };
        let names: HashSet<_> = plan.blocks.iter().chain(&plan.windows).map(|(_, entry)| entry.name).collect();
        self.spill_where(|_, entry| names.contains(&entry.name))?;
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        let wanted = plan.blocks.iter().map(|(block, entry)| (CachePlace::Block(*block), entry));
        let windows = plan.windows.iter().map(|(window, entry)| (CachePlace::Window(*window), entry));
        let wanted = wanted.chain(windows);
        let wanted = wanted.chain(plan.state.iter().map(|(slot, entry)| (CachePlace::State(*slot), entry)));
        let n_wanted = plan.blocks.len() + plan.windows.len() + usize::from(plan.state.is_some());
        let mut pieces: Vec<(CachePlace, Vec<u8>)> = Vec::with_capacity(n_wanted);
        for (place, entry) in wanted {
            let Some(bytes) = keeper.store.take(entry, keeper.bytes.of(place)) else { break };
            pieces.push((place, bytes));
        }
        self.forget_lost();
        // After that, so that what comes back has made room for what goes.
        let targets: HashSet<_> = pieces.iter().map(|(place, _)| *place).collect();
        self.spill_where(|place, _| targets.contains(place))?;
        let borrowed: Vec<(CachePlace, &[u8])> =
            pieces.iter().map(|(place, bytes)| (*place, bytes.as_slice())).collect();
        if self.model.copy_in(&borrowed).is_err() {
            return self.stop_keeping();
        }
        if pieces.len() == n_wanted {
            self.scheduler.restored(&plan);
            return Ok(());
        }
        // What came before the missing piece is in the pool now and need not be computed.
        let (n_blocks, n_windows) =
            (pieces.len().min(plan.blocks.len()), pieces.len().saturating_sub(plan.blocks.len()));
        let (blocks, windows) = (plan.blocks[..n_blocks].to_vec(), plan.windows[..n_windows].to_vec());
        let found = RestorePlan { blocks, windows, state: None, ..plan };
        self.scheduler.restored(&found);
        self.scheduler.restore_failed(found.seq);
        Ok(())
    }

    /// Copies out the blocks of which this holds, and the states that are about to be overwritten.
    fn spill_where(&mut self, is_due: impl Fn(&CachePlace, &Entry) -> bool) -> Result<(), String> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        let mut spills = std::mem::take(&mut keeper.leaving_states);
        let due = keeper.leaving.extract_if(|place, entry| is_due(place, entry));
        spills.extend(due.map(|(place, entry)| Spill { place, entry }));
        self.copy_out(spills)?;
        self.collect_copies()
    }

    /// Copies fail: from now on everything is computed. An error is the end of the device.
    fn stop_keeping(&mut self) -> Result<(), String> {
        self.keeper = None;
        self.scheduler.stop_keeping();
        self.model.fault().map_or(Ok(()), Err)
    }

    /// While there is nothing else to do: writes a piece of what the pool alone has to disk, so that the next process finds
    /// it.
    pub(crate) fn save_some(&mut self) -> Saving {
        if self.collect_copies().is_err() {
            return Saving::Done;
        }
        let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.store.has_disk()) else { return Saving::Done };
        let scheduler = &self.scheduler;
        let unsaved = keeper.unsaved.get_or_insert_with(|| scheduler.idle_places().into());
        let (mut spills, mut n_bytes) = (Vec::new(), 0);
        while let Some(spill) = unsaved.front().filter(|_| n_bytes < BYTES_AT_ONCE) {
            let size = keeper.bytes.of(spill.place);
            if keeper.store.wants_copy(&spill.entry.name, n_bytes + size) {
                n_bytes += size;
                spills.push(*spill);
            } else if keeper.store.wants_copy(&spill.entry.name, 0) {
                // Too much waits to be written.
                break;
            }
            unsaved.pop_front();
        }
        let is_last = unsaved.is_empty();
        if spills.is_empty() {
            return match is_last {
                true if keeper.store.save_host(BYTES_AT_ONCE) => Saving::More,
                true => Saving::Done,
                false => Saving::Later,
            };
        }
        let places: Vec<CachePlace> = spills.iter().map(|spill| spill.place).collect();
        let copied = self.model.copy_out(&places).and_then(|ticket| self.model.copied(ticket));
        let Ok(pieces) = copied else {
            let _ = self.stop_keeping();
            return Saving::Done;
        };
        for (spill, bytes) in spills.iter().zip(pieces) {
            keeper.store.put_on_disk(spill.entry, bytes);
            self.scheduler.kept().into_iter().for_each(|kept| kept.insert(spill.entry.name));
        }
        self.forget_lost();
        Saving::More
    }

    /// Before the engine ends.
    pub(crate) fn save_the_rest(&mut self) {
        let until = Instant::now() + TIME_TO_SAVE;
        let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.store.has_disk()) else { return };
        keeper.unsaved = None;
        let leaving = keeper.leaving.drain().map(|(place, entry)| Spill { place, entry });
        let mut spills: Vec<Spill> = leaving.collect();
        spills.append(&mut keeper.leaving_states);
        if self.copy_out(spills).is_err() {
            return;
        }
        while Instant::now() < until {
            match self.save_some() {
                Saving::Done => return,
                Saving::More => {}
                Saving::Later => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Writes what the pool has of a text to a session file.
    pub(crate) fn write_session(&mut self, session: &SessionFile, submit: &Submit) -> Result<(), String> {
        let Some(keeper) = &self.keeper else { return Err("this engine was started without a session".into()) };
        let describe = |error: kept::Error| error.to_string();
        let mut writer = SessionWriter::create(session, keeper.store.identity()).map_err(describe)?;
        let adapter = submit.adapter.as_ref().map(|adapter| adapter.id);
        let places = self.scheduler.places_of(adapter, &submit.prompt);
        for spills in places.chunks(keeper.n_at_once()) {
            let places: Vec<CachePlace> = spills.iter().map(|spill| spill.place).collect();
            let copied = self.model.copy_out(&places).and_then(|ticket| self.model.copied(ticket));
            let pieces = copied.map_err(|error| format!("the context cannot be copied: {error}"))?;
            for (spill, bytes) in spills.iter().zip(pieces) {
                writer.put(&spill.entry, &bytes).map_err(describe)?;
            }
        }
        writer.finish().map_err(describe)
    }
}
