//! Requests whose lists, texts and numbers are far too large for what they ask: each is refused or answered in a time
//! and with an answer of reasonable size, and the server keeps running.

use crate::serve::{chat, start};
use serde_json::{Map, Value, json};

/// How many of something are far too many.
const MANY: usize = 10_000;

fn biases(n: usize, key: impl Fn(usize) -> String) -> Value {
    Value::Object((0..n).map(|i| (key(i), json!(1))).collect::<Map<_, _>>())
}

#[test]
fn long_lists_and_large_numbers_are_refused() {
    let (_roci, server) = start(&["--context", "256"]);
    let texts = vec!["a"; MANY];
    let with = |field: &str, value: Value| {
        let mut body = chat("hi", 1);
        body[field] = value;
        ("/v1/chat/completions", body)
    };
    for ((path, body), status) in [
        (with("stop", json!(texts)), 400),
        (with("stop", json!(["a".repeat(MANY)])), 400),
        (with("n", json!(1_000_000)), 400),
        (with("top_logprobs", json!(4_000_000_000_u32)), 400),
        (with("logit_bias", biases(50_000, |i| i.to_string())), 400),
        // Texts stand for their tokens: it is those that count.
        (with("logit_bias", biases(500, |i| format!("{i} {}", "a".repeat(400)))), 400),
        (with("logit_bias", biases(1, |_| "a".repeat(MANY))), 400),
        (with("samplers", json!(vec!["top_k"; MANY])), 400),
        (with("dry_sequence_breakers", json!(texts)), 400),
        (with("guided_choice", json!(vec!["a".repeat(100); MANY])), 400),
        (("/completion", json!({"prompt": "hi", "n_predict": 1, "n_probs": 4_000_000_000_u32})), 400),
        (("/completion", json!({"prompt": texts, "n_predict": 1})), 400),
        (("/v1/completions", json!({"prompt": texts, "max_tokens": 1})), 400),
        (("/v1/embeddings", json!({"input": texts})), 400),
        (("/rerank", json!({"query": "a", "documents": texts})), 400),
        (
            (
                "/infill",
                json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "a".repeat(1 << 20)}]}),
            ),
            400,
        ),
        (("/apply-template", json!({"messages": vec![json!({"role": "user", "content": "a"}); MANY]})), 200),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, status, "{path} {:.80}: {:.300}", body.to_string(), answer.text);
    }
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server.post_text("/v1/chat/completions", &deep, "").status, 400);
    assert_eq!(server.post("/v1/chat/completions", &chat("hi", 1)).status, 200, "it goes on");
}

/// A million tokens of two kinds: each was looked for among all that came before.
#[test]
fn control_tokens_are_shown_in_linear_time() {
    let (_roci, server) = start(&["--context", "256"]);
    let tokens: Vec<u32> = (0..1_000_000).map(|i| 1 + u32::from(i >= 500_000)).collect();
    let answer = server.post("/detokenize", &json!({"tokens": tokens}));
    let text = answer.json["content"].as_str().unwrap();
    assert_eq!(text.matches("<|im_end|>").count(), 500_000);
}

#[test]
fn errors_repeat_only_the_beginning_of_what_was_sent() {
    let (_roci, server) = start(&["--context", "256"]);
    let name = "é".repeat(1 << 20);
    let unknown = server.post("/v1/chat/completions", &json!({"model": name, "messages": []}));
    assert_eq!(unknown.status, 404);
    assert!(unknown.text.len() < 10_000, "{} bytes", unknown.text.len());
    let mut body = chat("hi", 1);
    body["model"] = "tiny".into();
    body[&name] = 1.into();
    let ignored = server.post("/v1/chat/completions", &body);
    assert_eq!(ignored.status, 200, "{:.300}", ignored.text);
    body["temperature"] = name.into();
    let wrong = server.post("/v1/chat/completions", &body);
    assert_eq!(wrong.status, 400);
    assert!(wrong.text.len() < 10_000, "{} bytes", wrong.text.len());
}

#[test]
fn a_recipe_has_a_size() {
    let (_roci, server) = start(&["--context", "256"]);
    let system = "a".repeat(1 << 20);
    for body in [
        json!({"model": "x", "from": "tiny:1m", "system": system}),
        json!({"model": "x", "modelfile": format!("FROM tiny:1m\nSYSTEM {system}")}),
        json!({"model": "x", "from": "tiny:1m", "messages": vec![json!({"role": "user", "content": "abc"}); 50_000]}),
    ] {
        let answer = server.post("/api/create", &body);
        assert_eq!(answer.status, 413, "{:.300}", answer.text);
    }
}
