//! The only SQL. Functions take and return domain types, never rows; each statement starts with its name as a comment.
//! No function here opens a connection to anything else, so no network call ever happens inside a transaction.

mod cancel;
mod claim;
mod error;
mod gauges;
mod ids;
mod ingest;
mod inspect;
mod jobs;
mod parked;
mod position;
mod receipts;
mod record;
mod resolve;
mod schema;
mod settle;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use secrecy::ExposeSecret;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::config::{Config, Database};
use crate::domain::message::Class;

pub use claim::{Claim, ClaimJob, ClaimedMessage, JobAfterClaim};
pub use error::StoreError;
pub use ids::{JobIds, MessageIds};
pub use ingest::{Admitted, NewJob, NewMessage};
pub use inspect::{ClassCounts, CostLine, MessageView, ParkedView, StateCount, UnresolvedView};
pub use jobs::{DueJob, LaneBacklog, LeasesEnded, SweepConnection};
pub use parked::{ParkKind, ParkReason, ToPark};
pub use position::Position;
pub use receipts::{Applied, NewReceipt};
pub use record::{Ended, Recorded};
pub use resolve::{Finding, OpenKind, OpenMessage, Settled};
pub use schema::{SCHEMA_VERSION, migrate};
pub use settle::JobFate;

/// The durations and limits that statements need, taken from the configuration once.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    pub lease: Duration,
    pub grace: [Duration; 3],
    pub unknown_sla: [Duration; 3],
    pub max_attempts: u32,
}

impl Timing {
    /// What the statements need of a configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let by_class = |pick: fn(&crate::config::ClassPolicy) -> Duration| {
            [Class::Otp, Class::Transactional, Class::Promotional].map(|class| pick(config.classes.of(class)))
        };
        Self {
            lease: config.budgets.lease,
            grace: by_class(|policy| policy.grace),
            unknown_sla: by_class(|policy| policy.unknown_sla),
            max_attempts: config.sender.max_attempts,
        }
    }
}

/// The database as the fleet sees it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pool: PgPool,
    timing: Timing,
    followed: Arc<Mutex<Option<position::Followed>>>,
}

impl Store {
    /// A pool that connects when first used, so a process can start before its database.
    ///
    /// # Errors
    /// A URL that does not parse.
    pub fn open(database: &Database, timing: Timing, application: &str) -> Result<Self, StoreError> {
        let options = worker_options(database, application)?;
        let pool = PgPoolOptions::new()
            .max_connections(database.max_connections)
            .acquire_timeout(Duration::from_secs(5))
            // Released connections are cleaned below, which also tells a dead one; asking again costs a round trip.
            .test_before_acquire(false)
            // A begin whose future was dropped leaves its transaction open for the next borrower (sqlx 0.9.0).
            .after_release(|connection, _| {
                Box::pin(async move {
                    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
                    Ok(true)
                })
            })
            .connect_lazy_with(options);
        Ok(Self { pool, timing, followed: Arc::default() })
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

fn worker_options(database: &Database, application: &str) -> Result<PgConnectOptions, StoreError> {
    let options: PgConnectOptions = database.url.expose_secret().parse().map_err(StoreError::url)?;
    Ok(options.application_name(application).options([
        ("idle_in_transaction_session_timeout", "30s"),
        ("statement_timeout", "20s"),
        ("lock_timeout", "3s"),
        // Measured: a plan made for the values of the first call, or on the statistics of an empty partition, scans the
        // backlog. Every statement of a worker is a set of primary-key look-ups, so that is the one plan it may have.
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        // A small table kept aside is read whole, and cannot leave out the months that a row is not in.
        ("enable_material", "off"),
        ("enable_memoize", "off"),
        ("jit", "off"),
    ]))
}

/// A duration for `make_interval(secs => …)`.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
