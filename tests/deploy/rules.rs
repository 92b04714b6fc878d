//! The alarms: read by the distribution's promtool, each shown to fire and to keep quiet, made of metrics that the fleet
//! really shows, with the thresholds of the classes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use sendonce_core::config::Config;
use sendonce_core::domain::message::Class;
use sendonce_devstack::fleet::Role;
use sendonce_tests::{Event, World, eventually, publish};
use serde_json::Value;

use crate::{read, run, tools, top, workers, yaml};

fn promtool(args: &[&str], input: &str) -> Result<(bool, String)> {
    let fetched = tools().join("prometheus/usr/bin/promtool");
    let program = if fetched.is_file() { fetched } else { PathBuf::from("promtool") };
    let mut command = Command::new(&program);
    command.args(args).current_dir(top().join("deploy/prometheus"));
    match run(&mut command, input) {
        Err(error)
            if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::NotFound) =>
        {
            panic!("promtool is missing: run `./dev test`, which fetches it, or install the package prometheus")
        }
        ran => ran,
    }
}

fn rules() -> Result<Vec<Value>> {
    let groups = yaml("deploy/prometheus/rules.yml")?;
    let groups = groups["groups"].as_array().cloned().unwrap_or_default();
    Ok(groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn promtool_reads_the_rules_and_every_case_of_theirs_holds() -> Result<()> {
    for args in
        [["check", "config", "prometheus.yml"], ["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]]
    {
        let (ok, said) = promtool(&args, "")?;
        assert!(ok, "promtool {}: {said}", args.join(" "));
    }
    Ok(())
}

#[test]
fn every_alert_has_a_case_that_fires_one_that_does_not_and_a_runbook() -> Result<()> {
    let cases = yaml("deploy/prometheus/rules_test.yml")?;
    let mut fires: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
    for case in cases["tests"].as_array().into_iter().flatten() {
        for expected in case["alert_rule_test"].as_array().into_iter().flatten() {
            let some = expected["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
            fires.entry(text(&expected["alertname"])).or_default().insert(some);
        }
    }
    for rule in &rules()? {
        let name = text(&rule["alert"]);
        let annotations = &rule["annotations"];
        assert_eq!(fires.get(name), Some(&BTreeSet::from([true, false])), "cases of {name}");
        assert!(["critical", "warning"].contains(&text(&rule["labels"]["severity"])), "severity of {name}");
        assert!(!text(&annotations["summary"]).is_empty() && !text(&annotations["description"]).is_empty(), "{name}");
        let runbook = text(&annotations["runbook_url"]);
        assert!(runbook.starts_with("docs/runbooks/") && runbook.ends_with(".md"), "{name}: {runbook}");
        assert!(read(runbook)?.contains(name), "{runbook} does not name {name}");
    }
    Ok(())
}

/// The part of an expression that speaks of a class, up to the next one.
fn about(expr: &str, class: Class) -> Option<&str> {
    let marker = format!("class=\"{}\"", class.as_str());
    let from = expr.find(&marker)? + marker.len();
    Some(expr[from..].split("class=").next().unwrap_or_default())
}

fn number_after(text: &str, marker: &str) -> Option<u64> {
    text.split_once(marker)?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn thresholds_are_the_promises_of_the_classes() -> Result<()> {
    let (rules, classes) = (rules()?, Config::default().classes);
    for &class in Class::ALL {
        let policy = classes.of(class);
        for name in ["SendonceUnknownOldest", "SendonceOldestUndecided"] {
            let mut exprs = rules.iter().filter(|rule| rule["alert"] == name).map(|rule| text(&rule["expr"]));
            let threshold = exprs.find_map(|expr| about(expr, class)).and_then(|part| number_after(part, "> "));
            assert_eq!(threshold, Some(policy.unknown_sla.as_secs()), "{name} {class}");
        }
        let silence = rules
            .iter()
            .find(|rule| rule["alert"] == "SendonceReceiptSilence" && rule["labels"]["class"] == class.as_str())
            .map(|rule| text(&rule["expr"]));
        let expr = silence.unwrap_or_default();
        let window = |marker: &str| -> Option<u64> {
            let after = expr.split_once(marker)?.1;
            let digits = number_after(expr, marker)?;
            let unit = after.trim_start_matches(|c: char| c.is_ascii_digit()).chars().next()?;
            Some(digits * if unit == 'h' { 3600 } else { 60 })
        };
        let (offset, range, age) = (window("offset "), window("}["), number_after(expr, "> "));
        assert_eq!(offset, Some(policy.silent_after.as_secs()), "{class}: what is counted has waited for silent_after");
        assert_eq!(
            age,
            offset.zip(range).map(|(offset, range)| offset + range),
            "{class}: silent since before what is counted"
        );
    }
    Ok(())
}

#[test]
fn every_worker_is_scraped_and_missed() -> Result<()> {
    let config = yaml("deploy/prometheus/prometheus.yml")?;
    let jobs: BTreeSet<String> = config["scrape_configs"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|job| text(&job["job_name"]).to_owned())
        .collect();
    assert_eq!(jobs, workers()?);
    let rules = rules()?;
    let absent = rules.iter().find(|rule| rule["alert"] == "SendonceWorkerAbsent").map(|rule| text(&rule["expr"]));
    let absent = absent.unwrap_or_default();
    let listed = absent.split_once("up{job=~\"").and_then(|(_, rest)| rest.split_once('"')).map(|(list, _)| list);
    assert_eq!(listed.unwrap_or_default().split('|').map(str::to_owned).collect::<BTreeSet<_>>(), jobs);
    for job in &jobs {
        assert!(absent.contains(&format!("absent(up{{job=\"{job}\"}})")), "{job}");
    }
    Ok(())
}

/// Metric names of ours in an expression, with the labels that it selects or groups by.
fn selected(expr: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in expr.match_indices("sendonce_") {
        let name: String = expr[at..].chars().take_while(|c| is_name(*c)).collect();
        let rest = &expr[at + name.len()..];
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let mut labels: Vec<String> =
            inside.split(',').filter_map(|m| m.split(['=', '!']).next()).map(|l| l.trim().to_owned()).collect();
        for grouped in expr.match_indices("by (").filter_map(|(at, by)| expr[at + by.len()..].split(')').next()) {
            labels.push(grouped.trim().to_owned());
        }
        // Prometheus adds these itself.
        labels.retain(|label| !["", "job", "instance"].contains(&label.as_str()));
        found.push((name, labels));
    }
    found
}

/// OpenMetrics names a counter without `_total` where the older text format, which promtool lints, names it with.
fn older_format(page: &str) -> String {
    let counters: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let rename = |line: &str| {
        let mut parts = line.splitn(4, ' ');
        let (hash, kind, name) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
        match (hash, kind) {
            (Some("#"), Some("TYPE" | "HELP")) if counters.contains(&name) => {
                line.replacen(name, &format!("{name}_total"), 1)
            }
            _ => line.to_owned(),
        }
    };
    page.lines().filter(|line| *line != "# EOF").map(|line| rename(line) + "\n").collect()
}

#[tokio::test]
async fn every_metric_of_a_rule_is_one_that_the_fleet_shows() -> Result<()> {
    let world = World::start("rules", |options| options).await?;
    publish(&world.fleet.amqp_url(), &[Event::sms("E1", &["+919812345601"], "Shown").outgoing()]).await?;
    world.reach("delivered", 1).await;
    eventually("the readings follow", async || {
        let (_, page) = world.fleet.admin(Role::Reconciler, 0, "/metrics").await?;
        let age =
            page.lines().find_map(|line| line.strip_prefix("sendonce_last_receipt_age_seconds{account=\"sgc-main\"} "));
        let age: f64 = age.unwrap_or("-1").parse()?;
        ensure!((0.0..60.0).contains(&age), "{page}");
        Ok(())
    })
    .await;
    let mut shown: Vec<String> = Vec::new();
    for role in Role::ALL {
        let (_, page) = world.fleet.admin(role, 0, "/metrics").await?;
        for info in ["sendonce_build_info{version=\"", "sendonce_config_info{hash=\""] {
            assert!(page.contains(info), "{}: {page}", role.binary());
        }
        let (ok, said) = promtool(&["check", "metrics"], &older_format(&page))?;
        assert!(ok, "{}: {said}", role.binary());
        shown.extend(page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned));
    }
    for rule in &rules()? {
        for (name, labels) in selected(text(&rule["expr"])) {
            let fits = |line: &&String| {
                line.split(['{', ' ']).next() == Some(&name)
                    && labels.iter().all(|label| line.contains(&format!("{label}=\"")))
            };
            assert!(shown.iter().any(|line| fits(&line)), "{}: nobody shows {name} with {labels:?}", rule["alert"]);
        }
    }
    world.end().await
}
