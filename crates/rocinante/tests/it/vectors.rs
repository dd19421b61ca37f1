//! Vectors as the model was trained to make them, and scores as transformers gives them.

use engine::{Pooling, VectorRequest};
use rocinante::{Device, Error, Model, Options, Request};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../app/testdata/rerankers")
}

fn open(path: &Path) -> Model {
    let options =
        Options { device: Device::Cpu, n_threads: Some(1), kv_type: rocinante::KvType::F32, ..Options::default() };
    Model::open_with(path, &options).unwrap()
}

/// A tiny BERT whose folder says, as sentence-transformers does, which states make the vector.
fn bert(home: &Path, mode: &str) -> Model {
    let folder = home.join(mode);
    std::fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(testdata().join("bert").join(file), folder.join(file)).unwrap();
    }
    std::fs::write(folder.join("1_Pooling/config.json"), json!({ mode: true }).to_string()).unwrap();
    open(&folder)
}

#[test]
fn pooled_as_the_model_was_trained() {
    let home = tempfile::tempdir().unwrap();
    let cases = [("pooling_mode_cls_token", Pooling::First), ("pooling_mode_mean_tokens", Pooling::Mean)];
    let vectors = cases.map(|(mode, pooling)| {
        let model = bert(home.path(), mode);
        let vector = model.embed("a bear").unwrap();
        let asked = VectorRequest { pooling, ..model.engine().embed_request(model.encode_raw("a bear")) };
        assert_eq!(vector, model.vector(asked).unwrap().wait().unwrap(), "{mode}");
        assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4);
        vector
    });
    assert_ne!(vectors[0], vectors[1]);
}

#[test]
fn many_vectors_come_in_order_and_can_be_awaited() {
    let home = tempfile::tempdir().unwrap();
    let model = bert(home.path(), "pooling_mode_mean_tokens");
    let texts: Vec<_> = (0..200).map(|i| model.encode_raw(&format!("text {i}"))).collect();
    let vectors = model.embed_all(texts.clone()).unwrap();
    assert_eq!(vectors.len(), 200);
    let pending = model.vector(model.engine().embed_request(texts[150].clone())).unwrap();
    assert_eq!(futures_executor::block_on(pending).unwrap(), vectors[150]);
    assert!(matches!(model.complete("hi", Request::default()), Err(Error::Encoder)));
}

#[test]
fn scores_are_those_of_transformers() {
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(testdata().join("scores.json")).unwrap()).unwrap();
    let documents: Vec<&str> = golden["documents"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
    for name in ["bert", "xlm-roberta"] {
        let scores = open(&testdata().join(name)).rerank(golden["query"].as_str().unwrap(), &documents).unwrap();
        for (score, expected) in scores.iter().zip(golden[name]["scores"].as_array().unwrap()) {
            assert!((f64::from(*score) - expected.as_f64().unwrap()).abs() <= 1e-4, "{name}: {score} for {expected}");
        }
    }
}
