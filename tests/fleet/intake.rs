//! Bad input loses nothing and gets a reason.

use anyhow::{Result, ensure};
use sendonce_core::broker::{Outgoing, topology};
use sendonce_tests::{Event, World, eventually, publish};

use crate::flow::{number, orders};

fn raw(body: &[u8]) -> Outgoing {
    Outgoing {
        exchange: topology::EVENTS,
        routing_key: "transactional".to_owned(),
        content_type: "application/json",
        message_id: None,
        headers: Vec::new(),
        body: body.to_vec(),
    }
}

async fn parked(world: &World, expected: usize) {
    eventually("parked", async || {
        let found = world.store.list_parked(100).await?.len();
        ensure!(found == expected, "{found} of {expected}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn f17_bad_events_are_parked_with_reason_and_bytes_and_the_rest_goes_on() -> Result<()> {
    let world = World::start("bad_events", |options| options).await?;
    let bodies: [&[u8]; 5] = [b"not json", b"\xff\xfe", b"{}", b"[1]", b"{\"a\":1e400}"];
    let mut messages: Vec<_> = bodies.iter().map(|body| raw(body)).collect();
    messages.push(Event::sms("E1", &[&number(1), "9198765,43210", "hello"], "One of three").outgoing());
    publish(&world.fleet.amqp_url(), &messages).await?;
    world.reach("delivered", 1).await;
    parked(&world, 7).await;
    for body in bodies {
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        let kept =
            world.sql(&format!("select count(*) from parked where original = '\\x{hex}' and reason <> ''")).await?;
        assert_eq!(kept, "1", "{hex}");
    }
    for view in world.store.list_parked(100).await? {
        assert!(!view.detail.contains("43210") && !view.detail.contains("hello"), "I11: {}", view.detail);
    }
    // The same bad event again is the same parked thing, seen twice.
    publish(&world.fleet.amqp_url(), &messages[..1]).await?;
    eventually("seen twice", async || {
        let seen = world.sql("select max(times_seen), count(*) from parked").await?;
        ensure!(seen == "2|7", "{seen}");
        Ok(())
    })
    .await;
    world.end().await
}

#[tokio::test]
async fn execution_5_a_mistyped_routing_key_loses_nothing() -> Result<()> {
    let world = World::start("routing_key", |options| options).await?;
    let mut event = Event::sms("E1", &[&number(1)], "A key with a typo").outgoing();
    event.routing_key = "transactoinal".to_owned();
    publish(&world.fleet.amqp_url(), &[event]).await?;
    world.reach("delivered", 1).await;
    world.end().await
}

#[tokio::test]
async fn execution_17_one_event_that_the_database_refuses_takes_no_other_with_it() -> Result<()> {
    let world = World::start("poison", |options| options.set("ingest.linger", "\"200ms\"")).await?;
    // Stands for a value that our checks let through and the database does not.
    world.sql("alter table outbound_message add constraint poison check (body not like '%poison%')").await?;
    let mut events: Vec<_> = orders(60).iter().map(Event::outgoing).collect();
    events.insert(30, Event::sms("POISON", &[&number(500)], "This is poison").outgoing());
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("delivered", 60).await;
    parked(&world, 1).await;
    let view = &world.store.list_parked(1).await?[0];
    assert_eq!((view.reason.as_str(), view.event_id.as_deref()), ("data_refused", Some("POISON")));
    world.end().await
}

#[tokio::test]
async fn key_conflict_first_wins_and_the_second_is_parked() -> Result<()> {
    let world = World::start("conflict", |options| options).await?;
    let first = Event::sms("E1", &[&number(1)], "The first text").outgoing();
    let second = Event::sms("E1", &[&number(1)], "Another text").outgoing();
    publish(&world.fleet.amqp_url(), std::slice::from_ref(&first)).await?;
    world.reach("delivered", 1).await;
    publish(&world.fleet.amqp_url(), &[second, first]).await?;
    parked(&world, 1).await;
    assert_eq!(world.store.list_parked(1).await?[0].reason, "key_conflict");
    assert_eq!(world.assert_clean().await.accepted, 1);
    world.end().await
}
