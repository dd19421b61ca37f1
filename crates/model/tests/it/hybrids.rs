//! Families with recurrent layers: chunks, ragged batches and checkpoints give what one pass over the whole prompt
//! gives, and in an engine a continued conversation computes its new tokens only.

use engine::sequence::SeqId;
use engine::{
    Draft, DraftLength, DraftRequest, DraftSource, Drafter, Drafting, EngineOptions, Handle, Lookup, Reuse, Submit,
    start, start_speculating,
};
use model::{Batch, DeviceChoice, Forward, KvType, LoadOptions, Model, SeqRows, SeqState, StateId, TokenId};
use ops::Isa;
use weights::Checkpoint;

use crate::families::{What, distance, forms, golden, load, names, run};
use crate::support::{batch, collect, table};

/// Products of few rows and of many add in different orders.
const BOUND: f64 = 1e-5;
/// Two of them are too many for the pool of a preempted engine, however quickly one follows the other.
const N_LONG_ANSWER: usize = 60;

/// Every checkpoint with recurrent layers, in the form that has most to translate.
pub fn hybrids() -> Vec<(String, Checkpoint)> {
    let all = names().into_iter().filter(|name| golden(name).what == What::Logits);
    let opened = all.map(|name| (name.clone(), forms(&name).remove(0).1));
    let recurrent: Vec<(String, Checkpoint)> = opened
        .filter(|(_, checkpoint)| model::Config::from_checkpoint(checkpoint).unwrap().recurrent.is_some())
        .collect();
    assert!(recurrent.len() >= 10, "the checkpoints are in the repository");
    recurrent
}

fn state(from: Option<u32>, to: u32, copy: Option<u32>) -> SeqState {
    SeqState { from: from.map(StateId), to: StateId(to), copy: copy.map(StateId) }
}

#[test]
fn chunks_and_checkpoints_equal_the_whole() {
    for (name, checkpoint) in hybrids() {
        check_chunks(&name, &mut load(&checkpoint, Isa::detect()));
    }
}

pub fn check_chunks(name: &str, model: &mut Model) {
    let golden = golden(name);
    let whole = run(model, &golden);
    let (n, n_vocab) = (golden.tokens.len(), model.config().n_vocab);
    let blocks = table(0, n);
    // Slot 5 starts afresh and leaves a checkpoint in slot 2 after 19 tokens.
    let mut found = Vec::new();
    for (first, len, state) in
        [(0, 1, state(None, 5, None)), (1, 18, state(Some(5), 5, Some(2))), (19, 2, state(Some(5), 5, None))]
    {
        let chunk = batch(&golden.tokens[first..first + len], first, &blocks, true);
        found.extend_from_slice(model.forward(&Batch { states: vec![state], ..chunk }).unwrap().logits);
    }
    // Another sequence continues from the checkpoint, after the first has moved past it.
    for (first, len, state) in [(19, n - 20, state(Some(2), 1, None)), (n - 1, 1, state(Some(1), 1, None))] {
        let chunk = batch(&golden.tokens[first..first + len], first, &blocks, true);
        let rows = model.forward(&Batch { states: vec![state], ..chunk }).unwrap().logits;
        found.truncate(first * n_vocab);
        found.extend_from_slice(rows);
    }
    let error = distance(&found, &whole);
    assert!(error < BOUND, "{name}: {error:.2e}");
}

#[test]
fn ragged_sequences_keep_their_own_states() {
    for (name, checkpoint) in hybrids() {
        check_ragged(&name, &mut load(&checkpoint, Isa::detect()));
    }
}

pub fn check_ragged(name: &str, model: &mut Model) {
    let golden = golden(name);
    let whole = run(model, &golden);
    let n_vocab = model.config().n_vocab;
    // Both are the golden sequence: one is 7 tokens ahead, so that each step has 3 rows of one and 5 of the other.
    let tables = [table(0, 40), table(3, 40)];
    let begin = batch(&golden.tokens[..7], 0, &tables[0], false);
    model.forward(&Batch { states: vec![state(None, 6, None)], ..begin }).unwrap();
    for step in 0..4 {
        let (a, b) = (7 + 3 * step, 5 * step);
        let both = [&golden.tokens[a..a + 3], &golden.tokens[b..b + 5]].concat();
        let both = Batch {
            tokens: both.iter().map(|&token| TokenId(token)).collect(),
            positions: (a..a + 3).chain(b..b + 5).map(|position| position as u32).collect(),
            seqs: vec![
                SeqRows { first_row: 0, n_rows: 3, block_table: tables[0].clone() },
                SeqRows { first_row: 3, n_rows: 5, block_table: tables[1].clone() },
            ],
            logits_rows: vec![2, 7],
            states: vec![state(Some(6), 6, None), state((b > 0).then_some(3), 3, None)],
            ..Batch::default()
        };
        let rows = model.forward(&both).unwrap().logits;
        let truth = [a + 2, b + 4].map(|row| &whole[row * n_vocab..][..n_vocab]).concat();
        let error = distance(rows, &truth);
        assert!(error < BOUND, "{name} step {step}: {error:.2e}");
    }
}

#[test]
fn a_bad_slot_is_refused() {
    let (_, checkpoint) = hybrids().remove(0);
    let mut model = load(&checkpoint, Isa::detect());
    let chunk = |states| Batch { states, ..batch(&[3, 4], 0, &table(0, 2), false) };
    for states in [vec![state(None, 8, None)], vec![state(Some(9), 1, None)], vec![state(None, 1, Some(1))]] {
        let error = model.forward(&chunk(states.clone())).err();
        assert!(error.is_some(), "{states:?}");
    }
    assert!(model.forward(&chunk(vec![state(None, 7, Some(1))])).is_ok());
}

/// Tokens, and how many were computed for them.
fn answer(handle: &Handle, prompt: &[TokenId], n: usize) -> (Vec<TokenId>, u64) {
    let before = handle.stats().unwrap().n_tokens_computed;
    let (tokens, ..) = collect(handle.submit(Submit::new(handle.next_request_id(), prompt.to_vec(), n)).unwrap());
    (tokens, handle.stats().unwrap().n_tokens_computed - before)
}

#[test]
fn a_conversation_that_goes_on_computes_its_new_tokens() {
    for (name, checkpoint) in hybrids() {
        check_conversation(&name, &checkpoint, DeviceChoice::Cpu);
    }
}

/// The answers are those of an engine on the CPU that computes every prompt as a whole.
pub fn check_conversation(name: &str, checkpoint: &Checkpoint, device: DeviceChoice) {
    let golden = golden(name);
    let options = LoadOptions {
        kv_type: KvType::F32,
        n_blocks: 32,
        max_batch_tokens: 64,
        n_threads: 2,
        ..LoadOptions::default()
    };
    // On a device a step is under way when the last token of an answer is seen.
    let n_beyond = if device == DeviceChoice::Cpu { 0 } else { 1 };
    let engine = |device, reuse| {
        let options = LoadOptions { device, ..options };
        let model = Model::load(checkpoint, options).unwrap();
        start(model, EngineOptions { prefill_chunk: 24, reuse, ..EngineOptions::default() }, None)
    };
    let (kept, fresh) = (engine(device, Reuse::On), engine(DeviceChoice::Cpu, Reuse::Off));
    let mut history: Vec<TokenId> = golden.tokens.iter().map(|&token| TokenId(token)).collect();
    // Turns of 3 new tokens and answers of 20 on a growing history.
    for turn in 0..3 {
        let (tokens, n_computed) = answer(&kept, &history, 20);
        assert_eq!(tokens, answer(&fresh, &history, 20).0, "{name} turn {turn}");
        // What is new, the answer, and up to a block before each.
        let n_new = if turn == 0 { history.len() } else { 3 };
        assert!(n_computed <= (n_new + 20 + n_beyond + 16) as u64, "{name} turn {turn}: {n_computed} tokens computed");
        history.extend(tokens);
        history.extend([5, 6, 7].map(TokenId));
    }
    // Several answers to one prompt compute it once.
    let before = kept.stats().unwrap().n_tokens_computed;
    let submits = (0..3).map(|_| Submit::new(kept.next_request_id(), history.clone(), 2));
    let events: Vec<_> = submits.map(|submit| kept.submit(submit).unwrap()).collect();
    let answers: Vec<_> = events.into_iter().map(|events| collect(events).0).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{name}");
    let n_computed = kept.stats().unwrap().n_tokens_computed - before;
    assert!(
        n_computed <= 3 * (16 + 2 + n_beyond as u64) + 3 + 16,
        "{name}: {n_computed} tokens computed for three answers"
    );
    kept.shutdown();
}

/// Tokens that a turn of 200 new ones computes on a history of 8,000.
fn computed_by_a_long_turn(checkpoint: &Checkpoint) -> u64 {
    let options = LoadOptions { n_blocks: 600, max_batch_tokens: 512, n_threads: 2, ..LoadOptions::default() };
    let model = Model::load(checkpoint, options).unwrap();
    let handle = start(model, EngineOptions { prefill_chunk: 512, ..EngineOptions::default() }, None);
    let mut history: Vec<TokenId> = (0..8000_u32).map(|i| TokenId(3 + i.wrapping_mul(2_654_435_761) % 90)).collect();
    let (tokens, n_computed) = answer(&handle, &history, 40);
    assert!(n_computed >= 8000);
    history.extend(tokens);
    history.extend((0..200_u32).map(|i| TokenId(3 + i % 90)));
    answer(&handle, &history, 1).1
}

#[test]
fn two_hundred_new_tokens_on_eight_thousand() {
    let folder = crate::families::folder();
    // Its context is not bounded by the tiny configuration.
    let n = computed_by_a_long_turn(&Checkpoint::open(&folder.join("granitehybrid.gguf")).unwrap());
    assert!((200..=232).contains(&n), "{n} tokens computed");
}

/// The same for every family, whose tiny configurations are told of a longer context. Prints what
/// docs/user/kept-contexts.md says. Ignored by default: 8,000 tokens of each take a minute or two.
#[test]
#[ignore = "8,000 tokens of every family; run by ./check --all"]
fn two_hundred_new_tokens_on_eight_thousand_of_every_hybrid() {
    for (name, _) in hybrids() {
        let copy = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(crate::families::folder().join(&name)).unwrap() {
            let file = file.unwrap().path();
            std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
        }
        let path = copy.path().join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for key in ["max_position_embeddings", "model_max_length"] {
            config[key] = 16384.into();
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let n = computed_by_a_long_turn(&Checkpoint::open(copy.path()).unwrap());
        println!("| {name} | {n} |");
        assert!((200..=232).contains(&n), "{name}: {n} tokens computed");
    }
}

#[test]
fn preempted_sequences_say_what_they_say_alone() {
    for (name, checkpoint) in hybrids() {
        check_preempted(&name, &checkpoint, DeviceChoice::Cpu);
    }
}

/// The answers are those of each sequence alone on the CPU.
pub fn check_preempted(name: &str, checkpoint: &Checkpoint, device: DeviceChoice) {
    let golden = golden(name);
    let options = LoadOptions {
        kv_type: KvType::F32,
        n_blocks: 9,
        n_states: 6,
        max_batch_tokens: 64,
        n_threads: 2,
        ..LoadOptions::default()
    };
    let engine = |device| {
        let options = LoadOptions { device, ..options };
        start(Model::load(checkpoint, options).unwrap(), EngineOptions::default(), None)
    };
    let prompts: Vec<Vec<TokenId>> =
        (0..4).map(|i| golden.tokens[i..20 + 4 * i].iter().map(|&token| TokenId(token)).collect()).collect();
    let expected: Vec<_> =
        prompts.iter().map(|prompt| answer(&engine(DeviceChoice::Cpu), prompt, N_LONG_ANSWER).0).collect();
    let handle = engine(device);
    let submits = prompts.iter().map(|prompt| Submit::new(handle.next_request_id(), prompt.clone(), N_LONG_ANSWER));
    let events: Vec<_> = submits.map(|submit| handle.submit(submit).unwrap()).collect();
    for (events, expected) in events.into_iter().zip(&expected) {
        assert_eq!(&collect(events).0, expected, "{name}");
    }
    assert!(handle.stats().unwrap().n_preemptions > 0, "the pool was meant to be too small");
    handle.shutdown();
}

/// Knows the answers to some prompts; every so often it lies.
struct Teller {
    /// Prompts with their answers.
    known: Vec<Vec<TokenId>>,
    /// One token in so many is wrong.
    lies: usize,
}

impl Drafter for Teller {
    fn draft(&mut self, asks: &[DraftRequest], _model: &mut dyn Forward) -> Vec<Draft> {
        let tell = |ask: &DraftRequest| {
            let known = self.known.iter().find(|known| known.starts_with(ask.tokens));
            let rest = known.map_or(&[][..], |known| &known[ask.tokens.len()..]);
            let told = rest.iter().zip(ask.tokens.len()..).take(ask.max_len);
            let lie = |(token, at): (&TokenId, usize)| TokenId(token.0 ^ u32::from(at.is_multiple_of(self.lies)));
            Draft { tokens: told.map(lie).collect(), source: DraftSource::Model }
        };
        asks.iter().map(tell).collect()
    }

    fn end(&mut self, _: SeqId) {}

    fn is_free(&self) -> bool {
        true
    }
}

#[test]
fn drafts_change_no_token_of_a_hybrid() {
    const N_ANSWER: usize = 70;
    for (name, checkpoint) in hybrids() {
        let golden = golden(&name);
        let options = LoadOptions {
            kv_type: KvType::F32,
            n_blocks: 40,
            n_states: 9,
            max_batch_tokens: 64,
            n_threads: 2,
            ..LoadOptions::default()
        };
        let model = || Model::load(&checkpoint, options).unwrap();
        let prompts: Vec<Vec<TokenId>> =
            (0..3).map(|i| golden.tokens[i..14 + 5 * i].iter().map(|&token| TokenId(token)).collect()).collect();
        let plain = start(model(), EngineOptions::default(), None);
        let expected: Vec<_> = prompts.iter().map(|prompt| answer(&plain, prompt, N_ANSWER).0).collect();
        let known: Vec<Vec<TokenId>> = prompts.iter().zip(&expected).map(|(a, b)| [&a[..], b].concat()).collect();
        let drafting = Drafting { length: DraftLength::Fixed(5), ..Drafting::default() };
        let drafters: [Box<dyn Drafter>; 4] = [
            Box::new(Teller { known: known.clone(), lies: usize::MAX }),
            Box::new(Teller { known: known.clone(), lies: 7 }),
            Box::new(Teller { known, lies: 1 }),
            Box::<Lookup>::default(),
        ];
        for (i, drafter) in drafters.into_iter().enumerate() {
            let handle =
                start_speculating(model(), EngineOptions { drafting, ..EngineOptions::default() }, None, Some(drafter));
            let submits = prompts.iter().map(|prompt| Submit::new(handle.next_request_id(), prompt.clone(), N_ANSWER));
            let events: Vec<_> = submits.map(|submit| handle.submit(submit).unwrap()).collect();
            for (events, expected) in events.into_iter().zip(&expected) {
                assert_eq!(&collect(events).0, expected, "{name}, drafter {i}");
            }
            let drafted = handle.stats().unwrap().drafted;
            let (n_tokens, n_accepted) = (drafted.n_tokens, drafted.n_accepted);
            let is_expected = match i {
                0 => n_accepted == n_tokens && n_accepted > 150,
                1 => n_accepted > 100 && n_accepted < n_tokens,
                2 => n_accepted == 0 && n_tokens > 150,
                _ => true,
            };
            assert!(is_expected, "{name}, drafter {i}: {n_accepted} of {n_tokens}");
            // A continued conversation starts from a state of its answer, however that was computed.
            let history = [&prompts[2][..], &expected[2], &[TokenId(5), TokenId(6)]].concat();
            let (tokens, n_computed) = answer(&handle, &history, 1);
            assert_eq!(tokens, answer(&plain, &history, 1).0, "{name}, drafter {i}");
            assert!(n_computed <= 64 + 2 + 16, "{name}, drafter {i}: {n_computed} tokens computed");
        }
    }
}
