//! Where the database is in its history, for whoever has to tell it from one that was restored. Whether that is the same
//! history is judged elsewhere.

use std::sync::PoisonError;

use sqlx::FromRow;
use uuid::Uuid;

use super::{Store, StoreError};

/// A place in the database's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Drawn when the database was made, and again by every restore.
    pub epoch: Uuid,
    /// The restore that began the epoch has ended, or there was none.
    pub complete: bool,
    /// It is in the cluster in which the epoch began.
    pub same_cluster: bool,
    /// The last timeline that was found to continue the epoch.
    pub known_timeline: i32,
    /// The timeline now.
    pub timeline: i32,
    /// Bytes of WAL that no crash takes back; grows with every write.
    pub wal: u64,
}

/// The epoch that claims are made in, and a WAL position that it is past.
pub(super) type Followed = (Uuid, u64);

#[derive(FromRow)]
struct PositionRow {
    epoch: Uuid,
    complete: bool,
    same_cluster: bool,
    known_timeline: i32,
    timeline: i32,
    wal: i64,
}

impl Store {
    /// Reads it now.
    ///
    /// # Errors
    /// The database is away.
    pub async fn position(&self) -> Result<Position, StoreError> {
        let row: PositionRow = sqlx::query_as(
            "/* position */
             select e.epoch, e.completed_at is not null as complete,
                    e.system_identifier = s.system_identifier::text as same_cluster,
                    e.timeline as known_timeline, wal_timeline() as timeline,
                    (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint as wal
             from store_epoch e, pg_control_system() s
             order by e.started_at desc limit 1",
        )
        .fetch_optional(&self.pool)
        .await?
        .ok_or_else(|| StoreError::Unexpected("store_epoch is empty".to_owned()))?;
        Ok(Position {
            epoch: row.epoch,
            complete: row.complete,
            same_cluster: row.same_cluster,
            known_timeline: row.known_timeline,
            timeline: row.timeline,
            wal: row.wal.cast_unsigned(),
        })
    }

    /// From here on claims take nothing from a database of another epoch, or one that is not as far: it may have been
    /// restored since anybody looked.
    pub fn follow(&self, epoch: Uuid, at_least: u64) {
        *self.followed.lock().unwrap_or_else(PoisonError::into_inner) = Some((epoch, at_least));
    }

    pub(super) fn followed(&self) -> Option<Followed> {
        *self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the timeline continues the epoch, so that a process that knows nothing goes on with it.
    ///
    /// # Errors
    /// The database is away.
    pub async fn accept_timeline(&self, epoch: Uuid, timeline: i32) -> Result<(), StoreError> {
        sqlx::query("/* accept_timeline */ update store_epoch set timeline = $2 where epoch = $1")
            .bind(epoch)
            .bind(timeline)
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}
