//! What connections are doing, and how long they may do nothing. Every state has a deadline: nothing sent yet, half a
//! preface or half a header, idle between requests, an answer that nobody reads. A request in flight has its own
//! limits elsewhere. When all places are taken, the connection that has been idle longest makes room; where none is
//! idle, a reserve still answers signs of life.

use axum::body::{Body, Bytes, HttpBody};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Connections beyond the limit that are told whether the server lives, and nothing else.
const N_RESERVE: usize = 32;

/// A connection that is younger may be about to send its request, and is not made to leave.
const GRACE: Duration = Duration::from_millis(250);

/// An answer that is over is flushed within this time, unless the socket takes no more, which is noted by itself.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// How often a client that has closed its half is told that it is being answered, and what.
const HALF_CLOSED_PROBE: Duration = Duration::from_millis(250);
const PROCESSING: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";

/// How long a connection may stay in a state.
#[derive(Copy, Clone, Debug)]
pub struct Timeouts {
    /// Until its first request is there.
    pub read: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// While the client takes nothing of an answer.
    pub write: Duration,
}

impl Timeouts {
    /// For connections of the reserve.
    pub fn short(self) -> Self {
        let short = Duration::from_secs(2);
        Self { read: self.read.min(short), idle: self.idle.min(short), write: self.write.min(short) }
    }

    /// How often a connection is looked at: often enough to meet the shortest of its deadlines.
    fn tick(&self) -> Duration {
        (self.read.min(self.idle).min(self.write) / 4).clamp(Duration::from_millis(50), Duration::from_secs(5))
    }
}

/// What one connection is doing; shared by its socket, its answers and the watchdog.
#[derive(Debug)]
pub struct Activity {
    now: Mutex<ConnectionState>,
    /// It has to make room for another.
    evicted: Notify,
}

#[derive(Debug)]
struct ConnectionState {
    has_asked: bool,
    /// Since when no request is in flight.
    idle_since: Instant,
    /// Since when the socket takes no more.
    blocked_since: Option<Instant>,
    /// Since when there is something that was not flushed to the socket.
    unsent_since: Option<Instant>,
    /// Requests in flight; since when the client left a part of the answer lying.
    requests: BTreeMap<u64, Option<Instant>>,
    next_id: u64,
    /// Requests of HTTP/1 in flight whose answer has not begun: something may still be sent before it.
    n_unanswered: usize,
}

impl Activity {
    fn new() -> Self {
        let now = ConnectionState {
            has_asked: false,
            idle_since: Instant::now(),
            blocked_since: None,
            unsent_since: None,
            requests: BTreeMap::new(),
            next_id: 0,
            n_unanswered: 0,
        };
        Self { now: Mutex::new(now), evicted: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request arrived; `can_be_told`: it is one of HTTP/1.
    pub fn begin(self: &Arc<Self>, can_be_told: bool) -> InFlight {
        let mut now = self.lock();
        now.n_unanswered += usize::from(can_be_told);
        let id = now.next_id;
        (now.next_id, now.has_asked) = (id + 1, true);
        now.requests.insert(id, None);
        InFlight { activity: Arc::clone(self), id, is_unanswered: can_be_told }
    }

    /// Ends when the connection has to: its deadline passed, or it makes room. Says why.
    pub async fn overdue(&self, times: &Timeouts) -> &'static str {
        let mut tick = tokio::time::interval(times.tick());
        loop {
            tokio::select! {
                () = self.evicted.notified() => return "it was idle, and another one wanted its place",
                _ = tick.tick() => if let Some(why) = self.lock().overdue(times) { return why },
            }
        }
    }
}

impl ConnectionState {
    /// Whether the end of an answer is on its way to the client.
    fn is_sending(&self) -> bool {
        let is_unsent = self.unsent_since.is_some_and(|since| since.elapsed() < FLUSH_TIME);
        self.blocked_since.is_some() || is_unsent
    }

    fn overdue(&self, times: &Timeouts) -> Option<&'static str> {
        // One stream that is not read does not end the others of its connection.
        let stalled = self.requests.values().copied().collect::<Option<Vec<_>>>();
        let stalled = stalled.and_then(|all| all.into_iter().max());
        let unread = [stalled, self.blocked_since].into_iter().flatten().min();
        if unread.is_some_and(|since| since.elapsed() >= times.write) {
            return Some("the client read nothing of its answer");
        }
        let limit = if self.has_asked { times.idle } else { times.read };
        let is_idle = self.requests.is_empty() && unread.is_none();
        (is_idle && self.idle_since.elapsed() >= limit).then_some("it sent no request")
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct InFlight {
    activity: Arc<Activity>,
    id: u64,
    is_unanswered: bool,
}

impl InFlight {
    /// Its answer begins.
    pub fn answered(&mut self) {
        if std::mem::take(&mut self.is_unanswered) {
            self.activity.lock().n_unanswered -= 1;
        }
    }

    fn stalled(&self, since: Option<Instant>) {
        self.activity.lock().requests.insert(self.id, since);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.answered();
        let mut now = self.activity.lock();
        now.requests.remove(&self.id);
        now.idle_since = Instant::now();
        // The end of the answer is still in the connection's buffer.
        now.unsent_since = Some(now.idle_since);
    }
}

/// An answer's body that notes when it waits for the client.
pub struct WatchedBody {
    pub body: Body,
    pub request: InFlight,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        // The connection polls again when it wants more; until then the last part is being sent.
        self.request.stalled(matches!(polled, Poll::Ready(Some(_))).then(Instant::now));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// A socket that notes when it takes no more, and that keeps quiet about a client's last byte while it is answered.
///
/// A client that closes its half of the connection looks the same as one that is gone, until something is sent to it.
/// So while an answer has not begun, it is told that its request is being worked on (102, which HTTP/1 clients skip);
/// if it is gone, that fails.
pub struct Socket<S> {
    stream: S,
    activity: Arc<Activity>,
    /// Since the client has closed its half.
    probes: Option<tokio::time::Interval>,
}

impl<S> Socket<S> {
    pub fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity, probes: None }
    }

    fn note<T>(&self, polled: Poll<T>) -> Poll<T> {
        let mut now = self.activity.lock();
        match polled.is_pending() {
            true => _ = now.blocked_since.get_or_insert_with(Instant::now),
            false => now.blocked_since = None,
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.probes.is_none() {
            let n_before = buf.filled().len();
            let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
            let is_end = matches!(polled, Poll::Ready(Ok(()))) && buf.filled().len() == n_before && buf.remaining() > 0;
            if !is_end || self.activity.lock().requests.is_empty() {
                return polled;
            }
        }
        let Self { stream, activity, probes } = &mut *self;
        let probes = probes.get_or_insert_with(|| tokio::time::interval(HALF_CLOSED_PROBE));
        while probes.poll_tick(cx).is_ready() {
            let (is_over, can_be_told) = {
                let now = activity.lock();
                (now.requests.is_empty(), now.n_unanswered > 0)
            };
            if is_over {
                return Poll::Ready(Ok(()));
            }
            if can_be_told && let Poll::Ready(Err(error)) = Pin::new(&mut *stream).poll_write(cx, PROCESSING) {
                return Poll::Ready(Err(error));
            }
            let _ = Pin::new(&mut *stream).poll_flush(cx);
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        if polled.is_ready() {
            self.activity.lock().unsent_since = None;
        }
        self.note(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// All connections, and who has how many.
pub struct Connections {
    open: Mutex<OpenConnections>,
    max: usize,
    /// Of one address.
    max_per_peer: usize,
}

struct OpenConnections {
    by_id: HashMap<u64, OpenConnection>,
    next_id: u64,
    grace: Duration,
}

struct OpenConnection {
    peer: IpAddr,
    is_reserve: bool,
    activity: Arc<Activity>,
}

/// A connection's place, given back when dropped.
pub struct ConnectionPlace {
    connections: Arc<Connections>,
    id: u64,
    pub activity: Arc<Activity>,
    /// Only signs of life are answered.
    pub is_reserve: bool,
}

impl Connections {
    pub fn new(max: usize, max_per_peer: usize) -> Arc<Self> {
        let open = OpenConnections { by_id: HashMap::new(), next_id: 0, grace: GRACE };
        Arc::new(Self { open: Mutex::new(open), max, max_per_peer })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. An idle one may have to leave for it.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> ConnectionPlace {
        let peer = network(peer);
        let mut open = self.lock();
        let full = open.by_id.values().filter(|entry| !entry.is_reserve);
        let (n_all, n_peer) = full.fold((0, 0), |(all, own), entry| (all + 1, own + usize::from(entry.peer == peer)));
        let is_reserve = match (n_peer >= self.max_per_peer, n_all >= self.max) {
            (true, _) => !open.evict(|entry| !entry.is_reserve && entry.peer == peer),
            (false, true) => !open.evict_of_largest(),
            (false, false) => false,
        };
        let n_reserve = open.by_id.values().filter(|entry| entry.is_reserve).count();
        if is_reserve && n_reserve >= N_RESERVE {
            open.evict(|entry| entry.is_reserve);
        }
        let (id, activity) = (open.next_id, Arc::new(Activity::new()));
        open.next_id += 1;
        open.by_id.insert(id, OpenConnection { peer, is_reserve, activity: Arc::clone(&activity) });
        ConnectionPlace { connections: Arc::clone(self), id, activity, is_reserve }
    }

    /// Connections that are open.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().by_id.len()
    }
}

impl OpenConnections {
    /// Closes the wanted connection that has been idle longest; says whether there was one.
    fn evict(&mut self, is_wanted: impl Fn(&OpenConnection) -> bool) -> bool {
        let idle = self.by_id.iter().filter(|(_, entry)| is_wanted(entry)).filter_map(|(&id, entry)| {
            let now = entry.activity.lock();
            let has_waited = now.has_asked || now.idle_since.elapsed() >= self.grace;
            let is_idle = now.requests.is_empty() && !now.is_sending() && has_waited;
            is_idle.then_some((now.idle_since, id))
        });
        let Some((_, id)) = idle.min() else { return false };
        if let Some(entry) = self.by_id.remove(&id) {
            entry.activity.evicted.notify_one();
        }
        true
    }

    /// The same among those of the peer that has most.
    fn evict_of_largest(&mut self) -> bool {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for entry in self.by_id.values().filter(|entry| !entry.is_reserve) {
            *counts.entry(entry.peer).or_default() += 1;
        }
        let mut peers: Vec<(usize, IpAddr)> = counts.into_iter().map(|(peer, n)| (n, peer)).collect();
        peers.sort_unstable_by(|a, b| b.cmp(a));
        peers.into_iter().any(|(_, peer)| self.evict(|entry| !entry.is_reserve && entry.peer == peer))
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.connections.lock().by_id.remove(&self.id);
    }
}

/// Who counts as one peer: an address, and of IPv6 the network that one customer gets.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn without_grace(max: usize, max_per_peer: usize) -> Arc<Connections> {
        let connections = Connections::new(max, max_per_peer);
        connections.lock().grace = Duration::ZERO;
        connections
    }

    #[test]
    fn who_just_came_may_stay() {
        let connections = Connections::new(1, 1);
        let first = connections.admit(peer(1));
        assert!(connections.admit(peer(2)).is_reserve);
        drop(first.activity.begin(true));
        assert!(connections.admit(peer(2)).is_reserve, "the end of its answer is not sent");
        first.activity.lock().unsent_since = None;
        first.activity.lock().blocked_since = Some(Instant::now());
        assert!(connections.admit(peer(2)).is_reserve, "the client has not read it yet");
        first.activity.lock().blocked_since = None;
        assert!(!connections.admit(peer(2)).is_reserve, "it had its answer");
    }

    #[test]
    fn idle_connections_make_room_those_of_the_largest_peer_first() {
        let connections = without_grace(4, 3);
        let greedy: Vec<ConnectionPlace> = (0..3).map(|_| connections.admit(peer(1))).collect();
        let other = connections.admit(peer(2));
        assert!(greedy.iter().chain([&other]).all(|place| !place.is_reserve));
        let third = connections.admit(peer(3));
        assert!(!third.is_reserve);
        let is_there = |place: &ConnectionPlace| connections.lock().by_id.contains_key(&place.id);
        assert!(!is_there(&greedy[0]) && is_there(&greedy[1]) && is_there(&other), "the oldest of peer 1 left");
        drop(greedy);
        assert_eq!(connections.len(), 2);
    }

    #[test]
    fn a_peer_has_its_share_and_the_reserve_is_for_all() {
        let connections = without_grace(100, 2);
        let busy: Vec<ConnectionPlace> = (0..2).map(|_| connections.admit(peer(1))).collect();
        let requests: Vec<InFlight> = busy.iter().map(|place| place.activity.begin(true)).collect();
        assert!(connections.admit(peer(1)).is_reserve, "none of its connections is idle");
        assert!(!connections.admit(peer(2)).is_reserve);
        let reserve: Vec<ConnectionPlace> = (0..N_RESERVE + 10).map(|_| connections.admit(peer(1))).collect();
        assert_eq!(connections.len(), 2 + N_RESERVE, "the reserve is bounded too");
        drop(requests);
        busy.iter().for_each(|place| place.activity.lock().unsent_since = None);
        assert!(!connections.admit(peer(1)).is_reserve, "an idle one made room");
        drop(reserve);
    }

    #[test]
    fn every_state_has_a_deadline() {
        let [read, idle, write] = [10, 20, 30].map(Duration::from_secs);
        let times = Timeouts { read, idle, write };
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let activity = Arc::new(Activity::new());
        assert_eq!(activity.lock().overdue(&times), None);
        activity.lock().idle_since = ago(11);
        assert_eq!(activity.lock().overdue(&times), Some("it sent no request"));
        let request = activity.begin(true);
        activity.lock().idle_since = ago(1_000);
        assert_eq!(activity.lock().overdue(&times), None, "a request in flight has limits of its own");
        request.stalled(Some(ago(31)));
        assert_eq!(activity.lock().overdue(&times), Some("the client read nothing of its answer"));
        request.stalled(None);
        drop(request);
        activity.lock().idle_since = ago(11);
        assert_eq!(activity.lock().overdue(&times), None, "after a request it may be idle for longer");
        activity.lock().idle_since = ago(21);
        assert_eq!(activity.lock().overdue(&times), Some("it sent no request"));
        activity.lock().blocked_since = Some(ago(1));
        assert_eq!(activity.lock().overdue(&times), None, "the end of an answer is on its way");
        activity.lock().blocked_since = Some(ago(31));
        assert!(activity.lock().overdue(&times).is_some());
    }
}
