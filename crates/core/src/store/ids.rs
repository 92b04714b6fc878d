//! Ids are drawn in blocks ahead of need, so that an insert knows its ids before it runs and keeps them when it is repeated.

use super::{Store, StoreError};
use crate::domain::message::{JobId, MessageId};

const BLOCK: i64 = 1000;

/// A block of one sequence, used up one by one.
#[derive(Debug, Default)]
struct Block {
    next: i64,
    end: i64,
}

impl Block {
    async fn take(&mut self, store: &Store, statement: &'static str) -> Result<i64, StoreError> {
        if self.next == self.end {
            let first: i64 = sqlx::query_scalar(statement).fetch_one(&store.pool).await?;
            (self.next, self.end) = (first, first + BLOCK);
        }
        self.next += 1;
        Ok(self.next - 1)
    }
}

/// Message ids ahead of need.
#[derive(Debug, Default)]
pub struct MessageIds(Block);

impl MessageIds {
    /// The next one.
    ///
    /// # Errors
    /// The database is away and the block is used up.
    pub async fn next(&mut self, store: &Store) -> Result<MessageId, StoreError> {
        self.0.take(store, "/* next_message_ids */ select nextval('message_id_seq')").await.map(MessageId)
    }
}

/// Job ids ahead of need.
#[derive(Debug, Default)]
pub struct JobIds(Block);

impl JobIds {
    /// The next one.
    ///
    /// # Errors
    /// The database is away and the block is used up.
    pub async fn next(&mut self, store: &Store) -> Result<JobId, StoreError> {
        self.0.take(store, "/* next_job_ids */ select nextval('job_id_seq')").await.map(JobId)
    }
}
