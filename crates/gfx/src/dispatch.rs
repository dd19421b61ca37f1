//! Runs a grid: workgroups over the pool's threads, the waves of a workgroup in turns up to each barrier.
//!
//! Waves run one after another between barriers and take turns when one spins, so a kernel that waits for another wave
//! of its workgroup ends; one that waits for another workgroup may not, and the instruction limit says so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Cause, Error, Fault};
use crate::exec::relative::{self, INDEXED};
use crate::exec::wave::fault;
use crate::exec::{Class, Counters, FIX_BEFORE, FIX_RESULT, Flow, Group, Inst, Wave, finish, prepare};
use crate::isa::{Family, code};
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::program::Program;
use crate::sanitize::LdsShadow;

/// What a launch asks for, in work-items as an AQL packet counts them.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub grid: [u32; 3],
    pub workgroup: [u32; 3],
    pub kernarg: u64,
    /// Device address of the dispatch packet.
    pub packet: u64,
    /// Static plus dynamic LDS, and private bytes, as the packet asks; the kernel's own needs are a floor.
    pub lds_bytes: u32,
    pub private_bytes: u32,
    pub dispatch_id: u64,
}

/// Limits and checks of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub n_threads: usize,
    /// Report reads of unwritten memory and LDS races.
    pub is_checked: bool,
    /// Instructions one wave may run before it counts as endless.
    pub max_instructions: u64,
}

impl Default for Options {
    fn default() -> Self {
        let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Options { n_threads, is_checked: false, max_instructions: 2_000_000_000 }
    }
}

/// A turn: long enough to be free, short enough that a spinning wave lets the others on.
const TURN: u64 = 1 << 20;

struct Run<const N: usize> {
    kernel: Arc<Kernel<N>>,
    program: Arc<Program<N>>,
    memory: Arc<Memory>,
    launch: Launch,
    options: Options,
    n_groups: [u64; 3],
    next: AtomicU64,
    is_stopped: AtomicBool,
    outcome: Mutex<(Counters, Option<Fault>)>,
}

/// Executes a launch to its end, or to its first fault.
pub fn dispatch<const N: usize>(
    kernel: Arc<Kernel<N>>,
    memory: Arc<Memory>,
    launch: Launch,
    options: Options,
    pool: &Pool,
) -> Result<Counters, Error> {
    let refuse = |what: String| Err(Error::Launch { kernel: kernel.name.clone(), what });
    if launch.grid.contains(&0) || launch.workgroup.contains(&0) {
        return refuse(format!("empty grid {:?} or workgroup {:?}", launch.grid, launch.workgroup));
    }
    let n_items = launch.workgroup.iter().map(|n| *n as u64).product::<u64>();
    if n_items > 1024 {
        return refuse(format!("a workgroup of {n_items} work-items; the hardware takes 1024"));
    }
    let lds_bytes = launch.lds_bytes.max(kernel.descriptor.lds_bytes);
    if lds_bytes > 64 << 10 {
        return refuse(format!("{lds_bytes} bytes of LDS; a workgroup has 65536"));
    }
    let n_groups = std::array::from_fn(|d| launch.grid[d].div_ceil(launch.workgroup[d]) as u64);
    let total: u64 = n_groups.iter().product();
    let program = kernel.main();
    let run = Arc::new(Run {
        kernel,
        program,
        memory,
        launch,
        options,
        n_groups,
        next: AtomicU64::new(0),
        is_stopped: AtomicBool::new(false),
        outcome: Mutex::default(),
    });
    if total == 1 || pool.n_threads() == 1 {
        run.work();
    } else {
        let run = run.clone();
        pool.run(Arc::new(move || run.work()));
    }
    let (counters, fault) = {
        let mut outcome = run.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        (outcome.0, outcome.1.take())
    };
    if run.next.load(Ordering::Relaxed) < total && fault.is_none() {
        return Err(Error::Launch {
            kernel: run.kernel.name.clone(),
            what: "the emulator stopped early (a bug in it)".into(),
        });
    }
    match fault {
        Some(fault) => Err(Error::Fault { kernel: run.kernel.name.clone(), fault: Box::new(fault) }),
        None => Ok(counters),
    }
}

impl<const N: usize> Run<N> {
    /// Takes workgroups until none is left.
    fn work(&self) {
        let total: u64 = self.n_groups.iter().product();
        let mut waves: Vec<Wave<N>> = Vec::new();
        let mut counters = Counters::default();
        let mut lds = Vec::new();
        while !self.is_stopped.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if n >= total {
                break;
            }
            let id = [
                (n % self.n_groups[0]) as u32,
                (n / self.n_groups[0] % self.n_groups[1]) as u32,
                (n / self.n_groups[0] / self.n_groups[1]) as u32,
            ];
            if let Err(fault) = self.group(id, &mut waves, &mut lds, &mut counters) {
                self.is_stopped.store(true, Ordering::Relaxed);
                let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
                outcome.1.get_or_insert(fault);
            }
        }
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.0 += counters;
    }

    fn group(
        &self,
        id: [u32; 3],
        waves: &mut Vec<Wave<N>>,
        lds: &mut Vec<u8>,
        counters: &mut Counters,
    ) -> Result<(), Fault> {
        let size: [u32; 3] = std::array::from_fn(|d| {
            self.launch.workgroup[d].min(self.launch.grid[d] - id[d] * self.launch.workgroup[d])
        });
        let n_items = size.iter().product::<u32>() as usize;
        let n_waves = n_items.div_ceil(N);
        waves.resize_with(n_waves.max(waves.len()), Wave::new);
        let lds_bytes = self.launch.lds_bytes.max(self.kernel.descriptor.lds_bytes) as usize;
        let is_checked = self.options.is_checked && !is_runtime_kernel(&self.kernel.name);
        lds.clear();
        lds.resize(lds_bytes, 0xa5);
        let mut group = Group {
            lds: std::mem::take(lds),
            lds_shadow: is_checked.then(|| LdsShadow::new(lds_bytes)),
            memory: &self.memory,
            id,
            is_checked: self.options.is_checked,
            reports_unwritten: is_checked,
        };
        for (w, wave) in waves[..n_waves].iter_mut().enumerate() {
            self.start(wave, w as u32, id, size, n_items);
        }
        counters.waves += n_waves as u64;
        let result = self.turns(&mut waves[..n_waves], &mut group);
        for wave in &mut waves[..n_waves] {
            *counters += std::mem::take(&mut wave.counters);
        }
        *lds = group.lds;
        result
    }

    /// Runs every wave to its next barrier or end, again and again.
    fn turns(&self, waves: &mut [Wave<N>], group: &mut Group<'_>) -> Result<(), Fault> {
        let mut programs: Vec<Arc<Program<N>>> = vec![self.program.clone(); waves.len()];
        let mut is_waiting = vec![false; waves.len()];
        loop {
            for (w, wave) in waves.iter_mut().enumerate() {
                if wave.is_done || is_waiting[w] {
                    continue;
                }
                match self.run(wave, &mut programs[w], group)? {
                    Flow::Barrier => is_waiting[w] = true,
                    Flow::End => wave.is_done = true,
                    _ => {}
                }
            }
            let ended = waves.iter().filter(|w| w.is_done).count();
            let waiting = is_waiting.iter().filter(|w| **w).count();
            if ended == waves.len() {
                return Ok(());
            }
            // The hardware counts ended waves as arrived.
            if waiting + ended == waves.len() {
                is_waiting.fill(false);
                if let Some(shadow) = &mut group.lds_shadow {
                    shadow.barrier();
                }
            }
        }
    }

    /// Runs one wave for a turn.
    fn run(&self, wave: &mut Wave<N>, program: &mut Arc<Program<N>>, group: &mut Group<'_>) -> Result<Flow, Fault> {
        let end = wave.n_run + TURN;
        loop {
            let flow = match wave.mode & INDEXED {
                0 => steps::<N, false>(wave, program, group, end),
                _ => steps::<N, true>(wave, program, group, end),
            };
            // `next` has moved past the instruction that stopped, but for a turn that ended with a branch.
            let mut at = (wave.next as usize).saturating_sub(1);
            let cause = match flow {
                Flow::Far => match self.kernel.jump(wave.far, group.memory) {
                    Ok((to, idx)) => {
                        wave.next = idx;
                        wave.code_base = to.base;
                        *program = to;
                        continue;
                    }
                    Err(cause) => cause,
                },
                Flow::Fault => wave.fault.take().unwrap_or(Cause::BadJump(wave.code_base)),
                Flow::Mode | Flow::Next | Flow::Branch if wave.n_run > self.options.max_instructions => {
                    at = wave.next as usize;
                    Cause::Endless { n_instructions: wave.n_run }
                }
                Flow::Mode if wave.n_run < end => continue,
                flow => return Ok(flow),
            };
            return Err(match program.insts.get(at) {
                Some(inst) => self.fault(cause, inst, program, group, wave),
                None => fault(cause, 0, "?", Vec::new(), group.id, wave.id),
            });
        }
    }

    fn fault(&self, cause: Cause, inst: &Inst<N>, program: &Program<N>, group: &Group<'_>, wave: &Wave<N>) -> Fault {
        let offset = inst.offset as i64 + program.base as i64 - self.kernel.entry as i64;
        fault(cause, offset, inst.op, program.words(inst), group.id, wave.id)
    }

    /// Registers as the hardware sets them up: user SGPRs in property order, workgroup ids, packed work-item ids.
    fn start(&self, wave: &mut Wave<N>, id: u32, group: [u32; 3], size: [u32; 3], n_items: usize) {
        let d = &self.kernel.descriptor;
        let (n_vgprs, n_agprs) = d.n_vgprs(self.kernel.family);
        let private = self.launch.private_bytes.max(d.private_bytes);
        wave.reset(n_vgprs as usize, n_agprs as usize, private, self.options.is_checked);
        wave.id = id;
        wave.code_base = self.program.base;
        let mut s = 0u16;
        let mut user = |wave: &mut Wave<N>, is_on: bool, value: u64, n: u16| {
            if is_on {
                for k in 0..n {
                    wave.set_scalar(s + k, if k < 2 { (value >> (32 * k)) as u32 } else { 0 });
                }
                s += n;
            }
        };
        let p = d.properties;
        user(wave, p & 1 != 0, 0, 4);
        user(wave, p & 2 != 0, self.launch.packet, 2);
        user(wave, p & 4 != 0, 0, 2);
        user(wave, p & 8 != 0, self.launch.kernarg, 2);
        user(wave, p & 16 != 0, self.launch.dispatch_id, 2);
        user(wave, p & 32 != 0, 0, 2);
        user(wave, p & 64 != 0, private as u64, 1);
        if self.kernel.family == Family::Rdna4 {
            // In trap registers, which kernels may read.
            wave.set_scalar(code::TTMP + 9, group[0]);
            wave.set_scalar(code::TTMP + 7, group[1] & 0xffff | group[2] << 16);
        }
        let mut s = d.n_user_sgprs() as u16;
        for (bit, value) in [(7, group[0]), (8, group[1]), (9, group[2])] {
            if d.rsrc2 >> bit & 1 == 1 && self.kernel.family != Family::Rdna4 {
                wave.set_scalar(s, value);
                s += 1;
            }
        }
        let first = id as usize * N;
        let n_live = (n_items - first).min(N);
        wave.set_scalar64(crate::isa::code::EXEC, if n_live == 64 { !0 } else { (1 << n_live) - 1 });
        for lane in 0..n_live {
            let t = (first + lane) as u32;
            let (x, y, z) = (t % size[0], t / size[0] % size[1], t / size[0] / size[1]);
            wave.v[0][lane] = x | y << 10 | z << 20;
        }
    }
}

/// Carries out instructions until one does more than fall through or branch, or the turn ends at a branch.
fn steps<const N: usize, const IS_INDEXED: bool>(
    wave: &mut Wave<N>,
    program: &Program<N>,
    group: &mut Group<'_>,
    end: u64,
) -> Flow {
    // Counted where the wave leaves a straight line, not at every instruction.
    let (mut n, mut from) = (0u64, wave.next);
    let mut class = [0u64; Class::N];
    let turn = end.saturating_sub(wave.n_run);
    let insts = &program.insts[..];
    let flow = loop {
        let Some(mut inst) = insts.get(wave.next as usize) else {
            let to = (wave.next as usize).min(insts.len()) as u32;
            count(program, &mut n, &mut class, from.min(to), to);
            from = u32::MAX;
            wave.next = u32::MAX;
            break wave.stop(Cause::BadJump(wave.code_base));
        };
        wave.next += 1;
        let moved;
        if IS_INDEXED && inst.class == Class::Vector {
            match relative::indexed(inst, wave.s[code::M0 as usize]) {
                Some(m) => moved = m,
                None => break wave.stop(Cause::Unsupported(format!("{} in indexed mode", inst.op))),
            }
            inst = &moved;
        }
        // SAFETY: `Emulator::new` refused CPUs without the features handlers are compiled for, and lowering gave this
        // instruction rows of the register file only.
        let flow = unsafe {
            if inst.fix & FIX_BEFORE != 0 {
                prepare(wave, inst);
            }
            let flow = (inst.run)(wave, inst, group);
            if inst.fix & FIX_RESULT != 0 {
                finish(wave, inst);
            }
            flow
        };
        match flow {
            Flow::Next => {}
            Flow::Branch => {
                count(program, &mut n, &mut class, from, wave.next);
                from = inst.target;
                wave.next = inst.target;
                if n > turn {
                    break Flow::Branch;
                }
            }
            other => break other,
        }
    };
    if from != wave.next && from != u32::MAX {
        count(program, &mut n, &mut class, from, wave.next);
    }
    wave.n_run += n;
    tally(&mut wave.counters, n, &class);
    flow
}

/// Counts a straight line of instructions.
#[inline(always)]
fn count<const N: usize>(program: &Program<N>, n: &mut u64, class: &mut [u64; Class::N], from: u32, to: u32) {
    *n += (to - from) as u64;
    program.tally(from, to, class);
}

/// AMD's own copy and fill kernels move whatever they are told to, written or not.
fn is_runtime_kernel(name: &str) -> bool {
    name.is_empty() || name.starts_with("__amd_rocclr_") || name.starts_with('?')
}

fn tally(counters: &mut Counters, n: u64, class: &[u64; Class::N]) {
    counters.instructions += n;
    counters.scalar += class[Class::Scalar as usize];
    counters.branches += class[Class::Control as usize];
    counters.scalar_memory += class[Class::ScalarMemory as usize];
    counters.lds += class[Class::Lds as usize];
    counters.global += class[Class::Global as usize];
    counters.scratch += class[Class::Scratch as usize];
    counters.vector += class[Class::Vector as usize];
}
