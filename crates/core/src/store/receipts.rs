//! Storing receipts and reducing them into their rows. A receipt and a submission may be committed in either order: each
//! side commits its own, then looks for the other. A receipt is a claim and never creates a row.

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use sqlx::PgConnection;

use super::ingest::word;
use super::{Store, StoreError};
use crate::domain::message::{MessageId, ProviderRef, Recipient};
use crate::domain::receipt::{ReceiptKind, Reduced, final_delivery};
use crate::domain::state::{Event, State, Step, apply};
use crate::telemetry::traces::{self, Operation};

/// A receipt as parsed by its account's dialect.
#[derive(Debug, Clone)]
pub struct NewReceipt {
    pub account: String,
    pub txn_id: Option<ProviderRef>,
    pub message_id: Option<ProviderRef>,
    pub recipient: Option<Recipient>,
    pub code: Option<String>,
    /// `None`: the code is not mapped, so the receipt says nothing by itself.
    pub kind: Option<ReceiptKind>,
    pub cause: Option<String>,
    pub done_at: Option<DateTime<Utc>>,
    pub content_type: Option<String>,
    pub raw: Vec<u8>,
    pub trace_parent: Option<String>,
}

impl NewReceipt {
    /// Over the identifying fields, length-prefixed: the same receipt pushed twice has the same digest, and two recipients
    /// of one request never share one.
    fn digest(&self) -> Vec<u8> {
        let done_at = self.done_at.map(|at| at.timestamp_millis().to_string());
        let fields = [
            Some(self.account.as_str()),
            self.txn_id.as_ref().map(ProviderRef::as_str),
            self.message_id.as_ref().map(ProviderRef::as_str),
            self.recipient.as_ref().map(Recipient::expose),
            self.code.as_deref(),
            done_at.as_deref(),
        ];
        let mut hasher = Sha256::new();
        for field in fields {
            let bytes = field.unwrap_or_default().as_bytes();
            hasher.update((bytes.len() as u64).to_be_bytes());
            hasher.update(bytes);
        }
        hasher.finalize().to_vec()
    }
}

/// What became of a batch of receipts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Reduced into their rows.
    pub applied: usize,
    /// Kept for a row that is not there yet.
    pub early: usize,
    /// Seen before.
    pub repeated: usize,
    /// Rows whose receipts now contradict each other, or contradict what the row knows.
    pub contradicting: usize,
    /// Rows that reached a final state.
    pub finished: usize,
}

/// A stored receipt that has its row.
#[derive(Debug, Clone)]
struct Matched {
    receipt_id: i64,
    received_at: DateTime<Utc>,
    message_id: i64,
    message_created_at: DateTime<Utc>,
    account: String,
    provider_message_id: Option<String>,
    kind: Option<ReceiptKind>,
    code: Option<String>,
    cause: Option<String>,
    done_at: Option<DateTime<Utc>>,
    /// Of the push that brought it.
    trace_parent: Option<String>,
}

/// A row after its new receipts.
struct Change<'a> {
    created_at: DateTime<Utc>,
    state: State,
    reduced: Reduced,
    /// The earliest time that its receipts tell.
    delivered_at: Option<DateTime<Utc>>,
    read_at: Option<DateTime<Utc>>,
    provider_message_id: Option<&'a str>,
    /// Whose code and words the row shows: the new receipt that outranks all before it.
    outranking: Option<&'a Matched>,
}

type OpenRow = (
    i64,
    DateTime<Utc>,
    i64,
    DateTime<Utc>,
    String,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<DateTime<Utc>>,
    Option<String>,
);

/// Finds the row of each open receipt: by the provider's message id, unless that one went to another recipient; else by
/// transaction and recipient, unless two rows fit. The recipient's index makes that one probe a receipt, however many
/// rows share the transaction; `limit` and `offset` keep the planner from any other way through.
macro_rules! match_open {
    ($name:literal, $open:literal) => {
        match_open!($name, $open, "")
    };
    ($name:literal, $open:literal, $limit:literal) => {
        concat!(
            "/* ", $name, " */
             with open as (", $open, ")
             select o.id, o.received_at, coalesce(by_id.message_id, by_txn.id), coalesce(by_id.message_created_at, by_txn.created_at),
                o.provider_account, o.provider_message_id, o.kind, o.code, o.cause, o.done_at, o.trace_parent
             from open o
             left join lateral (
                select p.message_id, p.message_created_at
                from provider_message p
                cross join lateral (
                    select m.recipient from outbound_message m
                    where m.id = p.message_id and m.created_at = p.message_created_at limit 1
                ) m
                where p.provider_account = o.provider_account and p.provider_message_id = o.provider_message_id
                    and (o.recipient is null or m.recipient = o.recipient)
             ) by_id on true
             left join lateral (
                select min(m.id) as id, min(m.created_at) as created_at
                from (
                    select * from submission s
                    where by_id.message_id is null and s.provider_txn_id = o.provider_txn_id
                        and s.provider_account = o.provider_account
                    offset 0
                ) s
                cross join lateral (
                    select * from outbound_message m
                    where m.recipient = o.recipient and m.provider_account = o.provider_account
                        and m.created_at = s.message_created_at and m.provider_txn_id = o.provider_txn_id
                        and array[m.id] <@ s.message_ids
                    offset 0
                ) m
                having count(distinct m.id) = 1
             ) by_txn on true
             where coalesce(by_id.message_id, by_txn.id) is not null ",
            $limit
        )
    };
}

impl Store {
    /// Stores what is new of `receipts` once, and reduces each into its row where there is one.
    ///
    /// # Errors
    /// `Unavailable`: call again, nothing is applied twice. `Data`: one of them holds a value the database refuses.
    pub async fn apply_receipts(&self, receipts: &[NewReceipt]) -> Result<Applied, StoreError> {
        let mut tx = self.pool.begin().await?;
        let (ids, received_at) = insert_receipts(&mut tx, receipts).await?;
        // Committed as `early` first, then looked for: a submission committed in between is seen from one side or the other.
        tx.commit().await?;
        let mut applied = self
            .apply_open(
                sqlx::query_as(match_open!(
                    "match_new_receipts",
                    // As a parameter it fits no partial index, one of which would be read whole.
                    "select * from receipt where id = any($1) and received_at = $2 and disposition = $3"
                ))
                .bind(&ids)
                .bind(received_at)
                .bind("early"),
            )
            .await?;
        applied.repeated = receipts.len() - ids.len();
        applied.early = ids.len() - applied.applied;
        Ok(applied)
    }

    /// Applies the receipts that came before the submissions with these transaction or message ids were recorded.
    ///
    /// # Errors
    /// The database is away; the receipts sweep will do it.
    pub async fn apply_early(&self, account: &str, ids: &[String]) -> Result<Applied, StoreError> {
        self.apply_open(
            sqlx::query_as(match_open!(
                "match_early_receipts",
                "select r.* from unnest($2::text[]) as v(ref) cross join lateral (
                    select * from receipt r where r.provider_txn_id = v.ref and r.provider_account = $1
                        and r.disposition <> 'applied' offset 0
                 ) r
                 union all
                 select r.* from unnest($2::text[]) as v(ref) cross join lateral (
                    select * from receipt r where r.provider_message_id = v.ref and r.provider_account = $1
                        and r.disposition <> 'applied' and (r.provider_txn_id = any($2)) is not true offset 0
                 ) r"
            ))
            .bind(account)
            .bind(ids),
        )
        .await
    }

    /// Matches early receipts again, up to `limit` of those that have their row by now (a limit on what is looked at would
    /// let a few strays hide all that come after them), and turns those older than `orphan_after` into orphans.
    ///
    /// # Errors
    /// The database is away.
    pub async fn sweep_receipts(
        &self,
        limit: i64,
        orphan_after: std::time::Duration,
    ) -> Result<(Applied, u64), StoreError> {
        let applied = self
            .apply_open(
                sqlx::query_as(match_open!(
                    "sweep_early_receipts",
                    "select * from receipt where disposition = 'early'",
                    "limit $1"
                ))
                .bind(limit),
            )
            .await?;
        let orphans = sqlx::query(
            "/* orphan_receipts */
             update receipt set disposition = 'orphan'
             where disposition = 'early' and received_at <= clock_now() - make_interval(secs => $1)",
        )
        .bind(orphan_after.as_secs_f64())
        .execute(&self.pool)
        .await?;
        Ok((applied, orphans.rows_affected()))
    }

    async fn apply_open<'q>(
        &self,
        matching: sqlx::query::QueryAs<'q, sqlx::Postgres, OpenRow, sqlx::postgres::PgArguments>,
    ) -> Result<Applied, StoreError> {
        let rows: Vec<OpenRow> = matching.fetch_all(&self.pool).await?;
        if rows.is_empty() {
            return Ok(Applied::default());
        }
        let matched = rows
            .into_iter()
            .map(
                |(
                    receipt_id,
                    received_at,
                    message_id,
                    message_created_at,
                    account,
                    provider_message_id,
                    kind,
                    code,
                    cause,
                    done_at,
                    trace_parent,
                )| {
                    let kind = kind.as_deref().map(word).transpose()?;
                    Ok(Matched {
                        receipt_id,
                        received_at,
                        message_id,
                        message_created_at,
                        account,
                        provider_message_id,
                        kind,
                        code,
                        cause,
                        done_at,
                        trace_parent,
                    })
                },
            )
            .collect::<Result<Vec<_>, StoreError>>()?;
        let mut tx = self.pool.begin().await?;
        let (mut applied, processing) = reduce_into_rows(&mut tx, &matched).await?;
        mark_applied(&mut tx, &matched).await?;
        tx.commit().await?;
        drop(processing);
        applied.applied = matched.len();
        Ok(applied)
    }
}

/// Inserts what was never seen, as `early`; returns the ids given and the time they share.
async fn insert_receipts(
    tx: &mut PgConnection,
    receipts: &[NewReceipt],
) -> Result<(Vec<i64>, Option<DateTime<Utc>>), StoreError> {
    let mut seen = HashSet::new();
    let digests: Vec<Vec<u8>> = receipts.iter().map(NewReceipt::digest).collect();
    let (digests, fresh): (Vec<&Vec<u8>>, Vec<&NewReceipt>) =
        digests.iter().zip(receipts).filter(|(digest, _)| seen.insert(*digest)).unzip();
    let text = |pick: fn(&NewReceipt) -> Option<&str>| fresh.iter().map(|r| pick(r)).collect::<Vec<_>>();
    let inserted: Vec<(i64, DateTime<Utc>)> = sqlx::query_as(
        "/* insert_receipts */
         with input as (
            select * from unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::text[], $9::timestamptz[], $10::text[], $11::bytea[], $12::text[])
                as v(digest, account, txn_id, message_id, recipient, code, kind, cause, done_at, content_type, raw, trace)
         ), new as (
            insert into receipt_key (digest, received_at)
            select digest, clock_now() from input order by digest
            on conflict do nothing returning digest, received_at
         )
         insert into receipt (received_at, digest, provider_account, provider_txn_id, provider_message_id, recipient, code,
            kind, cause, done_at, content_type, raw, trace_parent, disposition)
         select new.received_at, i.digest, i.account, i.txn_id, i.message_id, i.recipient, i.code, i.kind, i.cause, i.done_at,
            i.content_type, i.raw, i.trace, 'early'
         from input i join new on new.digest = i.digest
         returning id, received_at",
    )
    .bind(digests)
    .bind(text(|r| Some(r.account.as_str())))
    .bind(text(|r| r.txn_id.as_ref().map(ProviderRef::as_str)))
    .bind(text(|r| r.message_id.as_ref().map(ProviderRef::as_str)))
    .bind(text(|r| r.recipient.as_ref().map(Recipient::expose)))
    .bind(text(|r| r.code.as_deref()))
    .bind(text(|r| r.kind.map(ReceiptKind::as_str)))
    .bind(text(|r| r.cause.as_deref()))
    .bind(fresh.iter().map(|r| r.done_at).collect::<Vec<_>>())
    .bind(text(|r| r.content_type.as_deref()))
    .bind(fresh.iter().map(|r| r.raw.as_slice()).collect::<Vec<_>>())
    .bind(text(|r| r.trace_parent.as_deref()))
    .fetch_all(tx)
    .await?;
    let received_at = inserted.first().map(|(_, at)| *at);
    Ok((inserted.into_iter().map(|(id, _)| id).collect(), received_at))
}

/// Locks the rows by id and joins the new receipts into what they know. The join does not depend on order or repetition. Each
/// receipt is a span in the trace of its row, which ends when all is committed.
async fn reduce_into_rows(tx: &mut PgConnection, matched: &[Matched]) -> Result<(Applied, Vec<Operation>), StoreError> {
    let mut by_row: BTreeMap<i64, Vec<&Matched>> = BTreeMap::new();
    for receipt in matched {
        by_row.entry(receipt.message_id).or_default().push(receipt);
    }
    type Locked = (i64, DateTime<Utc>, String, Option<String>, bool, Option<String>);
    let locked: Vec<Locked> = sqlx::query_as(
        "/* lock_receipt_rows */
         select m.id, m.created_at, m.state::text, m.receipt_state, m.receipt_conflict, m.trace_parent
         from (select * from unnest($1::bigint[], $2::timestamptz[]) as v(id, created_at) order by id) as v
         cross join lateral (
            select * from outbound_message m where m.id = v.id and m.created_at = v.created_at limit 1 for update
         ) m",
    )
    .bind(by_row.keys().copied().collect::<Vec<_>>())
    .bind(by_row.values().filter_map(|of| of.first()).map(|m| m.message_created_at).collect::<Vec<_>>())
    .fetch_all(&mut *tx)
    .await?;

    let named = matched.iter().filter_map(|m| {
        let provider_message_id = m.provider_message_id.as_deref()?;
        Some(OwnedId { account: &m.account, provider_message_id, id: m.message_id, created_at: m.message_created_at })
    });
    let foreign = own_message_ids(tx, named.collect()).await?;
    let mut applied = Applied { contradicting: foreign.len(), ..Applied::default() };
    let mut changes: BTreeMap<i64, Change<'_>> = BTreeMap::new();
    let (mut processing, mut finished) = (Vec::new(), Vec::new());
    for (id, created_at, state, receipt_state, conflict, trace_parent) in locked {
        let Some(receipts) = by_row.get(&id) else { continue };
        let process = |receipt: &&Matched| {
            traces::process_receipt(MessageId(id), trace_parent.as_deref(), receipt.trace_parent.as_deref())
        };
        processing.extend(receipts.iter().filter_map(process));
        let before: State = word(&state)?;
        let known = receipt_state.as_deref().map(word).transpose()?;
        let (state, reduced, contradiction) = reduce(before, Reduced { state: known, conflict }, receipts);
        if state != before && state.is_final() {
            finished.push(id);
        }
        applied.contradicting += usize::from(contradiction || (reduced.conflict && !conflict));
        let earliest = |kinds: &[ReceiptKind]| {
            let said = receipts.iter().filter(|r| r.kind.is_some_and(|kind| kinds.contains(&kind)));
            // A time that the provider does not tell ("0") stays NULL: ours is no measure of its latency.
            said.filter_map(|r| r.done_at).min()
        };
        let ids = receipts.iter().filter_map(|r| r.provider_message_id.as_deref());
        let change = Change {
            created_at,
            state,
            reduced,
            delivered_at: earliest(&[ReceiptKind::Delivered, ReceiptKind::Read]),
            read_at: earliest(&[ReceiptKind::Read]),
            provider_message_id: ids.filter(|own| !foreign.contains(&(id, (*own).to_owned()))).min(),
            outranking: receipts.iter().copied().filter(|r| r.kind > known).max_by_key(|r| r.kind),
        };
        changes.insert(id, change);
    }
    write_changes(tx, &changes).await?;
    applied.finished = finished.len();
    forget_silent(tx, finished).await?;
    Ok((applied, processing))
}

/// A message that was silent for too long is looked up no more once it is final.
async fn forget_silent(tx: &mut PgConnection, finished: Vec<i64>) -> Result<(), StoreError> {
    if !finished.is_empty() {
        sqlx::query("/* forget_silent */ delete from unresolved where message_id = any($1)")
            .bind(finished)
            .execute(tx)
            .await?;
    }
    Ok(())
}

/// `state` takes the first final receipt and stays; `receipt_state` is the join of all.
fn reduce(mut state: State, mut reduced: Reduced, receipts: &[&Matched]) -> (State, Reduced, bool) {
    let mut contradiction = false;
    for kind in receipts.iter().filter_map(|receipt| receipt.kind) {
        reduced = reduced.join(kind);
        let Some(delivery) = final_delivery(kind) else { continue };
        match apply(state, Event::Receipt(delivery)) {
            Ok(Step::Move(to)) => state = to,
            Ok(Step::Stay) => {}
            // A receipt for a row that was never accepted: kept with the row, counted, and nothing is moved by it.
            Err(_) => contradiction = true,
        }
    }
    (state, reduced, contradiction)
}

async fn write_changes(tx: &mut PgConnection, changes: &BTreeMap<i64, Change<'_>>) -> Result<(), StoreError> {
    let column = |pick: fn(&Change<'_>) -> Option<String>| changes.values().map(pick).collect::<Vec<_>>();
    sqlx::query(
        "/* write_receipt_states */
         update outbound_message m set
            state = v.state::message_state,
            receipt_state = v.receipt_state,
            receipt_conflict = v.conflict,
            delivered_at = least(m.delivered_at, v.delivered_at),
            read_at = least(m.read_at, v.read_at),
            final_at = case when v.state in ('delivered', 'failed', 'expired') then coalesce(m.final_at, clock_now())
                else m.final_at end,
            state_reason = case when m.state = 'submitted' and v.state in ('failed', 'expired')
                then 'receipt_' || v.state else m.state_reason end,
            provider_message_id = coalesce(m.provider_message_id, v.provider_message_id),
            provider_status_code = coalesce(v.code, m.provider_status_code),
            provider_cause = coalesce(v.cause, m.provider_cause),
            updated_at = clock_now()
         from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::boolean[], $6::timestamptz[],
            $7::timestamptz[], $8::text[], $9::text[], $10::text[])
            as v(id, created_at, state, receipt_state, conflict, delivered_at, read_at, provider_message_id, code, cause)
         where m.id = v.id and m.created_at = v.created_at and m.id = any($1)
            and m.created_at between (select min(at) from unnest($2) as at) and (select max(at) from unnest($2) as at)",
    )
    .bind(changes.keys().copied().collect::<Vec<_>>())
    .bind(changes.values().map(|c| c.created_at).collect::<Vec<_>>())
    .bind(column(|c| Some(c.state.as_str().to_owned())))
    .bind(column(|c| c.reduced.state.map(|kind| kind.as_str().to_owned())))
    .bind(changes.values().map(|c| c.reduced.conflict).collect::<Vec<_>>())
    .bind(changes.values().map(|c| c.delivered_at).collect::<Vec<_>>())
    .bind(changes.values().map(|c| c.read_at).collect::<Vec<_>>())
    .bind(column(|c| c.provider_message_id.map(str::to_owned)))
    .bind(column(|c| c.outranking.and_then(|receipt| receipt.code.clone())))
    .bind(column(|c| c.outranking.and_then(|receipt| receipt.cause.clone())))
    .execute(tx)
    .await?;
    Ok(())
}

/// A provider message id and the message that an answer or a receipt gives it to.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnedId<'a> {
    pub(super) account: &'a str,
    pub(super) provider_message_id: &'a str,
    pub(super) id: i64,
    pub(super) created_at: DateTime<Utc>,
}

/// Notes whose each id is: a provider message id belongs to one message, the first. Returns those that are another's. The
/// rows are locked.
pub(super) async fn own_message_ids(
    tx: &mut PgConnection,
    mut ids: Vec<OwnedId<'_>>,
) -> Result<HashSet<(i64, String)>, StoreError> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    // In one order, so that two transactions that name the same ids wait for each other and never deadlock.
    ids.sort_by_key(|own| (own.account, own.provider_message_id, own.id));
    let foreign: Vec<(i64, String)> = sqlx::query_as(
        "/* own_message_ids */
         with input as (
            select * from unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[])
                as v(account, provider_message_id, message_id, created_at)
         ), own as (
            insert into provider_message (provider_account, provider_message_id, message_id, message_created_at)
            select account, provider_message_id, message_id, created_at from input
            on conflict do nothing
            returning provider_account, provider_message_id, message_id
         )
         select distinct i.message_id, i.provider_message_id from input i
         where not exists (select from own where own.provider_account = i.account
                and own.provider_message_id = i.provider_message_id and own.message_id = i.message_id)
            and not exists (select from provider_message p where p.provider_account = i.account
                and p.provider_message_id = i.provider_message_id and p.message_id = i.message_id)",
    )
    .bind(ids.iter().map(|own| own.account).collect::<Vec<_>>())
    .bind(ids.iter().map(|own| own.provider_message_id).collect::<Vec<_>>())
    .bind(ids.iter().map(|own| own.id).collect::<Vec<_>>())
    .bind(ids.iter().map(|own| own.created_at).collect::<Vec<_>>())
    .fetch_all(tx)
    .await?;
    Ok(foreign.into_iter().collect())
}

async fn mark_applied(tx: &mut PgConnection, matched: &[Matched]) -> Result<(), StoreError> {
    sqlx::query(
        "/* mark_receipts_applied */
         update receipt r set disposition = 'applied', message_id = v.message_id, message_created_at = v.created_at
         from unnest($1::bigint[], $4::timestamptz[], $2::bigint[], $3::timestamptz[])
            as v(id, received_at, message_id, created_at)
         where r.id = v.id and r.received_at = v.received_at and r.id = any($1)
            and r.received_at between (select min(at) from unnest($4) as at) and (select max(at) from unnest($4) as at)",
    )
    .bind(matched.iter().map(|m| m.receipt_id).collect::<Vec<_>>())
    .bind(matched.iter().map(|m| m.message_id).collect::<Vec<_>>())
    .bind(matched.iter().map(|m| m.message_created_at).collect::<Vec<_>>())
    .bind(matched.iter().map(|m| m.received_at).collect::<Vec<_>>())
    .execute(tx)
    .await?;
    Ok(())
}
