//! docs/configuration.md: its keys are those that a process takes, and its defaults are those that it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use secrecy::ExposeSecret;
use sendonce_core::config::{Config, ConfigError, load};

use crate::{cells, quoted, read};

/// What has no default, so that the rest can be looked at.
const REQUIRED: &str = r#"
[tenants.NAME]
default_region = "IN"
accounts = { sms = "NAME" }
[accounts.NAME]
dialect = "smsgatewaycenter"
channel = "sms"
base_url = "https://provider.example"
password = "secret"
"#;

/// Key to default, as the page has them: by section.
type Documented = BTreeMap<String, BTreeMap<String, String>>;

fn documented() -> Documented {
    let (mut sections, mut columns) = (Documented::new(), Vec::<String>::new());
    for line in read("docs/configuration.md").lines() {
        if line.starts_with('#') {
            // One table may serve several sections, a column each.
            columns = quoted(line).map(|name| name.trim_matches(['[', ']']).to_owned()).collect();
        } else if let Some(cells) = cells(line)
            && let Some(key) = quoted(cells[0]).next()
        {
            for (section, default) in columns.iter().zip(&cells[1..]) {
                let default = quoted(default).next().unwrap_or(default);
                sections.entry(section.clone()).or_default().insert(key.to_owned(), default.to_owned());
            }
        }
    }
    sections
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("configuration-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{:?}.toml", std::thread::current().id()));
    fs::write(&file, text).unwrap();
    let loaded = load(Some(&file));
    fs::remove_file(&file).unwrap();
    Ok(loaded?.config)
}

/// The keys that a section takes, from the refusal of one that it does not.
fn keys_of(section: &str) -> BTreeSet<String> {
    let mut text = toml(&BTreeMap::new());
    let header = format!("[{section}]");
    match text.find(&header).map(|at| at + header.len()) {
        _ if section.is_empty() => text.insert_str(0, "no_such_key = 1\n"),
        Some(end) => text.insert_str(end, "\nno_such_key = 1"),
        None => write!(text, "\n{header}\nno_such_key = 1\n").unwrap(),
    }
    let refusal = parse(&text).unwrap_err().to_string();
    let (_, expected) =
        refusal.split_once("`no_such_key`, expected ").unwrap_or_else(|| panic!("{section}: {refusal}"));
    quoted(expected.split(';').next().unwrap().split(" for key ").next().unwrap()).map(str::to_owned).collect()
}

/// What is required, and these defaults beside it.
fn toml(defaults: &Documented) -> String {
    let mut text = String::new();
    for (section, keys) in
        defaults.iter().filter(|(section, _)| !["tenants.NAME", "accounts.NAME"].contains(&section.as_str()))
    {
        writeln!(text, "[{section}]").unwrap();
        text.push_str(&lines(keys));
    }
    let mut required = REQUIRED.to_owned();
    for section in ["tenants.NAME", "accounts.NAME"] {
        let header = format!("[{section}]\n");
        required =
            required.replace(&header, &format!("{header}{}", defaults.get(section).map(lines).unwrap_or_default()));
    }
    required + &text
}

fn lines(keys: &BTreeMap<String, String>) -> String {
    keys.iter().filter(|(_, default)| has_value(default)).map(|(key, default)| format!("{key} = {default}\n")).collect()
}

fn has_value(default: &str) -> bool {
    !["required", "none", "table"].contains(&default)
}

#[test]
fn configuration_md_names_every_key_and_no_other() {
    let documented = documented();
    for (section, keys) in &documented {
        let named: BTreeSet<String> = keys.keys().cloned().collect();
        assert_eq!(named, keys_of(section), "[{section}]");
    }
    let mut tables: BTreeSet<String> = documented.keys().cloned().collect();
    for (section, keys) in &documented {
        for (key, _) in keys.iter().filter(|(_, default)| *default == "table") {
            assert!(tables.remove(&format!("{section}.{key}")), "[{section}.{key}] has no table");
        }
    }
    let tops: BTreeSet<String> = tables.iter().map(|name| name.split('.').next().unwrap().to_owned()).collect();
    assert_eq!(tops, keys_of(""), "the sections");
    assert_eq!(
        keys_of("classes"),
        tables.iter().filter_map(|name| name.strip_prefix("classes.").map(str::to_owned)).collect()
    );
}

#[test]
fn configuration_md_gives_the_defaults() {
    let documented = documented();
    let (bare, stated) = (parse(REQUIRED).unwrap(), parse(&toml(&documented)).unwrap());
    let (said, is) = (format!("{stated:#?}"), format!("{bare:#?}"));
    let wrong: Vec<(&str, &str)> = said.lines().zip(is.lines()).filter(|(said, is)| said != is).collect();
    assert!(said == is, "the page says, and is: {wrong:#?}");
    // Debug hides these.
    for (stated, bare) in [
        (&stated.database.url, &bare.database.url),
        (&stated.broker.url, &bare.broker.url),
        (&stated.redis.url, &bare.redis.url),
    ] {
        assert_eq!(stated.expose_secret(), bare.expose_secret());
    }
    let values: usize = documented.values().flat_map(BTreeMap::values).filter(|default| has_value(default)).count();
    assert!(values > 60, "only {values} defaults were found");
}
