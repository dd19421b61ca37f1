//! The lives of an engine's processes: one after the other is brought up, given the requests of the one before, watched
//! until it is lost, and buried with its reason.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use engine::{
    KvEvent, Limits, SharedStats, Stats,
    ledger::{Blame, ProtocolFault},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    death::{Death, DeathCause},
    frame::{self, FrameError},
    process::Process,
    status::{Notice, Phase},
    supervisor::{EngineProgram, LoadChoice, RestartPolicy, StartError, SupervisorShared},
    wire::{FromChild, Report, StepPatience, ToChild, VERSION},
};

/// A child that was told to stop may take this long.
const TIME_TO_CLOSE: Duration = Duration::from_secs(6);
/// A child that closed its socket is about to end.
const TIME_TO_END: Duration = Duration::from_secs(5);
/// Before the next start, where the last one came to nothing; doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A process that uses less of a core than this does not compute.
const IDLE_SHARE: f64 = 0.05;
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(400);

pub(crate) struct Life<L> {
    pub what: L,
    program: EngineProgram,
    policy: RestartPolicy,
    shared: Arc<SupervisorShared>,
    /// What to load instead when `what` is given up.
    fallback: Option<fn(&L) -> L>,
    /// Processes so far.
    n_before: u32,
}

/// A process that is ready.
pub(crate) struct ReadyChild {
    pub limits: Limits,
    process: Process,
    patience: StepPatience,
}

/// Whether an engine gets on with its work.
struct StepProgress {
    patience: StepPatience,
    /// What changes with every step.
    mark: (u64, u64, u64),
    since: Instant,
    /// Since when it uses next to no processor time.
    idle_since: Instant,
    /// When its processor time was last looked at, and what it was.
    looked: (Instant, Duration),
}

impl<L: Serialize> Life<L> {
    pub fn new(
        program: EngineProgram,
        policy: RestartPolicy,
        what: LoadChoice<L>,
        shared: Arc<SupervisorShared>,
    ) -> Self {
        Self { what: what.first, fallback: what.fallback, program, policy, shared, n_before: 0 }
    }

    /// Starts a process and waits until it is ready, or dead.
    pub fn bring_up<R: DeserializeOwned>(&mut self) -> Result<(ReadyChild, R), Death> {
        let on_notice = Arc::clone(&self.shared.on_notice);
        let spawned = Process::spawn(&self.program, self.policy.silence, move |line| on_notice(&Notice::Stderr(line)));
        let mut process = spawned.map_err(|error| Death {
            ending: DeathCause::NotStarted(error.to_string()),
            stderr: Vec::new(),
            activity: "before it began".to_owned(),
            age: Duration::ZERO,
        })?;
        let mut activity = "starting".to_owned();
        self.shared.watch.lock().pid = Some(process.id());
        self.shared.watch.lock().phase = Phase::Loading(activity.clone());
        let outcome = self.load(&mut process, &mut activity);
        self.n_before += 1;
        match outcome {
            Ok((limits, patience, about)) => Ok((ReadyChild { limits, process, patience }, about)),
            Err(ending) => Err(self.end_process(process, ending, format!("while loading: {activity}"))),
        }
    }

    fn load<R: DeserializeOwned>(
        &self,
        process: &mut Process,
        activity: &mut String,
    ) -> Result<(Limits, StepPatience, R), Option<DeathCause>> {
        match read::<R>(process)? {
            FromChild::Hello { version: VERSION, build } if build == self.program.build => {}
            FromChild::Hello { version, build } => {
                let why = format!(
                    "it is build {build} with protocol {version}, this is {} with {VERSION}",
                    self.program.build
                );
                return Err(Some(DeathCause::Protocol(why)));
            }
            _ => return Err(Some(DeathCause::Protocol("it did not say hello".to_owned()))),
        }
        let load = ToChild::Load { what: &self.what, n_before: self.n_before };
        let written = frame::write(&mut process.socket(), &load);
        written.map_err(|error| match error {
            FrameError::Codec(_) | FrameError::TooLong { .. } => Some(DeathCause::Refused(error.to_string())),
            _ => None,
        })?;
        loop {
            if self.shared.lock().closing_since.is_some() {
                return Err(Some(DeathCause::Refused("the supervisor is stopping".to_owned())));
            }
            match read::<R>(process)? {
                FromChild::Progress(text) => {
                    activity.clone_from(&text);
                    self.shared.watch.lock().phase = Phase::Loading(text.clone());
                    (self.shared.on_notice)(&Notice::Progress(text));
                }
                FromChild::Report(_) | FromChild::Started(_) => {}
                FromChild::Ready { about, limits, patience } => return Ok((limits, patience, about)),
                FromChild::Refused(why) => return Err(Some(DeathCause::Refused(why))),
                FromChild::Fault(why) => return Err(Some(DeathCause::Fault(why))),
                FromChild::Hello { .. } => return Err(Some(DeathCause::Protocol("it said hello twice".to_owned()))),
            }
        }
    }

    /// The first process that is ready. One that dies before is followed by another, as often as the policy allows; what
    /// cannot be loaded or started at all is not tried again.
    pub fn first_up<R: DeserializeOwned>(&mut self) -> Result<(ReadyChild, R), StartError> {
        let mut n_in_vain = 0;
        loop {
            let death = match self.bring_up::<R>() {
                Ok(up) => return Ok(up),
                Err(death) => death,
            };
            match death.ending {
                DeathCause::Refused(why) => return Err(StartError::Refused(why)),
                DeathCause::NotStarted(_) | DeathCause::Protocol(_) => return Err(StartError::Died(death.to_string())),
                DeathCause::Exited { .. } | DeathCause::Hung(_) | DeathCause::Fault(_) => {}
            }
            n_in_vain += 1;
            match self.record_death(death, n_in_vain) {
                Some(wait) => thread::sleep(wait),
                None => {
                    let why = self.shared.lock().unavailable.clone();
                    return Err(StartError::Died(why.unwrap_or_else(|| "it died too often".to_owned())));
                }
            }
        }
    }

    /// Until the supervisor stops or gives up.
    pub fn run<R: DeserializeOwned>(mut self, up: ReadyChild, shared_stats: &SharedStats) {
        let (limits, mut up) = (up.limits, Some(up));
        let mut died_at = None;
        let mut n_in_vain = 0;
        loop {
            let outcome = match up.take() {
                Some(up) => Ok(up),
                None => self.bring_up::<R>().map(|(up, _)| up),
            };
            let death = match outcome {
                Ok(up) if up.limits.cover(&limits) => {
                    match self.watch(up, shared_stats, died_at.take(), &mut n_in_vain) {
                        Some(death) => death,
                        None => return,
                    }
                }
                Ok(up) => {
                    let other = DeathCause::Refused("it came back with other limits".to_owned());
                    self.end_process(up.process, Some(other), "after loading".to_owned())
                }
                Err(death) => death,
            };
            if self.shared.lock().closing_since.is_some() {
                return;
            }
            died_at.get_or_insert_with(Instant::now);
            n_in_vain += 1;
            match self.record_death(death, n_in_vain) {
                Some(wait) if self.pause(wait) => {}
                _ => return,
            }
        }
    }

    /// Gives a process everything there is to do, and passes on what it says. `None`: the supervisor stops.
    fn watch(
        &self,
        mut up: ReadyChild,
        shared_stats: &SharedStats,
        died_at: Option<Instant>,
        n_in_vain: &mut u32,
    ) -> Option<Death> {
        let mut state = self.shared.lock();
        // A socket that cannot be cloned is as good as closed.
        state.writer = up.process.socket().try_clone().ok();
        (state.verdict, self.shared.watch.lock().phase) = (None, Phase::Running);
        let commands = state.ledger.engine_up();
        let n_requests = state.ledger.len();
        state.send::<L>(commands);
        drop(state);
        if let Some(died_at) = died_at {
            (self.shared.on_notice)(&Notice::Resumed { n_requests, after: died_at.elapsed() });
        }
        let mut progress = StepProgress::new(up.patience);
        let mut last = Stats::default();
        let ending = loop {
            let report = match read::<serde::de::IgnoredAny>(&mut up.process) {
                Ok(FromChild::Report(report)) => report,
                Ok(FromChild::Started(id)) => {
                    self.shared.lock().ledger.started(id);
                    continue;
                }
                Ok(FromChild::Fault(why)) => break Some(DeathCause::Fault(why)),
                Ok(_) => break Some(DeathCause::Protocol("it repeated its introduction".to_owned())),
                Err(ending) => break ending,
            };
            if !report.events.is_empty() {
                *n_in_vain = 0;
            }
            last = report.stats.clone();
            match self.pass_on(report, shared_stats, &mut progress) {
                Ok(()) => {}
                Err(ending) => break Some(ending),
            }
        };
        // Its cache is gone with it.
        shared_stats.kv_log.push(vec![KvEvent::Cleared]);
        let mut state = self.shared.lock();
        state.writer = None;
        let ending = state.verdict.take().or(ending);
        add_counters(&mut state.past, &last);
        let (n_running, n_steps) = (state.ledger.n_started(), last.n_steps);
        let is_closing = state.closing_since.is_some();
        drop(state);
        if is_closing {
            if ending.is_none() {
                up.process.end_within(TIME_TO_END);
            }
            return None;
        }
        Some(self.end_process(up.process, ending, format!("after step {n_steps} with {n_running} requests running")))
    }

    fn pass_on(
        &self,
        report: Report,
        shared_stats: &SharedStats,
        progress: &mut StepProgress,
    ) -> Result<(), DeathCause> {
        let Report { events, stats, kv_events, cpu_time } = report;
        shared_stats.kv_log.push(kv_events);
        let mut state = self.shared.lock();
        for event in events {
            let commands = state.ledger.pass_on(event).map_err(|fault| match fault {
                ProtocolFault::Forward(why) => DeathCause::Fault(why),
                fault => DeathCause::Protocol(fault.to_string()),
            })?;
            state.send::<L>(commands);
        }
        let n_running = stats.n_running;
        let mut shown = stats.clone();
        add_counters(&mut shown, &state.past);
        shown.n_waiting = state.ledger.len().saturating_sub(n_running);
        shared_stats.publish(shown);
        if state.closing_since.is_some_and(|since| since.elapsed() > TIME_TO_CLOSE) {
            return Err(DeathCause::Hung("it did not stop".to_owned()));
        }
        progress.check(state.ledger.is_working(), &stats, cpu_time, Instant::now())
    }

    /// Ends a process for good and says why it ended. `None`: it ended by itself.
    fn end_process(&self, mut process: Process, ending: Option<DeathCause>, activity: String) -> Death {
        let ending = match ending {
            Some(ending) => {
                process.kill();
                ending
            }
            None => process.end_within(TIME_TO_END),
        };
        Death { ending, stderr: process.last_words(), activity, age: process.born.elapsed() }
    }

    /// What a death means for the requests and for the next process: how long it has to wait, if there is one.
    fn record_death(&mut self, death: Death, n_in_vain: u32) -> Option<Duration> {
        let reason = death.to_string();
        let blame = if self.fallback.is_some() { Blame::Nobody } else { death.blame() };
        let mut state = self.shared.lock();
        let aftermath = state.ledger.engine_down(blame, &reason);
        let now = Instant::now();
        state.deaths.push_back(now);
        if aftermath.n_refused > 0 {
            // These two had a reason, and it is gone.
            state.deaths.pop_back();
            state.deaths.pop_back();
        }
        let window = self.policy.window;
        state.deaths.retain(|&at| now.saturating_duration_since(at) < window);
        let is_over = state.deaths.len() >= self.policy.max_deaths;
        let fallback = self.fallback.take_if(|_| is_over);
        if let Some(fallback) = fallback {
            self.what = fallback(&self.what);
            state.deaths.clear();
        }
        let is_over = is_over && fallback.is_none();
        // The first process in a row that came to nothing is followed at once.
        let wait = match n_in_vain {
            0 | 1 => Duration::ZERO,
            n => FIRST_WAIT.saturating_mul(1 << (n - 2).min(10)).min(LONGEST_WAIT),
        };
        let mut status = self.shared.watch.lock();
        status.n_deaths += 1;
        status.n_resumed += aftermath.n_kept as u64;
        status.n_refused += aftermath.n_refused as u64;
        status.last_death = Some(reason.clone());
        status.has_fallen_back |= fallback.is_some();
        (status.pid, status.phase) = (None, Phase::Waiting(wait));
        let unavailable = is_over.then(|| {
            format!("the engine's process died {} times in {} s: {reason}", state.deaths.len(), window.as_secs())
        });
        if let Some(why) = &unavailable {
            status.phase = Phase::Unavailable(why.clone());
            state.ledger.fail_all(why);
            state.unavailable = Some(why.clone());
        }
        drop((state, status));
        let (n_kept, n_refused) = (aftermath.n_kept, aftermath.n_refused);
        (self.shared.on_notice)(&Notice::Died { death, n_kept, n_refused, wait });
        if fallback.is_some() {
            (self.shared.on_notice)(&Notice::FellBack);
        }
        match unavailable {
            Some(why) => {
                (self.shared.on_notice)(&Notice::Unavailable(why));
                None
            }
            None => Some(wait),
        }
    }

    /// Waits, unless the supervisor stops; says whether to go on.
    fn pause(&self, wait: Duration) -> bool {
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, wait, |state| state.closing_since.is_none());
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.closing_since.is_none()
    }
}

/// The next word; an error is how the process ended, `None` where that is still to be found out.
fn read<R: DeserializeOwned>(process: &mut Process) -> Result<FromChild<R>, Option<DeathCause>> {
    process.reader.read().map_err(|error| match error {
        FrameError::Closed | FrameError::Io(_) => None,
        FrameError::TimedOut => Some(DeathCause::Hung("no sign of life".to_owned())),
        error => Some(DeathCause::Protocol(error.to_string())),
    })
}

fn add_counters(sum: &mut Stats, stats: &Stats) {
    sum.n_steps += stats.n_steps;
    sum.n_preemptions += stats.n_preemptions;
    sum.n_tokens_computed += stats.n_tokens_computed;
    sum.n_tokens_cached += stats.n_tokens_cached;
    sum.n_tokens_generated += stats.n_tokens_generated;
    sum.n_steps_by_rows.iter_mut().zip(stats.n_steps_by_rows).for_each(|(sum, n)| *sum += n);
    sum.n_finished += stats.n_finished;
    sum.n_failed += stats.n_failed;
    sum.drafted += stats.drafted;
    sum.masks += stats.masks;
    sum.n_logits_read += stats.n_logits_read;
    sum.kept.counters += stats.kept.counters;
}

impl StepProgress {
    fn new(patience: StepPatience) -> Self {
        let now = Instant::now();
        Self { patience, mark: (0, 0, 0), since: now, idle_since: now, looked: (now, Duration::ZERO) }
    }

    fn check(&mut self, is_working: bool, stats: &Stats, cpu_time: Duration, now: Instant) -> Result<(), DeathCause> {
        let mark = (stats.n_steps, stats.n_tokens_computed, stats.n_finished + stats.n_failed);
        if !is_working || mark != self.mark {
            (self.mark, self.since, self.idle_since, self.looked) = (mark, now, now, (now, cpu_time));
            return Ok(());
        }
        let (looked_at, cpu_then) = self.looked;
        let waited = now.saturating_duration_since(looked_at);
        if waited >= LOOK {
            let used = cpu_time.saturating_sub(cpu_then).as_secs_f64();
            if used > IDLE_SHARE * waited.as_secs_f64() {
                self.idle_since = now;
            }
            self.looked = (now, cpu_time);
        }
        let still = now.saturating_duration_since(self.since);
        let idle = now.saturating_duration_since(self.idle_since);
        match idle < self.patience.idle && still < self.patience.busy {
            true => Ok(()),
            false => Err(DeathCause::Hung(format!("no step for {:.1} s", still.as_secs_f64()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of reports that come every half second from an engine that has work and finishes no step: after
    /// how many it counts as hung, if it computes for `n_busy` of them.
    fn hung_after(n_busy: u32, n_reports: u32) -> Option<u32> {
        let second = Duration::from_secs(1);
        let mut progress = StepProgress::new(StepPatience { idle: 5 * second, busy: 60 * second });
        let (stats, start) = (Stats { n_steps: 1, ..Stats::default() }, Instant::now());
        (0..n_reports).find(|&n| {
            let (now, cpu_time) = (start + n * second / 2, n.min(n_busy) * second / 2);
            progress.check(true, &stats, cpu_time, now).is_err()
        })
    }

    #[test]
    fn an_engine_that_computes_has_more_time_and_one_that_stops_has_none_of_it_left() {
        assert_eq!(hung_after(0, 1000), Some(10), "five seconds without a step and without work");
        assert_eq!(hung_after(20, 1000), Some(30), "five seconds after it stopped computing");
        assert_eq!(hung_after(1000, 1000), Some(120), "a minute, however it computes");
        assert_eq!(hung_after(1000, 119), None);
    }

    #[test]
    fn an_engine_without_work_never_hangs() {
        let patience = StepPatience { idle: Duration::ZERO, busy: Duration::ZERO };
        let mut progress = StepProgress::new(patience);
        let later = Instant::now() + Duration::from_secs(1000);
        assert_eq!(progress.check(false, &Stats::default(), Duration::ZERO, later), Ok(()));
        let step = Stats { n_steps: 1, ..Stats::default() };
        assert_eq!(progress.check(true, &step, Duration::ZERO, later), Ok(()), "it has made a step");
        assert!(progress.check(true, &step, Duration::ZERO, later).is_err());
    }
}
