//! Stacks in this process: side by side, what each test gets of one, and servers that go down and come back.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside the functions that clippy takes for tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sendonce_devstack::{Service, Stack, StackHandle, StackOptions, StopMode, accepts, scan, stack_root};

const PATIENCE: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    stack_root(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap())
}

async fn start(name: &str) -> Stack {
    let name = format!("{name}-{}", std::process::id());
    Stack::start(StackOptions::throwaway(&root(), &name)).await.unwrap()
}

fn ports(handle: &StackHandle) -> [u16; 4] {
    [handle.pg_port, handle.redis_port, handle.amqp_port, handle.management_port]
}

#[tokio::test]
async fn two_stacks_run_side_by_side() {
    let (one, two) = tokio::join!(start("one"), start("two"));
    for stack in [&one, &two] {
        for service in Service::ALL {
            assert!(stack.answers(service).await, "{service:?}");
        }
    }
    let (first, second) = (one.handle(), two.handle());
    let all: BTreeSet<u16> = ports(&first).into_iter().chain(ports(&second)).collect();
    assert_eq!(all.len(), 8);
    assert!(all.is_disjoint(&BTreeSet::from([5432, 6379, 5672, 15672, 4369, 25672])));

    // What is made in one is not in the other.
    first.create_vhost("only/here").await.unwrap();
    first.queue_counts("only/here").await.unwrap();
    second.queue_counts("only/here").await.unwrap_err();

    let dirs = [one.data_dir().to_path_buf(), two.data_dir().to_path_buf()];
    one.shutdown().await.unwrap();
    assert!(two.answers(Service::RabbitMq).await, "the end of one stack reached the other");
    two.shutdown().await.unwrap();
    for dir in dirs {
        scan::wait_until_unused(&dir, PATIENCE).await.unwrap();
        assert!(!dir.exists(), "{} was left behind", dir.display());
    }
}

#[tokio::test]
async fn a_test_gets_a_database_a_vhost_and_a_redis_database() {
    let stack = start("share").await;
    let file = stack.data_dir().join("handle.json");
    stack.handle().save(&file).unwrap();
    let handle = StackHandle::load(&file).unwrap();

    handle.create_database("original", None).await.unwrap();
    handle.psql("original", "CREATE TABLE t AS SELECT 7 AS n").await.unwrap();
    tokio::try_join!(handle.create_database("a", Some("original")), handle.create_database("b", Some("original")))
        .unwrap();
    assert_eq!(handle.psql("b", "SELECT n FROM t").await.unwrap(), "7");
    handle.set_database_option("a", "sendonce.clock_offset", "it's 3 days").await.unwrap();
    let offset = "SELECT current_setting('sendonce.clock_offset', true)";
    assert_eq!(handle.psql("a", offset).await.unwrap(), "it's 3 days");
    assert_eq!(handle.psql("b", offset).await.unwrap(), "");
    handle.drop_database("a").await.unwrap();
    handle.psql("a", "SELECT 1").await.unwrap_err();

    handle.create_vhost("a b").await.unwrap();
    handle
        .manage("PUT", "/api/queues/a%20b/q", r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#)
        .await
        .unwrap();
    let message = r#"{"properties":{},"routing_key":"q","payload":"x","payload_encoding":"string"}"#;
    handle.manage("POST", "/api/exchanges/a%20b/amq.default/publish", message).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while handle.queue_counts("a b").await.unwrap().get("q").map(|count| count.ready) != Some(1) {
        assert!(Instant::now() < deadline, "the message is not counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    handle.delete_vhost("a b").await.unwrap();
    handle.queue_counts("a b").await.unwrap_err();

    let (first, second) = (handle.claim_redis_db().await.unwrap(), handle.claim_redis_db().await.unwrap());
    assert_ne!(first.number, second.number);
    drop(first);
    assert_eq!(handle.claim_redis_db().await.unwrap().number, 1);
}

#[tokio::test]
async fn servers_go_down_and_come_back_with_their_data() {
    let stack = start("restart").await;
    let handle = stack.handle();
    handle.psql("postgres", "CREATE TABLE t AS SELECT 7 AS n").await.unwrap();
    for mode in [StopMode::Clean, StopMode::Immediate, StopMode::Kill] {
        stack.stop(Service::Postgres, mode).await.unwrap();
        assert!(!accepts(handle.pg_port).await, "{mode:?}");
        assert_eq!(stack.pid(Service::Postgres), None);
        stack.start_service(Service::Postgres).await.unwrap();
        assert_eq!(handle.psql("postgres", "SELECT n FROM t").await.unwrap(), "7", "{mode:?}");
    }
    stack.start_service(Service::Postgres).await.unwrap_err();

    handle.manage("PUT", "/api/queues/%2F/q", r#"{"durable":true}"#).await.unwrap();
    // Clean first: a queue declared moments before a kill may be forgotten, see StopMode::Kill.
    for mode in [StopMode::Clean, StopMode::Kill] {
        stack.restart(Service::RabbitMq, mode).await.unwrap();
        handle.manage("GET", "/api/queues/%2F/q", "").await.unwrap();
    }
    stack.restart(Service::Redis, StopMode::Kill).await.unwrap();
    assert!(stack.find_ended().is_none());
    assert_ne!(stack.handle().redis_pid, handle.redis_pid);

    // Dropped without a shutdown, as in a test that panics.
    let dir = stack.data_dir().to_path_buf();
    drop(stack);
    scan::wait_until_unused(&dir, PATIENCE).await.unwrap();
    assert!(!dir.exists());
}
