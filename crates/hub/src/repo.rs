//! The hub source: `hf:owner/repo[@revision][:file]`. Names, addresses and the cache layout are
//! hf-hub's; the bytes come through our own downloader, because hf-hub's client knows neither the
//! system's certificates nor a limit on connecting, and checks no checksum.

use crate::choice::{self, ChosenFile, MemoryBudget};
use crate::download::Download;
use crate::event::PullEvent;
use crate::hint::HintExt;
use crate::http::{Client, host};
use crate::pull::Sources;
use crate::store::{Store, is_sha256};
use anyhow::{Context, Result, anyhow, bail};
use hf_hub::{Repo, RepoType};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};

const DEFAULT_REVISION: &str = "main";
const MAX_PAGE_BYTES: u64 = 32 << 20;

/// How the error for a repository that is not there begins.
pub(crate) const NO_REPOSITORY: &str = "the hub has no repository";

/// A file of a repository, or the choice of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub repo: String,
    pub revision: String,
    /// A path in the repository, or a part of one (`Q8_0`).
    pub file: Option<String>,
}

impl Spec {
    /// Reads what follows `hf:`.
    pub fn parse(text: &str) -> Result<Self> {
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        let (repo, revision) = repo.split_once('@').unwrap_or((repo, DEFAULT_REVISION));
        let is_name = |part: &str| {
            let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && part.chars().all(is_safe) && !part.starts_with('.')
        };
        let is_repo = matches!(repo.split_once('/'), Some((owner, name)) if is_name(owner) && is_name(name));
        let is_file = file.is_none_or(|file| !file.is_empty() && !file.split('/').any(|part| part == ".."));
        if !is_repo || revision.is_empty() || revision.contains("..") || !is_file {
            return Err(anyhow!("`hf:{text}` does not name a repository"))
                .hint("write it as hf:OWNER/REPO or hf:OWNER/REPO:FILE.gguf");
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.to_owned(), file: file.map(str::to_owned) })
    }

    fn hub_repo(&self) -> Repo {
        Repo::with_revision(self.repo.clone(), RepoType::Model, self.revision.clone())
    }

    /// The file, if a former fetch (ours, or another program's in the hub's shared cache) left it here.
    pub fn find_cached(&self, store: &Store) -> Option<PathBuf> {
        store.hubs().into_iter().find_map(|hub| {
            let repo = hub.repo(self.hub_repo());
            let commit = std::fs::read_to_string(
                hub.path().join(self.hub_repo().folder_name()).join("refs").join(&self.revision),
            );
            if let Some(path) = self.file.as_deref().and_then(|file| repo.get(file)).filter(|_| !self.is_part()) {
                return Some(path);
            }
            let snapshot = repo.pointer_path(commit.ok()?.trim());
            let names: Vec<(String, Option<u64>)> = files_below(&snapshot, &snapshot);
            let chosen = choice::choose(&names, self.file.as_deref(), None, None).ok()?.candidate;
            chosen.is_whole.then(|| snapshot.join(chosen.first()))
        })
    }

    /// Whether the file is one of several that belong together.
    fn is_part(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.contains("-of-"))
    }

    /// Fetches the file, with all its parts, into the store and returns the path of the first. `model` is what the
    /// library knows about it: its name and billions of parameters.
    pub fn fetch(
        &self,
        sources: &Sources<'_>,
        model: Option<(&str, f64)>,
        memory: &dyn Fn() -> Option<MemoryBudget>,
    ) -> Result<PathBuf> {
        let Sources { settings, client, store, observer } = *sources;
        // One lock for the repository: two names may stand for one file of it.
        let _guard = store.lock(&format!("hf:{}", self.repo), observer)?;
        let endpoint = settings.hub.as_str();
        let token = settings.hub_token.as_ref().map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = token.iter().map(|token| ("authorization", token.as_str())).collect();
        // Another process may have fetched it while this one waited. A model of the library is chosen by memory, so
        // what else is here does not matter.
        if model.is_none()
            && let Some(path) = self.find_cached(store)
        {
            return Ok(path);
        }
        let info = self.info(client, endpoint, &headers)?;
        let files: Vec<(String, Option<u64>)> =
            info.siblings.into_iter().map(|file| (file.rfilename, file.size)).collect();
        let memory = if self.file.is_none() { memory() } else { None };
        let chosen = choice::choose(&files, self.file.as_deref(), model.map(|(_, billions)| billions), memory.as_ref());
        let ChosenFile { candidate, why } = chosen.with_context(|| format!("hub repository `{}`", self.repo))?;
        if let Some(why) = why {
            let name = model.map_or_else(|| format!("hf:{}", self.repo), |(name, _)| name.to_owned());
            observer.on(PullEvent::Note(&format!("{name}: {why}")));
        }
        if let Some(n_bytes) = candidate.n_bytes {
            crate::disk::check_room(store.root(), n_bytes)?;
        }
        let label = model.map_or_else(|| base_name(candidate.first()), |(name, _)| name);
        let mut before = 0;
        let mut first = None;
        for file in &candidate.files {
            let whole = Whole { label, before, total: candidate.n_bytes };
            let (path, n_bytes) = self.fetch_file(sources, file, &info.sha, &headers, whole)?;
            before += n_bytes;
            first.get_or_insert(path);
        }
        observer.on(PullEvent::End);
        first.context("the repository lists no file")
    }

    /// One file of the repository: where it is now, and its size.
    fn fetch_file(
        &self,
        sources: &Sources<'_>,
        file: &str,
        commit: &str,
        headers: &[(&str, &str)],
        whole: Whole<'_>,
    ) -> Result<(PathBuf, u64)> {
        let Sources { settings, client, store, observer } = *sources;
        let endpoint = settings.hub.as_str();
        let repo = self.hub_repo();
        let url = format!("{endpoint}/{}/resolve/{}/{file}", repo.url(), repo.url_revision());
        let remote = Remote::ask(client, &url, headers)?;
        let place = store.hub().repo(repo);
        let commit = remote.commit.clone().unwrap_or_else(|| commit.to_owned());
        // The blob is named by its checksum, as in the hub's own cache; a name with a slash would leave it.
        let blob_name = remote.etag.clone().unwrap_or_else(|| format!("{commit}-{}", file.replace('/', "-")));
        if blob_name.contains(['/', '\\']) || commit.contains(['/', '\\']) || commit.starts_with('.') {
            bail!("{} sent an unusable name for `{file}`", host(endpoint));
        }
        let blob = place.blob_path(&blob_name);
        let pointer = place.pointer_path(&commit).join(file);
        if !blob.exists() {
            let part = store.part_path(&format!("hub-{blob_name}"));
            store.create_parent(&part)?;
            let sha256 = remote.etag.as_deref().filter(|etag| is_sha256(etag));
            let Whole { label, before, total } = whole;
            let download =
                Download { url: &url, headers, label, sha256, n_bytes: remote.n_bytes, part: &part, before, total };
            download.fetch(client, observer)?;
            store.create_parent(&blob)?;
            std::fs::rename(&part, &blob).with_context(|| format!("cannot write `{}`", blob.display()))?;
        }
        store.create_parent(&pointer)?;
        point(&blob, &pointer).with_context(|| format!("cannot write `{}`", pointer.display()))?;
        place.create_ref(&commit).context("cannot write the hub cache")?;
        let n_bytes = std::fs::metadata(&pointer).map_or(0, |meta| meta.len());
        Ok((pointer, n_bytes))
    }

    fn info(&self, client: &Client, endpoint: &str, headers: &[(&str, &str)]) -> Result<RepoInfo> {
        let url = format!("{endpoint}/api/{}?blobs=true", self.hub_repo().api_url());
        let mut response = client.get(&url, headers)?;
        match response.status().as_u16() {
            200 => {}
            401 | 403 => {
                return Err(anyhow!("the hub denies access to `{}` ({})", self.repo, response.status())).hint(
                    "check the name; for a private or gated repository set HF_TOKEN to a token that may read it",
                );
            }
            404 => {
                return Err(anyhow!("{NO_REPOSITORY} `{}` at `{}`", self.repo, self.revision))
                    .hint("check the name: hf:OWNER/REPO, as in the page's address");
            }
            _ => bail!("{} answered {}", host(endpoint), response.status()),
        }
        let page = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string()?;
        serde_json::from_str(&page).with_context(|| format!("{} sent no repository description", host(endpoint)))
    }
}

/// What the hub tells about a repository.
#[derive(Deserialize)]
struct RepoInfo {
    sha: String,
    siblings: Vec<RepoFile>,
}

#[derive(Deserialize)]
struct RepoFile {
    rfilename: String,
    size: Option<u64>,
}

/// The model that a file belongs to: its name, and its bytes before this file and in all.
#[derive(Clone, Copy)]
struct Whole<'a> {
    label: &'a str,
    before: u64,
    total: Option<u64>,
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if self.revision != DEFAULT_REVISION {
            write!(f, "@{}", self.revision)?;
        }
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

/// What the hub tells about one file before sending it.
struct Remote {
    etag: Option<String>,
    commit: Option<String>,
    n_bytes: Option<u64>,
}

impl Remote {
    fn ask(client: &Client, url: &str, headers: &[(&str, &str)]) -> Result<Self> {
        let response = client.head_without_redirect(url, headers)?;
        let status = response.status();
        if !status.is_success() && !status.is_redirection() {
            bail!("{} answered {status}", host(url));
        }
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(|v| v.trim_matches('"').to_owned());
        // For large files the linked entity tag is the file's SHA-256.
        let size = if status.is_success() { header("content-length") } else { None };
        Ok(Self {
            etag: header("x-linked-etag").or_else(|| header("etag").map(|e| e.trim_start_matches("W/\"").to_owned())),
            commit: header("x-repo-commit"),
            n_bytes: header("x-linked-size").or(size).and_then(|size| size.parse().ok()),
        })
    }
}

/// Files at any depth, by their names below `root`.
fn files_below(root: &Path, folder: &Path) -> Vec<(String, Option<u64>)> {
    let children = std::fs::read_dir(folder).into_iter().flatten().filter_map(|child| Some(child.ok()?.path()));
    let files = children.flat_map(|path| match path.is_dir() {
        true => files_below(root, &path),
        false => {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            path.exists().then_some((name, None)).into_iter().collect()
        }
    });
    files.collect()
}

fn base_name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// Makes the snapshot's name stand for the blob.
fn point(blob: &Path, pointer: &Path) -> std::io::Result<()> {
    if pointer.exists() {
        return Ok(());
    }
    // A link whose blob was removed by hand.
    let _ = std::fs::remove_file(pointer);
    #[cfg(unix)]
    return std::os::unix::fs::symlink(std::path::absolute(blob)?, pointer);
    #[cfg(not(unix))]
    return std::fs::rename(blob, pointer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_specs() {
        let check = |text: &str, repo: &str, revision: &str, file: Option<&str>| {
            let file = file.map(str::to_owned);
            assert_eq!(Spec::parse(text).unwrap(), Spec { repo: repo.into(), revision: revision.into(), file });
        };
        check("a/b", "a/b", "main", None);
        check("a/b:c.gguf", "a/b", "main", Some("c.gguf"));
        check("a/b@v1:sub/c.gguf", "a/b", "v1", Some("sub/c.gguf"));
        for bad in ["", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b:", "a/b:../../x.gguf", "a/b@", "a/b@../x"] {
            assert!(Spec::parse(bad).is_err(), "{bad}");
        }
    }
}
