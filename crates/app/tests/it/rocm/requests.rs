//! What requests ask of a server on the card, all at once and with steps that overlap: each answer is the one that a server
//! on the CPU gives it alone, one step after the other.

use super::{command_as, script, with_tiny};
use crate::roci::Roci;
use crate::serve::{metric, wait_until};
use crate::serve_deaths::read_stream;
use crate::server::Server;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};

const PATH: &str = "/v1/completions";

fn on_card(roci: &Roci, script: &str, more: &[&str]) -> Server {
    let args = ["serve", "tiny.gguf", "--port", "0", "--device", "rocm", "--step-deadline", "600"];
    Server::of(command_as(roci, script, &[env!("CARGO_BIN_EXE_roci")], &[&args[..], more].concat(), &[]))
}

fn request(prompt: &str, n_tokens: usize, wishes: Value) -> Value {
    let mut body =
        json!({"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": true, "stream": true});
    body.as_object_mut().unwrap().extend(wishes.as_object().unwrap().clone());
    body
}

/// One of each: what the device does by itself, what it does with adjusted logits, and what the host does for a row.
fn requests() -> Vec<Value> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let wishes = [
        json!({}),
        json!({"temperature": 1.0, "seed": 5}),
        json!({"temperature": 0.9, "seed": 6, "top_k": 20, "top_p": 0.9, "min_p": 0.02}),
        json!({"frequency_penalty": 0.7, "presence_penalty": 0.3}),
        json!({"repetition_penalty": 1.4}),
        json!({"logit_bias": {"100": 5, "101": -100}, "temperature": 0.8, "seed": 7}),
        json!({"guided_regex": "(ab|cd){8}"}),
        json!({"response_format": format, "temperature": 0.7, "seed": 8}),
        json!({"guided_regex": "[a-f]{16}", "frequency_penalty": 0.5}),
        json!({"logprobs": 3}),
        json!({"dry_multiplier": 0.8, "dry_allowed_length": 1}),
        json!({"typical_p": 0.7, "temperature": 1.0, "seed": 9}),
        json!({"mirostat": 2, "temperature": 1.0, "seed": 10}),
    ];
    let request_for = |(n, wishes)| request(&format!("{n}: the beginning of something"), 20, wishes);
    wishes.into_iter().enumerate().map(request_for).collect()
}

/// What each of them is told, when nobody else asks and no step overlaps.
fn truth(roci: &Roci, bodies: &[Value]) -> Vec<String> {
    let server = Server::start_on("cpu", roci, &["serve", "tiny.gguf", "--context", "256"], &[]);
    bodies.iter().map(|body| read_stream(&server, PATH, body).0).collect()
}

fn at_once(server: &Server, bodies: &[Value]) -> Vec<String> {
    std::thread::scope(|scope| {
        let all: Vec<_> = bodies.iter().map(|body| scope.spawn(|| read_stream(server, PATH, body).0)).collect();
        all.into_iter().map(|asking| asking.join().unwrap()).collect()
    })
}

#[test]
fn answers_at_once_are_those_of_each_alone() {
    let Some(script) = script() else { return };
    let (roci, bodies) = (with_tiny(), requests());
    let truth = truth(&roci, &bodies);
    assert!(truth.iter().all(|text| !text.is_empty()), "{truth:?}");
    assert!(truth[6].len() == 16 && truth[7].starts_with('{'), "{truth:?}");
    let server = on_card(&roci, &script, &["--context", "256"]);
    for (found, (truth, body)) in at_once(&server, &bodies).iter().zip(truth.iter().zip(&bodies)) {
        assert_eq!(found, truth, "{body}");
    }
}

/// A client that leaves takes nothing from the others, and its row is given up.
#[test]
fn others_do_not_notice_a_client_that_leaves() {
    let Some(script) = script() else { return };
    let (roci, bodies) = (with_tiny(), requests());
    let bodies = &bodies[..4];
    let truth = truth(&roci, bodies);
    let server = on_card(&roci, &script, &["--context", "4096"]);
    let leaving = request("one that leaves", 4000, json!({"frequency_penalty": 0.5}));
    let stream = server.open(PATH, &leaving, "");
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().starts_with("data: ")), "it never began");
    let texts = std::thread::scope(|scope| {
        let asking = scope.spawn(|| at_once(&server, bodies));
        wait_until("all run", || metric(&server, "roci_requests_running") >= 2.0);
        drop(lines);
        asking.join().unwrap()
    });
    assert_eq!(texts, truth);
    wait_until("nothing runs", || metric(&server, "roci_requests_running") == 0.0);
}

/// A pool that is too small for all: requests are put back and computed again, and nobody can tell.
#[test]
fn answers_are_the_same_when_requests_are_put_back() {
    let Some(script) = script() else { return };
    let roci = with_tiny();
    let wishes = |n: usize| match n % 3 {
        0 => json!({}),
        1 => json!({"frequency_penalty": 0.6}),
        _ => json!({"guided_regex": "[a-m]{60}"}),
    };
    let bodies: Vec<Value> = (0..6).map(|n| request(&format!("{n} and a short beginning"), 60, wishes(n))).collect();
    let truth = truth(&roci, &bodies);
    let server = on_card(&roci, &script, &["--context", "128", "--kv-tokens", "256"]);
    assert_eq!(at_once(&server, &bodies), truth);
    assert!(metric(&server, "roci_engine_preemptions_total") > 0.0, "the pool was large enough for all");
}
