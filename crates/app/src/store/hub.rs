//! The hub source: `hf:owner/repo[@revision][:file]`. Names, addresses and the cache layout are
//! hf-hub's; the bytes come through our own downloader, because hf-hub's client knows neither the
//! system's certificates nor a limit on connecting, and checks no checksum.

use super::cache::Cache;
use super::download::Download;
use super::http::{Client, host};
use super::settings::Settings;
use crate::report::HintExt;
use anyhow::{Context, Result, anyhow, bail};
use hf_hub::api::RepoInfo;
use hf_hub::{Repo, RepoType};
use std::path::{Path, PathBuf};

const DEFAULT_REVISION: &str = "main";
const MAX_PAGE_BYTES: u64 = 32 << 20;

/// Weight types in the order in which we take them when the user names none.
const PREFERRED: &[&str] = &["Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q8_0", "Q6_K", "F16", "BF16", "F32"];

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
    pub fn find_cached(&self, cache: &Cache) -> Option<PathBuf> {
        [cache.hub(), hf_hub::Cache::from_env()].into_iter().find_map(|hub| {
            let repo = hub.repo(self.hub_repo());
            if let Some(path) = self.file.as_deref().and_then(|file| repo.get(file)) {
                return Some(path);
            }
            let commit = std::fs::read_to_string(
                hub.path().join(self.hub_repo().folder_name()).join("refs").join(&self.revision),
            );
            let snapshot = repo.pointer_path(commit.ok()?.trim());
            let names = std::fs::read_dir(&snapshot).ok()?.filter_map(|f| f.ok()?.file_name().into_string().ok());
            let file = choose(&names.collect::<Vec<_>>(), self.file.as_deref()).ok()?;
            Some(snapshot.join(file))
        })
    }

    /// Fetches the file into the cache and returns its path.
    pub fn fetch(&self, settings: &Settings, client: &Client, cache: &Cache) -> Result<PathBuf> {
        // One lock for the repository: two names may stand for one file of it.
        let _guard = cache.lock(&format!("hf:{}", self.repo))?;
        // Another process may have fetched it while this one waited.
        if let Some(path) = self.find_cached(cache) {
            return Ok(path);
        }
        let endpoint = settings.hub.as_str();
        let token = settings.hub_token.as_ref().map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = token.iter().map(|token| ("authorization", token.as_str())).collect();

        let info = self.info(client, endpoint, &headers)?;
        let names: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        let file = choose(&names, self.file.as_deref()).with_context(|| format!("hub repository `{}`", self.repo))?;

        let repo = self.hub_repo();
        let url = format!("{endpoint}/{}/resolve/{}/{file}", repo.url(), repo.url_revision());
        let remote = Remote::ask(client, &url, &headers)?;
        let place = cache.hub().repo(repo);
        let commit = remote.commit.clone().unwrap_or(info.sha);
        // The blob is named by its checksum, as in the hub's own cache; a name with a slash would leave it.
        let blob_name = remote.etag.clone().unwrap_or_else(|| format!("{commit}-{}", file.replace('/', "-")));
        if blob_name.contains(['/', '\\']) || commit.contains(['/', '\\']) || commit.starts_with('.') {
            bail!("{} sent an unusable name for `{file}`", host(endpoint));
        }
        let blob = place.blob_path(&blob_name);
        let pointer = place.pointer_path(&commit).join(&file);
        if !blob.exists() {
            let part = cache.part_path(&format!("hub-{blob_name}"));
            cache.create_parent(&part)?;
            let sha256 = remote.etag.as_deref().filter(|etag| is_sha256(etag));
            let label = file.rsplit('/').next().unwrap_or(&file);
            Download { url: &url, headers: &headers, label, sha256, n_bytes: remote.n_bytes, part: &part }
                .fetch(client)?;
            cache.create_parent(&blob)?;
            std::fs::rename(&part, &blob).with_context(|| format!("cannot write `{}`", blob.display()))?;
        }
        cache.create_parent(&pointer)?;
        point(&blob, &pointer).with_context(|| format!("cannot write `{}`", pointer.display()))?;
        place.create_ref(&commit).context("cannot write the hub cache")?;
        Ok(pointer)
    }

    fn info(&self, client: &Client, endpoint: &str, headers: &[(&str, &str)]) -> Result<RepoInfo> {
        let url = format!("{endpoint}/api/{}", self.hub_repo().api_url());
        let mut response = client.get(&url, headers)?;
        match response.status().as_u16() {
            200 => {}
            401 | 403 => {
                return Err(anyhow!("the hub denies access to `{}` ({})", self.repo, response.status())).hint(
                    "check the name; for a private or gated repository set HF_TOKEN to a token that may read it",
                );
            }
            404 => {
                return Err(anyhow!("the hub has no repository `{}` at `{}`", self.repo, self.revision))
                    .hint("check the name: hf:OWNER/REPO, as in the page's address");
            }
            _ => bail!("{} answered {}", host(endpoint), response.status()),
        }
        let page = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string()?;
        serde_json::from_str(&page).with_context(|| format!("{} sent no repository description", host(endpoint)))
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

/// The repository file that is meant; the error lists the choices.
fn choose(names: &[String], wanted: Option<&str>) -> Result<String> {
    let mut files: Vec<&String> = names
        .iter()
        .filter(|name| name.to_lowercase().ends_with(".gguf") && !name.to_lowercase().contains("mmproj"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(anyhow!("has no GGUF file"))
            .hint("look for a repository of the same model whose name ends in -GGUF");
    }
    let list = || files.iter().map(|name| format!("\n  {name}")).collect::<String>();
    let Some(wanted) = wanted else {
        if let [only] = files[..] {
            return Ok(only.clone());
        }
        let is_whole = |name: &str| !name.contains("-00001-of-") && !name.contains("-of-0");
        let best = PREFERRED.iter().find_map(|kind| files.iter().find(|name| is_whole(name) && has_tag(name, kind)));
        return match best {
            Some(best) => Ok((*best).clone()),
            None => Err(anyhow!("has {} GGUF files, none with a common quantization in its name", files.len()))
                .with_hint(|| format!("name one after a colon:{}", list())),
        };
    };
    if let Some(exact) = files.iter().find(|name| **name == wanted) {
        return Ok((*exact).clone());
    }
    let matching: Vec<_> = files.iter().filter(|name| has_tag(name, wanted)).collect();
    match matching[..] {
        [only] => Ok((*only).clone()),
        _ => Err(anyhow!("has {} GGUF files that match `{wanted}`", matching.len()))
            .with_hint(|| format!("name one of these after the colon:{}", list())),
    }
}

/// Whether the file name carries the tag as a word: `Q4_K_M` in `x-Q4_K_M.gguf`, but not in `x-IQ4_K_M.gguf`.
fn has_tag(name: &str, tag: &str) -> bool {
    let (name, tag) = (name.to_uppercase(), tag.to_uppercase());
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    name.match_indices(&tag).any(|(start, _)| {
        !is_word(name[..start].chars().next_back()) && !is_word(name[start + tag.len()..].chars().next())
    })
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
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

    #[test]
    fn chooses_a_file() {
        let names = ["README.md", "m-IQ4_K_M.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf"];
        let names: Vec<String> = names.map(str::to_owned).into();
        let check = |wanted, expected: &str| assert_eq!(choose(&names, wanted).unwrap(), expected);
        check(None, "m-Q4_K_M.gguf");
        check(Some("q8_0"), "m-Q8_0.gguf");
        check(Some("m-IQ4_K_M.gguf"), "m-IQ4_K_M.gguf");
        let error = crate::report::render(&choose(&names, Some("Q5_K")).unwrap_err());
        assert!(error.contains("0 GGUF files that match `Q5_K`") && error.contains("\n  m-Q8_0.gguf"), "{error}");
        assert!(choose(&["model.safetensors".to_owned()], None).is_err());
        assert_eq!(choose(&["odd-name.gguf".to_owned()], None).unwrap(), "odd-name.gguf");
    }
}
