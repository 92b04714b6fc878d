//! Cancels are rows first, kept for the key horizon: the claim and the sweeps look for them, so one that overtakes its
//! event still holds. Ending the pending rows is theirs, not this file's.

use super::{Store, StoreError};
use crate::domain::event::{CancelEvent, CancelTarget};

impl Store {
    /// Notes cancels; one that is known keeps its first reason. Says how many were new.
    ///
    /// # Errors
    /// The database is away.
    pub async fn cancel(&self, cancels: &[CancelEvent]) -> Result<u64, StoreError> {
        if cancels.is_empty() {
            return Ok(0);
        }
        let event = |cancel: &CancelEvent| match &cancel.target {
            CancelTarget::Event(id) => Some(id.clone()),
            CancelTarget::Key(_) => None,
        };
        let key = |cancel: &CancelEvent| match &cancel.target {
            CancelTarget::Event(_) => None,
            CancelTarget::Key(key) => Some(key.as_bytes().to_vec()),
        };
        let noted = sqlx::query(
            "/* cancel */
             insert into cancellation (tenant_id, event_id, business_key, reason)
             select c.tenant_id, c.event_id, c.business_key, c.reason
             from unnest($1::text[], $2::text[], $3::bytea[], $4::text[]) as c(tenant_id, event_id, business_key, reason)
             order by c.tenant_id, c.event_id, c.business_key
             on conflict do nothing",
        )
        .bind(cancels.iter().map(|c| c.tenant.as_str()).collect::<Vec<_>>())
        .bind(cancels.iter().map(event).collect::<Vec<_>>())
        .bind(cancels.iter().map(key).collect::<Vec<_>>())
        .bind(cancels.iter().map(|c| c.reason.as_str()).collect::<Vec<_>>())
        .execute(&self.pool)
        .await?;
        Ok(noted.rows_affected())
    }
}
