//! What a caller hears while a model is fetched. Terminals draw a bar of it, servers send it to their client.

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum PullEvent<'a> {
    /// A sentence for people: what was chosen and why, a source that was skipped, a connection that broke.
    Note(&'a str),
    /// A file begins to arrive.
    Begin {
        /// The model, as a person calls it.
        label: &'a str,
        /// Of the whole model, however many parts it has.
        n_total: Option<u64>,
        host: &'a str,
        /// SHA-256 of the file, where the source tells it.
        digest: Option<&'a str>,
    },
    /// Bytes of the whole model that are here.
    Progress { n_done: u64, n_total: Option<u64> },
    /// The bytes are here, and their checksum is right.
    End,
}

/// Receives progress reports.
pub trait Observer: Sync {
    fn on(&self, event: PullEvent<'_>);

    /// Asked between pieces of a download: `true` ends it. What has arrived is kept.
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl<F: Fn(PullEvent<'_>) + Sync> Observer for F {
    fn on(&self, event: PullEvent<'_>) {
        self(event);
    }
}

/// Ignores all reports.
#[derive(Debug, Clone, Copy)]
pub struct SilentObserver;

impl Observer for SilentObserver {
    fn on(&self, _: PullEvent<'_>) {}
}
