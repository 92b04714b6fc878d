//! The shell of every binary, and the command.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use sendonce_devstack::binary;
use sendonce_devstack::fleet::Role;
use sendonce_tests::{Event, World, publish};
use serde_json::Value;

use crate::flow::number;

fn run(name: &str, args: &[&str]) -> Result<(bool, String)> {
    let output = Command::new(binary(name)?).args(args).output()?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

#[tokio::test]
async fn every_binary_checks_its_configuration_and_hints_at_a_misspelt_key() -> Result<()> {
    let world = World::prepare("check_config", |options| options).await?;
    let good = world.fleet.config_path();
    let bad = world.fleet.folder.join("bad.toml");
    std::fs::write(&bad, std::fs::read_to_string(&good)?.replace("backoff_min", "backof_min"))?;
    let short = world.fleet.folder.join("short.toml");
    std::fs::write(&short, std::fs::read_to_string(&good)?.replace("lease = \"8s\"", "lease = \"5s\""))?;
    for role in Role::ALL {
        let check =
            |path: &std::path::Path| run(role.binary(), &["--config", &path.to_string_lossy(), "--check-config"]);
        let (ok, text) = check(&good)?;
        assert!(ok && text.contains("consistent"), "{}: {text}", role.binary());
        let (ok, text) = check(&bad)?;
        assert!(!ok && text.contains("did you mean `backoff_min`?"), "{}: {text}", role.binary());
        let (ok, text) = check(&short)?;
        assert!(!ok && text.contains("budgets.lease"), "{}: {text}", role.binary());
    }
    world.end().await
}

#[tokio::test]
async fn a_worker_refuses_a_wrong_schema_a_superuser_and_an_offset_clock() -> Result<()> {
    let mut world = World::prepare("wrong_database", |options| options).await?;
    let superuser = world.fleet.stack.superuser_url(&world.fleet.name);
    let patience = Duration::from_secs(60);
    world.fleet.spawn_with(Role::Reconciler, 0, &[("SENDONCE_DATABASE__URL", &superuser)])?;
    assert!(!world.fleet.worker(Role::Reconciler, 0)?.wait(patience).await?.success());
    assert!(world.fleet.worker(Role::Reconciler, 0)?.log_tail().contains("superuser"));

    let (stack, name) = (world.fleet.stack.clone(), world.fleet.name.clone());
    stack.set_database_option(&name, "sendonce.clock_offset", "1 day").await?;
    world.fleet.spawn_with(Role::Reconciler, 0, &[("SENDONCE_TESTING__ALLOW_CLOCK_OFFSET", "false")])?;
    assert!(!world.fleet.worker(Role::Reconciler, 0)?.wait(patience).await?.success());
    assert!(world.fleet.worker(Role::Reconciler, 0)?.log_tail().contains("clock_offset"));

    world.sql("update _sqlx_migrations set version = version + 100 where version = 6").await?;
    world.fleet.spawn(Role::Reconciler, 0)?;
    assert!(!world.fleet.worker(Role::Reconciler, 0)?.wait(patience).await?.success());
    assert!(world.fleet.worker(Role::Reconciler, 0)?.log_tail().contains("sendonce migrate"));
    world.end().await
}

#[tokio::test]
async fn health_tells_what_is_missing_and_metrics_name_no_person() -> Result<()> {
    let world = World::start("health", |options| options).await?;
    publish(&world.fleet.amqp_url(), &[Event::sms("E1", &[&number(77)], "A canary text").outgoing()]).await?;
    world.reach("delivered", 1).await;
    for role in Role::ALL {
        assert_eq!(world.fleet.admin(role, 0, "/livez").await?.0, 200, "{}", role.binary());
        let (status, ready) = world.fleet.admin(role, 0, "/readyz").await?;
        assert!(status == 200 && ready.contains("config "), "{}: {ready}", role.binary());
        let (_, page) = world.fleet.admin(role, 0, "/metrics").await?;
        assert!(page.contains("sendonce_"), "{}", role.binary());
        let log = std::fs::read_to_string(world.fleet.log_path(role, 0))?;
        for canary in [number(77).as_str(), "A canary text", "stack-secret", "password=secret"] {
            assert!(!page.contains(canary), "I11: the metrics of {} hold {canary}", role.binary());
            assert!(!log.contains(canary), "I11: the log of {} holds {canary}", role.binary());
        }
    }
    // A month without its partition is an error that readiness shows.
    for table in ["outbound_message", "submission", "receipt"] {
        let last = world.sql(&format!("select inhrelid::regclass from pg_inherits where inhparent = '{table}'::regclass order by 1 desc limit 2")).await?;
        for partition in last.lines() {
            world.sql(&format!("drop table {partition}")).await?;
        }
    }
    let (status, text) = world.fleet.admin(Role::Ingest, 0, "/readyz").await?;
    assert!(status == 503 && text.contains("partitions"), "{text}");
    world.end().await
}

#[tokio::test]
async fn the_command_publishes_shows_and_lists() -> Result<()> {
    let world = World::start("command", |options| options).await?;
    let config = world.fleet.config_path();
    let sendonce = |args: &[&str]| {
        let mut all = vec!["--config", config.to_str().unwrap()];
        all.extend(args);
        run("sendonce", &all)
    };
    let event = world.fleet.folder.join("event.json");
    std::fs::write(&event, Event::sms("E-cli", &[&number(5)], "From the command line").outgoing().body)?;
    let (ok, text) = sendonce(&["publish", event.to_str().unwrap()])?;
    assert!(ok && text.contains("confirmed"), "{text}");
    world.reach("delivered", 1).await;
    let (ok, text) = sendonce(&["--json", "show", "E-cli"])?;
    assert!(ok, "{text}");
    let view: Value = serde_json::from_str(text.trim())?;
    assert_eq!(view["message"]["state"], "delivered");
    assert_eq!(view["message"]["cost"], "0.1400", "money is a decimal, not a float");
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(view["receipts"].as_array().unwrap().len(), 1);
    assert!(!text.contains(&number(5)) && !text.contains("From the command line"), "I11: {text}");
    for what in
        [number(5), view["message"]["id"].to_string(), view["message"]["business_key"].as_str().unwrap().to_owned()]
    {
        let (ok, text) = sendonce(&["show", &what])?;
        assert!(ok && text.contains("delivered"), "{what}: {text}");
    }
    let (ok, text) = sendonce(&["stats"])?;
    assert!(ok && text.contains("0.1400 INR"), "{text}");
    for list in ["unknown", "parked"] {
        let (ok, text) = sendonce(&[list, "list"])?;
        assert!(ok, "{text}");
    }
    let (ok, text) = sendonce(&["show", "nothing-like-it"])?;
    assert!(!ok && text.contains("parked list"), "{text}");
    world.end().await
}
