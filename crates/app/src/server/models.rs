//! The models by name: which are known, which are in memory, and who has to leave when another is asked for. A model is
//! loaded when it is first asked for; at most `max_loaded` stay, and those nobody used for `idle_unload` go.

use super::error::{ApiError, Result};
use super::loaded::Loaded;
use crate::store;
use axum::http::StatusCode;
use engine::Stats;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// Requests for a model that has no room wait this long before they are told to come back.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(30);

pub struct Registry {
    entries: Vec<Entry>,
    options: rocinante::Options,
    max_loaded: usize,
    is_strict: bool,
    start: Instant,
    /// One model is loaded or dropped at a time.
    change: tokio::sync::Mutex<()>,
    released: tokio::sync::Notify,
}

/// A model that is known by name.
pub struct Entry {
    pub name: String,
    pub path: PathBuf,
    /// Seconds since 1970 at which its file was made.
    pub created_s: u64,
    pub file_bytes: u64,
    loaded: Mutex<Option<Arc<Loaded>>>,
    /// What engines of this model counted that are gone.
    past: Arc<Mutex<Stats>>,
    /// Milliseconds since the registry's start.
    last_used_ms: AtomicU64,
}

/// What to serve: `NAME=SPEC` or `SPEC`, whose own name is then taken.
pub fn open_entry(argument: &str) -> anyhow::Result<Entry> {
    let (name, spec) = match argument.split_once('=') {
        Some((name, spec)) if !name.is_empty() && !name.contains(['/', '\\']) => (Some(name), spec),
        _ => (None, argument),
    };
    let path = store::resolve(spec)?;
    let stem = || path.file_stem().map_or_else(|| spec.to_owned(), |stem| stem.to_string_lossy().into_owned());
    let is_path = spec.ends_with(".gguf") || spec.contains(['/', '\\']);
    let name = name.map_or_else(|| if is_path { stem() } else { spec.to_owned() }, str::to_owned);
    let metadata = std::fs::metadata(&path)?;
    let created = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(Entry {
        name,
        created_s: created.unwrap_or_default().as_secs(),
        file_bytes: rocinante::stored_bytes(&path),
        path,
        loaded: Mutex::new(None),
        past: Arc::default(),
        last_used_ms: AtomicU64::new(0),
    })
}

impl Entry {
    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, model: Option<Arc<Loaded>>) -> Option<Arc<Loaded>> {
        std::mem::replace(&mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner), model)
    }

    /// Takes the model out of memory. The last reference ends the engine's thread, which is waited for: not on a thread
    /// that serves.
    fn unload(&self) -> Option<JoinHandle<()>> {
        let (model, past) = (self.set(None)?, Arc::clone(&self.past));
        Some(tokio::task::spawn_blocking(move || {
            let stats = model.handle.stats().unwrap_or_else(|_| model.handle.latest_stats());
            add_counters(&mut past.lock().unwrap_or_else(PoisonError::into_inner), &stats);
            drop(model);
        }))
    }

    /// What its engines counted since the server's start. Only the counters mean anything.
    pub fn counters(&self) -> Stats {
        let mut sum = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(model) = self.loaded() {
            add_counters(&mut sum, &model.handle.latest_stats());
        }
        sum
    }

    /// Nobody but the registry holds it.
    fn is_idle(&self) -> bool {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().is_some_and(|model| Arc::strong_count(model) == 1)
    }

    fn is_in_use(&self) -> bool {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().is_some_and(|model| Arc::strong_count(model) > 1)
    }

    fn last_used(&self) -> Duration {
        Duration::from_millis(self.last_used_ms.load(Ordering::Relaxed))
    }
}

fn add_counters(sum: &mut Stats, stats: &Stats) {
    sum.n_steps += stats.n_steps;
    sum.n_tokens_computed += stats.n_tokens_computed;
    sum.n_tokens_cached += stats.n_tokens_cached;
    sum.n_preemptions += stats.n_preemptions;
    sum.n_failed += stats.n_failed;
}

impl Registry {
    pub fn new(entries: Vec<Entry>, options: rocinante::Options, max_loaded: usize, is_strict: bool) -> Self {
        Self {
            entries,
            options,
            max_loaded: max_loaded.max(1),
            is_strict,
            start: Instant::now(),
            change: tokio::sync::Mutex::new(()),
            released: tokio::sync::Notify::new(),
        }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The models in memory.
    pub fn loaded(&self) -> impl Iterator<Item = Arc<Loaded>> {
        self.entries.iter().filter_map(Entry::loaded)
    }

    /// Who answers to a name. Where one model is served and names are not strict, it answers to all.
    pub fn find(&self, name: &str) -> Result<&Entry> {
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let found = self.entries.iter().find(|entry| entry.name == name || entry.name == plain);
        match (found, self.entries.as_slice()) {
            (Some(entry), _) => Ok(entry),
            (None, [only]) if !self.is_strict => Ok(only),
            (None, [first, ..]) if !self.is_strict && name.is_empty() => Ok(first),
            _ => {
                let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
                let text = format!("there is no model `{name}` here; there are: {}", names.join(", "));
                Err(ApiError::not_found(text).code("model_not_found").param("model"))
            }
        }
    }

    /// The model of that name, in memory.
    pub async fn get(&self, name: &str) -> Result<Arc<Loaded>> {
        let entry = self.find(name)?;
        entry.last_used_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
        match entry.loaded() {
            Some(model) if model.is_alive() => Ok(model),
            _ => {
                let loaded = self.load(entry).await;
                if let Err(error) = loaded.as_ref().map_err(|error| &error.message) {
                    tracing::error!(model = entry.name, error, "not in memory");
                }
                loaded
            }
        }
    }

    /// Loads the model that was named first. Who started the server hears what is wrong with it, not the log.
    pub async fn load_first(&self) -> Result<()> {
        match self.entries.first() {
            Some(first) => self.load(first).await.map(drop),
            None => Ok(()),
        }
    }

    async fn load(&self, entry: &Entry) -> Result<Arc<Loaded>> {
        let _change = self.change.lock().await;
        match entry.loaded() {
            Some(model) if model.is_alive() => return Ok(model),
            // Its engine broke down: a new one takes its place.
            Some(_) => drop(entry.unload()),
            None => {}
        }
        self.make_room().await?;
        let (name, path, options) = (entry.name.clone(), entry.path.clone(), self.options.clone());
        let start = Instant::now();
        let loaded = tokio::task::spawn_blocking(move || Loaded::open(&name, &path, &options)).await;
        let failed = |text: String| {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("`{}` cannot be loaded: {text}", entry.name))
        };
        let model = match loaded {
            Ok(Ok(model)) => Arc::new(model),
            Ok(Err(error)) => {
                let error = crate::model_file::hinted(&entry.path, error);
                return Err(failed(crate::report::one_line(&error)));
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        tracing::info!(model = entry.name, load_ms = start.elapsed().as_millis() as u64, "{}", model.describe());
        for note in model.notes() {
            tracing::info!(model = entry.name, "{note}");
        }
        entry.set(Some(Arc::clone(&model)));
        Ok(model)
    }

    /// Drops models that nobody uses, least recently used first, until one more fits.
    async fn make_room(&self) -> Result<()> {
        let deadline = Instant::now() + WAIT_FOR_ROOM;
        loop {
            if self.loaded().count() < self.max_loaded {
                return Ok(());
            }
            let oldest = self.entries.iter().filter(|entry| entry.is_idle()).min_by_key(|entry| entry.last_used());
            if let Some(entry) = oldest {
                tracing::info!(model = entry.name, "unloaded to make room");
                if let Some(unloading) = entry.unload() {
                    let _ = unloading.await;
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("{} models are in use and no more fit", self.max_loaded);
                return Err(ApiError::busy(text, 5));
            }
            let _ = tokio::time::timeout(left.min(Duration::from_millis(100)), self.released.notified()).await;
        }
    }

    /// Drops the models nobody used for `idle`.
    pub async fn unload_idle(&self, idle: Duration) {
        let _change = self.change.lock().await;
        let now = self.start.elapsed();
        // Time counts from the end of the last request.
        for entry in self.entries.iter().filter(|entry| entry.is_in_use()) {
            entry.last_used_ms.store(now.as_millis() as u64, Ordering::Relaxed);
        }
        for entry in self.entries.iter().filter(|entry| entry.is_idle() && now >= entry.last_used() + idle) {
            tracing::info!(model = entry.name, "unloaded: nobody used it");
            drop(entry.unload());
        }
    }

    /// Takes a model out of memory on request; a model in use goes when its last request ends.
    pub async fn unload(&self, entry: &Entry) {
        let _change = self.change.lock().await;
        drop(entry.unload());
    }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
