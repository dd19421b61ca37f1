//! One model that is known by name: its file, and, while it is in memory, the loaded model. Who loads and unloads it, and
//! when, is decided by `models`.

use super::error::Result;
use super::loaded::Loaded;
use super::preset::Preset;
use super::shared::since;
use engine::Stats;
use futures_util::future::{BoxFuture, Shared};
use rocinante::{ModelFiles, ModelInfo};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A model that nobody waits for any more is still loaded for this long: who was told to come back does.
const STILL_WANTED: Duration = Duration::from_secs(30);

/// A model on its way into memory; everyone who asks for it waits for the same one.
pub type Loading = Shared<BoxFuture<'static, Result<Arc<Loaded>>>>;

/// How long a model stays in memory without requests, where a client said so (`keep_alive`).
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum IdleLimit {
    For(Duration),
    Forever,
}

/// What the headers of a model's files say about it.
#[derive(Clone, Debug)]
pub struct Headers {
    pub info: ModelInfo,
    pub n_ctx_train: usize,
}

/// A model that is known by name.
pub struct ServedModel {
    pub name: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    pub path: PathBuf,
    /// Named when the server was started: clients can neither replace nor remove it.
    pub is_given: bool,
    /// Seconds since 1970 at which it was made.
    pub created_s: u64,
    pub file_bytes: u64,
    /// How it is used, where its name says so.
    pub preset: Arc<Preset>,
    /// SHA-256 of its file, once it is known.
    digest: OnceLock<String>,
    /// What its files say, once they were read.
    headers: OnceLock<Option<Headers>>,
    /// The load that is under way.
    pub loading: Mutex<Option<Loading>>,
    /// Its turn is over, and another model waits for its place: new requests wait for its next turn.
    pub is_leaving: AtomicBool,
    /// Requests that wait until it is in memory.
    n_waiting: AtomicUsize,
    /// When it came into memory, everyone who had asked for it had given up, and nobody has asked since.
    is_awaited: AtomicBool,
    loaded: Mutex<Option<Arc<Loaded>>>,
    /// What engines of this model counted that are gone.
    past: Arc<Mutex<Stats>>,
    start: Instant,
    /// Milliseconds since `start`.
    last_used_ms: AtomicU64,
    loaded_ms: AtomicU64,
    stay: Mutex<Option<IdleLimit>>,
    /// Why the last engine's process died.
    pub trouble: watch::Sender<Option<String>>,
    /// Why it is not loaded any more: its engines died while they loaded it.
    given_up: Mutex<Option<String>>,
}

impl ServedModel {
    /// A model's files under a name; opens nothing yet.
    pub fn new(name: String, path: PathBuf) -> std::io::Result<Self> {
        let created = std::fs::metadata(&path)?.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            name,
            aliases: Vec::new(),
            created_s: created.unwrap_or_default().as_secs(),
            file_bytes: rocinante::stored_bytes(&path),
            path,
            is_given: false,
            preset: Arc::default(),
            digest: OnceLock::new(),
            headers: OnceLock::new(),
            loading: Mutex::default(),
            is_leaving: AtomicBool::new(false),
            n_waiting: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            loaded: Mutex::new(None),
            past: Arc::default(),
            start: Instant::now(),
            last_used_ms: AtomicU64::new(0),
            loaded_ms: AtomicU64::new(0),
            stay: Mutex::default(),
            trouble: watch::Sender::default(),
            given_up: Mutex::default(),
        })
    }

    /// The same, made at another time than its file.
    #[must_use]
    pub fn made_at(self, time: SystemTime) -> Self {
        let created_s = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { created_s, ..self }
    }

    /// The same under other names.
    pub fn renamed(self, name: String, aliases: Vec<String>) -> Self {
        Self { name, aliases, ..self }
    }

    /// The same as one the server was started with.
    #[must_use]
    pub fn given(self) -> Self {
        Self { is_given: true, ..self }
    }

    pub fn with_preset(self, preset: Preset) -> Self {
        Self { preset: Arc::new(preset), ..self }
    }

    pub fn with_digest(self, digest: Option<String>) -> Self {
        self.set_digest(digest);
        self
    }

    pub fn set_digest(&self, digest: Option<String>) {
        if let Some(digest) = digest {
            let _ = self.digest.set(digest);
        }
    }

    pub fn digest(&self) -> Option<&str> {
        self.digest.get().map(String::as_str)
    }

    /// What its files say, without loading it; nothing where they cannot be read. Reads them the first time.
    pub fn headers(&self) -> Option<&Headers> {
        let read = || {
            let files = ModelFiles::open(&self.path).ok()?;
            Some(Headers { info: files.info().ok()?, n_ctx_train: files.config().ok()?.n_ctx_train })
        };
        self.headers.get_or_init(read).as_ref()
    }

    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// The same file, used the same way.
    pub fn is_same(&self, other: &Self) -> bool {
        self.path == other.path && self.preset.modelfile == other.preset.modelfile
    }

    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_loading(&self) -> bool {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub fn set(&self, model: Arc<Loaded>) {
        self.loaded_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.is_awaited.store(self.n_waiting.load(Ordering::Relaxed) == 0, Ordering::Relaxed);
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(model);
    }

    /// Removes the model from memory even if it is in use. For engines that broke down.
    pub fn discard(&self) -> Option<JoinHandle<()>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.take().map(|model| self.end(model))
    }

    /// Takes the model out of memory if nobody uses it.
    pub fn unload_if_idle(&self) -> Option<JoinHandle<()>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // New holders need this lock.
        loaded.take_if(|model| Arc::strong_count(model) == 1).map(|model| self.end(model))
    }

    /// Its engine's end is waited for: not on a thread that serves. `loaded` is locked meanwhile, so that what is known
    /// by now is counted at every moment; what its end brings is added later.
    fn end(&self, model: Arc<Loaded>) -> JoinHandle<()> {
        let past = Arc::clone(&self.past);
        let known = model.counters();
        add_counters(&mut past.lock().unwrap_or_else(PoisonError::into_inner), &known);
        tokio::task::spawn_blocking(move || {
            let stats = model.end();
            add_counters(&mut past.lock().unwrap_or_else(PoisonError::into_inner), &since(&stats, &known));
        })
    }

    /// What its engines counted since the server's start. Only the counters mean anything.
    pub fn counters(&self) -> Stats {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(model) = &*loaded {
            add_counters(&mut sum, &model.counters());
        }
        sum
    }

    /// Neither in memory nor on its way out of it: nothing more is counted for it.
    pub fn is_settled(&self) -> bool {
        self.loaded().is_none() && !self.is_loading() && Arc::strong_count(&self.past) == 1
    }

    /// Why its engine is not started again. Unloading it gives it another chance.
    pub fn unavailable(&self) -> Option<String> {
        let given_up = || self.given_up.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.loaded().and_then(|model| model.unavailable()).or_else(given_up)
    }

    /// It is not loaded again until [`unavailable`](Self::unavailable) is set to nothing.
    pub fn set_unavailable(&self, why: Option<String>) {
        *self.given_up.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why it is still being loaded: engines died of it.
    pub fn loading_trouble(&self) -> Option<String> {
        let trouble = self.trouble.borrow().clone();
        trouble.filter(|_| self.is_loading())
    }

    /// In memory, and nobody but the registry holds it.
    pub fn is_idle(&self) -> bool {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().is_some_and(|model| Arc::strong_count(model) == 1)
    }

    pub fn is_in_use(&self) -> bool {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().is_some_and(|model| Arc::strong_count(model) > 1)
    }

    /// Somebody waits for it for as long as this is held.
    pub fn wait(&self) -> Waiting<'_> {
        self.n_waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Whether somebody waits for it, or did a moment ago.
    pub fn is_wanted(&self) -> bool {
        self.n_waiting.load(Ordering::Relaxed) > 0 || self.last_used().elapsed() < STILL_WANTED
    }

    /// Whether it was loaded less than a turn ago for requests that are yet to come back.
    pub fn is_awaited(&self, turn: Duration) -> bool {
        self.is_awaited.load(Ordering::Relaxed) && self.loaded_at().elapsed() < turn
    }

    /// It is asked for, or still answering.
    pub fn use_now(&self) {
        self.is_awaited.store(false, Ordering::Relaxed);
        self.last_used_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub fn last_used(&self) -> Instant {
        self.start + Duration::from_millis(self.last_used_ms.load(Ordering::Relaxed))
    }

    /// When it came into memory.
    pub fn loaded_at(&self) -> Instant {
        self.start + Duration::from_millis(self.loaded_ms.load(Ordering::Relaxed))
    }

    /// What the latest request said about how long it stays; `None`: nothing, so the operator's setting counts.
    pub fn set_idle_limit(&self, stay: Option<IdleLimit>) {
        *self.stay.lock().unwrap_or_else(PoisonError::into_inner) = stay;
    }

    /// How long it stays without requests; `None`: for ever.
    pub fn time_to_stay(&self, operator: Option<Duration>) -> Option<Duration> {
        match *self.stay.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(IdleLimit::For(time)) => Some(time),
            Some(IdleLimit::Forever) => None,
            None => operator,
        }
    }
}

/// A request that waits until its model is in memory.
pub struct Waiting<'a>(&'a ServedModel);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.use_now();
        self.0.n_waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

pub fn add_counters(sum: &mut Stats, stats: &Stats) {
    sum.n_steps += stats.n_steps;
    sum.n_tokens_computed += stats.n_tokens_computed;
    sum.n_tokens_cached += stats.n_tokens_cached;
    sum.n_preemptions += stats.n_preemptions;
    sum.drafted += stats.drafted;
    sum.masks += stats.masks;
    sum.n_logits_read += stats.n_logits_read;
    sum.kept.counters += stats.kept.counters;
    sum.n_failed += stats.n_failed;
    sum.n_steps_by_rows.iter_mut().zip(stats.n_steps_by_rows).for_each(|(sum, n)| *sum += n);
}
