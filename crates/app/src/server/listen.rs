//! Sockets: binds, accepts, serves each connection with its limits, and on SIGTERM or Ctrl-C stops accepting and lets
//! the requests in flight end.

use super::{App, router};
use anyhow::{Context, Result};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Serves until told to stop, then for at most `drain` longer.
pub async fn run(app: Arc<App>, address: SocketAddr, drain: Duration) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    let service = router(app);
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop_signal());
    eprintln!("listening on http://{address}");
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // Out of file descriptors, or a connection that is gone already: neither ends the server.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let _ = stream.set_nodelay(true);
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(30)).max_buf_size(64 << 10);
        builder.http2().timer(TokioTimer::new()).max_header_list_size(64 << 10);
        let connection =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service.clone())).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "connection ended");
            }
        });
    }
    drop(listener);
    eprintln!("stopping: waiting for requests in flight");
    if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still running after {} s", drain.as_secs());
    }
    Ok(())
}

async fn stop_signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                tokio::select! { _ = interrupt => {}, _ = terminate.recv() => {} }
            }
            Err(_) => drop(interrupt.await),
        }
    }
    #[cfg(not(unix))]
    drop(interrupt.await);
}
