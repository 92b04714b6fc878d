//! A stand-in for the messaging provider, and the independent witness of what was sent.
//!
//! It shares no code with the system under test: own wire types, own segment counter, own money, own ledger. It claims
//! nothing the contract does not show, except where a table row says "own choice". See README.md for endpoints and magic
//! numbers.

mod accounts;
mod answer;
mod book;
mod clock;
mod codes;
mod control;
mod fate;
mod form;
mod ids;
mod knobs;
mod ledger;
mod node;
mod options;
mod push;
mod reports;
mod segments;
mod send_sms;
mod send_wa;
mod sim;
mod socket;

use std::{
    io::{Read, Write},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

pub use crate::{
    accounts::Credentials,
    fate::{Row as MagicRow, TABLE as MAGIC},
    knobs::Knobs,
    ledger::{Accepted, Decision, Entry},
    options::Options,
};
use crate::{
    accounts::{AccountDefaults, Accounts},
    book::Book,
    ids::Ids,
    ledger::Ledger,
    push::Pushes,
    sim::Sim,
    socket::{Door, Line},
};

/// How long open connections may take to finish once the simulator stops.
const DRAIN: Duration = Duration::from_millis(500);
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
const LARGEST_BODY: usize = 8 * 1024 * 1024;

/// A simulator running in this process.
#[derive(Debug)]
pub struct Running {
    pub listen: SocketAddr,
    pub control: SocketAddr,
    sim: Arc<Sim>,
    broken: CancellationToken,
    servers: JoinSet<std::io::Result<()>>,
}

/// Starts and returns once both ports accept.
pub async fn start(options: Options) -> anyhow::Result<Running> {
    install_tls_provider();
    let defaults = AccountDefaults { zone: options.zone, price: options.price, wallet: options.wallet };
    let knobs = options.start_knobs()?;
    let mut book = Book::new(Accounts::new(defaults, options.credentials()), knobs.seed);
    let broken = CancellationToken::new();
    let ledger = Ledger::open(&options.ledger, broken.clone(), |entry| book.apply(Arc::new(entry)))?;
    let ids = Ids { salt: clock::now_ms().unsigned_abs() ^ u64::from(std::process::id()).rotate_right(20) };
    let sim = Arc::new(Sim::new(ledger, book, knobs, Pushes::new()?, ids));

    let api =
        TcpListener::bind(options.listen).await.with_context(|| format!("cannot listen on {}", options.listen))?;
    let control =
        TcpListener::bind(options.control).await.with_context(|| format!("cannot listen on {}", options.control))?;
    let (listen, control_address) = (api.local_addr()?, control.local_addr()?);

    let mut servers = JoinSet::new();
    let door = Door::new(api, Arc::clone(&sim.shut));
    let service = provider(Arc::clone(&sim)).into_make_service_with_connect_info::<Line>();
    let stopping = sim.stopping.clone();
    servers.spawn(async move { axum::serve(door, service).with_graceful_shutdown(stopping.cancelled_owned()).await });
    let service = control::router(Arc::clone(&sim));
    let stopping = sim.stopping.clone();
    servers
        .spawn(async move { axum::serve(control, service).with_graceful_shutdown(stopping.cancelled_owned()).await });

    if let Some(path) = &options.ready_file {
        write_ready_file(path, listen, control_address)?;
    }
    Ok(Running { listen, control: control_address, sim, broken, servers })
}

/// Whether a simulator answers on its control port, as a container's health check asks: over plain TCP, no client needed.
pub fn healthcheck(control: SocketAddr) -> anyhow::Result<()> {
    let mut stream = std::net::TcpStream::connect_timeout(&control, HEALTH_PATIENCE)?;
    stream.set_read_timeout(Some(HEALTH_PATIENCE))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_ascii_whitespace().nth(1) {
        Some("200") => Ok(()),
        Some(_) | None => bail!("the control port answered {answer:?}"),
    }
}

/// The whole program: starts, serves until SIGTERM or SIGINT, stops. An error if the ledger could not be written.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let running = start(options).await?;
    tracing::info!(listen = %running.listen, control = %running.control, "provider-sim is ready");
    let broken = running.broken.clone();
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        () = broken.cancelled() => {}
    }
    running.stop().await
}

impl Running {
    /// Stops serving, writes what the ledger still queues and releases it. Receipts still due are lost.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.sim.stopping.cancel();
        let drained = tokio::time::timeout(DRAIN, async {
            while let Some(ended) = self.servers.join_next().await {
                ended??;
            }
            anyhow::Ok(())
        });
        match drained.await {
            Ok(ended) => ended?,
            Err(_) => self.servers.shutdown().await,
        }
        self.sim.tasks.close();
        if tokio::time::timeout(DRAIN, self.sim.tasks.wait()).await.is_err() {
            tracing::warn!("requests in the inbox are dropped");
        }
        self.sim.ledger.close();
        if self.broken.is_cancelled() {
            bail!("the ledger could not be written");
        }
        Ok(())
    }
}

/// The provider's own routes. Another channel is one more file and one more line here.
fn provider(sim: Arc<Sim>) -> Router {
    Router::new()
        .route("/SMSApi/send", post(send_sms::handle))
        .route("/WAApi/send", post(send_wa::handle))
        .route("/SMSApi/reports/status", get(reports::plural).post(reports::plural))
        .route("/SMSApi/report/status", get(reports::singular).post(reports::singular))
        .fallback(|| async { answer::not_found() })
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(sim)
}

/// Receipts may go to an https URL, and the HTTP client is built without a provider of its own. The workspace's other
/// crates may have installed one first when the simulator runs in their process.
fn install_tls_provider() {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::trace!("a TLS provider is installed already");
    }
}

fn write_ready_file(path: &Path, listen: SocketAddr, control: SocketAddr) -> anyhow::Result<()> {
    let document = serde_json::json!({ "listen": listen.to_string(), "control": control.to_string() });
    let mut unfinished = path.to_owned().into_os_string();
    unfinished.push(".tmp");
    std::fs::write(&unfinished, document.to_string())?;
    std::fs::rename(&unfinished, path).with_context(|| format!("cannot write {}", path.display()))
}
