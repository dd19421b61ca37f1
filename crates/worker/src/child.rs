//! The child's end: takes the socket that is its standard input, loads what it is told to, and runs commands against its
//! engine until it is told to stop or the supervisor is gone. One thread writes: what happens in a step leaves in one
//! frame, and silence is broken by a pulse, so that the supervisor can tell a long step from a dead process.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use engine::{Closed, Command, Event, FailureKind, Handle, RequestId, Sink, Stats};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    frame::{self, FrameError},
    wire::{FromChild, PULSE, Report, StepPatience, ToChild, VERSION},
};

/// An engine that does not end within this time is left behind.
const TIME_TO_END: Duration = Duration::from_secs(5);
/// The engine publishes its stats after the events of a step; what a report could not have yet follows after this time.
const SETTLE: Duration = Duration::from_millis(20);
/// How long the reason of an engine's end may lag behind its signs.
const TIME_FOR_REASON: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("this process was not started by a supervisor: {0}")]
    NoSocket(io::Error),
    #[error("the supervisor cannot be understood: {0}")]
    Frame(#[from] FrameError),
    #[error("the supervisor sent commands before there was anything to load")]
    NotLoaded,
    #[error("cannot load: {0}")]
    Refused(String),
}

/// What the child has loaded.
pub struct Opened<R> {
    pub about: R,
    pub engine: Handle,
    /// Requests that may wait, as the supervisor is to count them. The engine's own bound must be far above.
    pub max_queue: usize,
    pub patience: StepPatience,
}

/// Tells the supervisor what the child is doing.
pub struct ProgressSender<R>(Sender<Outgoing<R>>);

impl<R> ProgressSender<R> {
    pub fn say(&self, text: impl Into<String>) {
        // A supervisor that is gone is noticed elsewhere.
        let _ = self.0.send(Outgoing::Frame(FromChild::Progress(text.into())));
    }
}

#[allow(clippy::large_enum_variant, reason = "the usual one is neither the largest nor the smallest")]
enum Outgoing<R> {
    Frame(FromChild<R>),
    Up(Handle, FromChild<R>),
    Event(Event),
    /// A request was dropped without a last event.
    Lost,
    End,
}

/// Serves one engine, which `open` makes of what the supervisor wants loaded and of how many processes tried before.
pub fn serve<L, R>(
    build: &str,
    open: impl FnOnce(L, u32, &ProgressSender<R>) -> Result<Opened<R>, String>,
) -> Result<(), ChildError>
where
    L: DeserializeOwned,
    R: Serialize + Send + 'static,
{
    let socket = socket().map_err(ChildError::NoSocket)?;
    let out = Arc::new(Mutex::new(socket.try_clone().map_err(ChildError::NoSocket)?));
    let (sender, outgoing) = mpsc::channel();
    let hello = FromChild::Hello { version: VERSION, build: build.to_owned() };
    let _ = sender.send(Outgoing::Frame(hello));
    let is_ending = Arc::new(AtomicBool::new(false));
    let writer = ReportWriter {
        out: Arc::clone(&out),
        engine: None,
        is_ending: Arc::clone(&is_ending),
        reported: None,
        waited: Duration::ZERO,
    };
    let writing = thread::Builder::new().name("report".into()).spawn(move || writer.run(&outgoing));
    let writing = writing.map_err(ChildError::NoSocket)?;
    let finish = |outcome| {
        let _ = sender.send(Outgoing::End);
        // It does not panic, and what it could not write nobody reads.
        let _ = writing.join();
        outcome
    };
    let mut reader = frame::FrameReader::new(socket);
    let ToChild::Load { what, n_before } = reader.read::<ToChild<L>>()? else {
        return finish(Err(ChildError::NotLoaded));
    };
    let opened = match open(what, n_before, &ProgressSender(sender.clone())) {
        Ok(opened) => opened,
        Err(why) => {
            let _ = sender.send(Outgoing::Frame(FromChild::Refused(why.clone())));
            return finish(Err(ChildError::Refused(why)));
        }
    };
    let Opened { about, engine, max_queue, patience } = opened;
    let limits = engine.limits().with_max_queue(max_queue);
    let _ = sender.send(Outgoing::Up(engine.clone(), FromChild::Ready { about, limits, patience }));
    let outcome = take_commands::<L, R>(&mut reader, &engine, &out, &sender);
    is_ending.store(true, Ordering::Release);
    // A device that hangs must not keep the process.
    thread::spawn(|| {
        thread::sleep(TIME_TO_END);
        std::process::abort();
    });
    engine.shutdown();
    finish(outcome)
}

/// The child's end, for writers of whole frames.
type ChildSocket = Arc<Mutex<UnixStream>>;

fn write(out: &ChildSocket, value: &impl Serialize) -> Result<(), FrameError> {
    frame::write(&mut *out.lock().unwrap_or_else(PoisonError::into_inner), value)
}

/// Standard input, if it is a socket.
fn socket() -> io::Result<UnixStream> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.local_addr()?;
    Ok(stream)
}

/// Until the supervisor says so, or is gone.
fn take_commands<L: DeserializeOwned, R: Send + 'static>(
    reader: &mut frame::FrameReader<UnixStream>,
    engine: &Handle,
    out: &ChildSocket,
    sender: &Sender<Outgoing<R>>,
) -> Result<(), ChildError> {
    loop {
        let commands = match reader.read::<ToChild<L>>() {
            Ok(ToChild::Commands(commands)) => commands,
            Ok(ToChild::Load { .. }) => return Err(ChildError::NotLoaded),
            Err(FrameError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for command in commands {
            let id = match &command {
                Command::Shutdown => return Ok(()),
                Command::Submit(submit) => submit.id,
                Command::Embed(embed) => embed.id,
                Command::Cancel(id) => *id,
                Command::Stats => continue,
            };
            let sink = ChildSink { id, socket: Arc::clone(out), out: sender.clone(), is_done: AtomicBool::new(false) };
            if matches!(command, Command::Cancel(_)) {
                sink.is_done.store(true, Ordering::Relaxed);
            }
            let refused = engine.send_into(command, Box::new(sink)).err();
            if let Some(error) = refused.filter(|error| !matches!(error, engine::Error::Stopped { .. })) {
                let event = Event::Failed { id, kind: FailureKind::Request, error: error.to_string() };
                let _ = sender.send(Outgoing::Event(event));
            }
        }
    }
}

/// Where the events of one request go.
struct ChildSink<R> {
    id: RequestId,
    socket: ChildSocket,
    out: Sender<Outgoing<R>>,
    is_done: AtomicBool,
}

impl<R: Send> Sink for ChildSink<R> {
    fn send(&self, event: Event) -> Result<(), Closed> {
        self.is_done.store(event.is_last(), Ordering::Relaxed);
        self.out.send(Outgoing::Event(event)).map_err(|_| Closed)
    }

    /// Written before the step, by the engine's own thread: a step that ends the process must find its suspects known.
    fn started(&self) {
        let _ = write(&self.socket, &FromChild::<()>::Started(self.id));
    }
}

impl<R> Drop for ChildSink<R> {
    fn drop(&mut self) {
        if !self.is_done.load(Ordering::Relaxed) {
            let _ = self.out.send(Outgoing::Lost);
        }
    }
}

struct ReportWriter {
    out: ChildSocket,
    engine: Option<Handle>,
    /// It was told to stop: an engine that ends is no fault.
    is_ending: Arc<AtomicBool>,
    /// The stats of the last report, if something happened in it.
    reported: Option<Stats>,
    /// For how long other threads were kept from running, when it was last looked at.
    waited: Duration,
}

impl ReportWriter {
    /// Ends with the process, or when nobody reads.
    fn run<R: Serialize>(mut self, outgoing: &Receiver<Outgoing<R>>) {
        loop {
            let patience = if self.reported.is_some() { SETTLE } else { PULSE };
            let mut next = match outgoing.recv_timeout(patience) {
                Ok(next) => Some(next),
                Err(RecvTimeoutError::Timeout) if self.is_settled() => continue,
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut report = Report::default();
            let mut is_lost = false;
            while let Some(one) = next {
                match one {
                    Outgoing::Event(event) => report.events.push(event),
                    Outgoing::Lost => is_lost = true,
                    Outgoing::End => return drop(self.report::<R>(report)),
                    Outgoing::Frame(frame) => {
                        if write(&self.out, &frame).is_err() {
                            return;
                        }
                    }
                    Outgoing::Up(engine, frame) => {
                        self.engine = Some(engine);
                        if write(&self.out, &frame).is_err() {
                            return;
                        }
                    }
                }
                next = outgoing.try_recv().ok();
            }
            if self.report::<R>(report).is_err() {
                return;
            }
            if let Some(why) = self.fault(is_lost) {
                // The supervisor kills the process. One that does not hear it is gone; then the process ends without exit
                // handlers, which may wait for the device.
                let _ = write(&self.out, &FromChild::<R>::Fault(why));
                thread::sleep(TIME_TO_END);
                std::process::abort();
            }
        }
    }

    /// Whether the last report, which told of something, told all of it.
    fn is_settled(&mut self) -> bool {
        let Some(reported) = self.reported.take() else { return false };
        self.engine.as_ref().is_none_or(|engine| engine.latest_stats() == reported)
    }

    fn report<R: Serialize>(&mut self, mut report: Report) -> Result<(), FrameError> {
        if let Some(engine) = &self.engine {
            // The engine writes its log before its stats: of what the stats count, nothing is missing.
            report.stats = engine.latest_stats();
            report.kv_events = engine.kv_log().take();
        }
        self.reported = (!report.events.is_empty()).then(|| report.stats.clone());
        if report.events.is_empty() {
            self.waited = waited_for_processor();
        }
        // On a machine that is too busy, an engine that waits for its turn does not hang.
        report.cpu_time = cpu_time() + self.waited;
        let frame = FromChild::<R>::Report(report);
        match (write(&self.out, &frame), frame) {
            (Err(FrameError::TooLong { .. }), FromChild::Report(too_long)) => self.report_one_by_one::<R>(too_long),
            (outcome, _) => outcome,
        }
    }

    fn report_one_by_one<R: Serialize>(&mut self, mut report: Report) -> Result<(), FrameError> {
        let first = Report { kv_events: std::mem::take(&mut report.kv_events), events: Vec::new(), ..report.clone() };
        write(&self.out, &FromChild::<R>::Report(first))?;
        for event in std::mem::take(&mut report.events) {
            let id = event.id();
            let one = Report { events: vec![event], ..report.clone() };
            let Err(error) = write(&self.out, &FromChild::<R>::Report(one)) else { continue };
            let (FrameError::TooLong { .. }, Some(id)) = (&error, id) else { return Err(error) };
            let failed = Event::Failed { id, kind: FailureKind::Request, error: error.to_string() };
            let one = Report { events: vec![failed], ..report.clone() };
            write(&self.out, &FromChild::<R>::Report(one))?;
        }
        Ok(())
    }

    /// Why the engine ended, if it did and was not told to.
    fn fault(&self, is_lost: bool) -> Option<String> {
        let engine = self.engine.as_ref()?;
        let asked = Instant::now();
        loop {
            if self.is_ending.load(Ordering::Acquire) {
                return None;
            }
            match engine.stopped() {
                Some(why) => return Some(why),
                None if is_lost && asked.elapsed() < TIME_FOR_REASON => thread::sleep(Duration::from_millis(5)),
                None => return is_lost.then(|| "the engine dropped a request".to_owned()),
            }
        }
    }
}

/// For how long the threads of this process, but for this one, were ready to run and had no processor; nothing where the
/// system does not say.
fn waited_for_processor() -> Duration {
    // A link to PID/task/TID.
    let own = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let others = tasks.flatten().filter(|task| Some(&*task.file_name()) != own.file_name());
    others.filter_map(|task| run_delay(&std::fs::read_to_string(task.path().join("schedstat")).ok()?)).sum()
}

/// The second of the kernel's three numbers about a thread: nanoseconds of waiting for a processor.
fn run_delay(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_without_a_processor_is_read() {
        assert_eq!(run_delay("12345 2500000000 7\n"), Some(Duration::from_millis(2500)));
        assert_eq!(run_delay(""), None);
    }
}
