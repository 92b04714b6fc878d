//! The only Redis. It gives hints: a hint spares PostgreSQL a question or delays a delivery, it never permits and never
//! loses. Redis that is away, slow, flushed, read-only, full or old is "no hint", counted, and costs one timeout a second.
//!
//! The gate also keeps watch over the database's history: hints live under its epoch and timeline, and a database that is
//! behind what the fleet has seen puts the process into safe mode.

mod hints;
mod history;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::{Manager, Pool, Runtime};
use redis::{AsyncConnectionConfig, FromRedisValue, Pipeline};
use secrecy::ExposeSecret;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::hints::Hint;
use self::history::History;
use crate::admin::Health;
use crate::config;
use crate::domain::message::{JobId, LeaseToken};
use crate::store::{Store, StoreError};
use crate::telemetry::Metrics;

pub use hints::Mark;
pub use history::Doubt;

/// How long Redis is left alone after it failed.
const REST: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 4;
const BEAT: Duration = Duration::from_secs(60);

/// Raises a position, never lowers it. Twenty digits each, so that they compare as text: Lua's numbers hold 53 bits.
const RAISE: &str = "local known = redis.call('GET', KEYS[1])
if not known or known < ARGV[1] then redis.call('SET', KEYS[1], ARGV[1]) end
return 1";

/// The gate of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

struct Inner {
    /// `None`: no hints are wanted.
    pool: Option<Pool>,
    config: config::Redis,
    store: Store,
    metrics: Metrics,
    history: Mutex<History>,
    outage: Mutex<Option<Instant>>,
    look_now: Notify,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pool prints its URL.
        f.debug_struct("Gate").field("history", &self.history).finish_non_exhaustive()
    }
}

/// Why there is no answer.
enum NoHint {
    /// None is wanted, or Redis is left alone, or the database is in doubt.
    Off,
    /// Redis failed just now.
    Error,
}

impl NoHint {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
        }
    }
}

impl Gate {
    /// A gate that connects when first used.
    ///
    /// # Errors
    /// A URL that does not parse.
    pub fn new(config: &config::Redis, store: Store, metrics: Metrics) -> anyhow::Result<Self> {
        let inner = Inner {
            pool: open(config)?,
            config: config.clone(),
            store,
            metrics,
            history: Mutex::default(),
            outage: Mutex::default(),
            look_now: Notify::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Says of each message whether a row made from the same inputs is durable already. Marks the others as in flight.
    pub async fn find_settled(&self, marks: &[Mark]) -> Vec<bool> {
        let none = vec![false; marks.len()];
        let Some(space) = self.namespace().filter(|_| !marks.is_empty()) else {
            self.count("ingest", NoHint::Off.as_str(), marks.len());
            return none;
        };
        let mut pipeline = Pipeline::with_capacity(marks.len());
        for mark in marks {
            set_if_absent(&mut pipeline, &space.key(mark), &mark.in_flight(), self.inner.config.in_flight);
        }
        let found: Vec<Option<String>> = match self.ask(&pipeline).await {
            Ok(found) => found,
            Err(no_hint) => {
                self.count("ingest", no_hint.as_str(), marks.len());
                return none;
            }
        };
        let hints: Vec<Hint> = found.iter().zip(marks).map(|(value, mark)| Hint::of(value.as_deref(), mark)).collect();
        for kind in Hint::ALL {
            self.count("ingest", kind.as_str(), hints.iter().filter(|hint| **hint == kind).count());
        }
        let settled: Vec<bool> = hints.iter().map(|hint| *hint == Hint::Settled).collect();
        if !settled.contains(&true) || self.database_goes_on().await { settled } else { none }
    }

    /// Remembers messages whose rows are durable: to be called after the commit, never before.
    pub async fn settle(&self, marks: &[Mark]) {
        let Some(space) = self.namespace().filter(|_| !marks.is_empty()) else { return };
        let mut pipeline = Pipeline::with_capacity(marks.len());
        for mark in marks {
            let seconds = whole_seconds(self.inner.config.settled);
            pipeline.cmd("SET").arg(space.key(mark)).arg(mark.settled()).arg("EX").arg(seconds).ignore();
        }
        let result = self.ask::<()>(&pipeline).await;
        self.count("settle", result.map_or_else(|no_hint| no_hint.as_str(), |()| "written"), marks.len());
    }

    /// Those of `jobs` that another worker has taken; the others are marked as ours. Only for jobs whose one delivery
    /// this is: the row of a job that is left out must own what follows.
    pub async fn find_taken(&self, jobs: &[JobId], token: LeaseToken) -> HashSet<JobId> {
        let none = HashSet::new();
        let Some(space) = self.namespace().filter(|_| !jobs.is_empty()) else {
            self.count("sender", NoHint::Off.as_str(), jobs.len());
            return none;
        };
        let mine = token.0.to_string();
        let mut pipeline = Pipeline::with_capacity(jobs.len());
        for job in jobs {
            set_if_absent(&mut pipeline, &space.job(*job), &mine, self.inner.config.in_flight);
        }
        let found: Vec<Option<String>> = match self.ask(&pipeline).await {
            Ok(found) => found,
            Err(no_hint) => {
                self.count("sender", no_hint.as_str(), jobs.len());
                return none;
            }
        };
        let taken = |holder: &Option<String>| holder.as_ref().is_some_and(|holder| *holder != mine);
        let taken: HashSet<JobId> =
            jobs.iter().zip(&found).filter(|(_, holder)| taken(holder)).map(|(job, _)| *job).collect();
        self.count("sender", "in_flight", taken.len());
        self.count("sender", "first", jobs.len() - taken.len());
        taken
    }

    /// Why nothing may be claimed, if so.
    #[must_use]
    pub fn doubt(&self) -> Option<Doubt> {
        lock(&self.inner.history).doubt()
    }

    /// Whether hints are wanted and Redis does not give them.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        lock(&self.inner.outage).is_some()
    }

    /// Compares the database with what the fleet has seen of it.
    ///
    /// # Errors
    /// The database is away; what was known stays.
    pub async fn look(&self) -> Result<(), StoreError> {
        // The epoch names the entry, and the entry must be older than the position: hence twice.
        let epoch = self.inner.store.position().await?.epoch;
        let entry = format!("sendonce:{epoch}:wal");
        let mut read = Pipeline::with_capacity(1);
        read.cmd("GET").arg(&entry);
        let shared = self.exchange::<(Option<String>,)>(&read).await;
        self.count("look", shared.as_ref().map_or_else(NoHint::as_str, |_| "read"), 1);
        let shared = shared.ok().and_then(|(value,)| value?.parse().ok());
        let position = self.inner.store.position().await?;
        if position.epoch != epoch {
            self.inner.look_now.notify_one();
            return Ok(());
        }
        let (before, doubt, highest, to_share) = {
            let mut history = lock(&self.inner.history);
            let before = history.doubt();
            history.learn(&position, shared);
            (before, history.doubt(), history.highest(), history.to_share())
        };
        if let Some(doubt) = doubt.filter(|_| doubt != before) {
            tracing::error!(epoch = %epoch, timeline = position.timeline, wal = position.wal, highest, "{doubt}");
        } else if doubt.is_none() && before.is_some() {
            tracing::warn!(epoch = %epoch, timeline = position.timeline, "safe mode ends");
        }
        self.inner.metrics.set_safe_mode(doubt.is_some());
        if doubt.is_none() {
            self.inner.store.follow(epoch, highest.unwrap_or(0));
        }
        if let Some(position) = to_share.filter(|highest| shared.is_none_or(|shared| shared < *highest)) {
            self.raise(&entry, position).await;
        }
        if doubt.is_none() && position.timeline != position.known_timeline {
            tracing::warn!(timeline = position.timeline, "a failover: the database goes on where it was");
            self.inner.store.accept_timeline(epoch, position.timeline).await?;
        }
        Ok(())
    }

    /// Looks again and again until `stop`.
    pub(crate) async fn watch(self, health: Health, stop: CancellationToken) -> anyhow::Result<()> {
        let every = self.inner.config.look_every;
        while !stop.is_cancelled() {
            health.beat("database watch", every + BEAT);
            tokio::select! {
                () = sleep(every) => {}
                () = self.inner.look_now.notified() => {}
                () = stop.cancelled() => return Ok(()),
            }
            if let Err(error) = self.look().await {
                tracing::debug!(%error, "the database's position is not known now");
            }
        }
        Ok(())
    }

    /// A hint speaks of the database that was there when it was written; asked after the hint was read.
    async fn database_goes_on(&self) -> bool {
        let position = self.inner.store.position().await;
        let goes_on = position.is_ok_and(|position| lock(&self.inner.history).goes_on(&position));
        if !goes_on {
            self.inner.look_now.notify_one();
        }
        goes_on
    }

    fn namespace(&self) -> Option<Namespace> {
        self.inner.pool.as_ref()?;
        let (epoch, timeline) = lock(&self.inner.history).trusted()?;
        Some(Namespace(format!("sendonce:{epoch}:{timeline}")))
    }

    async fn raise(&self, entry: &str, position: u64) {
        let mut raise = Pipeline::with_capacity(1);
        raise.cmd("EVAL").arg(RAISE).arg(1).arg(entry).arg(format!("{position:020}")).ignore();
        // What is not written now is written after the next look.
        let result = self.ask::<()>(&raise).await;
        self.count("look", result.map_or_else(|no_hint| no_hint.as_str(), |()| "written"), 1);
    }

    /// Asks by a command that writes, as every hint does: an answer proves that Redis is well.
    async fn ask<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, NoHint> {
        let answer = self.exchange(pipeline).await?;
        if lock(&self.inner.outage).take().is_some() {
            tracing::info!("Redis gives hints again");
        }
        Ok(answer)
    }

    /// One exchange, never longer than the timeout, and none while Redis is left alone.
    async fn exchange<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, NoHint> {
        let pool = self.inner.pool.as_ref().ok_or(NoHint::Off)?;
        if lock(&self.inner.outage).is_some_and(|rest_until| Instant::now() < rest_until) {
            return Err(NoHint::Off);
        }
        let exchange = async {
            let mut connection = pool.get().await.map_err(|error| error.to_string())?;
            pipeline.query_async(&mut connection).await.map_err(|error| error.to_string())
        };
        let limit = self.inner.config.timeout;
        let answer = timeout(limit, exchange).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")));
        answer.map_err(|error| {
            if lock(&self.inner.outage).replace(Instant::now() + REST).is_none() {
                tracing::warn!(error, "Redis gives no hints; PostgreSQL decides alone");
            }
            NoHint::Error
        })
    }

    fn count(&self, used_for: &str, result: &str, hints: usize) {
        if hints > 0 && self.inner.pool.is_some() {
            self.inner.metrics.count_hints(used_for, result, hints);
        }
    }
}

/// Names of entries. They hold for one epoch and timeline: a database restored from an older state begins with none.
struct Namespace(String);

impl Namespace {
    /// The business key holds the tenant.
    fn key(&self, mark: &Mark) -> String {
        format!("{}:key:{}", self.0, mark.key)
    }

    fn job(&self, job: JobId) -> String {
        format!("{}:job:{job}", self.0)
    }
}

fn open(config: &config::Redis) -> anyhow::Result<Option<Pool>> {
    let url = config.url.expose_secret();
    if url.is_empty() {
        return Ok(None);
    }
    // The whole exchange is timed too; these end what it has left behind.
    let limit = Some(config.timeout);
    let connections = AsyncConnectionConfig::new().set_response_timeout(limit).set_connection_timeout(limit);
    // The error may hold the URL with its password.
    let manager = Manager::new_with_config(url, connections)
        .map_err(|_| anyhow::anyhow!("`redis.url` does not parse; expected redis://user:password@host:port/number"))?;
    let pool = Pool::builder(manager)
        .max_size(CONNECTIONS)
        .wait_timeout(limit)
        .create_timeout(limit)
        .recycle_timeout(limit)
        .runtime(Runtime::Tokio1)
        .build()?;
    Ok(Some(pool))
}

/// Writes where nothing is, and tells what was there (Redis 7.0 or later).
fn set_if_absent(pipeline: &mut Pipeline, key: &str, value: &str, ttl: Duration) {
    pipeline.cmd("SET").arg(key).arg(value).arg("NX").arg("GET").arg("EX").arg(whole_seconds(ttl));
}

fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_secs().max(1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
