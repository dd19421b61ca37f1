//! Which web pages may ask. A browser sends requests of any page to a server on this machine, with the user's network
//! but without the user's will. Where keys are asked for, a page cannot send one; where none is, the names in `Host`
//! and `Origin` decide: a name that anybody can register must be one the operator named, and a page that was not
//! served from here must be one of `--cors-origin`.

use super::error::ApiError;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use std::net::IpAddr;

/// Ends of names that nobody can register for a page on the Internet.
const PRIVATE_ENDS: [&str; 3] = [".localhost", ".local", ".internal"];

#[derive(Clone, Debug, Default)]
pub struct OriginPolicy {
    /// Whether a key is asked for.
    pub has_keys: bool,
    /// Names under which the server may be addressed; `*`: any.
    pub hosts: Vec<String>,
    /// Origins of pages that may ask; `*`: any.
    pub origins: Vec<String>,
}

impl OriginPolicy {
    /// Refuses what a page could have sent without being allowed to.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.has_keys {
            return Ok(());
        }
        let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = uri.authority().map(|authority| authority.as_str()).or(text(header::HOST)).unwrap_or_default();
        if !self.is_known(name_of(host)) {
            let name = name_of(host);
            let text = format!("`{name}` is not a name of this server; `--allowed-host {name}` allows it");
            return Err(ApiError::new(StatusCode::FORBIDDEN, text).code("unknown_host"));
        }
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return Ok(());
        }
        let origin = text(header::ORIGIN);
        let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
        let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host));
        let is_named = |origin: &str| self.origins.iter().any(|named| named == "*" || named == origin);
        let is_foreign = match (site, origin) {
            // The browser compared them itself; a proxy may have changed the host on the way.
            (Some("same-origin"), _) => false,
            (_, Some(origin)) => !is_own(origin) && !is_named(origin),
            (site, None) => matches!(site, Some("cross-site" | "same-site")),
        };
        if is_foreign {
            let origin = origin.unwrap_or("another site");
            let text = format!("pages from {origin} may not use this server; `--cors-origin` allows them");
            return Err(ApiError::new(StatusCode::FORBIDDEN, text).code("unknown_origin"));
        }
        // Other types a browser sends without asking first.
        let is_browser = origin.is_some() || site.is_some();
        let kind = text(header::CONTENT_TYPE).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_json = kind == "application/json" || kind.ends_with("+json");
        match is_browser && *method == Method::POST && !is_json {
            true => Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "expected content-type: application/json")),
            false => Ok(()),
        }
    }

    fn is_known(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        // A page cannot have such an address or name unless it comes from the same network.
        let is_private = !name.contains('.') || PRIVATE_ENDS.iter().any(|end| name.ends_with(end));
        let is_named = |named: &String| named == "*" || named.eq_ignore_ascii_case(&name);
        is_private || address.parse::<IpAddr>().is_ok() || self.hosts.iter().any(is_named)
    }
}

/// Without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> OriginPolicy {
        OriginPolicy {
            has_keys: false,
            hosts: vec!["llm.example.org".into()],
            origins: vec!["https://app.example".into()],
        }
    }

    #[track_caller]
    fn check(policy: &OriginPolicy, method: Method, headers: &[(&str, &str)], expected: u16) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let status = policy
            .check(&method, &Uri::from_static("/api/chat"), &map)
            .err()
            .map_or(200, |error| error.status.as_u16());
        assert_eq!(status, expected, "{headers:?}");
    }

    #[test]
    fn names_that_anybody_can_register_must_be_named() {
        for (host, expected) in [
            ("127.0.0.1:8080", 200),
            ("[::1]:8080", 200),
            ("localhost", 200),
            ("roci:8080", 200),
            ("box.local", 200),
            ("LLM.example.org:443", 200),
            ("evil.example.com:8080", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.evil.example:8080", 403),
        ] {
            check(&policy(), Method::GET, &[("host", host)], expected);
        }
        check(&policy(), Method::GET, &[], 200);
        let keyed = OriginPolicy { has_keys: true, ..policy() };
        check(&keyed, Method::GET, &[("host", "evil.example.com")], 200);
        let any = OriginPolicy { hosts: vec!["*".into()], ..policy() };
        check(&any, Method::GET, &[("host", "evil.example.com")], 200);
    }

    #[test]
    fn other_pages_may_not_ask() {
        let (host, json) = (("host", "127.0.0.1:8080"), ("content-type", "application/json; charset=utf-8"));
        for (headers, expected) in [
            (vec![host], 200),
            (vec![host, ("content-type", "application/x-www-form-urlencoded")], 200),
            (vec![host, json, ("origin", "http://127.0.0.1:8080")], 200),
            (vec![host, json, ("origin", "https://app.example")], 200),
            (vec![host, json, ("origin", "https://evil.example")], 403),
            (vec![host, json, ("origin", "http://127.0.0.1:9999")], 403),
            (vec![host, json, ("origin", "null")], 403),
            (vec![host, json, ("sec-fetch-site", "cross-site")], 403),
            (vec![host, json, ("sec-fetch-site", "same-origin")], 200),
            (vec![host, ("content-type", "text/plain"), ("origin", "http://127.0.0.1:8080")], 415),
            (vec![host, ("content-type", "text/plain"), ("sec-fetch-site", "none")], 415),
        ] {
            check(&policy(), Method::POST, &headers, expected);
        }
        check(&policy(), Method::GET, &[host, ("origin", "https://evil.example")], 200);
        check(&policy(), Method::DELETE, &[host, ("origin", "https://evil.example")], 403);
    }
}
