//! `--speculate` in the server: the same answers in fewer steps, counted in `usage` and in the metrics, through deaths of
//! the engine, with OpenAI's `prediction` and llama.cpp's `speculative.n_max`.

use crate::roci::Roci;
use crate::serve::{chat, metric, start, wait_until};
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// The tokens of an answer that were guessed: those that were right, and those that were not.
fn guessed(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap();
    (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
}

#[test]
fn guesses_are_counted_and_can_be_bounded() {
    let (_roci, server) = start(&["--speculate", "ngram", "--context", "2048"]);
    let mut body = chat("hi", 300);
    let answer = server.post(CHAT, &body).json;
    assert_eq!(answer["choices"][0]["message"]["content"], "x".repeat(300));
    let (n_right, n_wrong) = guessed(&answer);
    assert!(n_right > 0, "{answer}");
    let accepted = || metric(&server, "vllm:spec_decode_num_accepted_tokens_total");
    wait_until("it is counted", || accepted() == n_right as f64);
    assert_eq!(metric(&server, "vllm:spec_decode_num_draft_tokens_total"), (n_right + n_wrong) as f64);
    assert!(metric(&server, "vllm:spec_decode_num_drafts_total") >= 1.0);
    body["speculative.n_max"] = 0.into();
    let answer = server.post(CHAT, &body).json;
    assert_eq!((answer["choices"][0]["message"]["content"].as_str().unwrap().len(), guessed(&answer)), (300, (0, 0)));
}

#[test]
fn a_prediction_is_read_and_a_wrong_one_is_named() {
    let (_roci, server) = start(&["--speculate", "ngram", "--context", "2048"]);
    let mut body = chat("hi", 40);
    for content in [json!("x".repeat(60)), json!([{"type": "text", "text": "y".repeat(60)}])] {
        body["prediction"] = json!({"type": "content", "content": content});
        let answer = server.post(CHAT, &body);
        assert_eq!((answer.status, &answer.json["choices"][0]["message"]["content"]), (200, &json!("x".repeat(40))));
        assert!(!answer.text.contains("x-ignored-fields"), "{}", answer.text);
    }
    body["prediction"] = json!({"type": "image", "content": "x"});
    let answer = server.post(CHAT, &body);
    assert_eq!((answer.status, &answer.json["error"]["param"]), (400, &json!("prediction")), "{}", answer.text);
}

#[test]
fn an_engine_that_dies_is_continued_exactly() {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let args = ["serve", "tiny.gguf", "--speculate", "ngram", "--context", "2048", "--step-deadline", "1"];
    let server = Server::start_with(&roci, &args, &[("ROCI_FAULT", "abort@9,error@5")]);
    let answer = server.post(CHAT, &chat("hi", 400)).json;
    assert_eq!(answer["choices"][0]["message"]["content"], "x".repeat(400));
    assert_eq!(metric(&server, "roci_engine_deaths_total"), 2.0, "{}", server.log());
}
