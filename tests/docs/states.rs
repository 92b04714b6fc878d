//! docs/states.md, rendered from the state machine itself.

use std::fmt::Write as _;
use std::fs;

use sendonce_core::domain::state::{Delivery, EVENTS, Event, State, Step, apply};

use crate::root;

const PAGE: &str = "docs/states.md";

#[test]
fn t9_states_md_is_what_the_state_machine_says() {
    let (path, rendered) = (root().join(PAGE), page());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &rendered).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == rendered,
        "{PAGE} is not what domain::state says; write it anew with: UPDATE_DOCS=1 ./dev test -p sendonce_tests states_md"
    );
}

/// What a message in this state is, and whether it costs.
fn meaning(state: State) -> (&'static str, &'static str) {
    match state {
        State::Pending => ("due now or later; nobody has it in hand", "no"),
        State::Claimed => ("a sender has it and may be on the wire", "not known yet"),
        State::Submitted => ("the provider accepted it", "yes"),
        State::Delivered => ("a receipt or the provider's report says that it arrived", "yes"),
        State::Failed => (
            "accepted, and a receipt or report says that it did not arrive; or `unknown`, and evidence says that it was never accepted",
            "yes; the latter no",
        ),
        State::Expired => {
            ("its time to live passed unclaimed; or accepted, and no final word came in time", "no; the latter yes")
        }
        State::Rejected => ("the provider refused this message", "no"),
        State::Unknown => {
            ("a request may have left and no clear answer came back", "counted as exposure, apart from spend")
        }
        State::Cancelled => ("called off before any claim; `state_reason` says by what", "no"),
    }
}

/// When an event happens.
fn occasion(event: Event) -> &'static str {
    match event {
        Event::Claim => "a sender takes it, about to open the connection",
        Event::TimeToLivePassed => "its time to live passed",
        Event::Cancel => "a cancel names it",
        Event::NotSent => "its own worker proves that no byte of the request left",
        Event::Accepted => "its own worker read an acceptance",
        Event::Refused => "its own worker read a refusal of this message",
        Event::Ambiguous => "its own worker got no clear answer",
        Event::LeaseEnded => "the lease of its claim ran out",
        Event::Receipt(Delivery::Delivered) => "the first final receipt says delivered",
        Event::Receipt(Delivery::Failed) => "the first final receipt says failed",
        Event::Receipt(Delivery::Expired) => "the first final receipt says expired",
        Event::ValidityPassed => "no final word came within the validity",
        Event::Matched => "the provider's report holds one record that fits it and nothing else",
        Event::NotFound => "the provider's report proves that nothing was submitted",
    }
}

fn name(event: Event) -> String {
    match event {
        Event::Receipt(delivery) => format!("Receipt {delivery:?}"),
        Event::Claim
        | Event::TimeToLivePassed
        | Event::Cancel
        | Event::NotSent
        | Event::Accepted
        | Event::Refused
        | Event::Ambiguous
        | Event::LeaseEnded
        | Event::ValidityPassed
        | Event::Matched
        | Event::NotFound => format!("{event:?}"),
    }
}

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## States\n\n| state | what it says | final | billable |\n| --- | --- | --- | --- |\n");
    for &state in State::ALL {
        let (meaning, billable) = meaning(state);
        let last = if state.is_final() { "yes" } else { "no" };
        writeln!(page, "| `{state}` | {meaning} | {last} | {billable} |").unwrap();
    }
    page.push_str("\n## Edges\n\n```mermaid\nstateDiagram-v2\n    [*] --> pending\n");
    for (from, to, events) in edges() {
        writeln!(page, "    {from} --> {to}: {}", events.join(", ")).unwrap();
    }
    page.push_str("```\n\n| from | to | when |\n| --- | --- | --- |\n| (insert) | `pending` | ingest admits it |\n");
    for (from, to, events) in edges() {
        writeln!(page, "| `{from}` | `{to}` | {} |", events.join(", ")).unwrap();
    }
    page.push_str("\n## Every event in every state\n\n");
    page.push_str("A state's name: the message moves there. `=`: known already, or too late to matter; it stays. Empty: has no meaning\nthere, and is an error.\n\n");
    let states: Vec<String> = State::ALL.iter().map(|state| format!("`{state}`")).collect();
    writeln!(page, "| event | when | {} |", states.join(" | ")).unwrap();
    writeln!(page, "| --- | --- |{}", " --- |".repeat(states.len())).unwrap();
    for &event in EVENTS {
        let cells: Vec<String> = State::ALL.iter().map(|&state| cell(state, event)).collect();
        writeln!(page, "| {} | {} | {} |", name(event), occasion(event), cells.join(" | ")).unwrap();
    }
    page
}

fn cell(state: State, event: Event) -> String {
    match apply(state, event) {
        Ok(Step::Move(to)) => to.to_string(),
        Ok(Step::Stay) => "=".to_owned(),
        Err(_) => String::new(),
    }
}

/// In the order of the states, with the events that lead along each.
fn edges() -> Vec<(State, State, Vec<String>)> {
    let mut edges = Vec::new();
    for &from in State::ALL {
        for &to in State::ALL {
            let leads = |event: &&Event| apply(from, **event) == Ok(Step::Move(to));
            let events: Vec<String> = EVENTS.iter().filter(leads).map(|&event| name(event)).collect();
            if !events.is_empty() {
                edges.push((from, to, events));
            }
        }
    }
    edges
}

const INTRODUCTION: &str = "<!-- Rendered from crates/core/src/domain/state.rs by tests/docs/states.rs; edit there. -->

# The states of a message

One row is one physical message to one recipient, and it is in one of these states. `apply` in `crates/core/src/domain/state.rs`
is the only place that decides where a row goes next. A trigger in `migrations/0004_guard.sql` lists the same edges and refuses
all others, and a test compares the two.

There is no edge from `unknown` back to `pending`, and none out of a final state: an ambiguous outcome is never resolved by sending
again. Leaving `unknown` takes evidence, which the row keeps. A further message under the same key (a successor) is a new row.
";
