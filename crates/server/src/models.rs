//! The models by name: which are known, which are in memory, and which is unloaded for another. A model is loaded on
//! its first request, once for everyone who waits, and stays even if they give up. At most `max_loaded` stay, and idle
//! ones are unloaded after a while. If all are in use, they take turns.

mod turns;

pub use super::served_model::{IdleLimit, ServedModel};
pub use turns::TurnLimits;

use super::error::{ApiError, Result};
use super::kv_events::Publisher;
use super::library;
use super::load_clock::{LoadClock, WaitTimer};
use super::loaded::Loaded;
use super::served_model::{Loading, add_counters};
use super::shared::SharedModel;
use axum::http::StatusCode;
use engine::{AdapterId, Stats};
use futures_util::FutureExt;
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A model that was told to leave is looked at so often for this long; after that, now and then.
const LEAVE_CHECK: Duration = Duration::from_millis(5);
const LEAVE_CHECKS: usize = 200;
const MAX_NAME_BYTES: usize = 512;
/// Models that are fetched or made at a time.
const MAX_DOWNLOADS: usize = 8;
/// Clients add no more models when so many are offered.
const MAX_OFFERED: usize = 1024;

/// Which models can be asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Those the server was started with.
    Given,
    /// Those in this machine's store.
    Store,
    /// Those too that can be fetched.
    StoreAndHub,
}

pub struct Registry {
    entries: RwLock<Vec<Arc<ServedModel>>>,
    options: rocinante::Options,
    max_loaded: usize,
    turns: TurnLimits,
    is_strict: bool,
    /// Unload a model after this long without requests, unless a client said otherwise.
    idle_unload: Option<Duration>,
    offer: Offer,
    /// Held while a model is looked for that is not known here.
    seeking: tokio::sync::Mutex<()>,
    /// One model is on its way into memory at a time, in the order in which they were asked for.
    turn: tokio::sync::Mutex<()>,
    /// Held while a model is loaded or dropped, but not by a load that waits for room.
    change: tokio::sync::Mutex<()>,
    clock: LoadClock,
    /// Each takes a thread of its own for as long as it lasts.
    downloads: Arc<tokio::sync::Semaphore>,
    kv_events: OnceLock<Arc<Publisher>>,
    removed: Mutex<Removed>,
}

/// Models that are no longer offered: a sum over all models must not fall because one is removed.
#[derive(Default)]
struct Removed {
    counters: Stats,
    /// Their last requests still run, or their engines are just ending.
    ending: Vec<Arc<ServedModel>>,
}

impl Removed {
    fn settle(&mut self) {
        let Self { counters, ending } = self;
        ending.retain(|entry| {
            let is_settled = entry.is_settled();
            if is_settled {
                add_counters(counters, &entry.counters());
            }
            !is_settled
        });
    }
}

/// Whether a name means an adapter: one that is not there must not be answered without it.
fn is_adapter_of(base: &ServedModel, name: &str) -> bool {
    name.strip_prefix(&base.name).is_some_and(|rest| rest.starts_with(':') && rest != ":latest")
}

impl Registry {
    pub fn new(
        entries: Vec<ServedModel>,
        options: rocinante::Options,
        max_loaded: usize,
        turns: TurnLimits,
        is_strict: bool,
        idle_unload: Option<Duration>,
        offer: Offer,
    ) -> Arc<Self> {
        let entries = entries.into_iter().map(|entry| if offer == Offer::Given { entry.given() } else { entry });
        Arc::new(Self {
            entries: RwLock::new(entries.map(Arc::new).collect()),
            options,
            max_loaded: max_loaded.max(1),
            turns,
            is_strict: is_strict || offer != Offer::Given,
            idle_unload,
            offer,
            seeking: tokio::sync::Mutex::new(()),
            turn: tokio::sync::Mutex::new(()),
            change: tokio::sync::Mutex::new(()),
            clock: LoadClock::default(),
            downloads: Arc::new(tokio::sync::Semaphore::new(MAX_DOWNLOADS)),
            kv_events: OnceLock::new(),
            removed: Mutex::default(),
        })
    }

    /// All models, as they are now.
    pub fn entries(&self) -> Vec<Arc<ServedModel>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Engines that are loaded from now on tell this what happens to their caches.
    pub fn publish_to(&self, publisher: Arc<Publisher>) {
        let _ = self.kv_events.set(publisher);
    }

    /// All models, and those that are offered no longer and still in memory.
    fn known(&self) -> Vec<Arc<ServedModel>> {
        // The locks are taken in this order everywhere.
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().chain(&removed.ending).cloned().collect()
    }

    /// What all engines counted since the start, those of models that were removed too.
    pub fn counters(&self) -> Stats {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        removed.settle();
        let mut sum = removed.counters.clone();
        entries.iter().chain(&removed.ending).for_each(|entry| add_counters(&mut sum, &entry.counters()));
        sum
    }

    /// A model is offered no longer; called before anybody can look at the models again.
    fn note_removed(&self, entry: Arc<ServedModel>) {
        entry.set_idle_limit(Some(IdleLimit::For(Duration::ZERO)));
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        removed.settle();
        removed.ending.push(entry);
    }

    /// Engines in memory: names of one file share one.
    pub fn n_engines(&self) -> usize {
        let loaded = self.known().into_iter().filter_map(|entry| entry.loaded());
        let engines: HashSet<*const SharedModel> = loaded.map(|model| Arc::as_ptr(model.shared())).collect();
        engines.len()
    }

    /// The models in memory.
    pub fn loaded(&self) -> impl Iterator<Item = Arc<Loaded>> {
        self.entries().into_iter().filter_map(|entry| entry.loaded())
    }

    pub fn options(&self) -> &rocinante::Options {
        &self.options
    }

    pub fn offer(&self) -> Offer {
        self.offer
    }

    pub fn idle_unload(&self) -> Option<Duration> {
        self.idle_unload
    }

    /// Who answers to a name. Where one model is served and names are not strict, it answers to all.
    pub fn find(&self, name: &str) -> Result<Arc<ServedModel>> {
        // Answers repeat the name, streams in every event.
        if name.len() > MAX_NAME_BYTES {
            let text = format!("a model's name has at most {MAX_NAME_BYTES} bytes, this one has {}", name.len());
            return Err(ApiError::not_found(text).code("model_not_found").param("model"));
        }
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let found = entries.iter().find(|entry| entry.is_named(name) || entry.is_named(plain));
        // What clients add beside the one model that was given leaves it the one that answers.
        let mut given = entries.iter().filter(|entry| entry.is_given && entry.preset.adapted.is_none());
        let only_given = given.next().filter(|_| given.next().is_none());
        let any = only_given.filter(|given| !self.is_strict && !is_adapter_of(given, name));
        match (found.or(any), entries.as_slice()) {
            (Some(entry), _) => Ok(Arc::clone(entry)),
            (None, [first, ..]) if name.is_empty() && (!self.is_strict || self.offer != Offer::Given) => {
                Ok(Arc::clone(first))
            }
            _ if name.is_empty() => {
                let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
                let text = match names.is_empty() {
                    true => "`model` is empty, and no model is here; `roci pull NAME` fetches one".to_owned(),
                    false => format!("`model` is empty; name one of: {}", names.join(", ")),
                };
                Err(ApiError::bad(text).code("model_not_found").param("model"))
            }
            (None, []) => {
                let text = format!(
                    "there is no model `{name}`, and no other model is here either; `roci pull NAME` downloads one"
                );
                Err(ApiError::not_found(text).code("model_not_found").param("model"))
            }
            _ => {
                let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
                let text = format!("there is no model `{name}` here; there are: {}", names.join(", "));
                Err(ApiError::not_found(text).code("model_not_found").param("model"))
            }
        }
    }

    /// The model that adapters of that base belong to; the first one where none is named.
    pub fn base(&self, name: &str) -> Result<Arc<ServedModel>> {
        let entry = self.find(name)?;
        match entry.preset.adapted {
            None => Ok(entry),
            Some(_) => Err(ApiError::bad(format!("`{name}` is an adapter itself"))),
        }
    }

    /// The same among all models of the store, where those are offered. One that is not here may be fetched first.
    pub async fn seek(&self, name: &str) -> Result<Arc<ServedModel>> {
        let unknown = match self.find(name) {
            Err(error) if self.offer != Offer::Given && (1..=MAX_NAME_BYTES).contains(&name.len()) => error,
            found => return found,
        };
        let (asked, fetches) = (name.to_owned(), self.offer == Offer::StoreAndHub);
        // One at a time: the next request for the same model finds it loaded.
        let _seeking = self.seeking.lock().await;
        if let Ok(entry) = self.find(name) {
            return Ok(entry);
        }
        let found = tokio::task::spawn_blocking(move || library::discover(&asked, fetches)).await;
        let found = found.map_err(|error| ApiError::internal(error.to_string()))??;
        found.map(|entry| self.insert(entry)).ok_or(unknown)
    }

    /// The models the server was started with are no business of its clients: this name must not be one of them.
    pub fn check_changeable(&self, name: &str) -> Result<()> {
        let plain = hub::normal_name(name);
        match self.entries().iter().any(|entry| entry.is_given && (entry.is_named(name) || entry.is_named(plain))) {
            true => {
                let text = format!(
                    "the server was started with `{plain}`: it is neither replaced nor removed; use another name"
                );
                Err(ApiError::new(StatusCode::CONFLICT, text).code("model_in_use").param("model"))
            }
            false => Ok(()),
        }
    }

    /// Every model takes some memory: there is an end to how many clients may add.
    pub fn check_room(&self, name: &str) -> Result<()> {
        let entries = self.entries();
        let is_known = entries.iter().any(|entry| entry.name == hub::normal_name(name));
        match is_known || entries.len() < MAX_OFFERED {
            true => Ok(()),
            false => {
                let text = format!("there are {MAX_OFFERED} models already; /api/delete removes one");
                Err(ApiError::new(StatusCode::CONFLICT, text).code("too_many_models"))
            }
        }
    }

    /// A place among those that fetch or make models.
    pub fn begin_download(&self) -> Result<tokio::sync::OwnedSemaphorePermit> {
        let busy = |_| ApiError::busy(format!("{MAX_DOWNLOADS} models are already being downloaded"), 30);
        Arc::clone(&self.downloads).try_acquire_owned().map_err(busy)
    }

    /// Whether a model that the server was started with is in this file.
    pub fn is_given_file(&self, path: &Path) -> bool {
        let Ok(file) = std::fs::canonicalize(path) else { return false };
        let is_it = |entry: &ServedModel| std::fs::canonicalize(&entry.path).is_ok_and(|given| given == file);
        self.entries().iter().any(|entry| entry.is_given && is_it(entry))
    }

    /// Offers a model. One of the same name that is another file is replaced, unless the server was started with it.
    pub fn insert(&self, entry: ServedModel) -> Arc<ServedModel> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let known = entries.iter().position(|other| other.name == entry.name);
        let entry = Arc::new(entry);
        match known {
            Some(idx) if entries[idx].is_given || entries[idx].is_same(&entry) => Arc::clone(&entries[idx]),
            Some(idx) => {
                self.note_removed(std::mem::replace(&mut entries[idx], Arc::clone(&entry)));
                entry
            }
            None => {
                entries.push(Arc::clone(&entry));
                entry
            }
        }
    }

    /// Offers a model no longer, unless the server was started with it. It leaves memory when its last request ends.
    pub async fn remove(&self, name: &str) {
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let entry = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            let is_meant = |entry: &ServedModel| !entry.is_given && (entry.is_named(name) || entry.is_named(plain));
            let idx = entries.iter().position(|entry| is_meant(entry));
            let entry = idx.map(|idx| entries.remove(idx));
            entry.inspect(|entry| self.note_removed(Arc::clone(entry)))
        };
        if let Some(entry) = entry {
            self.unload(&entry).await;
        }
    }

    /// The model of that name, in memory.
    pub async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<Loaded>> {
        let entry = self.seek(name).await?;
        entry.use_now();
        // What an earlier request wanted to happen after it is void.
        entry.set_idle_limit(None);
        // Who waits below must not hold the model, or it would look in use and never leave.
        let is_leaving = entry.is_leaving.load(Ordering::Acquire);
        if let Some(why) = entry.unavailable() {
            return Err(ApiError::unavailable(&entry.name, &why));
        }
        if let Some(model) = entry.loaded().filter(|model| model.is_alive() && !is_leaving) {
            return Ok(model);
        }
        let _waiting = entry.wait();
        let wait_timer = WaitTimer::new(&self.clock, self.turns.wait);
        let loaded = wait_timer.wait_for(self.loading(&entry)).await.unwrap_or_else(|| Err(self.no_room()));
        if let Err(error) = loaded.as_ref().map_err(|error| &error.message) {
            tracing::error!(model = entry.name, error, "not in memory");
        }
        loaded
    }

    /// Loads the model that was named first, if models were named. Who started the server hears what is wrong with it,
    /// not the log. Where its engine dies, others are tried while the server answers, and `/ready` says why it waits.
    pub async fn load_first(self: &Arc<Self>) -> Result<()> {
        let entries = self.entries();
        let Some(first) = entries.first().filter(|_| self.offer == Offer::Given) else { return Ok(()) };
        let _waiting = first.wait();
        let mut trouble = first.trouble.subscribe();
        let loaded = tokio::select! {
            loaded = self.loading(first) => loaded.map(drop),
            _ = trouble.wait_for(Option::is_some) => Ok(()),
        };
        loaded.or_else(|error| if first.unavailable().is_some() { Ok(()) } else { Err(error) })
    }

    /// The load that is under way, or a new one. It continues even if nobody waits for it any more.
    fn loading(self: &Arc<Self>, entry: &Arc<ServedModel>) -> Loading {
        let mut loading = entry.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(under_way) = &*loading {
            return under_way.clone();
        }
        let (registry, entry) = (Arc::clone(self), Arc::clone(entry));
        let task = tokio::spawn(async move {
            let loaded = registry.load(&entry).await;
            // What holds the outcome holds the model.
            *entry.loading.lock().unwrap_or_else(PoisonError::into_inner) = None;
            loaded
        });
        let outcome = async move { task.await.unwrap_or_else(|error| Err(ApiError::internal(error.to_string()))) };
        loading.insert(outcome.boxed().shared()).clone()
    }

    async fn load(self: &Arc<Self>, entry: &ServedModel) -> Result<Arc<Loaded>> {
        let _turn = self.wait_for_turn(entry).await.ok_or_else(|| self.no_room())?;
        let change = self.change.lock().await;
        if let Some(model) = entry.loaded().filter(|model| model.is_alive()) {
            return Ok(model);
        }
        if let Some(why) = entry.unavailable() {
            return Err(ApiError::unavailable(&entry.name, &why));
        }
        // Its engine broke down, if it is there: a new one takes its place, and its memory.
        if let Some(unloading) = entry.discard() {
            let _ = unloading.await;
        }
        if let Some(shared) = self.engine_of(&entry.path) {
            let model = Loaded::sharing(&entry.name, &entry.preset, shared);
            let model = Arc::new(model.map_err(|error| ApiError::internal(error.to_string()))?);
            tracing::info!(model = entry.name, "uses the engine of another name of the same file");
            entry.set(Arc::clone(&model));
            return Ok(model);
        }
        drop(change);
        let room = self.make_room(entry).await;
        self.entries().iter().for_each(|entry| entry.is_leaving.store(false, Ordering::Release));
        let _change = room?;
        let model = self.open(entry).await?;
        entry.set(Arc::clone(&model));
        Ok(model)
    }

    /// Starts its engine.
    async fn open(self: &Arc<Self>, entry: &ServedModel) -> Result<Arc<Loaded>> {
        let (name, path, options) = (entry.name.clone(), entry.path.clone(), self.options.clone());
        let (preset, trouble) = (Arc::clone(&entry.preset), entry.trouble.clone());
        trouble.send_replace(None);
        let start = Instant::now();
        let running = self.clock.begin();
        let open = move || Loaded::open(&name, &path, &preset, &options, trouble);
        let loaded = tokio::task::spawn_blocking(open).await;
        drop(running);
        let failed = |text: String| {
            // Where files are is nobody's business.
            let file = entry.path.file_name().map_or_else(|| "its file".into(), |name| name.to_string_lossy());
            let text = text.replace(&entry.path.display().to_string(), &file);
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("`{}` cannot be loaded: {text}", entry.name))
        };
        let model = match loaded {
            Ok(Ok(model)) => Arc::new(model),
            Ok(Err(rocinante::Error::Stopped(why))) => {
                entry.set_unavailable(Some(why.clone()));
                return Err(ApiError::unavailable(&entry.name, &why));
            }
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        };
        tracing::info!(model = entry.name, load_ms = start.elapsed().as_millis() as u64, "{}", model.describe());
        for note in model.absent_gpus().iter().chain(model.notes()) {
            tracing::info!(model = entry.name, "{note}");
        }
        if let Some(publisher) = self.kv_events.get() {
            let registry = Arc::downgrade(self);
            let name_of = move |id| registry.upgrade().and_then(|registry| registry.adapter_name(id));
            publisher.follow(&entry.name, model.engine().kv_log(), name_of);
        }
        Ok(model)
    }

    /// What clients call an adapter.
    pub fn adapter_name(&self, id: AdapterId) -> Option<String> {
        let is_it = |entry: &&Arc<ServedModel>| {
            entry.preset.adapted.as_ref().is_some_and(|adapted| adapted.adapter.id() == id.0)
        };
        self.entries().iter().find(is_it).map(|entry| entry.name.clone())
    }

    /// The engine of another name of this file, if one is in memory and stays there.
    fn engine_of(&self, path: &Path) -> Option<Arc<SharedModel>> {
        let file = std::fs::canonicalize(path).ok()?;
        let staying = self.entries().into_iter().filter(|entry| !entry.is_leaving.load(Ordering::Acquire));
        let found =
            staying.filter_map(|entry| entry.loaded()).find(|model| model.is_alive() && model.shared().is_of(&file));
        found.map(|model| Arc::clone(model.shared()))
    }

    /// Drops the models nobody used for as long as they are to stay.
    pub async fn unload_idle(&self) {
        let _change = self.change.lock().await;
        for entry in self.known() {
            if entry.is_in_use() {
                // Time counts from the end of the last request.
                entry.use_now();
            }
            let Some(stay) = entry.time_to_stay(self.idle_unload) else { continue };
            if entry.last_used().elapsed() >= stay && entry.unload_if_idle().is_some() {
                tracing::info!(model = entry.name, "unloaded: nobody used it");
            }
        }
    }

    /// Takes a model out of memory on request. A model in use goes when its last request ends, unless another one asks
    /// for it in the meantime.
    pub async fn unload(&self, entry: &ServedModel) {
        entry.set_idle_limit(Some(IdleLimit::For(Duration::ZERO)));
        entry.set_unavailable(None);
        for _ in 0..LEAVE_CHECKS {
            let change = self.change.lock().await;
            let is_wanted = entry.time_to_stay(self.idle_unload) != Some(Duration::ZERO);
            let unloading = if is_wanted { None } else { entry.unload_if_idle() };
            drop(change);
            if let Some(unloading) = unloading {
                tracing::info!(model = entry.name, "unloaded on request");
                let _ = unloading.await;
            }
            if is_wanted || entry.loaded().is_none() {
                return;
            }
            tokio::time::sleep(LEAVE_CHECK).await;
        }
    }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
