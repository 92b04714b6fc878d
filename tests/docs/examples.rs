//! The examples of README, run as they are against a fleet: each client's first event is delivered, and once.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sendonce_devstack::binary;
use sendonce_devstack::fleet::Role;
use sendonce_tests::{World, eventually};

use crate::pages::excerpt;
use crate::root;

/// A program that publishes one event, or why this machine cannot run it.
type Client = (&'static str, Result<Command>);

fn example(name: &str) -> PathBuf {
    root().join("docs/examples").join(name)
}

fn curl() -> Result<Command> {
    // Not a skip: README asks for it, and every system has it.
    run(Command::new("curl").arg("--version")).expect("curl is missing: install the package curl");
    Ok(Command::new(example("first_event.sh")))
}

fn python(folder: &Path) -> Result<Command> {
    let has_pika = |python: &Path| run(Command::new(python).args(["-c", "import pika"])).is_ok();
    let mut python = PathBuf::from("python3");
    if !has_pika(&python) {
        let home = folder.join("python");
        let own = home.join("bin/python");
        if !has_pika(&own) {
            run(Command::new(&python).args(["-m", "venv"]).arg(&home))?;
            run(Command::new(&own).args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--retries=1",
                "--timeout=10",
                "pika>=1.3,<2",
            ]))?;
        }
        python = own;
    }
    let mut command = Command::new(python);
    command.arg(example("first_event.py"));
    Ok(command)
}

fn node(folder: &Path) -> Result<Command> {
    // Node looks for packages beside the program, so a copy of it goes where they are.
    let home = folder.join("node");
    fs::create_dir_all(&home)?;
    run(Command::new("node").arg("--version"))?;
    if !home.join("node_modules/amqplib").exists() {
        let install = ["install", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=10000", "--prefix"];
        run(Command::new("npm").args(install).arg(&home).arg("amqplib@2"))?;
    }
    let copy = home.join("first_event.mjs");
    fs::copy(example("first_event.mjs"), &copy)?;
    let mut command = Command::new("node");
    command.arg(copy);
    Ok(command)
}

fn rust() -> Result<Command> {
    let test = std::env::current_exe()?;
    let program = test.parent().and_then(Path::parent).context("no target folder")?.join("examples/first_event");
    assert!(program.exists(), "cargo test builds {} unless it is told --test", program.display());
    Ok(Command::new(program))
}

/// Runs to the end; an error carries what it said.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{} is missing", command.get_program().display()))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{:?} failed: {}", command.get_program(), said.trim());
    Ok(said)
}

/// To the terminal, past the test harness, which hides what a passing test prints.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[tokio::test]
async fn the_first_event_of_every_client_is_delivered_once() -> Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("first_event");
    fs::create_dir_all(&folder)?;
    // Another run of the same tests may be installing the same packages.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    let clients: [Client; 4] =
        [("curl", curl()), ("Python", python(&folder)), ("Node", node(&folder)), ("Rust", rust())];
    drop(lock);

    let world = World::start("first_event", |options| options).await?;
    let mut messages = 0;
    for (name, command) in clients {
        let mut command = match command {
            Ok(command) => command,
            Err(why) => {
                tell(&format!("skipped: the first event from {name}: {why:#}"));
                continue;
            }
        };
        command.env("AMQP_URL", world.fleet.amqp_url()).env("MANAGEMENT_URL", world.fleet.stack.management_url());
        // The second time as a publisher does that lost its confirm.
        for _ in 0..2 {
            let said = run(&mut command)?;
            ensure!(said.contains("confirmed") || said.contains(r#"{"routed":true}"#), "{name}: {said}");
        }
        messages += 1;
        world.reach("delivered", messages).await;
        tell(&format!("ran: the first event from {name}"));
    }
    eventually("each duplicate is suppressed", async || {
        let metrics = world.fleet.admin(Role::Ingest, 0, "/metrics").await?.1;
        let counts = metrics.lines().filter(|line| line.starts_with("sendonce_suppressed_duplicates_total"));
        let found: f64 = counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
        ensure!(found == messages as f64, "{found} of {messages}");
        Ok(())
    })
    .await;
    world.reach_rest(messages).await;
    world.assert_clean().await;
    readme_tells_what_show_shows(&world)?;
    world.end().await
}

/// README leaves out what differs from run to run, and shows nothing that is not there.
fn readme_tells_what_show_shows(world: &World) -> Result<()> {
    let shown = run(Command::new(binary("sendonce")?)
        .arg("--config")
        .arg(world.fleet.config_path())
        .args(["show", "ORDER-1001"]))?;
    let words = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
    let real: Vec<Vec<String>> = shown.lines().map(words).collect();
    for line in excerpt("sendonce show").lines().filter(|line| *line != " …").map(words) {
        // The first word is a field; where README gives a value in letters, it is the real one.
        let fits = |found: &Vec<String>| {
            found.first() == line.first()
                && (found.get(1) == line.get(1)
                    || line.get(1).is_some_and(|value| value.starts_with(|c: char| c.is_ascii_digit())))
        };
        ensure!(real.iter().any(fits), "README shows {line:?}, which `sendonce show` does not say:\n{shown}");
    }
    Ok(())
}
