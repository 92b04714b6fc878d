//! Runbooks and the page for operations: every command in them exists, every alert is listed.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::Result;
use sendonce_devstack::binary;

use crate::{binaries, read, run, top, yaml};

fn pages() -> Result<Vec<String>> {
    let mut pages = vec!["docs/operations.md".to_owned()];
    for entry in std::fs::read_dir(top().join("docs/runbooks"))? {
        pages.push(format!("docs/runbooks/{}", entry?.file_name().to_string_lossy()));
    }
    Ok(pages)
}

/// Lines of indented or fenced blocks that begin with one of our binaries.
fn commands(page: &str, ours: &BTreeSet<String>) -> Vec<Vec<String>> {
    page.lines()
        .filter(|line| line.starts_with("    "))
        .map(|line| line.split('#').next().unwrap_or_default())
        .map(|line| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter(|words| words.first().is_some_and(|first| ours.contains(first)))
        .collect()
}

#[test]
fn every_command_that_a_page_for_operations_names_exists() -> Result<()> {
    let ours: BTreeSet<String> = binaries()?.into_keys().collect();
    let mut seen = 0;
    for page in pages()? {
        for words in commands(&read(&page)?, &ours) {
            // Subcommands are lower case, what is to be filled in is not.
            let subcommands = words[1..].iter().take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
            let (ok, help) = run(Command::new(binary(&words[0])?).args(subcommands).arg("--help"), "")?;
            assert!(ok, "{page}: {}: {help}", words.join(" "));
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                assert!(help.contains(flag.as_str()), "{page}: {} has no {flag}", words.join(" "));
            }
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
    Ok(())
}

#[test]
fn the_page_for_operations_leads_from_every_alert_to_its_runbook() -> Result<()> {
    let page = read("docs/operations.md")?;
    let rules = yaml("deploy/prometheus/rules.yml")?;
    let mut runbooks = BTreeSet::new();
    for rule in rules["groups"].as_array().into_iter().flatten().flat_map(|group| group["rules"].as_array().unwrap()) {
        let (alert, runbook) = (rule["alert"].as_str().unwrap(), rule["annotations"]["runbook_url"].as_str().unwrap());
        let link = runbook.trim_start_matches("docs/");
        let line = page.lines().find(|line| line.contains(&format!("`{alert}`")));
        assert!(line.is_some_and(|line| line.contains(&format!("({link})"))), "{alert}");
        runbooks.insert(runbook.to_owned());
    }
    let written: BTreeSet<String> = pages()?.into_iter().filter(|page| page.starts_with("docs/runbooks/")).collect();
    assert_eq!(runbooks, written, "a runbook for each alert and an alert for each runbook");
    Ok(())
}
