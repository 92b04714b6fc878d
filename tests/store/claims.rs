//! The claim: what it takes, what it leaves, and whom it refuses.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use anyhow::Result;
use sendonce_core::domain::message::{AttemptKey, Body, Channel, Class, MessageId};
use sendonce_core::domain::state::State;
use sendonce_core::store::{Claim, ClaimedMessage, JobFate, NewMessage, SweepConnection};

use crate::support::{
    ANNA, BERT, Bench, CARL, attempt_key, claim, ended, message, new_job, not_sent, number, requests, token,
};

fn keys(rows: &[ClaimedMessage]) -> BTreeSet<AttemptKey> {
    rows.iter().map(|row| row.attempt_key).collect()
}

fn ids(rows: &[ClaimedMessage]) -> BTreeSet<MessageId> {
    rows.iter().map(|row| row.id).collect()
}

/// Execution 1: doubt after a crash is limited to the slots, whatever the job's size.
#[tokio::test]
async fn e1_a_claim_takes_no_more_requests_than_there_are_slots() -> Result<()> {
    let bench = Bench::new("slots").await?;
    let numbers: Vec<String> = (0..5).map(number).collect();
    let (job, all) = bench.queue(&numbers.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let first = claim(&[job], 2, 1);
    let (rows, after) = bench.store.claim(&first).await?;
    assert_eq!(rows.len(), 2);
    assert_eq!(keys(&rows), first.attempt_keys.iter().copied().collect(), "each its own key, and the claim's");
    assert_eq!((after[0].due, after[0].released), (3, None));
    assert_eq!(bench.count("outbound_message where state = 'pending'").await?, 3);
    let leased = bench.job(job).await?.unwrap();
    assert_eq!(leased["lease_token"], serde_json::json!(first.token.0));
    assert!((50.0..=60.0).contains(&bench.wakes_in(job).await?));

    let next = Claim { token: first.token, ..claim(&[job], 9, 1) };
    let (more, after) = bench.store.claim(&next).await?;
    assert_eq!((more.len(), after[0].due, after[0].released), (3, 0, None));
    assert_eq!(ids(&rows).union(&ids(&more)).copied().collect::<BTreeSet<_>>(), all.into_iter().collect());
    assert!(keys(&rows).is_disjoint(&keys(&more)));
    assert!(rows.iter().chain(&more).all(|row| row.attempt_count == 1));
    Ok(())
}

/// What goes on the wire is what the claim returned.
#[tokio::test]
async fn t28_a_claimed_row_comes_back_as_it_was_admitted() -> Result<()> {
    let bench = Bench::new("columns").await?;
    let m = message(new_job(), ANNA);
    bench.admit(std::slice::from_ref(&m)).await?;
    let made = claim(&[m.job_id], 1, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    let row = &rows[0];
    assert_eq!((row.id, row.job_id, row.attempt_key), (m.id, m.job_id, made.attempt_keys[0]));
    assert_eq!((&row.tenant, row.channel, row.class, &row.account), (&m.tenant, m.channel, m.class, &m.account));
    assert_eq!((&row.recipient, &row.sender_id, row.encoding), (&m.recipient, &m.sender_id, m.encoding));
    assert_eq!((&row.dlt_entity_id, &row.dlt_template_id), (&m.dlt_entity_id, &m.dlt_template_id));
    assert_eq!((row.body.expose(), &row.trace_parent), (m.body.expose(), &m.trace_parent));
    assert_eq!(row.business_key, m.business_key.to_string());
    Ok(())
}

/// A worker with another token gets nothing and changes nothing, not even the deadline.
#[tokio::test]
async fn t28_a_leased_job_gives_another_worker_nothing() -> Result<()> {
    let bench = Bench::new("token").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    bench.store.claim(&claim(&[job], 1, 1)).await?;
    let before = bench.job(job).await?;
    let (rows, after) = bench.store.claim(&claim(&[job], 5, 1)).await?;
    assert!(rows.is_empty());
    assert_eq!((after[0].due, after[0].released), (0, Some(JobFate::Leased)));
    assert_eq!(bench.job(job).await?, before);

    // Not even when the lease has run out: only the sweep ends it.
    bench.wake(job).await?;
    let before = bench.job(job).await?;
    let (rows, _) = bench.store.claim(&claim(&[job], 5, 1)).await?;
    assert!(rows.is_empty());
    assert_eq!(bench.job(job).await?, before);
    Ok(())
}

/// Many workers race for one job; no row is claimed twice and none is left while slots are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t28_racing_workers_never_share_a_row() -> Result<()> {
    let bench = Bench::new("racing").await?;
    let other = bench.another()?;
    for round in 0..25 {
        let numbers: Vec<String> = (0..6).map(|n| number(round * 10 + n)).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        let (one, two) = (bench.queue(&numbers).await?.0, bench.queue(&numbers).await?.0);
        let (mine, theirs) = (claim(&[one, two], 20, 1), claim(&[two, one], 20, 1));
        let (a, b) = tokio::join!(bench.store.claim(&mine), other.claim(&theirs));
        let (a, b) = (a?.0, b?.0);
        assert!(ids(&a).is_disjoint(&ids(&b)), "round {round}");
        assert_eq!(a.len() + b.len(), 12, "round {round}");
    }
    other.close().await;
    Ok(())
}

/// A claim whose COMMIT answer was lost is repeated: the same rows, under the same keys, and no others.
#[tokio::test]
async fn e10_a_repeated_claim_returns_what_it_took_and_takes_nothing_more() -> Result<()> {
    let bench = Bench::new("repeated").await?;
    let (job, _) = bench.queue(&[ANNA, BERT, CARL]).await?;
    let first = claim(&[job], 2, 1);
    let (took, _) = bench.store.claim(&first).await?;
    let repeat = Claim { repeated: true, ..first.clone() };
    let (again, after) = bench.store.claim(&repeat).await?;
    assert_eq!((ids(&again), keys(&again)), (ids(&took), keys(&took)));
    assert_eq!((after[0].due, after[0].released), (1, None));
    assert!(again.iter().all(|row| row.attempt_count == 1), "one attempt, claimed once");
    assert!(again.iter().all(|row| !row.lease_ended), "its lease holds: it may be sent");
    // One that was not committed takes now what it could not take then.
    let never = Claim { repeated: true, token: first.token, ..claim(&[job], 2, 1) };
    assert_eq!(bench.store.claim(&never).await?.0.len(), 1);
    Ok(())
}

/// The same after the sweep ended the lease: the rows are `unknown` now, and their own worker can still prove that
/// nothing was sent. It takes no fresh row under a used key, and no lease.
#[tokio::test]
async fn e10_a_repeated_claim_finds_its_rows_when_the_sweep_was_first() -> Result<()> {
    let bench = Bench::short("swept").await?;
    let mut sweep = SweepConnection::default();
    for (numbers, left) in [(vec![ANNA, BERT, CARL], 1), (vec![ANNA, BERT], 0)] {
        let (job, _) = bench.queue(&numbers).await?;
        let first = claim(&[job], 2, 1);
        let (took, _) = bench.store.claim(&first).await?;
        assert_eq!(bench.end_leases(&mut sweep, 1).await?, 2);
        let before = bench.job(job).await?;
        assert_eq!(before.is_some(), left > 0);
        let (again, after) = bench.store.claim(&Claim { repeated: true, ..first.clone() }).await?;
        assert_eq!((ids(&again), keys(&again)), (ids(&took), keys(&took)), "{left} left");
        assert!(again.iter().all(|row| row.lease_ended), "without a lease nothing is sent any more");
        assert_eq!(bench.job(job).await?, before, "no lease is taken again, {left} left");
        assert_eq!(after[0].released, Some(if left > 0 { JobFate::Due } else { JobFate::Gone }));
        assert_eq!(bench.count(&format!("outbound_message where state = 'pending' and job_id = {job}")).await?, left);
    }
    Ok(())
}

/// After the sweep another worker holds the job: the first one's repeated claim must not take its lease away.
#[tokio::test]
async fn e10_a_repeated_claim_takes_no_lease_from_the_next_worker() -> Result<()> {
    let bench = Bench::short("next").await?;
    let mut sweep = SweepConnection::default();
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let first = claim(&[job], 1, 1);
    let (took, _) = bench.store.claim(&first).await?;
    assert_eq!(bench.end_leases(&mut sweep, 1).await?, 1);
    let (theirs, _) = bench.store.claim(&claim(&[job], 1, 1)).await?;
    assert_eq!(theirs.len(), 1);
    let before = bench.job(job).await?;
    let (again, after) = bench.store.claim(&Claim { repeated: true, ..first }).await?;
    assert_eq!(ids(&again), ids(&took));
    assert_eq!(after[0].released, Some(JobFate::Leased));
    assert_eq!(bench.job(job).await?, before);
    Ok(())
}

/// Rows past their time to live or cancelled are ended on the way; a job with nothing left goes.
#[tokio::test]
async fn t12_the_claim_ends_what_is_expired_or_cancelled() -> Result<()> {
    let mut bench = Bench::new("ended").await?;
    let job = new_job();
    let short = NewMessage { ttl: Duration::from_secs(60), ..message(job, ANNA) };
    let (long, gone) = (message(job, BERT), NewMessage { ttl: Duration::from_secs(60), ..message(new_job(), CARL) });
    let cancelled = message(job, CARL);
    bench.admit(&[short.clone(), long.clone(), cancelled.clone(), gone.clone()]).await?;
    bench
        .sql_as(
            "sendonce_worker",
            &format!(
                "insert into cancellation (tenant_id, event_id, reason) values ('acme', '{}', 'withdrawn')",
                cancelled.event_id
            ),
        )
        .await?;
    bench.shift_clock("61 seconds").await?;
    let (rows, after) = bench.store.claim(&claim(&[gone.job_id, job], 5, 1)).await?;
    assert_eq!(ids(&rows), [long.id].into());
    assert_eq!(after.iter().map(|job| job.released).collect::<Vec<_>>(), [Some(JobFate::Gone), None]);
    assert_eq!(
        bench.states(&[short.id, gone.id, cancelled.id]).await?,
        [State::Expired, State::Expired, State::Cancelled]
    );
    let row = bench.row(short.id).await?;
    assert_eq!(
        (&row["state_reason"], &row["cost"], &row["claimed_at"]),
        (&"ttl_passed".into(), &().into(), &().into())
    );
    assert!(bench.job(gone.job_id).await?.is_none());
    Ok(())
}

/// Equal bodies travel together, as many as the account takes; other bodies in requests of their own.
#[tokio::test]
async fn i12_rows_are_cut_into_requests_by_body_and_size() -> Result<()> {
    let bench = Bench::new("chunks").await?;
    let job = new_job();
    let mut messages: Vec<NewMessage> = (0..7).map(|n| message(job, &number(n))).collect();
    for m in &mut messages[5..] {
        m.body = Body::new("Another text".into());
    }
    bench.admit(&messages).await?;
    let (rows, after) = bench.store.claim(&claim(&[job], 9, 2)).await?;
    let mut sizes: Vec<usize> = requests(&rows).iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!((sizes, after[0].due), (vec![1, 2, 2, 2], 0));
    for request in requests(&rows) {
        assert_eq!(request.iter().map(|row| row.body.expose()).collect::<HashSet<_>>().len(), 1);
    }
    Ok(())
}

/// Whatever else goes on the wire once per request separates requests too.
#[tokio::test]
async fn i12_rows_of_one_request_share_sender_encoding_and_templates() -> Result<()> {
    let bench = Bench::new("alike").await?;
    let job = new_job();
    let base = |n: usize| message(job, &number(n));
    let messages = [
        base(0),
        NewMessage { sender_id: Some("OTHER".into()), ..base(1) },
        NewMessage { sender_id: None, ..base(2) },
        NewMessage { encoding: sendonce_core::domain::message::Encoding::Ucs2, ..base(3) },
        NewMessage { dlt_template_id: None, ..base(4) },
        NewMessage { dlt_entity_id: Some("1".into()), ..base(5) },
    ];
    bench.admit(&messages).await?;
    let (rows, _) = bench.store.claim(&claim(&[job], 9, 500)).await?;
    assert_eq!((rows.len(), keys(&rows).len()), (6, 6));
    Ok(())
}

/// A provider may merge or drop the second of two equal recipients: they never share a request.
#[tokio::test]
async fn i12_a_recipient_stands_once_in_a_request() -> Result<()> {
    let bench = Bench::new("recipient").await?;
    let (job, _) = bench.queue(&[ANNA, ANNA, BERT, ANNA]).await?;
    let (rows, _) = bench.store.claim(&claim(&[job], 9, 500)).await?;
    assert_eq!((rows.len(), keys(&rows).len()), (4, 3));
    for request in requests(&rows) {
        let recipients: HashSet<_> = request.iter().map(|row| row.recipient.clone()).collect();
        assert_eq!(recipients.len(), request.len());
    }
    Ok(())
}

/// T16: an account that takes one recipient gets one, whatever is alike.
#[tokio::test]
async fn t16_otp_is_never_batched() -> Result<()> {
    let bench = Bench::new("otp").await?;
    let job = new_job();
    let messages: Vec<NewMessage> =
        (0..4).map(|n| NewMessage { class: Class::Otp, ..message(job, &number(n)) }).collect();
    bench.admit(&messages).await?;
    let (rows, _) = bench.store.claim(&claim(&[job], 9, 1)).await?;
    assert_eq!((rows.len(), keys(&rows).len()), (4, 4));
    Ok(())
}

/// Jobs are served in the order of the claim, and no request mixes two.
#[tokio::test]
async fn a_claim_serves_its_jobs_in_order() -> Result<()> {
    let bench = Bench::new("order").await?;
    let (first, _) = bench.queue(&[ANNA, BERT]).await?;
    let (second, _) = bench.queue(&[ANNA, BERT, CARL]).await?;
    let (third, _) = bench.queue(&[CARL]).await?;
    let made = claim(&[second, first, third], 2, 500);
    let (rows, after) = bench.store.claim(&made).await?;
    assert_eq!(rows.iter().filter(|row| row.job_id == second).count(), 3, "the first of the claim, whole");
    assert_eq!(rows.iter().filter(|row| row.job_id == first).count(), 2);
    for request in requests(&rows) {
        assert_eq!(request.iter().map(|row| row.job_id).collect::<HashSet<_>>().len(), 1);
    }
    let released: Vec<_> = after.iter().map(|job| (job.id, job.released)).collect();
    assert_eq!(released, [(second, None), (first, None), (third, Some(JobFate::Due))]);
    assert_eq!(bench.job(third).await?.unwrap()["lease_token"], serde_json::Value::Null);
    Ok(())
}

/// A row that went back waits for its time; the others of its job do not.
#[tokio::test]
async fn o6_a_row_is_not_claimed_before_its_next_attempt() -> Result<()> {
    let mut bench = Bench::new("backoff").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let first = claim(&[job], 1, 1);
    let (rows, _) = bench.store.claim(&first).await?;
    bench.store.record(&[ended(&rows, not_sent())], &[job], first.token).await?;
    let (next, after) = bench.store.claim(&Claim { token: first.token, ..claim(&[job], 5, 1) }).await?;
    assert_eq!(next.len(), 1);
    assert_ne!(next[0].id, rows[0].id);
    assert_eq!(after[0].due, 0, "the waiting row is not due");
    bench.shift_clock("31 seconds").await?;
    let (again, _) = bench.store.claim(&Claim { token: first.token, ..claim(&[job], 5, 1) }).await?;
    assert_eq!((again.len(), again[0].id, again[0].attempt_count), (1, rows[0].id, 2));
    assert_ne!(again[0].attempt_key, rows[0].attempt_key);
    Ok(())
}

/// A scheduled row is neither claimed nor counted as due before its time, although others of its job are.
#[tokio::test]
async fn a_row_is_not_claimed_before_its_schedule() -> Result<()> {
    let mut bench = Bench::new("schedule").await?;
    let now = bench.store.clock_now().await?;
    let job = new_job();
    let later = NewMessage { scheduled_for: Some(now + Duration::from_secs(600)), ..message(job, ANNA) };
    bench.admit(&[message(job, BERT), later.clone()]).await?;
    let first = claim(&[job], 5, 1);
    let (rows, after) = bench.store.claim(&first).await?;
    assert_eq!((rows.len(), after[0].due), (1, 0));
    bench.shift_clock("601 seconds").await?;
    let (rows, _) = bench.store.claim(&Claim { token: first.token, ..claim(&[job], 5, 1) }).await?;
    assert_eq!(ids(&rows), [later.id].into());
    Ok(())
}

/// O6: after its last charged attempt a row is for a person to look at, until its time to live ends it.
#[tokio::test]
async fn o6_a_job_without_attempts_left_is_parked_until_its_time_to_live() -> Result<()> {
    let mut bench = Bench::new("attempts").await?;
    let (job, all) = bench.queue(&[ANNA]).await?;
    for attempt in 1..=3 {
        let made = claim(&[job], 1, 1);
        let (rows, _) = bench.store.claim(&made).await?;
        assert_eq!((rows.len(), rows[0].attempt_count), (1, attempt));
        let recorded = bench.store.record(&[ended(&rows, not_sent())], &[job], made.token).await?;
        let expected = if attempt < 3 { JobFate::Waiting } else { JobFate::Parked };
        assert_eq!(recorded.jobs[&job], expected, "attempt {attempt}");
        bench.shift_clock(&format!("{} seconds", attempt * 31)).await?;
    }
    let (rows, after) = bench.store.claim(&claim(&[job], 1, 1)).await?;
    assert!(rows.is_empty());
    assert_eq!(after[0].released, Some(JobFate::Parked));
    let parked = bench.job(job).await?.unwrap();
    assert_eq!((&parked["parked_reason"], &parked["lease_token"]), (&"max_attempts".into(), &().into()));
    assert!(bench.wakes_in(job).await? > 86_000.0, "it wakes when its message expires");
    assert!(bench.store.take_due_jobs(Channel::Sms, Class::Transactional, 10).await?.is_empty());
    bench.shift_clock("24 hours 1 minute").await?;
    assert!(bench.store.take_due_jobs(Channel::Sms, Class::Transactional, 10).await?.is_empty());
    assert_eq!(bench.state(all[0]).await?, State::Expired);
    assert!(bench.job(job).await?.is_none());
    Ok(())
}

/// A row without attempts left is passed over while others of its job go on.
#[tokio::test]
async fn o6_a_row_without_attempts_left_is_not_claimed() -> Result<()> {
    let bench = Bench::new("spent").await?;
    let (job, all) = bench.queue(&[ANNA, BERT]).await?;
    bench.sql(&format!("update outbound_message set attempt_count = 3 where id = {}", all[0])).await?;
    let made = claim(&[job], 5, 1);
    let (rows, after) = bench.store.claim(&made).await?;
    assert_eq!((ids(&rows), after[0].due), ([all[1]].into(), 0));
    let recorded = bench.store.record(&[ended(&rows, not_sent())], &[job], made.token).await?;
    assert_eq!(recorded.jobs[&job], JobFate::Waiting, "the other may try again");
    Ok(())
}

/// A claim of nothing that is there leaves no trace.
#[tokio::test]
async fn a_claim_of_a_job_that_is_gone_is_empty() -> Result<()> {
    let bench = Bench::new("gone").await?;
    let made = Claim { token: token(), attempt_keys: vec![attempt_key()], ..claim(&[new_job()], 1, 1) };
    let (rows, after) = bench.store.claim(&made).await?;
    assert!(rows.is_empty());
    assert_eq!(after[0].released, Some(JobFate::Gone));
    Ok(())
}
