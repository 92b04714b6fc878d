//! What a person would ask next: how one message came to be where it is, and how each doubt was settled, or why it stays.

use anyhow::Result;

use super::lines;
use crate::fleet::Fleet;

/// One message from its event to its end.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) event: String,
    /// Seconds since the row was made, and what happened.
    pub(super) steps: Vec<Vec<String>>,
}

/// The events whose messages are told: an ordinary one, one whose answer was lost, one that stays open.
const TOLD: [&str; 3] = ["T0", "F11-0", "F18-0"];

pub(super) async fn stories(fleet: &Fleet) -> Result<Vec<Story>> {
    let mut stories = Vec::new();
    for event in TOLD {
        let steps = lines(fleet, &STEPS.replace("@event@", event)).await?;
        stories.push(Story { event: event.to_owned(), steps });
    }
    Ok(stories)
}

/// Every message whose answer was not clear: what the answer was, what became of it, and on whose word.
pub(super) async fn doubts(fleet: &Fleet) -> Result<Vec<Vec<String>>> {
    lines(fleet, DOUBTS).await
}

/// The messages that are still unknown, by the event that made them.
pub(super) async fn still_unknown(fleet: &Fleet) -> Result<Vec<Vec<String>>> {
    lines(fleet, STILL_UNKNOWN).await
}

const STEPS: &str = "
    select to_char(extract(epoch from at - created_at), 'FM999990.000'), what
    from outbound_message m
    cross join lateral (
        select created_at as at, 1 as rank, 'event ' || event_id || ' admitted as message ' || id || ': ' || segments
            || ' segment, ' || unit_price || ' ' || cost_currency || ' each, job ' || job_id as what
        union all
        select s.claimed_at, 2, 'claimed, then the request left: attempt ' || s.attempt_key
            from submission s where s.job_id = m.job_id and m.id = any(s.message_ids)
        union all
        select s.ended_at, 3, 'answer: ' || s.verdict || coalesce(' (' || s.detail || ')', '')
            || coalesce(', HTTP ' || s.http_status, '') || coalesce(', transaction ' || s.provider_txn_id, '')
            from submission s where s.job_id = m.job_id and m.id = any(s.message_ids)
        union all
        select r.received_at, 4, 'receipt: code ' || coalesce(r.code, '-') || ', ' || coalesce(r.kind, 'says nothing')
            || coalesce(', provider message ' || r.provider_message_id, '')
            from receipt r where r.message_id = m.id
        union all
        select m.reconciled_at, 5, 'report: ' || m.correlation_result || ' by ' || coalesce(m.evidence ->> 'by', '-')
            || coalesce(' among ' || (m.evidence ->> 'records_considered') || ' record and '
                || (m.evidence ->> 'rows_considered') || ' row, transaction ' || m.provider_txn_id, '')
            where m.correlation_result = 'matched' and m.evidence is not null
        union all
        select m.final_at, 6, m.state || case when m.cost is null then ', no cost' else ', cost ' || m.cost || ' '
            || m.cost_currency || ' for ' || m.billable_units || ' unit' end where m.final_at is not null
        union all
        select m.updated_at, 7, m.state || ' because ' || coalesce(m.state_reason, '-') || '; the report says '
            || coalesce(m.correlation_result::text, 'nothing yet') || '; exposure ' || m.unit_price * m.segments || ' '
            || m.cost_currency where m.state = 'unknown'
    ) as step
    where m.event_id = '@event@' and at is not null
    order by at, rank";

const DOUBTS: &str = "
    select s.detail, m.state, coalesce(m.correlation_result::text, '-'),
        case when m.evidence ->> 'kind' = 'own_answer' then 'the worker''s late answer'
            when m.correlation_result = 'matched' then 'one record, one row'
            else 'nothing accepted, which absence does not prove' end,
        count(*)
    from outbound_message m
    join submission s on s.job_id = m.job_id and m.id = any(s.message_ids)
    where s.verdict in ('ambiguous', 'lease_ended') or s.answered_late_at is not null
    group by 1, 2, 3, 4 order by 1, 2, 3";

const STILL_UNKNOWN: &str = "
    select event_id, id, state_reason, coalesce(correlation_result::text, 'not looked up yet')
    from outbound_message where state = 'unknown' order by event_id limit 20";
