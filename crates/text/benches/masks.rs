//! What the masks of a JSON schema take, in the states that a model without an opinion goes through: after each token the
//! next is drawn among all that are allowed. Times are those of the thread that computes.
//! `ROCI_VOCAB_DIR=llama.cpp/models cargo bench -p roci-text --bench masks`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use test_support::fetched;
use text::constraint::{Compiler, Constraint};
use text::{Tokenizer, Vocab};

const N_ANSWERS: u64 = 64;
const N_TOKENS: usize = 128;

fn main() {
    let Some(folder) = fetched::path(fetched::VOCABULARIES) else { return };
    let tokenizer = open(&folder.join("ggml-vocab-llama-bpe.gguf"));
    let start = Instant::now();
    let compiler = Compiler::new(&tokenizer, tokenizer.n_vocab()).unwrap();
    println!("{} tokens, trie and slices in {:.0?}", tokenizer.n_vocab(), start.elapsed());
    // As bench/h200.py has it.
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "n": {"type": "integer"}
        },
        "required": ["name", "tags", "n"]
    });
    for (name, constraint) in [("schema", Constraint::JsonSchema(schema)), ("any object", Constraint::Json)] {
        let start = Instant::now();
        compiler.build(&constraint).unwrap();
        println!("{name}: compiled in {:.1?}", start.elapsed());
        measure(&tokenizer, &compiler, &constraint);
    }
}

fn open(path: &Path) -> Arc<Tokenizer> {
    let checkpoint = weights::Checkpoint::open(path).unwrap();
    let meta = checkpoint.metadata();
    let id = |key: &str| meta.u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
    let strings = |key: &str| meta.strings(key).unwrap().unwrap_or_default().to_vec();
    let vocab = Vocab {
        model: meta.string("tokenizer.ggml.model").unwrap().unwrap_or_default().to_owned(),
        pre: meta.string("tokenizer.ggml.pre").unwrap().unwrap_or_default().to_owned(),
        tokens: strings("tokenizer.ggml.tokens"),
        types: meta.i32s("tokenizer.ggml.token_type").unwrap().unwrap_or_default().into_owned(),
        merges: strings("tokenizer.ggml.merges"),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        ..Vocab::default()
    };
    Arc::new(Tokenizer::new(vocab).unwrap())
}

/// Times of accepting a token, and of finding what may come next.
fn measure(tokenizer: &Tokenizer, compiler: &Compiler, constraint: &Constraint) {
    let (mut accepting, mut finding, mut by_step) = (Vec::new(), Vec::new(), vec![Duration::ZERO; N_TOKENS]);
    let (mut n_forced, mut n_ended) = (0, 0);
    let mut draws = 1_u64;
    for _ in 0..N_ANSWERS {
        let mut matcher = compiler.build(constraint).unwrap();
        for of_step in &mut by_step {
            let start = Instant::now();
            let mut ids = Vec::new();
            matcher.allowed(|words| ids = words.to_vec()).unwrap();
            let found = start.elapsed();
            let n_allowed: u32 = ids.iter().map(|word| word.count_ones()).sum();
            n_forced += usize::from(n_allowed == 1);
            draws = draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let token = nth(&ids, (draws >> 33) as u32 % n_allowed);
            if tokenizer.is_end(token) {
                n_ended += 1;
                break;
            }
            let start = Instant::now();
            matcher.accept(token).unwrap();
            let accepted = start.elapsed();
            accepting.push(accepted);
            finding.push(found);
            *of_step += accepted + found;
        }
    }
    print_quantiles("accept", accepting);
    print_quantiles("allowed", finding);
    let (first, rest) = (by_step[0], by_step[1..].iter().sum::<Duration>() / (N_TOKENS as u32 - 1));
    println!("  of {N_ANSWERS} answers together: first step {first:.1?}, later ones {rest:.1?} on average");
    println!("  {n_forced} masks of one token, {n_ended} answers ended before {N_TOKENS} tokens");
}

/// The member of a set of bits with so many before it.
fn nth(words: &[u32], mut n: u32) -> u32 {
    for (at, &word) in words.iter().enumerate() {
        if n < word.count_ones() {
            let bit = (0..32).filter(|bit| word & 1 << bit != 0).nth(n as usize);
            return at as u32 * 32 + bit.expect("the word has more");
        }
        n -= word.count_ones();
    }
    unreachable!("the set has so many")
}

fn print_quantiles(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    println!(
        "  {name:<8} mean {mean:>9.1?}  p50 {:>9.1?}  p90 {:>9.1?}  p99 {:>9.1?}  max {:>9.1?}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
}
