//! What survives a restart, and what changes without one: the store, keys and limits on SIGHUP, certificates, systemd.

use crate::roci::Roci;
use crate::serve::{chat, wait_until};
use crate::serve_operator::add_key;
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn home() -> Roci {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    roci
}

fn start(roci: &Roci, args: &[&str]) -> Server {
    Server::start(roci, &[&["serve", "tiny.gguf", "--context", "100000"], args].concat())
}

fn signal(server: &Server, name: &str) {
    assert!(std::process::Command::new("kill").args([name, &server.id().to_string()]).status().unwrap().success());
}

#[test]
fn stored_answers_and_usage_survive_a_restart() {
    let roci = home();
    std::fs::write(roci.home.path().join("key"), "0123456789abcdef".repeat(4)).unwrap();
    let args = ["--store", "answers.redb", "--store-key-file", "key"];
    let mut server = start(&roci, &args);
    let mut body = chat("hello there", 3);
    body["store"] = true.into();
    let id = server.post(PATH, &body).json["id"].as_str().unwrap().to_owned();
    let ask = json!({"input": "remember me", "max_output_tokens": 2, "temperature": 0});
    let response = server.post("/v1/responses", &ask).json["id"].as_str().unwrap().to_owned();
    server.terminate();
    assert_eq!(server.wait(), Some(0), "{}", server.log());
    let file = std::fs::read(roci.home.path().join("answers.redb")).unwrap();
    for secret in ["hello there", "remember me"] {
        assert!(!file.windows(secret.len()).any(|window| window == secret.as_bytes()), "it is encrypted");
    }
    let server = start(&roci, &args);
    let kept = server.get(&format!("{PATH}/{id}")).json;
    assert_eq!(kept["choices"][0]["message"]["content"], "xxx");
    let next = json!({"input": "and now?", "previous_response_id": response, "max_output_tokens": 1});
    assert_eq!(server.post("/v1/responses", &next).status, 200);
    let usage = server.get("/v1/usage").json;
    assert!(usage["data"][0]["total"]["generated_tokens"].as_u64() >= Some(6), "{usage}");
    drop(server);
    let outcome = roci.run(&["serve", "tiny.gguf", "--port", "0", "--store", "answers.redb"]);
    assert!(outcome.code != Some(0) && outcome.stderr.contains("another key"), "{}", outcome.stderr);
}

/// A background response that was cut by `kill -9` is made after all.
#[test]
fn a_background_response_is_begun_again() {
    let roci = home();
    let args = ["--store", "answers.redb"];
    let server = start(&roci, &args);
    let body = json!({"input": "hi", "background": true, "max_output_tokens": 80000, "temperature": 0});
    let id = server.post("/v1/responses", &body).json["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/responses/{id}");
    wait_until("it has begun", || server.get(&path).json["status"] == "in_progress");
    // Written by a thread of its own.
    let is_written = || {
        std::fs::read(roci.home.path().join("answers.redb"))
            .is_ok_and(|file| file.windows(id.len()).any(|window| window == id.as_bytes()))
    };
    wait_until("it is on disk", is_written);
    drop(server);
    let server = start(&roci, &args);
    assert!(["queued", "in_progress"].contains(&server.get(&path).json["status"].as_str().unwrap()));
    assert_eq!(server.post(&format!("{path}/cancel"), &json!({})).json["status"], "cancelled");
    let short = json!({"input": "hi", "background": true, "max_output_tokens": 5, "temperature": 0});
    let id = server.post("/v1/responses", &short).json["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/responses/{id}");
    wait_until("it is done", || server.get(&path).json["status"] == "incomplete");
    let events = server.get(&format!("{path}?stream=true")).text;
    let mut server = server;
    server.terminate();
    server.wait();
    let server = start(&roci, &args);
    assert_eq!(server.get(&format!("{path}?stream=true")).text, events, "it can still be replayed");
}

#[test]
fn keys_and_limits_are_read_again() {
    let roci = home();
    let alice = add_key(&roci, "alice", "");
    let template = roci.home.path().join("mine.jinja");
    std::fs::write(&template, "{{ messages[0].content }}").unwrap();
    let server = start(&roci, &["--api-key-file", "keys.txt", "--chat-template-file", "mine.jinja"]);
    // What was read at the start need not be there any more.
    std::fs::remove_file(template).unwrap();
    let status = |key: &str| server.post_with(PATH, &chat("hi", 1), key).status;
    assert_eq!(status(&alice), 200);
    let bob = add_key(&roci, "bob", "rate=1");
    assert_eq!(status(&bob), 401);
    signal(&server, "-HUP");
    wait_until("bob is known", || status(&bob) == 200);
    assert_eq!(status(&bob), 429);
    // A file that cannot be read changes nothing.
    std::fs::write(roci.home.path().join("keys.txt"), "nonsense").unwrap();
    signal(&server, "-HUP");
    wait_until("it is told", || server.log().contains("stay as they are"));
    assert_eq!(status(&alice), 200);
    std::fs::write(roci.home.path().join("keys.txt"), "").unwrap();
    add_key(&roci, "carol", "");
    signal(&server, "-HUP");
    wait_until("alice has to go", || status(&alice) == 401);
}

#[cfg(target_os = "linux")]
#[test]
fn systemd_hears_of_it() {
    let roci = home();
    let socket = roci.home.path().join("notify");
    let inbox = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    inbox.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let next = || {
        let mut bytes = [0; 512];
        let n = inbox.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    };
    let wait_for = |what: &str| while !next().contains(what) {};
    let envs = [("NOTIFY_SOCKET", socket.to_str().unwrap()), ("WATCHDOG_USEC", "300000")];
    let mut server = Server::start_with(&roci, &["serve", "tiny.gguf", "--context", "64"], &envs);
    wait_for("READY=1");
    wait_for("WATCHDOG=1");
    signal(&server, "-HUP");
    wait_for("RELOADING=1");
    wait_for("READY=1");
    server.terminate();
    wait_for("STOPPING=1");
    assert_eq!(server.wait(), Some(0));
}

/// Socket activation: python stands for systemd, which opens the socket and hands it over.
#[cfg(target_os = "linux")]
#[test]
fn a_socket_that_was_opened_before_is_used() {
    let roci = home();
    let script = "import os, socket, sys\n\
        s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
        print(s.getsockname()[1], flush=True)\n\
        os.dup2(s.fileno(), 3)\n\
        os.set_inheritable(3, True)\n\
        os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[1], sys.argv[1:])";
    let model = "tiny.gguf";
    let command = roci.command(&["serve", model, "--context", "64", "--device", "cpu", "--port", "1"]);
    let arguments: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
    let mut python = std::process::Command::new("python3");
    python.arg("-c").arg(script).arg(roci.program()).args(arguments).current_dir(roci.home.path());
    command.get_envs().for_each(|(key, value)| {
        if let Some(value) = value {
            python.env(key, value);
        }
    });
    drop(command);
    let mut child = match python.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn() {
        Ok(child) => child,
        Err(_) => return test_support::skip("there is no python3", "ROCI_REQUIRE_PYTHON"),
    };
    let mut port = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut port).unwrap();
    let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{}", port.trim())).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let answer = crate::server::Answer::read(stream);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((answer.status, &answer.json["status"]), (200, &json!("ok")), "{}", answer.text);
    let _: Value = answer.json;
}
