//! The models of this machine's store, as the server offers them: what is there, what can be fetched, and what clients
//! may add and remove. Files that are not in the store cannot be named by clients.

use super::error::{ApiError, Result};
use super::models::Registry;
use super::preset::Preset;
use super::served_model::ServedModel;
use axum::http::StatusCode;
use hub::{DiskFull, Fetcher, Modelfile, Named, NotFound, Observer, PullEvent, Resolved, SilentObserver, Store, hint};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// How often it is looked for models whose digest is not known.
const DIGEST_CHECK: Duration = Duration::from_secs(5);

/// What is in the store, by name.
pub fn offered() -> anyhow::Result<Vec<ServedModel>> {
    let entries = Store::from_env()?.entries()?;
    Ok(entries.into_iter().filter_map(|entry| of_store(entry).ok()).collect())
}

fn of_store(entry: hub::StoredModel) -> std::io::Result<ServedModel> {
    let digest = entry.digest();
    let made = named(entry.name, &entry.path, entry.named.as_ref())?.with_digest(digest);
    Ok(match entry.modified {
        Some(modified) => made.made_at(modified),
        None => made,
    })
}

/// A model under a name, used as the store says.
pub fn named(name: String, path: &Path, named: Option<&Named>) -> std::io::Result<ServedModel> {
    let preset = named.map(Preset::of).unwrap_or_default();
    Ok(ServedModel::new(name, path.to_owned())?.with_preset(preset))
}

/// What went wrong, for a client.
fn failed(error: &anyhow::Error) -> ApiError {
    let hint = hint::hint_of(error).map(|hint| format!("; {hint}")).unwrap_or_default();
    let status = match NotFound::is_in(error) {
        true => StatusCode::NOT_FOUND,
        false => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, format!("{}{hint}", hint::one_line(error)))
}

/// Keeps what is said during a download that nobody watches, for the error.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Observer for Notes {
    fn on(&self, event: PullEvent<'_>) {
        if let PullEvent::Note(text) = event {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        }
    }
}

impl Notes {
    /// A model could not be downloaded: which sources were tried, and why none served.
    fn download_failed(self, name: &str, error: &anyhow::Error) -> ApiError {
        let plain = failed(error);
        if plain.status == StatusCode::NOT_FOUND {
            return plain;
        }
        let status = match DiskFull::is_in(error) {
            true => StatusCode::INSUFFICIENT_STORAGE,
            false => StatusCode::BAD_GATEWAY,
        };
        let notes = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let tried = notes.iter().map(|note| format!(" ({note})")).collect::<String>();
        let text = format!("`{name}` could not be downloaded: {}{tried}", plain.message);
        tracing::error!(model = name, "{text}");
        ApiError::new(status, text).code("download_failed").param("model")
    }
}

/// A path of this machine is no name that a client may use.
fn check_name(store: &Store, name: &str) -> Result<()> {
    let is_known = store.named(name).is_ok_and(|named| named.is_some());
    if name.is_empty() || (Path::new(name).exists() && !is_known) {
        let text = format!("`{name}` is not the name of a model: a name such as qwen3:8b, or hf:OWNER/REPO");
        return Err(ApiError::bad(text).param("model"));
    }
    Ok(())
}

/// A model that the registry does not know yet: one that is in the store by now or, where that is wanted, one that can
/// be fetched. Blocks.
pub fn discover(name: &str, fetches: bool) -> Result<Option<ServedModel>> {
    let fetcher = Fetcher::new(&SilentObserver).map_err(|error| failed(&error))?;
    if check_name(&fetcher.store, name).is_err() {
        return Ok(None);
    }
    match fetcher.find(name) {
        Ok(Some(resolved)) => entry(&resolved).map(Some),
        Ok(None) if fetches => {
            let notes = Notes::default();
            match Fetcher::new(&notes).and_then(|fetcher| fetcher.resolve(name)) {
                Ok(resolved) => entry(&resolved).map(Some),
                Err(error) => Err(notes.download_failed(name, &error)),
            }
        }
        Ok(None) => Ok(None),
        Err(error) if NotFound::is_in(&error) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

/// Fetches a model. Blocks.
pub fn fetch(name: &str, observer: &dyn Observer) -> Result<ServedModel> {
    let fetcher = Fetcher::new(observer).map_err(|error| failed(&error))?;
    check_name(&fetcher.store, name)?;
    let resolved = fetcher.resolve(name).map_err(|error| failed(&error))?;
    entry(&resolved)
}

fn entry(resolved: &Resolved) -> Result<ServedModel> {
    let made = named(resolved.name.clone(), &resolved.path, resolved.named.as_ref());
    made.map_err(|error| ApiError::internal(format!("`{}`: {error}", resolved.name)))
}

/// Makes a model of the store by a recipe. Blocks.
pub fn create(name: &str, recipe: &Modelfile, observer: &dyn Observer) -> Result<ServedModel> {
    let fetcher = Fetcher::new(observer).map_err(|error| failed(&error))?;
    check_name(&fetcher.store, &recipe.from)?;
    let base = fetcher.resolve(&recipe.from).map_err(|error| failed(&error))?;
    let base_named = base.named.unwrap_or_else(|| Named { file: base.path.clone(), ..Named::default() });
    let made = recipe.over(&base_named);
    fetcher
        .store
        .set_name(name, &made)
        .map_err(|error| ApiError { status: StatusCode::BAD_REQUEST, ..failed(&error) })?;
    let made = named(hub::normal_name(name).to_owned(), &base.path, Some(&made));
    made.map(|entry| entry.made_at(SystemTime::now())).map_err(|error| ApiError::internal(format!("`{name}`: {error}")))
}

/// Gives a model of the store another name. Blocks.
pub fn copy(from: &str, to: &str) -> Result<Option<ServedModel>> {
    let store = Store::from_env().map_err(|error| failed(&error))?;
    if store.entry(from).map_err(|error| failed(&error))?.is_none() {
        return Ok(None);
    }
    store.copy(from, to).map_err(|error| ApiError { status: StatusCode::BAD_REQUEST, ..failed(&error) })?;
    let copied = store.entry(to).map_err(|error| failed(&error))?;
    copied.map(of_store).transpose().map_err(|error| ApiError::internal(error.to_string()))
}

/// Removes a model from the store; says whether it was there. Files that the server was started with stay. Blocks.
pub fn remove(registry: &Registry, name: &str) -> Result<bool> {
    let store = Store::from_env().map_err(|error| failed(&error))?;
    let entry = store.entry(name).map_err(|error| failed(&error))?;
    match entry {
        // The name alone goes.
        Some(entry) if entry.named.is_some() && registry.is_given_file(&entry.path) => {
            store.forget(&entry.name).map_err(|error| failed(&error))
        }
        Some(entry) if registry.is_given_file(&entry.path) => {
            let text = format!(
                "the server was started with the file of `{name}`: it cannot be removed while it is being served"
            );
            Err(ApiError::new(StatusCode::CONFLICT, text).code("model_in_use").param("model"))
        }
        Some(entry) => store.remove(&entry).map(|_| true).map_err(|error| failed(&error)),
        None => Ok(false),
    }
}

/// Finds out the digests of models that have none yet, one after the other, and remembers them.
pub async fn find_digests(registry: Arc<Registry>) {
    loop {
        for entry in registry.entries() {
            // A folder has none.
            if entry.digest().is_some() || entry.path.is_dir() {
                continue;
            }
            let path = entry.path.clone();
            let digest = tokio::task::spawn_blocking(move || digest(&path)).await;
            entry.set_digest(digest.ok().flatten());
        }
        tokio::time::sleep(DIGEST_CHECK).await;
    }
}

/// SHA-256 of a file, from the cache where it is known. Of a folder there is none.
fn digest(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let modified = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    let key = format!("{} {} {}", std::fs::canonicalize(path).ok()?.display(), metadata.len(), modified.as_nanos());
    let cache = hub::Folders::from_env().ok()?.cache.join("digests.json");
    let text = std::fs::read_to_string(&cache).unwrap_or_default();
    let mut known: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    if let Some(digest) = known.get(&key).and_then(serde_json::Value::as_str) {
        return Some(digest.to_owned());
    }
    let digest = hub::sha256_of(path).ok()?;
    known.insert(key, digest.clone().into());
    // It is only a cache.
    let _ = std::fs::create_dir_all(cache.parent()?);
    let _ = std::fs::write(&cache, serde_json::Value::Object(known).to_string());
    Some(digest)
}
