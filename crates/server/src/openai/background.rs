//! Responses that nobody waits for (`background: true`): a task makes the answer, its events are kept, and whoever asks
//! later sees how far it is, reads the events from any place on, or cancels it.

use super::responses::Frame;
use super::responses_stream::ResponseEncoder;
use super::store::Stored;
use crate::App;
use crate::error::ApiError;
use crate::generation::Answers;
use crate::limits::Place;
use crate::loaded::Loaded;
use crate::stream::{self, Encoder, Framing, Message};
use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream as futures;
use serde_json::json;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// An answer that is being made, or was.
#[derive(Debug)]
pub struct Job {
    events: Mutex<Vec<Bytes>>,
    /// How many events there are, and whether there will be more.
    progress: watch::Sender<(usize, bool)>,
    task: Mutex<Option<AbortHandle>>,
}

impl Job {
    fn add(&self, messages: &[Message]) {
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
    frame: Frame,
    answers: Answers,
    has_logprobs: bool,
    place: Option<Arc<Place>>,
) -> Arc<Job> {
    let job =
        Arc::new(Job { events: Mutex::default(), progress: watch::channel((0, false)).0, task: Mutex::default() });
    let (response, input, messages) = (frame.fields.clone(), frame.input.clone(), frame.messages.clone());
    let stored = Stored { response, input, messages, group: frame.group, job: Some(Arc::clone(&job)) };
    app.store.insert(&frame.id, stored);
    let work = work(Arc::clone(app), Arc::clone(&job), model, frame, answers, has_logprobs);
    let task = tokio::spawn(async move {
        work.await;
        drop(place);
    });
    *job.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    job
}

async fn work(
    app: Arc<App>,
    job: Arc<Job>,
    model: Arc<Loaded>,
    frame: Frame,
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
            Err(error) => {
                job.add(&encoder.error(&error));
                app.store.update(&id, group, |stored| fail(stored, &error));
                break;
            }
        }
    }
    job.finish();
}

fn fail(stored: &mut Stored, error: &ApiError) {
    stored.response["status"] = "failed".into();
    stored.response["error"] = json!({"code": "server_error", "message": error.message});
}
