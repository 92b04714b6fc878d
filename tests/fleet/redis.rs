//! Redis is a hint: it may delay, never permit and never lose. Whatever happens to it, every event is sent once.

use anyhow::{Result, ensure};
use sendonce_core::domain::key::{BusinessKey, InputFields, InputHash, KeyFields};
use sendonce_core::domain::message::{Channel, Recipient};
use sendonce_devstack::fleet::{RedisChoice, Role};
use sendonce_devstack::{OwnRedis, StackHandle};
use sendonce_tests::{Event, World, eventually, publish};

use crate::flow::{number, orders};

const HINTS: &str = "sendonce_redis_hints_total";
const DUPLICATES: &str = "sendonce_suppressed_duplicates_total";
const EVENTS: usize = 60;

/// A fleet with a Redis that this test may break.
struct Hinted {
    world: World,
    redis: OwnRedis,
}

impl Hinted {
    /// Prepared, nothing started. A busy machine may take its time: Redis gets more of it than in production.
    async fn prepare(test: &str, settings: &[(&str, &str)]) -> Result<Self> {
        let redis = OwnRedis::prepare(&StackHandle::from_env()?.data_dir.join("redis-of-tests").join(test))?;
        let world = World::prepare(test, |options| {
            let options = options.redis(RedisChoice::At(redis.url())).set("redis.timeout", "\"500ms\"");
            settings.iter().fold(options, |options, (key, value)| options.set(key, value))
        })
        .await?;
        Ok(Self { world, redis })
    }

    async fn start(test: &str, settings: &[(&str, &str)]) -> Result<Self> {
        let mut hinted = Self::prepare(test, settings).await?;
        hinted.redis.start().await?;
        hinted.world.fleet.start().await?;
        Ok(hinted)
    }

    async fn publish(&self, events: &[Event]) -> Result<()> {
        let messages: Vec<_> = events.iter().map(Event::outgoing).collect();
        publish(&self.world.fleet.amqp_url(), &messages).await
    }

    async fn hints(&self, role: Role, asked_for: &str, result: &str) -> Result<f64> {
        let labels = [format!("use=\"{asked_for}\""), format!("result=\"{result}\"")];
        self.world.sample(role, HINTS, &[&labels[0], &labels[1]]).await
    }

    async fn reach_hints(&self, role: Role, asked_for: &str, result: &str, at_least: usize) {
        eventually("hints", async || {
            let found = self.hints(role, asked_for, result).await?;
            ensure!(found >= at_least as f64, "{found} hints for {asked_for} are {result}, {at_least} expected");
            Ok(())
        })
        .await;
    }

    async fn suppressed_by_redis(&self) -> Result<f64> {
        self.world.sample(Role::Ingest, DUPLICATES, &["layer=\"redis\""]).await
    }

    async fn reach_suppressed(&self, at_least: usize) {
        eventually("duplicates are accounted for", async || {
            let found = self.world.sample(Role::Ingest, DUPLICATES, &[]).await?;
            ensure!(found >= at_least as f64, "{found} of {at_least}");
            Ok(())
        })
        .await;
    }

    /// Writes what another time or another worker may have left under a message's key.
    async fn leave(&self, namespace: &str, event: &Left<'_>, value: &str) -> Result<()> {
        let entry = format!("sendonce:{namespace}:key:{}", event.key());
        ensure!(self.redis.ask(&["SET", &entry, value]).await? == "OK", "Redis takes no entry");
        Ok(())
    }

    /// `epoch:timeline` of now.
    async fn namespace(&self) -> Result<String> {
        self.world.sql("select epoch || ':' || timeline from store_epoch order by started_at desc limit 1").await
    }

    async fn readiness(&self, role: Role) -> Result<(u16, String)> {
        self.world.fleet.admin(role, 0, "/readyz").await
    }

    async fn end(self) -> Result<()> {
        self.world.end().await
    }
}

/// An event as ingest keys it.
struct Left<'a> {
    event_id: &'a str,
    number: &'a str,
    body: &'a str,
}

impl Left<'_> {
    fn event(&self) -> Event {
        Event::sms(self.event_id, &[self.number], self.body)
    }

    fn key(&self) -> BusinessKey {
        let recipient = Recipient::from_e164_digits(self.number).expect("a number");
        BusinessKey::derive(&KeyFields {
            tenant: "acme",
            event_type: "order.shipped",
            event_id: self.event_id,
            step: None,
            recipient: &recipient,
            template: None,
        })
    }

    fn input(&self) -> InputHash {
        InputHash::derive(&InputFields {
            template: None,
            params: &std::collections::BTreeMap::new(),
            body: Some(self.body),
            channels: &[Channel::Sms],
            sender_id: None,
        })
    }
}

#[tokio::test]
async fn i6_a_settled_duplicate_is_dropped_by_redis_and_costs_postgres_nothing() -> Result<()> {
    let hinted = Hinted::start("redis_settled", &[("redis.timeout", "\"5s\"")]).await?;
    hinted.publish(&orders(EVENTS)).await?;
    hinted.world.reach("delivered", EVENTS as i64).await;
    hinted.reach_hints(Role::Ingest, "settle", "written", EVENTS).await;
    hinted.publish(&orders(EVENTS)).await?;
    hinted.reach_suppressed(EVENTS).await;
    assert_eq!(hinted.suppressed_by_redis().await?, EVENTS as f64);
    assert_eq!(hinted.hints(Role::Ingest, "ingest", "first").await?, EVENTS as f64);
    assert!(hinted.hints(Role::SmsSender, "sender", "first").await? > 0.0);
    let lives: i64 = hinted.redis.ask(&["--scan", "--pattern", "*"]).await?.lines().count().try_into()?;
    assert!(lives > EVENTS as i64);
    for entry in hinted.redis.ask(&["--scan", "--pattern", "*:key:*"]).await?.lines() {
        let ttl: i64 = hinted.redis.ask(&["TTL", entry]).await?.parse()?;
        assert!(ttl > 0, "{entry} stays for ever");
    }
    assert_eq!(hinted.world.assert_clean().await.accepted, EVENTS);
    hinted.end().await
}

/// Half of the events are sent before `fault`, all are published during it, and again when it is healed.
async fn survive(
    mut hinted: Hinted,
    fault: impl AsyncFnOnce(&mut OwnRedis) -> Result<()>,
    fails: bool,
    heal: impl AsyncFnOnce(&mut OwnRedis) -> Result<()>,
) -> Result<()> {
    let all = orders(2 * EVENTS);
    hinted.publish(&all[..EVENTS]).await?;
    hinted.world.reach("delivered", EVENTS as i64).await;
    fault(&mut hinted.redis).await?;
    hinted.publish(&all).await?;
    hinted.world.reach("delivered", 2 * EVENTS as i64).await;
    hinted.reach_suppressed(EVENTS).await;
    if fails {
        eventually("a metric says so", async || {
            // One exchange fails, and others are spared: whose it is is chance.
            let failed = hinted.world.sample(Role::Ingest, HINTS, &["result=\"error\""]).await?;
            let missing = hinted.hints(Role::Ingest, "ingest", "error").await?
                + hinted.hints(Role::Ingest, "ingest", "off").await?;
            ensure!(failed >= 1.0 && missing >= 1.0, "{failed} failed, {missing} not given");
            Ok(())
        })
        .await;
        let (status, text) = hinted.readiness(Role::Ingest).await?;
        assert_eq!(status, 200, "without hints everything works: {text}");
        assert!(text.contains("degraded: Redis"), "{text}");
    }
    heal(&mut hinted.redis).await?;
    let before = hinted.suppressed_by_redis().await?;
    eventually("hints help again", async || {
        hinted.publish(&all[..1]).await?;
        let now = hinted.suppressed_by_redis().await?;
        ensure!(now > before, "{now} dropped by Redis");
        Ok(())
    })
    .await;
    hinted.publish(&all).await?;
    hinted.reach_suppressed(3 * EVENTS).await;
    hinted.world.reach_rest(2 * EVENTS as i64).await;
    assert_eq!(hinted.world.assert_clean().await.accepted, 2 * EVENTS);
    hinted.end().await
}

fn ok(answer: &str) -> Result<()> {
    ensure!(answer == "OK", "Redis answers {answer}");
    Ok(())
}

#[tokio::test]
async fn f10_redis_away_from_the_start() -> Result<()> {
    let mut hinted = Hinted::prepare("redis_away", &[]).await?;
    hinted.world.fleet.start().await?;
    survive(hinted, async |_| Ok(()), true, async |redis| redis.start().await).await
}

#[tokio::test]
async fn f10_redis_killed_and_back_empty() -> Result<()> {
    let hinted = Hinted::start("redis_killed", &[]).await?;
    survive(hinted, async |redis| redis.kill().await, true, async |redis| redis.start().await).await
}

#[tokio::test]
async fn f10_redis_flushed() -> Result<()> {
    let hinted = Hinted::start("redis_flushed", &[]).await?;
    survive(hinted, async |redis| ok(&redis.ask(&["FLUSHALL"]).await?), false, async |_| Ok(())).await
}

/// What was asked meanwhile is applied when the pause ends, after everybody gave up on the answer.
#[tokio::test]
async fn f10_redis_slow_and_applying_late() -> Result<()> {
    let hinted = Hinted::start("redis_slow", &[]).await?;
    let pause = async |redis: &mut OwnRedis| ok(&redis.ask(&["CLIENT", "PAUSE", "600000", "WRITE"]).await?);
    survive(hinted, pause, true, async |redis| ok(&redis.ask(&["CLIENT", "UNPAUSE"]).await?)).await
}

#[tokio::test]
async fn f10_redis_hanging() -> Result<()> {
    let hinted = Hinted::start("redis_hanging", &[]).await?;
    survive(hinted, async |redis| redis.pause().await, true, async |redis| redis.resume()).await
}

#[tokio::test]
async fn f10_redis_read_only() -> Result<()> {
    let hinted = Hinted::start("redis_read_only", &[]).await?;
    let follow = async |redis: &mut OwnRedis| ok(&redis.ask(&["REPLICAOF", "127.0.0.1", "1"]).await?);
    survive(hinted, follow, true, async |redis| ok(&redis.ask(&["REPLICAOF", "NO", "ONE"]).await?)).await
}

#[tokio::test]
async fn f10_redis_full() -> Result<()> {
    let hinted = Hinted::start("redis_full", &[]).await?;
    let fill = async |redis: &mut OwnRedis| {
        ok(&redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await?)?;
        ok(&redis.ask(&["CONFIG", "SET", "maxmemory", "1mb"]).await?)
    };
    survive(hinted, fill, true, async |redis| ok(&redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).await?)).await
}

#[tokio::test]
async fn f10_what_an_old_snapshot_of_redis_holds_loses_nothing() -> Result<()> {
    let hinted = Hinted::start("redis_snapshot", &[("redis.timeout", "\"5s\"")]).await?;
    let now = hinted.namespace().await?;
    let numbers: Vec<String> = (0..6).map(number).collect();
    let left = |n: usize| Left {
        event_id: ["other epoch", "other timeline", "other inputs", "in flight", "no value", "settled"][n],
        number: &numbers[n],
        body: ["Zero", "One", "Two", "Three", "Four", "Five"][n],
    };
    let other_epoch = format!("{}:1", uuid::Uuid::from_u128(1));
    let other_timeline = format!("{}:7", now.split(':').next().unwrap_or_default());
    hinted.leave(&other_epoch, &left(0), &format!("settled:{}", left(0).input())).await?;
    hinted.leave(&other_timeline, &left(1), &format!("settled:{}", left(1).input())).await?;
    hinted.leave(&now, &left(2), &format!("settled:{}", left(3).input())).await?;
    hinted.leave(&now, &left(3), &format!("in-flight:{}", left(3).input())).await?;
    hinted.leave(&now, &left(4), "settled").await?;
    // That the others are keyed as ingest does it is shown by this one: it is believed.
    hinted.leave(&now, &left(5), &format!("settled:{}", left(5).input())).await?;
    let events: Vec<Event> = (0..6).map(|n| left(n).event()).collect();
    hinted.publish(&events).await?;
    hinted.world.reach("delivered", 5).await;
    hinted.reach_suppressed(1).await;
    assert_eq!(hinted.suppressed_by_redis().await?, 1.0);
    for result in ["other_inputs", "in_flight", "unreadable", "settled"] {
        assert_eq!(hinted.hints(Role::Ingest, "ingest", result).await?, 1.0, "{result}");
    }
    let sent = hinted.world.sql("select string_agg(event_id, ',' order by event_id) from outbound_message").await?;
    assert_eq!(sent, "in flight,no value,other epoch,other inputs,other timeline");
    assert_eq!(hinted.world.assert_clean().await.accepted, 5);
    hinted.end().await
}

#[tokio::test]
async fn i5_nothing_is_settled_before_its_row_is_durable() -> Result<()> {
    let hinted = Hinted::start("redis_refused", &[("redis.timeout", "\"5s\"")]).await?;
    // Stands for whatever keeps a transaction from its commit.
    hinted.world.sql("alter table outbound_message add constraint poison check (body not like '%poison%')").await?;
    let event = Event::sms("POISON", &[&number(1)], "This is poison");
    hinted.publish(std::slice::from_ref(&event)).await?;
    eventually("the event is parked", async || {
        let parked = hinted.world.store.list_parked(10).await?.len();
        ensure!(parked == 1, "{parked}");
        Ok(())
    })
    .await;
    hinted.reach_hints(Role::Ingest, "ingest", "first", 1).await;
    hinted.world.sql("alter table outbound_message drop constraint poison").await?;
    hinted.publish(&[event]).await?;
    hinted.world.reach("delivered", 1).await;
    hinted.world.end().await
}

/// The events of the gap are published again at once, before any worker's next look at the database.
#[tokio::test]
async fn execution_6_old_hints_do_not_drop_the_events_that_a_restored_database_forgot() -> Result<()> {
    let settings = [("redis.timeout", "\"5s\""), ("redis.look_every", "\"1h\"")];
    let mut hinted = Hinted::prepare("redis_restored", &settings).await?;
    hinted.redis.start().await?;
    hinted.world.fleet.start_simulator().await?;
    for role in [Role::Reconciler, Role::Ingest] {
        hinted.world.fleet.spawn(role, 0)?;
    }
    hinted.world.fleet.wait_ready(Role::Ingest, 0).await?;
    hinted.publish(&orders(EVENTS)).await?;
    hinted.world.reach("pending", EVENTS as i64).await;
    hinted.reach_hints(Role::Ingest, "settle", "written", EVENTS).await;
    hinted.world.sql(&format!("truncate outbound_message, message_key, send_job; {NEW_EPOCH}")).await?;
    hinted.publish(&orders(EVENTS)).await?;
    hinted.world.reach("pending", EVENTS as i64).await;
    assert_eq!(hinted.suppressed_by_redis().await?, 0.0);
    for role in [Role::SmsSender, Role::DlrIngester] {
        hinted.world.fleet.spawn(role, 0)?;
    }
    hinted.world.reach("delivered", EVENTS as i64).await;
    assert_eq!(hinted.world.assert_clean().await.accepted, EVENTS);
    hinted.end().await
}

/// What a restore ends with.
const NEW_EPOCH: &str = "insert into store_epoch (system_identifier, completed_at)
    select system_identifier::text, clock_now() from pg_control_system()";

#[tokio::test]
async fn execution_6_nothing_is_sent_from_a_database_that_is_behind() -> Result<()> {
    let mut hinted = Hinted::start("redis_safe_mode", &[("redis.timeout", "\"5s\"")]).await?;
    let epoch = hinted.world.sql("select epoch from store_epoch").await?;
    // What a fleet leaves whose database was further than this one.
    let entry = format!("sendonce:{epoch}:wal");
    ok(&hinted.redis.ask(&["SET", &entry, "09000000000000000000"]).await?)?;
    for start in ["running", "started anew"] {
        eventually("safe mode", async || {
            let (status, text) = hinted.readiness(Role::SmsSender).await?;
            ensure!(status == 503 && text.contains("safe mode: the database is behind"), "{start}: {status} {text}");
            ensure!(hinted.world.sample(Role::Ingest, "sendonce_safe_mode", &[]).await? == 1.0, "ingest: {start}");
            Ok(())
        })
        .await;
        if start == "running" {
            hinted.world.fleet.worker(Role::SmsSender, 0)?.kill().await?;
            hinted.world.fleet.spawn(Role::SmsSender, 0)?;
        }
    }
    assert_eq!(hinted.readiness(Role::Ingest).await?.0, 200, "events are still taken");
    assert_eq!(hinted.readiness(Role::DlrIngester).await?.0, 200, "receipts are still taken");
    hinted.publish(&orders(20)).await?;
    // Time enough for a sender: the sweep has published copies of the jobs that it did not work on.
    eventually("copies", async || {
        let copies = hinted.world.sql("select count(*), min(publish_count) from send_job").await?;
        ensure!(copies.split_once('|').is_some_and(|(jobs, least)| jobs != "0" && least != "1"), "{copies}");
        Ok(())
    })
    .await;
    assert_eq!(hinted.world.count("pending").await?, 20);
    assert_eq!(hinted.world.fleet.ledger_summary().await?["accepted_recipients"], 0);
    assert!(hinted.hints(Role::Ingest, "ingest", "off").await? >= 20.0, "hints are ignored");
    hinted.world.sql(NEW_EPOCH).await?;
    hinted.world.reach("delivered", 20).await;
    assert_eq!(hinted.readiness(Role::SmsSender).await?.0, 200);
    assert_eq!(hinted.world.assert_clean().await.accepted, 20);
    hinted.end().await
}

/// A worker may die right after it left its mark on a job.
#[tokio::test]
async fn i8_a_job_that_redis_gives_to_another_worker_is_late_and_not_lost() -> Result<()> {
    let mut hinted = Hinted::prepare("redis_job", &[("redis.timeout", "\"5s\"")]).await?;
    hinted.redis.start().await?;
    let namespace = hinted.namespace().await?;
    // The first ids that a new database gives out.
    let mark = "for id = 1, 1000 do redis.call('SET', KEYS[1] .. id, 'somebody', 'EX', 900) end return 'OK'";
    ok(&hinted.redis.ask(&["EVAL", mark, "1", &format!("sendonce:{namespace}:job:")]).await?)?;
    hinted.world.fleet.start().await?;
    hinted.publish(&orders(20)).await?;
    hinted.reach_hints(Role::SmsSender, "sender", "in_flight", 1).await;
    hinted.world.reach("delivered", 20).await;
    let copies = hinted.world.sample(Role::Reconciler, "sendonce_jobs_published_total", &["source=\"sweep\""]).await?;
    assert!(copies >= 1.0, "their rows sent them");
    assert_eq!(hinted.world.assert_clean().await.accepted, 20);
    hinted.end().await
}
