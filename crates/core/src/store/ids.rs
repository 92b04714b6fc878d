//! Ids are drawn in blocks ahead of need, so that an insert knows its ids before it runs and keeps them when it is repeated.

use super::{Store, StoreError};

/// A block of ids, used up one by one.
#[derive(Debug, Default)]
pub struct IdBlock {
    next: i64,
    end: i64,
}

const BLOCK: i64 = 1000;

impl IdBlock {
    async fn take(&mut self, store: &Store, statement: &'static str) -> Result<i64, StoreError> {
        if self.next == self.end {
            let first: i64 = sqlx::query_scalar(statement).fetch_one(&store.pool).await?;
            (self.next, self.end) = (first, first + BLOCK);
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// The next message id.
    ///
    /// # Errors
    /// The database is away and the block is used up.
    pub async fn message(&mut self, store: &Store) -> Result<crate::domain::message::MessageId, StoreError> {
        let statement = "/* next_message_ids */ select nextval('message_id_seq')";
        self.take(store, statement).await.map(crate::domain::message::MessageId)
    }

    /// The next job id.
    ///
    /// # Errors
    /// The database is away and the block is used up.
    pub async fn job(&mut self, store: &Store) -> Result<crate::domain::message::JobId, StoreError> {
        let statement = "/* next_job_ids */ select nextval('job_id_seq')";
        self.take(store, statement).await.map(crate::domain::message::JobId)
    }
}
