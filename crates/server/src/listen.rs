//! Sockets: binds, accepts, serves each connection with its limits, plain or with TLS, and on SIGTERM or Ctrl-C stops
//! accepting and lets the requests in flight end.

use super::connection::{Activity, Connections, Socket, Times, Watched};
use super::{App, health, router};
use crate::hint::HintExt;
use anyhow::{Context, Result, anyhow};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tower::ServiceExt as _;

/// For what answers that are cut still have to say.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Largest request line and headers together.
const MAX_HEADER_BYTES: usize = 64 << 10;

pub struct Listen {
    pub address: SocketAddr,
    pub tls: Option<Tls>,
    pub times: Times,
    pub max_connections: usize,
    /// Of one address.
    pub max_per_peer: usize,
    /// How long `/ready` says no before no more connections are taken.
    pub notice: Duration,
    /// How long requests may go on after that.
    pub drain: Duration,
}

/// Who is at the other end.
#[derive(Copy, Clone, Debug)]
pub struct Peer(pub IpAddr);

#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    pub fn open(cert: &Path, key: &Path) -> Result<Self> {
        let chain: Vec<CertificateDer> = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect)
            .with_context(|| format!("the certificate `{}`", cert.display()))
            .hint("--tls-cert is a PEM file with the certificate chain")?;
        if chain.is_empty() {
            return Err(anyhow!("the certificate `{}`: there is none in the file", cert.display()))
                .hint("--tls-cert is a PEM file with the certificate chain");
        }
        let key = PrivateKeyDer::from_pem_file(key)
            .with_context(|| format!("the private key `{}`", key.display()))
            .hint("--tls-key is a PEM file with the certificate's private key")?;
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("the certificate and the key do not match")?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Takes the address, before anything is loaded. Who connects now waits.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
        .hint("--port 0 picks a free port, --host another address")
}

/// Serves until told to stop, then for at most `drain` longer; told once more, no longer.
pub async fn run(app: Arc<App>, listener: TcpListener, listen: Listen, idle_unload: Option<Duration>) -> Result<()> {
    let address = listener.local_addr()?;
    let service = router(Arc::clone(&app));
    let signs_of_life = health::reserve(Arc::clone(&app));
    let connections = Connections::new(listen.max_connections, listen.max_per_peer);
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop_signal());
    let house = tokio::spawn(keep_house(Arc::clone(&app), idle_unload));
    let mut closing = std::pin::pin!(tokio::time::sleep(Duration::MAX));
    let scheme = if listen.tls.is_some() { "https" } else { "http" };
    eprintln!("listening on {scheme}://{address}");
    loop {
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // Out of file descriptors, or a connection that is gone already: neither ends the server.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => {
                if listen.notice.is_zero() || app.state.is_draining() {
                    break;
                }
                tracing::info!("stopping: no more connections in {} s", listen.notice.as_secs());
                app.state.drain();
                stop.set(stop_signal());
                closing.as_mut().reset(tokio::time::Instant::now() + listen.notice);
                continue;
            }
            () = &mut closing => break,
        };
        let place = connections.admit(address.ip());
        if place.is_reserve {
            tracing::warn!(peer = %address.ip(), "too many connections: one more is told only whether the server lives");
        }
        let _ = stream.set_nodelay(true);
        let (service, times) = match place.is_reserve {
            true => (signs_of_life.clone(), listen.times.short()),
            false => (service.clone(), listen.times),
        };
        let (tls, watcher) = (listen.tls.clone(), graceful.watcher());
        tokio::spawn(async move {
            let activity = &place.activity;
            let peer = Peer(address.ip());
            let serving = async {
                match tls {
                    None => serve(stream, service, peer, activity, times, watcher).await,
                    Some(Tls(acceptor)) => {
                        serve(acceptor.accept(stream).await?, service, peer, activity, times, watcher).await
                    }
                }
            };
            let result = tokio::select! {
                result = serving => result,
                why = activity.overdue(&times) => Err(why.into()),
            };
            if let Err(error) = result {
                tracing::debug!(peer = %peer.0, error = %error, "connection ended");
            }
        });
    }
    drop(listener);
    house.abort();
    app.state.drain();
    tracing::info!("stopping: requests in flight may go on for {} s", listen.drain.as_secs());
    let mut done = std::pin::pin!(graceful.shutdown());
    tokio::select! {
        () = &mut done => return Ok(()),
        () = tokio::time::sleep(listen.drain) => {
            tracing::warn!("requests still ran after {} s and were cut", listen.drain.as_secs());
        }
        () = stop_signal() => tracing::warn!("told to stop once more: requests still ran and were cut"),
    }
    // Streams end with an error that says why.
    app.state.cut();
    let _ = tokio::time::timeout(LAST_WORDS, done).await;
    Ok(())
}

async fn serve<S>(
    stream: S,
    service: Router,
    peer: Peer,
    activity: &Arc<Activity>,
    times: Times,
    watcher: hyper_util::server::graceful::Watcher,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // It would also end idle connections; `Activity::overdue` bounds both.
        .header_read_timeout(None)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(128);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .max_concurrent_streams(128)
        // Finds out when the other end is gone without a word.
        .keep_alive_interval(times.idle)
        .keep_alive_timeout(times.read);
    let watched = Arc::clone(activity);
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        let (service, request_in_flight) = (service.clone(), watched.begin());
        request.extensions_mut().insert(peer);
        async move {
            let Ok(response) = service.oneshot(request).await;
            Ok::<_, Infallible>(response.map(|body| Watched { body, request: request_in_flight }))
        }
    });
    let socket = Socket { stream, activity: Arc::clone(activity) };
    let connection = builder.serve_connection(TokioIo::new(socket), service);
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
