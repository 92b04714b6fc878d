//! Processes that die, connections that are cut, drains.

use std::time::Duration;

use anyhow::{Result, ensure};
use sendonce_devstack::fleet::Role;
use sendonce_devstack::proc::Signal;
use sendonce_tests::{Event, World, eventually, publish};
use serde_json::json;

use crate::flow::orders;

/// Under load, kill -9 one worker and start it again; nothing is lost, nothing is doubled, and what was on the wire is
/// unknown at worst.
async fn kill_under_load(role: Role) -> Result<()> {
    let mut world = World::start(&format!("kill_{}", role.binary().replace('-', "_")), |options| options).await?;
    world.fleet.turn(&json!({"send": {"latency_ms": 30}})).await?;
    let channel = if role == Role::WhatsappSender { "whatsapp" } else { "sms" };
    let events: Vec<_> =
        orders(600).into_iter().map(|event| event.with("channels", json!([channel])).outgoing()).collect();
    let amqp = world.fleet.amqp_url();
    let publishing = tokio::spawn(async move {
        for chunk in events.chunks(100) {
            publish(&amqp, chunk).await?;
        }
        anyhow::Ok(())
    });
    for round in 1..=2 {
        eventually("work to interrupt", async || {
            let accepted = world.fleet.ledger_summary().await?["accepted_recipients"].as_i64().unwrap_or(0);
            ensure!(accepted >= round * 60, "{accepted}");
            Ok(())
        })
        .await;
        world.fleet.worker(role, 0)?.signal(Signal::SIGKILL)?;
        world.fleet.spawn(role, 0)?;
        world.fleet.wait_ready(role, 0).await?;
    }
    publishing.await??;
    world.reach_rest(600).await;
    eventually("receipts are in", async || {
        let waiting = world.count("submitted").await?;
        ensure!(waiting == 0, "{waiting}");
        Ok(())
    })
    .await;
    let found = world.assert_clean().await;
    assert_eq!(found.rows, 600);
    let unknown = world.count("unknown").await?;
    if matches!(role, Role::SmsSender | Role::WhatsappSender) {
        assert!(unknown <= 128, "doubt is limited to the slots of two kills: {unknown}");
    } else {
        assert_eq!(unknown, 0, "no other worker's end puts a message in doubt");
    }
    world.end().await
}

#[tokio::test]
async fn f1_kill_ingest_under_load() -> Result<()> {
    kill_under_load(Role::Ingest).await
}

#[tokio::test]
async fn f1_kill_sms_sender_under_load() -> Result<()> {
    kill_under_load(Role::SmsSender).await
}

#[tokio::test]
async fn f1_kill_whatsapp_sender_under_load() -> Result<()> {
    kill_under_load(Role::WhatsappSender).await
}

#[tokio::test]
async fn f1_kill_dlr_ingester_under_load() -> Result<()> {
    kill_under_load(Role::DlrIngester).await
}

#[tokio::test]
async fn f1_kill_reconciler_under_load() -> Result<()> {
    kill_under_load(Role::Reconciler).await
}

#[tokio::test]
async fn f3_a_drain_under_load_finishes_what_is_in_flight_and_leaves_nothing_in_doubt() -> Result<()> {
    let mut world = World::start("drain", |options| options).await?;
    world.fleet.turn(&json!({"send": {"latency_ms": 200}})).await?;
    publish(&world.fleet.amqp_url(), &orders(400).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    eventually("requests are on the wire", async || {
        let claimed = world.count("claimed").await?;
        ensure!(claimed > 20, "{claimed}");
        Ok(())
    })
    .await;
    let ended = world.fleet.drain(Duration::from_secs(30)).await?;
    assert_eq!(ended, Vec::<String>::new(), "every worker ends with code 0");
    assert_eq!(world.count("claimed").await?, 0);
    assert_eq!(world.count("unknown").await?, 0);
    assert!(world.count("pending").await? > 0, "the drain came before the end of the work");
    world.fleet.start_workers().await?;
    world.reach("delivered", 400).await;
    assert_eq!(world.assert_clean().await.accepted, 400);
    world.end().await
}

#[tokio::test]
async fn i5_connections_cut_by_the_broker_redeliver_without_a_second_send() -> Result<()> {
    // Slow enough that the broker, which lists a connection late, can cut it in the middle of the work.
    let world = World::start("redelivery", |options| options.set("sender.slots", "8")).await?;
    world.fleet.turn(&json!({"send": {"latency_ms": 200}})).await?;
    publish(&world.fleet.amqp_url(), &orders(400).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    for round in 1..=3 {
        eventually("work to interrupt", async || {
            let accepted = world.fleet.ledger_summary().await?["accepted_recipients"].as_i64().unwrap_or(0);
            ensure!(accepted >= round * 50, "{accepted}");
            Ok(())
        })
        .await;
        world.fleet.cut_broker_connections().await?;
    }
    world.reach("delivered", 400).await;
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.accepted), (400, 400));
    let mut redelivered = 0.0;
    for role in [Role::Ingest, Role::SmsSender, Role::DlrIngester] {
        let page = world.fleet.admin(role, 0, "/metrics").await?.1;
        redelivered += page
            .lines()
            .filter(|line| line.starts_with("sendonce_deliveries_total") && line.contains("redelivered=\"true\""))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>();
    }
    assert!(redelivered > 0.0, "the cuts redelivered something");
    world.end().await
}
