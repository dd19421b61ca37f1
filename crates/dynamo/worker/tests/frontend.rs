//! Two workers, as processes, behind Dynamo's own frontend and its router.

#[path = "../../../rocinante/tests/it/folder.rs"]
mod folder;

use serde_json::{Value, json};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A debug build on a busy machine is slow to start.
const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(200);

/// A process that ends with the test, and what it wrote.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(command: &mut Command, home: &Path, name: &str) -> Self {
        let log = home.join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let places = [("DYN_DISCOVERY_BACKEND", "file"), ("DYN_REQUEST_PLANE", "tcp"), ("DYN_EVENT_PLANE", "zmq")];
        command.envs(places).env("DYN_FILE_KV", home.join("discovery")).env("RUST_BACKTRACE", "0");
        let quick = [("DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", "0.5"), ("DYN_TCP_RPC_HOST", "127.0.0.1")];
        command.env("DYN_EVENT_PLANE_HOST", "127.0.0.1").env("DYN_TCP_RESPONSE_STREAM_HOST", "127.0.0.1");
        Self { child: command.envs(quick).spawn().unwrap(), log }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The process that computes for it.
    fn engine(&self) -> u32 {
        let children = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let all: String = threads.map(|thread| children(thread.unwrap()) + " ").collect();
        let is_engine = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).nth(1) == Some(b"engine")
        };
        all.split_whitespace().map(|pid| pid.parse().unwrap()).find(is_engine).expect("an engine's process")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = self.said();
            let end = said.char_indices().rev().nth(6000).map_or(0, |(at, _)| at);
            eprintln!("--- {}\n{}", self.log.display(), &said[end..]);
        }
    }
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap().success());
}

struct Frontend {
    process: Process,
    address: String,
    client: reqwest::Client,
}

impl Frontend {
    fn start(home: &Path, python: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frontend.py");
        let process = Process::start(Command::new(python).arg(script).arg(port.to_string()), home, "frontend");
        Self { process, address: format!("http://127.0.0.1:{port}"), client: reqwest::Client::new() }
    }

    async fn health(&self) -> Option<Value> {
        self.client.get(format!("{}/health", self.address)).send().await.ok()?.json().await.ok()
    }

    /// Whether it has the model, which it reads after it has found the first worker.
    async fn has_model(&self) -> bool {
        let Ok(listed) = self.client.get(format!("{}/v1/models", self.address)).send().await else { return false };
        let listed: Value = listed.json().await.unwrap_or_default();
        listed["data"].as_array().is_some_and(|models| models.iter().any(|model| model["id"] == "little-llama"))
    }

    /// Waits until so many workers are known.
    async fn knows(&self, n: usize) {
        let start = Instant::now();
        loop {
            let health = self.health().await.unwrap_or_default();
            let instances = health["instances"].as_array().cloned().unwrap_or_default();
            let n_known = instances.iter().filter(|instance| instance["endpoint"] == "generate").count();
            if n_known == n && self.has_model().await {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{n} workers are not known after {PATIENCE:?}: {health}");
            tokio::time::sleep(TICK).await;
        }
    }

    async fn ask(&self, body: Value) -> Result<Value, String> {
        let sent = self.client.post(format!("{}/v1/completions", self.address)).json(&body).send().await;
        let answer = sent.map_err(|error| error.to_string())?;
        let (status, body) = (answer.status(), answer.text().await.map_err(|error| error.to_string())?);
        match status.is_success() {
            true => serde_json::from_str(&body).map_err(|error| error.to_string()),
            false => Err(format!("{status}: {body}")),
        }
    }

    async fn complete(&self, prompt: &str, n: u32) -> Value {
        let body = json!({
            "model": "little-llama", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true,
        });
        self.ask(body).await.unwrap()
    }
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

fn worker(home: &Path, model: &Path, name: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roci-dynamo-worker"));
    command.arg("--model-path").arg(model).args(["--device", "cpu", "--deterministic"]);
    Process::start(&mut command, home, name)
}

/// Needs DYNAMO_PYTHON, a Python with ai-dynamo-runtime: `./check --all` fetches it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Dynamo's frontend from PyPI"]
async fn two_workers_serve_dynamos_frontend() {
    let python = std::env::var("DYNAMO_PYTHON").expect("DYNAMO_PYTHON: a Python with ai-dynamo-runtime 1.6.1");
    let home = tempfile::tempdir().unwrap();
    // Dynamo wants a chat template and a class in every model it serves.
    let model = folder::write(home.path(), Some("{{ messages[0].content }}"), |config| {
        config["architectures"] = json!(["LlamaForCausalLM"]);
    });
    let mut workers = ["a", "b"].map(|name| worker(home.path(), &model, name));
    let frontend = Frontend::start(home.path(), &python);
    frontend.knows(2).await;

    answers_are_the_models(&frontend, &model).await;
    prompts_go_where_they_were_read(&frontend).await;
    engines_may_die(&frontend, &workers).await;

    // A worker that is told to go leaves in order, and the other goes on alone.
    signal(workers[0].child.id(), "TERM");
    let start = Instant::now();
    let status = loop {
        match workers[0].child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(start.elapsed() < PATIENCE, "the worker does not end"),
        }
        tokio::time::sleep(TICK).await;
    };
    assert!(status.success(), "{status}");
    frontend.knows(1).await;
    assert_eq!(frontend.complete("12", 4).await["usage"]["completion_tokens"], 4);
    assert!(!frontend.process.said().contains("panicked"));
}

async fn answers_are_the_models(frontend: &Frontend, path: &Path) {
    let options =
        rocinante::Options { device: rocinante::Device::Cpu, deterministic: true, ..rocinante::Options::default() };
    let model = rocinante::Model::open_with(path, &options).unwrap();
    for prompt in ["12 34", "the 7 words"] {
        let request = rocinante::Request { max_tokens: Some(12), ..rocinante::Request::default() };
        let truth = model.complete(prompt, request).unwrap().text().unwrap();
        let body = json!({"model": "little-llama", "prompt": prompt, "max_tokens": 12, "temperature": 0});
        let found = frontend.ask(body).await.unwrap();
        assert_eq!(text(&found), truth, "{found}");
    }
    let several = json!({"model": "little-llama", "prompt": "12", "max_tokens": 4, "n": 2});
    let refused = frontend.ask(several).await;
    assert!(refused.is_err(), "{refused:?}");
}

/// Six conversations, in changing order: each turn is the turn before and more. Without the cache's events the router
/// would know nothing of what was generated, nor of two workers' caches.
async fn prompts_go_where_they_were_read(frontend: &Frontend) {
    let mut prompts: Vec<String> = (0..6).map(|i| format!("{i} 1 2 3 4 5 6 7 8 9 ").repeat(10 + i)).collect();
    let mut n_before = [0u64; 6];
    for turn in 0..3 {
        for i in (0..6).map(|i| (i * 5 + turn) % 6) {
            let answer = frontend.complete(&prompts[i], 4).await;
            let usage = &answer["usage"];
            let n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
            // Whole blocks of 16 tokens.
            assert!(turn == 0 || n_cached + 16 > n_before[i], "turn {turn} of {i}: {usage}, {} before", n_before[i]);
            n_before[i] = usage["prompt_tokens"].as_u64().unwrap();
            prompts[i].push_str("9 8 7 6 5 4 3 2 1 0 ");
        }
        // Events are on their way for some milliseconds.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Answers go on over the death of every engine, and are those of an undisturbed run.
async fn engines_may_die(frontend: &Frontend, workers: &[Process; 2]) {
    let prompts = ["1 2 3", "9 8 7 6", "5 5", "40 41"];
    let all = || futures::future::join_all(prompts.map(|prompt| frontend.complete(prompt, 700)));
    let truth: Vec<String> = all().await.iter().map(|answer| text(answer).to_owned()).collect();
    let kill = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        workers.iter().for_each(|worker| signal(worker.engine(), "KILL"));
    };
    let (found, ()) = futures::join!(all(), kill);
    let found: Vec<String> = found.iter().map(|answer| text(answer).to_owned()).collect();
    assert_eq!(found, truth);
    let n_taken: usize = workers.iter().map(|worker| worker.said().matches("a new engine took over").count()).sum();
    assert!(n_taken > 0, "no request was running when the engines died");
}
