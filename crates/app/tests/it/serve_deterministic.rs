//! `--deterministic`: an answer's text and log-probabilities do not depend on who else asks.

use crate::serve::start;
use crate::server::{Answer, Server};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
const N_STREAMS: usize = 12;

/// Prompts of other lengths with something in common; every second one is sampled, without a seed.
fn body(i: usize) -> Value {
    let prompt = format!("A common beginning of all of them, {}", "and more ".repeat(i * i % 17));
    let temperature = if i.is_multiple_of(2) { 0.0 } else { 1.0 };
    json!({"prompt": prompt, "max_tokens": 24, "temperature": temperature, "logprobs": 4, "stream": true,
           "deterministic": true})
}

/// What a stream says of its tokens, figures as they were written.
fn said(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let events = answer.text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let choices = events.map(|data| serde_json::from_str::<Value>(data).unwrap()["choices"][0].take());
    let said: Vec<String> = choices.map(|choice| format!("{} {}", choice["text"], choice["logprobs"])).collect();
    assert!(said.iter().any(|said| said.contains("token_logprobs")), "{said:?}");
    said
}

fn one_by_one(server: &Server) -> Vec<Vec<String>> {
    (0..N_STREAMS).map(|i| said(&server.post(PATH, &body(i)))).collect()
}

#[test]
fn streams_say_the_same_alone_together_and_after_a_restart() {
    let (_roci, server) = start(&["--deterministic"]);
    let alone = one_by_one(&server);
    // Prompts are cut into small pieces here, and everyone talks at once, twice: then prefixes are known.
    let options = ["--deterministic", "--prefill-chunk", "7", "--context", "2048"];
    let (_roci, server) = start(&options);
    for _ in 0..2 {
        let opened: Vec<_> = (0..N_STREAMS).map(|i| server.open(PATH, &body(i), "")).collect();
        let together: Vec<_> = opened.into_iter().map(|stream| said(&Answer::read(stream))).collect();
        assert_eq!(together, alone);
    }
}

/// The same without the mode: prompts in small pieces go through other kernels than whole ones, and the last digits show
/// it. A test that passed here too would prove nothing above.
#[test]
fn without_it_log_probabilities_depend_on_the_others() {
    let plain = |i: usize| {
        let mut body = body(i);
        body["deterministic"] = false.into();
        body["seed"] = 7.into();
        body
    };
    let (_roci, server) = start(&[]);
    let alone: Vec<_> = (0..N_STREAMS).map(|i| said(&server.post(PATH, &plain(i)))).collect();
    let (_roci, server) = start(&["--prefill-chunk", "7", "--context", "2048"]);
    let opened: Vec<_> = (0..N_STREAMS).map(|i| server.open(PATH, &plain(i), "")).collect();
    let together: Vec<_> = opened.into_iter().map(|stream| said(&Answer::read(stream))).collect();
    assert_ne!(together, alone);
}

#[test]
fn a_request_for_it_is_refused_where_the_server_cannot_promise() {
    let (_roci, server) = start(&[]);
    let answer = server.post(PATH, &body(0));
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(
        answer.text.contains("--deterministic") && answer.text.contains(r#""param":"deterministic""#),
        "{}",
        answer.text
    );
    let mut free = body(0);
    free["deterministic"] = false.into();
    assert_eq!(server.post(PATH, &free).status, 200);
}
