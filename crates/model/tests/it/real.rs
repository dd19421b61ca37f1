//! Real weights of more families against llama.cpp: its greedy tokens and its log-probabilities, token by token along
//! its own text. The truth is its f32 arithmetic on the same weights. As it runs the packed files, it rounds activations to
//! 8 bits: there close calls may fall the other way; far ones may not.

use model::{KvType, LoadOptions, Model};
use serde_json::Value;

use crate::support::{argmax, batch, log_softmax, real, table};

/// Natural logarithms: two tokens closer than this are a close call.
const CLOSE: f64 = 0.35;

/// llama.cpp's own distance from f32 arithmetic on Gemma 3 270M is 0.099, by the two golden files.
const PACKED: f64 = 0.12;

/// What llama.cpp said: with f32 arithmetic on the same weights, or as it runs the packed file.
struct Golden {
    text: &'static str,
    /// For the mean distance of log-probabilities.
    bound: f64,
}

fn check(variable: &str, golden: &[Golden]) {
    let Some(checkpoint) = real(variable) else { return };
    let options =
        LoadOptions { kv_type: KvType::F16, n_blocks: 40, max_logits_rows: 64, n_threads: 2, ..LoadOptions::default() };
    let mut model = Model::load(&checkpoint, options).unwrap();
    golden.iter().for_each(|golden| follow(&mut model, variable, golden));
}

fn follow(model: &mut Model, variable: &str, golden: &Golden) {
    let bound = golden.bound;
    let golden: Value = serde_json::from_str(golden.text).unwrap();
    let ids = |v: &Value| v.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect::<Vec<u32>>();
    let runs = golden["runs"].as_array().unwrap();
    let (mut n, mut sum, mut n_far) = (0, 0.0, 0);
    for run in runs {
        let (prompt, out) = (ids(&run["prompt_ids"]), ids(&run["out_ids"]));
        let tokens: Vec<u32> = prompt.iter().chain(&out[..out.len() - 1]).copied().collect();
        let mut whole = batch(&tokens, 0, &table(0, tokens.len()), true);
        whole.logits_rows.drain(..prompt.len() - 1);
        let n_vocab = model.config().n_vocab;
        let logits = model.forward(&whole).unwrap().logits.to_vec();
        for (i, (row, expected)) in logits.chunks(n_vocab).zip(&out).enumerate() {
            let logprobs = log_softmax(row);
            let gap = logprobs[argmax(row) as usize] - logprobs[*expected as usize];
            if gap > CLOSE {
                n_far += 1;
                println!("{} step {i}: llama.cpp's token is {gap:.3} below the best", run["user"]);
            }
            let top = run["top10"].get(i).and_then(Value::as_array).into_iter().flatten();
            for pair in top {
                let (token, truth) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
                sum += (logprobs[token] - truth).abs();
                n += 1;
            }
        }
    }
    let mean = sum / f64::from(n);
    println!("{variable}: mean distance {mean:.4} over {n} log-probabilities, {n_far} far tokens");
    assert!(n >= 100 * runs.len() as i32, "{n} log-probabilities");
    assert!(mean <= bound, "mean distance {mean:.4}");
    assert!(n_far <= 3, "{n_far} tokens differ by more than a close call");
}

#[test]
fn gemma3_270m() {
    let exact = Golden { text: include_str!("../../testdata/gemma3-270m-f32-golden.json"), bound: 0.005 };
    let packed = Golden { text: include_str!("../../testdata/gemma3-270m-golden.json"), bound: PACKED };
    check("ROCI_GEMMA3", &[exact, packed]);
}

#[test]
#[ignore = "two bits are slow to decode, and npm has the file"]
fn tinyllama_in_two_bits() {
    let exact = Golden { text: include_str!("../../testdata/tinyllama-1.1b-f32-golden.json"), bound: 0.005 };
    let packed = Golden { text: include_str!("../../testdata/tinyllama-1.1b-golden.json"), bound: PACKED };
    check("ROCI_TINYLLAMA", &[exact, packed]);
}

#[test]
#[ignore = "1.1 GB"]
fn qwen25_coder() {
    let exact = Golden { text: include_str!("../../testdata/qwen2.5-coder-1.5b-f32-golden.json"), bound: 0.005 };
    let packed = Golden { text: include_str!("../../testdata/qwen2.5-coder-1.5b-golden.json"), bound: PACKED };
    check("ROCI_QWEN25_CODER", &[exact, packed]);
}
