//! Readings for the health of the fleet, each from an index and never from a scan.

use std::time::Duration;

use super::{Store, StoreError};

impl Store {
    /// Time since the newest receipt of each account. One that never had any counts from the birth of the store, so that
    /// an account whose pushes go astray from the first day is as loud as one that falls silent.
    ///
    /// # Errors
    /// The database is away.
    pub async fn last_receipts(&self, accounts: &[&str]) -> Result<Vec<(String, Duration)>, StoreError> {
        let rows: Vec<(String, f64)> = sqlx::query_as(
            "/* last_receipts */
             select account, extract(epoch from clock_now() - coalesce(
                (select received_at from receipt where provider_account = account order by received_at desc limit 1),
                (select min(started_at) from store_epoch)))::float8
             from unnest($1::text[]) as account",
        )
        .bind(accounts)
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|(account, age)| (account, Duration::from_secs_f64(age.max(0.0)))).collect())
    }
}
