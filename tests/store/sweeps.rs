//! The jobs sweep: when it may end a lease, what becomes of the rows, and what is published when.

use std::time::Duration;

use anyhow::Result;
use sendonce_core::domain::message::{Channel, Class, JobId};
use sendonce_core::domain::state::State;
use sendonce_core::store::{DueJob, LeasesEnded, NewMessage, Store, SweepConnection};
use serde_json::json;

use crate::support::{ANNA, BERT, Bench, CARL, SHORT_LEASE, accepted, claim, message, new_job, not_sent, requests};

async fn due(store: &Store) -> Result<Vec<JobId>> {
    let taken: Vec<DueJob> = store.take_due_jobs(Channel::Sms, Class::Transactional, 100).await?;
    Ok(taken.into_iter().map(|job| job.id).collect())
}

/// Execution 19: after an outage every living worker first gets a lease's time to record what it holds, so the sweep's
/// connection must have been up as long, whatever the deadline says.
#[tokio::test]
async fn e19_no_lease_ends_before_the_connection_is_a_lease_old() -> Result<()> {
    let bench = Bench::short("young").await?;
    let (made, _) = bench.on_the_wire(&[ANNA]).await?;
    let job = made.jobs[0].id;
    // Long past its deadline.
    bench.wake(job).await?;
    let mut sweep = SweepConnection::default();
    let opened = std::time::Instant::now();
    let mut first = bench.store.end_leases(&mut sweep, 10).await?;
    let mut looks = 1;
    while first.jobs == 0 {
        assert!(opened.elapsed() < sendonce_tests::PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
        first = bench.store.end_leases(&mut sweep, 10).await?;
        looks += 1;
    }
    assert!(looks > 1, "a connection just opened ends nothing");
    assert!(opened.elapsed() >= SHORT_LEASE, "{:?}", opened.elapsed());
    assert_eq!(first, LeasesEnded { jobs: 1, unknown: 1 });
    Ok(())
}

/// A lease that has not run out is nobody's to end.
#[tokio::test]
async fn t28_a_lease_that_runs_is_left_alone() -> Result<()> {
    let bench = Bench::short("running").await?;
    let mut sweep = SweepConnection::default();
    // Old enough to end leases from here on.
    let (old, _) = bench.on_the_wire(&[ANNA]).await?;
    bench.end_leases(&mut sweep, 1).await?;
    assert!(bench.job(old.jobs[0].id).await?.is_none());

    let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
    let deadline = bench.sql(&format!("select wake_at from send_job where id = {}", made.jobs[0].id)).await?;
    let mut early = 0;
    loop {
        let ended = bench.store.end_leases(&mut sweep, 10).await?;
        let past = bench.sql(&format!("select clock_now() >= '{deadline}'")).await? == "t";
        if ended.jobs > 0 {
            assert!(past, "ended before its deadline");
            break;
        }
        early += usize::from(!past);
    }
    assert!(early > 0, "it was looked at while it ran");
    assert_eq!(bench.state(rows[0].id).await?, State::Unknown);
    Ok(())
}

/// Execution 22: claimed rows become unknown, never pending; pending siblings survive and are published at once.
#[tokio::test]
async fn e22_an_ended_lease_doubts_what_was_on_the_wire_and_frees_the_rest() -> Result<()> {
    let bench = Bench::short("freed").await?;
    let (job, ids) = bench.queue(&[ANNA, BERT, CARL]).await?;
    let made = claim(&[job], 2, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    // One of the two was recorded in time.
    let by_key = requests(&rows);
    bench.record(&made, &by_key[0], accepted("txn-1")).await?;
    let doubtful = &by_key[1][0];
    assert_eq!(bench.end_leases(&mut SweepConnection::default(), 1).await?, 1);
    let mut states = bench.states(&ids).await?;
    states.sort_unstable();
    assert_eq!(states, [State::Pending, State::Submitted, State::Unknown]);
    let row = bench.row(doubtful.id).await?;
    assert_eq!((&row["state"], &row["state_reason"]), (&json!("unknown"), &json!("lease_ended")));
    assert_eq!(row["attempt_key"], json!(doubtful.attempt_key.0), "its late answer must find it");
    let attempt = format!(
        "select verdict, message_ids = array[{}]::bigint[] from submission where attempt_key = '{}'",
        doubtful.id, doubtful.attempt_key
    );
    assert_eq!(bench.sql(&attempt).await?, "lease_ended|t");
    assert_eq!(bench.count("unresolved").await?, 1);

    let left = bench.job(job).await?.unwrap();
    assert!(left["lease_token"].is_null());
    assert_eq!(due(&bench.store).await?, [job], "no copy of it waits in a queue");
    let (next, _) = bench.store.claim(&claim(&[job], 5, 1)).await?;
    assert_eq!(next.len(), 1);
    assert!(next[0].id != doubtful.id && next[0].id != by_key[0][0].id);
    Ok(())
}

/// One request of many rows is one attempt: one submission names them all.
#[tokio::test]
async fn t14_an_ended_lease_writes_one_attempt_a_request() -> Result<()> {
    let bench = Bench::short("attempt").await?;
    let (_, rows) = bench.on_the_wire(&[ANNA, BERT, CARL]).await?;
    bench.end_leases(&mut SweepConnection::default(), 1).await?;
    let found =
        bench.sql("select attempt_key, cardinality(message_ids), claimed_at <= ended_at from submission").await?;
    assert_eq!(found, format!("{}|3|t", rows[0].attempt_key));
    assert_eq!(bench.count("send_job").await?, 0, "nothing of it is left to send");
    Ok(())
}

/// A job of which only the lease is left (all was recorded, the settling was not): nothing becomes unknown.
#[tokio::test]
async fn an_ended_lease_without_claimed_rows_doubts_nothing() -> Result<()> {
    let bench = Bench::short("idle").await?;
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let made = claim(&[job], 1, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    bench.store.record(&[crate::support::ended(&rows, accepted("txn-1"))], &[], made.token).await?;
    assert_eq!(bench.end_leases(&mut SweepConnection::default(), 1).await?, 0);
    assert_eq!(due(&bench.store).await?, [job]);
    Ok(())
}

/// Two reconcilers: every lease is ended once, every row doubted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sweeps_at_once_end_each_lease_once() -> Result<()> {
    let bench = Bench::short("two").await?;
    let other = bench.another()?;
    let (mut one, mut two) = (SweepConnection::default(), SweepConnection::default());
    bench.store.end_leases(&mut one, 10).await?;
    other.end_leases(&mut two, 10).await?;
    for _ in 0..12 {
        bench.on_the_wire(&[ANNA, BERT]).await?;
    }
    let mut total = LeasesEnded::default();
    let deadline = std::time::Instant::now() + sendonce_tests::PATIENCE;
    while total.jobs < 12 {
        assert!(std::time::Instant::now() < deadline, "{total:?}");
        let (a, b) = tokio::join!(bench.store.end_leases(&mut one, 10), other.end_leases(&mut two, 10));
        for ended in [a?, b?] {
            total = LeasesEnded { jobs: total.jobs + ended.jobs, unknown: total.unknown + ended.unknown };
        }
    }
    assert_eq!(total, LeasesEnded { jobs: 12, unknown: 24 });
    assert_eq!((bench.count("unresolved").await?, bench.count("submission").await?), (24, 12));
    other.close().await;
    Ok(())
}

/// The sweep and the record of the same job at the same moment: the row ends in what was answered, never in doubt for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_races_the_sweep_is_never_lost() -> Result<()> {
    let bench = Bench::short("race").await?;
    let other = bench.another()?;
    let mut sweep = SweepConnection::default();
    bench.on_the_wire(&[ANNA]).await?;
    bench.end_leases(&mut sweep, 1).await?;
    let (mut late, mut in_time) = (0, 0);
    for round in 0..40 {
        let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
        bench.wake(made.jobs[0].id).await?;
        let ended = [crate::support::ended(&rows, accepted(&format!("txn-{round}")))];
        let jobs = [made.jobs[0].id];
        let (swept, recorded) =
            tokio::join!(bench.store.end_leases(&mut sweep, 10), other.record(&ended, &jobs, made.token));
        let (swept, recorded) = (swept?, recorded?);
        assert!(recorded.anomalies.is_empty());
        assert_eq!(recorded.moved.len(), 1, "round {round}");
        assert_eq!(swept.unknown, recorded.settled_late, "round {round}");
        late += recorded.settled_late;
        in_time += 1 - recorded.settled_late;
        assert_eq!(bench.state(rows[0].id).await?, State::Submitted, "round {round}");
    }
    assert_eq!(late + in_time, 40);
    assert_eq!(bench.count("unresolved where kind = 'unknown'").await?, 1, "the first one's only");
    assert_eq!(bench.count("send_job").await?, 0);
    other.close().await;
    Ok(())
}

/// Execution 8: copies thin out, so that a long backlog is not flooded.
#[tokio::test]
async fn e8_a_due_job_is_published_at_doubling_distances() -> Result<()> {
    let bench = Bench::new("doubling").await?;
    let (job, _) = bench.queue(&[ANNA]).await?;
    assert!(due(&bench.store).await?.is_empty(), "ingest has published it itself");
    assert!((50.0..=60.0).contains(&bench.wakes_in(job).await?));
    // Ingest's copy is the first; each further one doubles what comes after it.
    for (copy, wait) in [(2, 60.0), (3, 120.0), (4, 240.0), (5, 480.0)] {
        bench.wake(job).await?;
        assert_eq!(due(&bench.store).await?, [job]);
        assert!(due(&bench.store).await?.is_empty(), "not twice");
        assert_eq!(bench.job(job).await?.unwrap()["publish_count"], copy);
        let wakes = bench.wakes_in(job).await?;
        assert!((wait - 10.0..=wait).contains(&wakes), "copy {copy}: {wakes}");
    }
    Ok(())
}

/// Lanes are apart, the oldest comes first, and a limit is a limit.
#[tokio::test]
async fn due_jobs_come_by_lane_oldest_first() -> Result<()> {
    let bench = Bench::new("lanes").await?;
    let otp = NewMessage { class: Class::Otp, ..message(new_job(), ANNA) };
    bench.admit(std::slice::from_ref(&otp)).await?;
    let (young, _) = bench.queue(&[ANNA]).await?;
    let (old, _) = bench.queue(&[BERT, CARL]).await?;
    for (job, ago) in [(otp.job_id, 10), (young, 20), (old, 30)] {
        bench.sql(&format!("update send_job set wake_at = clock_now() - interval '{ago} s' where id = {job}")).await?;
    }
    let mut lanes = bench.store.lane_backlogs().await?;
    lanes.sort_by_key(|lane| lane.class);
    assert_eq!(
        lanes.iter().map(|lane| (lane.class, lane.due, lane.published, lane.due_unpublished)).collect::<Vec<_>>(),
        [(Class::Otp, 1, 1, 0), (Class::Transactional, 2, 2, 0)]
    );
    let first = bench.store.take_due_jobs(Channel::Sms, Class::Transactional, 1).await?;
    let expected =
        DueJob { id: old, channel: Channel::Sms, class: Class::Transactional, account: "main".into(), rows: 2 };
    assert_eq!(first, [expected]);
    assert_eq!(due(&bench.store).await?, [young]);
    assert!(bench.store.take_due_jobs(Channel::Whatsapp, Class::Otp, 10).await?.is_empty());
    assert_eq!(bench.store.take_due_jobs(Channel::Sms, Class::Otp, 10).await?.len(), 1);
    assert!(bench.store.lane_backlogs().await?.is_empty());
    Ok(())
}

/// Two sweeps never publish the same job in one pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sweeps_at_once_take_each_due_job_once() -> Result<()> {
    let bench = Bench::new("once").await?;
    let other = bench.another()?;
    let mut all = Vec::new();
    for _ in 0..30 {
        all.push(bench.queue(&[ANNA]).await?.0);
    }
    bench.sql("update send_job set wake_at = clock_now()").await?;
    let (a, b) = tokio::join!(due(&bench.store), due(&other));
    let mut taken = [a?, b?].concat();
    taken.sort_unstable();
    let mut once = taken.clone();
    once.dedup();
    assert_eq!(taken, once);
    // What one pass skipped because the other held it, the next one takes or finds moved on.
    taken.extend(due(&bench.store).await?);
    taken.sort_unstable();
    assert_eq!(taken, all);
    other.close().await;
    Ok(())
}

/// A scheduled job is in no queue before its time.
#[tokio::test]
async fn a_scheduled_job_is_not_published_before_its_time() -> Result<()> {
    let mut bench = Bench::new("scheduled").await?;
    let now = bench.store.clock_now().await?;
    let m = NewMessage { scheduled_for: Some(now + Duration::from_secs(600)), ..message(new_job(), ANNA) };
    bench.admit(std::slice::from_ref(&m)).await?;
    let job = bench.job(m.job_id).await?.unwrap();
    assert_eq!((&job["publish_count"], &job["published_at"]), (&json!(0), &().into()));
    assert!(due(&bench.store).await?.is_empty());
    // A stray copy changes nothing.
    let (rows, after) = bench.store.claim(&claim(&[m.job_id], 1, 1)).await?;
    assert!(rows.is_empty());
    assert_eq!(after[0].due, 0);
    assert!((590.0..=600.0).contains(&bench.wakes_in(m.job_id).await?));
    bench.shift_clock("601 seconds").await?;
    let lanes = bench.store.lane_backlogs().await?;
    assert_eq!((lanes[0].due, lanes[0].due_unpublished, lanes[0].published), (1, 1, 0));
    assert_eq!(due(&bench.store).await?, [m.job_id]);
    assert_eq!(bench.store.claim(&claim(&[m.job_id], 1, 1)).await?.0.len(), 1);
    Ok(())
}

/// A retry is a job with a later deadline, published when it comes.
#[tokio::test]
async fn o6_a_retry_is_published_when_its_wait_is_over() -> Result<()> {
    let mut bench = Bench::new("retry").await?;
    let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
    bench.record(&made, &rows, not_sent()).await?;
    assert!(due(&bench.store).await?.is_empty());
    bench.shift_clock("31 seconds").await?;
    assert_eq!(due(&bench.store).await?, [rows[0].job_id]);
    let wakes = bench.wakes_in(rows[0].job_id).await?;
    assert!((50.0..=60.0).contains(&wakes), "the first copy of this deadline, so the wait is the grace again: {wakes}");
    Ok(())
}

/// T12: what nobody claimed in time is expired by the sweep, counted, and its job goes; what was cancelled likewise.
#[tokio::test]
async fn t12_the_sweep_ends_what_expired_or_was_cancelled_unclaimed() -> Result<()> {
    let mut bench = Bench::new("expired").await?;
    let job = new_job();
    let short = NewMessage { ttl: Duration::from_secs(30), ..message(job, ANNA) };
    let long = message(job, BERT);
    let alone = NewMessage { ttl: Duration::from_secs(30), ..message(new_job(), CARL) };
    let cancelled = message(new_job(), CARL);
    bench.admit(&[short.clone(), long.clone(), alone.clone(), cancelled.clone()]).await?;
    bench
        .sql(&format!(
            "insert into cancellation (tenant_id, event_id, reason) values ('acme', '{}', 'x')",
            cancelled.event_id
        ))
        .await?;
    bench.shift_clock("61 seconds").await?;
    assert_eq!(due(&bench.store).await?, [job], "its other row is still to be sent");
    assert_eq!(
        bench.states(&[short.id, long.id, alone.id, cancelled.id]).await?,
        [State::Expired, State::Pending, State::Expired, State::Cancelled]
    );
    assert_eq!(bench.count("send_job").await?, 1);
    assert_eq!(
        bench.count("outbound_message where state = 'expired' and cost is null and claimed_at is null").await?,
        2
    );
    Ok(())
}

/// Under a lease nothing is published, however late.
#[tokio::test]
async fn a_leased_job_is_never_published() -> Result<()> {
    let bench = Bench::new("leased").await?;
    let (made, _) = bench.on_the_wire(&[ANNA]).await?;
    bench.wake(made.jobs[0].id).await?;
    assert!(due(&bench.store).await?.is_empty());
    assert!(bench.store.lane_backlogs().await?.is_empty());
    Ok(())
}

/// Jobs that a held lane gives back come again after a while, spread; those under a lease do not move.
#[tokio::test]
async fn released_jobs_come_back_spread() -> Result<()> {
    let bench = Bench::new("released").await?;
    let (free, _) = bench.queue(&[ANNA]).await?;
    let (made, _) = bench.on_the_wire(&[BERT]).await?;
    let leased = bench.job(made.jobs[0].id).await?;
    bench.store.release_jobs(&[free, made.jobs[0].id], Duration::from_secs(20)).await?;
    let wakes = bench.wakes_in(free).await?;
    assert!((10.0..=40.0).contains(&wakes), "{wakes}");
    assert_eq!(bench.job(free).await?.unwrap()["publish_count"], 0);
    assert_eq!(bench.job(made.jobs[0].id).await?, leased);
    Ok(())
}
