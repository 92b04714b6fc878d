//! The health check that every binary carries.

use std::process::Command;

use anyhow::{Context, Result};
use sendonce_devstack::binary;
use sendonce_devstack::fleet::Role;
use sendonce_tests::{World, eventually};
use serde_json::Value;

use crate::run;

fn healthcheck(world: &World, role: Role, address: &str, args: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new(binary(role.binary())?);
    command.arg("healthcheck").args(args).arg("--config").arg(world.fleet.config_path());
    // An empty environment: neither a shell nor anything it would set is needed.
    run(command.env_clear().env("SENDONCE_ADMIN__LISTEN", address), "")
}

#[tokio::test]
async fn every_worker_can_be_asked_how_it_is_without_a_shell() -> Result<()> {
    let world = World::start("healthcheck", |options| options).await?;
    for role in Role::ALL {
        let address = world.fleet.admin_address(role, 0)?;
        let (ok, said) = healthcheck(&world, role, &address, &[])?;
        assert!(ok && said.contains("alive"), "{}: {said}", role.binary());
        let (ok, said) = healthcheck(&world, role, &address, &["--ready"])?;
        assert!(ok && said.contains("ready\nconfig "), "{}: {said}", role.binary());
        let (ok, said) = healthcheck(&world, role, "127.0.0.1:0", &[])?;
        assert!(!ok && said.contains("no fixed port"), "{}: {said}", role.binary());
    }
    let address = world.fleet.admin_address(Role::SmsSender, 0)?;
    world.sql("alter table outbound_message rename to elsewhere").await?;
    world.sql("alter function partitions_ahead() rename to elsewhere").await?;
    let (ok, said) = healthcheck(&world, Role::SmsSender, &address, &["--ready"])?;
    assert!(!ok && said.contains("503 not ready"), "{said}");
    let (ok, said) = healthcheck(&world, Role::SmsSender, &address, &[])?;
    assert!(ok, "it lives, and a restart would help nobody: {said}");

    world.fleet.worker(Role::SmsSender, 0)?.terminate()?;
    eventually("a worker that ended is not healthy", async || {
        let (ok, said) = healthcheck(&world, Role::SmsSender, &address, &[])?;
        anyhow::ensure!(!ok && said.contains("does not answer"), "{said}");
        Ok(())
    })
    .await;
    world.end().await
}

#[tokio::test]
async fn the_simulator_can_be_asked_too() -> Result<()> {
    let mut world = World::prepare("healthcheck_sim", |options| options).await?;
    world.fleet.start_simulator().await?;
    let ready: Value = serde_json::from_str(&std::fs::read_to_string(world.fleet.folder.join("simulator.ready"))?)?;
    let control = ready["control"].as_str().context("the simulator names no control port")?;
    let ask = |port: &str| {
        run(Command::new(binary("provider-sim")?).args(["healthcheck", "--control", port]).env_clear(), "")
    };
    let (ok, said) = ask(control)?;
    assert!(ok, "{said}");
    let (ok, said) = ask("127.0.0.1:1")?;
    assert!(!ok, "{said}");
    world.end().await
}
