//! What operators need: what the server is doing, what keys use and may use, and an audit log.

use crate::roci::Roci;
use crate::serve::{chat, start, streamed, wait_until};
use crate::server::{Answer, Server};
use crate::tiny;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};

const PATH: &str = "/v1/chat/completions";

/// A key with settings, as a header.
pub fn add_key(roci: &Roci, name: &str, settings: &str) -> String {
    let key = roci.run(&["key", "new", "--file", "keys.txt", "--name", name]).stdout.trim().to_owned();
    let path = roci.home.path().join("keys.txt");
    let file = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, file.trim_end().to_owned() + " " + settings + "\n").unwrap();
    format!("Authorization: Bearer {key}\r\n")
}

#[test]
fn the_status_shows_models_and_how_quickly_they_answer() {
    let (_roci, server) = start(&["--context", "256"]);
    assert_eq!(server.post(PATH, &chat("hi", 20)).status, 200);
    // The engine's own process reports a moment later.
    wait_until("nothing runs", || server.get("/v1/status").json["models"][0]["running"] == 0);
    let status = server.get("/v1/status").json;
    assert_eq!((&status["state"], &status["devices"][0]["is_gpu"]), (&json!("ready"), &json!(false)));
    let model = &status["models"][0];
    assert_eq!((&model["name"], &model["state"], &model["running"]), (&json!("tiny"), &json!("ready"), &json!(0)));
    assert_eq!((&model["time_to_first_token_ms"]["n"], &model["inter_token_ms"]["n"]), (&json!(1), &json!(19)));
    assert!(model["inter_token_ms"]["p99"].as_f64() >= model["inter_token_ms"]["p50"].as_f64());
    assert!(model["kv"]["blocks"].as_u64() > Some(0) && status["memory"]["resident_bytes"].as_u64() > Some(1 << 20));
    assert_eq!(status["keys"][0]["total"]["generated_tokens"], 20);
    assert_eq!(server.get("/live").json["status"], "ok");
}

#[test]
fn a_request_may_not_ask_for_more_than_its_key_allows() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let alice = add_key(&roci, "alice", "request-tokens=100");
    let args = ["serve", "tiny.gguf", "--context", "256", "--api-key-file", "keys.txt"];
    let server = Server::start(&roci, &args);
    let ask = |max_tokens: Option<usize>, n: usize| {
        let mut body = json!({"prompt": "hi", "n": n, "temperature": 0});
        body["max_tokens"] = max_tokens.into();
        server.post_with("/v1/completions", &body, &alice)
    };
    assert_eq!(ask(Some(30), 3).status, 200);
    for refused in [ask(Some(30), 4), ask(Some(120), 1), ask(Some(100_000), 1)] {
        assert_eq!((refused.status, &refused.json["error"]["code"]), (400, &json!("request_too_large")));
        assert!(refused.text.contains("may take 100 tokens"), "{}", refused.text);
    }
}

#[test]
fn a_key_has_a_quota_and_sees_its_own_use() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let alice = add_key(&roci, "alice", "day-tokens=30");
    let bob = add_key(&roci, "bob", "");
    let root = add_key(&roci, "root", "admin=yes");
    let args = ["serve", "tiny.gguf", "--context", "256", "--api-key-file", "keys.txt", "--audit-log", "audit.jsonl"];
    let server = Server::start(&roci, &args);
    assert_eq!(server.post_with(PATH, &chat("hi", 20), &bob).status, 200);
    assert_eq!(server.post_with(PATH, &chat("hi", 20), &alice).status, 200);
    let refused = server.post_with(PATH, &chat("hi", 1), &alice);
    assert_eq!((refused.status, &refused.json["error"]["code"]), (429, &json!("insufficient_quota")));
    assert!(refused.headers.contains("retry-after:"), "{}", refused.headers);
    let names = |value: &Value, name: &str| -> Vec<String> {
        value.as_array().unwrap().iter().map(|item| item[name].as_str().unwrap().to_owned()).collect()
    };
    let own = server.ask("GET", "/v1/usage", &bob).json;
    assert_eq!(names(&own["data"], "key"), ["bob"]);
    assert_eq!(
        (&own["data"][0]["total"]["generated_tokens"], &own["data"][0]["total"]["requests"]),
        (&json!(20), &json!(1))
    );
    assert_eq!(names(&server.ask("GET", "/v1/status", &bob).json["keys"], "name"), ["bob"]);
    assert_eq!(names(&server.ask("GET", "/v1/status", &root).json["keys"], "name"), ["alice", "bob", "root"]);
    let table = server.ask("GET", "/v1/usage?format=csv", &root).text;
    assert!(table.starts_with("key,date,requests,prompt_tokens,generated_tokens\nalice,20"), "{table}");
    assert_eq!(server.ask("GET", "/v1/usage?format=xml", &root).status, 400);
    assert_eq!(server.ask("GET", "/v1/usage", "").status, 401);
    let audit = || std::fs::read_to_string(roci.home.path().join("audit.jsonl")).unwrap();
    wait_until("all of it is written down", || audit().lines().count() >= 9);
    let lines: Vec<Value> = audit().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&lines[0]["key"], &lines[0]["status"], &lines[0]["generated_tokens"]),
        (&json!("bob"), &json!(200), &json!(20))
    );
    assert!(lines.iter().any(|line| line["status"] == 401 && line["key"].is_null()), "{lines:?}");
    assert!(!audit().contains("roci-"), "no key is written down");
}

#[test]
fn one_model_under_other_names() {
    let (_roci, server) =
        start(&["--context", "64", "--strict-model-names", "--served-model-name", "a", "--served-model-name", "b"]);
    let ids: Vec<Value> =
        server.get("/v1/models").json["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["a", "b"]);
    for (name, status) in [("a", 200), ("b", 200), ("tiny", 404)] {
        let mut body = chat("hi", 1);
        body["model"] = name.into();
        assert_eq!(server.post(PATH, &body).status, status, "{name}");
    }
}

/// A model that was told to leave while others use it is not loaded a second time beside itself.
#[test]
fn a_model_that_is_to_leave_is_not_loaded_twice() {
    let (_roci, server) = start(&["--context", "100000"]);
    let mut reader = BufReader::new(server.open(PATH, &streamed("hi", 90_000), ""));
    reader.read_line(&mut String::new()).unwrap();
    let leave = json!({"model": "tiny", "messages": [], "keep_alive": 0});
    assert_eq!(server.post("/api/chat", &leave).json["done_reason"], "unload");
    assert_eq!(server.post(PATH, &chat("hi", 1)).status, 200);
    let is_loaded = || !server.get("/api/ps").json["models"].as_array().unwrap().is_empty();
    assert!(is_loaded());
    server.post("/api/chat", &leave);
    assert!(is_loaded(), "somebody is still answered by it");
    drop(reader);
    wait_until("it leaves", || !is_loaded());
    assert_eq!(server.log().matches("load_ms").count(), 1, "it was loaded once, at the start: {}", server.log());
}

#[test]
fn a_client_that_closes_its_half_is_answered() {
    let (_roci, server) = start(&["--context", "64"]);
    let body = chat("hi", 3).to_string();
    let mut connection = server.connect();
    let head =
        format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all((head + &body).as_bytes()).unwrap();
    connection.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = Answer::read(connection);
    let text = answer.text.rsplit("\r\n\r\n").next().unwrap();
    // It may have been told before that it is being worked on.
    assert!([102, 200].contains(&answer.status), "{}", answer.headers);
    let json: Value = serde_json::from_str(text).unwrap();
    assert_eq!(json["choices"][0]["message"]["content"], "xxx");
}

#[test]
fn a_head_request_gets_the_head_of_the_page() {
    let (_roci, server) = start(&["--context", "64"]);
    let (head, whole) = (server.ask("HEAD", "/", ""), server.get("/"));
    assert_eq!((head.status, whole.status), (200, 200), "{}", head.headers);
    assert!(head.text.is_empty() && !whole.text.is_empty());
    let length = |headers: &str| headers.lines().find(|line| line.starts_with("content-length")).map(str::to_owned);
    assert_eq!(length(&head.headers), length(&whole.headers));
}
