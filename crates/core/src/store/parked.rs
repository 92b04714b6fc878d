//! What is set aside for a person, with the reason and the original bytes. Parking the same thing again is the same row.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Store, StoreError};
use crate::domain::message::words;

words!(
    /// What was parked.
    ParkKind, "kind of parked thing", {
        Event => "event", Recipient => "recipient", KeyConflict => "key_conflict", Receipt => "receipt",
    }
);

/// Why: a stable word to count and filter by, and a sentence for the person who looks. Neither holds a number or a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkReason {
    pub code: String,
    pub detail: String,
}

impl ParkReason {
    /// A reason.
    #[must_use]
    pub fn new(code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { code: code.into(), detail: detail.into() }
    }
}

/// Something to set aside.
#[derive(Debug, Clone)]
pub struct ToPark {
    pub kind: ParkKind,
    pub reason: ParkReason,
    pub tenant: Option<String>,
    pub event_id: Option<String>,
    pub recipient: Option<String>,
    pub original: Vec<u8>,
    pub headers: Value,
}

impl ToPark {
    fn digest(&self) -> Vec<u8> {
        let mut hasher = Sha256::new();
        for part in [
            self.kind.as_str().as_bytes(),
            self.reason.code.as_bytes(),
            self.recipient.as_deref().unwrap_or_default().as_bytes(),
            &self.original,
        ] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.finalize().to_vec()
    }
}

impl Store {
    /// Parks all of `things`; what is parked already is only counted again.
    ///
    /// # Errors
    /// The database is away.
    pub async fn park(&self, things: &[ToPark]) -> Result<(), StoreError> {
        if things.is_empty() {
            return Ok(());
        }
        let text = |pick: fn(&ToPark) -> Option<&str>| things.iter().map(|t| pick(t).map(clean)).collect::<Vec<_>>();
        sqlx::query(
            "/* park */
             insert into parked (digest, kind, reason, detail, tenant_id, event_id, recipient, original, headers)
             select distinct on (digest) * from unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[],
                $6::text[], $7::text[], $8::bytea[], $9::jsonb[])
             as v(digest, kind, reason, detail, tenant_id, event_id, recipient, original, headers)
             order by digest
             on conflict (digest) do update set times_seen = parked.times_seen + 1",
        )
        .bind(things.iter().map(ToPark::digest).collect::<Vec<_>>())
        .bind(text(|t| Some(t.kind.as_str())))
        .bind(text(|t| Some(&t.reason.code)))
        .bind(text(|t| Some(&t.reason.detail)))
        .bind(text(|t| t.tenant.as_deref()))
        .bind(text(|t| t.event_id.as_deref()))
        .bind(text(|t| t.recipient.as_deref()))
        .bind(things.iter().map(|t| t.original.as_slice()).collect::<Vec<_>>())
        .bind(things.iter().map(|t| t.headers.clone()).collect::<Vec<_>>())
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// How many parked things nobody has resolved.
    ///
    /// # Errors
    /// The database is away.
    pub async fn parked_open(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("/* parked_open */ select count(*) from parked where resolved_at is null")
            .fetch_one(&self.pool)
            .await?)
    }
}

/// PostgreSQL text holds no NUL; the original bytes keep it.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
