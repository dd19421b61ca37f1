//! Real servers under Dynamo's own index: what it believes to be cached is what the servers find in their caches, through
//! evictions and an engine that dies, and the prompt of a second turn is found on the server that had the first.
//!
//! `ROCI_PROGRAM` names the `roci` to test, `ROCI_SMOLLM2` a model.

use roci_dynamo::{PrefixIndex, Subscriber};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Server {
    process: Child,
    address: String,
    events: Subscriber,
    number: u64,
}

/// The words after `mark` in a line of the log.
fn find(log: &mut impl BufRead, mark: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the log ends before `{mark}`");
        if let Some((_, rest)) = line.split_once(mark) {
            return rest.split_whitespace().next().unwrap().to_owned();
        }
    }
}

impl Server {
    fn start(number: u64, more: &[&str]) -> Option<Self> {
        let (program, model) = (std::env::var("ROCI_PROGRAM").ok()?, std::env::var("ROCI_SMOLLM2").ok()?);
        let args = ["serve", &format!("m={model}"), "--port", "0", "--context", "512", "--device", "cpu"];
        let events = ["--kv-events", "tcp://127.0.0.1:0"];
        let mut command = Command::new(program);
        command.args(args).args(events).args(more).env("NO_COLOR", "1").stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let (mut events, mut address) = (None, None);
        while events.is_none() || address.is_none() {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server ended");
            let mut line = line.as_bytes();
            if line.windows(12).any(|words| words == b"KV events at") {
                events = Some(find(&mut line, "KV events at tcp://"));
            } else if line.windows(12).any(|words| words == b"listening on") {
                address = Some(find(&mut line, "listening on http://"));
            }
        }
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let (events, address) = (Subscriber::connect(&events.unwrap()).unwrap(), address.unwrap());
        Some(Self { process, address, events, number })
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{answer}");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    fn tokens(&self, prompt: &str) -> Vec<u32> {
        let shown = self.post("/v1/completions/render", &json!({"prompt": prompt}));
        let tokens = shown["prompts"][0]["tokens"].as_array().unwrap();
        tokens.iter().map(|token| token.as_u64().unwrap() as u32).collect()
    }

    /// Completes it; how many of its tokens were in the cache.
    fn complete(&self, prompt: &str) -> usize {
        let body = json!({"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": true});
        let answer = self.post("/v1/completions", &body);
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize
    }

    /// Reads what comes until it is quiet.
    fn follow(&mut self, index: &mut PrefixIndex) -> usize {
        let mut n_events = 0;
        while let Some(message) = self.events.next(Duration::from_secs(2)).unwrap() {
            assert!(message.topic.ends_with("@m"), "{}", message.topic);
            n_events += index.take(self.number, &message).unwrap();
        }
        n_events
    }

    fn engine(&self) -> Option<String> {
        let found =
            Command::new("pgrep").args(["-P", &self.process.id().to_string(), "-f", "engine"]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().split_whitespace().next().map(str::to_owned)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

fn text(topic: &str, n: usize) -> String {
    (0..n).map(|i| format!("The {topic} of day {i} was long remembered. ")).collect()
}

/// What the server would compute of a prompt is what the index says is missing. A prompt's last token is always computed.
fn agree(server: &Server, index: &PrefixIndex, prompt: &str) -> usize {
    let tokens = server.tokens(prompt);
    let believed = index.n_cached(server.number, &tokens, None).min((tokens.len() - 1) / 16 * 16);
    assert_eq!(believed, server.complete(prompt), "{prompt}");
    believed
}

#[test]
fn dynamos_index_holds_what_the_servers_have() {
    // A small pool, so that blocks leave.
    let small = ["--kv-tokens", "512"];
    let (Some(mut one), Some(mut two)) = (Server::start(1, &small), Server::start(2, &small)) else {
        eprintln!("skipped: ROCI_PROGRAM or ROCI_SMOLLM2 is not set");
        return;
    };
    let mut index = PrefixIndex::default();
    let (sea, moon) = (text("sea", 8), text("moon", 8));
    assert_eq!((one.complete(&sea), two.complete(&moon)), (0, 0));
    assert!(one.follow(&mut index) > 0 && two.follow(&mut index) > 0);

    // Second turns are found where the first were.
    let next = format!("{sea}And then?");
    let tokens = one.tokens(&next);
    let (here, there) = (index.n_cached(1, &tokens, None), index.n_cached(2, &tokens, None));
    assert!(here >= 64 && there == 0, "{here} and {there}");
    assert_eq!(one.complete(&next), here);
    one.follow(&mut index);
    agree(&one, &index, &sea);

    // Others crowd it out.
    for topic in ["storm", "bread", "iron", "winter"] {
        one.complete(&text(topic, 12));
    }
    one.follow(&mut index);
    let left = agree(&one, &index, &sea);
    assert!(left < here, "{left} of {here} tokens are left: nothing was evicted");
    two.follow(&mut index);
    assert!(agree(&two, &index, &moon) >= 64, "the other server is not meant");

    // An engine that dies takes its cache along.
    let engine = two.engine().unwrap();
    assert!(Command::new("kill").args(["-9", &engine]).status().unwrap().success());
    let start = Instant::now();
    while index.n_cached(2, &two.tokens(&moon), None) > 0 {
        two.follow(&mut index);
        assert!(start.elapsed() < Duration::from_secs(60), "nothing says that the cache is gone");
    }
    assert_eq!(agree(&two, &index, &moon), 0);
    two.follow(&mut index);
    assert!(agree(&two, &index, &moon) >= 64);
}
