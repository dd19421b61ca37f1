//! `run`, `bench` and `perplexity` on the tiny model.

use crate::roci::Roci;
use crate::tiny;
use serde_json::json;

fn with_tiny() -> Roci {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    roci
}

#[test]
fn answer_as_json_has_every_field() {
    let roci = with_tiny();
    let run = ["run", "tiny.gguf", "hi", "--raw", "--temperature", "0", "--max-tokens", "5", "--output", "json"];
    let answer = roci.run(&[&run[..], &["--logprobs", "3"]].concat()).json();
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(answer["prompt_tokens"], json!([3 + 104, 3 + 105]));
    assert!(!tokens.is_empty() && tokens.len() <= 5);
    assert!(["stop", "length"].contains(&answer["finish_reason"].as_str().unwrap()));
    for (step, token) in answer["logprobs"].as_array().unwrap().iter().zip(tokens) {
        let top = step["top"].as_array().unwrap();
        // Greedy: the best is what was taken.
        assert_eq!((&step["token"], &top[0]["token"], top.len()), (token, token, 3));
        assert!(step["logprob"].as_f64().unwrap() <= 0.0);
    }
    for field in ["prompt_s", "generated_s", "first_token_s", "load_s"] {
        assert!(answer["timings"][field].as_f64().unwrap() >= 0.0, "{field}");
    }
    let again = roci.run(&run).json();
    assert_eq!((&again["tokens"], &again["logprobs"]), (&answer["tokens"], &json!(null)));
}

#[test]
fn same_seed_same_answer() {
    let roci = with_tiny();
    let run = |seed: &str| {
        let args = ["run", "tiny.gguf", "hi", "--temperature", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
        let more = ["--max-tokens", "12", "--output", "json", "--seed", seed];
        roci.run(&[&args[..], &more[..]].concat()).json()["tokens"].clone()
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn bias_and_stop_are_obeyed() {
    let roci = with_tiny();
    // Byte 'x' is token 3 + 120.
    let args = ["run", "tiny.gguf", "hi", "--raw", "--logit-bias", "123=1000", "--max-tokens", "20"];
    let all = roci.run(&args);
    assert_eq!(all.stdout, "xxxxxxxxxxxxxxxxxxxx\n");
    let line = all.stderr.trim_end();
    assert!(line.starts_with("2 prompt tokens") && line.contains("20 generated"), "{line}");
    assert!(line.contains("ended by --max-tokens") && line.contains("first token after"), "{line}");
    let stopped = roci.run(&[&args[..], &["--stop", "xxx", "--output", "json"]].concat()).json();
    assert_eq!((&stopped["text"], &stopped["finish_reason"]), (&json!(""), &json!("stop")));
}

#[test]
fn prompt_from_stdin() {
    let roci = with_tiny();
    let args = ["run", "tiny.gguf", "--raw", "--max-tokens", "1", "--output", "json"];
    let answer = roci.run_with_stdin(&args, b"hi\n").json();
    assert_eq!(answer["prompt_tokens"], json!([107, 108]));
    let empty = roci.run_with_stdin(&args, b"\n");
    assert!(empty.stderr.starts_with("error: the prompt is empty\nhint: "), "{}", empty.stderr);
}

/// The same text through `roci tokenize`.
fn tokens(roci: &Roci, text: &str) -> serde_json::Value {
    roci.run_with_stdin(&["tokenize", "tiny.gguf", "--output", "json"], text.as_bytes()).json()["tokens"].clone()
}

#[test]
fn files_pipe_and_prompt_are_joined() {
    let roci = with_tiny();
    std::fs::write(roci.home.path().join("a.txt"), "file a\n").unwrap();
    std::fs::write(roci.home.path().join("b.txt"), "file b").unwrap();
    let args = ["run", "tiny.gguf", "--raw", "--max-tokens", "1", "--output", "json", "ask"];
    let piped = roci.run_with_stdin(&args, b"from the pipe\n").json();
    assert_eq!(piped["prompt_tokens"], tokens(&roci, "from the pipe\n\nask"));
    let all = roci.run_with_stdin(&[&args[..], &["--file", "a.txt", "--file", "b.txt"]].concat(), b"pipe").json();
    assert_eq!(all["prompt_tokens"], tokens(&roci, "file a\n\nfile b\n\npipe\n\nask"));
    let missing = roci.run(&["run", "tiny.gguf", "--file", "c.txt", "ask"]);
    assert!(missing.stderr.starts_with("error: cannot read `c.txt`"), "{}", missing.stderr);
    let embed = roci.run_with_stdin(&["embed", "tiny.gguf", "-", "plain"], b"plain\n").json();
    assert_eq!(embed["embeddings"][0], embed["embeddings"][1]);
}

#[test]
fn a_base_model_continues_the_prompt_and_says_so() {
    let roci = Roci::new();
    crate::folder::write(roci.home.path(), None, |_| ());
    let args = ["run", "little-llama", "The 12 words", "--max-tokens", "1", "--output", "json"];
    let chat = roci.run(&args);
    assert!(chat.stderr.contains("note: a base model without a chat template"), "{}", chat.stderr);
    let raw = roci.run(&[&args[..], &["--raw"]].concat());
    assert_eq!(chat.json()["prompt_tokens"], raw.json()["prompt_tokens"]);
    assert!(!raw.stderr.contains("base model"), "{}", raw.stderr);
}

#[test]
fn what_cannot_run_is_not_planned_and_threads_are_bounded() {
    let roci = Roci::new();
    tiny::write_trained_for(roci.home.path(), 1024);
    let plan = roci.run(&["inspect", "tiny.gguf", "--plan", "--context", "99999", "--device", "cpu"]);
    let run = roci.run(&["run", "tiny.gguf", "hi", "--context", "99999", "--device", "cpu"]);
    assert_eq!((plan.code, &plan.stderr), (Some(1), &run.stderr));
    let many = roci.run(&["run", "tiny.gguf", "hi", "--max-tokens", "1", "--threads", "1000", "--output", "json"]);
    assert!(many.stderr.starts_with("warning: --threads 1000 is more than"), "{}", many.stderr);
    assert!(many.json()["threads"].as_u64().unwrap() < 1000);
}

#[test]
fn prompt_that_does_not_fit() {
    let roci = with_tiny();
    let prompt = "a".repeat(40);
    let outcome = roci.run(&["run", "tiny.gguf", &prompt, "--raw", "--context", "32"]);
    assert_eq!(outcome.code, Some(1));
    let error = "error: the prompt has 40 tokens, the context holds 32\nhint: ";
    assert!(outcome.stderr.starts_with(error), "{}", outcome.stderr);
}

#[test]
fn context_ends_the_answer() {
    let roci = with_tiny();
    let args = ["run", "tiny.gguf", "hi", "--raw", "--context", "16", "--logit-bias", "123=1000", "--output", "json"];
    let answer = roci.run(&args).json();
    assert_eq!(answer["finish_reason"], "context");
}

#[test]
fn more_context_than_the_model_was_trained_for() {
    let roci = Roci::new();
    tiny::write_trained_for(roci.home.path(), 1024);
    let outcome = roci.run(&["run", "tiny.gguf", "hi", "--context", "1025"]);
    assert_eq!(outcome.code, Some(1));
    let error = "error: --context 1025 is more than the 1024 tokens the model was trained for\nhint: ";
    assert!(outcome.stderr.starts_with(error), "{}", outcome.stderr);
}

#[test]
fn more_context_than_memory() {
    let roci = with_tiny();
    let outcome = roci.run(&["run", "tiny.gguf", "hi", "--context", "4000000000"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("does not fit") && outcome.stderr.contains("hint:"), "{}", outcome.stderr);
}

#[test]
fn perplexity_and_divergence() {
    let roci = with_tiny();
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(12);
    std::fs::write(roci.home.path().join("text.txt"), &text).unwrap();
    let base = ["perplexity", "tiny.gguf", "text.txt", "--chunk", "64", "--output", "json"];
    let saved = roci.run(&[&base[..], &["--save-logits", "base.kld"]].concat()).json();
    // 540 bytes are 540 tokens: 8 chunks, of which 64 - 1 - 32 rows are scored.
    assert_eq!((&saved["chunks"], &saved["scored_tokens"]), (&json!(8), &json!(8 * 31)));
    let compared = roci.run(&[&base[..], &["--kl-base", "base.kld"]].concat()).json();
    assert!(compared["kl"]["mean"].as_f64().unwrap().abs() < 1e-6, "{compared}");
    assert_eq!(compared["kl"]["same_top"], 1.0);
    let other = roci.run(&["perplexity", "tiny.gguf", "text.txt", "--chunk", "32", "--kl-base", "base.kld"]);
    assert!(other.stderr.starts_with("error: `base.kld` was created from another text"), "{}", other.stderr);
    let short = roci.run(&["perplexity", "tiny.gguf", "text.txt"]);
    assert!(short.stderr.starts_with("error: the text has 540 tokens, 1024 are needed"), "{}", short.stderr);
}

#[test]
fn bench_measures_what_was_asked() {
    let roci = with_tiny();
    let args = ["bench", "tiny.gguf", "--prompt", "20", "--generate", "4", "--depth", "30", "--batch", "3"];
    let json = roci.run(&[&args[..], &["--repetitions", "2", "--output", "json"]].concat()).json();
    let results = json["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["tokens"], &results[1]["tokens"]), (2, &json!(20), &json!(12)));
    for result in results {
        assert_eq!(result["samples"].as_array().unwrap().len(), 2);
        assert!(result["tokens_per_second"].as_f64().unwrap() > 0.0);
    }
    let text = roci.run(&[&args[..], &["--repetitions", "1"]].concat());
    assert!(text.stdout.contains("generate 4 x 3 at depth 30"), "{}", text.stdout);
}
