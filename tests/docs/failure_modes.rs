//! docs/failure-modes.md: every row names the test that shows it, and every transport test has its row.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use sendonce_core::domain::outcome::{Ambiguity, NotSent};

use crate::{cells, files, quoted, read};

const PAGE: &str = "docs/failure-modes.md";

/// The test functions of a file's text.
fn tests_in(text: &str) -> Vec<&str> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        let after_fn = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        match after_fn.and_then(|rest| rest.split(['(', '<']).next()) {
            Some(name) if is_test => found.push(name),
            Some(_) | None => {}
        }
        is_test =
            line.starts_with("#[test]") || line.starts_with("#[tokio::test") || (is_test && line.starts_with('#'));
    }
    found
}

fn tests_below(folders: &[&str]) -> BTreeSet<String> {
    let sources = folders.iter().flat_map(|folder| files(folder, ".rs"));
    let texts = sources.map(|path| fs::read_to_string(path).unwrap());
    texts.flat_map(|text| tests_in(&text).into_iter().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// By row: the verdict, and the tests of its last cell. Only tables whose last column is `shown by`.
fn rows() -> BTreeMap<String, (String, Vec<String>)> {
    let (mut rows, mut counts) = (BTreeMap::new(), false);
    for line in read(PAGE).lines() {
        let Some(cells) = cells(line) else {
            counts &= line.starts_with('|');
            continue;
        };
        let (what, last) = (cells[0], cells[cells.len() - 1]);
        if last == "shown by" {
            counts = true;
        } else if counts {
            let tests = quoted(last).map(str::to_owned).collect();
            rows.insert(what.to_owned(), (cells[1].to_owned(), tests));
        }
    }
    rows
}

#[test]
fn every_failure_mode_names_a_test_that_exists() {
    let known = tests_below(&["crates", "tests"]);
    let rows = rows();
    assert!(rows.len() > 40, "only {} rows were found", rows.len());
    for (what, (_, tests)) in rows {
        assert!(!tests.is_empty(), "no test shows: {what}");
        for test in tests {
            assert!(known.contains(&test), "{what}: there is no test {test}");
        }
    }
}

#[test]
fn every_transport_test_has_its_failure_mode() {
    let named: BTreeSet<String> = rows().into_values().flat_map(|(_, tests)| tests).collect();
    let missing: Vec<String> = tests_below(&["crates/providers/tests/transport"])
        .into_iter()
        .filter(|test| test.starts_with("i1_") || test.starts_with("i2_"))
        .filter(|test| !named.contains(test))
        .collect();
    assert!(missing.is_empty(), "{PAGE} has no row for {missing:?}");
}

/// The words that a submission is stored with.
#[test]
fn every_reason_of_a_verdict_is_explained() {
    let verdicts: Vec<String> = rows().into_values().map(|(verdict, _)| verdict).collect();
    let all = verdicts.join("\n");
    let words: BTreeSet<&str> = quoted(&all).collect();
    // Our own drain hands a row back before anything was tried.
    let not_sent = NotSent::ALL.iter().filter(|reason| **reason != NotSent::Drain).map(|reason| reason.as_str());
    for word in not_sent.chain(Ambiguity::ALL.iter().map(|reason| reason.as_str())) {
        assert!(words.contains(word), "{PAGE} gives no verdict `{word}`");
    }
}
