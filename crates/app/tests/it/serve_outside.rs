//! The server and the world around it: TLS with a certificate made here, and a stand-in for an OpenTelemetry collector.

use crate::roci::Roci;
use crate::serve::{chat, streamed};
use crate::server::Server;
use crate::tiny;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A home with the tiny model and a certificate for `localhost`, which is also given as PEM.
fn home_with_certificate() -> (Roci, String) {
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let cert = write_certificate(&roci);
    (roci, cert)
}

/// Writes a new certificate and its key, as a renewal does.
fn write_certificate(roci: &Roci) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    let cert = made.cert.pem();
    std::fs::write(roci.home.path().join("cert.pem"), &cert).unwrap();
    std::fs::write(roci.home.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    cert
}

fn client(certificate: Option<&str>) -> ureq::Agent {
    let roots = match certificate {
        Some(pem) => RootCerts::new_with_certs(&[Certificate::from_pem(pem.as_bytes()).unwrap()]),
        None => RootCerts::WebPki,
    };
    let tls = TlsConfig::builder().root_certs(roots).build();
    ureq::Agent::new_with_config(ureq::Agent::config_builder().tls_config(tls).http_status_as_error(false).build())
}

#[test]
fn tls_with_a_certificate_of_ones_own() {
    let (roci, certificate) = home_with_certificate();
    let args = ["serve", "tiny.gguf", "--context", "256", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let server = Server::start(&roci, &args);
    let url = |path: &str| format!("https://{}{path}", server.address().replace("127.0.0.1", "localhost"));
    let trusting = client(Some(&certificate));
    let post = |body: Value| {
        let mut answer = trusting.post(url("/v1/chat/completions")).send(body.to_string()).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    let (status, text) = post(chat("hi", 4));
    assert_eq!((status, text.contains("\"xxxx\"")), (200, true), "{text}");
    let (status, text) = post(streamed("hi", 3));
    assert_eq!((status, text.trim_end().ends_with("data: [DONE]")), (200, true), "{text}");
    assert!(client(None).get(url("/health")).call().is_err(), "nobody vouches for it");
    // Plain HTTP gets no answer and does no harm.
    let mut plain = server.connect();
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&bytes));
    assert_eq!(trusting.get(url("/health")).call().unwrap().status(), 200);
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let (roci, first) = home_with_certificate();
    let args = ["serve", "tiny.gguf", "--context", "256", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let server = Server::start(&roci, &args);
    let url = format!("https://{}/health", server.address().replace("127.0.0.1", "localhost"));
    let is_trusted = |certificate: &str| client(Some(certificate)).get(&url).call().is_ok();
    assert!(is_trusted(&first));
    let hang_up = || {
        let status = std::process::Command::new("kill").args(["-HUP", &server.id().to_string()]).status();
        assert!(status.unwrap().success());
    };
    let second = write_certificate(&roci);
    hang_up();
    crate::serve::wait_until("SIGHUP brings the new one", || is_trusted(&second));
    assert!(!is_trusted(&first));
    // A key that does not fit changes nothing.
    std::fs::write(roci.home.path().join("key.pem"), "no key").unwrap();
    hang_up();
    crate::serve::wait_until("the log says so", || server.log().contains("key.pem"));
    assert!(is_trusted(&second));
    // Without a signal, files that change are noticed within ten seconds.
    let third = write_certificate(&roci);
    let start = Instant::now();
    while !is_trusted(&third) {
        assert!(start.elapsed() < Duration::from_secs(30), "{}", server.log());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn wrong_certificates_are_named() {
    let (roci, _) = home_with_certificate();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(roci.home.path().join("other.pem"), other.signing_key.serialize_pem()).unwrap();
    std::fs::write(roci.home.path().join("empty.pem"), "").unwrap();
    for (cert, key, expected) in [
        ("nothing.pem", "key.pem", "nothing.pem"),
        ("cert.pem", "empty.pem", "empty.pem"),
        ("cert.pem", "other.pem", "do not match"),
    ] {
        let outcome = roci.run(&["serve", "tiny.gguf", "--port", "0", "--tls-cert", cert, "--tls-key", key]);
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "`{}` does not contain `{expected}`", outcome.stderr);
    }
    let outcome = roci.run(&["serve", "tiny.gguf", "--tls-cert", "cert.pem"]);
    assert!(outcome.code != Some(0) && outcome.stderr.contains("--tls-key"), "{}", outcome.stderr);
}

/// Takes what is posted to it, as a collector would.
fn collector_stand_in() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, posts) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = Vec::new();
            let mut buffer = [0; 4096];
            let (head, body) = loop {
                let n = stream.read(&mut buffer).unwrap_or(0);
                bytes.extend_from_slice(&buffer[..n]);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else {
                    assert!(n > 0, "a cut request");
                    continue;
                };
                let length = head.to_lowercase();
                let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if body.len() >= length.parse::<usize>().unwrap() {
                    break (head.to_owned(), body.to_owned());
                }
                assert!(n > 0, "a cut request");
            };
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
            let _ = sender.send((head, serde_json::from_str(&body).unwrap()));
        }
    });
    (address, posts)
}

#[test]
fn spans_reach_a_collector() {
    let (address, posts) = collector_stand_in();
    let roci = Roci::new();
    tiny::write(roci.home.path());
    let args = ["serve", "tiny.gguf", "--context", "256", "--otlp-endpoint", &address];
    let server = Server::start(&roci, &args);
    let parent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    server.post_with("/v1/chat/completions", &chat("a secret word", 4), parent);
    let unrecorded = parent.replace("-01\r", "-00\r");
    server.post_with("/v1/chat/completions", &chat("hi", 1), &unrecorded);
    server.post("/v1/completions", &json!({"prompt": 3.5}));
    let mut spans = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while spans.len() < 3 {
        let left = deadline.saturating_duration_since(Instant::now());
        let (head, body) = posts.recv_timeout(left).unwrap_or_else(|_| panic!("only {spans:?}"));
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        assert!(!body.to_string().contains("secret"), "{body}");
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "roci");
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    let attribute = |span: &Value, key: &str| {
        let all = span["attributes"].as_array().unwrap();
        let found = all.iter().find(|attribute| attribute["key"] == key);
        found.map_or(Value::Null, |found| found["value"].as_object().unwrap().values().next().unwrap().clone())
    };
    let named = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{spans:?}"));
    let request = named("POST /v1/chat/completions");
    assert_eq!(request["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!("00f067aa0ba902b7"), &json!(2)));
    assert_eq!(attribute(request, "http.response.status_code"), "200");
    let answer = named("generate tiny");
    assert_eq!((&answer["traceId"], &answer["parentSpanId"]), (&request["traceId"], &request["spanId"]));
    assert_eq!(attribute(answer, "gen_ai.usage.output_tokens"), "4");
    assert!(attribute(answer, "gen_ai.server.time_to_first_token").as_f64().unwrap() > 0.0);
    let nanos = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    assert!(nanos(answer, "startTimeUnixNano") >= nanos(request, "startTimeUnixNano"));
    assert!(nanos(answer, "endTimeUnixNano") > nanos(answer, "startTimeUnixNano"));
    let refused = named("POST /v1/completions");
    assert_eq!((attribute(refused, "http.response.status_code"), &refused["parentSpanId"]), (json!("400"), &json!("")));
}
