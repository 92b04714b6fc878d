//! What is unknown is resolved only by reading: by the provider's report, or by the worker's own late answer.

use anyhow::{Result, ensure};
use sendonce_devstack::fleet::Role;
use sendonce_tests::{Event, World, eventually, publish};
use serde_json::json;

use crate::flow::{fate, number, orders};

#[tokio::test]
async fn i8_each_unknown_kind_is_settled_by_report_with_one_request_in_the_ledger() -> Result<()> {
    let world = World::start("settled", |options| options).await?;
    // Receipts would settle nothing here, and the report must do it alone.
    world.fleet.turn(&json!({"push": {"enabled": false}})).await?;
    let accepted = [10, 11, 12, 15, 16, 24, 27];
    let nothing = [13, 14, 18, 19];
    let events: Vec<_> = accepted
        .iter()
        .chain(&nothing)
        .map(|suffix| Event::sms(&format!("F{suffix}"), &[&fate(*suffix, 1)], &format!("Fate {suffix}")).outgoing())
        .collect();
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("delivered", 7).await;
    for suffix in accepted {
        let row = world
            .sql(&format!(
                "select state, correlation_result, evidence ->> 'by', cost, reported_cost, cost_currency,
                    provider_txn_id is not null and provider_message_id is not null, reconciled_at is not null
                 from outbound_message where event_id = 'F{suffix}'"
            ))
            .await?;
        assert_eq!(row, "delivered|matched|window|0.1400|0.1400|INR|t|t", "fate {suffix}");
    }
    // Nothing was accepted: absence proves nothing, so these stay, are looked at again, and are listed for review.
    eventually("the rest is under review", async || {
        let rows = world
            .sql("select count(*) from outbound_message where state = 'unknown' and correlation_result = 'not_found' and needs_review_since is not null")
            .await?;
        ensure!(rows == "4", "{rows}");
        Ok(())
    })
    .await;
    let listed = world.store.list_unresolved(100).await?;
    assert_eq!(listed.iter().filter(|row| row.kind == "unknown").count(), 4);
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.accepted), (11, 7), "one request each");
    world.end().await
}

#[tokio::test]
async fn t15_two_unknown_rows_that_fit_one_record_stay_unknown() -> Result<()> {
    let world = World::start("twins", |options| options).await?;
    world.fleet.turn(&json!({"push": {"enabled": false}})).await?;
    let to = number(1);
    let twin = |id: &str| Event::sms(id, &[&to], "The same words to the same person").outgoing();
    world.fleet.turn(&json!({"rates": {"accept_then_reset": 1.0}})).await?;
    publish(&world.fleet.amqp_url(), &[twin("A")]).await?;
    world.reach("unknown", 1).await;
    world.fleet.turn(&json!({"rates": {"accept_then_reset": 0.0, "reset_before": 1.0}})).await?;
    publish(&world.fleet.amqp_url(), &[twin("B")]).await?;
    world.reach("unknown", 2).await;
    eventually("both are ambiguous and were looked at several times", async || {
        let rows = world
            .sql("select count(*) from outbound_message m join unresolved u on u.message_id = m.id where m.correlation_result = 'ambiguous' and u.polls >= 4")
            .await?;
        ensure!(rows == "2", "{rows}");
        Ok(())
    })
    .await;
    assert_eq!(world.count("unknown").await?, 2);
    let candidates = world
        .sql("select min(jsonb_array_length(evidence -> 'candidates')), min(jsonb_array_length(evidence -> 'rivals')) from outbound_message")
        .await?;
    assert_eq!(candidates, "1|1", "each shows its candidates and its rival");
    let ledger = world.fleet.ledger_summary().await?;
    assert_eq!(ledger["accepted_recipients"], 1);
    world.end().await
}

#[tokio::test]
async fn execution_3_a_late_answer_after_the_lease_settles_its_row() -> Result<()> {
    let world = World::start("late_answer", |options| options).await?;
    // Reports are withheld: only the worker's own answer can settle it (execution 24).
    world
        .fleet
        .turn(&json!({"reports": {"withheld": true}, "push": {"enabled": false}, "send": {"late_ms": 1500}}))
        .await?;
    eventually("the sweep may end leases: its connection has been up for one", async || {
        let age = world
            .sql("select min(now() - backend_start) > interval '9 seconds' from pg_stat_activity where application_name = 'sendonce-reconciler'")
            .await?;
        ensure!(age == "t", "{age}");
        Ok(())
    })
    .await;
    publish(&world.fleet.amqp_url(), &[Event::sms("E1", &[&fate(23, 1)], "Answered late").outgoing()]).await?;
    world.reach("claimed", 1).await;
    // The lease ends while the request is on the wire.
    world.sql("update send_job set wake_at = clock_now() - interval '1 second' where lease_token is not null").await?;
    world.reach("unknown", 1).await;
    world.reach("submitted", 1).await;
    let row = world
        .sql(
            "select m.evidence ->> 'kind', m.evidence ->> 'was_unknown_because', s.verdict, s.answered_late_at > s.ended_at,
                m.provider_txn_id = s.provider_txn_id, m.cost
             from outbound_message m join submission s on s.job_id = m.job_id",
        )
        .await?;
    assert_eq!(row, "own_answer|lease_ended|accepted|t|t|0.1400");
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.accepted), (1, 1));
    world.end().await
}

#[tokio::test]
async fn f2_a_sender_stopped_past_its_lease_sends_nothing_late() -> Result<()> {
    let mut world = World::start("zombie", |options| options).await?;
    world.fleet.turn(&json!({"send": {"latency_ms": 300}})).await?;
    publish(&world.fleet.amqp_url(), &orders(300).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    eventually("requests are on the wire", async || {
        let claimed = world.count("claimed").await?;
        ensure!(claimed > 20, "{claimed}");
        Ok(())
    })
    .await;
    world.fleet.worker(Role::SmsSender, 0)?.pause().await?;
    eventually("its leases ran out", async || {
        let claimed = world.count("claimed").await?;
        ensure!(claimed == 0, "{claimed}");
        Ok(())
    })
    .await;
    assert!(world.count("unknown").await? > 0);
    let before = world.fleet.ledger().await?.len();
    world.fleet.worker(Role::SmsSender, 0)?.resume()?;
    // The alarm ends it before it can write: it was stopped past its send budget.
    let status = world.fleet.worker(Role::SmsSender, 0)?.wait(std::time::Duration::from_secs(30)).await?;
    assert!(!status.success(), "{status}");
    assert_eq!(world.fleet.ledger().await?.len(), before, "no request left after it woke up");
    world.fleet.spawn(Role::SmsSender, 0)?;
    world.fleet.wait_ready(Role::SmsSender, 0).await?;
    // What was accepted is settled by report; what was claimed and never left stays unknown: absence is no proof.
    world.reach_rest(300).await;
    eventually("every accepted message is accounted for", async || {
        let accepted = world.fleet.ledger_summary().await?["accepted_recipients"].as_i64().unwrap_or(0);
        let delivered = world.count("delivered").await?;
        ensure!(accepted == delivered, "{accepted} accepted, {delivered} delivered");
        Ok(())
    })
    .await;
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.duplicated), (found.accepted, 0));
    let unknown = usize::try_from(world.count("unknown").await?)?;
    assert_eq!(found.accepted + unknown, 300);
    world.end().await
}

#[tokio::test]
async fn f19_two_reconcilers_at_once_do_everything_once() -> Result<()> {
    let mut world = World::start("two_reconcilers", |options| options).await?;
    world.fleet.spawn(Role::Reconciler, 1)?;
    world.fleet.wait_ready(Role::Reconciler, 1).await?;
    world.fleet.turn(&json!({"rates": {"accept_then_reset": 0.2, "5xx_after": 0.2, "reset_before": 0.1}})).await?;
    publish(&world.fleet.amqp_url(), &orders(200).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    world.reach_rest(200).await;
    // Settled but for those that nothing accepted, whose receipts and reports never come.
    eventually("every accepted message is accounted for", async || {
        let ledger = world.fleet.ledger_summary().await?;
        let accepted = ledger["accepted_recipients"].as_i64().unwrap_or(0);
        let delivered = world.count("delivered").await?;
        ensure!(accepted == delivered, "{accepted} accepted, {delivered} delivered");
        Ok(())
    })
    .await;
    let found = world.assert_clean().await;
    assert_eq!(found.requests, 200);
    assert!(
        world
            .sql("select count(*) from outbound_message where correlation_result = 'matched'")
            .await?
            .parse::<i64>()?
            > 20
    );
    world.end().await
}

#[tokio::test]
async fn i16_a_silent_message_is_settled_by_report_and_one_that_stays_open_expires() -> Result<()> {
    let world = World::start("silent", |options| {
        options.set("classes.transactional.silent_after", "\"1s\"").set("sweeps.validity", "\"6s\"")
    })
    .await?;
    // 33 and 34: the report says delivered; 39: it stays submitted for ever.
    let events = [33, 34, 39]
        .map(|suffix| Event::sms(&format!("F{suffix}"), &[&fate(suffix, 1)], &format!("Silent {suffix}")).outgoing());
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("delivered", 2).await;
    world.reach("expired", 1).await;
    let reason = world.sql("select event_id, state_reason from outbound_message where state = 'expired'").await?;
    assert_eq!(reason, "F39|validity_passed");
    assert_eq!(world.sql("select count(*) from unresolved").await?, "0");
    world.assert_clean().await;
    world.end().await
}
