//! From event to delivered row, and everything that must not make a second one.

use anyhow::{Result, ensure};
use sendonce_devstack::fleet::{RedisChoice, Role};
use sendonce_tests::{Event, World, eventually, publish};
use serde_json::json;

/// Indian mobiles whose last four digits mean nothing to the simulator.
pub(crate) fn number(n: usize) -> String {
    format!("9198{:04}{:04}", n / 9000, 1000 + n % 9000)
}

/// A mobile whose last four digits choose its fate.
pub(crate) fn fate(suffix: usize, n: usize) -> String {
    format!("9197{n:04}{suffix:04}")
}

pub(crate) fn orders(count: usize) -> Vec<Event> {
    (0..count).map(|n| Event::sms(&format!("E{n}"), &[&number(n)], &format!("Order {n} has been shipped"))).collect()
}

#[tokio::test]
async fn i4_i5_happy_path_from_event_to_delivered_row() -> Result<()> {
    let world = World::start("happy_path", |options| options).await?;
    let mut events: Vec<_> = orders(50).iter().map(Event::outgoing).collect();
    let batch: Vec<String> = (100..400).map(number).collect();
    let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
    events.push(Event::sms("B1", &batch, "The sale opens on Friday").with("class", json!("promotional")).outgoing());
    events.push(Event::sms("O1", &[&number(500)], "123456 is your code").with("class", json!("otp")).outgoing());
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("delivered", 351).await;
    let found = world.assert_clean().await;
    assert_eq!((found.accepted, found.rows), (351, 351));
    assert!(found.requests < 60, "equal bodies share a request: {} requests", found.requests);
    let units = world.sql("select sum(cost), sum(billable_units), min(cost_currency) from outbound_message").await?;
    assert_eq!(units, "49.1400|351|INR");
    world.end().await
}

#[tokio::test]
async fn i5_duplicates_to_two_ingests_at_once_are_sent_once() -> Result<()> {
    let mut world = World::start("two_ingests", |options| options.redis(RedisChoice::None)).await?;
    world.fleet.spawn(Role::Ingest, 1)?;
    world.fleet.wait_ready(Role::Ingest, 1).await?;
    // Each event five times, interleaved so that both ingests have the same keys in hand.
    let events: Vec<_> = orders(100).iter().map(Event::outgoing).collect();
    let copies: Vec<_> = std::iter::repeat_n(events, 5).flatten().collect();
    publish(&world.fleet.amqp_url(), &copies).await?;
    world.reach("delivered", 100).await;
    let suppressed = eventually("every copy is accounted for", async || {
        let mut sum = 0.0;
        for number in 0..2 {
            let page = world.fleet.admin(Role::Ingest, number, "/metrics").await?.1;
            sum += page
                .lines()
                .filter(|line| line.starts_with("sendonce_suppressed_duplicates_total"))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum::<f64>();
        }
        ensure!(sum >= 400.0, "{sum} of 400 suppressed");
        Ok(sum)
    })
    .await;
    assert!(suppressed < 401.0, "{suppressed}");
    assert_eq!(world.assert_clean().await.accepted, 100);
    world.end().await
}

#[tokio::test]
async fn c9_the_same_key_on_both_sides_of_a_month_boundary_is_sent_once() -> Result<()> {
    // Without hints, which would drop the copy before its key is looked up.
    let mut world = World::start("month_boundary", |options| options.redis(RedisChoice::None)).await?;
    let event = Event::sms("E-month", &[&number(1)], "The same on both sides").outgoing();
    publish(&world.fleet.amqp_url(), std::slice::from_ref(&event)).await?;
    world.reach("delivered", 1).await;
    let (stack, name) = (world.fleet.stack.clone(), world.fleet.name.clone());
    stack.set_database_option(&name, "sendonce.clock_offset", "40 days").await?;
    assert_eq!(world.fleet.drain(std::time::Duration::from_secs(30)).await?, Vec::<String>::new());
    world.fleet.start_workers().await?;
    let later = Event::sms("E-later", &[&number(2)], "Made after the boundary").outgoing();
    publish(&world.fleet.amqp_url(), &[event, later]).await?;
    world.reach("delivered", 2).await;
    assert_eq!(world.assert_clean().await.accepted, 2);
    let months = world.sql("select count(distinct tableoid) from outbound_message").await?;
    assert_eq!(months, "2", "the rows stand on both sides of a month boundary");
    world.end().await
}

#[tokio::test]
async fn t6_t7_ids_are_text_and_null_words_are_null() -> Result<()> {
    let world = World::start("ids", |options| options).await?;
    let plain = number(1);
    let (zeros, no_time, zero_id) = (fate(37, 1), fate(38, 1), fate(17, 1));
    let events = [("plain", &plain), ("zeros", &zeros), ("no-time", &no_time), ("zero-id", &zero_id)]
        .map(|(id, to)| Event::sms(id, &[to], &format!("Ids {id}")).outgoing());
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("delivered", 3).await;
    // An id is due on this account, so an acceptance with id "0" is in doubt; its id stays NULL.
    world.reach("unknown", 1).await;
    let row = world
        .sql("select state_reason, provider_txn_id is null from outbound_message where event_id = 'zero-id'")
        .await?;
    assert_eq!(row, "missing_id|t");
    let time = world
        .sql("select delivered_at is null, final_at is null from outbound_message where event_id = 'no-time'")
        .await?;
    assert_eq!(time, "t|f", "{}", world.sql("select convert_from(raw, $$utf8$$), done_at from receipt").await?);
    for (event, starts) in [("plain", ""), ("zeros", "000")] {
        let id = world.sql(&format!("select provider_txn_id from outbound_message where event_id = '{event}'")).await?;
        assert!(id.len() == 19 && id.starts_with(starts), "{event}: {id}");
        let ledger = world.fleet.ledger().await?;
        assert!(
            ledger.iter().any(|entry| entry["txn"] == id.as_str()),
            "{event}: {id} is the provider's, digit by digit"
        );
        let found = world.store.find_messages(&id).await?;
        let view = world.store.find_message(found[0]).await?.expect("found by its transaction id");
        assert_eq!(view.message["provider_txn_id"], id.as_str());
        let json = serde_json::to_string(&view)?;
        assert!(json.contains(&format!("\"provider_txn_id\":\"{id}\"")), "{json}");
    }
    world.end().await
}

#[tokio::test]
async fn i17_a_receipt_before_the_submission_is_recorded_is_kept_and_matched() -> Result<()> {
    let world = World::start("early_receipt", |options| options).await?;
    // The answer comes a second after the receipt, which is stored meanwhile.
    world.fleet.turn(&json!({"push": {"before_response": true}, "send": {"latency_ms": 1000}})).await?;
    publish(&world.fleet.amqp_url(), &orders(20).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    world.reach("delivered", 20).await;
    let left = world.sql("select count(*) from receipt where disposition <> 'applied'").await?;
    assert_eq!(left, "0");
    let order = world
        .sql("select count(*) from receipt r join outbound_message m on m.id = r.message_id where r.received_at < m.submitted_at")
        .await?;
    assert!(order.parse::<i64>()? > 0, "some receipts were there before their submission");
    world.assert_clean().await;
    world.end().await
}

#[tokio::test]
async fn i10_contradicting_receipts_are_flagged_and_the_first_stands() -> Result<()> {
    let world = World::start("contradiction", |options| options).await?;
    let number = fate(36, 1);
    publish(&world.fleet.amqp_url(), &[Event::sms("E1", &[&number], "Delivered, then failed").outgoing()]).await?;
    eventually("the contradiction is flagged", async || {
        let row = world.sql("select state, receipt_state, receipt_conflict from outbound_message").await?;
        ensure!(row == "delivered|delivered|t", "{row}");
        Ok(())
    })
    .await;
    world.end().await
}
