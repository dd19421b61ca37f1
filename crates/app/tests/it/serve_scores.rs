//! Log-probabilities of prompts, the likeliest of several answers, and seeds, as clients of completions see them.

use crate::serve::start;
use crate::server::Server;
use serde_json::{Value, json};

fn complete(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/completions", body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    answer.json
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

#[test]
fn an_echo_comes_with_the_scores_of_the_prompt() {
    let (_roci, server) = start(&["--context", "256"]);
    // What the model says of tokens as it makes them is what it says of the same tokens in a prompt: here `x`, always.
    let bias = json!({"123": 1000});
    let body = json!({"prompt": "abc", "max_tokens": 40, "temperature": 0, "logprobs": 2, "logit_bias": bias});
    let made = complete(&server, &body);
    let made = &made["choices"][0]["logprobs"];
    let all: Vec<u32> = "abc".bytes().chain([b'x'; 40]).map(byte_id).collect();
    let body = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 2});
    let echo = complete(&server, &body);
    let scores = &echo["choices"][0]["logprobs"];
    assert_eq!(echo["usage"]["completion_tokens"], 0);
    assert_eq!(scores["token_logprobs"].as_array().unwrap().len(), all.len());
    assert_eq!((&scores["token_logprobs"][0], &scores["top_logprobs"][0]), (&json!(0.0), &json!({})));
    let (expected, found) = (numbers(&made["token_logprobs"]), numbers(&scores["token_logprobs"]));
    assert_eq!(found.len(), all.len());
    for (expected, found) in expected.iter().zip(&found[3..]) {
        assert!((expected - found).abs() < 1e-3, "{expected} and {found}");
    }
    // With more after it, and as a stream: the same scores, and offsets that go on.
    let mut body = json!({"prompt": all, "max_tokens": 2, "echo": true, "logprobs": 0, "temperature": 0});
    let whole = complete(&server, &body)["choices"][0]["logprobs"].clone();
    assert_eq!(whole["tokens"].as_array().unwrap().len(), all.len() + 2);
    body["stream"] = true.into();
    let text = server.post("/v1/completions", &body).text;
    let (mut offsets, mut logprobs) = (Vec::new(), Vec::new());
    for event in text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|event| *event != "[DONE]") {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let shown = &chunk["choices"][0]["logprobs"];
        if !shown.is_null() {
            offsets.extend(numbers(&shown["text_offset"]));
            logprobs.extend(numbers(&shown["token_logprobs"]));
        }
    }
    assert_eq!(offsets, numbers(&whole["text_offset"]));
    assert_eq!(logprobs.len(), all.len() + 2);
}

/// The tiny model's vocabulary: three marks, then the bytes.
fn byte_id(byte: u8) -> u32 {
    3 + u32::from(byte)
}

#[test]
fn the_likeliest_of_several_answers() {
    let (_roci, server) = start(&["--context", "256"]);
    let body = |n: usize, best_of: usize| json!({"prompt": "abc", "max_tokens": 6, "temperature": 1.5, "seed": 5, "logprobs": 0, "n": n, "best_of": best_of});
    let mean = |choice: &Value| {
        let all = numbers(&choice["logprobs"]["token_logprobs"]);
        all.iter().sum::<f64>() / all.len() as f64
    };
    let all = complete(&server, &body(8, 8));
    let mut order: Vec<(f64, &Value)> =
        all["choices"].as_array().unwrap().iter().map(|choice| (mean(choice), &choice["text"])).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = complete(&server, &body(2, 8));
    let texts: Vec<&Value> = best["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, [order[0].1, order[1].1]);
    assert_eq!(best["usage"]["completion_tokens"], all["usage"]["completion_tokens"], "all that were made count");
    let mut wrong = body(3, 2);
    assert_eq!(server.post("/v1/completions", &wrong).json["error"]["param"], "best_of");
    wrong = body(1, 2);
    wrong["stream"] = true.into();
    assert_eq!(server.post("/v1/completions", &wrong).json["error"]["param"], "best_of");
}

/// The same request gives the same answers: first, from the prefix cache, and while others run.
#[test]
fn a_seed_gives_the_same_answers_again() {
    let (_roci, server) = start(&["--context", "512"]);
    let content =
        "a long prompt that fills more than one block of the prefix cache, so that the second request finds it";
    let body = json!({"messages": [{"role": "user", "content": content}], "seed": 11, "n": 3, "temperature": 1.2,
        "max_tokens": 24});
    let ask = || {
        let answer = server.post("/v1/chat/completions", &body).json;
        let choices = answer["choices"].as_array().unwrap().clone();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (choices.iter().map(|choice| choice["message"]["content"].clone()).collect::<Vec<_>>(), cached)
    };
    let (first, n_cached) = ask();
    assert_eq!(n_cached, 0);
    let (second, n_cached) = ask();
    assert!(n_cached > 0, "nothing came from the cache");
    assert_eq!(first, second);
    assert_ne!(first[0], first[1], "each answer has a seed of its own");
    let busy: Vec<_> = (0..5)
        .map(|i| server.open("/v1/chat/completions", &crate::serve::streamed(&format!("other {i}"), 200), ""))
        .collect();
    assert_eq!(ask().0, first);
    drop(busy);
}
