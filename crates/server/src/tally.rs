//! What a request has cost so far: for its log line and its key's account, whether it ends well or its client gives up.
//! Set around a request by the gate; whatever generates for it finds it.

use super::metrics;
use super::models::now_s;
use super::usage::{Account, Counts};
use axum::http::HeaderValue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

tokio::task_local! {
    static CURRENT: Arc<Tally>;
}

#[derive(Debug, Default)]
pub struct Tally {
    /// Whose request it is, where keys are asked for.
    key: Option<String>,
    account: Option<Arc<Account>>,
    n_prompt: AtomicU64,
    n_generated: AtomicU64,
    /// Fields of the body that were not known.
    ignored: Mutex<Vec<String>>,
}

impl Tally {
    pub fn new(key: Option<String>, account: Option<Arc<Account>>) -> Arc<Self> {
        Arc::new(Self { key, account, ..Self::default() })
    }

    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Tokens that were computed.
    pub fn add(&self, n_prompt: usize, n_generated: usize) {
        self.n_prompt.fetch_add(n_prompt as u64, Ordering::Relaxed);
        self.n_generated.fetch_add(n_generated as u64, Ordering::Relaxed);
        if let Some(key) = &self.key {
            metrics::key_tokens(key, n_prompt, n_generated);
        }
        if let Some(account) = &self.account {
            let (prompt_tokens, generated_tokens) = (n_prompt as u64, n_generated as u64);
            account.add(Counts { requests: 0, prompt_tokens, generated_tokens }, now_s());
        }
    }

    /// The request is over.
    pub fn end(&self) {
        if let Some(account) = &self.account {
            account.add(Counts { requests: 1, ..Counts::default() }, now_s());
        }
    }

    pub fn ignore(&self, fields: Vec<String>) {
        self.ignored.lock().unwrap_or_else(PoisonError::into_inner).extend(fields);
    }

    /// As a header's value.
    pub fn ignored(&self) -> Option<HeaderValue> {
        let ignored = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        (!ignored.is_empty()).then(|| HeaderValue::from_str(&ignored.join(", ")).ok()).flatten()
    }

    /// Of the prompt, and generated.
    pub fn counts(&self) -> (u64, u64) {
        (self.n_prompt.load(Ordering::Relaxed), self.n_generated.load(Ordering::Relaxed))
    }
}

/// Runs the work of a request.
pub async fn within<F: Future>(tally: Arc<Tally>, work: F) -> F::Output {
    CURRENT.scope(tally, work).await
}

/// That of the request this task works for.
pub fn current() -> Option<Arc<Tally>> {
    CURRENT.try_with(Arc::clone).ok()
}
