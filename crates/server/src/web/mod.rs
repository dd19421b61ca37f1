//! The pages that `roci serve` shows in a browser: a chat and a live view of the metrics.
//!
//! Plain files in this folder, compiled into the binary: no build step, nothing fetched from elsewhere. The pages use
//! relative addresses, so that they work behind a proxy under any path. Other people's code is in `vendor`.

mod vendor;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::io::Read;

/// One file of the pages.
#[derive(Copy, Clone, Debug)]
pub struct Asset {
    pub content_type: &'static str,
    pub bytes: &'static [u8],
    pub storage: Storage,
}

/// How a file is kept in the binary, and for how long by a browser.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Storage {
    /// As it is; a new version of the program brings a new one.
    Plain,
    /// As it is; its address names its version.
    Versioned,
    /// Compressed; its address names its version.
    VersionedGzip,
}

/// What the pages may load: only what came from this server. Inline styles are the charts' colours and KaTeX's sizes.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
     img-src 'self' data:; font-src 'self'; worker-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SHEET: &str = "text/css; charset=utf-8";

macro_rules! assets {
    ($($path:literal => $type:expr, $file:literal;)*) => {
        /// Every path of our own files.
        #[cfg(test)]
        const PATHS: &[&str] = &[$($path),*];

        fn own(path: &str) -> Option<Asset> {
            match path {
                $($path => Some(Asset { content_type: $type, bytes: include_bytes!($file), storage: Storage::Plain }),)*
                _ => None,
            }
        }
    };
}

assets! {
    "index.html" => HTML, "index.html";
    "dashboard" => HTML, "dashboard.html";
    "assets/icon.svg" => "image/svg+xml", "icon.svg";
    "assets/style.css" => SHEET, "style.css";
    "assets/chat.css" => SHEET, "chat.css";
    "assets/dashboard.css" => SHEET, "dashboard.css";
    "assets/theme.js" => SCRIPT, "theme.js";
    "assets/main.js" => SCRIPT, "main.js";
    "assets/api.js" => SCRIPT, "api.js";
    "assets/attachments.js" => SCRIPT, "attachments.js";
    "assets/blocks.js" => SCRIPT, "blocks.js";
    "assets/charts.js" => SCRIPT, "charts.js";
    "assets/chat.js" => SCRIPT, "chat.js";
    "assets/conversation.js" => SCRIPT, "conversation.js";
    "assets/dashboard.js" => SCRIPT, "dashboard.js";
    "assets/dom.js" => SCRIPT, "dom.js";
    "assets/download.js" => SCRIPT, "download.js";
    "assets/files.js" => SCRIPT, "files.js";
    "assets/highlight.js" => SCRIPT, "highlight.js";
    "assets/inline.js" => SCRIPT, "inline.js";
    "assets/markdown.js" => SCRIPT, "markdown.js";
    "assets/math.js" => SCRIPT, "math.js";
    "assets/message.js" => SCRIPT, "message.js";
    "assets/models.js" => SCRIPT, "models.js";
    "assets/pdf.js" => SCRIPT, "pdf.js";
    "assets/presets.js" => SCRIPT, "presets.js";
    "assets/prometheus.js" => SCRIPT, "prometheus.js";
    "assets/settings.js" => SCRIPT, "settings.js";
    "assets/sidebar.js" => SCRIPT, "sidebar.js";
    "assets/store.js" => SCRIPT, "store.js";
    "assets/view.js" => SCRIPT, "view.js";
}

/// The file at a path below `/`, without the leading slash.
pub fn asset(path: &str) -> Option<Asset> {
    own(path).or_else(|| vendor::asset(path))
}

/// The answer to a request for a file: compressed where the client takes it, short where the client has it already.
pub fn respond(path: &str, request: &HeaderMap) -> Response {
    let Some(asset) = asset(path) else { return StatusCode::NOT_FOUND.into_response() };
    let tag = format!("\"{}\"", &hex(&Sha256::digest(asset.bytes))[..16]);
    let lifetime = match asset.storage {
        Storage::Plain => "no-cache",
        Storage::Versioned | Storage::VersionedGzip => "public, max-age=31536000, immutable",
    };
    let headers = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, lifetime),
        (header::VARY, "Accept-Encoding"),
        (header::ETAG, tag.as_str()),
    ];
    let has_it = request.get_all(header::IF_NONE_MATCH).iter().any(|sent| sent.as_bytes() == tag.as_bytes());
    if has_it {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    if asset.storage != Storage::VersionedGzip {
        return (headers, asset.bytes).into_response();
    }
    if takes_gzip(request) {
        return (headers, [(header::CONTENT_ENCODING, "gzip")], asset.bytes).into_response();
    }
    match unpack(asset.bytes) {
        Ok(bytes) => (headers, bytes).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn takes_gzip(request: &HeaderMap) -> bool {
    let sent = request.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value: &HeaderValue| value.to_str().ok());
    sent.flat_map(|value| value.split(',')).any(|part| {
        let (name, quality) = part.split_once(';').unwrap_or((part, ""));
        name.trim().eq_ignore_ascii_case("gzip") && !matches!(quality.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

fn unpack(bytes: &[u8]) -> std::io::Result<Bytes> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain)?;
    Ok(plain.into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> String {
        String::from_utf8_lossy(asset(path).expect("listed").bytes).into_owned()
    }

    /// Each script, sheet and picture that a page or a script names is one that we serve.
    #[test]
    fn nothing_is_missing() {
        for path in PATHS {
            let text = text(path);
            let names = text.split(['"', '\'']).filter(|part| part.starts_with("./") && part.ends_with("js"));
            for name in names.map(|n| n.trim_start_matches("./")) {
                assert!(asset(&format!("assets/{name}")).is_some(), "{path} imports {name}");
            }
            for name in text.split('"').filter(|part| part.starts_with("assets/")) {
                let is_folder = name.ends_with('/') && vendor::PATHS.iter().any(|path| path.starts_with(name));
                assert!(is_folder || asset(name).is_some(), "{path} links {name}");
            }
        }
    }

    /// The pages load nothing from elsewhere.
    #[test]
    fn nothing_from_outside() {
        for path in PATHS {
            for mark in ["src=\"http", "href=\"http", "from \"http", "import(\"http", "url(http", "@import"] {
                assert!(!text(path).contains(mark), "{path} holds {mark}");
            }
        }
    }

    /// What a model writes never becomes markup.
    #[test]
    fn no_script_parses_html() {
        for path in PATHS.iter().filter(|path| path.ends_with(".js")) {
            for mark in ["innerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function"] {
                assert!(!text(path).contains(mark), "{path} holds {mark}");
            }
        }
    }

    #[test]
    fn compressed_for_those_who_take_it() {
        let path = vendor::PATHS.iter().find(|path| path.ends_with("katex.min.js")).expect("vendored");
        let encoding = |sent: &'static str| {
            let mut request = HeaderMap::new();
            request.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(sent));
            respond(path, &request).headers().get(header::CONTENT_ENCODING).cloned()
        };
        assert_eq!(encoding("gzip, deflate, br").as_ref().map(HeaderValue::as_bytes), Some(b"gzip".as_slice()));
        assert_eq!(encoding("br"), None);
        assert_eq!(encoding("gzip;q=0, br"), None);
    }

    #[test]
    fn what_a_browser_has_is_not_sent_again() {
        let first = respond("assets/main.js", &HeaderMap::new());
        let mut request = HeaderMap::new();
        request.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(respond("assets/main.js", &request).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(respond("assets/view.js", &request).status(), StatusCode::OK);
    }
}
