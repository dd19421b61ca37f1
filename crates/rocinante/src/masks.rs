//! The engine's masks, made of the text crate's constraints: this connects two crates that do not know each other.
//!
//! A mask is computed on a thread of `mask_pool` as soon as its last token is known, while the engine computes the next
//! step. A row whose mask is late is set aside, and the others continue. Each request has a budget of computing time
//! per token, so a grammar that needs more fails without affecting the others. Compilation has its own threads.

use crate::mask_pool;
use engine::{Mask, MaskFactory, TokenSet};
use model::TokenId;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use text::Tokenizer;
use text::constraint::{Canceller, Compiler, Constraint, Guard, Matcher, Refusal};

/// Computing time that every token earns. A mask usually takes a fiftieth of it.
const TIME_PER_TOKEN: Duration = Duration::from_millis(4);
/// What a request has at its start, and at most: some masks of a large schema take a tenth of a second.
const MAX_TIME: Duration = Duration::from_millis(500);
/// A request waits no longer than this for a mask that is being computed.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// And no longer than this for one whose turn has not come: compiling may be before it.
const MAX_QUEUE: Duration = Duration::from_secs(30);

/// Masks for the vocabulary of this tokenizer. The trie behind them is built with the first constraint.
pub fn factory(tokenizer: Arc<Tokenizer>) -> Box<dyn MaskFactory> {
    Box::new(Masks::new(tokenizer))
}

/// A factory that others than the engine can ask too: what one has compiled, its clones know.
#[derive(Clone)]
pub struct Masks {
    tokenizer: Arc<LateTokenizer>,
    compiler: Arc<OnceLock<Result<Compiler, String>>>,
    guard: Option<Arc<Guard>>,
}

/// A tokenizer that may have to be made first.
type LateTokenizer =
    LazyLock<Result<Arc<Tokenizer>, String>, Box<dyn FnOnce() -> Result<Arc<Tokenizer>, String> + Send>>;

/// Whether a constraint may be compiled in this process; it is asked before each one. A server tries them out where
/// they can do no harm.
#[derive(Clone)]
pub struct ConstraintGuard(Arc<Guard>);

impl ConstraintGuard {
    /// `check` says why a constraint may not be compiled.
    pub fn new(check: impl Fn(&Constraint) -> Result<(), Refusal> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }
}

impl std::fmt::Debug for ConstraintGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConstraintGuard")
    }
}

impl Masks {
    /// Compiles nothing yet.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self::later(move || Ok(tokenizer))
    }

    /// The tokenizer is made when the first constraint needs it.
    pub fn later(tokenizer: impl FnOnce() -> Result<Arc<Tokenizer>, String> + Send + 'static) -> Self {
        Self { tokenizer: Arc::new(LazyLock::new(Box::new(tokenizer))), compiler: Arc::default(), guard: None }
    }

    /// Asks `guard` about every constraint before it is compiled.
    pub fn guarded(tokenizer: Arc<Tokenizer>, guard: Option<ConstraintGuard>) -> Self {
        Self { guard: guard.map(|guard| guard.0), ..Self::new(tokenizer) }
    }

    /// The estimated memory of the compiled constraints that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.compiler.get().and_then(|compiler| compiler.as_ref().ok()).map_or(0, Compiler::kept_bytes)
    }

    /// Compiles a constraint, or finds it compiled.
    pub fn compile(&self, constraint: &Constraint, n_vocab: usize) -> Result<Matcher, text::Error> {
        let make = || {
            let tokenizer = self.tokenizer.as_ref().as_ref().map_err(Clone::clone)?;
            let compiler = Compiler::new(tokenizer, n_vocab).map_err(|error| match error {
                text::Error::Constraint(text) => text,
                error => error.to_string(),
            })?;
            Ok(match &self.guard {
                Some(guard) => compiler.guarded(Arc::clone(guard)),
                None => compiler,
            })
        };
        let compiler = self.compiler.get_or_init(make).as_ref();
        compiler.map_err(|text| text::Error::Constraint(text.clone()))?.build(constraint)
    }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks").field("is_built", &self.compiler.get().is_some()).finish_non_exhaustive()
    }
}

impl MaskFactory for Masks {
    /// Compiles nothing on the engine's thread: what is wrong with a constraint is told with its first mask.
    fn build(&mut self, constraint: &str, n_vocab: usize) -> Result<Box<dyn Mask>, String> {
        let constraint = Constraint::from_spec(constraint).map_err(|error| error.to_string())?;
        let state = MaskState { is_queued: true, time: MAX_TIME, ..MaskState::default() };
        let shared = Arc::new(SharedMask { state: Mutex::new(state), changed: Condvar::new() });
        let (masks, own) = (self.clone(), Arc::clone(&shared));
        mask_pool::compile(Box::new(move || match masks.compile(&constraint, n_vocab) {
            Ok(matcher) => own.work(matcher),
            Err(error) => own.fail(error.to_string()),
        }))?;
        Ok(Box::new(TextMask(shared)))
    }
}

struct TextMask(Arc<SharedMask>);

struct SharedMask {
    state: Mutex<MaskState>,
    changed: Condvar,
}

#[derive(Default)]
struct MaskState {
    /// Not here while a thread computes with it.
    matcher: Option<Matcher>,
    /// Tokens that the matcher has not seen yet.
    pending: Vec<u32>,
    /// A thread has it, or will.
    is_queued: bool,
    /// Since when a thread computes.
    began: Option<Instant>,
    canceller: Canceller,
    /// Computing time that is left.
    time: Duration,
    /// The tokens that may come next, or why there are none.
    ready: Option<Result<Vec<u32>, String>>,
    is_abandoned: bool,
    /// Since when somebody wants the next mask.
    wanted: Option<Instant>,
}

impl MaskState {
    /// How long the mask may still take; nothing is left where it took too long, and then the request has failed.
    fn time_left(&mut self) -> Duration {
        let wanted = *self.wanted.get_or_insert_with(Instant::now);
        let left = match self.began {
            Some(began) => MAX_WAIT.saturating_sub(began.max(wanted).elapsed()),
            None => MAX_QUEUE.saturating_sub(wanted.elapsed()),
        };
        if left.is_zero() {
            self.canceller.cancel();
            self.ready = Some(Err(too_slow()));
        }
        left
    }
}

impl SharedMask {
    fn lock(&self) -> MutexGuard<'_, MaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: String) {
        let mut state = self.lock();
        (state.ready, state.began) = (Some(Err(error)), None);
        self.changed.notify_all();
    }

    /// Lets the matcher see all tokens there are and computes what may come next.
    fn work(&self, mut matcher: Matcher) {
        loop {
            let mut state = self.lock();
            if state.is_abandoned || matches!(state.ready, Some(Err(_))) {
                return;
            }
            let tokens = std::mem::take(&mut state.pending);
            (state.began, state.canceller) = (Some(Instant::now()), matcher.canceller());
            drop(state);
            let before = mask_pool::thread_time();
            let mut words = Vec::new();
            let seen = tokens.iter().try_for_each(|&token| matcher.accept(token));
            let outcome = seen.and_then(|()| matcher.allowed(|allowed| words = allowed.to_vec()));
            let taken = mask_pool::thread_time().saturating_sub(before);
            let mut state = self.lock();
            state.began = None;
            let earned = TIME_PER_TOKEN.saturating_mul(tokens.len().max(1) as u32);
            let left = (state.time + earned).min(MAX_TIME + TIME_PER_TOKEN).checked_sub(taken);
            state.time = left.unwrap_or_default();
            let failed = matches!(state.ready, Some(Err(_)));
            match (outcome, left) {
                // The receiver gave up.
                _ if failed => {}
                (Err(error), _) => state.ready = Some(Err(error.to_string())),
                (Ok(()), None) => state.ready = Some(Err(too_slow())),
                (Ok(()), Some(_)) if !state.pending.is_empty() => continue,
                (Ok(()), Some(_)) => {
                    (state.ready, state.matcher, state.is_queued) = (Some(Ok(words)), Some(matcher), false);
                }
            }
            self.changed.notify_all();
            return;
        }
    }
}

fn too_slow() -> String {
    format!(
        "it takes too long to find which tokens may come next (more than {} ms each): the grammar is too ambiguous or \
         too large",
        TIME_PER_TOKEN.as_millis()
    )
}

impl Mask for TextMask {
    fn allowed(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        let mut state = self.0.lock();
        loop {
            if let Some(ready) = &state.ready {
                return ready.as_ref().map(|words| allowed.set_words(words)).map_err(Clone::clone);
            }
            let left = state.time_left();
            if left.is_zero() {
                continue;
            }
            state = self.0.changed.wait_timeout(state, left.min(MAX_WAIT)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_ready_within(&mut self, limit: Duration) -> bool {
        let asked = Instant::now();
        let mut state = self.0.lock();
        while state.ready.is_none() {
            let left = limit.saturating_sub(asked.elapsed());
            if state.time_left().is_zero() {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// A token that does not fit is told with the next mask.
    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        let mut state = self.0.lock();
        if let Some(Err(error)) = &state.ready {
            return Err(error.clone());
        }
        (state.ready, state.wanted) = (None, None);
        state.pending.push(token.0);
        if state.is_queued {
            return Ok(());
        }
        let Some(matcher) = state.matcher.take() else { return Err("the constraint's state is lost".to_owned()) };
        state.is_queued = true;
        drop(state);
        let own = Arc::clone(&self.0);
        mask_pool::run(Box::new(move || own.work(matcher)))
    }
}

impl Drop for TextMask {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_abandoned = true;
        state.canceller.cancel();
    }
}
