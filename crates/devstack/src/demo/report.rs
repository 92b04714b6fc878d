//! The demo's answer: tables for people, one line of JSON for programs.
#![expect(clippy::print_stdout, reason = "the demo's answer")]

use std::time::Duration;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::json;

use super::mix::Expected;
use super::story::Story;
use super::total;
use crate::audit::{Audit, MoneyLine};
use crate::fleet::Fleet;

/// Where the fleet that stays up is reached, as a second terminal takes it.
pub(super) fn print_addresses(fleet: &Fleet) {
    println!("\nThe fleet stays up until Ctrl-C. To publish to it, in a second terminal:");
    println!("export AMQP_URL={}", fleet.amqp_url());
    println!("export MANAGEMENT_URL={}", fleet.stack.management_url());
    println!("export CONFIG={}", fleet.config_path().display());
    println!("Then try:");
    println!("  target/debug/sendonce --config $CONFIG show F11-0     # a lost answer, settled by the report");
    println!("  target/debug/sendonce --config $CONFIG unknown list   # what stays open, and why");
    println!("  target/debug/sendonce --config $CONFIG parked list    # what was set aside, with the reason");
    println!("  target/debug/sendonce --config $CONFIG stats");
}

/// Everything a round found out.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) events: usize,
    pub(super) expected: Expected,
    pub(super) suppressed: u64,
    pub(super) states: Vec<Vec<String>>,
    pub(super) parked: Vec<Vec<String>>,
    /// Messages whose answer was not clear, and how each kind was settled.
    pub(super) doubts: Vec<Vec<String>>,
    pub(super) still_unknown: Vec<Vec<String>>,
    pub(super) stories: Vec<Story>,
    pub(super) audit: Audit,
    pub(super) published: Duration,
    pub(super) submitted: Duration,
    pub(super) at_rest: Duration,
    /// Name, CPU seconds, peak resident KiB.
    pub(super) processes: Vec<(String, f64, u64)>,
}

impl Report {
    pub(super) fn is_clean(&self) -> bool {
        self.problems().is_empty()
    }

    fn problems(&self) -> Vec<String> {
        let (rows, parked) = (total(&self.states).unwrap_or(-1), total(&self.parked).unwrap_or(-1));
        let mut problems = self.expected.differences(rows, self.suppressed, parked);
        problems.extend(self.audit.violations.iter().cloned());
        problems
    }

    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", self.json()?);
            return Ok(());
        }
        println!("\nMessages by class and state");
        println!("{}", rows(["class", "state", "messages"], &self.states));
        println!("Set aside for a person ({} duplicates suppressed)", self.suppressed);
        println!("{}", rows(["what", "why", "count"], &self.parked));
        println!("Answers that were not clear: nothing is sent again, the provider's report decides");
        println!("{}", rows(["answer", "now", "match", "on whose word", "messages"], &self.doubts));
        println!("Unknown and meant to stay so: the simulator accepted nothing, and absence is no proof");
        println!("{}", rows(["event", "message", "because", "report"], &self.still_unknown));
        for story in &self.stories {
            println!("The story of event {}, seconds from its admission", story.event);
            println!("{}", rows(["s", "what happened"], &story.steps));
        }
        println!("Provider's ledger against our rows");
        println!("{}", money(&self.audit.money));
        self.print_figures();
        self.print_verdict();
        Ok(())
    }

    fn print_figures(&self) {
        let messages = self.audit.rows as f64;
        println!(
            "{} events for {} messages, published in {:.1} s, all submitted after {:.1} s ({:.0} messages a second), at rest \
             after {:.1} s; debug build, everything on this machine",
            self.events,
            self.audit.rows,
            self.published.as_secs_f64(),
            self.submitted.as_secs_f64(),
            messages / self.submitted.as_secs_f64(),
            self.at_rest.as_secs_f64(),
        );
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY).set_header([
            "process",
            "CPU s",
            "CPU s per 1,000 messages",
            "peak MiB",
        ]);
        for (name, cpu, peak) in &self.processes {
            table.add_row([
                name.clone(),
                format!("{cpu:.2}"),
                format!("{:.3}", cpu * 1000.0 / messages),
                format!("{:.0}", *peak as f64 / 1024.0),
            ]);
        }
        println!("{table}");
    }

    fn print_verdict(&self) {
        let audit = &self.audit;
        println!(
            "provider read {} requests and accepted {} messages: {} duplicated, {} lost, {} without a row, {} misbilled, {} misattributed",
            audit.requests,
            audit.accepted,
            audit.duplicated,
            audit.lost,
            audit.ghost,
            audit.misbilled,
            audit.misattributed
        );
        let problems = self.problems();
        if problems.is_empty() {
            println!("ledger and database agree");
        }
        for problem in problems.iter().take(20) {
            println!("VIOLATION {problem}");
        }
    }

    fn json(&self) -> Result<String> {
        let processes: Vec<_> = self
            .processes
            .iter()
            .map(|(name, cpu, peak)| json!({"process": name, "cpu_seconds": cpu, "peak_kib": peak}))
            .collect();
        Ok(json!({
            "events": self.events,
            "messages": self.audit.rows,
            "suppressed_duplicates": self.suppressed,
            "states": self.states,
            "parked": self.parked,
            "doubts": self.doubts,
            "still_unknown": self.still_unknown,
            "audit": self.audit,
            "problems": self.problems(),
            "published_seconds": self.published.as_secs_f64(),
            "submitted_seconds": self.submitted.as_secs_f64(),
            "at_rest_seconds": self.at_rest.as_secs_f64(),
            "processes": processes,
        })
        .to_string())
    }
}

fn rows<const N: usize>(header: [&str; N], lines: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(header);
    for line in lines {
        table.add_row(line);
    }
    table
}

fn money(lines: &[MoneyLine]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header([
        "tenant",
        "day (UTC)",
        "channel",
        "our units",
        "provider's",
        "our cost",
        "provider's",
        "unknown",
        "of these accepted",
    ]);
    let amount = |ten_thousandths: i64| format!("{}.{:04}", ten_thousandths / 10_000, ten_thousandths % 10_000);
    for line in lines {
        table.add_row([
            line.tenant.clone(),
            line.day.clone(),
            line.channel.clone(),
            line.our_units.to_string(),
            line.provider_units.to_string(),
            amount(line.our_cost),
            amount(line.provider_cost),
            line.exposure_rows.to_string(),
            line.unknown_accepted.to_string(),
        ]);
    }
    table
}
