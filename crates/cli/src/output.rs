//! Tables for people, JSON for programs. The only place of the command that prints.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line's answers")]

use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use sendonce_core::store::{CostLine, MessageView, ParkedView, StateCount, UnresolvedView};
use serde::Serialize;
use serde_json::Value;

/// How to answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

pub(crate) fn print_line(line: &str) {
    println!("{line}");
}

pub(crate) fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

pub(crate) fn complain(error: &anyhow::Error) -> ExitCode {
    eprintln!("sendonce: {error:#}");
    ExitCode::FAILURE
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(header);
    table
}

impl Output {
    fn list<T: Serialize, const N: usize>(
        self,
        rows: &[T],
        header: [&str; N],
        cells: fn(&T) -> [String; N],
    ) -> anyhow::Result<()> {
        if self.json {
            return rows.iter().try_for_each(print_json);
        }
        let mut table = table(header);
        for row in rows {
            table.add_row(cells(row));
        }
        println!("{table}");
        Ok(())
    }

    pub(crate) fn states(self, rows: &[StateCount]) -> anyhow::Result<()> {
        self.list(rows, ["class", "state", "messages"], |row| {
            [row.class.clone(), row.state.clone(), row.messages.to_string()]
        })
    }

    pub(crate) fn costs(self, rows: &[CostLine]) -> anyhow::Result<()> {
        let header = ["tenant", "day", "channel", "submitted", "units", "cost", "unknown", "exposure"];
        self.list(rows, header, |row| {
            [
                row.tenant.clone(),
                row.day.to_string(),
                row.channel.clone(),
                row.submitted.to_string(),
                row.units.to_string(),
                format!("{} {}", row.cost, row.currency),
                row.exposure_messages.to_string(),
                format!("{} {}", row.exposure, row.currency),
            ]
        })
    }

    pub(crate) fn unresolved(self, rows: &[UnresolvedView]) -> anyhow::Result<()> {
        self.list(rows, ["message", "kind", "class", "why", "since", "polls", "under review", "match"], |row| {
            [
                row.message_id.to_string(),
                row.kind.clone(),
                row.class.clone(),
                row.reason.clone().unwrap_or_default(),
                row.since.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
                row.polls.to_string(),
                row.needs_review_since
                    .map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
                    .unwrap_or_default(),
                row.correlation_result.clone().unwrap_or_default(),
            ]
        })
    }

    pub(crate) fn parked(self, rows: &[ParkedView]) -> anyhow::Result<()> {
        self.list(rows, ["id", "what", "reason", "event", "seen", "parked at", "detail"], |row| {
            [
                row.id.to_string(),
                row.kind.clone(),
                row.reason.clone(),
                row.event_id.clone().unwrap_or_default(),
                row.times_seen.to_string(),
                row.parked_at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
                row.detail.clone(),
            ]
        })
    }

    pub(crate) fn message(self, message: &MessageView) {
        object("message", &message.message);
        message.attempts.iter().for_each(|attempt| object("attempt", attempt));
        message.receipts.iter().for_each(|receipt| object("receipt", receipt));
    }
}

/// What a row says, without what it leaves empty.
fn object(title: &str, value: &Value) {
    let mut table = table([title, ""]);
    for (key, value) in value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        table.add_row([key.clone(), text]);
    }
    println!("{table}");
}
