//! Adapters as a client meets them: models of their own, in one batch with others, loaded while the server runs, after an
//! engine's death, and written into the weights.

use crate::roci::Roci;
use crate::serve::wait_until;
use crate::serve_operator::add_key;
use crate::server::{Answer, Server};
use crate::tiny;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use test_support::Random;
use weights::{Bytes, Checkpoint, Dtype, Metadata};

/// A random adapter of the tiny model, as llama.cpp's converter would write it.
fn write_adapter(home: &Path, name: &str, seed: u64) -> PathBuf {
    let base = Checkpoint::open(&home.join("tiny.gguf")).unwrap();
    let mut metadata = Metadata::new();
    metadata.set("general.type", "adapter");
    metadata.set("general.architecture", "llama");
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", 8.0_f32);
    let (mut random, rank) = (Random::new(seed), 4);
    let mut tensors = Vec::new();
    for stem in ["attn_q", "attn_v", "ffn_down"] {
        let name = format!("blk.0.{stem}.weight");
        let shape = base.tensor(&name).unwrap().shape.clone();
        for (part, shape) in [("lora_a", vec![rank, shape[1]]), ("lora_b", vec![shape[0], rank])] {
            let numbers = random.numbers(shape.iter().product());
            let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            tensors.push((format!("{name}.{part}"), Dtype::F32, shape, Bytes::from_vec(bytes)));
        }
    }
    let path = home.join(format!("{name}.gguf"));
    weights::gguf::write(&path, &metadata, tensors).unwrap();
    path
}

fn home() -> Roci {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    write_adapter(roci.home.path(), "one", 1);
    write_adapter(roci.home.path(), "two", 2);
    roci
}

fn completion(model: &str) -> Value {
    json!({"model": model, "prompt": "the same long beginning of a text ".repeat(3), "max_tokens": 8, "temperature": 0})
}

fn complete(server: &Server, model: &str) -> Answer {
    let answer = server.post("/v1/completions", &completion(model));
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer
}

fn text(server: &Server, model: &str) -> String {
    complete(server, model).json["choices"][0]["text"].as_str().unwrap().to_owned()
}

const SERVE: [&str; 4] = ["serve", "tiny.gguf", "--context", "512"];

#[test]
fn adapters_are_models_of_their_own() {
    let roci = home();
    let server = Server::start(&roci, &[&SERVE[..], &["--lora", "one=one.gguf", "--lora", "two.gguf"]].concat());
    let listed = server.get("/v1/models").json;
    let names =
        |key: &str| -> Vec<Value> { listed["data"].as_array().unwrap().iter().map(|m| m[key].clone()).collect() };
    assert_eq!(names("id"), ["tiny", "one", "tiny:one", "two", "tiny:two"], "{listed}");
    assert_eq!(names("parent"), [Value::Null, "tiny".into(), "tiny".into(), "tiny".into(), "tiny".into()]);
    let (plain, one, two) = (text(&server, "tiny"), text(&server, "one"), text(&server, "two"));
    assert!(plain != one && one != two && plain != two, "{plain} {one} {two}");
    assert_eq!((text(&server, "tiny:one"), text(&server, "any-name")), (one.clone(), plain.clone()));
    // Adapters do not share prefixes.
    let cached = |model: &str| complete(&server, model).json["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert!([cached("tiny"), cached("one"), cached("two")].iter().all(|n| n.as_u64() > Some(64)));
    let unknown = server.post("/v1/completions", &completion("tiny:three"));
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    // Requests of all kinds side by side.
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..12)
            .map(|i| {
                let (model, expected) = [("tiny", &plain), ("one", &one), ("two", &two)][i % 3];
                let server = &server;
                (scope.spawn(move || text(server, model)), expected)
            })
            .collect();
        asked.into_iter().for_each(|(said, expected)| assert_eq!(said.join().unwrap(), **expected));
    });
    let listed = server.get("/lora-adapters").json;
    assert_eq!((&listed[0]["name"], &listed[1]["path"]), (&"one".into(), &"two.gguf".into()), "{listed}");
    let page = server.get("/metrics").text;
    assert!(page.contains("vllm:lora_requests_info{") && page.contains("max_lora=\"2\""), "{page}");
    let refused = server.post("/v1/load_lora_adapter", &json!({"lora_name": "x", "lora_path": "two.gguf"}));
    assert!(refused.status == 403 && refused.text.contains("--allow-runtime-lora"), "{}", refused.text);
}

#[test]
fn adapters_come_and_go_while_the_server_runs() {
    let roci = home();
    let keys = roci.home.path().join("keys.txt");
    let (admin, guest) = (add_key(&roci, "admin", "admin=yes"), add_key(&roci, "guest", ""));
    let args = ["--allow-runtime-lora", "--max-loras", "1", "--api-key-file", keys.to_str().unwrap()];
    let server = Server::start(&roci, &[&SERVE[..], &args].concat());
    let post = |path: &str, body: Value, key: &str| server.post_with(path, &body, key);
    let said = |model: &str| {
        let answer = post("/v1/completions", completion(model), &guest);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json["choices"][0]["text"].clone()
    };
    let load = |name: &str, path: &str, key: &str| {
        let path = roci.home.path().join(path);
        post("/v1/load_lora_adapter", json!({"lora_name": name, "lora_path": path}), key)
    };
    let plain = said("tiny");
    assert_eq!(load("one", "one.gguf", &guest).status, 403);
    let loaded = load("one", "one.gguf", &admin);
    assert!(loaded.status == 200 && loaded.text.contains("'one' added"), "{}", loaded.text);
    assert_eq!(load("two", "two.gguf", &admin).status, 200);
    let one = said("one");
    // There is room for one at a time: they take turns.
    for _ in 0..2 {
        assert!(said("one") == one && said("two") != one && said("tiny") == plain);
    }
    let again = load("one", "two.gguf", &admin);
    assert!(again.status == 400 && again.text.contains("name of an adapter already"), "{}", again.text);
    let model = load("x", "tiny.gguf", &admin);
    assert!(model.status == 400 && model.text.contains("adapter"), "{}", model.text);
    assert_eq!(load("x", "missing.gguf", &admin).status, 400);
    assert_eq!(post("/v1/unload_lora_adapter", json!({"lora_name": "one"}), &admin).status, 200);
    assert_eq!(post("/v1/unload_lora_adapter", json!({"lora_name": "one"}), &admin).status, 404);
    assert_eq!(load("one", "two.gguf", &admin).status, 200);
    assert_eq!(said("one"), said("two"), "the same files under another name");
}

/// The next engine reads the adapter again.
#[test]
fn an_adapter_survives_the_death_of_an_engine() {
    let roci = home();
    let server = Server::start(&roci, &[&SERVE[..], &["--lora", "one=one.gguf"]].concat());
    let one = text(&server, "one");
    let engines = crate::serve_deaths::engines(&server);
    let killed = std::process::Command::new("kill").args(["-9", &engines[0].to_string()]).status().unwrap();
    assert!(killed.success());
    wait_until("another engine", || crate::serve_deaths::engines(&server).iter().any(|id| !engines.contains(id)));
    assert_eq!(text(&server, "one"), one);
}

#[test]
fn a_merged_model_says_what_the_adapter_says() {
    let roci = home();
    let greedy =
        ["--raw", "Once upon", "--temperature", "0", "--max-tokens", "12", "--device", "cpu", "--kv-type", "f32"];
    let run = |args: &[&str]| {
        let outcome = roci.run(&[args, &greedy].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout
    };
    let merged = roci.run(&["merge", "tiny.gguf", "--lora", "one.gguf", "-o", "merged.gguf"]);
    assert_eq!(merged.code, Some(0), "{}", merged.stderr);
    let (plain, adapted) = (run(&["run", "tiny.gguf"]), run(&["run", "tiny.gguf", "--lora", "one.gguf"]));
    assert_ne!(plain, adapted);
    assert_eq!(run(&["run", "merged.gguf"]), adapted);
    let small = roci.run(&["merge", "tiny.gguf", "--lora", "one.gguf", "-o", "small.gguf", "--type", "Q8_0"]);
    assert_eq!(small.code, Some(0), "{}", small.stderr);
    let check = |args: &[&str], expected: &str| {
        let refused = roci.run(args);
        assert!(refused.code == Some(1) && refused.stderr.contains(expected), "{args:?}: {}", refused.stderr);
    };
    check(&["merge", "tiny.gguf", "--lora", "one.gguf", "-o", "merged.gguf"], "exists");
    check(&["merge", "small.gguf", "--lora", "one.gguf", "-o", "x.gguf", "--type", "Q4_0"], "already quantized");
    check(&["merge", "tiny.gguf", "--lora", "tiny.gguf", "-o", "x.gguf"], "hint: an adapter is a folder");
    check(&["run", "tiny.gguf", "hi", "--lora", "nowhere"], "nowhere");
    check(&["serve", "tiny.gguf", "--port", "0", "--lora", "tiny=one.gguf"], "two models are named `tiny`");
}
