//! README and the pages: excerpts are what the files say, links lead somewhere, the map names everything there is.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::{files, quoted, read, root};

/// A fenced block under a comment that says where it comes from.
struct Excerpt {
    source: String,
    text: String,
}

fn excerpts(page: &str) -> Vec<Excerpt> {
    let (mut found, mut lines) = (Vec::new(), page.lines().peekable());
    while let Some(line) = lines.next() {
        let Some(source) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        if lines.next_if(|next| next.starts_with("```")).is_some() {
            let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            found.push(Excerpt { source: source.to_owned(), text: block.join("\n") });
        }
    }
    found
}

/// The lines under `<!-- source -->` in README.
pub fn excerpt(source: &str) -> String {
    let all = excerpts(&read("README.md"));
    let found = all.into_iter().find(|one| one.source == source);
    found.unwrap_or_else(|| panic!("README.md shows no {source}")).text
}

#[test]
fn readme_shows_its_examples_as_they_are() {
    let shown = excerpts(&read("README.md"));
    for Excerpt { source, text } in shown.iter().filter(|one| one.source.starts_with("docs/")) {
        assert!(!text.trim().is_empty(), "an empty excerpt of {source}");
        assert!(read(source).contains(text.as_str()), "{source} does not say:\n{text}");
    }
    for file in files("docs/examples", "") {
        let name = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        assert!(shown.iter().any(|one| one.source == name), "README.md shows nothing of {name}");
    }
}

/// README and everything under docs.
fn pages() -> Vec<PathBuf> {
    let mut pages = files("docs", ".md");
    pages.push(root().join("README.md"));
    pages
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap();
            if !target.contains("://") && !path.is_empty() && !page.parent().unwrap().join(path).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Paths go stale where files move; decisions and runbooks may speak of what was.
#[test]
fn paths_named_in_the_docs_exist() {
    const TOPS: [&str; 6] = ["crates/", "tests/", "migrations/", "docs/", "deploy/", "target/debug/"];
    let mut missing = Vec::new();
    for page in
        pages().into_iter().filter(|page| page.parent().unwrap().ends_with("docs") || page.ends_with("README.md"))
    {
        let text = fs::read_to_string(&page).unwrap();
        for path in text.lines().flat_map(quoted).filter(|word| TOPS[..5].iter().any(|top| word.starts_with(top))) {
            if !root().join(path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_map_names_every_crate_and_every_table() {
    let map = read("docs/architecture.md");
    let named: BTreeSet<&str> = map.lines().flat_map(quoted).collect();
    let crates = fs::read_dir(root().join("crates")).unwrap();
    for name in crates.map(|entry| entry.unwrap().path()).filter(|path| path.join("Cargo.toml").exists()) {
        let name = format!("crates/{}", name.file_name().unwrap().to_string_lossy());
        assert!(named.contains(name.as_str()), "docs/architecture.md does not name {name}");
    }
    for file in files("migrations", ".sql") {
        for line in fs::read_to_string(&file).unwrap().lines() {
            if let Some(table) = line.strip_prefix("create table ").and_then(|rest| rest.split([' ', '(']).next()) {
                assert!(named.contains(table), "docs/architecture.md does not name the table {table}");
            }
        }
    }
}
