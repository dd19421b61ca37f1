//! Contexts that are kept, as a user meets them: sessions, and a disk that the next process finds. On the tiny model.

use crate::roci::Roci;
use crate::serve::{metric, wait_until};
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};

const STORY: &str = "Once upon a time there was a small model that knew only bytes, and it remembered.";

fn with_tiny() -> Roci {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    roci
}

/// The answer as JSON, and what was noted.
fn run(roci: &Roci, prompt: &str, more: &[&str]) -> (Value, String) {
    let args = ["run", "tiny.gguf", prompt, "--temperature", "0", "--max-tokens", "20", "--output", "json"];
    let output = roci.run(&[&args[..], &["--device", "cpu"], more].concat());
    let stderr = output.stderr.clone();
    (output.json(), stderr)
}

fn n_cached(answer: &Value) -> u64 {
    answer["timings"]["prompt_cached_n"].as_u64().unwrap()
}

#[test]
fn a_session_goes_on_where_it_was() {
    let roci = with_tiny();
    let session = ["--session", "talk"];
    let (first, _) = run(&roci, STORY, &session);
    assert_eq!(n_cached(&first), 0);
    let (second, _) = run(&roci, "And then?", &session);
    let n_before = first["prompt_tokens"].as_array().unwrap().len() + first["tokens"].as_array().unwrap().len();
    assert!(n_cached(&second) + 32 >= n_before as u64, "{} of {n_before}", n_cached(&second));
    // As in one conversation that was computed at once.
    let prompt = second["prompt_tokens"].as_array().unwrap();
    assert!(prompt.starts_with(first["prompt_tokens"].as_array().unwrap()));
    let (third, noted) = run(&roci, "And then?", &["--session", "talk", "--kv-type", "f32"]);
    assert_eq!(n_cached(&third), 0);
    assert!(third["prompt_tokens"].as_array().unwrap().len() > prompt.len(), "what was said is kept");
    assert!(noted.contains("another model, build or device"), "{noted}");
}

#[test]
fn a_raw_session_is_a_text() {
    let roci = with_tiny();
    let raw = ["--raw", "--session", "text"];
    let (first, _) = run(&roci, STORY, &raw);
    let (second, _) = run(&roci, " Then", &raw);
    assert!(n_cached(&second) >= 80, "{}", n_cached(&second));
    assert!(second["prompt_tokens"].as_array().unwrap().starts_with(first["prompt_tokens"].as_array().unwrap()));
    let refused = roci.run(&["run", "tiny.gguf", "hi", "--session", "text"]);
    assert!(refused.stderr.contains("add --raw"), "{}", refused.stderr);
}

#[test]
fn a_cut_session_is_refused_by_name() {
    let roci = with_tiny();
    run(&roci, STORY, &["--session", "talk"]);
    let path = roci.home.path().join("talk");
    let whole = std::fs::read(&path).unwrap();
    for (bytes, expected) in [
        (&whole[..whole.len() / 2], "the session talk is damaged"),
        (&whole[..4], "talk is not a session file"),
        (b"What is this?", "talk is not a session file"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let refused = roci.run(&["run", "tiny.gguf", "hi", "--session", "talk"]);
        assert!(refused.stderr.contains(expected) && refused.stderr.contains("hint: "), "{}", refused.stderr);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "it is left as it was");
    }
}

#[test]
fn the_disk_is_found_by_the_next_process() {
    let roci = with_tiny();
    let disk = ["--kv-disk", "64M", "--kv-disk-path", "contexts", "--raw"];
    let (first, _) = run(&roci, STORY, &disk);
    let (second, noted) = run(&roci, STORY, &[&disk[..], &["-v"]].concat());
    assert_eq!((n_cached(&first), &second["tokens"]), (0, &first["tokens"]));
    assert!(n_cached(&second) >= 64, "{}", n_cached(&second));
    assert!(noted.contains("kept     up to ") && noted.contains("in contexts for"), "{noted}");
    // Another file of the same name and size is another model.
    let path = roci.home.path().join("tiny.gguf");
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(n_cached(&run(&roci, STORY, &disk).0), 0);
}

/// Blocks of quantized keys and values come back from the disk as they were, and are no other type's.
#[test]
fn quantized_keys_are_kept() {
    let roci = with_tiny();
    for kv_type in ["q8_0", "q4_0"] {
        let disk = ["--kv-disk", "64M", "--kv-disk-path", "contexts", "--raw", "--kv-type", kv_type];
        let (first, _) = run(&roci, STORY, &disk);
        let (second, _) = run(&roci, STORY, &disk);
        assert_eq!((n_cached(&first), &second["tokens"]), (0, &first["tokens"]), "{kv_type}");
        assert!(n_cached(&second) >= 64, "{kv_type}: {}", n_cached(&second));
    }
}

/// Four conversations that take turns in a pool with room for one and a half: every turn pushes out the others' blocks and
/// brings back its own, while engines die in the middle of it. Nobody notices.
#[test]
fn engines_die_while_contexts_move() {
    let roci = with_tiny();
    let talk = |faults: &str, args: &[&str]| {
        let all = [&["serve", "tiny.gguf", "--context", "512", "--max-engine-deaths", "20"], args].concat();
        let server = Server::start_with(&roci, &all, &[("ROCI_FAULT", faults)]);
        let mut texts: Vec<String> = (0..4).map(|n| format!("{n}{n}{n} {STORY} {STORY}")).collect();
        for turn in 0..3 {
            for (n, text) in texts.iter_mut().enumerate() {
                let body = json!({"prompt": &text[..], "max_tokens": 6, "temperature": 0});
                let answer = server.post("/v1/completions", &body);
                assert_eq!(answer.status, 200, "turn {turn} of {n}: {}", answer.text);
                text.push_str(answer.json["choices"][0]["text"].as_str().unwrap());
                text.push_str(" And then?");
            }
        }
        (texts, server)
    };
    let (expected, _) = talk("", &["--kv-tokens", "8192"]);
    let kept = ["--kv-tokens", "512", "--kv-host", "96K", "--kv-disk", "64M", "--kv-disk-path", "contexts"];
    let (found, server) = talk("kill@15,abort@20,error@15", &kept);
    assert_eq!(found, expected);
    let deaths = metric(&server, "roci_engine_deaths_total");
    assert!(deaths >= 3.0, "{deaths} deaths: {}", server.log());
    // Counted from the last engine on, and told with its next report.
    let restored = || {
        let text = server.get("/metrics").text;
        let lines = text.lines().filter(|line| line.starts_with("roci_kept_restored_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    wait_until("contexts came back", || restored() > 0.0);
    assert_eq!(metric(&server, "roci_kept_broken_total"), 0.0);
}
