//! Answers that come after the lease ended: the best evidence there is about a row in doubt.

use anyhow::Result;
use rust_decimal::Decimal;
use sendonce_core::domain::message::{JobId, MessageId};
use sendonce_core::domain::outcome::{NotSent, Outcome};
use sendonce_core::domain::state::State;
use sendonce_core::store::{Claim, ClaimedMessage, SweepConnection};
use serde_json::{Value, json};

use crate::support::{
    ANNA, BERT, Bench, accepted, ambiguous, claim, ended, message, new_job, not_sent, refused, requests, throttled,
};

/// One request whose lease the sweep has ended.
async fn in_doubt(bench: &Bench, numbers: &[&str]) -> Result<(Claim, Vec<ClaimedMessage>)> {
    let (claim, rows) = bench.on_the_wire(numbers).await?;
    let unknown = bench.end_leases(&mut SweepConnection::default(), 1).await?;
    assert_eq!(unknown, numbers.len());
    Ok((claim, rows))
}

/// The row that carries the key now.
async fn successor_of(bench: &Bench, old: MessageId) -> Result<MessageId> {
    let id = bench.row(old).await?["superseded_by"].as_i64();
    Ok(MessageId(id.ok_or_else(|| anyhow::anyhow!("message {old} has no successor"))?))
}

/// Execution 3: the acceptance was read while the database was away past the lease. It is not lost.
#[tokio::test]
async fn e3_a_late_acceptance_settles_the_unknown_row() -> Result<()> {
    let bench = Bench::short("accepted").await?;
    let (made, rows) = in_doubt(&bench, &[ANNA]).await?;
    let ended_at = "select ended_at from submission";
    let before = bench.sql(ended_at).await?;
    assert_eq!(bench.sql("select verdict, answered_late_at is null from submission").await?, "lease_ended|t");
    let recorded = bench.record(&made, &rows, accepted("txn-late")).await?;
    assert_eq!((recorded.settled_late, recorded.successors, recorded.anomalies.len()), (1, 0, 0));
    let row = bench.row(rows[0].id).await?;
    assert_eq!((&row["state"], &row["provider_txn_id"]), (&json!("submitted"), &json!("txn-late")));
    assert_eq!(bench.sql("select cost, billable_units from outbound_message").await?, "0.1250|1");
    assert_eq!(
        (&row["evidence"]["kind"], &row["evidence"]["was_unknown_because"]),
        (&json!("own_answer"), &json!("lease_ended"))
    );
    assert!(!row["reconciled_at"].is_null() && row["correlation_result"].is_null());
    assert_eq!(bench.sql(ended_at).await?, before, "the silent sweep walks by it");
    let attempt = "select verdict, provider_txn_id, answered_late_at is not null from submission";
    assert_eq!(bench.sql(attempt).await?, "accepted|txn-late|t");
    assert_eq!(
        bench.sql("select kind from unresolved").await?,
        "silent",
        "its receipt is waited for, its outcome is known"
    );
    // The answer to that COMMIT was lost too.
    let again = bench.record(&made, &rows, accepted("txn-late")).await?;
    assert_eq!((again.moved.len(), again.settled_late, again.anomalies.len()), (0, 0, 0));
    Ok(())
}

/// Proof of not sent after the lease: the row is final, and the message goes on as one new row under the same key.
#[tokio::test]
async fn i1_a_late_proof_of_not_sent_makes_exactly_one_successor() -> Result<()> {
    let bench = Bench::short("successor").await?;
    for outcome in [not_sent(), throttled(), Outcome::NotSent(NotSent::BudgetOver)] {
        let (made, rows) = in_doubt(&bench, &[ANNA]).await?;
        let old = rows[0].id;
        let recorded = bench.record(&made, &rows, outcome.clone()).await?;
        assert_eq!((recorded.settled_late, recorded.successors), (1, 1));
        let row = bench.row(old).await?;
        assert_eq!((&row["state"], &row["state_reason"]), (&json!("failed"), &json!("not_submitted")));
        assert_eq!((&row["cost"], &row["evidence"]["kind"]), (&Value::Null, &json!("own_answer")));
        assert!(!row["final_at"].is_null());

        let id = successor_of(&bench, old).await?;
        let new = bench.row(id).await?;
        assert_eq!(
            (&new["state"], &new["origin"], &new["attempt_no"]),
            (&json!("pending"), &json!("own_answer"), &json!(2))
        );
        assert_eq!((&new["attempt_count"], &new["superseded_by"]), (&json!(0), &Value::Null));
        for same in [
            "business_key",
            "tenant_id",
            "recipient",
            "body",
            "input_hash",
            "expires_at",
            "unit_price",
            "segments",
            "sender_id",
            "dlt_template_id",
            "event_id",
            "fallback_channels",
            "cost_currency",
        ] {
            assert_eq!(new[same], row[same], "{same}");
        }
        assert_ne!((&new["attempt_key"], &new["job_id"]), (&row["attempt_key"], &row["job_id"]));
        let key = format!("select message_id, attempt_no, message_created_at = (select created_at from outbound_message where id = {id})
            from message_key where message_id = {id}");
        assert_eq!(bench.sql(&key).await?, format!("{id}|2|t"));

        // The same record again, its COMMIT answer lost.
        let again = bench.record(&made, &rows, outcome).await?;
        assert_eq!((again.successors, again.settled_late, again.anomalies.len()), (0, 0, 0));
        assert_eq!(
            bench
                .count(&format!(
                    "outbound_message where superseded_by is null and business_key =
            (select business_key from outbound_message where id = {old})"
                ))
                .await?,
            1
        );

        // It is sent as any other.
        let job = JobId(new["job_id"].as_i64().unwrap());
        assert!(bench.wakes_in(job).await? <= 0.0, "the next sweep publishes it");
        let next = claim(&[job], 1, 1);
        let (claimed, _) = bench.store.claim(&next).await?;
        assert_eq!(claimed.iter().map(|row| row.id).collect::<Vec<_>>(), [id]);
        bench.record(&next, &claimed, accepted(&format!("txn-{id}"))).await?;
        assert_eq!(bench.state(id).await?, State::Submitted);
    }
    assert_eq!(bench.count("send_job").await?, 0);
    Ok(())
}

/// A grouped request makes a successor per row; they share a time and each has a job.
#[tokio::test]
async fn a_group_proven_not_sent_goes_on_whole() -> Result<()> {
    let bench = Bench::short("group").await?;
    let (made, rows) = in_doubt(&bench, &[ANNA, BERT]).await?;
    let recorded = bench.record(&made, &rows, not_sent()).await?;
    assert_eq!((recorded.settled_late, recorded.successors), (2, 2));
    assert_eq!(
        bench
            .count(
                "message_key k join outbound_message m on m.id = k.message_id where m.state = 'pending'
        and m.created_at = k.message_created_at"
            )
            .await?,
        2
    );
    let jobs = bench.sql("select id from send_job order by id").await?;
    let jobs: Vec<JobId> = jobs.lines().map(|id| JobId(id.parse().unwrap())).collect();
    let (claimed, _) = bench.store.claim(&claim(&jobs, 5, 1)).await?;
    assert_eq!(claimed.len(), 2);
    Ok(())
}

/// No successor for what may not be sent any more.
#[tokio::test]
async fn no_successor_after_the_time_to_live_or_a_cancel() -> Result<()> {
    let mut bench = Bench::short("none").await?;
    let (cancelled, cancelled_rows) = in_doubt(&bench, &[ANNA]).await?;
    let (keyed, keyed_rows) = in_doubt(&bench, &[ANNA]).await?;
    let (expired, expired_rows) = in_doubt(&bench, &[BERT]).await?;
    let (event, key) = (cancelled_rows[0].id, keyed_rows[0].id);
    bench
        .sql(&format!(
            "insert into cancellation (tenant_id, event_id, reason)
        select tenant_id, event_id, 'x' from outbound_message where id = {event}"
        ))
        .await?;
    bench
        .sql(&format!(
            "insert into cancellation (tenant_id, business_key, reason)
        select tenant_id, business_key, 'x' from outbound_message where id = {key}"
        ))
        .await?;
    for (made, rows) in [(&cancelled, &cancelled_rows), (&keyed, &keyed_rows)] {
        let recorded = bench.record(made, rows, not_sent()).await?;
        assert_eq!((recorded.settled_late, recorded.successors), (1, 0));
    }
    bench.shift_clock("25 hours").await?;
    let recorded = bench.record(&expired, &expired_rows, not_sent()).await?;
    assert_eq!((recorded.settled_late, recorded.successors), (1, 0));
    assert_eq!((bench.count("outbound_message").await?, bench.count("send_job").await?), (3, 0));
    assert_eq!(bench.count("outbound_message where state = 'failed' and superseded_by is null").await?, 3);
    Ok(())
}

/// The compare-and-set: a key that moved on (a replay was first) gets no second successor.
#[tokio::test]
async fn i1_no_successor_for_a_row_that_lost_its_key() -> Result<()> {
    let bench = Bench::short("cas").await?;
    let (made, rows) = in_doubt(&bench, &[ANNA]).await?;
    let replay = message(new_job(), BERT);
    bench.admit(std::slice::from_ref(&replay)).await?;
    bench
        .sql(&format!(
            "update message_key set message_id = {}, attempt_no = 2 where message_id = {}",
            replay.id, rows[0].id
        ))
        .await?;
    let recorded = bench.record(&made, &rows, not_sent()).await?;
    assert_eq!((recorded.settled_late, recorded.successors), (1, 0));
    assert_eq!(bench.row(rows[0].id).await?["superseded_by"], Value::Null);
    assert_eq!((bench.count("outbound_message").await?, bench.count("send_job").await?), (2, 1));
    Ok(())
}

#[tokio::test]
async fn t11_a_late_refusal_is_a_failure_without_cost() -> Result<()> {
    let bench = Bench::short("refusal").await?;
    let (made, rows) = in_doubt(&bench, &[ANNA]).await?;
    let recorded = bench.record(&made, &rows, refused()).await?;
    assert_eq!((recorded.settled_late, recorded.successors), (1, 0));
    let row = bench.row(rows[0].id).await?;
    assert_eq!(
        (&row["state"], &row["state_reason"], &row["cost"]),
        (&json!("failed"), &json!("refused"), &Value::Null)
    );
    assert_eq!(&row["provider_status_code"], "123");
    assert_eq!(bench.count("unresolved").await?, 0);
    Ok(())
}

/// A late answer that is none leaves the row in doubt, and it stays listed.
#[tokio::test]
async fn i8_a_late_ambiguity_settles_nothing() -> Result<()> {
    let bench = Bench::short("timeout").await?;
    let (made, rows) = in_doubt(&bench, &[ANNA]).await?;
    let recorded = bench.record(&made, &rows, ambiguous()).await?;
    assert_eq!((recorded.settled_late, recorded.anomalies.len(), recorded.moved.len()), (0, 0, 0));
    assert_eq!(bench.state(rows[0].id).await?, State::Unknown);
    assert_eq!(bench.count("unresolved where kind = 'unknown'").await?, 1);
    assert_eq!(bench.sql("select verdict, detail from submission").await?, "ambiguous|timeout");
    Ok(())
}

/// An answer against what evidence has settled meanwhile overwrites nothing; it is kept and reported.
#[tokio::test]
async fn an_answer_that_fits_no_state_is_kept_and_reported() -> Result<()> {
    let bench = Bench::short("anomaly").await?;
    let (made, rows) = in_doubt(&bench, &[ANNA]).await?;
    let id = rows[0].id;
    bench
        .sql(&format!(
            "update outbound_message set state = 'failed', final_at = clock_now(), reconciled_at = clock_now(),
        evidence = '{{\"kind\": \"report\"}}', correlation_result = 'not_found' where id = {id}"
        ))
        .await?;
    let before = bench.row(id).await?;
    let recorded = bench.record(&made, &rows, refused()).await?;
    assert_eq!(recorded.anomalies, [(id, rows[0].attempt_key, State::Failed)]);
    assert_eq!(bench.row(id).await?, before);
    assert_eq!(bench.sql("select verdict, provider_status_code from submission").await?, "rejected|123");
    Ok(())
}

/// The late half of a job settles its rows while the other half is on the wire under another worker's lease.
#[tokio::test]
async fn a_late_answer_leaves_the_next_worker_s_lease_alone() -> Result<()> {
    let bench = Bench::short("half").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let first = claim(&[job], 1, 1);
    let (mine, _) = bench.store.claim(&first).await?;
    bench.end_leases(&mut SweepConnection::default(), 1).await?;
    let second = claim(&[job], 1, 1);
    let (theirs, _) = bench.store.claim(&second).await?;
    let before = bench.job(job).await?;
    let late = bench.record(&first, &mine, accepted("txn-late")).await?;
    assert_eq!(late.settled_late, 1);
    assert_eq!(bench.job(job).await?, before);
    bench.record(&second, &theirs, accepted("txn-2")).await?;
    assert!(bench.job(job).await?.is_none());
    assert_eq!(bench.store.cost_lines().await?[0].cost, Decimal::new(2500, 4));
    Ok(())
}

/// Two workers' leases end in one sweep and both answer in one batch each, out of order.
#[tokio::test]
async fn late_answers_of_many_requests_are_one_batch() -> Result<()> {
    let bench = Bench::short("many").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let made = claim(&[job], 2, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    bench.end_leases(&mut SweepConnection::default(), 1).await?;
    let by_key = requests(&rows);
    let batch = [ended(&by_key[1], not_sent()), ended(&by_key[0], accepted("txn-1"))];
    let recorded = bench.store.record(&batch, &[job], made.token).await?;
    assert_eq!((recorded.settled_late, recorded.successors), (2, 1));
    assert_eq!(bench.count("unresolved where kind = 'unknown'").await?, 0);
    Ok(())
}
