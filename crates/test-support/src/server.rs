//! A running `roci serve`, and a client with no library between it and the wire.

use crate::roci::Roci;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Server {
    process: Child,
    address: String,
    log: Arc<Mutex<String>>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: String,
    pub text: String,
    pub json: Value,
}

impl Server {
    /// Starts it on a free port and waits until it listens.
    pub fn start(roci: &Roci, args: &[&str]) -> Self {
        Self::start_with(roci, args, &[])
    }

    /// The same with variables in its environment.
    pub fn start_with(roci: &Roci, args: &[&str], envs: &[(&str, &str)]) -> Self {
        Self::start_on("cpu", roci, args, envs)
    }

    /// The same on another device. Nothing is guessed ahead unless the arguments say so: the tiny model repeats itself, and what
    /// a test counts and times should not depend on that.
    pub fn start_on(device: &str, roci: &Roci, args: &[&str], envs: &[(&str, &str)]) -> Self {
        let mut command = roci.command(args);
        command.envs(envs.iter().copied());
        command.args(["--port", "0", "--device", device, "--threads", "1"]);
        if !args.contains(&"--speculate") {
            command.args(["--speculate", "off"]);
        }
        Self::of(command)
    }

    /// The server that a command starts, when it listens.
    pub fn of(mut command: Command) -> Self {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut before = String::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {before}")).unwrap();
            let address = line.strip_prefix("listening on http://").or(line.strip_prefix("listening on https://"));
            match address {
                Some(address) => break address.to_owned(),
                None => before.push_str(&(line + "\n")),
            }
        };
        let log = Arc::new(Mutex::new(before));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { process, address, log }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Sends a request and leaves the answer in the connection.
    pub fn open(&self, path: &str, body: &Value, headers: &str) -> TcpStream {
        self.send("POST", path, &body.to_string(), headers)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    pub fn ask(&self, method: &str, path: &str, headers: &str) -> Answer {
        Answer::read(self.send(method, path, "", headers))
    }

    /// `127.0.0.1:PORT`
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, body, "")
    }

    pub fn post_with(&self, path: &str, body: &Value, headers: &str) -> Answer {
        self.post_text(path, &body.to_string(), headers)
    }

    pub fn post_text(&self, path: &str, body: &str, headers: &str) -> Answer {
        Answer::read(self.send("POST", path, body, headers))
    }

    fn send(&self, method: &str, path: &str, body: &str, headers: &str) -> TcpStream {
        let mut stream = self.connect();
        let n_bytes = body.len();
        // A server that refuses early may hang up before it has read everything.
        let _ = write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {n_bytes}\r\n\r\n{body}"
        );
        stream
    }

    /// The most memory it has had so far.
    pub fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn terminate(&self) {
        let pid = self.process.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    pub fn wait(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Answer {
    pub fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let all = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let headers = head.to_lowercase();
        let text = if headers.contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_owned() };
        Self { status, headers, json: serde_json::from_str(&text).unwrap_or_default(), text }
    }
}

fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        text.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    text
}
