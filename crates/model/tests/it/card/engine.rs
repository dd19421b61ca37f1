//! On each GPU that is here: tokens that the model chooses there are those that the engine's own sampler chooses from
//! its logits. None is a skip with the reason, or a failure with `ROCI_REQUIRE_GPU=1`.

use std::time::Duration;

use engine::{
    Capacity, EngineOptions, Event, Forward, Mask, MaskFactory, Rows, Sampling, StepError, Submit, Ticket, TokenSet,
    sampler, sampler::Sampler, start,
};
use model::{Batch, BlockId, DeviceChoice, KvType, LoadOptions, Model, Recipe, SeqRows, Synthetic, TokenId, synthetic};
use weights::Dtype;

use crate::support::collect;

fn models(dtype: Dtype, kv_type: KvType, n_blocks: usize) -> Vec<Model> {
    let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(dtype), 7).unwrap();
    let load = |(vendor, ordinal)| {
        let device = DeviceChoice::Gpu { vendor, ordinal };
        let options = LoadOptions { device, kv_type, n_blocks, max_batch_tokens: 64, ..LoadOptions::default() };
        Model::load(&checkpoint, options).unwrap()
    };
    test_support::gpus::all().into_iter().map(load).collect()
}

/// A model that is given one step at a time.
struct OneAtATime(Model);

impl Forward for OneAtATime {
    fn capacity(&self) -> Capacity {
        Forward::capacity(&self.0)
    }

    fn chooses(&self) -> bool {
        self.0.chooses()
    }

    fn submit(&mut self, batch: &Batch) -> Result<Ticket, StepError> {
        Forward::submit(&mut self.0, batch)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Rows<'_>, StepError> {
        Forward::wait(&mut self.0, ticket)
    }
}

fn samplings() -> Vec<Sampling> {
    let base = Sampling { temperature: 0.9, ..Sampling::default() };
    let kinds = [
        Sampling::default(),
        base.clone(),
        Sampling { top_k: 40, ..base.clone() },
        Sampling { top_p: 0.8, ..base.clone() },
        Sampling { min_p: 0.2, ..base.clone() },
        Sampling { top_k: 40, top_p: 0.95, min_p: 0.05, temperature: 0.7, ..base },
    ];
    (0..60).map(|seed| Sampling { seed, ..kinds[seed as usize % kinds.len()].clone() }).collect()
}

#[test]
fn a_device_chooses_what_the_sampler_chooses() {
    for mut model in models(Dtype::Q8_0, KvType::F16, 24) {
        let tokens: Vec<TokenId> = (0..60).map(|i| TokenId(i * 37 % 320)).collect();
        let samplings = samplings();
        let choices = samplings.iter().enumerate().map(|(row, sampling)| sampler::choice(sampling, row + 1).unwrap());
        let mut batch = Batch {
            tokens: tokens.clone(),
            positions: (0..60).collect(),
            seqs: vec![SeqRows { first_row: 0, n_rows: 60, block_table: (0..4).map(BlockId).collect() }],
            logits_rows: (0..60).collect(),
            ..Batch::default()
        };
        let n_vocab = model.config().n_vocab;
        let mut own = Sampler::new(n_vocab);
        let output = model.forward(&batch).unwrap();
        let truth: Vec<TokenId> = output
            .logits
            .chunks(n_vocab)
            .zip(&samplings)
            .enumerate()
            .map(|(row, (logits, sampling))| own.sample(logits, &tokens[..=row], sampling, None, None).unwrap().token)
            .collect();
        batch.choices = choices.collect();
        let output = model.forward(&batch).unwrap();
        assert!(output.logits.is_empty(), "no logits travel");
        let found: Vec<TokenId> = output.chosen.iter().map(|token| token.unwrap()).collect();
        assert_eq!(found, truth);
    }
}

/// The loop itself: a decode step reads back one word a sequence and nothing else.
#[test]
fn a_step_reads_one_token_back() {
    for model in models(Dtype::Q8_0, KvType::F16, 24) {
        let (device, vocab_bytes) = (model.device(), 4 * model.config().n_vocab as u64);
        let before = model.counters().unwrap();
        let counters = |handle: &engine::Handle| handle.stats().unwrap();
        let handle = start(model, EngineOptions::default(), None);
        let submit = Submit::new(handle.next_request_id(), vec![TokenId(5), TokenId(9)], 8);
        let (tokens, ..) = collect(handle.submit(submit).unwrap());
        assert_eq!((tokens.len(), counters(&handle).n_tokens_generated), (8, 8));
        handle.shutdown();
        let vendor = gpu::Vendor::ALL.into_iter().find(|vendor| device.starts_with(vendor.word())).unwrap();
        let after = gpu::Device::open(vendor, 0).unwrap().counters();
        let moved = (after - before).bytes_to_host;
        assert!(moved <= 8 * 4, "{moved} bytes came back for 8 tokens, a row of logits has {vocab_bytes}");
    }
}

/// Mixed requests in a pool that is too small for them: some that only the host can choose for, some that stop, one
/// that is cancelled. Overlapped steps say what single steps say.
#[test]
fn overlapped_steps_say_what_single_steps_say() {
    // Best tokens of exact numbers: a difference means a block or a row mixed up, not rounding.
    let load = || models(Dtype::F32, KvType::F32, 11);
    for (single, overlapped) in load().into_iter().zip(load()) {
        assert_eq!(overlapped.max_in_flight(), 2);
        let options = EngineOptions { prefill_chunk: 20, ..EngineOptions::default() };
        let said = |handle: &engine::Handle| {
            let all: Vec<_> = (0..8)
                .map(|seed| {
                    let prompt = (0..9 + 3 * seed).map(|i| TokenId((i * 37 + seed * 11) % 320)).collect();
                    let mut submit = Submit::new(handle.next_request_id(), prompt, 40);
                    submit.stop_tokens = (0..320).filter(|token| seed == 3 && token % 7 == 0).map(TokenId).collect();
                    if seed % 4 == 1 {
                        submit.sampling.repetition_penalty = 1.2;
                    }
                    handle.submit(submit).unwrap()
                })
                .collect();
            let mut answers = Vec::new();
            for (seed, mut events) in all.into_iter().enumerate() {
                if seed == 6 {
                    let first = events.next();
                    assert!(matches!(first, Some(Event::Token { .. })), "{first:?}");
                    continue;
                }
                let (tokens, reason, usage) = collect(events);
                answers.push((tokens, reason));
                assert!(usage.n_generated == 40 || seed == 3);
            }
            let stats = handle.stats().unwrap();
            assert_eq!((stats.n_running, stats.n_blocks_held), (0, 0));
            // A driver must not be in use while the process ends.
            handle.shutdown();
            (answers, stats.n_preemptions)
        };
        let truth = said(&start(OneAtATime(single), options, None));
        let found = said(&start(overlapped, options, None));
        assert_eq!(found.0, truth.0);
        assert!(found.1 > 0, "the pool was meant to be too small");
    }
}

/// Allows every third token, others after each, and is known when it was asked for so many times.
struct Thirds {
    n_asks: u32,
    n_asked: u32,
    n_seen: u32,
}

impl Mask for Thirds {
    fn is_ready_within(&mut self, _: Duration) -> bool {
        self.n_asked += 1;
        self.n_asked >= self.n_asks
    }

    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        let tokens = 0..allowed.n_vocab() as u32;
        tokens.filter(|token| (token + self.n_seen).is_multiple_of(3)).for_each(|token| allowed.insert(TokenId(token)));
        Ok(())
    }

    fn accept(&mut self, _: TokenId) -> Result<(), String> {
        (self.n_seen, self.n_asked) = (self.n_seen + 1, 0);
        Ok(())
    }
}

struct ThirdsMasks;

impl MaskFactory for ThirdsMasks {
    fn build(&mut self, constraint: &str, _: usize) -> Result<Box<dyn Mask>, String> {
        let n_asks = constraint.parse().map_err(|_| format!("`{constraint}` is no number"))?;
        Ok(Box::new(Thirds { n_asks, n_asked: 0, n_seen: 0 }))
    }
}

/// Masks that are known before a step, while the device computes it, or later than that, beside requests without any: the
/// tokens are those of a device that is given one step at a time, and of a CPU. Only what is late costs logits.
#[test]
fn masks_are_kept_on_a_device() {
    let load = || models(Dtype::F32, KvType::F32, 48);
    let asks = |handle: &engine::Handle, n_asks: [&str; 3]| {
        let submit = |seed: u32| {
            let prompt = (0..9 + 3 * seed).map(|i| TokenId((i * 37 + seed * 11) % 320)).collect();
            let mut submit = Submit::new(handle.next_request_id(), prompt, 10);
            submit.constraint = (!seed.is_multiple_of(4)).then(|| n_asks[seed as usize % 4 - 1].to_owned());
            handle.submit(submit).unwrap()
        };
        let all: Vec<_> = (0..8).map(submit).collect();
        let answers: Vec<_> = all.into_iter().map(|events| collect(events).0).collect();
        // A driver must not be in use while the process ends.
        handle.shutdown();
        answers
    };
    let masks = || -> Option<Box<dyn MaskFactory>> { Some(Box::new(ThirdsMasks)) };
    for (single, overlapped) in load().into_iter().zip(load()) {
        let cpu = {
            let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::F32), 7).unwrap();
            let options = LoadOptions { kv_type: KvType::F32, n_blocks: 48, n_threads: 1, ..LoadOptions::default() };
            Model::load(&checkpoint, options).unwrap()
        };
        let options = EngineOptions::default();
        let truth = asks(&start(cpu, options, masks()), ["1", "1", "1"]);
        assert_eq!(asks(&start(OneAtATime(single), options, masks()), ["1", "2", "9"]), truth);
        let (device, vocab_bytes) = (overlapped.device(), 4 * overlapped.config().n_vocab as u64);
        let before = overlapped.counters().unwrap();
        assert_eq!(asks(&start(overlapped, options, masks()), ["1", "2", "2"]), truth);
        let vendor = gpu::Vendor::ALL.into_iter().find(|vendor| device.starts_with(vendor.word())).unwrap();
        let moved = (gpu::Device::open(vendor, 0).unwrap().counters() - before).bytes_to_host;
        assert!(moved < vocab_bytes, "{moved} bytes came back, a row of logits has {vocab_bytes}");
    }
}

/// Drafts on a device: rows of one sequence whose tokens the device chooses, and steps that overlap for the others. What
/// is said is what is said without.
#[test]
fn drafts_change_nothing_on_a_device() {
    let load = || models(Dtype::F32, KvType::F32, 16);
    for ((plain, looking_up), (drafted, draft)) in load().into_iter().zip(load()).zip(load().into_iter().zip(load())) {
        let length = engine::DraftLength::Fixed(3);
        let drafting = engine::Drafting { length, ..engine::Drafting::default() };
        let options = EngineOptions { drafting, prefill_chunk: 20, ..EngineOptions::default() };
        let said = |handle: &engine::Handle| {
            let ask = |seed: u32| {
                let prompt: Vec<TokenId> = (0..20).map(|i| TokenId((i % 5 * 37 + seed * 11) % 320)).collect();
                let mut submit = Submit::new(handle.next_request_id(), prompt, 24);
                submit.sampling.temperature = if seed == 2 { 0.8 } else { 0.0 };
                submit.sampling.frequency_penalty = if seed == 3 { 0.4 } else { 0.0 };
                handle.submit(submit).unwrap()
            };
            let all: Vec<_> = (0..4).map(ask).collect();
            let answers: Vec<_> = all.into_iter().map(|events| collect(events).0).collect();
            let stats = handle.stats().unwrap();
            // A driver must not be in use while the process ends.
            handle.shutdown();
            (answers, stats.drafted)
        };
        let (truth, _) = said(&start(OneAtATime(plain), options, None));
        let drafters: [(Model, Box<dyn engine::Drafter>); 2] =
            [(looking_up, Box::<engine::Lookup>::default()), (drafted, Box::new(engine::DraftModel::new(draft)))];
        for (model, drafter) in drafters {
            let (found, drafted) = said(&engine::start_speculating(model, options, None, Some(drafter)));
            assert_eq!(found, truth);
            assert!(drafted.n_tokens > 0, "{drafted:?}");
        }
    }
}

/// Penalties, bias, bans, allowed tokens and log-probabilities: a model that chooses by itself says what the engine's own
/// sampler says, and no row of logits travels.
#[test]
fn wishes_are_granted_on_the_device() {
    let base = Sampling::default();
    let wishes = [
        (Sampling { repetition_penalty: 1.4, ..base.clone() }, None),
        (Sampling { frequency_penalty: 0.8, presence_penalty: 0.3, penalty_window: 5, ..base.clone() }, None),
        (Sampling { logit_bias: vec![(TokenId(5), 3.0), (TokenId(9), -8.0)], ..base.clone() }, None),
        (Sampling { banned: (0..100).map(TokenId).collect(), ..base.clone() }, None),
        (Sampling { allowed: Some((50..90).map(TokenId).collect()), presence_penalty: 2.0, ..base.clone() }, None),
        (Sampling { min_tokens: 4, ..base.clone() }, None),
        (base.clone(), Some(3)),
        (base, None),
    ];
    for model in models(Dtype::F32, KvType::F32, 48) {
        let vocab_bytes = 4 * model.config().n_vocab as u64;
        let ask = |handle: &engine::Handle| -> Vec<Vec<Event>> {
            let submit = |(seed, (sampling, logprobs)): (u32, &(Sampling, Option<usize>))| {
                let prompt = (0..9 + 3 * seed).map(|i| TokenId((i * 37 + seed * 11) % 320)).collect();
                let mut submit = Submit::new(handle.next_request_id(), prompt, 12);
                (submit.sampling, submit.logprobs) = (sampling.clone(), *logprobs);
                submit.stop_tokens = (0..320).filter(|token| token % 5 == 0 && seed == 5).map(TokenId).collect();
                handle.submit(submit).unwrap()
            };
            let all: Vec<_> = (0..).zip(&wishes).map(submit).collect();
            all.into_iter().map(|events| events.filter(|event| !event.is_last()).collect()).collect()
        };
        let cpu = {
            let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::F32), 7).unwrap();
            let options = LoadOptions { kv_type: KvType::F32, n_blocks: 48, n_threads: 1, ..LoadOptions::default() };
            Model::load(&checkpoint, options).unwrap()
        };
        let truth = ask(&start(cpu, EngineOptions::default(), None));
        let (device, before) = (model.device(), model.counters().unwrap());
        let handle = start(model, EngineOptions::default(), None);
        let found = ask(&handle);
        handle.shutdown();
        for (found, truth) in found.iter().flatten().zip(truth.iter().flatten()) {
            let (
                Event::Token { index, token, logprob, top, .. },
                Event::Token { index: true_index, token: true_token, logprob: true_logprob, top: true_top, .. },
            ) = (found, truth)
            else {
                panic!("unexpected {found:?} {truth:?}")
            };
            assert_eq!((index, token), (true_index, true_token));
            let is_near = logprob.is_nan() && true_logprob.is_nan() || (logprob - true_logprob).abs() < 1e-3;
            assert!(is_near, "{logprob} {true_logprob}");
            assert_eq!(top.len(), true_top.len());
            let pairs = top.iter().zip(true_top);
            pairs.for_each(|(a, b)| assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-3, "{a:?} {b:?}"));
        }
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), truth.iter().map(Vec::len).collect::<Vec<_>>());
        let vendor = gpu::Vendor::ALL.into_iter().find(|vendor| device.starts_with(vendor.word())).unwrap();
        let moved = (gpu::Device::open(vendor, 0).unwrap().counters() - before).bytes_to_host;
        assert!(moved < 12 * 8 * vocab_bytes / 2, "{moved} bytes came back, a row of logits has {vocab_bytes}");
    }
}
