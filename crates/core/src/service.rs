//! The shell that every binary runs in: arguments, configuration, logs, health, signals, supervised tasks, two-stage
//! shutdown. A loop that ends by itself takes the process down with a non-zero exit.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, Admin, Health};
use crate::broker::{BrokerError, Link, Publisher};
use crate::clock::{Clock, Entropy, SystemClock};
use crate::config::{self, Config, Loaded};
use crate::gate::Gate;
use crate::healthcheck;
use crate::store::{Store, StoreError, Timing};
use crate::telemetry::{self, Metrics};

/// Arguments of every worker.
#[derive(Debug, Parser)]
struct Arguments {
    /// The configuration file; `SENDONCE_SECTION__KEY` in the environment overrides it.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// Check the configuration, say what is wrong with it, and exit.
    #[arg(long)]
    check_config: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// Ask the worker that runs beside this process how it is; the exit code is 0 if all is well.
    Healthcheck {
        /// Whether it is ready for work (`/readyz`), instead of whether it lives (`/livez`).
        #[arg(long)]
        ready: bool,
    },
}

/// What a worker's `run` gets.
#[derive(Debug, Clone)]
pub struct Context {
    pub name: &'static str,
    pub config: Arc<Config>,
    pub store: Store,
    pub gate: Gate,
    /// For consuming; publishing has a connection of its own.
    pub link: Link,
    pub publisher: Publisher,
    pub metrics: Metrics,
    pub health: Health,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub tasks: Tasks,
}

/// Tracked tasks. Each must live until the drain; one that ends before, or panics, ends the process.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Cancelled by the first signal: take nothing new, finish what is in hand.
    drain: CancellationToken,
    failures: mpsc::UnboundedSender<String>,
}

impl Tasks {
    /// Runs a loop that is expected to live as long as the process.
    pub fn spawn<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let (drain, failures) = (self.drain.clone(), self.failures.clone());
        let watched = self.tracker.spawn(work);
        self.tracker.spawn(async move {
            let failure = match watched.await {
                Ok(Ok(())) if drain.is_cancelled() => return,
                Ok(Ok(())) => format!("{name} ended by itself"),
                Ok(Err(error)) => format!("{name} failed: {error:#}"),
                Err(_) => format!("{name} panicked"),
            };
            if failures.send(failure).is_err() {
                tracing::error!(task = name, "a task ended after the shell");
            }
        });
    }

    /// Runs a bounded piece of work to its end; it is waited for at shutdown.
    pub fn spawn_work<F>(&self, work: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(work)
    }

    /// Resolves at the first signal.
    #[must_use]
    pub fn draining(&self) -> &CancellationToken {
        &self.drain
    }
}

impl Context {
    /// Our own fault holds: calls `work` until the database answers, reporting the loop `beat` alive. The work must be
    /// safe to repeat after an answer that was lost.
    ///
    /// # Errors
    /// Whatever trying again cannot help.
    pub async fn hold<T, F, R>(&self, beat: &'static str, mut work: F) -> Result<T, StoreError>
    where
        F: FnMut() -> R,
        R: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match work().await {
                Err(StoreError::Unavailable(error)) => {
                    if pause == FIRST_PAUSE {
                        tracing::warn!(work = beat, %error, "held: the database does not answer");
                        self.metrics.holds.inc();
                    }
                }
                answered => return answered,
            }
            self.health.beat(beat, HOLD_BEAT);
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
const HOLD_BEAT: Duration = Duration::from_secs(30);

/// Runs a worker to its end.
pub fn run<F, R>(name: &'static str, worker: F) -> ExitCode
where
    F: FnOnce(Context) -> R,
    R: Future<Output = anyhow::Result<()>>,
{
    let arguments = Arguments::parse();
    let loaded = match config::load(arguments.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(error) => return complain(name, &error.to_string()),
    };
    if arguments.check_config {
        return say(&format!("the configuration is consistent (hash {})", loaded.hash));
    }
    if let Some(Command::Healthcheck { ready }) = arguments.command {
        return match healthcheck::ask(&loaded.config.admin.listen, if ready { "/readyz" } else { "/livez" }) {
            Ok(answer) => say(&answer),
            Err(error) => complain(name, &format!("{error:#}")),
        };
    }
    // One TLS backend for every client in the process, the exporter's too; a second call finds it installed.
    let tls_was_there = rustls::crypto::ring::default_provider().install_default().is_err();
    let exporter = match telemetry::start(name, &loaded.config) {
        Ok(exporter) => exporter,
        Err(error) => return complain(name, &format!("{error:#}")),
    };
    if tls_was_there {
        tracing::debug!("a TLS provider was installed before");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(name, &format!("cannot start the runtime: {error}")),
    };
    let code = match runtime.block_on(supervise(name, loaded, worker)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "{name} stops");
            ExitCode::FAILURE
        }
    };
    // After the drain and outside async code. Whether a collector takes them changes nothing.
    if let Some(exporter) = exporter {
        exporter.stop();
    }
    code
}

async fn supervise<F, R>(name: &'static str, loaded: Loaded, worker: F) -> anyhow::Result<()>
where
    F: FnOnce(Context) -> R,
    R: Future<Output = anyhow::Result<()>>,
{
    let Loaded { config, hash } = loaded;
    let (failures, mut failed) = mpsc::unbounded_channel();
    let tasks = Tasks { tracker: TaskTracker::new(), drain: CancellationToken::new(), failures };
    let context = build(name, Arc::new(config), tasks.clone())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    context.metrics.set_info(&hash);
    let listener = TcpListener::bind(&context.config.admin.listen).await?;
    tracing::info!(address = %listener.local_addr()?, config = hash, "{name} starts");
    let admin = Admin {
        store: context.store.clone(),
        gate: context.gate.clone(),
        links: vec![context.link.clone()],
        health: context.health.clone(),
        metrics: context.metrics.clone(),
        config_hash: hash,
    };
    let stop_admin = CancellationToken::new();
    tasks.spawn("admin port", admin::serve(listener, admin, stop_admin.clone()));

    let started = async {
        await_database(&context).await?;
        let watch = context.gate.clone().watch(context.health.clone(), tasks.drain.clone());
        tasks.spawn("database watch", watch);
        await_broker(&context).await?;
        worker(context.clone()).await
    };
    tokio::select! {
        result = started => result?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    }
    let failure = tokio::select! {
        failure = failed.recv() => failure,
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    if let Some(failure) = failure {
        anyhow::bail!(failure);
    }
    tracing::info!("{name} drains");
    tasks.drain.cancel();
    stop_admin.cancel();
    tasks.tracker.close();
    tokio::select! {
        drained = timeout(context.config.budgets.drain, tasks.tracker.wait()) => {
            if drained.is_err() {
                anyhow::bail!("the drain took longer than {:?}; what is in flight is left to its lease", context.config.budgets.drain);
            }
        }
        _ = terminate.recv() => anyhow::bail!("a second signal ended the drain"),
        _ = interrupt.recv() => anyhow::bail!("a second signal ended the drain"),
    }
    context.link.close().await;
    context.publisher.link().close().await;
    context.store.close().await;
    tracing::info!("{name} ends");
    Ok(())
}

fn build(name: &'static str, config: Arc<Config>, tasks: Tasks) -> anyhow::Result<Context> {
    let store = Store::open(&config.database, Timing::of(&config), &format!("sendonce-{name}"))?;
    let link = |purpose: &str| Link::new(config.broker.url.clone(), format!("sendonce-{name} {purpose}"));
    let publisher = Publisher::new(link("publishes"), config.broker.confirm_timeout);
    let metrics = Metrics::default();
    let gate = Gate::new(&config.redis, store.clone(), metrics.clone())?;
    Ok(Context {
        name,
        store,
        gate,
        link: link("consumes"),
        publisher,
        metrics,
        health: Health::default(),
        clock: Arc::new(SystemClock),
        entropy: Entropy,
        tasks,
        config,
    })
}

/// Waits for the database, and asks the gate about it; a schema that is not ours ends the process.
async fn await_database(context: &Context) -> anyhow::Result<()> {
    let mut pause = FIRST_PAUSE;
    loop {
        let checked = async {
            context.store.check_schema(context.config.testing.allow_clock_offset).await?;
            context.gate.look().await
        };
        match checked.await {
            Ok(()) => return Ok(()),
            Err(error @ StoreError::Unavailable(_)) => tracing::warn!(%error, "waiting for the database"),
            Err(error) => return Err(error.into()),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Waits for the broker; a topology that is not ours ends the process.
async fn await_broker(context: &Context) -> anyhow::Result<()> {
    let mut pause = FIRST_PAUSE;
    loop {
        match context.link.channel().await {
            Ok(channel) => return Ok(channel.close(200, "reached".into()).await?),
            Err(error @ BrokerError::Topology(_)) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "waiting for the broker"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

#[expect(clippy::print_stderr, reason = "logging is not up yet, and the person is at a terminal")]
fn complain(name: &str, problem: &str) -> ExitCode {
    eprintln!("{name}: {problem}");
    ExitCode::FAILURE
}

#[expect(clippy::print_stdout, reason = "the answer to a question asked at a terminal")]
fn say(answer: &str) -> ExitCode {
    println!("{answer}");
    ExitCode::SUCCESS
}
