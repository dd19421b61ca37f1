//! Who goes first: keys take turns, a higher priority goes before, and nobody starves.

use crate::roci::Roci;
use crate::serve::{chat, metric, streamed, wait_until};
use crate::server::{Answer, Server};
use crate::tiny;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PATH: &str = "/v1/chat/completions";

struct Keys {
    _roci: Roci,
    server: Server,
    /// As headers. The first is for what keeps the others waiting.
    keys: Vec<String>,
}

/// One request runs at a time, so that the order is plain to see.
fn start(priorities: &[&str]) -> Keys {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let make = |(i, priority): (usize, &str)| {
        let name = format!("key{i}");
        let args = ["key", "new", "--file", "keys.txt", "--name", &name, "--priority", priority];
        format!("Authorization: Bearer {}\r\n", roci.run(&args).stdout.trim())
    };
    let keys = ["1000"].iter().chain(priorities).copied().enumerate().map(make).collect();
    let limits = ["--context", "100000", "--max-running", "1", "--api-key-file", "keys.txt", "--open-metrics"];
    let server = Server::start(&roci, &[&["serve", "tiny.gguf"], limits.as_slice()].concat());
    Keys { _roci: roci, server, keys }
}

impl Keys {
    /// Something that runs until it is dropped.
    fn hold(&self) -> TcpStream {
        let held = self.server.open(PATH, &streamed("hold", 90_000), &self.keys[0]);
        wait_until("the first runs", || metric(&self.server, "roci_requests_running") == 1.0);
        held
    }

    /// Sends requests one after the other, each when the one before waits; lets them go; says whose ended when.
    fn order(&self, senders: &[usize]) -> Vec<usize> {
        let held = self.hold();
        let ended = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (i, &sender) in senders.iter().enumerate() {
                let connection = self.server.open(PATH, &chat(&format!("request {i}"), 100), &self.keys[sender]);
                wait_until("it waits", || metric(&self.server, "roci_requests_waiting") == (i + 1) as f64);
                let ended = &ended;
                scope.spawn(move || {
                    let answer = Answer::read(connection);
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    ended.lock().unwrap().push(sender);
                });
            }
            drop(held);
        });
        ended.into_inner().unwrap()
    }
}

#[test]
fn one_key_cannot_crowd_out_another() {
    let keys = start(&["0", "0"]);
    let order = keys.order(&[1, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
    // They take turns; one place more, because clients may see two ends in the wrong order.
    let last = order.iter().rposition(|&key| key == 2).unwrap();
    assert!(last <= 4, "the second key waits for the first one's backlog: {order:?}");
}

#[test]
fn a_higher_priority_goes_first() {
    let keys = start(&["0", "5"]);
    let order = keys.order(&[1, 1, 1, 1, 2, 2]);
    assert_eq!(order[..3].iter().filter(|&&key| key == 2).count(), 2, "{order:?}");
}

/// A key of high priority that never stops asking: the others' requests still get their turn.
#[test]
fn nobody_starves() {
    let keys = start(&["0", "1"]);
    let held = keys.hold();
    let waiting = keys.server.open(PATH, &chat("patient", 3), &keys.keys[1]);
    wait_until("it waits", || metric(&keys.server, "roci_requests_waiting") == 1.0);
    let (is_over, n_others) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for i in 0..3 {
            let (keys, is_over, n_others) = (&keys, &is_over, &n_others);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let answer = keys.server.post_with(PATH, &chat(&format!("urgent {i}"), 30), &keys.keys[2]);
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    n_others.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        wait_until("the urgent ones wait", || metric(&keys.server, "roci_requests_waiting") == 4.0);
        drop(held);
        let answer = Answer::read(waiting);
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(answer.status, 200, "{}", answer.text);
    });
    // A point of priority is worth 16 turns; those in flight at the end count too.
    let n_others = n_others.into_inner();
    assert!((10..=24).contains(&n_others), "{n_others} went before");
}

#[test]
fn a_flood_of_one_key_leaves_places_for_others() {
    let keys = start(&["0", "0"]);
    let held = keys.hold();
    let send = |i| keys.server.open(PATH, &chat(&format!("flood {i}"), 1), &keys.keys[1]);
    let flood: Vec<TcpStream> = (0..200).map(send).collect();
    let count = |name: &str| metric(&keys.server, name);
    wait_until("all are in the queue or refused", || {
        count("roci_requests_waiting") + count("roci_requests_refused_total") >= 200.0
    });
    let other = keys.server.open(PATH, &chat("other", 1), &keys.keys[2]);
    let n_waiting = count("roci_requests_waiting");
    wait_until("the other waits too", || count("roci_requests_waiting") > n_waiting || n_waiting > 129.0);
    drop(held);
    assert_eq!(Answer::read(other).status, 200);
    let answers: Vec<Answer> = flood.into_iter().map(Answer::read).collect();
    let n_with = |status| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((n_with(200), n_with(429)), (129, 71), "half of the places and one for the running request");
    let text = keys.server.get("/metrics").text;
    assert!(text.contains("roci_key_requests_total{key=\"key1\",status=\"429\"} 71"), "{text}");
}
