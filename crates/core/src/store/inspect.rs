//! Reading for people, the demo and the tests: states by class, money, what is parked, what is unresolved, one message
//! with its whole story.

use chrono::{DateTime, NaiveDate, Utc};
use rust_decimal::Decimal;
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;

use super::{Store, StoreError};

/// Messages of one class in one state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, FromRow)]
pub struct StateCount {
    pub class: String,
    pub state: String,
    pub messages: i64,
}

/// Messages of a class by state, as one line.
pub type ClassCounts = Vec<StateCount>;

/// Money of one tenant, UTC day and channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, FromRow)]
pub struct CostLine {
    pub tenant: String,
    pub day: NaiveDate,
    pub channel: String,
    pub currency: String,
    /// Messages that the provider accepted, delivered or not.
    pub submitted: i64,
    pub units: i64,
    pub cost: Decimal,
    /// What the unknown messages would cost if they were all accepted.
    pub exposure_messages: i64,
    pub exposure_units: i64,
    pub exposure: Decimal,
}

/// Something parked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, FromRow)]
pub struct ParkedView {
    pub id: i64,
    pub kind: String,
    pub reason: String,
    pub detail: String,
    pub tenant_id: Option<String>,
    pub event_id: Option<String>,
    pub times_seen: i32,
    pub parked_at: DateTime<Utc>,
}

/// A message whose outcome is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, FromRow)]
pub struct UnresolvedView {
    pub message_id: i64,
    pub kind: String,
    pub tenant_id: String,
    pub channel: String,
    pub class: String,
    pub reason: Option<String>,
    pub since: DateTime<Utc>,
    pub polls: i32,
    pub needs_review_since: Option<DateTime<Utc>>,
    pub correlation_result: Option<String>,
}

/// One message, its attempts and its receipts, as JSON objects without number and body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessageView {
    pub message: Value,
    pub attempts: Vec<Value>,
    pub receipts: Vec<Value>,
}

impl Store {
    /// Messages by class and state.
    ///
    /// # Errors
    /// The database is away.
    pub async fn state_counts(&self) -> Result<ClassCounts, StoreError> {
        Ok(sqlx::query_as(
            "/* state_counts */
             select message_class::text as class, state::text as state, count(*) as messages
             from outbound_message group by message_class, state order by message_class, state",
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Spend by tenant, UTC day of submission and channel; unknown messages as exposure, by the day of their claim.
    ///
    /// # Errors
    /// The database is away.
    pub async fn cost_lines(&self) -> Result<Vec<CostLine>, StoreError> {
        Ok(sqlx::query_as(
            "/* cost_lines */
             select tenant_id as tenant, day, channel::text as channel, currency::text as currency,
                count(*) filter (where billed) as submitted,
                coalesce(sum(units) filter (where billed), 0)::bigint as units,
                coalesce(sum(amount) filter (where billed), 0) as cost,
                count(*) filter (where not billed) as exposure_messages,
                coalesce(sum(units) filter (where not billed), 0)::bigint as exposure_units,
                coalesce(sum(amount) filter (where not billed), 0) as exposure
             from (
                select tenant_id, channel, cost_currency as currency, state <> 'unknown' as billed,
                    (coalesce(submitted_at, claimed_at) at time zone 'UTC')::date as day,
                    coalesce(billable_units, segments) as units, coalesce(cost, unit_price * segments) as amount
                from outbound_message where cost is not null or state = 'unknown'
             ) as spent
             group by tenant_id, day, channel, currency order by tenant_id, day, channel, currency",
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Open parked things, newest first.
    ///
    /// # Errors
    /// The database is away.
    pub async fn list_parked(&self, limit: i64) -> Result<Vec<ParkedView>, StoreError> {
        Ok(sqlx::query_as(
            "/* list_parked */
             select id, kind, reason, detail, tenant_id, event_id, times_seen, parked_at
             from parked where resolved_at is null order by parked_at desc limit $1",
        )
        .bind(limit)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Messages whose outcome is open, oldest first.
    ///
    /// # Errors
    /// The database is away.
    pub async fn list_unresolved(&self, limit: i64) -> Result<Vec<UnresolvedView>, StoreError> {
        Ok(sqlx::query_as(
            "/* list_unresolved */
             select u.message_id, u.kind, u.tenant_id, u.channel::text as channel, u.message_class::text as class,
                m.state_reason as reason, u.since, u.polls, u.needs_review_since,
                m.correlation_result::text as correlation_result
             from unresolved u
             join outbound_message m on m.id = u.message_id and m.created_at = u.message_created_at
             order by u.since limit $1",
        )
        .bind(limit)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Ids of the messages that `what` names: a message id, a business key in hex, an event id, a trace id, a transaction or
    /// message id of the provider, or a recipient in E.164 digits. Newest first, at most 100.
    ///
    /// # Errors
    /// The database is away.
    pub async fn find_messages(&self, what: &str) -> Result<Vec<i64>, StoreError> {
        Ok(sqlx::query_scalar(
            "/* find_messages */
             select id from (
                select id, created_at from outbound_message where id = (case when $1 ~ '^[0-9]{1,18}$' then $1::bigint end)
                union
                select id, created_at from outbound_message where event_id = $1
                union
                select id, created_at from outbound_message where recipient = $1
                union
                select id, created_at from outbound_message where trace_parent is not null
                    and substring(trace_parent from 4 for 32) = (case when $1 ~ '^[0-9a-f]{32}$' then $1 end)
                union
                select message_id, message_created_at from message_key
                    where business_key = (case when $1 ~ '^[0-9a-f]{64}$' then decode($1, 'hex') end)
                union
                select m.id, m.created_at from submission s cross join lateral unnest(s.message_ids) as u(id)
                    join outbound_message m on m.id = u.id and m.created_at = s.message_created_at
                    where s.provider_txn_id = $1
                union
                select message_id, message_created_at from provider_message where provider_message_id = $1
             ) as found order by created_at desc, id desc limit 100",
        )
        .bind(what)
        .fetch_all(&self.pool)
        .await?)
    }

    /// One message with its attempts and receipts; the number is masked, the body left out.
    ///
    /// # Errors
    /// The database is away.
    pub async fn find_message(&self, id: i64) -> Result<Option<MessageView>, StoreError> {
        let message: Option<Value> = sqlx::query_scalar(
            "/* find_message */
             select to_jsonb(m) - array['body', 'content', 'secret_params', 'recipient', 'business_key', 'input_hash']
                || jsonb_build_object('business_key', encode(business_key, 'hex'), 'recipient',
                    left(recipient, 2) || repeat('*', greatest(length(recipient) - 4, 0)) || right(recipient, 2),
                    -- As text: a JSON number would pass through a float.
                    'unit_price', unit_price::text, 'cost', cost::text, 'reported_cost', reported_cost::text)
             from outbound_message m where id = $1",
        )
        .bind(id)
        .fetch_optional(&self.pool)
        .await?;
        let Some(message) = message else { return Ok(None) };
        let attempts = sqlx::query_scalar(
            "/* message_attempts */
             select to_jsonb(s) - 'message_ids' || jsonb_build_object('messages', cardinality(s.message_ids))
             from submission s join outbound_message m on m.job_id = s.job_id and m.created_at = s.message_created_at
             where m.id = $1 and m.id = any(s.message_ids) order by s.claimed_at",
        )
        .bind(id)
        .fetch_all(&self.pool)
        .await?;
        let receipts = sqlx::query_scalar(
            "/* message_receipts */
             select to_jsonb(r) - array['raw', 'recipient', 'digest'] from receipt r
             where message_id = $1 order by received_at, id",
        )
        .bind(id)
        .fetch_all(&self.pool)
        .await?;
        Ok(Some(MessageView { message, attempts, receipts }))
    }
}
