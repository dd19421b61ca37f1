//! A stand-in for the registry and the hub: a small HTTP/1.1 server on this machine that answers from a
//! table and can misbehave on request (ignore ranges, cut a body, hold it back). It is not the real
//! registry and not the real hub; their page formats are written into the tests that use it.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// What one path answers.
#[derive(Clone, Default)]
pub struct Route {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub ignores_range: bool,
    /// For the n-th request: the connection ends after so many bytes of the body.
    pub cuts: VecDeque<usize>,
    /// The body waits until the gate is open.
    pub gate: Option<Arc<Gate>>,
}

impl Route {
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn redirect(to: &str) -> Self {
        Self { status: 302, ..Self::default() }.header("Location", to)
    }
}

/// Holds answers back until opened.
#[derive(Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
    }
}

/// A request as it came: `GET /path`, and the headers in lower case.
#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub query: String,
    pub headers: HashMap<String, String>,
}

#[derive(Default)]
struct Shared {
    routes: Mutex<HashMap<String, Route>>,
    seen: Mutex<Vec<Seen>>,
    arrived: Condvar,
    is_closing: AtomicBool,
}

pub struct Server {
    address: String,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared::default());
        let for_thread = shared.clone();
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if for_thread.is_closing.load(Ordering::SeqCst) {
                    return;
                }
                let shared = for_thread.clone();
                std::thread::spawn(move || drop(answer(stream.unwrap(), &shared)));
            }
        });
        Self { address, shared, accepting: Some(accepting) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn route(&self, path: &str, route: Route) {
        self.shared.routes.lock().unwrap().insert(path.to_owned(), route);
    }

    /// Requests so far whose line is `line`.
    pub fn seen(&self, line: &str) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().iter().filter(|seen| seen.line == line).cloned().collect()
    }

    /// Blocks until a request with this line has come.
    pub fn wait_seen(&self, line: &str) {
        let seen = self.shared.seen.lock().unwrap();
        drop(self.shared.arrived.wait_while(seen, |seen| !seen.iter().any(|s| s.line == line)).unwrap());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

fn answer(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        if reader.by_ref().read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.trim().split_once(':').unwrap_or((header.trim(), ""));
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // One route answers for a path with any query.
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (route, cut) = match shared.routes.lock().unwrap().get_mut(path) {
        Some(route) => {
            let cut = if method == "GET" { route.cuts.pop_front() } else { None };
            (route.clone(), cut)
        }
        None => (Route { status: 404, ..Route::default() }, None),
    };
    let range = headers.get("range").cloned();
    shared.seen.lock().unwrap().push(Seen { line: format!("{method} {path}"), query: query.to_owned(), headers });
    shared.arrived.notify_all();
    respond(stream, method, &route, range.as_deref(), cut)
}

fn respond(
    mut stream: TcpStream,
    method: &str,
    route: &Route,
    range: Option<&str>,
    cut: Option<usize>,
) -> std::io::Result<()> {
    let total = route.body.len();
    let first = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let first = first.filter(|_| !route.ignores_range && route.status == 200);
    let mut head = match first {
        Some(first) if first >= total => format!("HTTP/1.1 416 x\r\nContent-Range: bytes */{total}\r\n"),
        Some(first) => format!("HTTP/1.1 206 x\r\nContent-Range: bytes {first}-{}/{total}\r\n", total - 1),
        None => format!("HTTP/1.1 {} x\r\n", route.status),
    };
    let body = match first {
        Some(first) => route.body.get(first..).unwrap_or_default(),
        None => &route.body,
    };
    for (name, value) in &route.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\nConnection: close\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(());
    }
    if let Some(gate) = &route.gate {
        stream.flush()?;
        gate.wait();
    }
    stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])
}
