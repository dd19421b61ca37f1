//! What systemd is told: that the server is ready, reads its settings again or stops, and that it lives (the watchdog).
//! Sockets that systemd opened (socket activation) are taken over. Elsewhere all of this does nothing.

#[cfg(target_os = "linux")]
mod real {
    use sd_notify::NotifyState;

    fn tell(states: &[NotifyState]) {
        // Without systemd there is nobody to tell.
        let _ = sd_notify::notify(states);
    }

    pub fn ready() {
        tell(&[NotifyState::Ready]);
    }

    pub fn reloading() {
        let mut states = vec![NotifyState::Reloading];
        states.extend(NotifyState::monotonic_usec_now());
        tell(&states);
    }

    pub fn stopping() {
        tell(&[NotifyState::Stopping]);
    }

    /// How often systemd wants to hear from us at the latest, and a way to say it.
    pub fn watchdog() -> Option<std::time::Duration> {
        sd_notify::watchdog_enabled()
    }

    pub fn alive() {
        tell(&[NotifyState::Watchdog]);
    }

    /// The first socket that systemd opened for us.
    pub fn socket() -> std::io::Result<Option<std::net::TcpListener>> {
        let mut sockets = listenfd::ListenFd::from_env();
        if sockets.len() == 0 { Ok(None) } else { sockets.take_tcp_listener(0) }
    }
}

#[cfg(not(target_os = "linux"))]
mod real {
    pub fn ready() {}

    pub fn reloading() {}

    pub fn stopping() {}

    pub fn watchdog() -> Option<std::time::Duration> {
        None
    }

    pub fn alive() {}

    pub fn socket() -> std::io::Result<Option<std::net::TcpListener>> {
        Ok(None)
    }
}

pub use real::{alive, ready, reloading, socket, stopping, watchdog};

/// Says that the server lives, as long as the runtime makes progress: a server whose threads are stuck says nothing.
pub async fn keep_alive() {
    let Some(limit) = watchdog() else { return };
    let mut tick = tokio::time::interval(limit / 3);
    loop {
        tick.tick().await;
        alive();
    }
}
