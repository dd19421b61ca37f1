//! The page that the server shows in a browser: its files, part of the program.

/// A file of the page.
#[derive(Copy, Clone, Debug)]
pub struct Asset {
    pub content_type: &'static str,
    pub bytes: &'static [u8],
}

/// The file at a path below `/`, without the leading slash.
pub fn asset(path: &str) -> Option<Asset> {
    match path {
        "index.html" => Some(Asset { content_type: "text/html; charset=utf-8", bytes: include_bytes!("index.html") }),
        _ => None,
    }
}
