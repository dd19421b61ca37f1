//! The supervisor of one engine: starts its process, and gives a handle whose messages reach whichever process is up.
//!
//! Two threads share one ledger. This one takes messages from callers, enters them and writes them to the child;
//! `life.rs` starts children, reads what they say and decides when one is lost. Callers wait for neither.

use std::{
    collections::VecDeque,
    ffi::OsString,
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use engine::{Command, EngineMessage, Event, FailureKind, Handle, SharedStats, Stats, ledger::Ledger};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    death::DeathCause,
    frame::{self, FrameError},
    life::{Life, ReadyChild},
    status::{Notice, Phase, StatusWatch},
    wire::ToChild,
};

/// How often the thread that takes messages looks whether there is still an engine to give them to.
const LOOK: Duration = Duration::from_millis(250);

/// How often it looks whether the last requests are over when nobody can send any more.
const LAST_REQUESTS: Duration = Duration::from_millis(20);

/// What is started as an engine's process.
#[derive(Clone, Debug)]
pub struct EngineProgram {
    pub path: PathBuf,
    pub args: Vec<OsString>,
    /// The child must be of the same build.
    pub build: String,
}

/// When to give up.
#[derive(Copy, Clone, Debug)]
pub struct RestartPolicy {
    /// After so many deaths within `window` no further process is started. Those that are blamed on a request that was
    /// refused do not count.
    pub max_deaths: usize,
    pub window: Duration,
    /// A process that is silent for this long is lost.
    pub silence: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self { max_deaths: 10, window: Duration::from_secs(600), silence: Duration::from_secs(15) }
    }
}

/// What to load, and the fallback when that is given up.
#[derive(Clone, Debug)]
pub struct LoadChoice<L> {
    pub first: L,
    /// Makes it of what was loaded before. While there is one, no request is blamed for a death: where there are two
    /// ways, the way is the likelier culprit.
    pub fallback: Option<fn(&L) -> L>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The child said why, in words for people.
    #[error("{0}")]
    Refused(String),
    /// It died before it was ready, and so did those after it.
    #[error("{0}")]
    Died(String),
}

/// Called with each notice. It must not block for long: it runs between two events.
pub type OnNotice = Arc<dyn Fn(&Notice) + Send + Sync>;

pub struct Supervisor;

impl Supervisor {
    /// Starts a process, has it load the first of `what` and waits until it, or one after it, is ready. `pin` says what later processes load, so that
    /// they come up with the same limits whatever the machine looks like then.
    pub fn start<L, R>(
        program: EngineProgram,
        policy: RestartPolicy,
        what: LoadChoice<L>,
        pin: impl FnOnce(&L, &R) -> L,
        on_notice: OnNotice,
    ) -> Result<(Handle, R, StatusWatch), StartError>
    where
        L: Serialize + Send + 'static,
        R: DeserializeOwned + Send + 'static,
    {
        let watch = StatusWatch::default();
        let shared = Arc::new(SupervisorShared {
            state: Mutex::default(),
            changed: Condvar::new(),
            watch: watch.clone(),
            on_notice,
        });
        let mut life = Life::new(program, policy, what, Arc::clone(&shared));
        let (up, about) = life.first_up::<R>()?;
        life.what = pin(&life.what, &about);
        let limits = up.limits;
        let handle = engine::start_with(limits, move |messages, shared_stats| {
            shared.run::<L, R>(messages, shared_stats, life, up)
        });
        Ok((handle, about, watch))
    }
}

/// State shared by both threads of the supervisor.
pub(crate) struct SupervisorShared {
    pub state: Mutex<SupervisorState>,
    /// The supervisor was told to stop.
    pub changed: Condvar,
    pub watch: StatusWatch,
    pub on_notice: OnNotice,
}

#[derive(Default)]
pub(crate) struct SupervisorState {
    pub ledger: Ledger,
    /// To the child that is up.
    pub writer: Option<UnixStream>,
    /// What the writer found wrong with the child.
    pub verdict: Option<DeathCause>,
    pub closing_since: Option<Instant>,
    pub unavailable: Option<String>,
    /// What children that are gone have counted.
    pub past: Stats,
    /// Of the last deaths.
    pub deaths: VecDeque<Instant>,
}

impl SupervisorShared {
    pub fn lock(&self) -> MutexGuard<'_, SupervisorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes messages until it is told to stop, nobody can send any more, or no engine can be started.
    fn run<L, R>(
        self: Arc<Self>,
        messages: &Receiver<EngineMessage>,
        shared_stats: &SharedStats,
        life: Life<L>,
        up: ReadyChild,
    ) -> Option<String>
    where
        L: Serialize + Send + 'static,
        R: DeserializeOwned + Send + 'static,
    {
        let own_stats = shared_stats.clone();
        let living = thread::Builder::new().name("engine-life".into()).spawn(move || life.run::<R>(up, &own_stats));
        let living = match living {
            Ok(living) => living,
            Err(error) => return Some(format!("its watching thread could not be started: {error}")),
        };
        loop {
            let message = messages.recv_timeout(LOOK);
            let mut state = self.lock();
            if let Some(why) = state.unavailable.clone() {
                if let Ok(message) = message {
                    state.take::<L>(message, shared_stats);
                }
                while let Ok(message) = messages.try_recv() {
                    state.take::<L>(message, shared_stats);
                }
                state.ledger.fail_all(&why);
                return Some(why);
            }
            let is_over = match message {
                Ok(EngineMessage::Shutdown) => true,
                Ok(message) => {
                    state.take::<L>(message, shared_stats);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) if state.ledger.is_empty() => true,
                Err(RecvTimeoutError::Disconnected) => {
                    drop(state);
                    thread::sleep(LAST_REQUESTS);
                    continue;
                }
            };
            drop(state);
            if is_over {
                self.close::<L>();
                // It does not panic; if it did, its requests are ended below.
                let _ = living.join();
                self.lock().ledger.finish_all();
                self.watch.lock().phase = Phase::Ended;
                return None;
            }
        }
    }

    fn close<L: Serialize>(&self) {
        let mut state = self.lock();
        state.closing_since = Some(Instant::now());
        state.send::<L>(vec![Command::Shutdown]);
        self.changed.notify_all();
    }
}

impl SupervisorState {
    fn take<L: Serialize>(&mut self, message: EngineMessage, shared_stats: &SharedStats) {
        let commands = match message {
            EngineMessage::Submit(submit, reply_to) => self.ledger.submit(submit, reply_to),
            EngineMessage::Embed(embed, reply_to) => self.ledger.embed(embed, reply_to),
            EngineMessage::Cancel(id) => self.ledger.cancel(id).into_iter().collect(),
            EngineMessage::Gone(seq) => self.ledger.gone(seq),
            EngineMessage::Stats(sink) => {
                let _ = sink.send(Event::Stats(Box::new(shared_stats.read())));
                return;
            }
            EngineMessage::Shutdown => return,
        };
        self.send::<L>(commands);
    }

    /// Writes commands to the child. One that cannot be written ends its request; a child that cannot be written to is
    /// lost, which the other thread finds when its socket closes.
    pub fn send<L: Serialize>(&mut self, commands: Vec<Command>) {
        let mut commands = VecDeque::from(commands);
        while let Some(command) = commands.pop_front() {
            let Some(writer) = &mut self.writer else { return };
            let id = match &command {
                Command::Submit(submit) => Some(submit.id),
                Command::Embed(embed) => Some(embed.id),
                _ => None,
            };
            let Err(error) = frame::write(writer, &ToChild::<L>::Commands(vec![command])) else { continue };
            match (&error, id) {
                (FrameError::TooLong { .. } | FrameError::Codec(_), Some(id)) => {
                    let failed = Event::Failed { id, kind: FailureKind::Request, error: error.to_string() };
                    commands.extend(self.ledger.pass_on(failed).unwrap_or_default());
                }
                _ => {
                    if matches!(error, FrameError::TimedOut) {
                        self.verdict = Some(DeathCause::Hung("it does not take its commands".to_owned()));
                    }
                    let _ = writer.shutdown(Shutdown::Both);
                    self.writer = None;
                }
            }
        }
    }
}
