//! What the provider may do to a request, and what must come of it.

use anyhow::{Result, ensure};
use sendonce_tests::{Event, World, eventually, publish};
use serde_json::{Value, json};

use crate::flow::{fate, number, orders};

/// Requests in the ledger that name `number`.
fn requests(ledger: &[Value], number: &str) -> usize {
    let names = |entry: &&Value| {
        entry["recipients"].as_array().is_some_and(|all| all.iter().any(|one| one.as_str() == Some(number)))
    };
    ledger.iter().filter(names).count()
}

#[tokio::test]
async fn i1_every_ambiguous_answer_ends_unknown_with_one_request_on_the_wire() -> Result<()> {
    let world = World::start("ambiguous", |options| options).await?;
    let kinds = [
        (10, "timeout"),
        (11, "reset"),
        (12, "server_error"),
        (13, "server_error"),
        (14, "timeout"),
        (15, "truncated"),
        (16, "missing_id"),
        (18, "reset"),
        (19, "unexpected_status"),
        (20, "unexpected_status"),
        (24, "truncated"),
        (27, "truncated"),
    ];
    let events: Vec<_> = kinds
        .iter()
        .map(|(suffix, _)| {
            Event::sms(&format!("F{suffix}"), &[&fate(*suffix, 1)], &format!("Fate {suffix}")).outgoing()
        })
        .collect();
    publish(&world.fleet.amqp_url(), &events).await?;
    let expected = i64::try_from(kinds.len())?;
    world.reach("unknown", expected).await;
    world.reach_rest(expected).await;
    // Long enough for a wrong retry: the sweep has passed many times since.
    let passes = sweeps(&world).await?;
    eventually("ten more sweeps", async || {
        let now = sweeps(&world).await?;
        ensure!(now >= passes + 10.0, "{now}");
        Ok(())
    })
    .await;
    let ledger = world.fleet.ledger().await?;
    for (suffix, reason) in kinds {
        assert_eq!(requests(&ledger, &fate(suffix, 1)), 1, "fate {suffix}");
        let row = world
            .sql(&format!("select state, state_reason from outbound_message where event_id = 'F{suffix}'"))
            .await?;
        assert!(row.starts_with("unknown|"), "fate {suffix}: {row}");
        if suffix != 27 {
            assert_eq!(row, format!("unknown|{reason}"), "fate {suffix}");
        }
    }
    assert_eq!(world.sql("select count(*) from unresolved where kind = 'unknown'").await?, kinds.len().to_string());
    world.assert_clean().await;
    world.end().await
}

async fn sweeps(world: &World) -> Result<f64> {
    let page = world.fleet.admin(sendonce_devstack::fleet::Role::Reconciler, 0, "/metrics").await?.1;
    let line = page.lines().find(|line| {
        line.starts_with("sendonce_sweep_passes_total") && line.contains("sweep=\"jobs\",result=\"done\"")
    });
    Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0))
}

#[tokio::test]
async fn t10_connect_refused_goes_back_to_pending_and_is_sent_once_when_the_provider_is_up() -> Result<()> {
    let mut world = World::prepare("refused", |options| options.set("sender.max_attempts", "50")).await?;
    world.fleet.start_workers().await?;
    publish(&world.fleet.amqp_url(), &orders(10).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    eventually("attempts were refused", async || {
        let tried = world
            .sql("select count(*) from submission where verdict = 'not_sent' and detail = 'connect_refused'")
            .await?;
        ensure!(tried.parse::<i64>()? >= 10, "{tried} attempts");
        Ok(())
    })
    .await;
    assert_eq!(
        world.sql("select count(*) from outbound_message where state not in ('pending', 'claimed')").await?,
        "0"
    );
    world.fleet.start_simulator().await?;
    world.reach("delivered", 10).await;
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.accepted), (10, 10));
    world.end().await
}

#[tokio::test]
async fn t13_invalid_recipients_of_a_batch_are_rejected_the_others_submitted_with_one_transaction() -> Result<()> {
    let world = World::start("invalid_mobile", |options| options).await?;
    world.fleet.turn(&json!({"send": {"invalid_mobile_form": "plus"}})).await?;
    let batch = [number(1), fate(3, 1), number(2), fate(3, 2), number(3)];
    let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
    publish(&world.fleet.amqp_url(), &[Event::sms("B1", &batch, "Two of five are invalid").outgoing()]).await?;
    world.reach("delivered", 3).await;
    world.reach("rejected", 2).await;
    assert_eq!(
        world.sql("select count(distinct provider_txn_id), count(provider_txn_id) from outbound_message").await?,
        "1|5"
    );
    assert_eq!(world.sql("select count(*), sum(cost) from outbound_message where state = 'rejected'").await?, "2|");
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.accepted), (1, 3));
    world.end().await
}

#[tokio::test]
async fn t14_an_ambiguous_batch_is_unknown_as_a_whole() -> Result<()> {
    let world = World::start("ambiguous_batch", |options| options).await?;
    let batch = [number(1), number(2), fate(11, 1), number(3)];
    let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
    publish(&world.fleet.amqp_url(), &[Event::sms("B1", &batch, "Accepted, then reset").outgoing()]).await?;
    world.reach("unknown", 4).await;
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.accepted), (1, 4));
    world.end().await
}

#[tokio::test]
async fn i12_a_set_that_does_not_add_up_is_unknown() -> Result<()> {
    let world = World::start("stranger", |options| options).await?;
    world.fleet.turn(&json!({"send": {"invalid_mobile_stranger": "919999999999"}})).await?;
    let batch = [number(1), fate(3, 1)];
    let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
    publish(&world.fleet.amqp_url(), &[Event::sms("B1", &batch, "It names a number nobody sent").outgoing()]).await?;
    world.reach("unknown", 2).await;
    assert_eq!(world.sql("select distinct state_reason from outbound_message").await?, "set_mismatch");
    world.assert_clean().await;
    world.end().await
}

#[tokio::test]
async fn i11_refusals_are_final_unlisted_codes_are_reviewed_and_throttles_are_not_charged() -> Result<()> {
    let world = World::start("refusals", |options| options).await?;
    let events = [(1, "listed"), (2, "unlisted"), (21, "throttled")]
        .map(|(suffix, id)| Event::sms(id, &[&fate(suffix, 1)], &format!("Refusal {id}")).outgoing());
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("rejected", 2).await;
    world.reach("delivered", 1).await;
    let rows = world
        .sql("select event_id, provider_status_code, needs_review_since is not null, attempt_count from outbound_message order by 1")
        .await?;
    let rows: Vec<&str> = rows.lines().collect();
    assert_eq!(rows[0], "listed|188|f|1");
    assert!(
        rows[1].starts_with("throttled|") && rows[1].ends_with("|1"),
        "a throttled attempt is not charged: {}",
        rows[1]
    );
    assert_eq!(rows[2], "unlisted|777|t|1");
    world.assert_clean().await;
    world.end().await
}

#[tokio::test]
async fn execution_20_a_refused_account_ends_no_message() -> Result<()> {
    let world = World::start("refused_account", |options| options).await?;
    world.fleet.turn(&json!({"send": {"latency_ms": 1}})).await?;
    empty_wallet(&world, "0").await?;
    publish(&world.fleet.amqp_url(), &orders(5).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    eventually("the account was refused", async || {
        let tried = world.sql("select count(*) from submission where verdict = 'account_refused'").await?;
        ensure!(tried.parse::<i64>()? >= 5, "{tried}");
        Ok(())
    })
    .await;
    assert_eq!(
        world.sql("select count(*) from outbound_message where state not in ('pending', 'claimed')").await?,
        "0"
    );
    empty_wallet(&world, "1000").await?;
    world.reach("delivered", 5).await;
    assert_eq!(world.sql("select max(attempt_count) from outbound_message").await?, "1", "refusals are not charged");
    world.assert_clean().await;
    world.end().await
}

async fn empty_wallet(world: &World, balance: &str) -> Result<()> {
    world.fleet.set_balance("demo", balance).await
}

#[tokio::test]
async fn i12_one_person_twice_in_a_job_is_never_twice_in_a_request() -> Result<()> {
    let world = World::start("same_person", |options| options).await?;
    // Two events, the same text to the same number: two keys, hence two messages, each in a request of its own.
    let events =
        ["A", "B"].map(|id| Event::sms(id, &[&number(7), &number(8)], &format!("Same text {}", "x")).outgoing());
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("delivered", 4).await;
    for entry in world.fleet.ledger().await? {
        let recipients: Vec<_> = entry["recipients"].as_array().into_iter().flatten().collect();
        let mut unique = recipients.clone();
        unique.dedup();
        assert_eq!(recipients.len(), unique.len(), "{entry}");
    }
    world.end().await
}
