//! The Dockerfile, read as far as it can be without an engine.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::{binaries, read, top};

/// Instructions with their continuation lines joined.
fn instructions(dockerfile: &str) -> Vec<Vec<String>> {
    let kept: Vec<&str> = dockerfile.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    kept.join("\n")
        .replace("\\\n", " ")
        .lines()
        .map(|line| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter(|words: &Vec<String>| !words.is_empty())
        .collect()
}

#[test]
fn the_image_holds_every_binary_of_the_fleet_and_only_those() -> Result<()> {
    let all = instructions(&read("Dockerfile")?);
    let build = all.iter().find(|words| words.iter().any(|word| word == "build") && words[0] == "RUN").unwrap();
    for flag in ["--release", "--locked", "--workspace", "--bins"] {
        assert!(build.iter().any(|word| word == flag), "{flag}");
    }
    let after = build.iter().position(|word| word.starts_with("--target-directory=")).unwrap() + 1;
    let installed: BTreeSet<&str> = build[after..].iter().map(String::as_str).collect();
    // Starts servers for the demo and the tests; a container has no use for it.
    let built = binaries()?;
    let wanted: BTreeSet<&str> = built.keys().map(String::as_str).filter(|name| *name != "sendonce-devstack").collect();
    assert_eq!(installed, wanted);
    Ok(())
}

#[test]
fn what_the_image_copies_exists_and_reaches_the_builder() -> Result<()> {
    let ignored = read(".dockerignore")?;
    assert!(ignored.lines().any(|line| line == "*"), "all is left out but what is named");
    let mut copied = Vec::new();
    for words in instructions(&read("Dockerfile")?).iter().filter(|words| words[0] == "COPY") {
        if words[1].starts_with("--from=") {
            continue;
        }
        copied.extend(words[1..words.len() - 1].to_vec());
    }
    for source in &copied {
        assert!(top().join(source).exists(), "{source}");
        assert!(ignored.lines().any(|line| line == format!("!{source}")), "{source} does not reach the builder");
    }
    // What the manifest names must be there, or --locked fails.
    for member in ["Cargo.toml", "Cargo.lock", "crates", "tests", "migrations"] {
        assert!(copied.iter().any(|source| source == member), "{member}");
    }
    Ok(())
}

#[test]
fn the_image_is_multi_stage_and_does_not_run_as_root() -> Result<()> {
    let all = instructions(&read("Dockerfile")?);
    let stages: Vec<usize> = (0..all.len()).filter(|at| all[*at][0] == "FROM").collect();
    assert!(stages.len() > 1);
    let last = &all[stages[stages.len() - 1]..];
    let user = last.iter().rfind(|words| words[0] == "USER").map(|words| words[1].as_str());
    let number = user.and_then(|user| user.split(':').next()).and_then(|user| user.parse::<u32>().ok());
    assert!(number.is_some_and(|number| number > 0), "{user:?}");
    assert!(!last.iter().any(|words| words[0] == "RUN"), "the last stage has no shell");
    Ok(())
}
