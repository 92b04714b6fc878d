//! Reading the configuration: defaults, then one file, then `SENDONCE_SECTION__KEY` from the environment. A key that ends
//! in `_file` names a file whose trimmed content becomes the key without the ending; `secrets_file` holds one a line.

use std::path::{Path, PathBuf};

use config::{Environment, File, FileFormat};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Config, Problem};

/// A configuration that passed every check.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Config,
    /// First 12 hex digits of the file's SHA-256: a fleet whose members differ is seen at a glance.
    pub hash: String,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot read the secret of `{key}` from {path}: {source}")]
    Secret { key: String, path: PathBuf, source: std::io::Error },
    #[error("the configuration does not parse: {0}")]
    Parse(String),
    #[error("the configuration contradicts itself:\n{}", list(.0))]
    Contradictory(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("  - {p}")).collect::<Vec<_>>().join("\n")
}

/// Loads and checks the configuration; `path` may be absent when the environment says everything.
///
/// # Errors
/// A file that cannot be read, a key that does not exist (with the nearest one that does), a value of the wrong kind, or
/// sections that contradict each other.
pub fn load(path: Option<&Path>) -> Result<Loaded, ConfigError> {
    let text = match path {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.to_owned(), source })?
        }
        None => String::new(),
    };
    let environment = Environment::with_prefix("SENDONCE").prefix_separator("_").separator("__");
    let config = parse(&text, environment)?;
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(ConfigError::Contradictory(problems));
    }
    let digest = Sha256::digest(text.as_bytes());
    let hash = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Ok(Loaded { config, hash })
}

fn parse(text: &str, environment: Environment) -> Result<Config, ConfigError> {
    let merged = config::Config::builder()
        .add_source(File::from_str(text, FileFormat::Toml))
        .add_source(environment)
        .build()
        .map_err(|error| ConfigError::Parse(error.to_string()))?;
    let mut tree: Value = merged.try_deserialize().map_err(|error| ConfigError::Parse(error.to_string()))?;
    read_secret_files(&mut tree, "")?;
    // Through `config` once more, since it reads "8" from the environment where a number is due.
    let typed = config::Config::try_from(&tree).map_err(|error| ConfigError::Parse(error.to_string()))?;
    serde_path_to_error::deserialize(typed).map_err(|error| ConfigError::Parse(explain(&error)))
}

fn read_secret_files(tree: &mut Value, at: &str) -> Result<(), ConfigError> {
    let Value::Object(table) = tree else { return Ok(()) };
    let names: Vec<String> = table.keys().filter(|key| key.ends_with("_file")).cloned().collect();
    for name in names {
        let Some(Value::String(path)) = table.remove(&name) else { continue };
        let stem = name.trim_end_matches("_file").to_owned();
        let path = PathBuf::from(path);
        let secret = std::fs::read_to_string(&path).map_err(|source| ConfigError::Secret {
            key: format!("{at}{name}"),
            path,
            source,
        })?;
        let value = match stem.as_str() {
            "secrets" => secret.split_whitespace().map(str::to_owned).collect(),
            _ => Value::String(secret.trim().to_owned()),
        };
        table.insert(stem, value);
    }
    for (key, child) in table.iter_mut() {
        read_secret_files(child, &format!("{at}{key}."))?;
    }
    Ok(())
}

/// Adds the nearest existing key to "unknown field".
fn explain(error: &serde_path_to_error::Error<config::ConfigError>) -> String {
    let text = error.inner().to_string();
    let place = error.path().to_string();
    let mut words = text.split('`').skip(1).step_by(2);
    let hint = words.next().filter(|_| text.contains("unknown field")).and_then(|found| {
        let score = |name: &str| strsim::jaro_winkler(found, name);
        words.max_by(|a, b| score(a).total_cmp(&score(b))).filter(|best| score(best) > 0.7)
    });
    let hint = hint.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    if place == "." { format!("{text}{hint}") } else { format!("at `{place}`: {text}{hint}") }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use secrecy::ExposeSecret;

    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let map: HashMap<String, String> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Environment::with_prefix("SENDONCE").prefix_separator("_").separator("__").source(Some(map))
    }

    #[test]
    fn environment_beats_file_beats_defaults() {
        let text = "[budgets]\nhttp = \"20s\"\nlease = \"50s\"\n[sender]\nslots = 7\n";
        let config = parse(text, environment(&[("SENDONCE_SENDER__SLOTS", "9")])).unwrap();
        assert_eq!(config.budgets.http, Duration::from_secs(20));
        assert_eq!(config.sender.slots, 9);
        assert_eq!(config.budgets.connect, Duration::from_secs(5));
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_one() {
        let error = parse("[budgets]\nhtp = \"20s\"\n", environment(&[])).unwrap_err().to_string();
        assert!(error.contains("unknown field `htp`") && error.contains("did you mean `http`?"), "{error}");
        let error = parse("[budget]\nhttp = \"20s\"\n", environment(&[])).unwrap_err().to_string();
        assert!(error.contains("did you mean `budgets`?"), "{error}");
    }

    #[test]
    fn i11_secrets_come_from_files_and_never_print() {
        let path = std::env::temp_dir().join(format!("sendonce-secret-{}", std::process::id()));
        std::fs::write(&path, "amqp://user:hunter2@host/v\n").unwrap();
        let config = parse("", environment(&[("SENDONCE_BROKER__URL_FILE", path.to_str().unwrap())])).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(config.broker.url.expose_secret(), "amqp://user:hunter2@host/v");
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn i17_both_secrets_of_a_rotation_come_from_one_file() {
        let path = std::env::temp_dir().join(format!("sendonce-secrets-{}", std::process::id()));
        std::fs::write(&path, "old-secret\n\nnew-secret\n").unwrap();
        let text = format!(
            "[accounts.main]\ndialect = \"smsgatewaycenter\"\nchannel = \"sms\"\nbase_url = \"http://p\"\n
             [accounts.main.receipts]\nsecrets_file = \"{}\"\n",
            path.display()
        );
        let config = parse(&text, environment(&[])).unwrap();
        std::fs::remove_file(&path).unwrap();
        let secrets = config.accounts["main"].receipts.secrets.iter().map(ExposeSecret::expose_secret);
        assert_eq!(secrets.collect::<Vec<_>>(), ["old-secret", "new-secret"]);
    }
}
