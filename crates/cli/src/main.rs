//! The `sendonce` command: what a person does to the fleet. It calls the same store functions as the workers.

mod output;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use sendonce_core::broker::{Link, Outgoing, Publisher, topology};
use sendonce_core::config::{self, Config};
use sendonce_core::store::{Store, Timing, migrate};

use crate::output::{Output, print_json, print_line};

#[derive(Debug, Parser)]
#[command(name = "sendonce", about = "Look at the fleet and act on it")]
struct Arguments {
    /// The configuration file of the fleet.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring a database to this release's schema. Needs the owner's URL, not a worker's.
    Migrate {
        #[arg(long, required_unless_present = "database_url_file", conflicts_with = "database_url_file")]
        database_url: Option<String>,
        /// The file that holds it: a secret on a command line is seen by everybody.
        #[arg(long)]
        database_url_file: Option<PathBuf>,
    },
    /// Publish an event (CloudEvents JSON) and wait for the broker's confirm.
    Publish {
        /// The file; `-` for standard input.
        event: PathBuf,
    },
    /// Show a message: its row, attempts and receipts. By message id, business key, event id, trace id, transaction id,
    /// provider message id or number.
    Show { what: String },
    /// Messages by class and state, and money by tenant, day and channel.
    Stats,
    /// Messages whose outcome is open.
    #[command(subcommand)]
    Unknown(List),
    /// What is set aside for a person.
    #[command(subcommand)]
    Parked(List),
    /// Check the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum List {
    /// Oldest first (parked: newest first).
    List {
        #[arg(long, default_value_t = 100)]
        limit: i64,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say whether it is consistent.
    Check,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A second call finds it installed; there is no first.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        return ExitCode::FAILURE;
    }
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .and_then(|runtime| runtime.block_on(run(arguments)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::complain(&error),
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let output = Output { json: arguments.json };
    let load = || config::load(arguments.config.as_deref());
    match arguments.command {
        Command::Migrate { database_url, database_url_file } => {
            let version = migrate(&owner_url(database_url, database_url_file.as_deref())?).await?;
            print_line(&format!("the schema is at version {version}"));
            Ok(())
        }
        Command::Config(ConfigCommand::Check) => {
            let loaded = load()?;
            print_line(&format!("the configuration is consistent (hash {})", loaded.hash));
            Ok(())
        }
        Command::Publish { event } => publish(&load()?.config, &event).await,
        Command::Show { what } => show(&open(&load()?.config)?, &what, output).await,
        Command::Stats => {
            let store = open(&load()?.config)?;
            output.states(&store.state_counts().await?)?;
            output.costs(&store.cost_lines().await?)
        }
        Command::Unknown(List::List { limit }) => {
            output.unresolved(&open(&load()?.config)?.list_unresolved(limit).await?)
        }
        Command::Parked(List::List { limit }) => output.parked(&open(&load()?.config)?.list_parked(limit).await?),
    }
}

fn open(config: &Config) -> anyhow::Result<Store> {
    Ok(Store::open(&config.database, Timing::of(config), "sendonce-cli")?)
}

fn owner_url(url: Option<String>, file: Option<&Path>) -> anyhow::Result<String> {
    match (url, file) {
        (Some(url), _) => Ok(url),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok(text.trim().to_owned())
        }
        (None, None) => anyhow::bail!("say --database-url or --database-url-file"),
    }
}

async fn publish(config: &Config, event: &Path) -> anyhow::Result<()> {
    let body = if event.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).context("cannot read standard input")?;
        bytes
    } else {
        std::fs::read(event).with_context(|| format!("cannot read {}", event.display()))?
    };
    let parsed: serde_json::Value = serde_json::from_slice(&body).context("the event is not JSON")?;
    let class = parsed.pointer("/data/class").or_else(|| parsed.get("class")).and_then(|class| class.as_str());
    let message = Outgoing {
        exchange: topology::EVENTS,
        routing_key: class.unwrap_or("transactional").to_owned(),
        content_type: "application/cloudevents+json",
        message_id: parsed.get("id").and_then(|id| id.as_str()).map(str::to_owned),
        headers: Vec::new(),
        body,
    };
    let publisher =
        Publisher::new(Link::new(config.broker.url.clone(), "sendonce-cli".to_owned()), config.broker.confirm_timeout);
    for result in publisher.publish(&[message]).await {
        result.context("the broker did not confirm; publish again, the same event id is sent once")?;
    }
    publisher.link().close().await;
    print_line("confirmed by the broker");
    Ok(())
}

async fn show(store: &Store, what: &str, output: Output) -> anyhow::Result<()> {
    let ids = store.find_messages(what).await?;
    anyhow::ensure!(!ids.is_empty(), "no message bears `{what}`; `sendonce parked list` shows what was set aside");
    for id in ids {
        if let Some(message) = store.find_message(id).await? {
            if output.json { print_json(&message)? } else { output.message(&message) }
        }
    }
    Ok(())
}
