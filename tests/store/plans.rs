//! T27: each access path is an index, also on a table with a past. The plans are those that the statements really ran
//! with: PostgreSQL's auto_explain writes them to its log, for this database only.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use sendonce_core::domain::message::{Channel, Class};
use sendonce_core::domain::outcome::Outcome;
use sendonce_core::domain::receipt::ReceiptKind;
use sendonce_core::store::{Claim, NewMessage, SweepConnection};
use serde_json::Value;

use crate::support::{ANNA, BERT, Bench, accepted, ambiguous, claim, message, new_job, not_sent, number, receipt};

const ROWS: usize = 1500;

/// Statements that serve people and gauges, not the flow.
const REPORTS: [&str; 2] = ["list_unresolved", "unknown_backlog"];

/// Statements that know no time, so they ask every month.
const TIMELESS: [&str; 2] = ["find_message", "message_attempts"];

/// Tables that grow, by the beginning of their partitions' and indexes' names.
const GROWING: [&str; 8] = [
    "outbound_message",
    "submission",
    "message_key",
    "provider_message",
    "send_job",
    "receipt_2",
    "receipt_key",
    "unresolved",
];

/// Fills the current month with submitted messages, more than any statement should look at.
async fn fill(bench: &Bench, month: usize) -> Result<()> {
    for batch in 0..ROWS / 300 {
        let job = new_job();
        let messages: Vec<NewMessage> =
            (0..300).map(|n| message(job, &number((month * 10 + batch) * 300 + n))).collect();
        bench.admit(&messages).await?;
        let made = claim(&[job], 1, 500);
        let (rows, _) = bench.store.claim(&made).await?;
        let outcome = if batch == 0 { ambiguous() } else { accepted(&format!("txn-{month}-{batch}")) };
        bench.record(&made, &rows, outcome).await?;
    }
    // A backlog too.
    for n in 0..20 {
        bench.queue(&[&number(90_000 + n)]).await?;
    }
    bench.sql("analyze").await?;
    Ok(())
}

/// One of everything that runs all day.
async fn live(bench: &mut Bench) -> Result<()> {
    let (job, _) = bench.queue(&[ANNA, BERT]).await?;
    let made = claim(&[job], 1, 1);
    let (rows, _) = bench.store.claim(&made).await?;
    bench.store.claim(&Claim { repeated: true, ..made.clone() }).await?;
    bench.record(&made, &rows, accepted("txn-live")).await?;
    bench.store.apply_receipts(&[receipt("txn-live", rows[0].recipient.expose(), ReceiptKind::Delivered)]).await?;
    bench.store.apply_receipts(&[receipt("txn-0-2", &number(650), ReceiptKind::Delivered)]).await?;
    bench.store.apply_early("main", &["txn-live".into()]).await?;
    bench.store.sweep_receipts(10, std::time::Duration::from_secs(86_400)).await?;
    bench.wake(job).await?;
    bench.store.take_due_jobs(Channel::Sms, Class::Transactional, 100).await?;
    bench.store.lane_backlogs().await?;
    bench.store.oldest_undecided().await?;
    bench.store.unknown_backlog().await?;
    bench.store.last_receipts(&["main", "never-heard"]).await?;
    let (late, rows) = bench.on_the_wire(&[ANNA]).await?;
    let mut sweep = SweepConnection::default();
    bench.store.end_leases(&mut sweep, 10).await?;
    bench.wake(late.jobs[0].id).await?;
    bench.end_leases(&mut sweep, 1).await?;
    let outcome: Outcome = not_sent();
    assert_eq!(bench.record(&late, &rows, outcome).await?.successors, 1);
    bench.store.find_message(rows[0].id.0).await?;
    bench.store.list_unresolved(10).await?;
    Ok(())
}

/// The plans since `from`, by the statement's name.
fn plans(log: &str) -> BTreeMap<String, Vec<Value>> {
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.trim_end().ends_with("plan:") {
            continue;
        }
        let mut json = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with('\t')) {
            json.push_str(line);
        }
        let Ok(plan) = serde_json::from_str::<Value>(&json) else { continue };
        let text = plan["Query Text"].as_str().unwrap_or_default();
        let name = text.split("*/").next().and_then(|head| head.strip_prefix("/*")).map(str::trim);
        if let Some(name) = name {
            found.entry(name.to_owned()).or_default().push(plan["Plan"].clone());
        }
    }
    found
}

fn nodes<'a>(plan: &'a Value, into: &mut Vec<&'a Value>) {
    into.push(plan);
    for child in plan["Plans"].as_array().into_iter().flatten() {
        nodes(child, into);
    }
}

/// What a plan does that it must not, wherever it stands: also where it was not run this time, as in a month that is empty
/// yet, for the same plan will serve that month when it fills.
fn faults(node: &Value, leading: &BTreeMap<String, String>, months: &[String]) -> Vec<String> {
    let text = |of: &str| node[of].as_str().unwrap_or_default();
    let (kind, relation, index) = (text("Node Type"), text("Relation Name"), text("Index Name"));
    let grows = |name: &str| GROWING.iter().any(|table| name.starts_with(table));
    let run = node["Actual Loops"].as_f64().unwrap_or(0.0);
    let mut faults = Vec::new();
    if kind == "Seq Scan" && grows(relation) && run > 0.0 {
        faults.push(format!("reads all of {relation}"));
    }
    // With sequential scans switched off, a missing index shows as a walk through the whole of another one.
    // The early receipts are swept by walking through them, which is all that their index holds.
    if grows(index)
        && !index.ends_with("_received_at_idx")
        && let Some(column) = leading.get(index)
        && !text("Index Cond").contains(&format!("({column} "))
    {
        faults.push(format!("walks through {index} by {:?}", text("Index Cond")));
    }
    if kind.contains("Scan")
        && relation.starts_with("outbound_message")
        && run > 0.0
        && !months.iter().any(|m| m == relation)
    {
        faults.push(format!("looks into {relation}, which cannot have it"));
    }
    let read =
        (node["Actual Rows"].as_f64().unwrap_or(0.0) + node["Rows Removed by Filter"].as_f64().unwrap_or(0.0)) * run;
    if grows(relation) && kind.contains("Scan") && read > 300.0 {
        faults.push(format!("reads {read} rows of {relation}"));
    }
    faults
}

#[tokio::test]
async fn t27_every_access_path_is_an_index_and_leaves_out_other_months() -> Result<()> {
    let mut bench = Bench::short("plans").await?;
    let log = bench.stack.data_dir.join("postgres.log");
    let before = std::fs::metadata(&log)?.len();
    for (key, value) in [
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_analyze", "on"),
        ("auto_explain.log_format", "json"),
    ] {
        bench.stack.set_database_option(&bench.name, key, value).await?;
    }
    // The first day of all: the statistics say that there is nothing in any month.
    bench.shift_clock("1 second").await?;
    live(&mut bench).await?;
    // Two months later.
    fill(&bench, 0).await?;
    bench.shift_clock("40 days").await?;
    fill(&bench, 1).await?;
    bench.shift_clock("40 days").await?;
    live(&mut bench).await?;

    let months = bench.sql("select distinct tableoid::regclass from outbound_message").await?;
    let months: Vec<String> = months.lines().map(str::to_owned).collect();
    assert_eq!(months.len(), 2, "{months:?}");
    let leading = bench
        .sql(
            "select c.relname, a.attname from pg_index i join pg_class c on c.oid = i.indexrelid
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]",
        )
        .await?;
    let leading: BTreeMap<String, String> =
        leading.lines().filter_map(|line| line.split_once('|')).map(|(i, c)| (i.to_owned(), c.to_owned())).collect();
    let bytes = std::fs::read(&log)?;
    let since = bytes.get(usize::try_from(before)?..).context("the log was not cut")?;
    let plans = plans(&String::from_utf8_lossy(since));
    for name in [
        "admit",
        "claim",
        "claimed_to_unknown",
        "count_due",
        "leave_unknown",
        "end_unclaimed",
        "find_claimed",
        "find_message",
        "insert_unresolved",
        "lease_jobs",
        "lock_jobs",
        "lock_receipt_rows",
        "lock_rows",
        "make_successors",
        "match_early_receipts",
        "match_new_receipts",
        "message_attempts",
        "move_deadlines",
        "record_moves",
        "settle_jobs",
        "sweep_early_receipts",
        "take_due_jobs",
        "take_ended_leases",
        "last_receipts",
        "write_receipt_states",
        "write_submissions",
    ] {
        assert!(plans.contains_key(name), "no plan of {name} among {:?}", plans.keys());
    }
    let mut found = Vec::new();
    for (name, plans) in plans.iter().filter(|(name, _)| !REPORTS.contains(&name.as_str())) {
        for plan in plans {
            let mut all = Vec::new();
            nodes(plan, &mut all);
            let faults = all.iter().flat_map(|node| faults(node, &leading, &months));
            let faults = faults.filter(|fault| !(fault.starts_with("looks") && TIMELESS.contains(&name.as_str())));
            found.extend(faults.map(|fault| format!("{name} {fault}")));
        }
    }
    found.sort();
    found.dedup();
    assert!(found.is_empty(), "{found:#?}");
    Ok(())
}
