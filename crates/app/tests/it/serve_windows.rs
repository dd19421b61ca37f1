//! A served model whose layers have a sliding window: Gemma 3, past its window of 512 tokens, in an engine of its own.

use crate::roci::Roci;
use crate::serve::metric;
use crate::server::Server;
use serde_json::json;
use test_support::fetched;

#[test]
fn prompts_longer_than_the_window_are_answered_and_reused() {
    let Some(path) = fetched::path("ROCI_GEMMA3") else { return };
    let server = Server::start(&Roci::new(), &["serve", path.to_str().unwrap(), "--context", "4096"]);
    let counted: Vec<String> = (1..260).map(|number| number.to_string()).collect();
    let prompt = counted.join(", ") + ",";
    let ask = |prompt: &str| {
        let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0});
        let answer = server.post("/v1/completions", &body).json;
        let n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let n_prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), n_prompt, n_cached)
    };
    let (text, n_prompt, _) = ask(&prompt);
    assert!(n_prompt > 1024, "{n_prompt}");
    assert!(text.starts_with(" 260, 26"), "{text}");
    assert!(metric(&server, "roci_kv_window_blocks{") > 0.0, "windows have a pool of their own");
    let (again, _, n_cached) = ask(&prompt);
    assert_eq!(again, text);
    assert!(n_cached > n_prompt - 64, "{n_cached} of {n_prompt}");
    let (further, n_prompt, n_cached) = ask(&format!("{prompt}{text}"));
    assert!(further.contains("26") && n_cached > n_prompt - 64, "{further}: {n_cached} of {n_prompt}");
}
