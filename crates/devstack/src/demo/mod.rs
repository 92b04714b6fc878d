//! The demo: sends real traffic through a stack of its own and the simulator, and tells what happened.

mod mix;
mod report;
mod story;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sendonce_core::broker::{Link, Outgoing, Publisher, topology};

use self::mix::{Expected, Mix, Published, Size};
use self::report::Report;
use crate::audit::audit;
use crate::fleet::{Fleet, FleetOptions, Role, tree_usage};
use crate::options::{Progress, StackOptions};
use crate::stack::Stack;

/// What to show, and how.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Where stacks keep their data, see [`crate::stack_root`].
    pub root: PathBuf,
    /// Ends after one round instead of waiting for a signal.
    pub once: bool,
    /// The result as JSON on stdout instead of text.
    pub json: bool,
}

const NAME: &str = "demo";
const SIZE: Size =
    Size { otp: 2_000, transactional: 13_752, promotional: 3_600, whatsapp: 300, batch: 5_000, duplicates: 250 };
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs it; returns the exit code: 0 when the provider's ledger and the database agree. Unless `once`, the fleet stays up
/// until the future is dropped. Safe to cancel at any time.
pub async fn run(options: DemoOptions, progress: Progress) -> Result<u8> {
    let stack = format!("demo-{}", std::process::id());
    let mut stack = Stack::start(StackOptions::throwaway(&options.root, &stack).progress(progress.clone())).await?;
    stack.make_template("sendonce_template").await?;
    let handle = stack.handle();
    let folder = stack.data_dir().join("fleet");
    let mut fleet = Fleet::prepare(&handle, FleetOptions::new(NAME, folder).set("log.filter", "\"warn\"")).await?;
    progress.tell("starting the simulator and the workers");
    fleet.start().await?;
    let report = round(&fleet, &progress).await?;
    let clean = report.is_clean();
    report.print(options.json)?;
    if !options.once {
        report::print_addresses(&fleet);
        // Until the caller drops this future, and with it the fleet and the stack.
        std::future::pending::<()>().await;
    }
    drop(fleet);
    stack.shutdown().await?;
    Ok(u8::from(!clean))
}

/// Publishes the mix, waits until nothing is undecided, and compares.
async fn round(fleet: &Fleet, progress: &Progress) -> Result<Report> {
    let mix = Mix::new(SIZE);
    progress.tell(&format!("publishing {} events for {} messages", mix.events.len(), mix.expected.rows));
    let began = Instant::now();
    publish(fleet, &mix.events).await?;
    let published = began.elapsed();
    let (submitted, at_rest) = wait_for_rest(fleet, &mix.expected, progress, began).await?;
    let processes = fleet
        .processes()
        .into_iter()
        .chain(server_pids(fleet))
        .filter_map(|(name, pid)| tree_usage(pid).map(|(cpu, peak)| (name, cpu, peak)))
        .collect();
    let metrics = fleet.admin(Role::Ingest, 0, "/metrics").await?.1;
    Ok(Report {
        events: mix.events.len(),
        expected: mix.expected,
        suppressed: suppressed(&metrics),
        states: lines(fleet, STATES).await?,
        parked: lines(fleet, PARKED).await?,
        doubts: story::doubts(fleet).await?,
        still_unknown: story::still_unknown(fleet).await?,
        stories: story::stories(fleet).await?,
        audit: audit(fleet).await?,
        published,
        submitted,
        at_rest,
        processes,
    })
}

fn server_pids(fleet: &Fleet) -> Vec<(String, u32)> {
    let stack = &fleet.stack;
    [("postgres", stack.postgres_pid), ("redis", stack.redis_pid), ("rabbitmq", stack.rabbitmq_pid)]
        .into_iter()
        .filter_map(|(name, pid)| Some((name.to_owned(), pid?)))
        .collect()
}

async fn publish(fleet: &Fleet, events: &[Published]) -> Result<()> {
    let link = Link::new(fleet.amqp_url().into(), "sendonce-demo".to_owned());
    let publisher = Publisher::new(link, Duration::from_secs(30));
    for chunk in events.chunks(500) {
        let messages: Vec<Outgoing> = chunk
            .iter()
            .map(|event| Outgoing {
                exchange: topology::EVENTS,
                routing_key: event.routing_key.clone(),
                content_type: "application/cloudevents+json",
                message_id: event.id.clone(),
                headers: Vec::new(),
                body: event.body.clone(),
            })
            .collect();
        let results = publisher.publish(&messages).await;
        ensure!(results.iter().all(Result::is_ok), "the broker did not confirm every event");
    }
    publisher.link().close().await;
    Ok(())
}

/// Waits until every message was submitted or decided otherwise, then until receipts and reports have settled what they
/// can; returns both times.
async fn wait_for_rest(
    fleet: &Fleet,
    expected: &Expected,
    progress: &Progress,
    began: Instant,
) -> Result<(Duration, Duration)> {
    let mut submitted = None;
    loop {
        let counts = lines(fleet, PROGRESS).await?;
        let number = |i: usize| counts.first().and_then(|line| line.get(i)?.parse::<i64>().ok()).unwrap_or(0);
        let (rows, undecided, waiting, parked, unknown) = (number(0), number(1), number(2), number(3), number(4));
        let sent = rows >= expected.rows && undecided == 0 && parked >= expected.parked;
        if sent && submitted.is_none() {
            submitted = Some(began.elapsed());
        }
        if let Some(took) = submitted
            && waiting <= expected.submitted
            && unknown <= expected.unknown
        {
            return Ok((took, began.elapsed()));
        }
        progress.tell(&format!(
            "{rows} of {} admitted, {undecided} undecided, {waiting} waiting for a receipt, {unknown} unknown",
            expected.rows
        ));
        ensure!(
            began.elapsed() < PATIENCE,
            "not at rest after {PATIENCE:?}: {counts:?}; logs are in {}",
            fleet.folder.display()
        );
        // Each look counts the whole table: often enough to watch, seldom enough not to be what is measured.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

const PROGRESS: &str = "
    select count(*), count(*) filter (where state in ('pending', 'claimed')), count(*) filter (where state = 'submitted'),
        (select count(*) from parked), count(*) filter (where state = 'unknown') from outbound_message";
const STATES: &str = "
    select message_class, state, count(*) from outbound_message group by 1, 2 order by 1, 2";
const PARKED: &str = "
    select kind, reason, count(*) from parked group by 1, 2 order by 3 desc, 1, 2";

/// Rows of a query, as text.
async fn lines(fleet: &Fleet, sql: &str) -> Result<Vec<Vec<String>>> {
    let text = fleet.stack.psql(&fleet.name, sql).await?;
    Ok(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

/// Duplicates that ingest dropped, whichever layer saw them.
fn suppressed(metrics: &str) -> u64 {
    metrics
        .lines()
        .filter(|line| line.starts_with("sendonce_suppressed_duplicates_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .map(|value| value as u64)
        .sum()
}

impl Expected {
    /// What differs from it, in words.
    fn differences(&self, rows: i64, suppressed: u64, parked: i64) -> Vec<String> {
        let mut found = Vec::new();
        if rows != self.rows {
            found.push(format!("{rows} rows, {} expected", self.rows));
        }
        if suppressed != self.duplicates {
            found.push(format!("{suppressed} duplicates suppressed, {} expected", self.duplicates));
        }
        if parked != self.parked {
            found.push(format!("{parked} parked, {} expected", self.parked));
        }
        found
    }
}

/// Kept here so that a missing field of a query is an error with its name.
fn total(lines: &[Vec<String>]) -> Result<i64> {
    lines.iter().map(|line| line.last().context("an empty line")?.parse::<i64>().context("a count")).sum()
}
