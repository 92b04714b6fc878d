//! compose.yaml: its shape by the specification's schema, its references and commands by the real files and binaries.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use sendonce_devstack::binary;
use serde_json::{Map, Value};

use crate::{binaries, read, run, tools, top, words, workers, yaml};

const CONFIG: &str = "deploy/compose/sendonce.toml";
const SECRETS: &str = "/run/secrets/";

fn compose() -> Result<Value> {
    yaml("compose.yaml")
}

fn services(compose: &Value) -> &Map<String, Value> {
    compose["services"].as_object().unwrap()
}

/// The configuration as the containers read it, with the secrets of the trial. Belongs to one test.
fn configuration(test: &str) -> Result<PathBuf> {
    let secrets = top().join("deploy/compose/secrets");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("compose-{test}-{}.toml", std::process::id()));
    std::fs::write(&path, read(CONFIG)?.replace(SECRETS, &format!("{}/", secrets.display())))?;
    Ok(path)
}

#[test]
fn compose_keeps_to_the_specification() -> Result<()> {
    let fetched = tools().join("python");
    let mut command = if fetched.join("check_jsonschema").is_dir() {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", fetched).args(["-m", "check_jsonschema"]);
        python
    } else {
        Command::new("check-jsonschema")
    };
    command.args(["--builtin-schema", "vendor.compose-spec", "compose.yaml"]).current_dir(top());
    match run(&mut command, "") {
        Ok((ok, said)) => assert!(ok, "{said}"),
        // Python is no requirement of this repository: the other tests of this file still hold.
        Err(error) => println!("UNCHECKED: the schema of compose.yaml, for want of check-jsonschema ({error})"),
    }
    Ok(())
}

#[test]
fn every_worker_and_the_simulator_is_a_service_with_a_health_check_of_its_own() -> Result<()> {
    let (compose, config) = (compose()?, configuration("health")?);
    let built = binaries()?;
    for name in workers()?.iter().map(String::as_str).chain(["provider-sim"]) {
        let service = services(&compose).get(name).with_context(|| format!("no service {name}"))?;
        let command = words(&service["command"]);
        assert_eq!(command.first(), Some(&name));
        let test = words(&service["healthcheck"]["test"]);
        assert_eq!(test[..3], ["CMD", name, "healthcheck"], "without a shell");
        assert!(built.contains_key(test[1]), "{name}");
        // Nobody is there to answer: a refused connection shows that the arguments were understood.
        let path = config.display().to_string();
        let args = test[2..].iter().map(|arg| match *arg {
            "/etc/sendonce/sendonce.toml" => path.as_str(),
            "127.0.0.1:8090" => "127.0.0.1:1",
            arg => arg,
        });
        let mut asked = Command::new(binary(name)?);
        let (ok, said) = run(asked.args(args).env("SENDONCE_ADMIN__LISTEN", "127.0.0.1:1"), "")?;
        assert!(!ok && said.contains("refused"), "{name}: {said}");
    }
    std::fs::remove_file(config)?;
    Ok(())
}

#[test]
fn every_command_of_ours_is_understood() -> Result<()> {
    let compose = compose()?;
    let built = binaries()?;
    let mut seen = 0;
    for (name, service) in services(&compose).iter().filter(|(_, service)| service["image"] == "sendonce") {
        let mut line = words(&service["entrypoint"]);
        line.extend(words(&service["command"]));
        assert!(built.contains_key(line[0]), "{name}: no binary {}", line[0]);
        let (ok, said) = run(Command::new(binary(line[0])?).args(&line[1..]).arg("--help"), "")?;
        assert!(ok, "{name}: {said}");
        seen += 1;
    }
    assert!(seen >= 7, "{seen}");
    Ok(())
}

#[test]
fn the_configuration_of_compose_is_consistent_for_every_worker() -> Result<()> {
    let config = configuration("check")?;
    for name in workers()? {
        let mut check = Command::new(binary(&name)?);
        let (ok, said) = run(check.arg("--config").arg(&config).arg("--check-config"), "")?;
        assert!(ok && said.contains("consistent"), "{name}: {said}");
    }
    std::fs::remove_file(config)?;
    Ok(())
}

/// Names of a service's `secrets` or `configs`, which may be written short or long.
fn sources(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(|one| one.as_str().or_else(|| one["source"].as_str())).collect()
}

#[test]
fn files_services_and_ports_that_compose_names_exist() -> Result<()> {
    let compose = compose()?;
    let config = read(CONFIG)?;
    for kind in ["configs", "secrets"] {
        for (name, file) in compose[kind].as_object().unwrap() {
            assert!(top().join(file["file"].as_str().unwrap()).is_file(), "{kind} {name}");
        }
    }
    for (name, service) in services(&compose) {
        for kind in ["configs", "secrets"] {
            for source in sources(&service[kind]) {
                assert!(compose[kind].get(source).is_some(), "{name}: {kind} {source}");
            }
        }
        for needed in service["depends_on"].as_object().into_iter().flat_map(|needs| needs.keys()) {
            assert!(services(&compose).contains_key(needed), "{name} needs {needed}");
        }
    }
    let mounted = sources(&services(&compose)["ingest"]["secrets"]);
    for (_, rest) in config.match_indices(SECRETS).map(|(at, prefix)| config.split_at(at + prefix.len())) {
        let secret = rest.split('"').next().unwrap_or_default();
        assert!(mounted.contains(secret), "the workers are not given {secret}");
    }
    for host in ["provider-sim:8080", "redis:6379"] {
        assert!(config.contains(host) && services(&compose).contains_key(host.split(':').next().unwrap()));
    }
    Ok(())
}

#[test]
fn the_secrets_of_the_trial_agree_with_each_other() -> Result<()> {
    let secret = |name: &str| Ok::<_, anyhow::Error>(read(format!("deploy/compose/secrets/{name}"))?.trim().to_owned());
    assert!(secret("owner_database_url")?.contains(&format!(":{}@postgres:", secret("owner_password")?)));
    assert!(secret("database_url")?.contains(&format!("sendonce_worker:{}@postgres:", secret("worker_password")?)));
    let compose = compose()?;
    let push = words(&services(&compose)["provider-sim"]["command"]).join(" ");
    assert!(push.contains(&format!("/v1/receipts/sgc-main/{}", secret("receipt_secrets")?)), "{push}");
    Ok(())
}

#[test]
fn our_containers_are_not_privileged_and_outlive_their_drain() -> Result<()> {
    let compose = compose()?;
    let drain = sendonce_core::config::Config::default().budgets.drain;
    let workers = workers()?;
    for (name, service) in services(&compose).iter().filter(|(_, service)| service["image"] == "sendonce") {
        assert!(service.get("user").is_none() && service.get("privileged").is_none(), "{name}");
        assert_eq!((&service["read_only"], words(&service["cap_drop"])), (&Value::Bool(true), vec!["ALL"]), "{name}");
        if workers.contains(name) {
            let grace = service["stop_grace_period"].as_str().and_then(|text| text.strip_suffix('s')?.parse().ok());
            assert!(grace.is_some_and(|grace: u64| grace > drain.as_secs()), "{name}");
        }
    }
    assert!(services(&compose)["reconciler"]["deploy"]["replicas"].as_u64() >= Some(2));
    Ok(())
}
