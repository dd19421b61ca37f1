//! Several models: who stays in memory, who leaves, and encoders among them.

use crate::roci::Roci;
use crate::serve::{chat, metric, streamed, wait_until};
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

fn loaded(server: &Server) -> Vec<String> {
    let models = server.get("/api/ps").json["models"].clone();
    models.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

fn ask(server: &Server, name: &str) {
    let mut body = chat("hi", 1);
    body["model"] = name.into();
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[test]
fn the_least_recently_used_leaves() {
    let roci = Roci::new();
    tiny::write_each(roci.home.path(), &["a", "b", "c", "d"]);
    let models = ["serve", "a.gguf", "b.gguf", "c.gguf", "d.gguf"];
    let server = Server::start(&roci, &[models.as_slice(), &["--context", "64", "--max-loaded", "2"]].concat());
    assert_eq!(loaded(&server), ["a"]);
    for (name, expected) in
        [("b", ["a", "b"]), ("a", ["a", "b"]), ("c", ["a", "c"]), ("d", ["c", "d"]), ("a", ["a", "d"])]
    {
        ask(&server, name);
        assert_eq!(loaded(&server), expected, "after {name}");
    }
}

/// Two names of one file are one engine, and what it counts is counted once.
#[test]
fn names_of_one_file_share_an_engine() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let server = Server::start(&roci, &["serve", "a=tiny.gguf", "b=./tiny.gguf", "--context", "256"]);
    let ask = |name: &str| {
        let mut body = chat(&"the same long beginning ".repeat(4), 2);
        body["model"] = name.into();
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(ask("a"), 0);
    assert!(ask("b") > 64, "what one name computed is there for the other");
    assert_eq!((loaded(&server).len(), crate::serve_deaths::engines(&server).len()), (2, 1));
    assert_eq!(metric(&server, "roci_models_loaded"), 1.0);
    let steps = || {
        let page = server.get("/metrics").text;
        let lines = page.lines().filter(|line| line.starts_with("roci_engine_steps_total{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    wait_until("both answers are counted, once", || steps() == 4.0);
    // One name leaves; the engine stays for the other.
    assert_eq!(server.ask("DELETE", "/v1/models/a", "").status, 200);
    wait_until("it left", || loaded(&server) == ["b"]);
    assert!(ask("b") > 64);
    wait_until("nothing is forgotten", || steps() == 6.0);
    assert_eq!(server.ask("DELETE", "/v1/models/b", "").status, 200);
    wait_until("the engine went with its last name", || crate::serve_deaths::engines(&server).is_empty());
    assert_eq!(steps(), 6.0);
}

/// A model that answers somebody is not taken from under them, even if it was used longest ago.
#[test]
fn a_model_in_use_stays() {
    let roci = Roci::new();
    tiny::write_each(roci.home.path(), &["a", "b", "c"]);
    let models = ["serve", "a.gguf", "b.gguf", "c.gguf"];
    let server = Server::start(&roci, &[models.as_slice(), &["--context", "100000", "--max-loaded", "2"]].concat());
    let mut body = streamed("hi", 90_000);
    body["model"] = "a".into();
    let mut reader = BufReader::new(server.open("/v1/chat/completions", &body, ""));
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    ask(&server, "b");
    ask(&server, "c");
    assert_eq!(loaded(&server), ["a", "c"]);
    drop(reader);
}

#[test]
fn an_idle_model_leaves_and_comes_back() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let server = Server::start(&roci, &["serve", "tiny.gguf", "--context", "100000", "--idle-unload", "1"]);
    // Answering counts as use, however long it takes.
    let mut body = streamed("hi", 90_000);
    body["stream_options"] = json!({"include_usage": true});
    let held = server.open("/v1/chat/completions", &body, "");
    let start = std::time::Instant::now();
    wait_until("three times as long as an idle one stays", || start.elapsed().as_secs() >= 3);
    assert_eq!(loaded(&server), ["tiny"]);
    drop(held);
    wait_until("it leaves", || loaded(&server).is_empty());
    ask(&server, "tiny");
    assert_eq!(loaded(&server), ["tiny"]);
    wait_until("it leaves again", || loaded(&server).is_empty());
}

fn families() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/testdata/families")
}

/// A tiny encoder with the vocabulary that its file lacks: BERT's marks, then words `w6`, `w7` and so on.
fn write_encoder(family: &str, path: &Path) {
    let checkpoint = weights::Checkpoint::open(&families().join(format!("{family}.gguf"))).unwrap();
    let n_vocab = model::Config::from_metadata(checkpoint.metadata()).unwrap().n_vocab;
    let mut metadata = weights::Metadata::new();
    for (key, value) in checkpoint.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.ggml.")) {
        metadata.set(key, value.clone());
    }
    let marks = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"].map(str::to_owned);
    // As llama.cpp writes WordPiece: a word begins with a mark for the space before it.
    let words = (marks.len()..n_vocab).map(|i| format!("\u{2581}w{i}"));
    let tokens: Vec<String> = marks.into_iter().chain(words).collect();
    metadata.set("tokenizer.ggml.model", "bert");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.cls_token_id", 1u32);
    metadata.set("tokenizer.ggml.bos_token_id", 1u32);
    metadata.set("tokenizer.ggml.seperator_token_id", 2u32);
    metadata.set("tokenizer.ggml.eos_token_id", 2u32);
    metadata.set("tokenizer.ggml.unknown_token_id", 3u32);
    let tensors = checkpoint.tensors().iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.bytes.clone()));
    weights::gguf::write(path, &metadata, tensors).unwrap();
}

fn golden(family: &str, key: &str) -> Vec<f32> {
    let file = weights::Checkpoint::open(&families().join(format!("golden/{family}.safetensors"))).unwrap();
    let bytes = file.tensor(key).unwrap().bytes.clone();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// An encoder behind the server gives what transformers gives; and says that it does not write.
#[test]
fn encoders_make_vectors_and_no_text() {
    let roci = Roci::new();
    write_encoder("bert", &roci.home.path().join("bert.gguf"));
    let server = Server::start(&roci, &["serve", "bert.gguf"]);
    let tokens: Vec<u32> = golden("bert", "tokens").into_iter().map(|token| token as u32).collect();
    let states = golden("bert", "hidden");
    let n_embd = states.len() / tokens.len();
    let mean: Vec<f64> =
        (0..n_embd).map(|i| states.chunks_exact(n_embd).map(|row| f64::from(row[i])).sum::<f64>()).collect();
    let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    let answer = server.post("/v1/embeddings", &json!({"input": [tokens, tokens]}));
    assert_eq!(answer.status, 200, "{}", answer.text);
    for i in 0..2 {
        for (found, truth) in vector(&answer.json["data"][i]["embedding"]).iter().zip(&mean) {
            assert!((found - truth / length).abs() < 1e-3, "{found} for {}", truth / length);
        }
    }
    let by_text = server.post("/api/embed", &json!({"input": ["w10 w11", "w10 w12"]})).json;
    assert_eq!(by_text["prompt_eval_count"], 8, "each text has two words and two marks");
    assert_ne!(by_text["embeddings"][0], by_text["embeddings"][1]);
    // Without a head it ranks by the angle between vectors.
    let body = json!({"query": "w10 w11", "documents": ["w50 w60", "w10 w11"], "return_documents": true});
    let ranked = server.post("/rerank", &body).json;
    assert_eq!(ranked["results"][0]["index"], 1);
    assert!((ranked["results"][0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 1e-3, "{ranked}");
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "w10"}]})),
        ("/v1/completions", json!({"prompt": "w10"})),
        ("/v1/responses", json!({"input": "w10"})),
        ("/v1/messages", json!({"max_tokens": 1, "messages": [{"role": "user", "content": "w10"}]})),
        ("/api/generate", json!({"prompt": "w10"})),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains("is an encoder"), "{path}: {}", answer.text);
    }
    let long: Vec<u32> = tokens.iter().copied().cycle().take(500).collect();
    let answer = server.post("/v1/embeddings", &json!({"input": long}));
    assert_eq!((answer.status, &answer.json["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(server.post("/api/show", &json!({"model": "bert"})).json["capabilities"], json!(["embedding"]));
}

/// A reranker is asked through its head: its scores are no angles.
#[test]
fn rerankers_use_their_head() {
    let roci = Roci::new();
    write_encoder("xlm-roberta-rerank", &roci.home.path().join("reranker.gguf"));
    let server = Server::start(&roci, &["serve", "reranker.gguf"]);
    let body = json!({"query": "w10 w11", "documents": ["w50 w60", "w10 w11", "w20"], "top_n": 2});
    let answer = server.post("/v1/rerank", &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let outcome = roci.run(&["rerank", "reranker.gguf", "w10 w11", "w50 w60", "w10 w11", "w20", "--device", "cpu"]);
    let told: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{}", outcome.stderr));
    for (found, told) in results.iter().zip(told["results"].as_array().unwrap()) {
        assert_eq!(found["index"], told["index"]);
        let (found, told) = (found["relevance_score"].as_f64().unwrap(), told["score"].as_f64().unwrap());
        assert!((found - told).abs() < 1e-4, "{found} and {told}");
    }
}

#[test]
fn a_load_goes_on_when_its_client_gives_up() {
    let roci = Roci::new();
    tiny::write_each(roci.home.path(), &["a", "b"]);
    let server = Server::start(&roci, &["serve", "a.gguf", "b.gguf", "--context", "64"]);
    let mut body = chat("hi", 1);
    body["model"] = "b".into();
    let asking: Vec<_> = (0..10).map(|_| server.open("/v1/chat/completions", &body, "")).collect();
    wait_until("it has begun", || loaded(&server) != ["a"]);
    drop(asking);
    wait_until("it is in memory all the same", || loaded(&server) == ["b"]);
    let loads = server.log().matches("load_ms").count();
    assert!(loads <= 2, "{loads} loads: {}", server.log());
}

#[test]
fn a_busy_model_makes_room_when_its_turn_is_over() {
    let roci = Roci::new();
    tiny::write_each(roci.home.path(), &["a", "b"]);
    let server = Server::start(&roci, &["serve", "a.gguf", "b.gguf", "--context", "4096", "--model-turn", "1"]);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Never idle: one request begins before the other ends.
        for _ in 0..2 {
            scope.spawn(|| {
                let mut body = chat("hi", 100);
                body["model"] = "a".into();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
                }
            });
        }
        wait_until("it is busy", || crate::serve::metric(&server, "roci_requests_running") == 2.0);
        let mut body = chat("hi", 1);
        body["model"] = "b".into();
        let answer = server.post("/v1/chat/completions", &body);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(answer.status, 200, "{}", answer.text);
    });
}

fn status(server: &Server, name: &str) -> u16 {
    let mut body = chat("hi", 1);
    body["model"] = name.into();
    server.post("/v1/chat/completions", &body).status
}

/// An answer of this model that is still under way.
fn long_answer(server: &Server, name: &str) -> BufReader<std::net::TcpStream> {
    let mut body = streamed("hi", 90_000);
    body["model"] = name.into();
    let mut reader = BufReader::new(server.open("/v1/chat/completions", &body, ""));
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    reader
}

/// A model whose turn is over leaves, even if all who wait for its place are refused before its last answer ends: they
/// come back, and would otherwise find it as busy as before.
#[test]
fn waiters_that_give_up_do_not_call_a_turn_off() {
    let roci = Roci::new();
    tiny::write_each(roci.home.path(), &["a", "b"]);
    let turns = ["--context", "100000", "--model-wait", "1", "--model-turn", "2"];
    let server = Server::start(&roci, &[&["serve", "a.gguf", "b.gguf"], &turns[..]].concat());
    let held = long_answer(&server, "a");
    assert_eq!(status(&server, "b"), 429);
    // Nobody waits for the other model at these moments.
    wait_until("it takes nothing new", || status(&server, "a") == 429);
    assert_eq!((status(&server, "b"), status(&server, "a")), (429, 429));
    drop(held);
    wait_until("those who come back find their model", || status(&server, "b") == 200);
    wait_until("and so do the others", || status(&server, "a") == 200);
}

#[test]
fn everyone_waits_equally_long_for_room() {
    let roci = Roci::new();
    tiny::write_each(roci.home.path(), &["a", "b", "c", "d", "e"]);
    let models = ["serve", "a.gguf", "b.gguf", "c.gguf", "d.gguf", "e.gguf"];
    let turns = ["--context", "100000", "--model-wait", "2", "--model-turn", "600"];
    let server = Server::start(&roci, &[&models[..], &turns[..]].concat());
    let held = long_answer(&server, "a");
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for name in ["b", "c", "d", "e"] {
            let server = &server;
            scope.spawn(move || assert_eq!(status(server, name), 429));
        }
    });
    // One after the other would take the last of them eight.
    assert!(start.elapsed().as_secs() < 7, "{:?}", start.elapsed());
    drop(held);
}
