//! Raw control of a connection under axum: a handler can have its own connection reset, closed while idle, or sent bytes
//! nobody asked for. The handler gets a [`Line`] through `ConnectInfo`; the stream wrapper obeys it.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::Sleep,
};

#[derive(Debug, Default)]
struct Orders {
    /// Fail every write from now on.
    cut: AtomicBool,
    /// Close by RST, whenever the connection closes.
    reset: AtomicBool,
    /// Obeyed once the answer is flushed.
    after_answer: Mutex<AfterAnswer>,
}

#[derive(Debug, Default)]
struct AfterAnswer {
    extra: Option<Vec<u8>>,
    close_in: Option<Duration>,
}

/// A handler's grip on the connection its request came by.
#[derive(Debug, Clone, Default)]
pub struct Line(Arc<Orders>);

impl Line {
    /// The answer that follows is not written: the client sees RST.
    pub fn reset_instead_of_answer(&self) {
        self.0.reset.store(true, Ordering::Release);
        self.0.cut.store(true, Ordering::Release);
    }

    /// What is written still goes out; the close, whenever it comes, is an RST.
    pub fn reset_on_close(&self) {
        self.0.reset.store(true, Ordering::Release);
    }

    /// `bytes` follow the answer. To be called right before the handler returns.
    pub fn send_after_answer(&self, bytes: Vec<u8>) {
        self.0.after_answer.lock().unwrap_or_else(PoisonError::into_inner).extra = Some(bytes);
    }

    /// Closes the idle connection that long after the answer. To be called right before the handler returns.
    pub fn close_after_answer(&self, delay: Duration) {
        self.0.after_answer.lock().unwrap_or_else(PoisonError::into_inner).close_in = Some(delay);
    }
}

impl Connected<IncomingStream<'_, Door>> for Line {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.io().line.clone()
    }
}

/// The listener: hands out controllable connections, or resets them at once while shut.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    shut: Arc<AtomicBool>,
}

impl Door {
    pub fn new(listener: TcpListener, shut: Arc<AtomicBool>) -> Self {
        Self { listener, shut }
    }
}

impl Listener for Door {
    type Io = Wire;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Wire, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) if self.shut.load(Ordering::Acquire) => close_by_reset(&stream),
                Ok((stream, peer)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "no TCP_NODELAY");
                    }
                    return (Wire::new(stream), peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Zero linger turns the close that follows into an RST.
fn close_by_reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "no zero linger");
    }
}

#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    line: Line,
    extra: Vec<u8>,
    idle: Option<Pin<Box<Sleep>>>,
}

impl Wire {
    fn new(stream: TcpStream) -> Self {
        Self { stream, line: Line::default(), extra: Vec::new(), idle: None }
    }

    fn refuse_if_cut(&self) -> io::Result<()> {
        if self.line.0.cut.load(Ordering::Acquire) {
            return Err(io::Error::from(io::ErrorKind::ConnectionReset));
        }
        Ok(())
    }

    fn take_orders(&mut self, cx: &mut Context<'_>) {
        let mut orders = self.line.0.after_answer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(extra) = orders.extra.take() {
            self.extra = extra;
        }
        if let Some(delay) = orders.close_in.take() {
            let mut idle = Box::pin(tokio::time::sleep(delay));
            // The server may not read again before the timer fires: the timer itself has to wake it.
            if idle.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
            self.idle = Some(idle);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.line.0.reset.load(Ordering::Acquire) {
            close_by_reset(&self.stream);
        }
    }
}

impl AsyncRead for Wire {
    /// An idle connection whose time is up reads as closed by the peer, which makes the server close it.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            self.idle = None;
            return Poll::Ready(done);
        }
        match self.idle.as_mut() {
            Some(idle) if !idle.is_elapsed() => idle.as_mut().poll(cx).map(Ok),
            Some(_) => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.refuse_if_cut()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.refuse_if_cut()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.refuse_if_cut()?;
        self.take_orders(cx);
        while !self.extra.is_empty() {
            let wire = &mut *self;
            let written = ready!(Pin::new(&mut wire.stream).poll_write(cx, &wire.extra))?;
            wire.extra.drain(..written);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.0.reset.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
