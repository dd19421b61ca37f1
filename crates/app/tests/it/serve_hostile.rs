//! Clients that mean harm, or do not know what they ask: what they take is bounded, and others do not notice.

use crate::serve::{chat, metric, start, streamed, wait_until};
use crate::server::{Answer, Server};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Definitions that lead from one to the next, `n` times.
fn chain(n: usize, link: impl Fn(String) -> Value) -> Value {
    let mut definitions: serde_json::Map<String, Value> =
        (0..n).map(|i| (format!("a{i}"), link(format!("#/$defs/a{}", i + 1)))).collect();
    definitions.insert(format!("a{n}"), json!({"type": "integer"}));
    json!({"type": "object", "$ref": "#/$defs/a0", "$defs": definitions})
}

/// The schema under every name that a client can send it by.
fn askings(schema: &Value) -> Vec<(&'static str, Value)> {
    let message = json!([{"role": "user", "content": "hi"}]);
    let function = json!({"name": "f", "description": "d", "parameters": schema});
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": message, "max_tokens": 2, "response_format":
                {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}),
        ),
        ("/v1/chat/completions", json!({"messages": message, "max_tokens": 2, "json_schema": schema})),
        (
            "/v1/chat/completions",
            json!({"messages": message, "max_tokens": 2, "grammar": format!("start: %json {schema}")}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": message, "max_tokens": 2, "tools": [{"type": "function", "function": function}],
                "tool_choice": "required"}),
        ),
        ("/api/chat", json!({"messages": message, "stream": false, "format": schema, "options": {"num_predict": 2}})),
        (
            "/v1/messages",
            json!({"messages": message, "max_tokens": 2, "tool_choice": {"type": "any"},
                "tools": [{"name": "f", "description": "d", "input_schema": schema}]}),
        ),
    ]
}

#[test]
fn no_schema_ends_the_server() {
    let (_roci, server) = start(&["--context", "4096"]);
    let properties = |to: String| json!({"type": "object", "properties": {"a": {"$ref": to}}, "required": ["a"]});
    for schema in [chain(615, |to| json!({"$ref": to})), chain(227, properties), chain(3_000, properties)] {
        for (path, body) in askings(&schema) {
            let answer = server.post(path, &body);
            assert!([200, 400].contains(&answer.status), "{path}: {} {}", answer.status, answer.text);
        }
    }
    // Two to the power of thirty alternatives: more than there is memory for.
    let choice = |i: usize| {
        let one = |name: String| json!({"properties": {name: {"type": "string"}}});
        json!({"anyOf": [one(format!("a{i}")), one(format!("b{i}"))]})
    };
    let product = json!({"type": "object", "allOf": (0..30).map(choice).collect::<Vec<_>>()});
    let (path, body) = &askings(&product)[0];
    let answer = server.post(path, body);
    assert_eq!(answer.status, 400, "{}", answer.text);
    let grammar = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2,
        "grammar": format!("root ::= {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000))});
    assert_eq!(server.post(path, &grammar).status, 400);
    assert_eq!(server.post(path, &chat("hi", 1)).status, 200, "it goes on");
}

#[test]
fn a_large_body_takes_no_more_than_its_share() {
    let (_roci, server) = start(&["--context", "4096"]);
    let before = server.peak_bytes();
    let zeros = "0,".repeat(7 << 20) + "0";
    let words = "a".repeat(15 << 20);
    let hi = r#""messages":[{"role":"user","content":"hi"}]"#;
    for (path, body, status) in [
        ("/v1/chat/completions", format!(r#"{{{hi},"json_schema":{{"enum":[{zeros}]}}}}"#), 413),
        ("/v1/chat/completions", format!(r#"{{{hi},"chat_template_kwargs":{{"a":[{zeros}]}}}}"#), 413),
        ("/v1/chat/completions", format!(r#"{{{hi},"tools":[{zeros}]}}"#), 413),
        ("/v1/completions", format!(r#"{{"prompt":[{zeros}]}}"#), 413),
        ("/detokenize", format!(r#"{{"tokens":[{zeros}]}}"#), 413),
        ("/tokenize", format!(r#"{{"content":"{words}"}}"#), 400),
        ("/v1/completions", format!(r#"{{"prompt":"{words}"}}"#), 400),
        ("/v1/chat/completions", format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}]}}"#), 400),
    ] {
        let answer = server.post_text(path, &body, "");
        assert_eq!(answer.status, status, "{path} {}: {}", &body[..60], answer.text);
    }
    let taken = server.peak_bytes() - before;
    assert!(taken < 300 << 20, "{} MiB for a body of 15", taken >> 20);
    let long = server.post("/v1/chat/completions", &chat(&words, 1));
    assert_eq!(long.json["error"]["code"], "context_length_exceeded", "{}", long.text);
    let bytes = "x".repeat(100_000);
    let counted = server.post("/tokenize", &json!({"content": bytes}));
    assert_eq!((counted.status, &counted.json["count"]), (200, &json!(100_000)), "longer than the context is fine");
}

#[test]
fn a_length_that_is_too_large_is_refused_before_it_is_sent() {
    let (_roci, server) = start(&["--context", "64"]);
    let mut connection = server.connect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 99999999\r\n\r\n";
    connection.write_all(head.as_bytes()).unwrap();
    assert_eq!(Answer::read(connection).status, 413);
}

#[test]
fn silent_connections_lock_nobody_out() {
    let args = ["--context", "64", "--max-connections", "16", "--max-connections-per-peer", "16"];
    let (_roci, server) = start(&args);
    let silent: Vec<_> = (0..100).map(|_| server.connect()).collect();
    assert_eq!(server.get("/health").status, 200);
    wait_until("it is answered", || server.post("/v1/chat/completions", &chat("hi", 1)).status == 200);
    drop(silent);
}

#[test]
fn a_busy_server_still_says_that_it_lives() {
    let args = ["--context", "100000", "--max-connections", "2", "--max-connections-per-peer", "2"];
    let (_roci, server) = start(&args);
    let begin = |_| {
        let mut connection = server.open("/v1/chat/completions", &streamed("hi", 1_000_000), "");
        connection.read_exact(&mut [0; 100]).unwrap();
        connection
    };
    let busy: Vec<_> = (0..2).map(begin).collect();
    let refused = server.post("/v1/chat/completions", &chat("hi", 1));
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("too many connections"), "{}", refused.text);
    assert_eq!(server.get("/health").status, 200);
    drop(busy);
    wait_until("there is room", || server.post("/v1/chat/completions", &chat("hi", 1)).status == 200);
}

#[test]
fn every_connection_has_a_deadline() {
    let (_roci, server) = start(&["--context", "64", "--read-timeout", "1", "--idle-timeout", "1"]);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let idle = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    let whole = [&preface[..], &settings[..]].concat();
    for (what, sent) in [
        ("nothing", &b""[..]),
        ("half a request", &b"GET /health HT"[..]),
        ("half a preface", &preface[..10]),
        ("HTTP/2 without a request", &whole[..]),
        ("an idle connection", &idle[..]),
    ] {
        let start = Instant::now();
        let mut connection = server.connect();
        connection.write_all(sent).unwrap();
        let _ = connection.read_to_end(&mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(60), "{what} was never closed");
    }
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let (_roci, server) = start(&["--context", "1000000", "--write-timeout", "1"]);
    let mut body = streamed("hi", 1_000_000);
    (body["logprobs"], body["top_logprobs"], body["n"]) = (true.into(), 20.into(), 8.into());
    let connection = server.open("/v1/chat/completions", &body, "");
    wait_until("it runs", || metric(&server, "roci_requests_running") > 0.0);
    wait_until("it is cut off", || metric(&server, "roci_requests_running") == 0.0);
    drop(connection);
}

#[test]
fn an_ambiguous_grammar_fails_alone() {
    let (_roci, server) = start(&["--context", "8192"]);
    let ambiguous = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000, "temperature": 0,
        "logit_bias": {"100": 100}, "grammar": "start: s\ns: s s | \"a\" | \"\""});
    let ask = |server: &Server| server.post("/v1/chat/completions", &ambiguous);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(&server))).collect();
        let answer = server.post("/v1/chat/completions", &chat("hi", 200));
        assert_eq!((answer.status, &answer.json["usage"]["completion_tokens"]), (200, &json!(200)));
        for one in all {
            let answer = one.join().unwrap();
            assert_eq!(answer.status, 400, "{}", answer.text);
            assert!(answer.text.contains("which tokens may come next"), "{}", answer.text);
        }
    });
}

/// A request with custom headers, including `Host`.
fn raw(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut connection = server.connect();
    let head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    connection.write_all((head + body).as_bytes()).unwrap();
    Answer::read(connection)
}

#[test]
fn pages_of_others_cannot_ask() {
    let (_roci, server) = start(&["--context", "64", "--allowed-host", "llm.example.org"]);
    let host = format!("Host: {}\r\n", server.address());
    let unload = r#"{"model":"tiny","keep_alive":0}"#;
    let foreign = format!("{host}Origin: https://evil.example\r\nContent-Type: text/plain\r\n");
    let refused = raw(&server, "POST", "/api/generate", &foreign, unload);
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(server.get("/api/ps").json["models"][0]["name"], "tiny", "it is still in memory");
    let own = format!("{host}Origin: http://{}\r\nContent-Type: text/plain\r\n", server.address());
    assert_eq!(raw(&server, "POST", "/api/generate", &own, unload).status, 415);
    let rebound = raw(&server, "GET", "/v1/chat/completions", "Host: evil.example:8080\r\n", "");
    assert_eq!((rebound.status, rebound.json["error"]["code"].as_str()), (403, Some("unknown_host")));
    for host in [host.as_str(), "Host: llm.example.org\r\n", "Host: localhost\r\n"] {
        assert_eq!(raw(&server, "GET", "/v1/models", host, "").status, 200, "{host}");
    }
    assert_eq!(raw(&server, "GET", "/health", "Host: evil.example\r\n", "").status, 200);
    let own = format!("{host}Origin: http://{}\r\nContent-Type: application/json\r\n", server.address());
    assert_eq!(raw(&server, "POST", "/api/generate", &own, unload).status, 200);
}

#[test]
fn who_gives_up_is_written_down() {
    let (_roci, server) = start(&["--context", "100000"]);
    let connection = server.open("/v1/chat/completions", &chat("hi", 1_000_000), "");
    wait_until("it runs", || metric(&server, "roci_requests_running") == 1.0);
    wait_until("it writes", || metric(&server, "roci_engine_steps_total") > 30.0);
    drop(connection);
    wait_until("it is in the log", || server.log().contains("status=499"));
    let log = server.log();
    let line = log.lines().find(|line| line.contains("status=499")).unwrap();
    assert!(line.contains("peer=127.0.0.1") || line.contains("peer=\"127.0.0.1\""), "{line}");
    assert!(!line.contains("generated_tokens=0") && line.contains("generated_tokens="), "{line}");
    assert!(metric(&server, "roci_generated_tokens_total") > 10.0);
    assert_eq!(metric(&server, "roci_answers_abandoned_total"), 1.0);
}
