//! The entry point: starts the engine's thread and sends it messages from any other thread. Requests are validated
//! here, on the caller's thread, and the queue's limit is enforced here, so a full engine refuses at once instead of
//! buffering.
//!
//! The thread need not compute: [`start_with`] runs whatever takes the messages, such as a supervisor that passes them
//! on to an engine in another process.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvError, RecvTimeoutError, Sender, TryRecvError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use batch::{Embeds, Forward, PooledStates, TokenId};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    drafter::Drafter,
    engine::{Engine, EngineOptions, ReplyTo},
    kv_log::KvLog,
    mask::MaskFactory,
    protocol::{Command, Event, Normalize, Pooling, RequestId, Stats, Submit, VectorRequest},
    sequence::SeqId,
    validate::{self, Bounds, Constraints},
};

/// Sends commands to an engine. The engine's thread ends when it is told to, or when every handle and every
/// [`Events`] is gone and the requests in flight are done.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: Sender<EngineMessage>,
    shared: Arc<HandleShared>,
}

#[derive(Debug)]
struct HandleShared {
    limits: Limits,
    queue: Arc<WaitingQueue>,
    next_seq: AtomicU64,
    next_request: AtomicU64,
    shared_stats: SharedStats,
    /// Why the thread ended.
    stopped: Arc<Mutex<Option<String>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What an engine can take: what requests are held against before they reach it.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limits {
    bounds: Bounds,
    embeds: Embeds,
    max_queue: usize,
}

impl Limits {
    /// With another bound on requests that wait. An engine behind a ledger takes what the ledger gives it, and the
    /// bound is kept in front of the ledger.
    pub fn with_max_queue(self, max_queue: usize) -> Self {
        Self { max_queue, ..self }
    }

    /// Whether an engine with these limits can go on with what one with `others` has taken.
    pub fn cover(&self, others: &Self) -> bool {
        let (own, others_bounds) = (self.bounds, others.bounds);
        let is_same_kind = own.n_vocab == others_bounds.n_vocab
            && own.constraints == others_bounds.constraints
            && self.embeds == others.embeds;
        is_same_kind && own.n_ctx >= others_bounds.n_ctx && own.n_blocks >= others_bounds.n_blocks
    }
}

/// What travels to the engine's thread: commands with the place their events go to.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one")]
pub enum EngineMessage {
    Submit(Submit, ReplyTo),
    Embed(VectorRequest, ReplyTo),
    Stats(Box<dyn Sink>),
    Cancel(RequestId),
    Shutdown,
    /// The receiver of this request was dropped.
    Gone(SeqId),
}

/// Where an engine's thread writes its stats, and others read them without asking. Changes of the prefix cache stand in
/// the log beside them.
#[derive(Clone, Debug, Default)]
pub struct SharedStats {
    stats: Arc<Mutex<Stats>>,
    pub kv_log: KvLog,
}

impl SharedStats {
    pub fn publish(&self, stats: Stats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    pub fn read(&self) -> Stats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where a request's events go. A sink that is dropped without a last event tells that the engine broke down.
pub trait Sink: Send {
    /// Never blocks: it is called between two steps of all requests. `Err`: nobody listens any more.
    fn send(&self, event: Event) -> std::result::Result<(), Closed>;

    /// The request takes part in a step for the first time.
    fn started(&self) {}
}

/// The receiver of a [`Sink`] is gone.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Closed;

impl Sink for Sender<Event> {
    fn send(&self, event: Event) -> std::result::Result<(), Closed> {
        Sender::send(self, event).map_err(|_| Closed)
    }
}

/// Requests that wait for their first step, counted where they are sent.
#[derive(Debug)]
struct WaitingQueue {
    n_waiting: AtomicUsize,
    max_queue: usize,
}

/// One place in the queue, given back when dropped.
#[derive(Debug)]
pub struct QueueSlot(Arc<WaitingQueue>);

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.n_waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Moves a model to an engine on a thread of its own. The model must have been loaded for as many rows of logits as
/// sequences shall run together; the engine keeps within what it was loaded for.
pub fn start(model: impl Forward + 'static, options: EngineOptions, masks: Option<Box<dyn MaskFactory>>) -> Handle {
    start_speculating(model, options, masks, None)
}

/// As [`start`], with a drafter that proposes tokens. Answers are the same as without it. Rows of logits that the model
/// was loaded for beyond one a sequence are for drafts.
pub fn start_speculating(
    model: impl Forward + 'static,
    options: EngineOptions,
    masks: Option<Box<dyn MaskFactory>>,
    drafter: Option<Box<dyn Drafter>>,
) -> Handle {
    start_helped(model, options, Helpers { masks, drafter, store: None })
}

/// What an engine may have besides its model.
#[derive(Default)]
pub struct Helpers {
    /// Holds answers to constraints.
    pub masks: Option<Box<dyn MaskFactory>>,
    /// Proposes tokens.
    pub drafter: Option<Box<dyn Drafter>>,
    /// Keeps what leaves the KV pool.
    pub store: Option<kept::BlockStore>,
}

/// As [`start`], with everything an engine may have.
pub fn start_helped(model: impl Forward + 'static, options: EngineOptions, helpers: Helpers) -> Handle {
    let model: Box<dyn Forward> = Box::new(model);
    let options = EngineOptions { max_queue: options.max_queue.max(1), ..options };
    let (capacity, embeds) = (model.capacity(), model.embeds());
    let bounds = Bounds {
        n_vocab: capacity.n_vocab,
        n_ctx: options.n_ctx.map_or(capacity.n_ctx, |n| n.min(capacity.n_ctx)),
        n_blocks: capacity.n_blocks,
        max_batch_tokens: capacity.max_batch_tokens.min(options.max_batch_tokens).max(1),
        max_output_rows: capacity.max_output_rows.max(1),
        constraints: if helpers.masks.is_some() { Constraints::Supported } else { Constraints::None },
    };
    let limits = Limits { bounds, embeds, max_queue: options.max_queue };
    start_with(limits, move |messages, shared_stats| {
        let fault = Engine::new(model, &options, helpers, shared_stats.clone()).run(messages);
        fault.map(|fault| format!("the device is lost: {fault}"))
    })
}

/// Starts `run` on a thread of its own and returns a handle that sends it messages. `run` ends when it is told to shut down, or
/// when the messages end, and says why if it ended for another reason.
pub fn start_with(
    limits: Limits,
    run: impl FnOnce(&Receiver<EngineMessage>, &SharedStats) -> Option<String> + Send + 'static,
) -> Handle {
    let (inbox, messages) = mpsc::channel();
    let stopped = Arc::new(Mutex::new(None));
    let why = Arc::clone(&stopped);
    let shared_stats = SharedStats::default();
    shared_stats.publish(Stats { n_blocks: limits.bounds.n_blocks, ..Stats::default() });
    let own = shared_stats.clone();
    let spawned = thread::Builder::new().name("engine".into()).spawn(move || {
        let result = panic::catch_unwind(AssertUnwindSafe(|| run(&messages, &own)));
        let reason = match result {
            Ok(None) => "it was shut down".into(),
            Ok(Some(reason)) => reason,
            Err(panic) => format!("it failed: {}", panic_text(panic.as_ref())),
        };
        // Set before `messages` is dropped, so that a failed sender finds the reason.
        *why.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        own.kv_log.close();
    });
    let thread = match spawned {
        Ok(thread) => Some(thread),
        Err(error) => {
            let reason = format!("its thread could not be started: {error}");
            *stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            None
        }
    };
    let queue = Arc::new(WaitingQueue { n_waiting: AtomicUsize::new(0), max_queue: limits.max_queue });
    let shared = HandleShared {
        limits,
        queue,
        next_seq: AtomicU64::new(0),
        next_request: AtomicU64::new(0),
        shared_stats,
        stopped,
        thread: Mutex::new(thread),
    };
    Handle { inbox, shared: Arc::new(shared) }
}

impl Handle {
    /// An id no other call of this gave; the caller's own ids work as well.
    pub fn next_request_id(&self) -> RequestId {
        RequestId(self.shared.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// What requests are held against, for a handle elsewhere that stands in for this one.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Longest prompt plus generated tokens.
    pub fn n_ctx(&self) -> usize {
        self.shared.limits.bounds.n_ctx
    }

    /// How the model makes vectors of texts.
    pub fn embeds(&self) -> Embeds {
        self.shared.limits.embeds
    }

    /// The request for a vector of these tokens, as the model was trained to make it, of length 1.
    pub fn embed_request(&self, tokens: Vec<TokenId>) -> VectorRequest {
        let Embeds { attention, pooling, .. } = self.shared.limits.embeds;
        let id = self.next_request_id();
        VectorRequest { id, tokens, pooling, attention, normalize: Normalize::Unit, priority: 0, group: 0 }
    }

    /// The request for a reranker's score of these tokens: a question and a text, as the model wants them joined; the
    /// first `n_first` are the question's.
    pub fn score_request(&self, tokens: Vec<TokenId>, n_first: usize) -> VectorRequest {
        let states = self.shared.limits.embeds.head.unwrap_or(PooledStates::First);
        let pooling = Pooling::Score { n_first, states };
        VectorRequest { pooling, normalize: Normalize::None, ..self.embed_request(tokens) }
    }

    /// Sends all requests and waits for their vectors, in the same order.
    pub fn vectors(&self, requests: Vec<VectorRequest>) -> Result<Vec<Vec<f32>>> {
        let all = requests.into_iter().map(|request| self.embed(request)).collect::<Result<Vec<_>>>()?;
        all.into_iter()
            .map(|mut events| match events.next() {
                Some(Event::Vector { vector, .. }) => Ok(vector),
                Some(Event::Failed { error, .. }) => Err(Error::NoVector { reason: error }),
                _ => Err(self.why_stopped()),
            })
            .collect()
    }

    pub fn n_vocab(&self) -> usize {
        self.shared.limits.bounds.n_vocab
    }

    pub fn submit(&self, submit: Submit) -> Result<Events> {
        self.open(Command::Submit(submit))
    }

    pub fn embed(&self, embed: VectorRequest) -> Result<Events> {
        self.open(Command::Embed(embed))
    }

    pub fn cancel(&self, id: RequestId) -> Result<()> {
        self.send(Command::Cancel(id))
    }

    /// A command without an answer. Those that answer need [`send_to`](Self::send_to) or a method of their own.
    pub fn send(&self, command: Command) -> Result<()> {
        match command {
            Command::Cancel(id) => self.post(EngineMessage::Cancel(id)),
            Command::Shutdown => self.post(EngineMessage::Shutdown),
            Command::Submit(_) | Command::Embed(_) | Command::Stats => Err(Error::NoReceiver),
        }
    }

    /// Any command, with its events to `sink`: one sink may serve many requests, as in a worker process.
    pub fn send_to(&self, command: Command, sink: &Sender<Event>) -> Result<()> {
        self.send_into(command, Box::new(sink.clone()))
    }

    /// As [`send_to`](Self::send_to), for receivers that are not channels of the standard library. Dropping the
    /// receiver cancels the request too, or it runs on until it has something to send.
    pub fn send_into(&self, command: Command, sink: Box<dyn Sink>) -> Result<()> {
        self.post_to(command, sink, self.next_seq())
    }

    /// The engine after its latest step, without asking it.
    pub fn latest_stats(&self) -> Stats {
        self.shared.shared_stats.read()
    }

    /// What happens to the prefix cache, if the engine was started to tell.
    pub fn kv_log(&self) -> KvLog {
        self.shared.shared_stats.kv_log.clone()
    }

    /// Why the engine's thread ended, if it has.
    pub fn stopped(&self) -> Option<String> {
        self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine between two steps.
    pub fn stats(&self) -> Result<Stats> {
        let (sink, events) = mpsc::channel();
        self.post(EngineMessage::Stats(Box::new(sink)))?;
        match events.recv() {
            Ok(Event::Stats(stats)) => Ok(*stats),
            _ => Err(self.why_stopped()),
        }
    }

    /// Ends every request and waits for the engine's thread.
    pub fn shutdown(&self) {
        let _ = self.send(Command::Shutdown);
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic in it is recorded where the next call finds it.
            let _ = thread.join();
        }
    }

    fn open(&self, command: Command) -> Result<Events> {
        let (sink, receiver) = mpsc::channel();
        let seq = self.next_seq();
        self.post_to(command, Box::new(sink), seq)?;
        Ok(Events { receiver, inbox: self.inbox.clone(), seq, is_done: Cell::new(false) })
    }

    fn post_to(&self, command: Command, sink: Box<dyn Sink>, seq: SeqId) -> Result<()> {
        let at = Instant::now();
        let message = match command {
            Command::Submit(submit) => {
                validate::submit(&submit, &self.shared.limits.bounds)?;
                EngineMessage::Submit(submit, ReplyTo { seq, sink, slot: Some(self.reserve()?), at })
            }
            Command::Embed(embed) => {
                validate::embed(&embed, &self.shared.limits.bounds)?;
                EngineMessage::Embed(embed, ReplyTo { seq, sink, slot: Some(self.reserve()?), at })
            }
            Command::Stats => EngineMessage::Stats(sink),
            Command::Cancel(id) => EngineMessage::Cancel(id),
            Command::Shutdown => EngineMessage::Shutdown,
        };
        self.post(message)
    }

    fn reserve(&self) -> Result<QueueSlot> {
        let queue = &self.shared.queue;
        let reserved = queue
            .n_waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < queue.max_queue).then_some(n + 1));
        match reserved {
            Ok(_) => Ok(QueueSlot(Arc::clone(queue))),
            Err(_) => Err(Error::QueueFull { max_queue: queue.max_queue }),
        }
    }

    fn next_seq(&self) -> SeqId {
        SeqId(self.shared.next_seq.fetch_add(1, Ordering::Relaxed))
    }

    fn post(&self, message: EngineMessage) -> Result<()> {
        self.inbox.send(message).map_err(|_| self.why_stopped())
    }

    fn why_stopped(&self) -> Error {
        let stopped = self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        Error::Stopped { reason: stopped.clone().unwrap_or_else(|| "it is going down".into()) }
    }
}

/// The events of one request. Dropping it cancels the request, wherever it is.
#[derive(Debug)]
pub struct Events {
    receiver: Receiver<Event>,
    inbox: Sender<EngineMessage>,
    seq: SeqId,
    is_done: Cell<bool>,
}

impl Events {
    /// Waits for the next event. An error means that the last one was received, or that the engine broke down.
    pub fn recv(&self) -> std::result::Result<Event, RecvError> {
        self.receiver.recv().inspect(|event| self.note(event))
    }

    pub fn try_recv(&self) -> std::result::Result<Event, TryRecvError> {
        self.receiver.try_recv().inspect(|event| self.note(event))
    }

    pub fn recv_timeout(&self, timeout: Duration) -> std::result::Result<Event, RecvTimeoutError> {
        self.receiver.recv_timeout(timeout).inspect(|event| self.note(event))
    }

    fn note(&self, event: &Event) {
        self.is_done.set(self.is_done.get() || event.is_last());
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.recv().ok()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if !self.is_done.get() {
            let _ = self.inbox.send(EngineMessage::Gone(self.seq));
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}
