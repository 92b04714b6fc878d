//! Admitting messages: keys, rows and jobs in one statement, which is one transaction. The unique key decides; what it did
//! not return is looked up in a second statement before anything is said about it, since two concurrent inserts of one
//! key see neither.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;

use super::{Store, StoreError, seconds};
use crate::domain::key::{BusinessKey, InputHash};
use crate::domain::message::{AttemptKey, Body, Channel, Class, Encoding, JobId, MessageId, Recipient};
use crate::domain::money::{Rate, RateCard};

/// A message about to be admitted. Its ids are drawn once per delivery and stay the same when the statement is repeated.
#[derive(Debug, Clone)]
pub struct NewMessage {
    pub id: MessageId,
    pub job_id: JobId,
    /// Random until the first claim.
    pub attempt_key: AttemptKey,
    pub business_key: BusinessKey,
    pub input_hash: InputHash,
    pub tenant: String,
    pub channel: Channel,
    pub class: Class,
    pub account: String,
    pub recipient: Recipient,
    pub sender_id: Option<String>,
    pub event_source: Option<String>,
    pub event_type: String,
    pub event_id: String,
    pub event_recipients: i32,
    pub step: Option<String>,
    pub campaign: Option<String>,
    pub trace_parent: Option<String>,
    pub template_id: Option<String>,
    pub body: Body,
    pub encoding: Encoding,
    pub segments: u16,
    pub dlt_entity_id: Option<String>,
    pub dlt_template_id: Option<String>,
    pub scheduled_for: Option<DateTime<Utc>>,
    /// Absolute expiry; `None`: `ttl` after `ttl_from`, or after the insert.
    pub expires_at: Option<DateTime<Utc>>,
    pub ttl: Duration,
    pub ttl_from: Option<DateTime<Utc>>,
    pub unit_price: Decimal,
    pub currency: String,
    pub rate_id: i64,
    pub fallback_channels: Vec<Channel>,
    /// The account's, at this time: a later change of the configuration does not move the goalposts.
    pub correlation_window: Duration,
}

/// A job about to be made; its rows are the new messages that name it.
#[derive(Debug, Clone)]
pub struct NewJob {
    pub id: JobId,
    pub tenant: String,
    pub channel: Channel,
    pub class: Class,
    pub account: String,
    /// `None`: published by ingest at once, a copy follows after the class's grace if nobody takes it.
    pub scheduled_for: Option<DateTime<Utc>>,
}

/// What became of a message at the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// A row of its own, now or by an earlier try whose answer was lost.
    Mine { created_at: DateTime<Utc> },
    /// The key's row exists and was made from the same inputs.
    Duplicate { winner: MessageId },
    /// The key's row exists and was made from other inputs: first wins.
    Conflict { winner: MessageId },
}

const ADMIT: &str = "/* admit */
with input as (
    select * from unnest(
        $1::bigint[], $2::bigint[], $3::uuid[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::int[], $16::text[], $17::text[], $18::text[],
        $19::text[], $20::text[], $21::text[], $22::smallint[], $23::text[], $24::text[], $25::timestamptz[],
        $26::timestamptz[], $27::float8[], $28::timestamptz[], $29::numeric[], $30::text[], $31::bigint[], $32::text[], $40::int[]
    ) as i(
        id, job_id, attempt_key, business_key, input_hash, tenant_id, channel, message_class, provider_account,
        recipient, sender_id, event_source, event_type, event_id, event_recipients, step, campaign, trace_parent,
        template_id, body, encoding, segments, dlt_entity_id, dlt_template_id, scheduled_for,
        expires_at, ttl, ttl_from, unit_price, currency, rate_id, fallback_channels,
        correlation_window_ms
    )
), keys as (
    -- In sorted order, so that two ingests that share keys wait for each other and never deadlock.
    insert into message_key (tenant_id, business_key, message_id, message_created_at, attempt_no, input_hash, first_seen)
    select tenant_id, business_key, id, clock_now(), 1, input_hash, clock_now()
    from input order by tenant_id, business_key, id
    on conflict do nothing
    returning message_id, message_created_at
), messages as (
    insert into outbound_message (
        id, created_at, job_id, business_key, attempt_key, tenant_id, channel, message_class, recipient, sender_id,
        provider_account, event_source, event_type, event_id, event_recipients, step, campaign, trace_parent, template_id,
        body, input_hash, encoding, segments, dlt_entity_id, dlt_template_id, scheduled_for, expires_at, updated_at,
        unit_price, cost_currency, rate_id, fallback_channels, correlation_window_ms)
    select i.id, k.message_created_at, i.job_id, i.business_key, i.attempt_key, i.tenant_id, i.channel::message_channel,
        i.message_class::message_class, i.recipient, i.sender_id, i.provider_account, i.event_source, i.event_type,
        i.event_id, i.event_recipients, i.step, i.campaign, i.trace_parent, i.template_id, i.body, i.input_hash,
        i.encoding, i.segments, i.dlt_entity_id, i.dlt_template_id, i.scheduled_for,
        coalesce(i.expires_at, coalesce(i.ttl_from, clock_now()) + make_interval(secs => i.ttl)), clock_now(),
        i.unit_price, i.currency, i.rate_id, i.fallback_channels::message_channel[], i.correlation_window_ms
    from input i join keys k on k.message_id = i.id
), jobs as (
    insert into send_job (id, created_at, tenant_id, channel, message_class, provider_account, message_ids, due_at, wake_at,
        published_at, publish_count)
    select j.id, min(k.message_created_at), j.tenant_id, j.channel::message_channel, j.message_class::message_class,
        j.provider_account, array_agg(k.message_id order by k.message_id),
        coalesce(j.scheduled_for, clock_now()), coalesce(j.scheduled_for, clock_now() + make_interval(secs => j.grace)),
        case when j.scheduled_for is null then clock_now() end, case when j.scheduled_for is null then 1 else 0 end
    from unnest($33::bigint[], $34::text[], $35::text[], $36::text[], $37::text[], $38::timestamptz[], $39::float8[])
        as j(id, tenant_id, channel, message_class, provider_account, scheduled_for, grace)
    join input i on i.job_id = j.id
    join keys k on k.message_id = i.id
    group by j.id, j.tenant_id, j.channel, j.message_class, j.provider_account, j.scheduled_for, j.grace
)
select message_id, message_created_at from keys";

/// One vector per column of the `admit` statement.
macro_rules! column {
    ($rows:expr, $of:expr) => {
        $rows.iter().map($of).collect::<Vec<_>>()
    };
}

impl Store {
    /// Inserts what is new of `messages` with its jobs, and says of each message, in order, what became of it.
    ///
    /// # Errors
    /// `Data` when the database refuses a value of one of them (nothing was written); `Unavailable` when it is away (call
    /// again with the same ids).
    pub async fn admit(&self, messages: &[NewMessage], jobs: &[NewJob]) -> Result<Vec<Admitted>, StoreError> {
        let mine = self.insert_new(messages, jobs).await?;
        let others: Vec<&NewMessage> = messages.iter().filter(|m| !mine.contains_key(&m.id)).collect();
        let known = if others.is_empty() { HashMap::new() } else { self.find_keys(&others).await? };
        messages
            .iter()
            .map(|message| match (mine.get(&message.id), known.get(&(message.tenant.as_str(), message.business_key))) {
                (Some(&created_at), _) => Ok(Admitted::Mine { created_at }),
                (None, Some(key)) if key.winner == message.id => Ok(Admitted::Mine { created_at: key.created_at }),
                (None, Some(key)) if key.input_hash == message.input_hash => {
                    Ok(Admitted::Duplicate { winner: key.winner })
                }
                (None, Some(key)) => Ok(Admitted::Conflict { winner: key.winner }),
                (None, None) => {
                    Err(StoreError::Unexpected(format!("message {} got no key and none exists", message.id)))
                }
            })
            .collect()
    }

    async fn insert_new(
        &self,
        rows: &[NewMessage],
        jobs: &[NewJob],
    ) -> Result<HashMap<MessageId, DateTime<Utc>>, StoreError> {
        let used: HashSet<JobId> = rows.iter().map(|row| row.job_id).collect();
        let jobs: Vec<&NewJob> = jobs.iter().filter(|job| used.contains(&job.id)).collect();
        let grace = |class: Class| seconds(self.timing.grace[class as usize]);
        let inserted: Vec<(i64, DateTime<Utc>)> = sqlx::query_as(ADMIT)
            .bind(column!(rows, |m| m.id.0))
            .bind(column!(rows, |m| m.job_id.0))
            .bind(column!(rows, |m| m.attempt_key.0))
            .bind(column!(rows, |m| m.business_key.as_bytes().to_vec()))
            .bind(column!(rows, |m| m.input_hash.as_bytes().to_vec()))
            .bind(column!(rows, |m| m.tenant.as_str()))
            .bind(column!(rows, |m| m.channel.as_str()))
            .bind(column!(rows, |m| m.class.as_str()))
            .bind(column!(rows, |m| m.account.as_str()))
            .bind(column!(rows, |m| m.recipient.expose()))
            .bind(column!(rows, |m| m.sender_id.as_deref()))
            .bind(column!(rows, |m| m.event_source.as_deref()))
            .bind(column!(rows, |m| m.event_type.as_str()))
            .bind(column!(rows, |m| m.event_id.as_str()))
            .bind(column!(rows, |m| m.event_recipients))
            .bind(column!(rows, |m| m.step.as_deref()))
            .bind(column!(rows, |m| m.campaign.as_deref()))
            .bind(column!(rows, |m| m.trace_parent.as_deref()))
            .bind(column!(rows, |m| m.template_id.as_deref()))
            .bind(column!(rows, |m| m.body.expose()))
            .bind(column!(rows, |m| m.encoding.as_str()))
            .bind(column!(rows, |m| i16::try_from(m.segments).unwrap_or(i16::MAX)))
            .bind(column!(rows, |m| m.dlt_entity_id.as_deref()))
            .bind(column!(rows, |m| m.dlt_template_id.as_deref()))
            .bind(column!(rows, |m| m.scheduled_for))
            .bind(column!(rows, |m| m.expires_at))
            .bind(column!(rows, |m| seconds(m.ttl)))
            .bind(column!(rows, |m| m.ttl_from))
            .bind(column!(rows, |m| m.unit_price))
            .bind(column!(rows, |m| m.currency.as_str()))
            .bind(column!(rows, |m| m.rate_id))
            .bind(column!(rows, |m| array_literal(&m.fallback_channels)))
            .bind(column!(jobs, |j| j.id.0))
            .bind(column!(jobs, |j| j.tenant.as_str()))
            .bind(column!(jobs, |j| j.channel.as_str()))
            .bind(column!(jobs, |j| j.class.as_str()))
            .bind(column!(jobs, |j| j.account.as_str()))
            .bind(column!(jobs, |j| j.scheduled_for))
            .bind(column!(jobs, |j| grace(j.class)))
            .bind(column!(rows, |m| i32::try_from(m.correlation_window.as_millis()).unwrap_or(i32::MAX)))
            .fetch_all(&self.pool)
            .await?;
        Ok(inserted.into_iter().map(|(id, created_at)| (MessageId(id), created_at)).collect())
    }

    async fn find_keys<'m>(
        &self,
        messages: &[&'m NewMessage],
    ) -> Result<HashMap<(&'m str, BusinessKey), KeyRow>, StoreError> {
        let found: Vec<(i64, i64, DateTime<Utc>, Vec<u8>)> = sqlx::query_as(
            "/* find_keys */
             select i.position, k.message_id, k.message_created_at, k.input_hash
             from unnest($1::text[], $2::bytea[]) with ordinality as i(tenant_id, business_key, position)
             cross join lateral (
                select * from message_key k where k.tenant_id = i.tenant_id and k.business_key = i.business_key limit 1
             ) k",
        )
        .bind(column!(messages, |m| m.tenant.as_str()))
        .bind(column!(messages, |m| m.business_key.as_bytes().to_vec()))
        .fetch_all(&self.pool)
        .await?;
        let mut keys = HashMap::new();
        for (position, winner, created_at, hash) in found {
            let message = usize::try_from(position - 1).ok().and_then(|i| messages.get(i));
            let (Some(message), Some(input_hash)) = (message, InputHash::from_bytes(&hash)) else { continue };
            keys.insert(
                (message.tenant.as_str(), message.business_key),
                KeyRow { winner: MessageId(winner), created_at, input_hash },
            );
        }
        Ok(keys)
    }

    /// Every rate that is or will be valid.
    ///
    /// # Errors
    /// The database is away.
    pub async fn rate_card(&self) -> Result<RateCard, StoreError> {
        type Row = (i64, String, String, String, String, Decimal, String, Option<DateTime<Utc>>, Option<DateTime<Utc>>);
        let rows: Vec<Row> = sqlx::query_as(
            "/* rate_card */
             select rate_id, tenant_id, channel::text, message_class::text, prefix, unit_price, currency::text,
                    nullif(valid_from, '-infinity'), valid_to
             from rate_card where valid_to is null or valid_to > clock_now() - interval '1 hour'",
        )
        .fetch_all(&self.pool)
        .await?;
        let rates = rows
            .into_iter()
            .map(|(id, tenant, channel, class, prefix, unit_price, currency, valid_from, valid_to)| {
                Ok(Rate {
                    id,
                    tenant,
                    channel: word(&channel)?,
                    class: word(&class)?,
                    prefix,
                    unit_price,
                    currency,
                    valid_from: valid_from.unwrap_or(DateTime::<Utc>::MIN_UTC),
                    valid_to,
                })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(RateCard::new(rates))
    }

    /// The database's clock, which decides every validity.
    ///
    /// # Errors
    /// The database is away.
    pub async fn clock_now(&self) -> Result<DateTime<Utc>, StoreError> {
        Ok(sqlx::query_scalar("/* clock_now */ select clock_now()").fetch_one(&self.pool).await?)
    }
}

struct KeyRow {
    winner: MessageId,
    created_at: DateTime<Utc>,
    input_hash: InputHash,
}

/// An array inside an array cannot be bound, so it travels as PostgreSQL's own literal.
fn array_literal(channels: &[Channel]) -> String {
    let words: Vec<&str> = channels.iter().map(|channel| channel.as_str()).collect();
    format!("{{{}}}", words.join(","))
}

/// Reads one of our own words back from the database.
pub(super) fn word<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|error: T::Err| StoreError::Unexpected(error.to_string()))
}
