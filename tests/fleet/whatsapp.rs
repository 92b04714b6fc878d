//! WhatsApp on the same engine: one recipient a request, one id an answer, one unit a message, and silence that proves nothing.

use anyhow::{Result, ensure};
use sendonce_devstack::fleet::Role;
use sendonce_tests::{Event, World, eventually, publish};
use serde_json::{Value, json};

use crate::flow::{fate, number};

fn whatsapp(id: &str, to: &str, text: &str) -> Event {
    Event::sms(id, &[to], text).with("channels", json!(["whatsapp"]))
}

/// Requests that the provider read on WhatsApp, by the recipient they name.
fn requests(ledger: &[Value], to: &str) -> usize {
    ledger.iter().filter(|entry| entry["kind"] == "wa_send" && entry["recipients"] == json!([to])).count()
}

/// Passes of a sweep so far.
async fn passes(world: &World, sweep: &str) -> Result<f64> {
    let page = world.fleet.admin(Role::Reconciler, 0, "/metrics").await?.1;
    let done = format!("sendonce_sweep_passes_total{{sweep=\"{sweep}\",result=\"done\"}}");
    let of_it = |line: &&str| line.starts_with(&done);
    Ok(page.lines().find(of_it).and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0))
}

async fn ten_more_passes(world: &World, sweep: &str) -> Result<()> {
    let before = passes(world, sweep).await?;
    eventually("ten more passes", async || {
        let now = passes(world, sweep).await?;
        ensure!(now >= before + 10.0, "{now}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn i14_from_event_to_read_row_in_both_shapes_of_the_answer() -> Result<()> {
    let world = World::start("wa_happy_path", |options| options).await?;
    for (round, shape) in ["seed", "sibling"].into_iter().enumerate() {
        world.fleet.turn(&json!({"wa": {"response_shape": shape}})).await?;
        let to: Vec<String> = (0..20).map(|n| number(round * 100 + n)).collect();
        let mut events: Vec<_> = to
            .iter()
            .enumerate()
            .map(|(n, to)| whatsapp(&format!("{shape}-{n}"), to, &format!("{shape} {n}")).outgoing())
            .collect();
        // Several people, one text: still a request each.
        let group: Vec<String> = (50..55).map(|n| number(round * 100 + n)).collect();
        let group: Vec<&str> = group.iter().map(String::as_str).collect();
        let to_group = Event::sms(&format!("{shape}-group"), &group, &format!("To five, {shape}"));
        events.push(to_group.with("channels", json!(["whatsapp"])).outgoing());
        publish(&world.fleet.amqp_url(), &events).await?;
        let expected = 25 * (round + 1);
        eventually("delivered and read", async || {
            let read = world
                .sql(
                    "select count(*) from outbound_message where state = 'delivered' and receipt_state = 'read'
                        and read_at > delivered_at and delivered_at is not null and not receipt_conflict",
                )
                .await?;
            ensure!(read == expected.to_string(), "{read} of {expected}");
            Ok(())
        })
        .await;
    }
    let found = world.assert_clean().await;
    assert_eq!((found.requests, found.accepted, found.rows), (50, 50, 50));
    // The one id of the answer is the message's, whatever the answer calls it, and belongs to one message.
    let ids = world
        .sql(
            "select count(*), count(provider_txn_id), count(distinct provider_message_id),
                (select count(*) from provider_message p where exists (select from outbound_message m
                    where m.id = p.message_id and m.provider_message_id = p.provider_message_id))
             from outbound_message",
        )
        .await?;
    assert_eq!(ids, "50|0|50|50");
    world.end().await
}

#[tokio::test]
async fn t19_a_message_is_one_unit_at_its_own_rate_and_never_mixed_up_with_an_sms_of_the_same_text() -> Result<()> {
    let world = World::start("wa_money", |options| options).await?;
    let (to, long) = (number(1), "Long, and the same on both channels. ".repeat(12));
    let events = [whatsapp("W1", &to, &long), Event::sms("S1", &[&to], &long), whatsapp("W2", &to, "नमस्ते")];
    publish(&world.fleet.amqp_url(), &events.map(|event| event.outgoing())).await?;
    world.reach("delivered", 3).await;
    let found = world.assert_clean().await;
    assert_eq!((found.accepted, found.duplicated), (3, 0));
    let money = world
        .sql("select event_id, channel, billable_units, cost, cost_currency from outbound_message order by event_id")
        .await?;
    assert_eq!(money, "S1|sms|3|0.4200|INR\nW1|whatsapp|1|0.3300|INR\nW2|whatsapp|1|0.3300|INR");
    world.end().await
}

#[tokio::test]
async fn i14_silence_proves_nothing_and_the_message_stays_submitted() -> Result<()> {
    let world =
        World::start("wa_silent", |options| options.set("classes.transactional.silent_after", "\"1s\"")).await?;
    publish(&world.fleet.amqp_url(), &[whatsapp("W1", &fate(39, 1), "Nobody reads this").outgoing()]).await?;
    world.reach("submitted", 1).await;
    eventually("the silence is noted", async || {
        let noted = world.sql("select kind from unresolved").await?;
        ensure!(noted == "silent", "{noted}");
        Ok(())
    })
    .await;
    // No report of this channel is known, so nothing is looked up and nothing is concluded.
    ten_more_passes(&world, "reports").await?;
    let row =
        world.sql("select state, receipt_state is null, final_at is null, attempt_count from outbound_message").await?;
    assert_eq!(row, "submitted|t|t|1");
    assert_eq!(world.sql("select count(*) from receipt").await?, "0");
    assert_eq!(requests(&world.fleet.ledger().await?, &fate(39, 1)), 1);
    world.assert_clean().await;
    world.end().await
}

#[tokio::test]
async fn i1_every_ambiguous_whatsapp_answer_ends_unknown_with_one_request_and_stays_there() -> Result<()> {
    let world = World::start("wa_ambiguous", |options| options).await?;
    let kinds = [
        (10, "timeout"),
        (11, "reset"),
        (12, "server_error"),
        (14, "timeout"),
        (15, "truncated"),
        (16, "missing_id"),
        (17, "missing_id"),
        (19, "unexpected_status"),
    ];
    let events = kinds
        .map(|(suffix, _)| whatsapp(&format!("F{suffix}"), &fate(suffix, 1), &format!("Fate {suffix}")).outgoing());
    publish(&world.fleet.amqp_url(), &events).await?;
    let expected = i64::try_from(kinds.len())?;
    world.reach("unknown", expected).await;
    world.reach_rest(expected).await;
    ten_more_passes(&world, "jobs").await?;
    ten_more_passes(&world, "reports").await?;
    let ledger = world.fleet.ledger().await?;
    for (suffix, reason) in kinds {
        assert_eq!(requests(&ledger, &fate(suffix, 1)), 1, "fate {suffix}");
        let row = world
            .sql(&format!("select state, state_reason from outbound_message where event_id = 'F{suffix}'"))
            .await?;
        assert_eq!(row, format!("unknown|{reason}"), "fate {suffix}");
    }
    world.assert_clean().await;
    world.end().await
}

#[tokio::test]
async fn i14_refusals_are_final_in_both_shapes_and_a_throttle_is_not_charged() -> Result<()> {
    let world = World::start("wa_refused", |options| options).await?;
    for (round, shape) in ["seed", "sibling"].into_iter().enumerate() {
        world.fleet.turn(&json!({"wa": {"response_shape": shape}})).await?;
        let events = [(1, "listed"), (2, "unlisted"), (3, "invalid"), (21, "throttled")].map(|(suffix, what)| {
            whatsapp(&format!("{what}-{shape}"), &fate(suffix, round), &format!("Refusal {what} {shape}")).outgoing()
        });
        publish(&world.fleet.amqp_url(), &events).await?;
        world.reach("rejected", 3 * (i64::try_from(round)? + 1)).await;
        world.reach("delivered", i64::try_from(round)? + 1).await;
        let rows = world
            .sql(&format!(
                "select event_id, state, provider_status_code, needs_review_since is not null, attempt_count, cost is null
                 from outbound_message where event_id like '%-{shape}' order by 1"
            ))
            .await?;
        let rows: Vec<&str> = rows.lines().collect();
        assert_eq!(rows[0], format!("invalid-{shape}|rejected|303|f|1|t"));
        assert_eq!(rows[1], format!("listed-{shape}|rejected|188|f|1|t"));
        assert!(
            rows[2].starts_with(&format!("throttled-{shape}|delivered|")) && rows[2].ends_with("|f|1|f"),
            "{}",
            rows[2]
        );
        assert_eq!(rows[3], format!("unlisted-{shape}|rejected|777|t|1|t"));
    }
    world.assert_clean().await;
    world.end().await
}

/// The sweep would match them too, so here it does not pass.
#[tokio::test]
async fn i17_receipts_before_the_record_are_matched_by_message_id() -> Result<()> {
    let world = World::start("wa_early", |options| options.set("sweeps.receipts_every", "\"1h\"")).await?;
    // The answer leaves room for the receipts to be stored.
    world.fleet.turn(&json!({"push": {"before_response": true}, "send": {"latency_ms": 500}})).await?;
    let events: Vec<_> =
        (0..20).map(|n| whatsapp(&format!("W{n}"), &number(n), &format!("Early {n}")).outgoing()).collect();
    publish(&world.fleet.amqp_url(), &events).await?;
    world.reach("delivered", 20).await;
    let early = world
        .sql(
            "select count(*), count(*) filter (where r.received_at < m.submitted_at and r.provider_txn_id is null)
             from receipt r join outbound_message m on m.id = r.message_id",
        )
        .await?;
    assert_eq!(early, "40|40", "delivered and read, of every message, before its submission was recorded");
    world.assert_clean().await;
    world.end().await
}
