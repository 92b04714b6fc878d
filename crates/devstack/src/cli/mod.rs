//! Arguments, and which command does what.

mod foreground;
mod lasting;
mod signals;
mod term;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use sendonce_devstack::demo::{self, DemoOptions};
use sendonce_devstack::{check_name, stack_root, sweep_stale};

use self::signals::StopSignal;

/// Private PostgreSQL, Redis and RabbitMQ for the demo and the tests.
#[derive(Debug, Parser)]
#[command(name = "sendonce-devstack")]
struct Arguments {
    /// The clone whose `.stack` folder holds the data.
    #[arg(long, global = true, default_value = ".")]
    clone: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a stack that stays, migrated; returns when it is ready.
    Up(Name),
    /// Stop the stack that `up` started; its data stays.
    Down {
        #[command(flatten)]
        name: Name,
        /// Remove the data too.
        #[arg(long)]
        wipe: bool,
    },
    /// Show a stack; exit code 0 if all of it answers, 3 if not.
    Status(Name),
    /// Run all tests on a stack of their own.
    Test {
        /// Only the tests of this package; may be given more than once.
        #[arg(short, long)]
        package: Vec<String>,
        /// For the test programs: filters, and options such as --nocapture.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run a command on a stack of its own, which DEVSTACK_FILE describes, without migrations.
    Run {
        /// Name of the stack; the process id makes one if none is given.
        #[arg(long)]
        name: Option<String>,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// See messages go through a stack of its own.
    Demo {
        /// End after one round; otherwise the fleet stays up until a signal.
        #[arg(long)]
        once: bool,
        #[arg(long)]
        json: bool,
    },
    /// What `up` leaves running.
    #[command(hide = true)]
    Supervise(Name),
}

#[derive(Debug, clap::Args)]
struct Name {
    /// Which of this clone's stacks.
    #[arg(long, default_value = "dev")]
    name: String,
}

pub async fn main() -> ExitCode {
    match dispatch(Arguments::parse()).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            term::tell(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn dispatch(arguments: Arguments) -> Result<u8> {
    let clone = arguments.clone.canonicalize().context("--clone names no folder")?;
    let root = stack_root(&clone);
    sweep_stale(&root)?;
    match arguments.command {
        Command::Up(Name { name }) => lasting::up(&clone, &checked(name)?).await,
        Command::Down { name: Name { name }, wipe } => lasting::down(&root, &checked(name)?, wipe).await,
        Command::Status(Name { name }) => lasting::status(&root, &checked(name)?).await,
        Command::Supervise(Name { name }) => lasting::supervise(&root, &checked(name)?).await,
        Command::Test { package, args } => foreground::test(&clone, &package, &args).await,
        Command::Run { name, command } => {
            let name = name.unwrap_or_else(|| format!("run-{}", std::process::id()));
            foreground::run(&root, &checked(name)?, &command).await
        }
        Command::Demo { once, json } => {
            let mut stop = StopSignal::new()?;
            tokio::select! {
                done = demo::run(DemoOptions { root, once, json }, term::progress()) => done,
                code = stop.wait() => Ok(code),
            }
        }
    }
}

fn checked(name: String) -> Result<String> {
    check_name(&name)?;
    Ok(name)
}
