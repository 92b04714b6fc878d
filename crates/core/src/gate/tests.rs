use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use uuid::Uuid;

use super::*;
use crate::config::{Config, Database};
use crate::domain::key::{BusinessKey, InputHash};
use crate::store::{Position, Timing};

const TIMEOUT: Duration = Duration::from_millis(200);

/// A gate that has looked at a database.
fn gate(url: &str) -> Gate {
    let config = config::Redis { url: url.into(), timeout: TIMEOUT, ..config::Redis::default() };
    let database = Database { url: "postgres://nobody@127.0.0.1:1/none".into(), ..Database::default() };
    let store = Store::open(&database, Timing::of(&Config::default()), "test").unwrap();
    let gate = Gate::new(&config, store, Metrics::default()).unwrap();
    let position = Position {
        epoch: Uuid::from_u128(1),
        complete: true,
        same_cluster: true,
        known_timeline: 1,
        timeline: 1,
        wal: 1,
    };
    lock(&gate.inner.history).learn(&position, None);
    gate
}

fn marks(count: u8) -> Vec<Mark> {
    let mark =
        |n| Mark { key: BusinessKey::from_bytes(&[n; 32]).unwrap(), input: InputHash::from_bytes(&[n; 32]).unwrap() };
    (0..count).map(mark).collect()
}

fn sample(gate: &Gate, asked_for: &str, result: &str) -> u64 {
    let page = gate.inner.metrics.page().unwrap();
    let name = format!("sendonce_redis_hints_total{{use=\"{asked_for}\",result=\"{result}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn f10_a_redis_that_hangs_costs_one_timeout_and_not_one_per_batch() {
    // Accepts and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gate = gate(&format!("redis://{}/0", listener.local_addr().unwrap()));
    let started = Instant::now();
    for _ in 0..100 {
        assert_eq!(gate.find_settled(&marks(3)).await, [false; 3]);
        gate.settle(&marks(3)).await;
        assert!(gate.find_taken(&[JobId(1)], LeaseToken(Uuid::from_u128(2))).await.is_empty());
    }
    let took = started.elapsed();
    assert!(took >= TIMEOUT && took < TIMEOUT * 4, "{took:?}");
    assert_eq!((sample(&gate, "ingest", "error"), sample(&gate, "ingest", "off")), (3, 297));
    assert_eq!((sample(&gate, "settle", "off"), sample(&gate, "sender", "off")), (300, 100));
    assert!(gate.is_degraded());
}

#[tokio::test]
async fn f10_without_a_url_there_are_no_hints_and_nothing_is_degraded() {
    let gate = gate("");
    assert_eq!(gate.find_settled(&marks(2)).await, [false; 2]);
    gate.settle(&marks(2)).await;
    assert!(gate.find_taken(&[JobId(1)], LeaseToken(Uuid::from_u128(2))).await.is_empty());
    assert_eq!((sample(&gate, "ingest", "off"), gate.is_degraded()), (0, false));
}

#[tokio::test]
async fn i11_a_url_that_does_not_parse_is_not_repeated_in_the_error() {
    let config = config::Redis { url: "redis://user:hunter2@[".into(), ..config::Redis::default() };
    let error = open(&config).unwrap_err().to_string();
    assert!(error.contains("redis.url") && !error.contains("hunter2"), "{error}");
    assert!(!format!("{:?}", gate("redis://user:hunter2@127.0.0.1:1/0")).contains("hunter2"));
}
