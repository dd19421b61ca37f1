//! Sockets: binds, accepts, serves each connection with its limits, plain or with TLS, and on SIGTERM or Ctrl-C stops
//! accepting and lets the requests in flight end.

use super::{App, router};
use crate::report::HintExt;
use anyhow::{Context, Result, anyhow};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Largest request line and headers together.
const MAX_HEADER_BYTES: usize = 64 << 10;

pub struct Listen {
    pub address: SocketAddr,
    pub tls: Option<Tls>,
    /// For a TLS handshake, and for a request's headers.
    pub read_time: Duration,
    pub max_connections: usize,
    /// How long requests may go on after the signal to stop.
    pub drain: Duration,
}

#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    pub fn open(cert: &Path, key: &Path) -> Result<Self> {
        let chain: Vec<CertificateDer> = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect)
            .with_context(|| format!("the certificate `{}`", cert.display()))
            .hint("--tls-cert is a PEM file with the certificate and those that vouch for it")?;
        if chain.is_empty() {
            return Err(anyhow!("the certificate `{}`: there is none in the file", cert.display()))
                .hint("--tls-cert is a PEM file with the certificate and those that vouch for it");
        }
        let key = PrivateKeyDer::from_pem_file(key)
            .with_context(|| format!("the private key `{}`", key.display()))
            .hint("--tls-key is a PEM file with the certificate's private key")?;
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("the certificate and the key do not go together")?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Takes the address, before anything is loaded. Who connects now waits.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
        .hint("--port 0 takes a free port, --host another address")
}

/// Serves until told to stop, then for at most `drain` longer; told once more, no longer.
pub async fn run(app: Arc<App>, listener: TcpListener, listen: Listen, idle_unload: Option<Duration>) -> Result<()> {
    let address = listener.local_addr()?;
    let service = router(Arc::clone(&app));
    let places = Arc::new(Semaphore::new(listen.max_connections));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop_signal());
    let house = tokio::spawn(keep_house(Arc::clone(&app), idle_unload));
    let scheme = if listen.tls.is_some() { "https" } else { "http" };
    eprintln!("listening on {scheme}://{address}");
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
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!("{} connections are open: one more was closed", listen.max_connections);
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (service, tls, read_time) = (service.clone(), listen.tls.clone(), listen.read_time);
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            let _place = place;
            let result = match tls {
                None => serve(stream, service, read_time, watcher).await,
                Some(Tls(acceptor)) => match tokio::time::timeout(read_time, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => serve(stream, service, read_time, watcher).await,
                    Ok(Err(error)) => Err(error.into()),
                    Err(late) => Err(late.into()),
                },
            };
            if let Err(error) = result {
                tracing::debug!(error = %error, "connection ended");
            }
        });
    }
    drop(listener);
    house.abort();
    app.state.drain();
    tracing::info!("stopping: requests in flight may go on for {} s", listen.drain.as_secs());
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(listen.drain) => {
            tracing::warn!("requests still ran after {} s and were cut", listen.drain.as_secs());
        }
        () = stop_signal() => tracing::warn!("told to stop once more: requests still ran and were cut"),
    }
    Ok(())
}

async fn serve<S>(
    stream: S,
    service: Router,
    read_time: Duration,
    watcher: hyper_util::server::graceful::Watcher,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(read_time)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(128);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(MAX_HEADER_BYTES as u32).max_concurrent_streams(128);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    watcher.watch(connection.into_owned()).await
}

/// What has to be done now and then. A task of its own: it may wait for a model that is being loaded.
async fn keep_house(app: Arc<App>, idle_unload: Option<Duration>) {
    let often = Duration::from_secs(5);
    let mut tick = tokio::time::interval(idle_unload.map_or(often, |idle| (idle / 2).min(often)));
    loop {
        tick.tick().await;
        if let Some(metrics) = &app.metrics {
            metrics.run_upkeep();
        }
        if let Some(idle) = idle_unload {
            app.models.unload_idle(idle).await;
        }
    }
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
