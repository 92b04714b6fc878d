//! Recording what came back: fenced by the attempt key, applied once, and money with it.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use rust_decimal::Decimal;
use sendonce_core::domain::message::{MessageId, ProviderRef};
use sendonce_core::domain::outcome::{Accepted, Ambiguity, NotSent, Outcome, Refusal};
use sendonce_core::domain::state::State;
use sendonce_core::store::{Claim, JobFate, NewMessage};
use serde_json::{Value, json};

use crate::support::{
    ANNA, BERT, Bench, CARL, accepted, ambiguous, attempt_key, claim, ended, message, new_job, not_sent, refused,
    requests, throttled, token,
};

/// T19: units are segments of one recipient, cost is their frozen price, and both come with `submitted`.
#[tokio::test]
async fn t19_an_acceptance_is_billed_at_the_frozen_price() -> Result<()> {
    let bench = Bench::new("billed").await?;
    let m = NewMessage { segments: 3, unit_price: Decimal::new(1337, 4), ..message(new_job(), ANNA) };
    bench.admit(std::slice::from_ref(&m)).await?;
    let made = claim(&[m.job_id], 1, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    let recorded = bench.record(&made, &rows, accepted("0001234")).await?;
    assert_eq!(recorded.moved, [(m.class, State::Submitted)]);
    assert_eq!(recorded.jobs[&m.job_id], JobFate::Gone);
    let money = "select cost, billable_units, unit_price, cost_currency, submitted_at is not null, final_at is null
        from outbound_message";
    assert_eq!(bench.sql(money).await?, "0.4011|3|0.1337|INR|t|t");
    assert!(bench.job(m.job_id).await?.is_none());
    let attempt =
        "select verdict, http_status, provider_txn_id, provider_status_code, provider_cause, answered_late_at is null
        from submission";
    assert_eq!(bench.sql(attempt).await?, "accepted|200|0001234|200|SUCCESS|t");
    Ok(())
}

/// T6: ids are text from the wire to JSON; T7: what means "none" is refused by the table itself.
#[tokio::test]
async fn t6_provider_ids_survive_as_text() -> Result<()> {
    let bench = Bench::new("ids").await?;
    for id in ["6305583318236810379", "0001234", "9999999999999999999", "00"] {
        let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
        let outcome = Outcome::Accepted(Accepted {
            txn_id: ProviderRef::clean(id),
            message_id: ProviderRef::clean(&format!("{id}-m")),
            ..Accepted::default()
        });
        bench.record(&made, &rows, outcome).await?;
        let row = bench.row(rows[0].id).await?;
        assert_eq!((&row["provider_txn_id"], &row["provider_message_id"]), (&json!(id), &json!(format!("{id}-m"))));
        let view = bench.store.find_message(rows[0].id.0).await?.unwrap();
        assert_eq!((&view.message["provider_txn_id"], &view.attempts[0]["provider_txn_id"]), (&json!(id), &json!(id)));
        assert!(serde_json::to_string(&view)?.contains(&format!("\"provider_txn_id\":\"{id}\"")));
        assert_eq!(bench.store.find_messages(id).await?, [rows[0].id.0], "found by the id as it is written");
        assert_eq!(bench.store.find_messages(&format!("{id}-m")).await?, [rows[0].id.0]);
    }
    Ok(())
}

#[tokio::test]
async fn t7_a_word_for_none_is_no_id() -> Result<()> {
    let bench = Bench::new("none").await?;
    let id = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    for none in ["0", "", " ", "  0 ", "-", "null", "NULL", "Null", "none", "nil", "undefined"] {
        assert_eq!(ProviderRef::clean(none), None, "{none:?}");
        for column in ["provider_txn_id", "provider_message_id", "provider_campaign_id"] {
            let sql = format!("update outbound_message set {column} = '{none}' where id = {id}");
            let refusal = bench.refusal("sendonce_worker", &sql).await?;
            assert!(refusal.contains("provider_ids_are_ids"), "{column} {none:?}: {refusal}");
        }
        let sql = format!("update submission set provider_txn_id = '{none}'");
        let refusal = bench.refusal("sendonce_worker", &sql).await?;
        assert!(refusal.contains("provider_ids_are_ids"), "submission {none:?}: {refusal}");
    }
    for id_ in ["00", "-1", "nullable", "0x0"] {
        bench.sql(&format!("update outbound_message set provider_campaign_id = '{id_}' where id = {id}")).await?;
    }
    Ok(())
}

/// T13: the request's transaction id on all its rows, its invalid recipients rejected, in one transaction; twice is once.
#[tokio::test]
async fn t13_invalid_recipients_are_rejected_under_the_request_s_transaction() -> Result<()> {
    let bench = Bench::new("invalid").await?;
    let (made, rows) = bench.on_the_wire(&[ANNA, BERT, CARL]).await?;
    let bert = rows.iter().find(|row| row.recipient.expose() == BERT).unwrap();
    let outcome = Outcome::Accepted(Accepted {
        txn_id: ProviderRef::clean("txn-1"),
        invalid: vec![bert.recipient.clone()],
        ..Accepted::default()
    });
    let recorded = bench.record(&made, &rows, outcome.clone()).await?;
    assert_eq!((recorded.moved.len(), recorded.anomalies.len()), (3, 0));
    let all =
        "select string_agg(concat_ws(' ', recipient, state, provider_txn_id, cost, billable_units, state_reason), ', '
        order by recipient) from outbound_message";
    let expected = format!(
        "{ANNA} submitted txn-1 0.1250 1, {BERT} rejected txn-1 invalid_recipient, {CARL} submitted txn-1 0.1250 1"
    );
    assert_eq!(bench.sql(all).await?, expected);
    assert!(!bench.row(bert.id).await?["final_at"].is_null());
    assert_eq!(bench.sql("select cardinality(message_ids) from submission").await?, "3");

    let whole = "select md5(string_agg(m::text, ';' order by id)) from outbound_message m";
    let (before, attempts) = (bench.sql(whole).await?, bench.sql("select md5(s::text) from submission s").await?);
    let again = bench.record(&made, &rows, outcome).await?;
    assert_eq!((again.moved.len(), again.anomalies.len(), again.jobs.len()), (0, 0, 0));
    assert_eq!(bench.sql(whole).await?, before, "applying an answer twice changes nothing");
    assert_eq!(bench.sql("select md5(s::text) from submission s").await?, attempts);
    Ok(())
}

/// T14: no clear answer to a request is no clear answer for any row of it.
#[tokio::test]
async fn t14_an_ambiguous_request_makes_every_row_unknown() -> Result<()> {
    let bench = Bench::new("ambiguous").await?;
    let (made, rows) = bench.on_the_wire(&[ANNA, BERT]).await?;
    let recorded = bench.record(&made, &rows, ambiguous()).await?;
    assert_eq!(recorded.moved.iter().map(|(_, state)| *state).collect::<Vec<_>>(), [State::Unknown, State::Unknown]);
    assert_eq!(recorded.jobs[&rows[0].job_id], JobFate::Gone, "nothing of it will ever be sent again");
    for row in &rows {
        let row = bench.row(row.id).await?;
        assert_eq!(
            (&row["state"], &row["state_reason"], &row["cost"]),
            (&json!("unknown"), &json!("timeout"), &Value::Null)
        );
        assert_eq!((&row["next_attempt_at"], &row["final_at"]), (&Value::Null, &Value::Null));
    }
    let open = "select count(*) from unresolved u join outbound_message m on m.id = u.message_id
        and m.created_at = u.message_created_at and m.attempt_key = u.attempt_key where u.kind = 'unknown'";
    assert_eq!(bench.sql(open).await?, "2");
    assert_eq!(bench.sql("select verdict, detail from submission").await?, "ambiguous|timeout");
    Ok(())
}

/// Every ambiguity leads to `unknown`, never back to `pending`.
#[tokio::test]
async fn i1_no_ambiguity_is_ever_sent_again() -> Result<()> {
    let mut bench = Bench::new("ambiguities").await?;
    let mut ids: Vec<MessageId> = Vec::new();
    let mut jobs = Vec::new();
    for &ambiguity in Ambiguity::ALL {
        let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
        bench.record(&made, &rows, Outcome::Ambiguous(ambiguity)).await?;
        assert_eq!(bench.row(rows[0].id).await?["state_reason"], ambiguity.as_str());
        ids.push(rows[0].id);
        jobs.push(rows[0].job_id);
    }
    bench.shift_clock("2 days").await?;
    let (rows, _) = bench.store.claim(&claim(&jobs, 50, 1)).await?;
    assert!(rows.is_empty());
    assert!(bench.states(&ids).await?.iter().all(|state| *state == State::Unknown));
    Ok(())
}

/// T10, I7: proof that nothing left brings a row back, after a wait; what was our own or the lane's fault costs no attempt.
#[tokio::test]
async fn t10_proof_of_not_sent_brings_a_row_back() -> Result<()> {
    let bench = Bench::new("not_sent").await?;
    let account = Outcome::AccountRefused(Refusal { code: Some("402".into()), ..Refusal::default() });
    let cases = [
        (not_sent(), 1, "not_sent_connect_refused"),
        (Outcome::NotSent(NotSent::BudgetOver), 0, "not_sent_budget_over"),
        (Outcome::NotSent(NotSent::Drain), 0, "not_sent_drain"),
        (throttled(), 0, "throttled"),
        (account, 0, "account_refused"),
    ];
    for (outcome, attempts, reason) in cases {
        let (made, rows) = bench.on_the_wire(&[ANNA, BERT]).await?;
        let recorded = bench.record(&made, &rows, outcome).await?;
        assert_eq!(recorded.jobs[&rows[0].job_id], JobFate::Waiting, "{reason}");
        for row in &rows {
            let row = bench.row(row.id).await?;
            assert_eq!((&row["state"], &row["state_reason"]), (&json!("pending"), &json!(reason)));
            assert_eq!((&row["attempt_count"], &row["cost"]), (&json!(attempts), &Value::Null), "{reason}");
        }
        let waits = "select count(*) from outbound_message where state = 'pending' and job_id = (select max(job_id) from
            outbound_message) and next_attempt_at between clock_now() + interval '20 s' and clock_now() + interval '30 s'";
        assert_eq!(bench.sql(waits).await?, "2", "{reason}");
        let job = bench.job(rows[0].job_id).await?.unwrap();
        assert_eq!((&job["lease_token"], &job["publish_count"]), (&Value::Null, &json!(0)), "{reason}");
        let wakes = bench.wakes_in(rows[0].job_id).await?;
        assert!((20.0..=30.0).contains(&wakes), "{reason}: {wakes}");
    }
    Ok(())
}

/// T11: a refusal ends the message unbilled, with the provider's words; an unlisted code is for a person to look at.
#[tokio::test]
async fn t11_a_refusal_is_final_and_not_billed() -> Result<()> {
    let bench = Bench::new("refused").await?;
    let unlisted = Outcome::Rejected(Refusal { code: Some("777".into()), cause: Some("?".into()), unlisted: true });
    for (outcome, reason, code, review) in
        [(refused(), "refused", "123", false), (unlisted, "refused_unlisted_code", "777", true)]
    {
        let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
        let recorded = bench.record(&made, &rows, outcome).await?;
        assert_eq!(recorded.jobs[&rows[0].job_id], JobFate::Gone);
        let row = bench.row(rows[0].id).await?;
        assert_eq!((&row["state"], &row["state_reason"]), (&json!("rejected"), &json!(reason)));
        assert_eq!((&row["provider_status_code"], &row["cost"]), (&json!(code), &Value::Null));
        assert_eq!(!row["needs_review_since"].is_null(), review);
        assert!(!row["final_at"].is_null() && row["billable_units"].is_null());
    }
    Ok(())
}

/// A record is fenced by the attempt key, not by the state: a stale one moves nothing, whatever it says.
#[tokio::test]
async fn t4_a_stale_attempt_changes_nothing() -> Result<()> {
    let mut bench = Bench::new("stale").await?;
    let (first, rows) = bench.on_the_wire(&[ANNA]).await?;
    let job = rows[0].job_id;
    bench.record(&first, &rows, not_sent()).await?;
    bench.shift_clock("31 seconds").await?;
    let (again, _) = bench.store.claim(&claim(&[job], 1, 1)).await?;
    assert_ne!(again[0].attempt_key, rows[0].attempt_key);
    let before = (bench.row(rows[0].id).await?, bench.job(job).await?);
    for outcome in [accepted("txn-stale"), refused(), ambiguous(), not_sent()] {
        // The attempt is recorded already: its first answer stands.
        let recorded = bench.store.record(&[ended(&rows, outcome)], &[], first.token).await?;
        assert!(recorded.moved.is_empty());
    }
    for outcome in [accepted("txn-stale"), refused(), ambiguous(), not_sent()] {
        // And one that nobody knows.
        let mut stranger = ended(&rows, outcome);
        stranger.attempt_key = attempt_key();
        let recorded = bench.store.record(&[stranger], &[], first.token).await?;
        assert!(recorded.moved.is_empty());
    }
    assert_eq!((bench.row(rows[0].id).await?, bench.job(job).await?), before);
    Ok(())
}

/// Executions 9 and 22: the job goes with its last undecided row, whoever records it, and its lease stays while a
/// sibling is on the wire.
#[tokio::test]
async fn e9_a_job_lives_until_its_last_row_is_decided() -> Result<()> {
    let bench = Bench::new("siblings").await?;
    let (job, _) = bench.queue(&[ANNA, BERT, CARL]).await?;
    let made = claim(&[job], 2, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    let [one, two] = &requests(&rows)[..] else { panic!("two requests") };
    let before = bench.job(job).await?;
    let recorded = bench.record(&made, one, accepted("txn-1")).await?;
    assert_eq!(recorded.jobs[&job], JobFate::Leased, "a sibling is on the wire");
    assert_eq!(bench.job(job).await?, before, "neither token nor deadline");

    let recorded = bench.record(&made, two, ambiguous()).await?;
    assert_eq!(recorded.jobs[&job], JobFate::Due, "the third is still pending");
    assert!(bench.job(job).await?.unwrap()["lease_token"].is_null());
    assert!((50.0..=60.0).contains(&bench.wakes_in(job).await?));

    let last = claim(&[job], 2, 1);
    let (rows, _) = bench.store.claim(&last).await?;
    let recorded = bench.record(&last, &rows, refused()).await?;
    assert_eq!(recorded.jobs[&job], JobFate::Gone);
    assert!(bench.job(job).await?.is_none());
    Ok(())
}

/// Execution 9 at full speed: both halves of a job are recorded at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e9_two_records_at_once_leave_no_job_behind() -> Result<()> {
    let bench = Bench::new("halves").await?;
    let other = bench.another()?;
    for round in 0..30 {
        let (job, _) = bench.queue(&[ANNA, BERT]).await?;
        let made = claim(&[job], 2, 1);
        let (rows, _) = bench.store.claim(&made).await?;
        let [one, two] = &requests(&rows)[..] else { panic!("two requests") };
        let (one, two) = ([ended(one, accepted(&format!("a-{round}")))], [ended(two, ambiguous())]);
        let jobs = [job];
        let (a, b) = tokio::join!(bench.store.record(&one, &jobs, made.token), other.record(&two, &jobs, made.token));
        let fates = [a?.jobs.get(&job).copied(), b?.jobs.get(&job).copied()];
        assert!(fates.contains(&Some(JobFate::Gone)), "round {round}: {fates:?}");
        assert!(bench.job(job).await?.is_none(), "round {round}");
    }
    other.close().await;
    Ok(())
}

/// A record that settles with a token that is not the job's leaves the lease to its holder, who may claim the rest.
#[tokio::test]
async fn the_lease_of_another_is_not_settled() -> Result<()> {
    let bench = Bench::new("foreign").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let made = claim(&[job], 1, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    for on_the_wire in [true, false] {
        if !on_the_wire {
            bench.store.record(&[ended(&rows, accepted("txn-1"))], &[], made.token).await?;
        }
        let before = bench.job(job).await?;
        let recorded = bench.store.record(&[], &[job], token()).await?;
        assert_eq!(recorded.jobs[&job], JobFate::Leased, "on the wire: {on_the_wire}");
        assert_eq!(bench.job(job).await?, before);
    }
    Ok(())
}

/// Nothing is pending any more, but a request is on the wire: without its job no sweep would end its lease.
#[tokio::test]
async fn e9_a_job_stays_while_its_last_row_is_on_the_wire() -> Result<()> {
    let bench = Bench::new("last").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let made = claim(&[job], 2, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    let recorded = bench.record(&made, &requests(&rows)[0], accepted("txn-1")).await?;
    assert_eq!(recorded.jobs[&job], JobFate::Leased);
    assert!(bench.job(job).await?.is_some());
    Ok(())
}

/// A worker that gives a job back before anything was claimed of it again: pending rows are due at once for whoever comes.
#[tokio::test]
async fn a_drained_job_is_free_for_the_next_worker() -> Result<()> {
    let bench = Bench::new("drain").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let made = claim(&[job], 1, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    let recorded = bench.record(&made, &rows, accepted("txn-1")).await?;
    assert_eq!(recorded.jobs[&job], JobFate::Due);
    let (next, _) = bench.store.claim(&claim(&[job], 5, 1)).await?;
    assert_eq!(next.len(), 1);
    Ok(())
}

/// A batch of many attempts, of several jobs and of every verdict, is one transaction.
#[tokio::test]
async fn a_batch_of_all_verdicts_is_recorded_at_once() -> Result<()> {
    let bench = Bench::new("batch").await?;
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(bench.queue(&[ANNA, BERT]).await?.0);
    }
    let made = Claim { token: token(), ..claim(&jobs, 10, 500) };
    let (rows, _) = bench.store.claim(&made).await?;
    let outcomes = [accepted("txn-1"), refused(), ambiguous(), not_sent(), throttled()];
    let by_job: HashMap<_, _> = jobs.iter().zip(outcomes).collect();
    let batch: Vec<_> =
        requests(&rows).iter().map(|request| ended(request, by_job[&request[0].job_id].clone())).collect();
    assert_eq!(batch.len(), 5);
    let recorded = bench.store.record(&batch, &jobs, made.token).await?;
    let fates: Vec<_> = jobs.iter().map(|job| recorded.jobs[job]).collect();
    use JobFate::{Gone, Waiting};
    assert_eq!(fates, [Gone, Gone, Gone, Waiting, Waiting]);
    assert_eq!((recorded.moved.len(), recorded.settled_late, recorded.successors), (10, 0, 0));
    let states = "select string_agg(state || ' ' || n, ', ' order by state) from
        (select state, count(*) as n from outbound_message group by state) as s";
    assert_eq!(bench.sql(states).await?, "pending 4, submitted 2, rejected 2, unknown 2");
    assert_eq!(bench.store.record(&[], &[], token()).await?.jobs.len(), 0);
    Ok(())
}

/// The wait that a record asks for is the row's own.
#[tokio::test]
async fn o6_a_job_wakes_with_its_first_waiting_row() -> Result<()> {
    let bench = Bench::new("waits").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let made = claim(&[job], 2, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    let mut batch: Vec<_> = requests(&rows).iter().map(|request| ended(request, not_sent())).collect();
    batch[0].retry_after = Duration::from_secs(100);
    batch[1].retry_after = Duration::from_secs(20);
    let recorded = bench.store.record(&batch, &[job], made.token).await?;
    assert_eq!(recorded.jobs[&job], JobFate::Waiting);
    let wakes = bench.wakes_in(job).await?;
    assert!((10.0..=20.0).contains(&wakes), "{wakes}");
    Ok(())
}
