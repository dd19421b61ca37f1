//! Tiny rerankers with vocabularies, made with transformers (`scripts/make_rerankers.py`): `roci rerank` must give the
//! scores that transformers gives to the same question and texts.

use crate::roci::Roci;
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use weights::Dtype;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/rerankers")
}

fn check(roci: &Roci, name: &str, model: &Path) {
    let folder = folder();
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("scores.json")).unwrap()).unwrap();
    let documents: Vec<&str> = golden["documents"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
    let args = ["rerank", "--kv-type", "f32", model.to_str().unwrap(), golden["query"].as_str().unwrap()];
    let found = roci.run(&[&args[..], &documents[..]].concat()).json();
    let results = found["results"].as_array().unwrap();
    assert_eq!(results.len(), documents.len());
    let scores: Vec<f64> = results.iter().map(|result| result["score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "best first: {scores:?}");
    for result in results {
        let index = result["index"].as_u64().unwrap() as usize;
        let (score, expected) = (result["score"].as_f64().unwrap(), golden[name]["scores"][index].as_f64().unwrap());
        assert!((score - expected).abs() <= 1e-4, "{name}, {:?}: {score} for {expected}", documents[index]);
    }
}

#[test]
fn bert_tells_the_question_from_the_text() {
    check(&Roci::new(), "bert", &folder().join("bert"));
}

/// llama.cpp's converter leaves half of this head behind; what is written here has all of it.
#[test]
fn bert_written_as_gguf_gives_the_same_scores() {
    let roci = Roci::new();
    let out = roci.home.path().join("bert.gguf");
    let (from, to) = (folder().join("bert"), out.to_str().unwrap());
    let made = roci.run(&["quantize", from.to_str().unwrap(), to, "--type", "F16"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let written = weights::Checkpoint::open(&out).unwrap();
    let others = written.tensors().iter().find(|tensor| !matches!(tensor.dtype, Dtype::F16 | Dtype::F32));
    assert!(others.is_none(), "{others:?}");
    check(&roci, "bert", &out);
}

/// The same scores and the same refusals, whether there is a head for them or not.
#[test]
fn the_command_line_and_the_server_agree() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let bert = folder().join("bert");
    for model in ["tiny.gguf", bert.to_str().unwrap()] {
        let server = Server::start(&roci, &["serve", model, "--kv-type", "f32"]);
        let body = json!({"model": "x", "query": "which bear", "documents": ["a bear", "the sea", "which bear"]});
        let served = server.post("/v1/rerank", &body).json;
        let texts = ["which bear", "a bear", "the sea", "which bear"];
        let args = [&["rerank", model][..], &texts, &["--kv-type", "f32", "--threads", "1"]].concat();
        let told = roci.run(&args).json();
        let (served, told) = (served["results"].as_array().unwrap(), told["results"].as_array().unwrap());
        assert_eq!(served.len(), told.len());
        for (served, told) in served.iter().zip(told) {
            assert_eq!(served["index"], told["index"], "{model}");
            let (a, b) = (served["relevance_score"].as_f64().unwrap(), told["score"].as_f64().unwrap());
            assert!((a - b).abs() < 1e-6, "{model}: {a} and {b}");
        }
        let refused = server.post("/v1/rerank", &json!({"query": "x", "documents": [""]}));
        let told = roci.run(&["rerank", model, "x", ""]);
        let message = refused.json["error"]["message"].as_str().unwrap();
        assert_eq!((refused.status, told.code), (400, Some(1)), "{}", told.stderr);
        assert!(told.stderr.contains(message), "{message}: {}", told.stderr);
    }
}

/// Scored by how likely the answer "yes" is, with the words around question and text that it was trained with.
#[test]
fn qwen3_answers_yes_or_no() {
    check(&Roci::new(), "qwen3-reranker", &folder().join("qwen3-reranker"));
}

/// Mean, two dense layers, length 1; questions and documents with prompts of their own.
#[test]
fn an_embedder_with_the_modules_and_prompts_of_sentence_transformers() {
    let roci = Roci::new();
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(folder().join("scores.json")).unwrap()).unwrap();
    let query = golden["query"].as_str().unwrap();
    let documents: Vec<&str> = golden["documents"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
    let vectors = &golden["gemma-embedding"]["vectors"];
    let folder = folder().join("gemma-embedding");
    let model = folder.to_str().unwrap();
    let close = |found: &Value, text: &str| {
        let (found, truth) = (found.as_array().unwrap(), vectors[text].as_array().unwrap());
        assert_eq!(found.len(), truth.len());
        for (found, truth) in found.iter().zip(truth) {
            assert!((found.as_f64().unwrap() - truth.as_f64().unwrap()).abs() < 1e-3, "{text}");
        }
    };
    let told = roci.run(&["embed", model, "--kv-type", "f32", "--prompt-name", "query", query]).json();
    close(&told["embeddings"][0], query);
    let args = [&["embed", model, "--kv-type", "f32", "--prompt-name", "document"][..], &documents].concat();
    let told = roci.run(&args).json();
    documents.iter().enumerate().for_each(|(i, document)| close(&told["embeddings"][i], document));
    let refused = roci.run(&["embed", model, "--prompt-name", "task", query]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("no prompt named `task`; it has `document`, `query`"), "{}", refused.stderr);

    let server = Server::start(&roci, &["serve", model, "--kv-type", "f32"]);
    let served = server.post("/v1/embeddings", &json!({"input": [query], "prompt_name": "query"})).json;
    close(&served["data"][0]["embedding"], query);
    let refused = server.post("/v1/embeddings", &json!({"input": query, "prompt_name": "task"}));
    assert_eq!(refused.status, 400);
    // The similarity of what both prompts give.
    let served = server.post("/v1/rerank", &json!({"query": query, "documents": documents})).json;
    for result in served["results"].as_array().unwrap() {
        let document = documents[result["index"].as_u64().unwrap() as usize];
        let pairs = vectors[query].as_array().unwrap().iter().zip(vectors[document].as_array().unwrap());
        let cosine: f64 = pairs.map(|(a, b)| a.as_f64().unwrap() * b.as_f64().unwrap()).sum();
        assert!((result["relevance_score"].as_f64().unwrap() - cosine).abs() < 1e-3, "{document}");
    }
}

#[test]
fn xlm_roberta() {
    check(&Roci::new(), "xlm-roberta", &folder().join("xlm-roberta"));
}
