//! Sockets: binds, accepts, serves each connection with its limits, plain or with TLS, and on SIGTERM or Ctrl-C stops
//! accepting and lets the requests in flight end.

use super::connection::{Activity, ConnectionPlace, Connections, Socket, Timeouts, WatchedBody};
use super::{App, health, reload, router, systemd};
use crate::hint::HintExt;
use anyhow::{Context, Result, anyhow};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tower::ServiceExt as _;

/// For what answers that are cut still have to say.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often `keep_up` runs.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// After so many of them, what keys have used is written to the disk.
const USAGE_TICKS: u64 = 10;
/// Largest request line and headers together.
const MAX_HEADER_BYTES: usize = 64 << 10;

pub struct Listen {
    pub address: SocketAddr,
    pub tls: Option<Tls>,
    pub times: Timeouts,
    pub max_connections: usize,
    /// Of one address.
    pub max_per_peer: usize,
    /// How long `/ready` says no before no more connections are taken.
    pub notice: Duration,
    /// How long requests may go on after that.
    pub drain: Duration,
    /// Reads the keys and limits again when SIGHUP comes.
    pub reader: Option<reload::SettingsReader>,
}

/// Who is at the other end.
#[derive(Copy, Clone, Debug)]
pub struct Peer(pub IpAddr);

/// The certificate, which can be read again while connections use it.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    certificate: Arc<Certificate>,
}

#[derive(Debug)]
struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    /// When the files were last written, as far as it is known.
    written: Mutex<[Option<SystemTime>; 2]>,
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Certificate {
    fn written(&self) -> [Option<SystemTime>; 2] {
        [&self.cert, &self.key].map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
    }
}

impl Tls {
    pub fn open(cert: &Path, key: &Path) -> Result<Self> {
        let current = RwLock::new(Arc::new(certified_key(cert, key)?));
        let certificate =
            Arc::new(Certificate { cert: cert.to_owned(), key: key.to_owned(), current, written: Mutex::default() });
        *certificate.written.lock().unwrap_or_else(PoisonError::into_inner) = certificate.written();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&certificate) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }

    /// Whether the files are others than those that were read last.
    pub fn has_changed(&self) -> bool {
        let written = self.certificate.written();
        written != *self.certificate.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files again; new connections use what is in them.
    pub fn reload(&self) -> Result<()> {
        let Certificate { cert, key, current, written } = &*self.certificate;
        // Files that are no good are not read again until they change.
        *written.lock().unwrap_or_else(PoisonError::into_inner) = self.certificate.written();
        let fresh = Arc::new(certified_key(cert, key)?);
        *current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(tokio_rustls::rustls::crypto::ring::default_provider())
}

fn certified_key(cert: &Path, key: &Path) -> Result<CertifiedKey> {
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
    CertifiedKey::from_der(chain, key, &provider()).context("the certificate and the key do not match")
}

/// Takes the address, or the socket that systemd opened, before anything is loaded. Who connects now waits.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    if let Some(socket) = systemd::socket().context("the socket that systemd opened cannot be used")? {
        socket.set_nonblocking(true)?;
        return TcpListener::from_std(socket).context("the socket that systemd opened cannot be used");
    }
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
        .hint("--port 0 picks a free port, --host another address")
}

/// Serves until told to stop, then for at most `drain` longer; told once more, no longer.
pub async fn run(app: Arc<App>, listener: TcpListener, mut listen: Listen) -> Result<()> {
    let address = listener.local_addr()?;
    let service = router(Arc::clone(&app));
    let signs_of_life = health::reserve(Arc::clone(&app));
    let connections = Connections::new(listen.max_connections, listen.max_per_peer);
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop_signal());
    let upkeep = [
        tokio::spawn(keep_up(Arc::clone(&app))),
        tokio::spawn(reload::watch(Arc::clone(&app), listen.tls.clone(), listen.reader.take())),
        tokio::spawn(systemd::keep_alive()),
        tokio::spawn(super::library::find_digests(Arc::clone(&app.models))),
    ];
    super::openai::background::resume(&app);
    let mut closing = std::pin::pin!(tokio::time::sleep(Duration::MAX));
    let scheme = if listen.tls.is_some() { "https" } else { "http" };
    eprintln!("listening on {scheme}://{address}");
    systemd::ready();
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
        let accepted = Accepted { stream, peer: Peer(address.ip()), place, tls: listen.tls.clone(), times };
        tokio::spawn(accepted.answer(service, graceful.watcher()));
    }
    drop(listener);
    systemd::stopping();
    app.state.drain();
    let outcome = drain(&app, graceful, listen.drain).await;
    upkeep.iter().for_each(tokio::task::JoinHandle::abort);
    app.save_usage();
    outcome
}

/// Waits for what is in flight, but not for ever.
async fn drain(app: &App, graceful: GracefulShutdown, limit: Duration) -> Result<()> {
    tracing::info!("stopping: requests in flight may go on for {} s", limit.as_secs());
    let mut done = std::pin::pin!(async {
        graceful.shutdown().await;
        // What is on disk is begun again at the next start.
        if app.disk.is_none() {
            app.state.jobs_done().await;
        }
    });
    tokio::select! {
        () = &mut done => return Ok(()),
        () = tokio::time::sleep(limit) => {
            tracing::warn!("requests still ran after {} s and were cut", limit.as_secs());
        }
        () = stop_signal() => tracing::warn!("told to stop once more: requests still ran and were cut"),
    }
    // Streams end with an error that says why.
    app.state.cut();
    let _ = tokio::time::timeout(LAST_WORDS, done).await;
    Ok(())
}

/// A connection that was just made.
struct Accepted {
    stream: TcpStream,
    peer: Peer,
    place: ConnectionPlace,
    tls: Option<Tls>,
    times: Timeouts,
}

impl Accepted {
    /// Answers its requests until it is closed or takes too long.
    async fn answer(self, service: Router, watcher: hyper_util::server::graceful::Watcher) {
        let Self { stream, peer, place, tls, times } = self;
        let activity = &place.activity;
        let serving = async {
            match tls {
                None => serve(stream, service, peer, activity, times, watcher).await,
                Some(Tls { acceptor, .. }) => {
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
    }
}

async fn serve<S>(
    stream: S,
    service: Router,
    peer: Peer,
    activity: &Arc<Activity>,
    times: Timeouts,
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
        let mut request_in_flight = watched.begin(request.version() < hyper::Version::HTTP_2);
        let service = service.clone();
        request.extensions_mut().insert(peer);
        async move {
            let Ok(response) = service.oneshot(request).await;
            request_in_flight.answered();
            Ok::<_, Infallible>(response.map(|body| WatchedBody { body, request: request_in_flight }))
        }
    });
    let socket = Socket::new(stream, Arc::clone(activity));
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    watcher.watch(connection.into_owned()).await
}

/// What has to be done now and then. A task of its own: it may wait for a model that is being loaded.
async fn keep_up(app: Arc<App>) {
    let idle = app.models.idle_unload().map_or(UPKEEP_INTERVAL, |idle| (idle / 2).min(UPKEEP_INTERVAL));
    let mut tick = tokio::time::interval(idle);
    let mut n_ticks = 0_u64;
    loop {
        tick.tick().await;
        if let Some(metrics) = &app.metrics {
            metrics.run_upkeep();
        }
        app.models.unload_idle().await;
        if n_ticks.is_multiple_of(USAGE_TICKS) {
            app.save_usage();
        }
        n_ticks += 1;
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
