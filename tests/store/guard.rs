//! What the database itself refuses, whoever asks.

use std::collections::BTreeSet;

use anyhow::Result;
use sendonce_core::domain::message::MessageId;
use sendonce_core::domain::state::{State, is_edge};

use crate::support::{ANNA, Bench, accepted, message, new_job};

const WORKER: &str = "sendonce_worker";
const IMPORT: &str = "sendonce_import";

/// A row of its own in `state`, copied from a pending one; `claimed` is reached as a sender does.
async fn row_in(bench: &Bench, state: State) -> Result<MessageId> {
    let template = message(new_job(), ANNA);
    bench.admit(std::slice::from_ref(&template)).await?;
    if matches!(state, State::Pending | State::Claimed) {
        if state == State::Claimed {
            let id = template.id;
            let sql = format!(
                "update outbound_message set state = 'claimed', attempt_key = gen_random_uuid() where id = {id}"
            );
            bench.sql_as(WORKER, &sql).await?;
        }
        return Ok(template.id);
    }
    let id = MessageId(template.id.0 + 1_000_000);
    bench.sql_as(IMPORT, &copy_sql(template.id, id, state)).await?;
    Ok(id)
}

/// Inserts a copy of message `from` with another id and state, and what that state must have.
fn copy_sql(from: MessageId, id: MessageId, state: State) -> String {
    let billed = matches!(state, State::Submitted | State::Delivered | State::Failed | State::Expired);
    let (cost, units) = if billed { ("unit_price * segments", "segments") } else { ("null", "null") };
    format!(
        "insert into outbound_message
         select (jsonb_populate_record(m, jsonb_build_object('id', {id}, 'state', '{state}', 'origin', 'import',
            'cost', {cost}, 'billable_units', {units}, 'needs_review_since', clock_now()))).*
         from outbound_message m where m.id = {from}"
    )
}

/// Sets everything that any edge asks for, so that only the pair of states decides.
fn move_sql(id: MessageId, to: State) -> String {
    let billed = if to == State::Submitted {
        ", submitted_at = clock_now(), cost = coalesce(cost, unit_price * segments),
         billable_units = coalesce(billable_units, segments)"
    } else {
        ""
    };
    format!(
        "update outbound_message set state = '{to}', attempt_key = gen_random_uuid(), final_at = clock_now(),
            reconciled_at = clock_now(), evidence = '{{\"kind\": \"report\"}}', correlation_result = 'matched',
            updated_at = clock_now() {billed} where id = {id}"
    )
}

/// T9: the trigger refuses exactly what `domain::state` does not list.
#[tokio::test]
async fn t9_the_trigger_lists_the_edges_of_the_state_machine_and_no_others() -> Result<()> {
    let bench = Bench::new("edges").await?;
    let mut allowed = BTreeSet::new();
    let mut expected = BTreeSet::new();
    for &from in State::ALL {
        let id = row_in(&bench, from).await?;
        assert_eq!(bench.state(id).await?, from);
        for &to in State::ALL {
            if is_edge(from, to) {
                expected.insert((from, to));
            }
            // Undone whatever comes of it: the row serves for every pair.
            let sql = format!("set role {WORKER}; begin; {}; rollback", move_sql(id, to));
            match bench.sql(&sql).await {
                // Staying is no change of state.
                Ok(_) if from == to => {}
                Ok(_) => {
                    allowed.insert((from, to));
                }
                Err(why) => assert!(format!("{why:#}").contains(&format!("{from} -> {to}")), "{why:#}"),
            }
        }
    }
    assert_eq!(allowed, expected);
    Ok(())
}

/// Leaving `unknown` takes a time, evidence, and a correlation result unless the evidence is our own answer.
#[tokio::test]
async fn t9_nothing_leaves_unknown_without_evidence() -> Result<()> {
    let bench = Bench::new("evidence").await?;
    let id = row_in(&bench, State::Unknown).await?;
    let whole = [
        ("reconciled_at", "clock_now()"),
        ("evidence", "'{\"kind\": \"report\"}'"),
        ("correlation_result", "'matched'"),
        ("submitted_at", "clock_now()"),
        ("cost", "unit_price * segments"),
        ("billable_units", "segments"),
    ];
    let sql = |skip: &str, state: &str| {
        let set: Vec<String> =
            whole.iter().filter(|(name, _)| *name != skip).map(|(name, value)| format!("{name} = {value}")).collect();
        format!("begin; update outbound_message set state = '{state}', {} where id = {id}; rollback", set.join(", "))
    };
    bench.sql_as(WORKER, &sql("none", "submitted")).await?;
    for (missing, _) in whole {
        let refusal = bench.refusal(WORKER, &sql(missing, "submitted")).await?;
        assert!(refusal.contains("unknown -> submitted"), "without {missing}: {refusal}");
    }
    let failed =
        |set: &str| format!("begin; update outbound_message set state = 'failed', {set} where id = {id}; rollback");
    let own = "reconciled_at = clock_now(), evidence = '{\"kind\": \"own_answer\"}'";
    bench.sql_as(WORKER, &failed(&format!("{own}, final_at = clock_now()"))).await?;
    for set in [
        own.to_owned(),
        "final_at = clock_now()".to_owned(),
        "reconciled_at = clock_now(), evidence = '{\"kind\": \"report\"}', final_at = clock_now()".to_owned(),
    ] {
        let refusal = bench.refusal(WORKER, &failed(&set)).await?;
        assert!(refusal.contains("unknown -> failed"), "{set}: {refusal}");
    }
    Ok(())
}

/// What an edge must bring along: a fresh key with a claim, a time with an end, units and cost with a submission.
#[tokio::test]
async fn t9_an_edge_brings_what_it_must() -> Result<()> {
    let bench = Bench::new("brings").await?;
    let (pending, claimed, submitted) = (
        row_in(&bench, State::Pending).await?,
        row_in(&bench, State::Claimed).await?,
        row_in(&bench, State::Submitted).await?,
    );
    for (id, set) in [
        (pending, "state = 'claimed'"),
        (pending, "state = 'expired'"),
        (pending, "state = 'cancelled'"),
        (claimed, "state = 'rejected'"),
        (claimed, "state = 'submitted', submitted_at = clock_now()"),
        (claimed, "state = 'submitted', submitted_at = clock_now(), cost = 1"),
        (claimed, "state = 'submitted', cost = 1, billable_units = 1"),
        (submitted, "state = 'delivered'"),
    ] {
        let refusal = bench.refusal(WORKER, &format!("update outbound_message set {set} where id = {id}")).await?;
        assert!(refusal.contains("illegal change"), "{set}: {refusal}");
    }
    Ok(())
}

#[tokio::test]
async fn t9_a_message_begins_as_pending_unless_it_is_imported() -> Result<()> {
    let bench = Bench::new("begins").await?;
    let template = row_in(&bench, State::Pending).await?;
    for (n, &state) in (1..).zip(State::ALL) {
        let sql = copy_sql(template, MessageId(template.0 + n), state);
        if state == State::Pending {
            bench.sql_as(WORKER, &sql).await?;
            continue;
        }
        let refusal = bench.refusal(WORKER, &sql).await?;
        assert!(refusal.contains("cannot insert"), "{state}: {refusal}");
    }
    let claimed = bench.refusal(IMPORT, &copy_sql(template, MessageId(template.0 + 100), State::Claimed)).await?;
    assert!(claimed.contains("cannot insert"), "{claimed}");
    let unknown = copy_sql(template, MessageId(template.0 + 101), State::Unknown);
    let hidden = unknown.replace("'needs_review_since', clock_now()", "'needs_review_since', null");
    let refusal = bench.refusal(IMPORT, &hidden).await?;
    assert!(refusal.contains("under review"), "{refusal}");
    bench.sql_as(IMPORT, &unknown).await?;
    Ok(())
}

/// T19: identity, price, units and cost are written once, and cost only with `submitted`.
#[tokio::test]
async fn t19_money_and_identity_are_written_once() -> Result<()> {
    let bench = Bench::new("once").await?;
    let sent = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    let waiting = bench.queue(&[ANNA]).await?.1[0];
    let once = [
        "cost = cost + 1",
        "cost = null",
        "billable_units = 2",
        "cost_currency = 'EUR'",
        "unit_price = 1",
        "rate_id = 2",
        "segments = 2",
        "recipient = '919999999999'",
        "business_key = sha256('x')",
        "tenant_id = 'other'",
        "job_id = 1",
        "id = 1",
    ];
    for set in once {
        let refusal = bench.refusal(WORKER, &format!("update outbound_message set {set} where id = {sent}")).await?;
        assert!(refusal.contains("written once"), "{set}: {refusal}");
    }
    let early = bench.refusal(WORKER, &format!("update outbound_message set cost = 1 where id = {waiting}")).await?;
    assert!(early.contains("written once"), "{early}");
    let report = |cost: &str| format!("update outbound_message set reported_cost = {cost} where id = {sent}");
    bench.sql_as(WORKER, &report("0.12")).await?;
    let refusal = bench.refusal(WORKER, &report("0.13")).await?;
    assert!(refusal.contains("written once"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn a_worker_deletes_no_message_no_key_and_no_receipt() -> Result<()> {
    let bench = Bench::new("grants").await?;
    bench.submitted(&[ANNA], "txn-1").await?;
    for table in [
        "outbound_message",
        "message_key",
        "submission",
        "receipt",
        "receipt_key",
        "provider_message",
        "cancellation",
        "parked",
    ] {
        let refusal = bench.refusal(WORKER, &format!("delete from {table}")).await?;
        assert!(refusal.contains("permission denied"), "{table}: {refusal}");
        let refusal = bench.refusal("sendonce_read", &format!("update {table} set tenant_id = 'x'")).await?;
        assert!(refusal.contains("permission denied") || refusal.contains("does not exist"), "{table}: {refusal}");
    }
    for sql in [
        "truncate outbound_message",
        "alter table outbound_message disable trigger all",
        "drop table send_job",
        "insert into rate_card (tenant_id, channel, message_class, prefix, unit_price, currency) values ('a','sms','otp','',0,'INR')",
    ] {
        let refusal = bench.refusal(WORKER, sql).await?;
        assert!(refusal.contains("permission denied") || refusal.contains("must be owner"), "{sql}: {refusal}");
    }
    Ok(())
}

/// A guard's refusal is a bug of ours that no repetition heals; it must not look like a database that is away.
#[tokio::test]
async fn a_refused_change_is_not_taken_for_an_outage() -> Result<()> {
    let bench = Bench::new("refused").await?;
    let (claim, rows) = bench.on_the_wire(&[ANNA]).await?;
    bench
        .sql(
            "create function refuse_all() returns trigger language plpgsql as
                $$ begin raise exception 'no' using errcode = 'check_violation'; end $$;
             create trigger refuse before update on outbound_message for each row execute function refuse_all()",
        )
        .await?;
    let error = bench.record(&claim, &rows, accepted("txn-1")).await.unwrap_err();
    let error = error.downcast::<sendonce_core::store::StoreError>()?;
    assert!(!error.is_transient(), "{error}");
    Ok(())
}
