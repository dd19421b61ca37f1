//! Settings that change while the server runs: on SIGHUP, the keys and limits, the certificate and the audit log's file
//! are read again; a certificate also when its file changes. What cannot be read is told in the log, and what was before
//! stays.

use super::App;
use super::keys::Keys;
use super::listen::Tls;
use std::sync::Arc;
use std::time::Duration;

/// How often the certificate's files are looked at.
const CERTIFICATE_CHECK: Duration = Duration::from_secs(10);

/// The settings that a reload replaces.
pub struct ReloadedSettings {
    pub keys: Keys,
    pub rate: Option<u32>,
    pub concurrent: Option<u32>,
}

/// Reads the settings again, as at the start.
pub type SettingsReader = Box<dyn Fn() -> anyhow::Result<ReloadedSettings> + Send + Sync>;

/// Runs as long as the server. From the moment of this call SIGHUP no longer ends the process, whenever the future is
/// first polled.
pub fn watch(app: Arc<App>, tls: Option<Tls>, reader: Option<SettingsReader>) -> impl Future<Output = ()> {
    let hangups = hangups();
    watch_until_the_end(app, tls, reader, hangups)
}

async fn watch_until_the_end(
    app: Arc<App>,
    tls: Option<Tls>,
    reader: Option<SettingsReader>,
    mut hangups: HangupSignals,
) {
    let mut tick = tokio::time::interval(CERTIFICATE_CHECK);
    loop {
        tokio::select! {
            _ = tick.tick() => if let Some(tls) = tls.as_ref().filter(|tls| tls.has_changed()) {
                reload_tls(tls);
            },
            Some(()) = hangups.recv() => {
                super::systemd::reloading();
                reload(&app, tls.as_ref(), reader.as_ref());
                super::systemd::ready();
            }
        }
    }
}

fn reload(app: &App, tls: Option<&Tls>, reader: Option<&SettingsReader>) {
    if let Some(reader) = reader {
        match reader() {
            Ok(fresh) => {
                let n_keys = fresh.keys.all().len();
                app.gate.reload(fresh.keys, fresh.rate, fresh.concurrent);
                tracing::info!(n_keys, "keys and limits were read again");
            }
            Err(error) => tracing::error!("keys and limits stay as they are: {error:#}"),
        }
    }
    if let Some(Err(error)) = app.gate.audit.as_ref().map(super::audit::Audit::reopen) {
        tracing::error!("{error:#}");
    }
    if let Some(tls) = tls {
        reload_tls(tls);
    }
}

fn reload_tls(tls: &Tls) {
    match tls.reload() {
        Ok(()) => tracing::info!("the certificate was read again"),
        Err(error) => tracing::error!("the certificate stays as it is: {error:#}"),
    }
}

#[cfg(unix)]
struct HangupSignals(Option<tokio::signal::unix::Signal>);

#[cfg(unix)]
fn hangups() -> HangupSignals {
    use tokio::signal::unix::{SignalKind, signal};
    HangupSignals(signal(SignalKind::hangup()).ok())
}

#[cfg(unix)]
impl HangupSignals {
    async fn recv(&mut self) -> Option<()> {
        match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(not(unix))]
struct HangupSignals;

#[cfg(not(unix))]
fn hangups() -> HangupSignals {
    HangupSignals
}

#[cfg(not(unix))]
impl HangupSignals {
    async fn recv(&mut self) -> Option<()> {
        std::future::pending().await
    }
}
