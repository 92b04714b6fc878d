//! Every statement runs, as the role that runs it in production.

use std::time::Duration;

use anyhow::Result;
use chrono::DateTime;
use rust_decimal::Decimal;
use sendonce_core::domain::event::{CancelEvent, CancelTarget};
use sendonce_core::domain::message::{Channel, Class};
use sendonce_core::domain::receipt::ReceiptKind;
use sendonce_core::domain::state::State;
use sendonce_core::store::{
    JobIds, MessageIds, ParkKind, ParkReason, SCHEMA_VERSION, StoreError, SweepConnection, ToPark,
};
use serde_json::json;

use crate::support::{ANNA, BERT, Bench, accepted, ambiguous, claim, message, new_job, receipt, recipient};

#[tokio::test]
async fn f1_a_worker_finds_the_schema_it_was_built_for() -> Result<()> {
    let mut bench = Bench::new("check_schema").await?;
    bench.store.ping().await?;
    bench.store.check_schema(false).await?;
    bench.shift_clock("1 hour").await?;
    bench.store.check_schema(true).await?;
    let refused = bench.store.check_schema(false).await.unwrap_err();
    assert!(refused.to_string().contains("clock_offset"), "{refused}");

    bench.sql(&format!("delete from _sqlx_migrations where version = {SCHEMA_VERSION}")).await?;
    let refused = bench.store.check_schema(true).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unexpected(_)), "{refused}");
    assert!(refused.to_string().contains("sendonce migrate"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn t31_partitions_are_made_ahead_and_a_missing_one_holds() -> Result<()> {
    let mut bench = Bench::new("partitions").await?;
    assert!(bench.store.partitions_ahead().await? >= 4);
    assert_eq!(bench.store.ensure_partitions(3).await?, 0);
    bench.shift_clock("300 days").await?;
    assert_eq!(bench.store.partitions_ahead().await?, 0);
    let error = bench.admit(&[message(new_job(), ANNA)]).await.unwrap_err();
    assert!(error.downcast_ref::<StoreError>().is_some_and(StoreError::is_transient), "{error:#}");
    assert_eq!(bench.store.ensure_partitions(3).await?, 12, "four months of three tables");
    assert_eq!(bench.store.partitions_ahead().await?, 4);
    bench.queue(&[ANNA]).await?;
    Ok(())
}

#[tokio::test]
async fn ids_come_in_blocks_that_no_two_processes_share() -> Result<()> {
    let bench = Bench::new("ids").await?;
    let (mut one, mut other) = (MessageIds::default(), MessageIds::default());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1001 {
        for block in [&mut one, &mut other] {
            assert!(seen.insert(block.next(&bench.store).await?.0));
        }
    }
    let (mut one, mut other) = (JobIds::default(), JobIds::default());
    assert_ne!(one.next(&bench.store).await?, other.next(&bench.store).await?);
    Ok(())
}

#[tokio::test]
async fn t19_the_rate_card_is_read_as_dated_decimals() -> Result<()> {
    let bench = Bench::new("rate_card").await?;
    bench
        .sql(
            "insert into rate_card (tenant_id, channel, message_class, prefix, unit_price, currency, valid_from, valid_to)
             values ('acme', 'sms', 'otp', '91', 0.1250, 'INR', default, clock_now() + interval '1 day'),
                    ('acme', 'sms', 'otp', '91', 0.1300, 'INR', clock_now() + interval '1 day', null),
                    ('acme', 'sms', 'otp', '49', 9, 'INR', default, clock_now() - interval '1 day')",
        )
        .await?;
    let card = bench.store.rate_card().await?;
    let now = bench.store.clock_now().await?;
    let price = |at| card.find("acme", Channel::Sms, Class::Otp, &recipient(ANNA), at).map(|rate| rate.unit_price);
    assert_eq!(price(now), Some(Decimal::new(1250, 4)));
    assert_eq!(price(now + Duration::from_secs(2 * 24 * 3600)), Some(Decimal::new(1300, 4)));
    assert_eq!(card.rates().len(), 2, "what ended is not read");
    assert_eq!(card.rates().iter().map(|rate| rate.currency.as_str()).collect::<Vec<_>>(), ["INR", "INR"]);
    Ok(())
}

#[tokio::test]
async fn i12_what_is_parked_keeps_its_bytes_and_counts_its_repeats() -> Result<()> {
    let bench = Bench::new("park").await?;
    let thing = |reason: &str, original: &[u8]| ToPark {
        kind: ParkKind::Event,
        reason: ParkReason::new(reason, "the text holds a \0"),
        tenant: Some("acme".into()),
        event_id: Some("e-1".into()),
        recipient: None,
        original: original.to_vec(),
        headers: json!({ "user-id": "acme" }),
    };
    let things = [thing("not_json", b"\0\xff"), thing("not_json", b"\0\xff"), thing("not_utf8", b"\0\xff")];
    bench.store.park(&things).await?;
    bench.store.park(&things[..1]).await?;
    assert_eq!(bench.store.parked_open().await?, 2);
    let parked = bench.store.list_parked(10).await?;
    let seen = |reason: &str| parked.iter().find(|p| p.reason == reason).map(|p| p.times_seen);
    assert_eq!((seen("not_json"), seen("not_utf8")), (Some(2), Some(1)));
    assert_eq!(bench.sql("select distinct encode(original, 'hex') from parked").await?, "00ff");
    Ok(())
}

#[tokio::test]
async fn f4_everything_is_seen_from_outside() -> Result<()> {
    let bench = Bench::new("inspect").await?;
    let sent = bench.submitted(&[ANNA], "6305583318236810379").await?;
    let (claim_, doubtful) = bench.on_the_wire(&[BERT]).await?;
    bench.record(&claim_, &doubtful, ambiguous()).await?;
    bench.queue(&[ANNA]).await?;
    bench.store.apply_receipts(&[receipt("6305583318236810379", ANNA, ReceiptKind::Delivered)]).await?;

    let counts = bench.store.state_counts().await?;
    let counted: Vec<_> = counts.iter().map(|c| (c.class.as_str(), c.state.as_str(), c.messages)).collect();
    assert_eq!(
        counted,
        [("transactional", "delivered", 1), ("transactional", "pending", 1), ("transactional", "unknown", 1)]
    );
    let [line] = &bench.store.cost_lines().await?[..] else { panic!("one tenant, day and channel") };
    assert_eq!((line.submitted, line.units, line.cost), (1, 1, Decimal::new(1250, 4)));
    assert_eq!((line.exposure_messages, line.exposure_units, line.exposure), (1, 1, Decimal::new(1250, 4)));
    let [open] = &bench.store.list_unresolved(10).await?[..] else { panic!("one unknown") };
    assert_eq!((open.message_id, open.reason.as_deref()), (doubtful[0].id.0, Some("timeout")));
    let backlog = bench.store.unknown_backlog().await?;
    let of = |class| backlog.iter().find(|(of, ..)| *of == class).map(|(_, count, _)| *count);
    assert_eq!((of(Class::Transactional), of(Class::Otp), of(Class::Promotional)), (Some(1), Some(0), Some(0)));

    let id = sent[0].id;
    let row = bench.row(id).await?;
    for what in [id.to_string(), row["event_id"].as_str().unwrap().into(), sent[0].business_key.clone()] {
        assert_eq!(bench.store.find_messages(&what).await?, [id.0], "{what}");
    }
    assert_eq!(bench.store.find_messages("6305583318236810379").await?, [id.0]);
    assert_eq!(bench.store.find_messages(ANNA).await?.len(), 2);
    assert_eq!(bench.store.find_messages("'; drop table x").await?, [] as [i64; 0]);
    let view = bench.store.find_message(id.0).await?.unwrap();
    assert_eq!((view.attempts.len(), view.receipts.len()), (1, 1));
    let text = serde_json::to_string(&view)?;
    assert!(!text.contains(ANNA) && !text.contains("Your order"), "{text}");
    assert_eq!(view.message["recipient"], "91********10");
    assert!(bench.store.find_message(1).await?.is_none());
    Ok(())
}

/// T24: 0, not null, when there is none; a message that waits for its schedule is not old.
#[tokio::test]
async fn t24_the_oldest_undecided_message_is_measured_from_when_it_was_due() -> Result<()> {
    let mut bench = Bench::new("oldest").await?;
    let ages = |of: Vec<(Class, Duration)>| of.into_iter().map(|(_, age)| age.as_secs()).collect::<Vec<_>>();
    assert_eq!(ages(bench.store.oldest_undecided().await?), [0, 0, 0]);
    let now = bench.store.clock_now().await?;
    let mut scheduled = message(new_job(), BERT);
    scheduled.scheduled_for = Some(now + Duration::from_secs(3000));
    bench.admit(&[scheduled]).await?;
    bench.shift_clock("2000 seconds").await?;
    assert_eq!(ages(bench.store.oldest_undecided().await?), [0, 0, 0]);
    let (job, _) = bench.queue(&[ANNA]).await?;
    bench.shift_clock("4000 seconds").await?;
    let of =
        |ages: Vec<(Class, Duration)>| ages.into_iter().find(|(class, _)| *class == Class::Transactional).unwrap().1;
    let age = of(bench.store.oldest_undecided().await?);
    assert!((2000..2060).contains(&age.as_secs()), "{age:?}");
    bench.sql(&format!("update send_job set parked_reason = 'max_attempts' where id = {job}")).await?;
    let age = of(bench.store.oldest_undecided().await?);
    assert!((1000..1060).contains(&age.as_secs()), "{age:?}");
    Ok(())
}

/// Execution 13: a cancel that overtakes its event holds.
#[tokio::test]
async fn a_cancel_is_a_row_that_ends_what_comes_later() -> Result<()> {
    let bench = Bench::new("cancel").await?;
    let (by_event, by_key, foreign) = (message(new_job(), ANNA), message(new_job(), BERT), message(new_job(), ANNA));
    let cancel = |tenant: &str, target| CancelEvent { tenant: tenant.into(), target, reason: "withdrawn".into() };
    let cancels = [
        cancel("acme", CancelTarget::Event(by_event.event_id.clone())),
        cancel("acme", CancelTarget::Key(by_key.business_key)),
        cancel("other", CancelTarget::Event(foreign.event_id.clone())),
    ];
    assert_eq!(bench.store.cancel(&cancels).await?, 3);
    assert_eq!(bench.store.cancel(&cancels).await?, 0);
    let jobs = [by_event.job_id, by_key.job_id, foreign.job_id];
    bench.admit(&[by_event.clone(), by_key.clone(), foreign.clone()]).await?;
    let (rows, _) = bench.store.claim(&claim(&jobs, 3, 1)).await?;
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [foreign.id], "another tenant's cancel is not ours");
    assert_eq!(bench.states(&[by_event.id, by_key.id]).await?, [State::Cancelled, State::Cancelled]);
    assert!(bench.job(jobs[0]).await?.is_none() && bench.job(jobs[1]).await?.is_none());
    Ok(())
}

/// One message through every statement of its life, and one through doubt.
#[tokio::test]
async fn i8_a_life_from_admission_to_receipt() -> Result<()> {
    let bench = Bench::short("life").await?;
    let mut sweep = SweepConnection::default();
    let rows = bench.submitted(&[ANNA, BERT], "txn-1").await?;
    let applied = bench.store.apply_receipts(&[receipt("txn-1", ANNA, ReceiptKind::Delivered)]).await?;
    assert_eq!((applied.applied, applied.finished), (1, 1));
    assert_eq!(bench.states(&[rows[0].id, rows[1].id]).await?, [State::Delivered, State::Submitted]);
    let (claim_, doubtful) = bench.on_the_wire(&[ANNA]).await?;
    assert_eq!(bench.end_leases(&mut sweep, 1).await?, 1);
    assert_eq!(bench.state(doubtful[0].id).await?, State::Unknown);
    let late = bench.record(&claim_, &doubtful, accepted("txn-2")).await?;
    assert_eq!(late.settled_late, 1);
    assert_eq!(bench.state(doubtful[0].id).await?, State::Submitted);
    assert_eq!(bench.store.apply_early("main", &["txn-2".into()]).await?.applied, 0);
    assert_eq!(bench.store.sweep_receipts(100, Duration::from_secs(86400)).await?.1, 0);
    let (job, _) = bench.queue(&[ANNA]).await?;
    bench.wake(job).await?;
    let lanes = bench.store.lane_backlogs().await?;
    assert_eq!(lanes.iter().map(|lane| (lane.class, lane.due)).collect::<Vec<_>>(), [(Class::Transactional, 1)]);
    let due = bench.store.take_due_jobs(Channel::Sms, Class::Transactional, 10).await?;
    assert_eq!(due.iter().map(|due| due.id).collect::<Vec<_>>(), [job]);
    assert!(DateTime::parse_from_rfc3339(bench.row(rows[0].id).await?["final_at"].as_str().unwrap()).is_ok());
    Ok(())
}

#[tokio::test]
async fn t26_an_account_is_silent_since_its_newest_receipt_or_since_the_store_began() -> Result<()> {
    let mut bench = Bench::new("last_receipts").await?;
    bench.store.apply_receipts(&[receipt("txn-old", ANNA, ReceiptKind::Delivered)]).await?;
    bench.shift_clock("35 days").await?;
    bench.store.apply_receipts(&[receipt("txn-new", ANNA, ReceiptKind::Delivered)]).await?;
    let silence = bench.store.last_receipts(&["main", "never-heard"]).await?;
    let seconds = |account: &str| silence.iter().find(|(name, _)| name == account).map(|(_, age)| age.as_secs());
    assert!(seconds("main").is_some_and(|age| age < 60), "{silence:?}");
    assert!(seconds("never-heard").is_some_and(|age| age >= 35 * 86_400), "{silence:?}");
    bench.shift_clock("70 days").await?;
    let silence = bench.store.last_receipts(&["main"]).await?;
    let expected = Duration::from_secs(35 * 86_400);
    assert!(silence[0].1 >= expected && silence[0].1 < expected + Duration::from_secs(60), "{silence:?}");
    Ok(())
}
