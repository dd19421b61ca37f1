//! The registry source: where a wheel of a Python package lies, and its checksum. Asks the registry's
//! JSON index first; a mirror that has only the simple index (JSON by PEP 691, or HTML by PEP 503)
//! serves as well. Downloads nothing but the index page.

use crate::http::{self, Client};
use crate::settings::Settings;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::HashMap;

/// An index page larger than this is no index page.
const MAX_PAGE_BYTES: u64 = 32 << 20;

/// One wheel, as an index describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wheel {
    pub file_name: String,
    pub url: String,
    pub sha256: Option<String>,
    pub n_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct RegistryRelease {
    urls: Vec<ReleaseFile>,
}

#[derive(Deserialize)]
struct ReleaseFile {
    filename: String,
    url: String,
    digests: HashMap<String, String>,
    size: Option<u64>,
}

#[derive(Deserialize)]
struct SimplePage {
    files: Vec<SimpleFile>,
}

#[derive(Deserialize)]
struct SimpleFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: HashMap<String, String>,
    size: Option<u64>,
}

/// Asks each index in turn; the error names them all.
pub fn find_wheel(client: &Client, settings: &Settings, package: &str, version: &str) -> Result<Wheel> {
    let mut failures = Vec::new();
    for index in &settings.indexes {
        match find_in_index(client, index, package, version) {
            Ok(wheel) => return Ok(wheel),
            Err(error) => failures.push(crate::hint::one_line(&error)),
        }
    }
    bail!("{}", failures.join("; "))
}

fn find_in_index(client: &Client, index: &str, package: &str, version: &str) -> Result<Wheel> {
    // The two indexes of one registry stand beside each other: /simple/NAME/ and /pypi/NAME/VERSION/json.
    if let Some(root) = index.strip_suffix("/simple") {
        let url = format!("{root}/pypi/{package}/{version}/json");
        let mut response = client.get(&url, &[("accept", "application/json")])?;
        if response.status() == 200
            && let Ok(page) = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string()
            && let Ok(release) = serde_json::from_str::<RegistryRelease>(&page)
        {
            let wheels = release.urls.into_iter().map(|file| Wheel {
                sha256: file.digests.get("sha256").cloned(),
                url: http::join(&url, &file.url),
                n_bytes: file.size,
                file_name: file.filename,
            });
            return pick(wheels, package, version, index);
        }
    }
    find_in_simple(client, index, package, version)
}

fn find_in_simple(client: &Client, index: &str, package: &str, version: &str) -> Result<Wheel> {
    let url = format!("{index}/{package}/");
    let accept = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";
    let mut response = client.get(&url, &[("accept", accept)])?;
    if response.status() != 200 {
        bail!("{} answered {} for the package `{package}`", http::host(index), response.status());
    }
    let page = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string();
    let page = page.with_context(|| format!("cannot read the index page of {}", http::host(index)))?;
    if page.trim_start().starts_with('{') {
        let page: SimplePage = serde_json::from_str(&page)
            .with_context(|| format!("{} sent an index page that is not a simple index", http::host(index)))?;
        let wheels = page.files.into_iter().map(|file| Wheel {
            sha256: file.hashes.get("sha256").cloned(),
            url: http::join(&url, &file.url),
            n_bytes: file.size,
            file_name: file.filename,
        });
        return pick(wheels, package, version, index);
    }
    pick(html_links(&page).into_iter().map(|link| wheel_of_link(&url, &link)), package, version, index)
}

fn pick(wheels: impl Iterator<Item = Wheel>, package: &str, version: &str, index: &str) -> Result<Wheel> {
    let normal = |name: &str| name.to_lowercase().replace(['_', '.'], "-");
    wheels
        .into_iter()
        .find(|wheel| {
            let mut parts = wheel.file_name.split('-');
            wheel.file_name.ends_with(".whl")
                && parts.next().is_some_and(|name| normal(name) == normal(package))
                && parts.next() == Some(version)
        })
        .with_context(|| format!("{} has no wheel of {package} {version}", http::host(index)))
}

/// A link of the simple index: the address, with the checksum after `#`.
fn wheel_of_link(page_url: &str, link: &str) -> Wheel {
    let url = http::join(page_url, link);
    let (url, fragment) = url.split_once('#').unwrap_or((&url, ""));
    let sha256 = fragment.split('&').find_map(|part| part.strip_prefix("sha256="));
    let file_name = url.rsplit('/').next().unwrap_or(url).split('?').next().unwrap_or_default();
    Wheel { file_name: file_name.to_owned(), url: url.to_owned(), sha256: sha256.map(str::to_owned), n_bytes: None }
}

/// The `href` of every `<a>` on the page.
fn html_links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    for tag in page.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap_or("");
        let is_anchor = tag.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("a ") || start == "a\n");
        let Some(value) = is_anchor.then(|| tag.split_once("href=")).flatten().map(|(_, value)| value) else {
            continue;
        };
        let link = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split(quote).next(),
            _ => value.split_whitespace().next(),
        };
        links.extend(link.map(|link| link.replace("&amp;", "&").replace("&#43;", "+")));
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_links_of_a_simple_page() {
        let page = "<!DOCTYPE html><html><body><h1>Links</h1>\n<a href=\"../../files/a_b-1.0-py3-none-any.whl#sha256=ff\" \
                    data-requires-python=\"&gt;=3.9\">a_b-1.0-py3-none-any.whl</a><br/>\n\
                    <a data-x='1' href='https://f.example/a_b-1.0.tar.gz'>x</a><abbr href=\"no\">";
        let links = html_links(page);
        assert_eq!(links, ["../../files/a_b-1.0-py3-none-any.whl#sha256=ff", "https://f.example/a_b-1.0.tar.gz"]);
        let wheels = links.iter().map(|link| wheel_of_link("https://m.example/simple/a-b/", link));
        let wheel = pick(wheels, "a-b", "1.0", "https://m.example/simple").unwrap();
        assert_eq!(
            wheel,
            Wheel {
                file_name: "a_b-1.0-py3-none-any.whl".into(),
                url: "https://m.example/files/a_b-1.0-py3-none-any.whl".into(),
                sha256: Some("ff".into()),
                n_bytes: None,
            }
        );
    }

    #[test]
    fn another_version_is_not_taken() {
        let wheel = wheel_of_link("https://m.example/simple/a-b/", "a_b-1.0.1-py3-none-any.whl");
        let error = pick([wheel].into_iter(), "a-b", "1.0", "https://m.example/simple").unwrap_err();
        assert_eq!(error.to_string(), "m.example has no wheel of a-b 1.0");
    }
}
