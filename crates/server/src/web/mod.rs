//! The pages that `roci serve` shows in a browser: a chat and a live view of the metrics.
//!
//! Plain files in this folder, compiled into the binary: no build step, nothing fetched from elsewhere. The pages use
//! relative addresses, so that they work behind a proxy under any path.

/// One file of the pages.
#[derive(Copy, Clone, Debug)]
pub struct Asset {
    pub content_type: &'static str,
    pub bytes: &'static [u8],
}

/// What the pages may load: only what came from this server. Inline styles are the charts' colours.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! assets {
    ($($path:literal => $type:expr, $file:literal;)*) => {
        /// Every path the pages consist of.
        #[cfg(test)]
        const PATHS: &[&str] = &[$($path),*];

        /// The file at a path below `/`, without the leading slash.
        pub fn asset(path: &str) -> Option<Asset> {
            match path {
                $($path => Some(Asset { content_type: $type, bytes: include_bytes!($file) }),)*
                _ => None,
            }
        }
    };
}

assets! {
    "index.html" => HTML, "index.html";
    "dashboard" => HTML, "dashboard.html";
    "assets/icon.svg" => "image/svg+xml", "icon.svg";
    "assets/style.css" => "text/css; charset=utf-8", "style.css";
    "assets/theme.js" => SCRIPT, "theme.js";
    "assets/main.js" => SCRIPT, "main.js";
    "assets/api.js" => SCRIPT, "api.js";
    "assets/store.js" => SCRIPT, "store.js";
    "assets/conversation.js" => SCRIPT, "conversation.js";
    "assets/view.js" => SCRIPT, "view.js";
    "assets/sidebar.js" => SCRIPT, "sidebar.js";
    "assets/settings.js" => SCRIPT, "settings.js";
    "assets/attachments.js" => SCRIPT, "attachments.js";
    "assets/markdown.js" => SCRIPT, "markdown.js";
    "assets/highlight.js" => SCRIPT, "highlight.js";
    "assets/dashboard.js" => SCRIPT, "dashboard.js";
    "assets/prometheus.js" => SCRIPT, "prometheus.js";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each script, sheet and picture that a page or a script names is one that we serve.
    #[test]
    fn nothing_is_missing() {
        for path in PATHS {
            let text = String::from_utf8_lossy(asset(path).expect("listed").bytes).into_owned();
            let names = text.split(['"', '\'']).filter(|part| part.starts_with("./") && part.ends_with(".js"));
            for name in names.map(|n| n.trim_start_matches("./")) {
                assert!(asset(&format!("assets/{name}")).is_some(), "{path} imports {name}");
            }
            for name in text.split('"').filter(|part| part.starts_with("assets/")) {
                assert!(asset(name).is_some(), "{path} links {name}");
            }
        }
    }

    /// The pages load nothing from elsewhere.
    #[test]
    fn nothing_from_outside() {
        for path in PATHS {
            let text = String::from_utf8_lossy(asset(path).expect("listed").bytes).into_owned();
            for mark in ["src=\"http", "href=\"http", "from \"http", "import(\"http", "url(http", "@import"] {
                assert!(!text.contains(mark), "{path} holds {mark}");
            }
        }
    }
}
