//! The HTTP client that every source shares: the system's certificates, the proxy settings people
//! have, a short limit on connecting (a source that does not answer is skipped, not waited for) and
//! none on a long download that keeps moving.

use crate::hint::HintExt;
use crate::settings::Settings;
use anyhow::{Context, Result};
use std::time::Duration;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy, http};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// No bytes at all for this long: the connection is dead, the download resumes on a new one.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

const HINT: &str = "no connection? HTTPS_PROXY names a proxy, HF_ENDPOINT another hub, pip's index-url another \
                    registry; a file that is already here works by its path";

pub type Response = http::Response<Body>;

/// One agent, one pool of connections.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
}

impl Client {
    pub fn new(settings: &Settings) -> Result<Self> {
        let mut config = Agent::config_builder()
            .user_agent(concat!("roci/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots(settings)).build())
            .http_status_as_error(false)
            // A token for the hub must survive the hub's own redirects, and must not leave its host.
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            .timeout_resolve(Some(CONNECT_LIMIT))
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_recv_response(Some(ANSWER_LIMIT))
            .timeout_per_read(Some(SILENCE_LIMIT));
        if let Some(proxy) = &settings.proxy {
            // Names the setting, not the value: a proxy address may hold a password.
            config =
                config.proxy(Some(Proxy::new(proxy).context("pip's `proxy` setting is not a valid proxy address")?));
        }
        Ok(Self { agent: config.build().new_agent() })
    }

    /// A GET whose status is the caller's to judge. Credentials in the address become a header.
    pub fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Response> {
        let (url, credentials) = split_credentials(url);
        let mut request = self.agent.get(&url);
        if let Some(credentials) = credentials {
            request = request.header("authorization", format!("Basic {}", base64(credentials.as_bytes())));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.call().with_context(|| format!("no answer from {}", host(&url))).hint(HINT)
    }

    /// A HEAD that stops at a redirect to another host, so that this host's headers can be read.
    pub fn head_without_redirect(&self, url: &str, headers: &[(&str, &str)]) -> Result<http::Response<Body>> {
        let mut request = self.agent.head(url).config().max_redirects(0).max_redirects_will_error(false).build();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.call().with_context(|| format!("no answer from {}", host(url))).hint(HINT)
    }
}

/// The system's certificates and those named by settings; Mozilla's list where there are none.
fn roots(settings: &Settings) -> RootCerts {
    // Errors about single files are dropped on purpose: an unreadable one must not hide the others.
    let system = rustls_native_certs::load_native_certs().certs;
    let mut certs: Vec<Certificate<'static>> =
        system.iter().map(|der| Certificate::from_der(der.as_ref()).to_owned()).collect();
    for path in &settings.certs {
        let Ok(pem) = std::fs::read(path) else { continue };
        certs.extend(ureq::tls::parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(cert)) => Some(cert),
            _ => None,
        }));
    }
    if certs.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&certs) }
}

/// `https://user:password@host/` -> `https://host/` and `user:password`.
fn split_credentials(url: &str) -> (String, Option<String>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    match authority.rsplit_once('@') {
        Some((credentials, host)) => {
            (format!("{scheme}://{host}{}", &rest[authority.len()..]), Some(percent_decode(credentials)))
        }
        None => (url.to_owned(), None),
    }
}

/// The host of an address, for messages.
pub fn host(url: &str) -> String {
    let (url, _) = split_credentials(url);
    let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or(rest).to_owned()
}

/// The address a link stands for on the page at `base` (RFC 3986, the part that indexes use).
pub fn join(base: &str, link: &str) -> String {
    if link.contains("://") {
        return link.to_owned();
    }
    let Some((scheme, rest)) = base.split_once("://") else { return link.to_owned() };
    if let Some(link) = link.strip_prefix("//") {
        return format!("{scheme}://{link}");
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = path.split(['?', '#']).next().unwrap_or("");
    let mut segments: Vec<&str> = Vec::new();
    if !link.starts_with('/') {
        segments = path.split('/').skip(1).collect();
        segments.pop();
    }
    for segment in link.trim_start_matches('/').split('/') {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("{scheme}://{authority}/{}", segments.join("/"))
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| text.get(i + 1..i + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                i += 3;
            }
            None => {
                decoded.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let is_padding = i > chunk.len();
            let letter = ALPHABET[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if is_padding { '=' } else { char::from(letter) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_links_as_browsers_do() {
        let check = |link, expected: &str| assert_eq!(join("https://m.example/a/simple/pkg/", link), expected);
        check("https://f.example/x.whl", "https://f.example/x.whl");
        check("//f.example/x.whl", "https://f.example/x.whl");
        check("/files/x.whl#sha256=0", "https://m.example/files/x.whl#sha256=0");
        check("x.whl", "https://m.example/a/simple/pkg/x.whl");
        check("../../packages/x.whl", "https://m.example/a/packages/x.whl");
    }

    #[test]
    fn credentials_become_a_header_and_are_never_shown() {
        let (url, credentials) = split_credentials("https://me:p%40ss@m.example:8080/simple");
        assert_eq!(url, "https://m.example:8080/simple");
        assert_eq!(credentials.as_deref(), Some("me:p@ss"));
        assert_eq!(host("https://me:secret@m.example/simple"), "m.example");
    }

    #[test]
    fn base64_of_rfc_4648() {
        let check = |input: &str, expected: &str| assert_eq!(base64(input.as_bytes()), expected);
        check("", "");
        check("f", "Zg==");
        check("fo", "Zm8=");
        check("foo", "Zm9v");
        check("foobar", "Zm9vYmFy");
    }
}
