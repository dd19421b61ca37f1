//! The model on each GPU that is here: the same tokens and nearly the same numbers as on the CPU.

mod adapters;
mod deterministic;
mod engine;
mod hybrids;
mod kv_types;
mod next_token;

use std::collections::BTreeMap;

use gpu::Device;
use model::{Batch, DeviceChoice, KvType, LoadOptions, Model, Recipe, SeqRows, Synthetic, TokenId, synthetic};
use test_support::share;
use weights::Dtype;

use crate::families;
use crate::gpu_runs::Record;
use crate::support::{batch, greedy, log_softmax, smollm2, table};

/// Every GPU of this machine; none is a skip with the reason, or a failure with `ROCI_REQUIRE_GPU=1`.
fn devices() -> Vec<DeviceChoice> {
    test_support::gpus::all().into_iter().map(|(vendor, ordinal)| DeviceChoice::Gpu { vendor, ordinal }).collect()
}

fn opened(device: DeviceChoice) -> Device {
    let DeviceChoice::Gpu { vendor, ordinal } = device else { unreachable!("a GPU") };
    Device::open(vendor, ordinal).unwrap()
}

fn counters(device: DeviceChoice) -> gpu::Counters {
    opened(device).counters()
}

fn options(device: DeviceChoice) -> LoadOptions {
    LoadOptions { device, n_blocks: 24, max_batch_tokens: 128, n_threads: 2, ..LoadOptions::default() }
}

fn prompt(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + seed * 101 + 5) % 320).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().chain(b).all(|x| x.is_finite()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn tiny_models_give_the_cpus_logits() {
    for device in devices() {
        // What a device holds as F32, one of each will do for.
        let own = share(Dtype::ALL).into_iter().filter(|dtype| ops::device_dtype(*dtype) == *dtype);
        for dtype in own.chain([Dtype::F64]) {
            let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(dtype), 7).unwrap();
            let mut cpu = Model::load(&checkpoint, options(DeviceChoice::Cpu)).unwrap();
            let mut card = Model::load(&checkpoint, options(device)).unwrap();
            let is_told = card.notes().iter().any(|note| note.contains("are held as F16"));
            assert!(!is_told, "packed types stay packed: {dtype}: {:?}", card.notes());
            let tokens = prompt(1, 21);
            let whole = batch(&tokens, 0, &table(0, 21), true);
            let truth = cpu.forward(&whole).unwrap().logits.to_vec();
            let found = card.forward(&whole).unwrap().logits.to_vec();
            // 21 rows may go through the vendor's library in f16.
            let size = truth.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            let error = distance(&truth, &found) / size;
            assert!(error < 1e-2, "{dtype} {}: {error}", card.device());
        }
    }
}

/// Decoding goes through an eager step, a captured one and replays; several lengths of context share a capture.
#[test]
fn tiny_models_decode_as_on_the_cpu() {
    for device in devices() {
        for dtype in [Dtype::F32, Dtype::Q4_1] {
            let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(dtype), 3).unwrap();
            let mut cpu = Model::load(&checkpoint, options(DeviceChoice::Cpu)).unwrap();
            let mut card = Model::load(&checkpoint, options(device)).unwrap();
            let truth = greedy(&mut cpu, &prompt(2, 19), 12, u32::MAX);
            let found = greedy(&mut card, &prompt(2, 19), 12, u32::MAX);
            for (i, (truth, found)) in truth.iter().zip(&found).enumerate() {
                assert!(distance(&truth.1, &found.1) < 1e-2, "{dtype} step {i}");
                assert_eq!(truth.0, found.0, "{dtype} step {i}");
            }
        }
    }
}

/// Sequences of different lengths in one step, first as prompts and then one token each.
#[test]
fn tiny_models_take_mixed_batches() {
    for device in devices() {
        let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::Q8_0), 5).unwrap();
        let mut cpu = Model::load(&checkpoint, options(DeviceChoice::Cpu)).unwrap();
        let mut card = Model::load(&checkpoint, options(device)).unwrap();
        let lengths = [20, 1, 33];
        let mut starts = [0; 3];
        for new in [lengths, [1; 3], [1; 3], [1; 3], [2, 1, 5]] {
            let mut together = Batch::default();
            let mut first_block = 0;
            for (i, n) in new.into_iter().enumerate() {
                let first_row = together.tokens.len() as u32;
                together.tokens.extend(prompt(i as u32, n).into_iter().map(TokenId));
                together.positions.extend(starts[i]..starts[i] + n as u32);
                let block_table = table(first_block, 64);
                first_block += 4;
                together.seqs.push(SeqRows { first_row, n_rows: n as u32, block_table });
                together.logits_rows.push(first_row + n as u32 - 1);
                starts[i] += n as u32;
            }
            let truth = cpu.forward(&together).unwrap().logits.to_vec();
            let found = card.forward(&together).unwrap().logits;
            assert!(distance(&truth, found) < 1e-2, "{new:?}: {}", distance(&truth, found));
        }
    }
}

#[test]
fn a_model_takes_three_allocations_and_decoding_none() {
    for device in devices() {
        let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::Q4_0), 1).unwrap();
        let at_start = counters(device);
        let mut card = Model::load(&checkpoint, options(device)).unwrap();
        let loaded = card.counters().unwrap() - at_start;
        assert_eq!((loaded.allocations, loaded.frees), (3, 0), "weights, KV pool and scratch, and nothing else");
        assert_eq!(loaded.bytes_allocated, card.memory().total_bytes() as u64);
        greedy(&mut card, &prompt(1, 4), 4, u32::MAX);
        let before = card.counters().unwrap();
        let n_steps = greedy(&mut card, &prompt(1, 4), 16, u32::MAX).len() as u64;
        let cost = card.counters().unwrap() - before;
        assert_eq!((cost.bytes_allocated, cost.allocations, cost.host_allocations, cost.frees), (0, 0, 0, 0));
        assert_eq!((cost.read_backs, cost.copies_to_device), (n_steps, n_steps), "one of each a step");
        // The read-back and the inputs it left behind; the driver table holds no wait for a whole device.
        assert!(cost.waits <= 2 * n_steps, "{} waits in {n_steps} steps", cost.waits);
        assert_eq!((cost.events_created, cost.modules_loaded), (0, 0), "all made before");
    }
}

/// Every family that a device has the ops for, against transformers' numbers: all rows at once, then token by token
/// through an eager step, a captured one and replays.
#[test]
fn families_equal_transformers_on_a_device() {
    for device in devices() {
        let (mut failures, mut ran) = (Vec::new(), BTreeMap::new());
        // A software GPU takes its time.
        let names = test_support::share(families::picked());
        let n_names = names.len();
        let all = names.into_iter().flat_map(|name| {
            families::forms(&name).into_iter().map(move |(form, checkpoint)| (name.clone(), form, checkpoint))
        });
        for (name, form, checkpoint) in all {
            let golden = families::golden(&name);
            let options = LoadOptions { kv_type: KvType::F32, n_blocks: 8, max_batch_tokens: 64, ..options(device) };
            let mut model = match Model::load(&checkpoint, options) {
                Ok(model) => model,
                Err(model::Error::NotOnDevice { what }) => {
                    ran.insert(name, format!("no: {what}"));
                    continue;
                }
                Err(error) => panic!("{name} {form}: {error}"),
            };
            let error = families::distance(&families::run(&mut model, &golden), &golden.rows);
            println!("{name:20} {form:12}: {error:.2e}");
            ran.insert(name.clone(), "yes".to_owned());
            if error.is_nan() || error > 1e-3 {
                failures.push(format!("{name} {form}: relative error {error:.2e}"));
            }
            if golden.what != families::What::Logits {
                continue;
            }
            let n_vocab = golden.rows.len() / golden.tokens.len();
            // Only some rows of a prompt go through the end of the last layer.
            let n = golden.tokens.len();
            let mut some = batch(&golden.tokens, 0, &table(0, n), true);
            some.logits_rows = vec![n as u32 - 3, n as u32 - 1];
            let truth = [n - 3, n - 1].map(|row| &golden.rows[row * n_vocab..][..n_vocab]).concat();
            let error = families::distance(model.forward(&some).unwrap().logits, &truth);
            if error.is_nan() || error > 1e-3 {
                failures.push(format!("{name} {form} two rows: relative error {error:.2e}"));
            }
            for (i, truth) in golden.rows.chunks(n_vocab).enumerate() {
                let one = batch(&golden.tokens[i..=i], i, &table(0, golden.tokens.len()), true);
                let error = families::distance(model.forward(&one).unwrap().logits, truth);
                if error.is_nan() || error > 1e-3 {
                    failures.push(format!("{name} {form} token {i}: relative error {error:.2e}"));
                }
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        assert!(!ran.is_empty(), "a family of that name");
        assert_eq!(ran.len(), n_names, "every family ran or was refused by name");
        Record::of(&opened(device), ran).settle();
    }
}

/// The shipped file on a GPU follows the CPU's text and stays close to it in divergence.
#[test]
fn smollm2_gives_the_cpus_tokens() {
    let Some(checkpoint) = smollm2() else { return };
    for device in devices() {
        let wide =
            |device| LoadOptions { n_blocks: 40, max_batch_tokens: 512, max_logits_rows: 512, ..options(device) };
        let mut cpu =
            Model::load(&checkpoint, LoadOptions { kv_type: KvType::F32, ..wide(DeviceChoice::Cpu) }).unwrap();
        let mut card = Model::load(&checkpoint, wide(device)).unwrap();
        // "The capital of France is", without any template.
        let prompt = [504, 3575, 282, 4649, 314];
        let (truth, found) = (greedy(&mut cpu, &prompt, 48, 2), greedy(&mut card, &prompt, 48, 2));
        for (i, (truth, found)) in truth.iter().zip(&found).enumerate() {
            let mut best = log_softmax(&truth.1);
            best.sort_by(|a, b| b.total_cmp(a));
            if truth.0 != found.0 {
                assert!(best[0] - best[1] <= 0.05, "step {i} differs, gap {:.4}", best[0] - best[1]);
                println!("step {i} is a near tie and differs");
                break;
            }
        }
        let tokens: Vec<u32> = truth.iter().map(|step| step.0).chain(prompt).collect();
        let whole = batch(&tokens, 0, &table(0, tokens.len()), true);
        let n_vocab = cpu.config().n_vocab;
        let truth: Vec<Vec<f64>> = cpu.forward(&whole).unwrap().logits.chunks(n_vocab).map(log_softmax).collect();
        let found: Vec<Vec<f64>> = card.forward(&whole).unwrap().logits.chunks(n_vocab).map(log_softmax).collect();
        let kl = |(t, f): (&Vec<f64>, &Vec<f64>)| t.iter().zip(f).map(|(t, f)| t.exp() * (t - f)).sum::<f64>();
        let mean = truth.iter().zip(&found).map(kl).sum::<f64>() / truth.len() as f64;
        println!("{}: mean KL {mean:.2e} over {} tokens", card.device(), truth.len());
        assert!(mean <= 0.0005, "mean KL {mean:.2e}");
    }
}
