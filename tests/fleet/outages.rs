//! Services that go away under load. These tests break servers, so each has a stack of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use sendonce_devstack::{Service, Stack, StackHandle, StackOptions, StopMode};
use sendonce_tests::{Event, PATIENCE, World, eventually, publish};
use serde_json::json;

use crate::flow::orders;

/// A stack that this test may break, and a fleet on it.
async fn breakable(test: &str) -> Result<(Stack, World)> {
    let shared = StackHandle::from_env()?;
    let root = shared.data_dir.parent().expect("a stack lies below its root").to_owned();
    let mut stack = Stack::start(StackOptions::throwaway(&root, &format!("{test}-{}", std::process::id()))).await?;
    stack.make_template("sendonce_template").await?;
    let mut world = World::prepare_on(&stack.handle(), test, |options| options).await?;
    world.fleet.start().await?;
    world.fleet.turn(&json!({"send": {"latency_ms": 100}})).await?;
    Ok((stack, world))
}

async fn accepted(world: &World, least: i64) {
    eventually("work to interrupt", async || {
        let accepted = world.fleet.ledger_summary().await?["accepted_recipients"].as_i64().unwrap_or(0);
        ensure!(accepted >= least, "{accepted}");
        Ok(())
    })
    .await;
}

/// Everything was sent once; what was in doubt has been settled by the report.
async fn all_delivered(world: &World, messages: i64) {
    world.reach("delivered", messages).await;
    let found = world.assert_clean().await;
    assert_eq!((found.accepted, found.duplicated), (usize::try_from(messages).unwrap(), 0));
}

#[tokio::test]
async fn f11_postgres_away_for_a_minute_under_load() -> Result<()> {
    let (stack, world) = breakable("pg-away").await?;
    publish(&world.fleet.amqp_url(), &orders(500).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    accepted(&world, 60).await;
    stack.stop(Service::Postgres, StopMode::Immediate).await?;
    // Not a wait for something to become true: the outage itself, seven leases long in the test profile.
    tokio::time::sleep(Duration::from_secs(60)).await;
    stack.start_service(Service::Postgres).await?;
    all_delivered(&world, 500).await;
    // The answers that workers held were recorded before any sweep could call them unknown (execution 19).
    let late = world
        .sql("select count(*) from submission where verdict = 'lease_ended' or answered_late_at is not null")
        .await?;
    assert_eq!(late, "0", "on return the living workers come first");
    world.end().await?;
    stack.shutdown().await
}

#[tokio::test]
async fn f12_rabbitmq_restarted_under_load() -> Result<()> {
    let (stack, world) = breakable("mq-restart").await?;
    publish(&world.fleet.amqp_url(), &orders(500).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    accepted(&world, 60).await;
    stack.restart(Service::RabbitMq, StopMode::Clean).await?;
    all_delivered(&world, 500).await;
    world.end().await?;
    stack.shutdown().await
}

#[tokio::test]
async fn f11_backends_terminated_at_random_under_load() -> Result<()> {
    let (stack, world) = breakable("backends").await?;
    let (amqp, events) = (world.fleet.amqp_url(), orders(600));
    let publishing = tokio::spawn(async move {
        for chunk in events.chunks(50) {
            publish(&amqp, &chunk.iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
        }
        anyhow::Ok(())
    });
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut terminated = 0;
    while world.count("delivered").await? < 500 && tokio::time::Instant::now() < deadline {
        let ended = world
            .sql(
                "select count(pg_terminate_backend(pid)) from (
                    select pid from pg_stat_activity where usename = 'sendonce_worker' order by random() limit 2) as victims",
            )
            .await?;
        terminated += ended.parse::<i64>()?;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    publishing.await??;
    all_delivered(&world, 600).await;
    assert!(terminated > 10, "{terminated} backends terminated");
    world.end().await?;
    stack.shutdown().await
}
