//! A server that does what a test tells it to, and an exact count of what reached it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::AbortHandle;

pub const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// What reached a peer.
#[derive(Debug, Default)]
pub struct Seen {
    accepted: Vec<SocketAddr>,
    finished: usize,
    /// Requests that arrived whole.
    requests: Vec<String>,
}

/// What reached a peer, once nothing more can.
#[derive(Debug)]
pub struct Tally {
    pub connections: usize,
    pub requests: Vec<String>,
}

#[derive(Debug)]
pub struct Peer {
    pub at: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    task: AbortHandle,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[expect(clippy::disallowed_methods, reason = "the peer's tasks end with the test")]
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    tokio::spawn(future).abort_handle()
}

impl Peer {
    /// Gives each connection, with its number, to `behave`.
    pub async fn new<F, Fut>(behave: F) -> Self
    where
        F: Fn(Conn<TcpStream>, usize) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        let task = spawn(async move {
            loop {
                let (stream, from) = listener.accept().await.unwrap();
                let number = {
                    let mut seen = shared.lock().unwrap();
                    seen.accepted.push(from);
                    seen.accepted.len() - 1
                };
                let conn = Conn { stream, seen: Arc::clone(&shared), buffer: Vec::new() };
                let (behaviour, shared) = (behave(conn, number), Arc::clone(&shared));
                spawn(async move {
                    behaviour.await;
                    shared.lock().unwrap().finished += 1;
                });
            }
        });
        Self { at, seen, task }
    }

    /// Waits until every connection was accepted and its end was seen, so that the count is final. The clients must be gone.
    pub async fn settle(self) -> Tally {
        // Connections are accepted in order: once this one is, so are all before it.
        let marker = TcpSocket::new_v4().unwrap();
        marker.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let from = marker.local_addr().unwrap();
        // The peer may treat it as badly as the others.
        drop(marker.connect(self.at).await);
        let quiet = || {
            let seen = self.seen.lock().unwrap();
            seen.accepted.contains(&from) && seen.finished == seen.accepted.len()
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), async {
            while !quiet() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        waited.await.expect("a connection to the peer stays open");
        let seen = self.seen.lock().unwrap();
        Tally { connections: seen.accepted.len() - 1, requests: seen.requests.clone() }
    }

    pub fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().requests.clone()
    }
}

/// One connection, seen from the server.
pub struct Conn<S> {
    pub stream: S,
    seen: Arc<Mutex<Seen>>,
    buffer: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Conn<S> {
    /// The next whole request; `None` when the client stops before its end.
    pub async fn request(&mut self) -> Option<String> {
        loop {
            if let Some(length) = whole(&self.buffer) {
                let rest = self.buffer.split_off(length);
                let request = String::from_utf8_lossy(&std::mem::replace(&mut self.buffer, rest)).into_owned();
                self.seen.lock().unwrap().requests.push(request.clone());
                return Some(request);
            }
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }
    /// Reads at most `bytes`, counting nothing.
    pub async fn sip(&mut self, bytes: usize) {
        let mut some = vec![0; bytes];
        drop(self.stream.read(&mut some).await);
    }
    pub async fn say(&mut self, text: &str) {
        drop(self.stream.write_all(text.as_bytes()).await);
        drop(self.stream.flush().await);
    }
    /// Holds the connection and reads on, silently, until the client leaves.
    pub async fn stall(mut self) {
        while self.request().await.is_some() {}
    }
}

impl Conn<TcpStream> {
    /// Ends the connection with a reset instead of a close.
    pub fn reset(self) {
        let socket = socket2::Socket::from(self.stream.into_std().unwrap());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
    /// The same connection after a TLS handshake; `None` when that fails.
    pub async fn secured(
        self,
        acceptor: &tokio_rustls::TlsAcceptor,
    ) -> Option<Conn<tokio_rustls::server::TlsStream<TcpStream>>> {
        let Self { stream, seen, .. } = self;
        let stream = acceptor.accept(stream).await.ok()?;
        Some(Conn { stream, seen, buffer: Vec::new() })
    }
}

/// Length of the whole request at the start of `bytes`.
fn whole(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let body: usize = length.map_or(0, |length| length.trim().parse().unwrap());
    (bytes.len() >= head + body).then_some(head + body)
}

/// A port that swallows connection attempts: a listener whose queue is full. Holds what fills it.
pub async fn black_hole() -> (SocketAddr, Vec<TcpStream>, socket2::Socket) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    let mut filling = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(at)).await {
        filling.push(stream);
    }
    (at, filling, socket)
}
