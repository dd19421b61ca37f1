//! The memory plan: weights, KV pool, scratch and a reserve compared with the memory of a device, decided before
//! anything is allocated. Reading the machine and deciding are separate: [`decide`] is pure.
//!
//! A default context shrinks until it fits; one that was asked for is refused with the numbers.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::{self, Write};

use ::model::{BLOCK_TOKENS, DeviceChoice, MemoryPlan};
use serde_json::{Value as Json, json};

use crate::{Error, HostMemory, Result, human_bytes};

/// A context that had to shrink is at least this.
pub const MIN_CONTEXT: usize = 512;

/// What memory is, to the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryKind {
    /// Main memory, for a model on the CPU.
    Host,
    /// A card's own.
    Card,
    /// Main memory that an integrated GPU maps: everybody's.
    Shared,
}

/// What a device has, and which of the limits around it counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// The device, for people.
    pub device: String,
    /// Whose memory it is.
    pub kind: MemoryKind,
    /// All there is.
    pub total_bytes: u64,
    /// What may be taken now.
    pub usable_bytes: u64,
    /// What sets `usable_bytes`.
    pub bound: Cow<'static, str>,
    /// Everything that was read, by name.
    pub limits: Vec<(Cow<'static, str>, u64)>,
}

/// A plan that fits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryFit {
    /// What there is; `None` where the system does not say.
    pub room: Option<DeviceMemory>,
    /// What the model takes of it.
    pub memory: MemoryPlan,
    /// What is left to others.
    pub reserve_bytes: u64,
    /// Tokens that one sequence can hold.
    pub n_ctx: usize,
    /// The context it would have had with more memory.
    pub shrunk_from: Option<usize>,
}

/// The context that is wanted, and whether less will do.
#[derive(Debug, Clone, Copy)]
pub enum WantedContext {
    /// This many tokens, or an error.
    Asked(usize),
    /// Fewer if memory is short.
    AtMost(usize),
}

impl DeviceMemory {
    /// Reads what there is where the model will live; `None` where the system does not say.
    pub fn read(choice: DeviceChoice) -> Result<Option<Self>> {
        let DeviceChoice::Gpu { vendor, ordinal } = choice else {
            return Ok(HostMemory::read().map(|memory| Self {
                device: "cpu".to_owned(),
                kind: MemoryKind::Host,
                total_bytes: memory.total_bytes,
                usable_bytes: memory.available_bytes,
                bound: "available memory".into(),
                limits: vec![("available memory".into(), memory.available_bytes)],
            }));
        };
        let device = gpu::Device::open(vendor, ordinal)?;
        let budget = gpu::Budget::read(&device)?;
        let kind = if device.properties().is_integrated { MemoryKind::Shared } else { MemoryKind::Card };
        Ok(Some(Self::of_budget(device.label().to_owned(), kind, &budget)))
    }

    /// What is left beside something that has not touched its memory yet.
    pub fn beside(mut self, n_bytes: u64) -> Self {
        if n_bytes > 0 {
            self.usable_bytes = self.usable_bytes.saturating_sub(n_bytes);
            self.limits.push(("taken by the draft model".into(), n_bytes));
        }
        self
    }

    fn of_budget(device: String, kind: MemoryKind, budget: &gpu::Budget) -> Self {
        let mut limits = vec![("free on the device".into(), budget.device.free_bytes as u64)];
        if kind == MemoryKind::Shared {
            let gtt = budget.gtt.map(|gtt| gtt.total_bytes.saturating_sub(gtt.used_bytes));
            let others = [
                ("free GTT", gtt),
                ("MemAvailable", budget.host.available_bytes),
                ("left in the cgroup", budget.host.cgroup_left_bytes),
            ];
            limits.extend(others.into_iter().filter_map(|(name, bytes)| Some((name.into(), bytes? as u64))));
        }
        let bound = match budget.bound {
            gpu::Bound::DeviceFree => "free on the device",
            gpu::Bound::Gtt => "free GTT",
            gpu::Bound::MemAvailable => "MemAvailable",
            gpu::Bound::Cgroup => "left in the cgroup",
        };
        let bound = bound.into();
        // Of memory that is shared, the GTT may be more than the carve-out that the driver calls total.
        let total = budget.device.total_bytes.max(budget.gtt.map_or(0, |gtt| gtt.total_bytes));
        Self { device, kind, total_bytes: total as u64, usable_bytes: budget.usable_bytes as u64, bound, limits }
    }

    /// Left to others: the desktop, other programs, and what the driver takes for code and its libraries.
    pub fn reserve_bytes(&self) -> u64 {
        const MB: u64 = 1 << 20;
        match self.kind {
            MemoryKind::Host => 200 * MB,
            MemoryKind::Card => 256 * MB + self.total_bytes / 50,
            MemoryKind::Shared => (512 * MB).max(self.total_bytes / 20),
        }
    }
}

/// The largest context that fits, up to what is wanted. `plan` says what a context takes; more tokens take more.
pub fn decide(
    room: Option<DeviceMemory>,
    context: WantedContext,
    plan: &dyn Fn(usize) -> Result<MemoryPlan>,
) -> Result<MemoryFit> {
    let (WantedContext::Asked(wanted) | WantedContext::AtMost(wanted)) = context;
    let reserve_bytes = room.as_ref().map_or(0, DeviceMemory::reserve_bytes);
    let fits = |memory: &MemoryPlan| match &room {
        Some(room) => (memory.total_bytes() as u64).saturating_add(reserve_bytes) <= room.usable_bytes,
        None => true,
    };
    let memory = plan(wanted)?;
    if fits(&memory) {
        return Ok(MemoryFit { room, memory, reserve_bytes, n_ctx: wanted, shrunk_from: None });
    }
    // In whole blocks: `low` fits, `high` does not.
    let (mut low, mut high) = (MIN_CONTEXT / BLOCK_TOKENS, wanted.div_ceil(BLOCK_TOKENS));
    let may_shrink = matches!(context, WantedContext::AtMost(_)) && low < high;
    if !may_shrink || !fits(&plan(low * BLOCK_TOKENS)?) {
        let n_ctx = if may_shrink { low * BLOCK_TOKENS } else { wanted };
        let memory = plan(n_ctx)?;
        return Err(Error::DoesNotFit(Box::new(NoRoom { room, memory, reserve_bytes, n_ctx })));
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(&plan(middle * BLOCK_TOKENS)?) {
            low = middle;
        } else {
            high = middle;
        }
    }
    let n_ctx = low * BLOCK_TOKENS;
    let memory = plan(n_ctx)?;
    Ok(MemoryFit { room, memory, reserve_bytes, n_ctx, shrunk_from: Some(wanted) })
}

/// Why a model does not fit, with the numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct NoRoom {
    /// What there is; `None` where the system does not say.
    pub room: Option<DeviceMemory>,
    /// What was asked of it.
    pub memory: MemoryPlan,
    /// What is left to others.
    pub reserve_bytes: u64,
    /// The context that was tried: what was asked for, or the smallest that makes sense.
    pub n_ctx: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usable, bound, device) = self
            .room
            .as_ref()
            .map_or((0, "memory", ""), |room| (room.usable_bytes, &*room.bound, room.device.as_str()));
        let others = [("states", self.memory.state_bytes), ("adapters", self.memory.adapter_bytes)];
        let others = others.into_iter().filter(|(_, n)| *n > 0);
        let others: String = others.map(|(name, n)| format!(" + {name} {}", human_bytes(n as u64))).collect();
        write!(
            f,
            "the model does not fit: weights {} + keys and values {} (context of {}) + scratch {}{} + reserve {} of {} \
             {bound} ({device})",
            human_bytes(self.memory.weights_bytes as u64),
            human_bytes(self.memory.kv_bytes as u64),
            self.n_ctx,
            human_bytes(self.memory.scratch_bytes as u64),
            others,
            human_bytes(self.reserve_bytes),
            human_bytes(usable),
        )
    }
}

impl std::error::Error for NoRoom {}

impl MemoryFit {
    /// What is left after the plan and the reserve; `None` where the system does not say what there is.
    pub fn free_bytes(&self) -> Option<u64> {
        let room = self.room.as_ref()?;
        Some(room.usable_bytes.saturating_sub(self.memory.total_bytes() as u64).saturating_sub(self.reserve_bytes))
    }

    /// A line for each part, for people.
    pub fn lines(&self, n_pool_tokens: usize, kv_type: &str) -> String {
        let bytes = |n: u64| format!("{:>8}", human_bytes(n));
        let is_one = n_pool_tokens.div_ceil(BLOCK_TOKENS) <= self.n_ctx.div_ceil(BLOCK_TOKENS);
        let many = if is_one { String::new() } else { format!(" ({n_pool_tokens} tokens shared by all requests)") };
        let shrunk = match self.shrunk_from {
            Some(wanted) => format!(", shrunk from {wanted} to fit"),
            None => String::new(),
        };
        let mut out = String::new();
        let device = self.room.as_ref().map_or("this machine", |room| &room.device);
        let _ = writeln!(out, "memory plan for {device}");
        let MemoryPlan { weights_bytes, stored_bytes, .. } = self.memory;
        let _ = write!(out, "  weights  {}", bytes(weights_bytes as u64));
        // A type whose blocks are rearranged for this machine's products.
        if weights_bytes > stored_bytes.saturating_add(stored_bytes / 16) {
            let _ = write!(out, "  laid out for this machine; {} in the file", human_bytes(stored_bytes as u64));
        }
        out.push('\n');
        let kv = bytes(self.memory.kv_bytes as u64);
        let _ = writeln!(out, "  KV pool  {kv}  context of {}{many}, {kv_type}{shrunk}", self.n_ctx);
        if self.memory.state_bytes > 0 {
            let states = bytes(self.memory.state_bytes as u64);
            let _ = writeln!(out, "  states   {states}  of recurrent layers, with checkpoints for prompts that go on");
        }
        let _ = writeln!(out, "  scratch  {}", bytes(self.memory.scratch_bytes as u64));
        if self.memory.adapter_bytes > 0 {
            let _ = writeln!(out, "  adapters {}", bytes(self.memory.adapter_bytes as u64));
        }
        if let (Some(room), Some(free)) = (&self.room, self.free_bytes()) {
            let others =
                if room.kind == MemoryKind::Card { "the desktop, other programs and the driver" } else { "others" };
            let _ = writeln!(out, "  reserve  {}  for {others}", bytes(self.reserve_bytes));
            let (usable, total) = (human_bytes(room.usable_bytes), human_bytes(room.total_bytes));
            let _ = write!(out, "  free     {}  of {usable} {} ({total} in all)", bytes(free), room.bound);
            if room.limits.len() > 1 {
                let limits: Vec<String> =
                    room.limits.iter().map(|(name, n)| format!("{} {name}", human_bytes(*n))).collect();
                let _ = write!(out, "\n  limits   {}", limits.join(", "));
            }
        }
        out
    }

    /// The same for programs.
    pub fn json(&self) -> Json {
        let room = self.room.as_ref().map(|room| {
            json!({"device": room.device, "total_bytes": room.total_bytes, "usable_bytes": room.usable_bytes,
                   "bound": room.bound,
                   "limits": room.limits.iter().map(|(name, n)| json!({"name": name, "bytes": n})).collect::<Vec<_>>()})
        });
        json!({"weights_bytes": self.memory.weights_bytes, "kv_bytes": self.memory.kv_bytes,
               "state_bytes": self.memory.state_bytes, "adapter_bytes": self.memory.adapter_bytes,
               "scratch_bytes": self.memory.scratch_bytes, "reserve_bytes": self.reserve_bytes,
               "free_bytes": self.free_bytes(), "context": self.n_ctx, "shrunk_from": self.shrunk_from, "room": room})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

    fn room(kind: MemoryKind, usable: u64) -> Option<DeviceMemory> {
        let limits = vec![("free on the device".into(), usable)];
        let bound = "free on the device".into();
        Some(DeviceMemory { device: "card".into(), kind, total_bytes: 16 * GB, usable_bytes: usable, bound, limits })
    }

    /// 4 GB of weights, 1 MB a token, 1 GB of scratch.
    fn plan(n_ctx: usize) -> Result<MemoryPlan> {
        let gb = GB as usize;
        Ok(MemoryPlan {
            weights_bytes: 4 * gb,
            stored_bytes: 4 * gb,
            kv_bytes: n_ctx << 20,
            state_bytes: 0,
            scratch_bytes: gb,
            adapter_bytes: 0,
        })
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        let fit = decide(room(MemoryKind::Card, 15 * GB), WantedContext::AtMost(8192), &plan).unwrap();
        assert_eq!((fit.n_ctx, fit.shrunk_from), (8192, None));
        // 256 MB and a fiftieth of 16 GB.
        assert_eq!(fit.reserve_bytes, (256 << 20) + 16 * GB / 50);
        assert_eq!(fit.free_bytes(), Some(15 * GB - 13 * GB - fit.reserve_bytes));
    }

    #[test]
    fn a_context_nobody_asked_for_shrinks_to_the_last_block_that_fits() {
        let fit = decide(room(MemoryKind::Card, 8 * GB), WantedContext::AtMost(8192), &plan).unwrap();
        let left = 8 * GB - 5 * GB - fit.reserve_bytes;
        let expected = (left >> 20) as usize / BLOCK_TOKENS * BLOCK_TOKENS;
        assert_eq!((fit.n_ctx, fit.shrunk_from), (expected, Some(8192)));
        assert!(fit.free_bytes().unwrap() < (BLOCK_TOKENS << 20) as u64);
        assert!(fit.lines(0, "f16").contains("shrunk from 8192"));
    }

    #[test]
    fn what_was_asked_for_is_refused_with_the_numbers() {
        let error = decide(room(MemoryKind::Card, 8 * GB), WantedContext::Asked(8192), &plan).unwrap_err();
        assert!(matches!(&error, Error::DoesNotFit(why) if why.n_ctx == 8192));
        let text = error.to_string();
        for part in ["weights 4.29 GB", "keys and values 8.59 GB", "context of 8192", "of 8.59 GB"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let error = decide(room(MemoryKind::Card, 5 * GB), WantedContext::AtMost(8192), &plan).unwrap_err();
        assert!(error.to_string().contains("context of 512"), "{error}");
    }

    #[test]
    fn shared_memory_keeps_more_for_others() {
        let bytes = |kind| room(kind, GB).unwrap().reserve_bytes();
        assert!(
            bytes(MemoryKind::Shared) > bytes(MemoryKind::Card) && bytes(MemoryKind::Card) > bytes(MemoryKind::Host)
        );
    }

    #[test]
    fn an_apu_shows_every_limit_and_the_one_that_counts() {
        let memory = gpu::Memory { free_bytes: GB as usize, total_bytes: 2 * GB as usize };
        let gtt = gpu::Gtt { total_bytes: 30 * GB as usize, used_bytes: 2 * GB as usize };
        let host =
            gpu::SystemMemory { available_bytes: Some(20 * GB as usize), cgroup_left_bytes: Some(12 * GB as usize) };
        let budget = gpu::Budget::decide(true, memory, Some(gtt), host);
        let room = DeviceMemory::of_budget("apu".into(), MemoryKind::Shared, &budget);
        assert_eq!((room.usable_bytes, &*room.bound, room.total_bytes), (12 * GB, "left in the cgroup", 30 * GB));
        let fit = decide(Some(room), WantedContext::AtMost(16384), &plan).unwrap();
        let lines = fit.lines(0, "f16");
        for part in ["free GTT", "MemAvailable", "left in the cgroup", "free on the device"] {
            assert!(lines.contains(part), "{part}: {lines}");
        }
        assert!(fit.memory.total_bytes() as u64 + fit.reserve_bytes <= 12 * GB);
    }

    #[test]
    fn nothing_known_is_nothing_refused() {
        let fit = decide(None, WantedContext::Asked(1 << 20), &plan).unwrap();
        assert_eq!((fit.n_ctx, fit.reserve_bytes, fit.free_bytes()), (1 << 20, 0, None));
    }
}
