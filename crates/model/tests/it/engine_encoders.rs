//! Vectors and scores through the engine, from tiny encoders, against transformers.

use std::path::{Path, PathBuf};

use engine::{EngineOptions, Error, PooledStates, Pooling, start};
use model::{Attention, KvType, LoadOptions, Model, TokenId};
use weights::Checkpoint;

fn families() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/families")
}

fn numbers(name: &str, key: &str) -> Vec<f32> {
    let file = Checkpoint::open(&families().join(format!("golden/{name}.safetensors"))).unwrap();
    let bytes = file.tensor(key).unwrap().bytes.clone();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn handle(name: &str) -> (engine::Handle, Vec<TokenId>) {
    let checkpoint = Checkpoint::open(&families().join(format!("{name}.gguf"))).unwrap();
    let kv_type = KvType::F32;
    let options = LoadOptions { kv_type, n_blocks: 16, max_logits_rows: 64, n_threads: 1, ..LoadOptions::default() };
    let tokens = numbers(name, "tokens").into_iter().map(|token| TokenId(token as u32)).collect();
    (start(Model::load(&checkpoint, options).unwrap(), EngineOptions::default(), None), tokens)
}

#[test]
fn an_encoder_gives_the_mean_of_its_states() {
    for name in ["bert", "nomic-bert", "xlm-roberta"] {
        let (handle, tokens) = handle(name);
        assert_eq!(handle.embeds().attention, Attention::Full);
        let states = numbers(name, "hidden");
        let n_embd = states.len() / tokens.len();
        let mut mean: Vec<f64> = vec![0.0; n_embd];
        for row in states.chunks_exact(n_embd) {
            mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
        // Twice, beside each other: texts of one batch do not see each other.
        let requests = vec![handle.embed_request(tokens.clone()), handle.embed_request(tokens)];
        for vector in handle.vectors(requests).unwrap() {
            for (found, truth) in vector.iter().zip(&mean) {
                assert!((f64::from(*found) - truth / length).abs() < 1e-4, "{name}");
            }
        }
        handle.shutdown();
    }
}

#[test]
fn a_reranker_scores_and_others_say_that_they_cannot() {
    let (reranker, tokens) = handle("xlm-roberta-rerank");
    assert_eq!(reranker.embeds().head, Some(PooledStates::First));
    let scores = reranker.vectors(vec![reranker.score_request(tokens, usize::MAX)]).unwrap();
    let truth = numbers("xlm-roberta-rerank", "score");
    assert!((scores[0][0] - truth[0]).abs() < 1e-3 * truth[0].abs().max(1.0), "{scores:?} for {truth:?}");
    reranker.shutdown();

    let (encoder, tokens) = handle("bert");
    assert_eq!(encoder.embeds().head, None);
    let request = encoder.score_request(tokens, 3);
    assert_eq!(request.pooling, Pooling::Score { n_first: 3, states: PooledStates::First });
    assert!(matches!(encoder.vectors(vec![request]), Err(Error::NoVector { .. })));
    encoder.shutdown();
}
