//! The scheduler under thousands of seeded arrivals, cancellations and preemptions, with a shadow of the block store
//! beside it: after every step, everything that must hold is checked. Longer than other files, because the shadow and the
//! checks that read it belong together.

use std::collections::{BTreeMap, HashMap, HashSet};

use batch::{AdapterId, Attention, BLOCK_TOKENS, BlockId, StateId, TokenId, WindowLimits};
use engine::{
    KvEvent, Pooling, Reuse, draw,
    scheduler::{AGING_TURNS, Arrival, Refused, ScheduleLimits, Scheduler, StepPlan},
    sequence::{SeqId, Sequence, Wanted},
    windows::WindowPool,
};

struct Random {
    seed: u64,
    n: u64,
}

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.n += 1;
        (draw::bits(self.seed, self.n) % n.max(1) as u64) as usize
    }
}

/// The plan is submitted and done.
fn finish(scheduler: &mut Scheduler, plan: &StepPlan) {
    scheduler.commit(plan);
    plan.chunks.iter().for_each(|chunk| scheduler.publish(chunk));
}

/// A sequence as the caller sees it.
struct Job {
    n_generate: usize,
    arrived_step: u64,
}

struct Simulation {
    scheduler: Scheduler,
    random: Random,
    /// What each place of each block holds.
    store: HashMap<BlockId, [Option<TokenId>; BLOCK_TOKENS]>,
    /// The same of the pool for windows.
    window_store: HashMap<BlockId, [Option<TokenId>; BLOCK_TOKENS]>,
    window: Option<WindowLimits>,
    /// The tokens that the recurrent state in each slot has seen.
    states: HashMap<StateId, Vec<TokenId>>,
    /// What a follower of the events believes is cached: the hash before it and the tokens of each block.
    followed: HashMap<u64, (Option<u64>, Vec<TokenId>)>,
    jobs: BTreeMap<SeqId, Job>,
    started: HashSet<SeqId>,
    next_id: u64,
    step: u64,
    longest_life: u64,
    n_finished: u64,
}

impl Simulation {
    fn new(seed: u64, limits: ScheduleLimits, n_states: usize) -> Self {
        let mut scheduler = Scheduler::new(limits).with_states(n_states);
        scheduler.changes().record();
        Self {
            scheduler,
            random: Random { seed, n: 0 },
            store: HashMap::new(),
            window_store: HashMap::new(),
            window: None,
            states: HashMap::new(),
            followed: HashMap::new(),
            jobs: BTreeMap::new(),
            started: HashSet::new(),
            next_id: 0,
            step: 0,
            longest_life: 0,
            n_finished: 0,
        }
    }

    fn with_windows(mut self, window: Option<WindowLimits>) -> Self {
        self.scheduler = self.scheduler.with_windows(window);
        Self { window, ..self }
    }

    fn n_new(&self) -> usize {
        self.jobs.keys().filter(|id| !self.started.contains(id)).count()
    }

    fn arrive(&mut self, priority: i32) -> Result<SeqId, Refused> {
        let limits = *self.scheduler.limits();
        let (wanted, attention) = match self.random.below(12) {
            0 => (Wanted::Hidden(Pooling::Mean), Attention::Causal),
            1 => (Wanted::Hidden(Pooling::Last), Attention::Causal),
            2 => (Wanted::Hidden(Pooling::First), Attention::Full),
            _ => (Wanted::Logits, Attention::Causal),
        };
        let n_most = match attention {
            Attention::Causal => self.scheduler.max_len(),
            Attention::Full => limits.max_batch_tokens.min(limits.n_blocks * BLOCK_TOKENS),
        };
        let n_most = match self.window {
            Some(window) if attention == Attention::Full => n_most.min(window.n_blocks * BLOCK_TOKENS),
            _ => n_most,
        };
        let n_prompt = 1 + self.random.below(n_most.min(120));
        let n_generate = match wanted {
            Wanted::Logits | Wanted::LogitsFrom(_) => 1 + self.random.below((n_most - n_prompt + 1).min(60)),
            Wanted::Hidden(_) => 0,
        };
        // Few families of prompts, so that many share a beginning.
        let family = self.random.below(4) as u64;
        let mut tokens: Vec<_> = (0..n_prompt as u64).map(|i| TokenId((draw::bits(family, i) % 50) as u32)).collect();
        if self.random.below(2) == 0 {
            let at = self.random.below(n_prompt);
            tokens[at] = TokenId(self.random.below(50) as u32);
        }
        let id = SeqId(self.next_id);
        self.next_id += 1;
        let is_full = self.n_new() >= limits.max_queue;
        let added = self.scheduler.add(Arrival {
            id,
            tokens,
            n_prompt,
            max_len: usize::MAX,
            priority,
            group: 0,
            wanted,
            attention,
            adapter: None,
        });
        assert_eq!(added, if is_full { Err(Refused::QueueFull) } else { Ok(()) });
        if added.is_ok() {
            self.jobs.insert(id, Job { n_generate, arrived_step: self.step });
        }
        added.map(|()| id)
    }

    fn cancel_one(&mut self) {
        let nth = self.random.below(self.jobs.len());
        if let Some(&id) = self.jobs.keys().nth(nth) {
            assert!(self.scheduler.remove(id).is_some());
            self.jobs.remove(&id);
        }
    }

    /// One step, checked; the "model" writes tokens into the store.
    fn step(&mut self) {
        self.step += 1;
        let plan = self.scheduler.plan();
        assert_eq!(plan.chunks.is_empty(), self.jobs.is_empty(), "a plan is empty only when nobody is there");
        self.started.extend(&plan.admitted);
        self.check_plan(&plan);
        self.check_blocks();
        self.write(&plan);
        self.move_states(&plan);
        // Now and then the model fails: everyone in the step is gone.
        if self.random.below(97) == 0 {
            for chunk in &plan.chunks {
                self.scheduler.abandon(chunk);
                self.scheduler.remove(chunk.seq).unwrap();
                self.jobs.remove(&chunk.seq);
            }
            return self.check_blocks();
        }
        finish(&mut self.scheduler, &plan);
        self.check_states();
        for chunk in plan.chunks.iter().filter(|chunk| chunk.is_last) {
            let mut seq = self.scheduler.get(chunk.seq).unwrap();
            if seq.wanted == Wanted::Logits {
                let token = TokenId(self.random.below(50) as u32);
                seq = self.scheduler.push_token(chunk.seq, token);
            }
            if seq.tokens.len() - seq.n_prompt >= self.jobs[&chunk.seq].n_generate {
                self.scheduler.remove(chunk.seq).unwrap();
                let job = self.jobs.remove(&chunk.seq).unwrap();
                self.longest_life = self.longest_life.max(self.step - job.arrived_step);
                self.n_finished += 1;
            }
        }
        self.check_blocks();
        self.follow();
    }

    /// Following the events gives the contents of the index.
    fn follow(&mut self) {
        for event in self.scheduler.changes().take() {
            match event {
                KvEvent::Stored { hashes, mut parent, tokens, .. } => {
                    assert_eq!(hashes.len() * BLOCK_TOKENS, tokens.len());
                    for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(BLOCK_TOKENS)) {
                        let before = self.followed.insert(hash, (parent, tokens.to_vec()));
                        assert_eq!(before, None, "stored twice");
                        parent = Some(hash);
                    }
                }
                KvEvent::Removed { hashes } => {
                    hashes.iter().for_each(|hash| assert!(self.followed.remove(hash).is_some(), "not stored"));
                }
                KvEvent::Cleared => self.followed.clear(),
            }
        }
        let index = self.scheduler.index();
        assert_eq!(self.followed.len(), index.len());
        for seq in self.scheduler.running().iter().filter(|seq| seq.attention == Attention::Causal) {
            let (mut parent, mut n_found) = (None, 0);
            for tokens in seq.tokens.chunks_exact(BLOCK_TOKENS) {
                let known =
                    |(_, (before, held)): &(&u64, &(Option<u64>, Vec<TokenId>))| *before == parent && held == tokens;
                let Some((&hash, _)) = self.followed.iter().find(known) else { break };
                (parent, n_found) = (Some(hash), n_found + 1);
            }
            // The index also demands that no block before was forgotten and stored again in the meantime.
            assert!(n_found >= index.lookup(&seq.tokens, usize::MAX).0.len());
        }
    }

    fn check_plan(&self, plan: &StepPlan) {
        let limits = self.scheduler.limits();
        let n_tokens: usize = plan.chunks.iter().map(|chunk| chunk.n_tokens).sum();
        assert!(n_tokens <= limits.max_batch_tokens, "{n_tokens} tokens in a step");
        assert!(self.scheduler.running().len() <= limits.max_running);
        assert!(self.n_new() <= limits.max_queue);
        assert!(self.scheduler.running().windows(2).all(|pair| pair[0].rank < pair[1].rank));
        let (mut n_rows, mut n_decodes, mut n_prefill) = (0, 0, 0);
        let mut seen = HashSet::new();
        for chunk in &plan.chunks {
            assert!(seen.insert(chunk.seq), "two chunks of one sequence");
            assert!(!plan.preempted.contains(&chunk.seq) || plan.admitted.contains(&chunk.seq));
            let seq = self.scheduler.running().iter().find(|seq| seq.id == chunk.seq).expect("planned means running");
            assert!(chunk.n_tokens > 0);
            assert_eq!(seq.attention, plan.attention);
            assert_eq!(chunk.first, seq.n_computed);
            assert_eq!(chunk.is_last, chunk.first + chunk.n_tokens == seq.tokens.len());
            assert!(seq.attention == Attention::Causal || chunk.is_last, "full attention is never cut");
            n_rows += if seq.wanted == Wanted::Hidden(Pooling::Mean) { chunk.n_tokens } else { 1 };
            let is_decode = seq.n_remaining() == 1 && !plan.admitted.contains(&seq.id);
            if is_decode { n_decodes += 1 } else { n_prefill += chunk.n_tokens }
        }
        assert!(n_rows <= limits.max_output_rows, "{n_rows} rows of output");
        if n_decodes > 0 && plan.attention == Attention::Causal {
            assert!(n_prefill <= limits.prefill_chunk, "{n_prefill} prompt tokens hold up {n_decodes} others");
        }
    }

    /// Blocks are conserved, and reference counts are the number of holders.
    fn check_blocks(&self) {
        let pool = self.scheduler.pool();
        pool.check().unwrap();
        let mut holders: HashMap<BlockId, u32> = HashMap::new();
        for seq in self.scheduler.running() {
            assert!(seq.blocks.len() * BLOCK_TOKENS >= seq.n_computed);
            let distinct: HashSet<_> = seq.blocks.iter().collect();
            assert_eq!(distinct.len(), seq.blocks.len(), "a sequence holds a block twice");
            seq.blocks.iter().for_each(|&block| *holders.entry(block).or_default() += 1);
        }
        let mut n_indexed = 0;
        for block in (0..pool.n_blocks() as u32).map(BlockId) {
            assert_eq!(pool.n_refs(block), holders.get(&block).copied().unwrap_or(0));
            assert_eq!(pool.is_indexed(block), self.scheduler.index().contains(block));
            n_indexed += usize::from(pool.is_indexed(block));
        }
        assert_eq!(n_indexed, self.scheduler.index().len());
        assert_eq!(pool.n_available() + holders.len(), pool.n_blocks());
        self.check_window_blocks();
    }

    /// The same of the other pool. What is promised is there, and every running sequence holds what its next token sees.
    fn check_window_blocks(&self) {
        let (Some(windows), Some(window)) = (self.scheduler.windows(), self.window) else { return };
        windows.check().unwrap();
        let (mut holders, mut n_promised): (HashMap<BlockId, u32>, usize) = Default::default();
        for seq in self.scheduler.running() {
            let table = &seq.windows;
            assert!(table.n_held() <= table.n_committed(), "{} of {}", table.n_held(), table.n_committed());
            assert!((seq.n_computed + 1).saturating_sub(window.n_tokens) / BLOCK_TOKENS >= table.first());
            assert!(seq.restore.is_some() || table.end() * BLOCK_TOKENS >= seq.n_computed);
            n_promised += table.n_committed();
            table.blocks().for_each(|block| *holders.entry(block).or_default() += 1);
        }
        assert_eq!(n_promised, windows.n_committed());
        assert!(n_promised <= window.n_blocks);
        let pool = windows.pool();
        for block in (0..pool.n_blocks() as u32).map(BlockId) {
            assert_eq!(pool.n_refs(block), holders.get(&block).copied().unwrap_or(0));
        }
        assert_eq!(pool.n_available() + holders.len(), pool.n_blocks());
    }

    /// Every slot for states is free, a checkpoint's, or that of one running sequence.
    fn check_states(&self) {
        let states = self.scheduler.states();
        let running: HashSet<StateId> = self.scheduler.running().iter().filter_map(|seq| seq.state).collect();
        let n_running = if states.n_slots() > 0 { self.scheduler.running().len() } else { 0 };
        assert_eq!(running.len(), n_running, "each running sequence has a slot of its own");
        assert_eq!(states.n_free() + states.n_checkpoints() + n_running, states.n_slots());
    }

    /// Moves the states of the plan's sequences on, after checking that each starts from the state of its own tokens.
    fn move_states(&mut self, plan: &StepPlan) {
        if self.scheduler.states().n_slots() == 0 {
            return;
        }
        let (mut read, mut written) = (HashSet::new(), Vec::new());
        for chunk in &plan.chunks {
            let seq = self.scheduler.get(chunk.seq).unwrap();
            let to = seq.state.expect("a running sequence has a slot");
            let from = seq.starts_from.map_or(to, |(_, checkpoint)| checkpoint);
            if chunk.first > 0 {
                assert_eq!(self.states.get(&from).map(Vec::as_slice), Some(&seq.tokens[..chunk.first]));
                read.insert((from, chunk.seq));
            }
            written.extend([Some(to), chunk.checkpoint].into_iter().flatten().map(|slot| (slot, chunk.seq)));
        }
        let slots: HashSet<StateId> = written.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(slots.len(), written.len(), "a slot is written twice");
        for (slot, seq) in written {
            assert!(read.iter().all(|(from, reader)| *from != slot || *reader == seq), "a slot is read and written");
            let chunk = plan.chunks.iter().find(|chunk| chunk.seq == seq).unwrap();
            let tokens = &self.scheduler.get(seq).unwrap().tokens;
            self.states.insert(slot, tokens[..chunk.first + chunk.n_tokens].to_vec());
        }
    }

    /// Writes the plan's tokens, after checking that what comes before them is there and that nobody else reads them.
    fn write(&mut self, plan: &StepPlan) {
        for chunk in &plan.chunks {
            let seq = self.scheduler.get(chunk.seq).unwrap();
            for position in 0..chunk.first {
                let block = seq.blocks[position / BLOCK_TOKENS];
                let held = self.store.get(&block).and_then(|places| places[position % BLOCK_TOKENS]);
                assert_eq!(held, Some(seq.tokens[position]), "position {position} of a computed prefix");
            }
            for position in chunk.first..chunk.first + chunk.n_tokens {
                let block = seq.blocks[position / BLOCK_TOKENS];
                assert_eq!(self.scheduler.pool().n_refs(block), 1, "a shared block is written");
                assert!(!self.scheduler.pool().is_indexed(block), "an indexed block is written");
                self.store.entry(block).or_default()[position % BLOCK_TOKENS] = Some(seq.tokens[position]);
            }
            let (Some(windows), Some(window)) = (self.scheduler.windows(), self.window) else { continue };
            let mut table = Vec::new();
            seq.windows.write(Sequence::blocks_for(chunk.end()), &mut table);
            for position in (chunk.first + 1).saturating_sub(window.n_tokens)..chunk.first {
                let held = self.window_store.get(&table[position / BLOCK_TOKENS]);
                let held = held.and_then(|places| places[position % BLOCK_TOKENS]);
                assert_eq!(held, Some(seq.tokens[position]), "position {position} of a window");
            }
            for position in chunk.first..chunk.end() {
                let block = table[position / BLOCK_TOKENS];
                assert_eq!(windows.pool().n_refs(block), 1, "a shared block is written");
                assert!(!windows.pool().is_indexed(block), "an indexed block is written");
                self.window_store.entry(block).or_default()[position % BLOCK_TOKENS] = Some(seq.tokens[position]);
            }
        }
    }
}

const LIMITS: ScheduleLimits = ScheduleLimits {
    n_blocks: 12,
    max_batch_tokens: 48,
    max_output_rows: 16,
    max_running: 6,
    max_queue: 10,
    prefill_chunk: 20,
    reuse: Reuse::On,
    max_adapters: 2,
};

fn simulate(seed: u64, limits: ScheduleLimits, n_steps: usize) -> Simulation {
    simulate_with_states(seed, limits, n_steps, 0)
}

fn simulate_with_states(seed: u64, limits: ScheduleLimits, n_steps: usize, n_states: usize) -> Simulation {
    play(Simulation::new(seed, limits, n_states), n_steps)
}

fn play(mut sim: Simulation, n_steps: usize) -> Simulation {
    for _ in 0..n_steps {
        if sim.random.below(3) == 0 {
            let priority = sim.random.below(4) as i32 - 2;
            let _ = sim.arrive(priority);
        }
        if sim.random.below(40) == 0 {
            sim.cancel_one();
        }
        sim.step();
    }
    let mut n_left = 0;
    while !sim.jobs.is_empty() {
        sim.step();
        n_left += 1;
        assert!(n_left < 20_000, "{} sequences never finish", sim.jobs.len());
    }
    assert!(sim.scheduler.is_idle());
    assert_eq!(sim.scheduler.pool().n_available(), sim.scheduler.limits().n_blocks);
    assert_eq!(sim.scheduler.windows().map_or(0, WindowPool::n_committed), 0);
    sim
}

#[test]
fn invariants_hold_over_many_seeds_and_limits() {
    let (mut n_preemptions, mut n_cached, mut n_finished) = (0, 0, 0);
    for seed in 0..100 {
        let mut random = Random { seed, n: 1 << 32 };
        let limits = ScheduleLimits {
            n_blocks: 2 + random.below(30),
            max_batch_tokens: 1 + random.below(80),
            max_output_rows: 1 + random.below(20),
            max_running: 1 + random.below(10),
            max_queue: 1 + random.below(12),
            prefill_chunk: 1 + random.below(40),
            reuse: if seed % 5 == 4 { Reuse::Off } else { Reuse::On },
            max_adapters: 0,
        };
        let sim = simulate(seed, limits, 300);
        n_preemptions += sim.scheduler.n_preemptions();
        n_cached += sim.scheduler.n_tokens_cached();
        n_finished += sim.n_finished;
        assert!(limits.reuse == Reuse::On || sim.scheduler.n_tokens_cached() == 0);
    }
    // The simulation is worth something only if all of this happened often.
    assert!(n_preemptions > 500, "{n_preemptions} preemptions");
    assert!(n_cached > 5_000, "{n_cached} cached tokens");
    assert!(n_finished > 2_000, "{n_finished} finished");
}

#[test]
fn recurrent_states_follow_their_tokens() {
    let (mut n_preemptions, mut n_cached, mut n_finished) = (0, 0, 0);
    for seed in 0..60 {
        let mut random = Random { seed, n: 1 << 32 };
        let limits = ScheduleLimits {
            n_blocks: 2 + random.below(30),
            max_batch_tokens: 1 + random.below(80),
            prefill_chunk: 1 + random.below(40),
            reuse: if seed % 5 == 4 { Reuse::Off } else { Reuse::On },
            ..LIMITS
        };
        let n_states = 1 + random.below(12);
        let sim = simulate_with_states(seed, limits, 300, n_states);
        n_preemptions += sim.scheduler.n_preemptions();
        n_cached += sim.scheduler.n_tokens_cached();
        n_finished += sim.n_finished;
        assert!(limits.reuse == Reuse::On || sim.scheduler.states().n_checkpoints() == 0);
    }
    // The simulation is worth something only if all of this happened often.
    assert!(n_preemptions > 100, "{n_preemptions} preemptions");
    assert!(n_cached > 1_000, "{n_cached} cached tokens");
    assert!(n_finished > 1_000, "{n_finished} finished");
}

#[test]
fn windows_follow_their_tokens() {
    let (mut n_preemptions, mut n_cached, mut n_finished) = (0, 0, 0);
    for seed in 0..80 {
        let mut random = Random { seed, n: 1 << 32 };
        let limits = ScheduleLimits {
            n_blocks: 8 + random.below(30),
            max_batch_tokens: 1 + random.below(80),
            prefill_chunk: 1 + random.below(40),
            reuse: if seed % 5 == 4 { Reuse::Off } else { Reuse::On },
            ..LIMITS
        };
        // From a pool for one window to one for many.
        let n_tokens = 1 + random.below(70);
        let n_blocks = n_tokens.max(17).div_ceil(BLOCK_TOKENS) + 2 + random.below(12);
        let n_states = if seed % 4 == 3 { 1 + random.below(12) } else { 0 };
        let sim = Simulation::new(seed, limits, n_states).with_windows(Some(WindowLimits { n_tokens, n_blocks }));
        let sim = play(sim, 300);
        n_preemptions += sim.scheduler.n_preemptions();
        n_cached += sim.scheduler.n_tokens_cached();
        n_finished += sim.n_finished;
    }
    // The simulation is worth something only if all of this happened often.
    assert!(n_preemptions > 200, "{n_preemptions} preemptions");
    assert!(n_cached > 2_000, "{n_cached} cached tokens");
    assert!(n_finished > 1_500, "{n_finished} finished");
}

#[test]
fn nobody_starves_for_windows() {
    for seed in 100..106 {
        let window = WindowLimits { n_tokens: 40, n_blocks: 7 };
        let limits = ScheduleLimits { n_blocks: 24, ..LIMITS };
        let sim = play(Simulation::new(seed, limits, 0).with_windows(Some(window)), 1500);
        let bound = (4 * AGING_TURNS as u64 + 16) * 70;
        assert!(sim.longest_life < bound, "seed {seed}: one sequence took {} steps", sim.longest_life);
        assert!(sim.n_finished > 60, "{} finished", sim.n_finished);
    }
}

#[test]
fn nobody_starves_under_pressure() {
    for seed in 100..110 {
        let sim = simulate(seed, LIMITS, 1500);
        // Those of up to four levels of priority that go before, a backlog of at most 16, each of at most 60 generated
        // tokens and a few steps of prompt.
        let bound = (4 * AGING_TURNS as u64 + 16) * 70;
        assert!(sim.longest_life < bound, "seed {seed}: one sequence took {} steps", sim.longest_life);
        assert!(sim.n_finished > 60, "{} finished", sim.n_finished);
    }
}

#[test]
fn a_flood_of_priority_delays_the_others_only_so_long() {
    let limits = ScheduleLimits { max_running: 1, ..LIMITS };
    let mut sim = Simulation::new(1, limits, 0);
    let low = sim.arrive(-3).unwrap();
    let mut n_steps = 0;
    while sim.jobs.contains_key(&low) || !sim.started.contains(&low) {
        let _ = sim.arrive(2);
        sim.step();
        n_steps += 1;
        assert!(n_steps < (5 * AGING_TURNS + 11) * 70, "the unimportant one starves");
    }
    assert!(sim.n_finished > 10, "the important ones went first");
}

#[test]
fn first_come_first_served_at_equal_priority() {
    let mut scheduler = Scheduler::new(ScheduleLimits { max_running: 1, ..LIMITS });
    let arrival = |id, priority| Arrival {
        id: SeqId(id),
        tokens: vec![TokenId(id as u32); 4],
        n_prompt: 4,
        priority,
        group: 0,
        wanted: Wanted::Logits,
        max_len: usize::MAX,
        attention: Attention::Causal,
        adapter: None,
    };
    for (id, priority) in [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1)] {
        scheduler.add(arrival(id, priority)).unwrap();
    }
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        let plan = scheduler.plan();
        finish(&mut scheduler, &plan);
        for chunk in &plan.chunks {
            order.push(chunk.seq.0);
            scheduler.remove(chunk.seq);
        }
    }
    assert_eq!(order, [2, 4, 0, 1, 3]);
}

/// However long requests take: a group that comes late waits for the one that runs, not for a backlog that came before.
#[test]
fn a_group_with_a_backlog_takes_turns_with_one_that_comes_late() {
    let mut scheduler = Scheduler::new(ScheduleLimits { max_running: 1, ..LIMITS });
    let arrival = |id, group| Arrival {
        id: SeqId(id),
        tokens: vec![TokenId(id as u32); 4],
        n_prompt: 4,
        priority: 0,
        group,
        wanted: Wanted::Logits,
        max_len: usize::MAX,
        attention: Attention::Causal,
        adapter: None,
    };
    (0..8).for_each(|id| scheduler.add(arrival(id, 1)).unwrap());
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        // Each runs for a hundred steps; the second group comes in the middle of the first one's, with two.
        let first = scheduler.plan();
        let running = first.chunks[0].seq;
        finish(&mut scheduler, &first);
        for step in 0..100 {
            if order.is_empty() && step == 50 {
                (8..10).for_each(|id| scheduler.add(arrival(id, 2)).unwrap());
            }
            scheduler.push_token(running, TokenId(0));
            let plan = scheduler.plan();
            finish(&mut scheduler, &plan);
        }
        scheduler.remove(running);
        order.push(running.0);
    }
    assert_eq!(order, [0, 8, 1, 9, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_better_ranked_arrival_takes_the_place_of_the_worst() {
    let mut scheduler = Scheduler::new(ScheduleLimits { max_running: 2, ..LIMITS });
    let arrival = |id, priority| Arrival {
        id: SeqId(id),
        tokens: vec![TokenId(id as u32); 20],
        n_prompt: 20,
        priority,
        group: 0,
        wanted: Wanted::Logits,
        max_len: usize::MAX,
        attention: Attention::Causal,
        adapter: None,
    };
    scheduler.add(arrival(0, 0)).unwrap();
    scheduler.add(arrival(1, 0)).unwrap();
    let plan = scheduler.plan();
    finish(&mut scheduler, &plan);
    assert_eq!(plan.admitted, [SeqId(0), SeqId(1)]);
    scheduler.push_token(SeqId(0), TokenId(1));
    scheduler.push_token(SeqId(1), TokenId(1));
    scheduler.add(arrival(2, 1)).unwrap();
    let plan = scheduler.plan();
    assert_eq!((plan.preempted, plan.admitted), (vec![SeqId(1)], vec![SeqId(2)]));
    assert_eq!(plan.chunks.iter().map(|chunk| chunk.seq.0).collect::<Vec<_>>(), [0, 2]);
}

/// With room for two adapters, a third waits until one of them is no longer used; who has none of them waits behind it.
#[test]
fn adapters_wait_for_room() {
    let mut scheduler = Scheduler::new(LIMITS);
    for (id, adapter) in [(0, Some(1)), (1, Some(2)), (2, Some(1)), (3, Some(3)), (4, None)] {
        let arrival = Arrival {
            id: SeqId(id),
            tokens: vec![TokenId(id as u32); 4],
            n_prompt: 4,
            priority: 0,
            group: 0,
            wanted: Wanted::Logits,
            max_len: usize::MAX,
            attention: Attention::Causal,
            adapter: adapter.map(AdapterId),
        };
        scheduler.add(arrival).unwrap();
    }
    let admitted = |scheduler: &mut Scheduler| {
        let plan = scheduler.plan();
        scheduler.commit(&plan);
        plan.admitted.iter().map(|seq| seq.0).collect::<Vec<_>>()
    };
    assert_eq!(admitted(&mut scheduler), [0, 1, 2]);
    scheduler.remove(SeqId(0)).unwrap();
    assert!(admitted(&mut scheduler).is_empty(), "another still uses that adapter");
    scheduler.remove(SeqId(1)).unwrap();
    assert_eq!(admitted(&mut scheduler), [3, 4]);
}

#[test]
fn what_can_never_fit_is_refused() {
    let mut scheduler = Scheduler::new(LIMITS);
    let mut arrival = Arrival {
        id: SeqId(0),
        tokens: vec![TokenId(0); 12 * BLOCK_TOKENS + 1],
        n_prompt: 1,
        priority: 0,
        group: 0,
        wanted: Wanted::Logits,
        max_len: usize::MAX,
        attention: Attention::Causal,
        adapter: None,
    };
    assert_eq!(scheduler.add(arrival.clone()), Err(Refused::TooLarge));
    arrival.tokens.truncate(49);
    arrival.attention = Attention::Full;
    assert_eq!(scheduler.add(arrival.clone()), Err(Refused::TooLarge));
    arrival.tokens.truncate(48);
    assert_eq!(scheduler.add(arrival), Ok(()));
}

/// Long drafts take the rows that are left over, never those of a prompt that has come meanwhile.
#[test]
fn drafts_leave_a_prompt_its_row() {
    let limits = ScheduleLimits { max_output_rows: 6, max_running: 2, reuse: Reuse::Off, ..LIMITS };
    let mut scheduler = Scheduler::new(limits);
    let arrive = |id: u64, n_prompt: usize| Arrival {
        id: SeqId(id),
        tokens: vec![TokenId(1); n_prompt],
        n_prompt,
        max_len: usize::MAX,
        priority: 0,
        group: 0,
        wanted: Wanted::Logits,
        attention: Attention::Causal,
        adapter: None,
    };
    scheduler.add(arrive(0, 4)).unwrap();
    let plan = scheduler.plan();
    finish(&mut scheduler, &plan);
    scheduler.push_token(SeqId(0), TokenId(2));
    scheduler.set_draft(SeqId(0), vec![TokenId(3); 16]);
    scheduler.add(arrive(1, 4)).unwrap();
    let plan = scheduler.plan();
    let seqs: Vec<(SeqId, usize)> = plan.chunks.iter().map(|chunk| (chunk.seq, chunk.n_drafted)).collect();
    assert_eq!(seqs, [(SeqId(0), 4), (SeqId(1), 0)], "of six rows one is the prompt's");
}
