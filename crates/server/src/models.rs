//! The models by name: which are known, which are in memory, and who has to leave when another is asked for. A model is
//! loaded when it is first asked for, once for all who ask, and stays even if they give up; at most `max_loaded` stay,
//! and those nobody used for `idle_unload` go. Where all are in use, the one that has had its turn takes no new requests
//! until another has had one.

use super::error::{ApiError, Result};
use super::loaded::Loaded;
use axum::http::StatusCode;
use engine::Stats;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// Requests for a model that has no room wait this long before they are told to come back.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(30);
/// A model in use stays at least this long before it has to make room.
const TURN: Duration = Duration::from_secs(10);

/// A model on its way into memory; all who ask for it wait for the same one.
type Loading = Shared<BoxFuture<'static, Result<Arc<Loaded>>>>;

pub struct Registry {
    entries: Vec<Entry>,
    options: rocinante::Options,
    max_loaded: usize,
    is_strict: bool,
    start: Instant,
    /// One model is loaded or dropped at a time, in the order in which they were asked for.
    change: tokio::sync::Mutex<()>,
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
    /// The same for when it came into memory.
    loaded_ms: AtomicU64,
    loading: Mutex<Option<Loading>>,
    /// Its turn is over, and another model waits for its place: who asks for it now waits for its next turn.
    is_leaving: AtomicBool,
}

impl Entry {
    /// A model's files under a name; opens nothing yet.
    pub fn new(name: String, path: PathBuf) -> std::io::Result<Self> {
        let created = std::fs::metadata(&path)?.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            name,
            created_s: created.unwrap_or_default().as_secs(),
            file_bytes: rocinante::stored_bytes(&path),
            path,
            loaded: Mutex::new(None),
            past: Arc::default(),
            last_used_ms: AtomicU64::new(0),
            loaded_ms: AtomicU64::new(0),
            loading: Mutex::default(),
            is_leaving: AtomicBool::new(false),
        })
    }

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
            let stats = model.engine().stats().unwrap_or_else(|_| model.engine().latest_stats());
            add_counters(&mut past.lock().unwrap_or_else(PoisonError::into_inner), &stats);
            drop(model);
        }))
    }

    /// What its engines counted since the server's start. Only the counters mean anything.
    pub fn counters(&self) -> Stats {
        let mut sum = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(model) = self.loaded() {
            add_counters(&mut sum, &model.engine().latest_stats());
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
    pub fn new(entries: Vec<Entry>, options: rocinante::Options, max_loaded: usize, is_strict: bool) -> Arc<Self> {
        Arc::new(Self {
            entries,
            options,
            max_loaded: max_loaded.max(1),
            is_strict,
            start: Instant::now(),
            change: tokio::sync::Mutex::new(()),
        })
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
    pub async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<Loaded>> {
        let entry = self.find(name)?;
        entry.last_used_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
        // Who waits below must not hold the model, or it would look in use and never leave.
        let is_leaving = entry.is_leaving.load(Ordering::Acquire);
        if let Some(model) = entry.loaded().filter(|model| model.is_alive() && !is_leaving) {
            return Ok(model);
        }
        let loaded = self.loading(entry).await;
        if let Err(error) = loaded.as_ref().map_err(|error| &error.message) {
            tracing::error!(model = entry.name, error, "not in memory");
        }
        loaded
    }

    /// Loads the model that was named first. Who started the server hears what is wrong with it, not the log.
    pub async fn load_first(self: &Arc<Self>) -> Result<()> {
        match self.entries.first() {
            Some(first) => self.loading(first).await.map(drop),
            None => Ok(()),
        }
    }

    /// The load that is under way, or a new one. It goes on when nobody waits for it any more.
    fn loading(self: &Arc<Self>, entry: &Entry) -> Loading {
        let mut loading = entry.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(under_way) = &*loading {
            return under_way.clone();
        }
        let (registry, name) = (Arc::clone(self), entry.name.clone());
        let task = tokio::spawn(async move {
            let entry = registry.find(&name)?;
            let loaded = registry.load(entry).await;
            // What holds the outcome holds the model.
            *entry.loading.lock().unwrap_or_else(PoisonError::into_inner) = None;
            loaded
        });
        let outcome = async move { task.await.unwrap_or_else(|error| Err(ApiError::internal(error.to_string()))) };
        loading.insert(outcome.boxed().shared()).clone()
    }

    async fn load(&self, entry: &Entry) -> Result<Arc<Loaded>> {
        // One for all of it: waiting for others' turns, and for room.
        let deadline = tokio::time::Instant::now() + WAIT_FOR_ROOM;
        let change = tokio::time::timeout_at(deadline, self.change.lock()).await;
        let _change = change.map_err(|_| self.no_room())?;
        if let Some(model) = entry.loaded().filter(|model| model.is_alive()) {
            return Ok(model);
        }
        // Its engine broke down, if it is there: a new one takes its place, and its memory.
        if let Some(unloading) = entry.unload() {
            let _ = unloading.await;
        }
        let room = self.make_room(deadline).await;
        self.entries.iter().for_each(|entry| entry.is_leaving.store(false, Ordering::Release));
        room?;
        let (name, path, options) = (entry.name.clone(), entry.path.clone(), self.options.clone());
        let start = Instant::now();
        let loaded = tokio::task::spawn_blocking(move || Loaded::open(&name, &path, &options)).await;
        let failed = |text: String| {
            // Where files are is nobody's business.
            let file = entry.path.file_name().map_or_else(|| "its file".into(), |name| name.to_string_lossy());
            let text = text.replace(&entry.path.display().to_string(), &file);
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("`{}` cannot be loaded: {text}", entry.name))
        };
        let model = match loaded {
            Ok(Ok(model)) => Arc::new(model),
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        };
        tracing::info!(model = entry.name, load_ms = start.elapsed().as_millis() as u64, "{}", model.describe());
        for note in model.notes() {
            tracing::info!(model = entry.name, "{note}");
        }
        entry.loaded_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
        entry.set(Some(Arc::clone(&model)));
        Ok(model)
    }

    fn no_room(&self) -> ApiError {
        ApiError::busy(format!("{} models are in use and no more fit", self.max_loaded), 5)
    }

    /// Drops models that nobody uses, least recently used first, until one more fits.
    async fn make_room(&self, deadline: tokio::time::Instant) -> Result<()> {
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
            if tokio::time::Instant::now() >= deadline {
                return Err(self.no_room());
            }
            // The one that is there longest finishes what it has begun, and takes nothing new.
            let since = |entry: &&Entry| Duration::from_millis(entry.loaded_ms.load(Ordering::Relaxed));
            let longest = self.entries.iter().filter(|entry| entry.is_in_use()).min_by_key(since);
            if let Some(entry) = longest.filter(|entry| self.start.elapsed() >= since(entry) + TURN) {
                entry.is_leaving.store(true, Ordering::Release);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
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
