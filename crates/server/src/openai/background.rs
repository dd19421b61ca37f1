//! Responses that nobody waits for (`background: true`): a task makes the answer, its events are kept, and a client that asks
//! later sees how far it is, reads the events from any place on, or cancels it.

use super::responses::{self, ResponseFrame, ResponseRequest};
use super::responses_stream::ResponseEncoder;
use super::store::StoredResponse;
use crate::App;
use crate::chat_input;
use crate::error::{ApiError, Result};
use crate::generation::{self, Answers, Caller};
use crate::limits::RequestPlace;
use crate::loaded::Loaded;
use crate::stream::{self, Encoder, Framing, StreamMessage};
use crate::tally::{self, Tally};
use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream as futures;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// An answer that is being made, or was.
#[derive(Debug)]
pub struct BackgroundJob {
    events: Mutex<Vec<Bytes>>,
    /// How many events there are, and whether there will be more.
    progress: watch::Sender<(usize, bool)>,
    task: Mutex<Option<AbortHandle>>,
}

impl BackgroundJob {
    fn new() -> Self {
        Self { events: Mutex::default(), progress: watch::channel((0, false)).0, task: Mutex::default() }
    }

    /// One that was made before the server's start.
    pub fn finished(events: Vec<String>) -> Self {
        let events: Vec<Bytes> = events.into_iter().map(Bytes::from).collect();
        let job = Self::new();
        job.progress.send_replace((events.len(), true));
        *job.events.lock().unwrap_or_else(PoisonError::into_inner) = events;
        job
    }

    /// Its events, if there will be no more.
    pub fn finished_events(&self) -> Option<Vec<String>> {
        let (_, is_done) = *self.progress.borrow();
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        is_done.then(|| events.iter().map(|event| String::from_utf8_lossy(event).into_owned()).collect())
    }

    fn add(&self, messages: &[StreamMessage]) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.extend(messages.iter().map(|message| stream::frame(message, Framing::Events)));
        self.progress.send_replace((events.len(), false));
    }

    /// What its events take.
    pub fn n_bytes(&self) -> usize {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Bytes::len).sum()
    }

    fn finish(&self) {
        self.progress.send_modify(|(_, is_done)| *is_done = true);
    }

    /// Stops it; the engine forgets the request within a step.
    pub fn cancel(&self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        self.finish();
    }

    /// The events from number `first` on, up to the last.
    pub fn stream(self: &Arc<Self>, first: usize) -> Response {
        let state = (Arc::clone(self), self.progress.subscribe(), first);
        let body = futures::unfold(state, |(job, mut progress, at)| async move {
            let (_, is_done) = *progress.wait_for(|&(n, is_done)| n > at || is_done).await.ok()?;
            let event = job.events.lock().unwrap_or_else(PoisonError::into_inner).get(at).cloned();
            match (event, is_done) {
                (Some(event), _) => Some((Ok::<_, Infallible>(event), (job, progress, at + 1))),
                (None, _) => None,
            }
        });
        stream::with_headers(Body::from_stream(body), Framing::Events)
    }
}

/// Keeps the response as it is now and lets a task make the rest. `place` counts against its key until then.
pub fn start(
    app: &Arc<App>,
    model: Arc<Loaded>,
    frame: ResponseFrame,
    answers: Answers,
    has_logprobs: bool,
    place: Option<Arc<RequestPlace>>,
    request: Value,
) -> Arc<BackgroundJob> {
    let job = Arc::new(BackgroundJob::new());
    let guard = app.state.begin_job();
    let (response, input, messages) = (frame.fields.clone(), frame.input.clone(), frame.messages.clone());
    let stored = StoredResponse {
        response,
        input,
        messages,
        group: frame.group,
        job: Some(Arc::clone(&job)),
        request: Some(request),
    };
    app.store.insert(&frame.id, stored);
    let work = work(Arc::clone(app), Arc::clone(&job), model, frame, answers, has_logprobs);
    let task = tokio::spawn(async move {
        work.await;
        drop((place, guard));
    });
    *job.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    job
}

async fn work(
    app: Arc<App>,
    job: Arc<BackgroundJob>,
    model: Arc<Loaded>,
    frame: ResponseFrame,
    mut answers: Answers,
    has_logprobs: bool,
) {
    let (id, group) = (frame.id.clone(), frame.group);
    let mut encoder = ResponseEncoder::new(frame, Arc::clone(&app), model, has_logprobs);
    job.add(&encoder.start());
    let mut is_started = false;
    loop {
        match answers.next().await {
            Ok(Some((choice, update))) => {
                if !std::mem::replace(&mut is_started, true) {
                    app.store.update(&id, group, |stored| stored.response["status"] = "in_progress".into());
                }
                job.add(&encoder.update(choice, update));
            }
            Ok(None) => {
                job.add(&encoder.end());
                break;
            }
            // It is begun again at the next start.
            Err(error) if error.code == Some("server_stopping") && app.disk.is_some() => return,
            Err(error) => {
                job.add(&encoder.error(&error));
                app.store.update(&id, group, |stored| fail(stored, &error));
                break;
            }
        }
    }
    job.finish();
    // With all of its events.
    app.store.update(&id, group, |stored| stored.request = None);
}

/// Begins again what was being made when the server ended.
pub fn resume(app: &Arc<App>) {
    for (id, stored) in app.store.unfinished() {
        let app = Arc::clone(app);
        tokio::spawn(async move {
            let key = stored.request.as_ref().and_then(|request| request["key"].as_str().map(str::to_owned));
            let account = app.gate.usage.account(key.as_deref().unwrap_or_default());
            let tally = Tally::new(key, Some(account));
            let group = stored.group;
            if let Err(error) = tally::within(tally, begin_again(&app, &id, stored)).await {
                tracing::error!(id, error = error.message, "a response could not be begun again");
                app.store.update(&id, group, |stored| fail(stored, &error));
            }
        });
    }
}

async fn begin_again(app: &Arc<App>, id: &str, stored: StoredResponse) -> Result<()> {
    let request = stored.request.unwrap_or_default();
    let body: ResponseRequest = serde_json::from_value(request["body"].clone())
        .map_err(|error| ApiError::internal(format!("the request cannot be read: {error}")))?;
    let caller = Caller { group: stored.group, ..Caller::default() };
    let model = app.models.get(body.model.as_deref().unwrap_or_default()).await?;
    let input = responses::to_chat_input(app, &body, caller)?;
    let has_logprobs = input.logprobs.is_some();
    let (prepared, splitter) = chat_input::prepare(app, &model, input, caller).await?;
    let answers = generation::start(app, &model, &prepared, &splitter)?;
    let frame = ResponseFrame {
        id: id.to_owned(),
        fields: stored.response,
        input: stored.input,
        messages: stored.messages,
        group: stored.group,
        is_kept: true,
    };
    // Its client may have cancelled or deleted it meanwhile.
    if app.store.get(id, stored.group).is_none_or(|stored| stored.request.is_none()) {
        return Ok(());
    }
    tracing::info!(id, "a response is begun again");
    start(app, model, frame, answers, has_logprobs, None, request);
    Ok(())
}

fn fail(stored: &mut StoredResponse, error: &ApiError) {
    stored.response["status"] = "failed".into();
    stored.response["error"] = json!({"code": "server_error", "message": error.message});
}
