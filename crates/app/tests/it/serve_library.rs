//! Models that clients add and remove, Ollama's way, and a server that was given none.

use crate::roci::Roci;
use crate::serve::{chat, wait_until};
use crate::serve_operator::add_key;
use crate::server::Server;
use crate::standin::{self, Gate, Route};
use crate::tiny;
use serde_json::{Value, json};
use std::sync::Arc;

/// A home whose store has the tiny model under a name.
fn home() -> Roci {
    let roci = Roci::new();
    let file = tiny::write(roci.home.path());
    let store = hub::Store::at(&store_root(&roci));
    let folder = store.root().join("models/tiny");
    std::fs::create_dir_all(&folder).unwrap();
    let inside = folder.join("tiny.gguf");
    std::fs::rename(file, &inside).unwrap();
    store.set_name("tiny:1m", &hub::Named { file: inside, from: "here".into(), ..hub::Named::default() }).unwrap();
    roci
}

fn store_root(roci: &Roci) -> std::path::PathBuf {
    let folders = hub::Folders::new(&|name| (name == "ROCI_HOME").then(|| roci.cache()));
    hub::Store::in_folders(&folders.unwrap()).root().to_owned()
}

fn start(roci: &Roci, args: &[&str]) -> Server {
    Server::start(roci, &[&["serve", "--context", "256"], args].concat())
}

fn names(server: &Server) -> Vec<String> {
    let models = server.get("/api/tags").json["models"].clone();
    models.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

fn say(server: &Server, model: &str) -> Value {
    let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": false});
    server.post("/api/chat", &body).json
}

/// The status that `/api/delete` gives.
fn delete(server: &Server, name: &str) -> u16 {
    let body = json!({"model": name}).to_string();
    let mut connection = server.connect();
    let head = format!(
        "DELETE /api/delete HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    std::io::Write::write_all(&mut connection, (head + &body).as_bytes()).unwrap();
    crate::server::Answer::read(connection).status
}

#[test]
fn without_models_the_store_is_offered() {
    let roci = home();
    let server = start(&roci, &["--no-pull"]);
    assert_eq!(names(&server), ["tiny", "tiny:1m"]);
    assert!(
        server.get("/api/ps").json["models"].as_array().unwrap().is_empty(),
        "nothing is loaded before it is asked"
    );
    let mut body = chat("hi", 2);
    body["model"] = "tiny:1m".into();
    assert_eq!(server.post("/v1/chat/completions", &body).json["choices"][0]["message"]["content"], "xx");
    body["model"] = "nothing".into();
    assert_eq!(server.post("/v1/chat/completions", &body).status, 404);
    // The file's own checksum, found out in the background.
    let digest = || server.get("/api/tags").json["models"][0]["digest"].as_str().unwrap().to_owned();
    wait_until("the digest is known", || digest().len() == 64);
    let file = store_root(&roci).join("models/tiny/tiny.gguf");
    assert_eq!(digest(), hub::sha256_of(&file).unwrap());
}

#[test]
fn models_are_made_copied_shown_and_deleted() {
    let roci = home();
    let server = start(&roci, &[]);
    let create = json!({"model": "brief", "from": "tiny:1m", "system": "Be brief.",
        "parameters": {"num_predict": 3, "temperature": 0, "stop": ["END"]}});
    let lines = server.post("/api/create", &create).text;
    assert!(lines.trim_end().ends_with(r#"{"status":"success"}"#), "{lines}");
    let shown = server.post("/api/show", &json!({"model": "brief"})).json;
    assert_eq!((&shown["system"], &shown["details"]["family"]), (&json!("Be brief."), &json!("llama")), "{shown}");
    assert!(shown["modelfile"].as_str().unwrap().contains("FROM tiny:1m"), "{shown}");
    assert!(shown["parameters"].as_str().unwrap().contains("num_predict"), "{shown}");
    assert_eq!(say(&server, "brief")["eval_count"], 3, "its own settings count");
    let prompted = say(&server, "brief")["prompt_eval_count"].as_u64();
    assert!(prompted > say(&server, "tiny:1m")["prompt_eval_count"].as_u64(), "the system prompt is there");
    assert_eq!(server.post("/api/copy", &json!({"source": "brief", "destination": "other"})).status, 200);
    assert_eq!(names(&server), ["tiny", "tiny:1m", "brief", "other"]);
    assert_eq!(server.post("/api/copy", &json!({"source": "nobody", "destination": "x"})).status, 404);
    assert_eq!((delete(&server, "brief"), delete(&server, "brief")), (200, 404));
    assert_eq!(names(&server), ["tiny", "tiny:1m", "other"]);
    assert_eq!(say(&server, "other")["eval_count"], 3, "the file that other names stand for stays");
    for (body, part) in [
        (json!({"model": "x", "from": "/etc/passwd"}), "is not the name of a model"),
        (json!({"model": "x", "from": "tiny:1m", "files": {}}), "cannot be uploaded"),
        (json!({"model": "x", "from": "tiny:1m", "parameters": {"temprature": 1}}), "temprature"),
        (json!({"model": "x"}), "there is no `from`"),
    ] {
        let answer = server.post("/api/create", &body);
        assert!(answer.text.contains(part), "{body}: {}", answer.text);
    }
    let pulled = server.post("/api/pull", &json!({"model": "tiny:1m"})).text;
    assert!(pulled.trim_end().ends_with(r#"{"status":"success"}"#), "{pulled}");
    let unknown = server.post("/api/pull", &json!({"model": "no-such-model-at-all", "stream": false}));
    assert_eq!(unknown.status, 404, "{}", unknown.text);
}

/// Counters are for rates: they must not fall because a model was removed, in memory, in use or neither.
#[test]
fn sums_over_all_models_do_not_fall_when_one_is_removed() {
    let roci = home();
    let server = start(&roci, &["--max-loaded", "2"]);
    let steps = || {
        let page = server.get("/metrics").text;
        let value = page.lines().find_map(|line| line.strip_prefix("llamacpp:n_decode_total "));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no steps in {page}"))
    };
    for name in ["one", "two"] {
        let made = server.post(
            "/api/create",
            &json!({"model": name, "from": "tiny:1m", "parameters": {"num_predict": 5, "temperature": 0}}),
        );
        assert_eq!(made.status, 200, "{}", made.text);
        assert_eq!(say(&server, name)["eval_count"], 5);
        // The engine's process tells its steps from time to time.
        let before = if name == "one" { 0.0 } else { 5.0 };
        wait_until("the steps are counted", || steps() >= before + 5.0);
        let counted = steps();
        assert_eq!(delete(&server, name), 200);
        for _ in 0..20 {
            let now = steps();
            assert!(now >= counted, "{name}: {now} after {counted}");
        }
    }
    assert!(steps() >= 10.0, "{}", steps());
}

#[test]
fn clients_cannot_take_away_what_the_server_was_started_with() {
    let roci = home();
    let file = store_root(&roci).join("models/tiny/tiny.gguf");
    let given = format!("mine={}", file.display());
    let server = start(&roci, &[&given, "--served-model-name", "mine", "--served-model-name", "also-mine"]);
    let answers = |name: &str| {
        let mut body = chat("hi", 2);
        body["model"] = name.into();
        server.post("/v1/chat/completions", &body).json["choices"][0]["message"]["content"] == "xx"
    };
    for name in ["mine", "mine:latest", "also-mine"] {
        for (path, body) in [
            ("/api/create", json!({"model": name, "from": "tiny:1m"})),
            ("/api/copy", json!({"source": "tiny:1m", "destination": name})),
            ("/api/pull", json!({"model": name})),
        ] {
            let answer = server.post(path, &body);
            assert_eq!(answer.status, 409, "{path} {name}: {}", answer.text);
            assert!(answer.text.contains("neither replaced nor removed"), "{path}: {}", answer.text);
        }
        assert_eq!(delete(&server, name), 409, "{name}");
    }
    // Its file may have other names in the store: those come and go, the file stays.
    assert_eq!(server.post("/api/copy", &json!({"source": "tiny:1m", "destination": "copy"})).status, 200);
    assert_eq!((delete(&server, "copy"), delete(&server, "tiny:1m"), delete(&server, "tiny")), (200, 200, 409));
    assert!(file.exists());
    assert_eq!(server.post("/api/create", &json!({"model": "made", "from": "tiny"})).status, 200);
    assert!(answers("mine") && answers("also-mine"));
    assert!(answers("claude-sonnet-4"), "the one model that was given answers to any name, whatever was added");
    assert_eq!(delete(&server, "made"), 200);
    assert!(answers("claude-sonnet-4") && answers("mine"));
}

/// Each download takes a thread, of which there is an end.
#[test]
fn no_more_than_a_few_models_are_fetched_at_once() {
    let (roci, gate) = (home(), Arc::new(Gate::default()));
    let hub = standin::Server::start();
    let info = r#"{"sha": "c0ffee", "siblings": [{"rfilename": "m.gguf"}]}"#;
    hub.route("/api/models/owner/slow/revision/main", Route::ok(info));
    let file = Route { gate: Some(Arc::clone(&gate)), ..Route::ok(b"a model") };
    hub.route("/owner/slow/resolve/main/m.gguf", file.header("ETag", "\"blob\"").header("X-Repo-Commit", "c0ffee"));
    let args = ["serve", "--context", "256"];
    let server = Server::start_with(&roci, &args, &[("HF_ENDPOINT", &hub.url(""))]);
    let pull = json!({"model": "hf:owner/slow:m.gguf"});
    let begin = |_| {
        let mut connection = server.open("/api/pull", &pull, "");
        std::io::Read::read_exact(&mut connection, &mut [0; 20]).unwrap();
        connection
    };
    let pulling: Vec<_> = (0..8).map(begin).collect();
    let refused = server.post("/api/pull", &pull);
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(say(&server, "tiny:1m")["done"], true, "others are answered meanwhile");
    gate.open();
    drop(pulling);
    wait_until("there is room", || server.post("/api/pull", &pull).status == 200);
}

#[test]
fn only_administrators_change_models() {
    let roci = home();
    let (guest, root) = (add_key(&roci, "guest", ""), add_key(&roci, "root", "admin=yes"));
    let server = start(&roci, &["--api-key-file", "keys.txt"]);
    let copy = json!({"source": "tiny:1m", "destination": "mine"});
    assert_eq!(server.post_with("/api/copy", &copy, &guest).status, 403);
    assert_eq!(server.post_with("/api/pull", &json!({"model": "tiny:1m"}), &guest).status, 403);
    assert_eq!(server.post_with("/api/copy", &copy, &root).status, 200);
}

#[test]
fn ollamas_other_answers() {
    let roci = home();
    let server = start(&roci, &[]);
    let vector = server.post("/api/embeddings", &json!({"model": "tiny:1m", "prompt": "hello"})).json;
    assert!(vector["embedding"].as_array().unwrap().len() > 8, "{vector}");
    let body = json!({"model": "tiny:1m", "prompt": "hi", "stream": false, "logprobs": true, "top_logprobs": 2,
        "options": {"num_predict": 3, "temperature": 0}});
    let first = server.post("/api/generate", &body).json;
    assert_eq!(first["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), 2, "{first}");
    let context = first["context"].as_array().unwrap();
    assert!(context.len() as u64 >= first["prompt_eval_count"].as_u64().unwrap());
    let next = json!({"model": "tiny:1m", "prompt": "and?", "stream": false, "context": context,
        "options": {"num_predict": 1}});
    let second = server.post("/api/generate", &next).json;
    assert!(second["prompt_eval_count"].as_u64() > Some(context.len() as u64), "{second}");
    let stay = json!({"model": "tiny:1m", "messages": [], "keep_alive": "10m"});
    server.post("/api/chat", &stay);
    let loaded = &server.get("/api/ps").json["models"][0];
    assert!(loaded["expires_at"].as_str().unwrap().starts_with("20"), "{loaded}");
}
