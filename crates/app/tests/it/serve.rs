//! `roci serve` as a client meets it: the tiny model behind a real socket.

use crate::roci::Roci;
use crate::server::{Answer, Server};
use crate::tiny;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

/// The tiny model says `x` for ever.
pub fn chat(text: &str, max_tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "logit_bias": {"123": 1000}})
}

pub fn streamed(text: &str, max_tokens: usize) -> Value {
    let mut body = chat(text, max_tokens);
    body["stream"] = true.into();
    body
}

pub fn start(args: &[&str]) -> (Roci, Server) {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let mut all = vec!["serve", "tiny.gguf"];
    all.extend(args);
    let server = Server::start(&roci, &all);
    (roci, server)
}

/// A gauge or counter of `/metrics`.
pub fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").text;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Looks again until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stream_tells_how_much_of_the_prompt_is_read() {
    let (_roci, server) = start(&["--context", "2048", "--prefill-chunk", "64", "--max-batch-tokens", "64"]);
    let mut body = streamed(&"a word ".repeat(100), 2);
    let read = |body: &Value| -> Vec<(u64, u64)> {
        let text = server.post("/v1/chat/completions", body).text;
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let told = events.filter_map(|event| event.get("prompt_progress").cloned());
        told.map(|told| (told["processed"].as_u64().unwrap(), told["total"].as_u64().unwrap())).collect()
    };
    assert_eq!(read(&body), [], "only who asks is told");
    body["return_progress"] = true.into();
    // Another beginning, so that nothing is in the cache.
    body["messages"][0]["content"] = "other words ".repeat(60).into();
    let told = read(&body);
    assert!(told.len() > 5 && told.is_sorted() && told.iter().all(|(read, all)| read < all), "{told:?}");
}

#[test]
fn answers_whole_and_in_pieces() {
    let (_roci, server) = start(&["--context", "256"]);
    let Answer { status, headers, json, .. } = server.post("/v1/chat/completions", &chat("hi", 5));
    assert_eq!((status, &json["choices"][0]["message"]["content"]), (200, &json!("xxxxx")));
    assert_eq!(json["choices"][0]["finish_reason"], "length");
    assert_eq!(json["usage"]["completion_tokens"], 5);
    assert!(headers.contains("x-request-id: req_"), "{headers}");
    let text = server.post("/v1/chat/completions", &streamed("hi", 3)).text;
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let pieces = events[..events.len() - 1].iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
    let shown: String =
        pieces.filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect();
    assert_eq!(shown, "xxx");
    let message = json!({"max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": "hi"}]});
    let answer = server.post("/v1/messages", &message);
    assert_eq!((answer.status, &answer.json["stop_reason"]), (200, &json!("max_tokens")), "{}", answer.text);
    let generate = json!({"model": "tiny", "prompt": "hi", "options": {"num_predict": 2, "temperature": 0}});
    let lines = server.post("/api/generate", &generate).text;
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &json!(2)));
}

#[test]
fn mistakes_are_told_in_the_shape_of_the_family() {
    let (_roci, server) = start(&["--context", "64", "--max-body", "1"]);
    let check = |path: &str, body: Value, status: u16, part: &str| {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        assert!(answer.text.contains(part), "{path}: `{}` does not contain `{part}`", answer.text);
    };
    let chat_path = "/v1/chat/completions";
    check(chat_path, json!({}), 400, r#""type":"invalid_request_error""#);
    check(chat_path, json!({"messages": []}), 400, r#""param":"messages""#);
    check(chat_path, json!({"messages": [{"role": "king", "content": ""}]}), 400, "messages[0].role");
    check(chat_path, json!({"messages": 3}), 400, r#""param":"messages""#);
    check(chat_path, chat(&"a".repeat(100), 4), 400, "context_length_exceeded");
    let with = |key: &str, value: Value| {
        let mut body = chat("hi", 1);
        body[key] = value;
        body
    };
    check(chat_path, with("temperature", json!(-1)), 400, r#""param":"temperature""#);
    check(chat_path, with("n", json!(0)), 400, r#""param":"n""#);
    check(chat_path, with("logit_bias", json!({"999999": 1})), 400, "there is no token 999999");
    check(chat_path, with("tools", json!([{"type": "function"}])), 400, "tools[0]");
    check(
        "/v1/messages",
        json!({"messages": [], "max_tokens": 1}),
        400,
        r#"{"type":"error","error":{"type":"invalid_"#,
    );
    check("/api/chat", json!({"messages": [{"role": "x"}]}), 400, r#"{"error":"unknown role `x`"#);
    check("/v1/responses", json!({"previous_response_id": "resp_x"}), 404, "previous_response_not_found");
    check("/detokenize", json!({"tokens": [4_000_000]}), 400, "there is no token 4000000");
    check(chat_path, chat(&"a".repeat(2 << 20), 1), 413, "larger than 1048576 bytes");
    let answer = server.get("/v1/completions");
    assert_eq!((answer.status, answer.json["error"]["type"].as_str()), (405, Some("invalid_request_error")));
    assert_eq!(server.get("/v1/nothing").status, 404);
}

#[test]
fn names_of_models() {
    let (_roci, server) = start(&["--context", "64", "--strict-model-names"]);
    let mut body = chat("hi", 1);
    body["model"] = "gpt-9".into();
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!((answer.status, answer.json["error"]["code"].as_str()), (404, Some("model_not_found")));
    body["model"] = "tiny".into();
    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
    assert_eq!(server.get("/v1/models").json["data"][0]["id"], "tiny");
}

#[test]
fn models_take_turns_in_memory() {
    let roci = Roci::new();
    tiny::write_each(roci.home.path(), &["a", "b"]);
    let server = Server::start(&roci, &["serve", "a.gguf", "b.gguf", "--context", "64"]);
    let loaded = || {
        let models = server.get("/api/ps").json["models"].clone();
        models.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(loaded(), ["a"]);
    for name in ["b", "a", "b"] {
        let mut body = chat("hi", 1);
        body["model"] = name.into();
        assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
        assert_eq!(loaded(), [name]);
    }
    let mut body = chat("hi", 1);
    body["model"] = "c".into();
    assert_eq!(server.post("/v1/chat/completions", &body).status, 404, "with two models a name must be one of them");
}

#[test]
fn keys_rates_and_places() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let make = |args: &[&str]| {
        let mut all = vec!["key", "new", "--file", "keys.txt"];
        all.extend(args);
        roci.run(&all).stdout.trim().to_owned()
    };
    let (plain, slow, one) = (
        make(&["--name", "plain"]),
        make(&["--name", "slow", "--rate", "2"]),
        make(&["--name", "one", "--concurrent", "1"]),
    );
    let file = std::fs::read_to_string(roci.home.path().join("keys.txt")).unwrap();
    assert!(!file.contains(&plain[5..]), "the file holds the key itself: {file}");
    let server = Server::start(
        &roci,
        &["serve", "tiny.gguf", "--context", "100000", "--api-key-file", "keys.txt", "--open-metrics"],
    );
    let path = "/v1/chat/completions";
    let ask = |key: &str| server.post_with(path, &chat("hi", 1), &format!("Authorization: Bearer {key}\r\n"));
    assert_eq!(server.post(path, &chat("hi", 1)).status, 401);
    assert_eq!(ask("roci-wrong").status, 401);
    assert_eq!(ask(&plain).status, 200);
    assert_eq!(server.post_with(path, &chat("hi", 1), &format!("x-api-key: {plain}\r\n")).status, 200);
    assert_eq!(server.get("/health").status, 200);
    for path in ["/v1/models", "/models", "/api/tags", "/props", "/slots"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    assert_eq!((ask(&slow).status, ask(&slow).status), (200, 200));
    let refused = ask(&slow);
    assert_eq!(refused.status, 429);
    assert!(refused.headers.contains("retry-after: "), "{}", refused.headers);
    // A stream holds its place until it ends or its client goes.
    let held = server.open(path, &streamed("hi", 1_000_000), &format!("Authorization: Bearer {one}\r\n"));
    let mut reader = BufReader::new(held);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    assert_eq!(ask(&one).status, 429);
    drop(reader);
    wait_until("the place is free again", || ask(&one).status == 200);
}

#[test]
fn others_are_not_let_in_without_a_key() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let outcome = roci.run(&["serve", "tiny.gguf", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stderr.contains("no key is required") && outcome.stderr.contains("roci key new"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_full_queue_answers_429() {
    let (_roci, server) = start(&["--context", "100000", "--max-running", "1", "--max-queue", "1"]);
    let path = "/v1/chat/completions";
    let _running = server.open(path, &streamed("one", 1_000_000), "");
    wait_until("the first runs", || metric(&server, "vllm:num_requests_running") == 1.0);
    let _waiting = server.open(path, &streamed("two", 1_000_000), "");
    wait_until("the second waits", || metric(&server, "vllm:num_requests_waiting") == 1.0);
    let refused = server.post(path, &chat("three", 1));
    assert_eq!((refused.status, refused.json["error"]["code"].as_str()), (429, Some("queue_full")));
    assert!(refused.headers.contains("retry-after: "), "{}", refused.headers);
}

#[test]
fn a_client_that_goes_frees_its_blocks() {
    let (_roci, server) = start(&["--context", "100000"]);
    let path = "/v1/chat/completions";
    for body in [streamed("hi", 1_000_000), chat("hi", 1_000_000)] {
        let connection = server.open(path, &body, "");
        wait_until("it runs", || metric(&server, "roci_requests_running") == 1.0);
        drop(connection);
        wait_until("it is gone", || metric(&server, "roci_requests_running") == 0.0);
        assert_eq!(metric(&server, "roci_kv_blocks_held{"), 0.0);
    }
}

#[test]
fn sigterm_lets_requests_end() {
    let (_roci, mut server) = start(&["--context", "100000", "--drain-timeout", "60"]);
    let mut connection = server.open("/v1/chat/completions", &streamed("hi", 3000), "");
    wait_until("it runs", || metric(&server, "roci_requests_running") == 1.0);
    server.terminate();
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "the stream was cut");
    assert!(text.matches("\"content\":\"x").count() > 1000);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_second_signal_waits_for_nobody() {
    let (_roci, mut server) = start(&["--context", "100000", "--drain-timeout", "600"]);
    let mut connection = server.open("/v1/chat/completions", &streamed("hi", 1_000_000), "");
    wait_until("it runs", || metric(&server, "roci_requests_running") == 1.0);
    server.terminate();
    wait_until("it drains", || server.log().contains("stopping"));
    // Read on: a stream that nobody reads would stand still.
    let reader = std::thread::spawn(move || connection.read_to_end(&mut Vec::new()));
    server.terminate();
    assert_eq!(server.wait(), Some(0));
    let _ = reader.join().unwrap();
    assert!(server.log().contains("told to stop once more"), "{}", server.log());
}

/// Before the model is loaded, which may take minutes.
#[test]
fn an_address_that_is_taken_is_said_at_once() {
    let (roci, server) = start(&["--context", "64"]);
    std::fs::write(roci.home.path().join("broken.gguf"), "no model").unwrap();
    let port = server.address().rsplit(':').next().unwrap();
    let outcome = roci.run(&["serve", "broken.gguf", "--port", port]);
    assert!(outcome.stderr.contains("cannot listen on 127.0.0.1:"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("hint: --port 0"), "{}", outcome.stderr);
}

#[test]
fn metrics_and_logs() {
    let (_roci, mut server) = start(&["--context", "256", "--log-format", "json"]);
    server.post_with("/v1/chat/completions", &chat("a secret word", 4), "X-Request-Id: my-own-id\r\n");
    let text = server.get("/metrics").text;
    for name in [
        "vllm:num_requests_running{",
        "vllm:num_requests_waiting{",
        "vllm:kv_cache_usage_perc{",
        "vllm:cache_config_info{",
        "vllm:time_to_first_token_seconds_bucket{",
        "roci_inter_token_seconds_bucket{",
        "roci_queue_time_seconds_bucket{",
        "roci_generated_tokens_total{",
        "roci_prefix_hit_tokens_total{",
        "roci_memory_resident_bytes ",
        "roci_http_requests_total{",
    ] {
        assert!(text.contains(name), "no {name} in {text}");
    }
    assert!(text.contains("# HELP roci_requests_waiting "), "{text}");
    for name in [
        "e2e_request_latency_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "iteration_tokens_total",
    ] {
        for part in [format!("# HELP vllm:{name} "), format!("vllm:{name}_bucket{{"), format!("vllm:{name}_sum{{")] {
            assert!(text.contains(&part), "no {part} in {text}");
        }
    }
    assert_eq!(metric(&server, "roci_generated_tokens_total"), 4.0);
    server.terminate();
    server.wait();
    let log = server.log();
    let line = log.lines().find(|line| line.contains("my-own-id")).unwrap_or_else(|| panic!("{log}"));
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["status"], &line["path"]), (&json!(200), &json!("/v1/chat/completions")));
    assert!(!log.contains("secret"), "{log}");
}

/// No machine of ours has GPUs of every vendor; the log says why one is missing.
#[test]
fn why_there_is_no_gpu_is_logged() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let devices = roci.run(&["devices", "--output", "json"]).json();
    let absent = devices["absent"].as_array().unwrap();
    if absent.is_empty() {
        return test_support::skip("this machine has GPUs of every vendor", "ROCI_REQUIRE_ABSENT_GPU");
    }
    let server = Server::start_on("auto", &roci, &["serve", "tiny.gguf", "--context", "256"], &[]);
    server.post("/v1/chat/completions", &chat("hi", 1));
    for gpu in absent {
        let (vendor, why) = (gpu["vendor"].as_str().unwrap(), gpu["why"].as_str().unwrap());
        let line = format!("no {vendor} GPU: {why}");
        assert!(server.log().contains(&line), "no `{line}` in {}", server.log());
    }
}

#[test]
fn prompts_and_answers_are_logged_where_that_was_asked_for() {
    let (_roci, mut server) = start(&["--context", "256", "--log-prompts"]);
    server.post("/v1/chat/completions", &chat("a plain word", 4));
    server.post("/v1/completions", &json!({"prompt": "another word", "max_tokens": 1}));
    server.terminate();
    server.wait();
    let log = server.log();
    for part in ["a plain word", "answer=\"xxxx\"", "prompt=\"another word\""] {
        assert!(log.contains(part), "no {part} in {log}");
    }
}

#[test]
fn settings_from_three_places() {
    let roci = Roci::new();
    std::fs::write(roci.home.path().join("roci.toml"), "models = [\"m.gguf\"]\nport = 1\nmax-queue = 7\n").unwrap();
    let mut command = roci.command(&["serve", "--config", "roci.toml", "--port", "3", "--print-config"]);
    let output = command.env("ROCI_MAX_RUNNING", "5").env("ROCI_PORT", "2").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in ["models = [\"m.gguf\"]", "port = 3", "max-queue = 7", "max-running = 5", "host = \"127.0.0.1\""] {
        assert!(
            text.lines().any(|other| other == line),
            "no `{line}` in {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn broken_requests_never_end_the_server() {
    let (_roci, server) = start(&["--context", "64", "--read-timeout", "1"]);
    for raw in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"messages\":",
        "\u{16}\u{3}\u{1}\u{0}binary",
    ] {
        let mut connection = server.connect();
        connection.write_all(raw.as_bytes()).unwrap();
        let mut text = Vec::new();
        // The server hangs up by itself: the rest never comes.
        let _ = connection.read_to_end(&mut text);
        assert!(!String::from_utf8_lossy(&text).contains("HTTP/1.1 5"), "{raw:?}");
    }
    let deep = format!("{{\"messages\":{}", "[".repeat(100_000));
    assert_eq!(server.post_text("/v1/chat/completions", &deep, "").status, 400);
    assert_eq!(server.post("/v1/chat/completions", &chat("hi", 1)).status, 200);
}

#[test]
fn ready_says_no_before_connections_are_refused() {
    let (_roci, mut server) = start(&["--context", "64", "--drain-notice", "3"]);
    assert_eq!(server.get("/ready").status, 200);
    server.terminate();
    wait_until("it is not ready", || server.get("/ready").status == 503);
    assert_eq!(server.post("/v1/chat/completions", &chat("hi", 1)).status, 200, "it still answers");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_stream_that_is_cut_says_why() {
    let (_roci, mut server) = start(&["--context", "1000000", "--drain-timeout", "0"]);
    let mut connection = server.open("/v1/chat/completions", &streamed("hi", 1_000_000), "");
    wait_until("it runs", || metric(&server, "roci_requests_running") == 1.0);
    server.terminate();
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    assert!(text.contains("the server is stopping") && text.contains("data: [DONE]"), "{}", &text[text.len() - 300..]);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_model_whose_file_is_gone_is_not_ready() {
    let roci = Roci::new();
    let path = tiny::write(roci.home.path());
    std::fs::copy(&path, roci.home.path().join("other.gguf")).unwrap();
    let server = Server::start(&roci, &["serve", "tiny.gguf", "other.gguf", "--context", "64"]);
    assert_eq!(server.get("/ready").status, 200);
    std::fs::remove_file(roci.home.path().join("other.gguf")).unwrap();
    let answer = server.get("/ready");
    assert_eq!((answer.status, &answer.json["models"]), (503, &json!(["other"])));
    let mut body = chat("hi", 1);
    body["model"] = "other".into();
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 503);
    assert!(!answer.text.contains(&*roci.home.path().to_string_lossy()), "{}", answer.text);
}

#[test]
fn seeds_of_several_answers_do_not_meet() {
    let (_roci, server) = start(&["--context", "256"]);
    let ask = |seed: u64, n: u64| {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "min_p": 0, "seed": seed, "n": n});
        let choices = server.post("/v1/chat/completions", &body).json["choices"].clone();
        choices.as_array().unwrap().iter().map(|choice| choice["message"]["content"].clone()).collect::<Vec<_>>()
    };
    let (two, next) = (ask(1, 2), ask(2, 1));
    assert_eq!(two[0], ask(1, 1)[0]);
    assert_ne!(two[1], next[0]);
}
