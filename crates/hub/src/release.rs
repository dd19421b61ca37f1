//! Which version of this program is the newest: asks one address, sends nothing but the question.

use crate::http::{Client, host};
use crate::settings::Settings;
use anyhow::{Context, Result, bail};
use serde::Deserialize;

const MAX_PAGE_BYTES: u64 = 1 << 20;

/// A release, as GitHub's API and anything like it describes one.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Release {
    #[serde(rename = "tag_name")]
    pub tag: String,
    #[serde(rename = "html_url", default)]
    pub page: String,
}

impl Release {
    /// Its version without the `v`.
    pub fn version(&self) -> &str {
        self.tag.strip_prefix('v').unwrap_or(&self.tag)
    }

    /// Whether it is newer than this version, number by number.
    pub fn is_newer_than(&self, version: &str) -> bool {
        let numbers = |version: &str| -> Vec<u64> {
            let version = version.split(['-', '+']).next().unwrap_or(version);
            version.split('.').map(|number| number.parse().unwrap_or(0)).collect()
        };
        numbers(self.version()) > numbers(version)
    }
}

/// The latest release that this address tells.
pub fn latest_release(url: &str) -> Result<Release> {
    let client = Client::new(&Settings::from_env())?;
    let mut response = client.get(url, &[("accept", "application/json")])?;
    if response.status() != 200 {
        bail!("{} answered {}", host(url), response.status());
    }
    let page = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string()?;
    serde_json::from_str(&page).with_context(|| format!("{} sent no description of a release", host(url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let check = |tag: &str, own, expected| {
            let release = Release { tag: tag.to_owned(), page: String::new() };
            assert_eq!(release.is_newer_than(own), expected, "{tag} {own}");
        };
        check("v0.2.1", "0.2.0", true);
        check("v0.10.0", "0.9.9", true);
        check("v0.2.0", "0.2.0", false);
        check("0.1.9", "0.2.0", false);
        check("v1.0.0-rc1", "0.9.0", true);
    }
}
