//! The schema: migrated as one explicit step; workers only check that it is the one they were built for.

use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use super::{Store, StoreError};

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// The version this build needs: that of its last migration.
pub const SCHEMA_VERSION: i64 = 6;

/// Brings a database to this build's version. Needs the owner's URL, not a worker's.
///
/// # Errors
/// The database is away, belongs to somebody else, or was migrated by a newer build.
pub async fn migrate(url: &str) -> Result<i64, StoreError> {
    let options: PgConnectOptions = url.parse().map_err(StoreError::url)?;
    let mut connection = PgConnection::connect_with(&options).await?;
    MIGRATIONS.run(&mut connection).await.map_err(|error| StoreError::Unexpected(error.to_string()))?;
    connection.close().await?;
    Ok(SCHEMA_VERSION)
}

impl Store {
    /// Checks that the database is the one this build was made for: version, role, clock, partitions.
    ///
    /// # Errors
    /// `Unexpected` says what is wrong and what to run; `Unavailable` when the database is away.
    pub async fn check_schema(&self, allow_clock_offset: bool) -> Result<(), StoreError> {
        let (version, superuser, offset): (Option<i64>, bool, Option<String>) = sqlx::query_as(
            "/* check_schema */
             select (select max(version) from _sqlx_migrations where success),
                    (select rolsuper from pg_roles where rolname = current_user),
                    nullif(current_setting('sendonce.clock_offset', true), '')",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(|error| match StoreError::from(error) {
            StoreError::Unexpected(text) => {
                StoreError::Unexpected(format!("{text}; run `sendonce migrate` on this database first"))
            }
            known @ (StoreError::Unavailable(_) | StoreError::Data(_)) => known,
        })?;
        if version != Some(SCHEMA_VERSION) {
            return Err(StoreError::Unexpected(format!(
                "schema version {} found, {SCHEMA_VERSION} needed; run `sendonce migrate` of this release",
                version.map_or_else(|| "none".to_owned(), |v| v.to_string())
            )));
        }
        if superuser {
            return Err(StoreError::Unexpected(
                "a worker must not be a superuser (the guards of the message table do not bind one); connect as sendonce_worker"
                    .to_owned(),
            ));
        }
        match offset {
            Some(offset) if !allow_clock_offset => Err(StoreError::Unexpected(format!(
                "sendonce.clock_offset is set to `{offset}`, which only tests may do"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// How many months from this one on have their partitions.
    ///
    /// # Errors
    /// The database is away.
    pub async fn partitions_ahead(&self) -> Result<i32, StoreError> {
        Ok(sqlx::query_scalar("/* partitions_ahead */ select partitions_ahead()").fetch_one(&self.pool).await?)
    }

    /// Creates the partitions of this month and of `months` more; returns how many were missing.
    ///
    /// # Errors
    /// The database is away.
    pub async fn ensure_partitions(&self, months: i32) -> Result<i32, StoreError> {
        Ok(sqlx::query_scalar("/* ensure_partitions */ select ensure_partitions($1)")
            .bind(months)
            .fetch_one(&self.pool)
            .await?)
    }

    /// One round trip.
    ///
    /// # Errors
    /// The database is away.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("/* ping */ select 1").execute(&self.pool).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_last_migration() {
        assert_eq!(MIGRATIONS.iter().map(|m| m.version).max(), Some(SCHEMA_VERSION));
    }
}
