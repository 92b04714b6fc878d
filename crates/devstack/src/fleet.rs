//! A fleet on a stack: a vhost, a database and a folder of its own, one configuration file, the simulator and any number of
//! workers. The demo, the tests and the benchmark all run the real binaries through it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::handle::{RedisDb, StackHandle};
use crate::http::{call, encode};
use crate::migrate::binary;
use crate::net::{free_ports, wait_ready};
use crate::proc::{Child, Program, Spawner};

const START: Duration = Duration::from_secs(60);

/// A worker of the fleet, by the name of its binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Ingest,
    SmsSender,
    WhatsappSender,
    DlrIngester,
    Reconciler,
}

impl Role {
    /// In the order of the flow.
    pub const ALL: [Self; 5] =
        [Self::Ingest, Self::SmsSender, Self::WhatsappSender, Self::DlrIngester, Self::Reconciler];

    /// The binary.
    pub fn binary(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::SmsSender => "sms-sender",
            Self::WhatsappSender => "whatsapp-sender",
            Self::DlrIngester => "dlr-ingester",
            Self::Reconciler => "reconciler",
        }
    }
}

/// How a fleet is made.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// Names the vhost and the database; letters, digits and `_`.
    pub name: String,
    /// Where its files go.
    pub folder: PathBuf,
    /// Lines of TOML put after the base configuration; may open further tables.
    pub settings: Vec<(String, String)>,
    /// Arguments of the simulator.
    pub simulator: Vec<String>,
    pub redis: RedisChoice,
}

/// Where a fleet's hints come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisChoice {
    /// A database of its own on the stack's server.
    OfStack,
    /// Another server.
    At(String),
    /// No hints.
    None,
}

impl FleetOptions {
    /// A fleet called `name` with its files in `folder`.
    pub fn new(name: impl Into<String>, folder: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            folder: folder.into(),
            settings: Vec::new(),
            simulator: Vec::new(),
            redis: RedisChoice::OfStack,
        }
    }

    /// Overrides one setting, such as `sender.slots` with `4`.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Chooses where hints come from.
    #[must_use]
    pub fn redis(mut self, choice: RedisChoice) -> Self {
        self.redis = choice;
        self
    }

    /// Passes an argument to the simulator.
    #[must_use]
    pub fn simulator(mut self, argument: &str) -> Self {
        self.simulator.push(argument.to_owned());
        self
    }
}

/// A fleet; dropping it ends its processes.
#[derive(Debug)]
pub struct Fleet {
    pub stack: StackHandle,
    pub name: String,
    pub folder: PathBuf,
    settings: Vec<(String, String)>,
    simulator_args: Vec<String>,
    simulator_ports: [u16; 2],
    intake_port: u16,
    redis_url: String,
    /// Held as long as the fleet uses it.
    _redis: Option<RedisDb>,
    spawner: Spawner,
    simulator: Option<Child>,
    workers: BTreeMap<(Role, usize), Worker>,
}

#[derive(Debug)]
struct Worker {
    child: Child,
    admin_port: u16,
}

impl Fleet {
    /// Makes vhost, database, rates and configuration; starts nothing.
    pub async fn prepare(stack: &StackHandle, options: FleetOptions) -> Result<Self> {
        fs::create_dir_all(&options.folder)?;
        stack.create_vhost(&options.name).await?;
        stack.create_database(&options.name, stack.template.as_deref()).await?;
        stack.psql(&options.name, RATES).await?;
        let redis = if options.redis == RedisChoice::OfStack { Some(stack.claim_redis_db().await?) } else { None };
        let redis_url = match (&options.redis, &redis) {
            (RedisChoice::At(url), _) => url.clone(),
            (RedisChoice::OfStack | RedisChoice::None, claimed) => {
                claimed.as_ref().map(|db| db.url.clone()).unwrap_or_default()
            }
        };
        let [provider, control, intake] = free_ports()?;
        let fleet = Self {
            stack: stack.clone(),
            name: options.name,
            folder: options.folder,
            settings: options.settings,
            simulator_args: options.simulator,
            simulator_ports: [provider, control],
            intake_port: intake,
            redis_url,
            _redis: redis,
            spawner: Spawner::new()?,
            simulator: None,
            workers: BTreeMap::new(),
        };
        fs::write(fleet.config_path(), fleet.config())?;
        Ok(fleet)
    }

    /// Starts the simulator and one worker of each role, and waits until all are ready.
    pub async fn start(&mut self) -> Result<()> {
        self.start_simulator().await?;
        self.start_workers().await
    }

    /// Starts one worker of each role, and waits until all are ready: an ingest without partitions ahead waits for the
    /// reconciler.
    pub async fn start_workers(&mut self) -> Result<()> {
        for role in Role::ALL {
            self.spawn(role, 0)?;
        }
        for role in Role::ALL {
            self.wait_ready(role, 0).await?;
        }
        Ok(())
    }

    /// Starts the simulator; its ledger goes on where it was.
    pub async fn start_simulator(&mut self) -> Result<()> {
        let ready = self.folder.join("simulator.ready");
        if ready.exists() {
            fs::remove_file(&ready)?;
        }
        let [provider, control] = self.simulator_ports;
        let program = Program::new("provider-sim", binary("provider-sim")?)
            .args(["--listen".to_owned(), format!("127.0.0.1:{provider}")])
            .args(["--control".to_owned(), format!("127.0.0.1:{control}")])
            .args(["--push-url".to_owned(), self.intake_url()])
            .args(["--account", "wademo:secret"])
            .arg("--ledger")
            .arg(self.ledger_path())
            .arg("--ready-file")
            .arg(&ready)
            .args(self.simulator_args.iter().map(String::as_str))
            .log(self.folder.join("provider-sim.log"));
        let child = self.spawner.spawn(program)?;
        wait_ready(&child, START, async || ready.exists()).await?;
        self.simulator = Some(child);
        let push_url = self.receipts_url("sgc-wa");
        self.control("PUT", "/accounts/wademo", &serde_json::json!({ "push_url": push_url }).to_string()).await?;
        Ok(())
    }

    /// The simulator's process.
    pub fn simulator(&self) -> Result<&Child> {
        self.simulator.as_ref().context("the simulator is not started")
    }

    /// Starts a worker, or replica `number` of it; does not wait.
    pub fn spawn(&mut self, role: Role, number: usize) -> Result<()> {
        self.spawn_with(role, number, &[])
    }

    /// Starts a worker with settings of its own, such as `("SENDONCE_SENDER__SLOTS", "1")`.
    pub fn spawn_with(&mut self, role: Role, number: usize, env: &[(&str, &str)]) -> Result<()> {
        let [admin_port] = free_ports()?;
        let mut program = Program::new(role.binary(), binary(role.binary())?)
            .arg("--config")
            .arg(self.config_path())
            .env("SENDONCE_ADMIN__LISTEN", format!("127.0.0.1:{admin_port}"))
            .log(self.log_path(role, number));
        if number > 0 {
            // Only the first replica can have the fixed port that the simulator pushes to.
            program = program.env("SENDONCE_INTAKE__LISTEN", "127.0.0.1:0");
        }
        for (key, value) in env {
            program = program.env(*key, *value);
        }
        let child = self.spawner.spawn(program)?;
        self.workers.insert((role, number), Worker { child, admin_port });
        Ok(())
    }

    /// Waits until a worker says that it is ready.
    pub async fn wait_ready(&self, role: Role, number: usize) -> Result<()> {
        let worker = self.find(role, number)?;
        let ready = async || matches!(call(worker.admin_port, "GET", "/readyz", "").await, Ok(a) if a.status == 200);
        wait_ready(&worker.child, START, ready).await
    }

    /// A worker's process.
    pub fn worker(&self, role: Role, number: usize) -> Result<&Child> {
        Ok(&self.find(role, number)?.child)
    }

    /// A page of a worker's admin port.
    pub async fn admin(&self, role: Role, number: usize, path: &str) -> Result<(u16, String)> {
        let answer = call(self.find(role, number)?.admin_port, "GET", path, "").await?;
        Ok((answer.status, answer.body))
    }

    /// Where a worker's admin port listens.
    pub fn admin_address(&self, role: Role, number: usize) -> Result<String> {
        Ok(format!("127.0.0.1:{}", self.find(role, number)?.admin_port))
    }

    /// Processes by name, for figures.
    pub fn processes(&self) -> Vec<(String, u32)> {
        let workers = self.workers.iter().map(|((role, _), worker)| (role.binary().to_owned(), worker.child.pid()));
        let simulator = self.simulator.iter().map(|child| ("provider-sim".to_owned(), child.pid()));
        workers.chain(simulator).collect()
    }

    fn find(&self, role: Role, number: usize) -> Result<&Worker> {
        self.workers.get(&(role, number)).with_context(|| format!("{}-{number} is not started", role.binary()))
    }

    /// Asks every worker to drain and waits for their ends; returns those that did not end well.
    pub async fn drain(&mut self, patience: Duration) -> Result<Vec<String>> {
        let mut bad = Vec::new();
        for worker in self.workers.values() {
            worker.child.terminate()?;
        }
        for ((role, number), worker) in std::mem::take(&mut self.workers) {
            match worker.child.wait(patience).await {
                Ok(status) if status.success() => {}
                Ok(status) => bad.push(format!("{}-{number}: {status}", role.binary())),
                Err(error) => bad.push(format!("{}-{number}: {error:#}", role.binary())),
            }
        }
        Ok(bad)
    }

    /// Ends everything and removes vhost and database.
    pub async fn remove(mut self) -> Result<()> {
        self.workers.clear();
        self.simulator = None;
        self.stack.drop_database(&self.name).await?;
        self.stack.delete_vhost(&self.name).await
    }

    /// Changes the simulator's knobs (JSON merge) and returns what they are now.
    pub async fn turn(&self, knobs: &Value) -> Result<Value> {
        self.control("PATCH", "/control", &knobs.to_string()).await
    }

    /// The simulator's knobs as at its start.
    pub async fn heal(&self) -> Result<Value> {
        self.control("PUT", "/control", "{}").await
    }

    /// What the provider knows, from its own ledger.
    pub async fn ledger(&self) -> Result<Vec<Value>> {
        let entries = self.control("GET", "/ledger", "").await?;
        entries.as_array().cloned().context("the ledger is no array")
    }

    /// The ledger's totals.
    pub async fn ledger_summary(&self) -> Result<Value> {
        self.control("GET", "/ledger/summary", "").await
    }

    /// Sets the balance of a provider account.
    pub async fn set_balance(&self, userid: &str, balance: &str) -> Result<()> {
        let body = serde_json::json!({ "balance": balance }).to_string();
        self.control("PUT", &format!("/accounts/{userid}"), &body).await.map(drop)
    }

    /// Has the broker close every connection of this fleet; returns how many it closed. The broker lists a connection only
    /// after a while, so this waits until it lists some.
    pub async fn cut_broker_connections(&self) -> Result<usize> {
        let path = format!("/api/vhosts/{}/connections?columns=name", encode(&self.name));
        let deadline = Instant::now() + START;
        loop {
            let listed: Value = serde_json::from_str(&self.stack.manage("GET", &path, "").await?)?;
            let mut cut = 0;
            for name in listed.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()) {
                match self.stack.manage("DELETE", &format!("/api/connections/{}", encode(name)), "").await {
                    Ok(_) => cut += 1,
                    // One that ended by itself meanwhile is no failure.
                    Err(error) if error.to_string().contains("404") => {}
                    Err(error) => return Err(error),
                }
            }
            if cut > 0 {
                return Ok(cut);
            }
            ensure!(Instant::now() < deadline, "the broker lists no connection of {} within {START:?}", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn control(&self, method: &str, path: &str, body: &str) -> Result<Value> {
        let answer = call(self.simulator_ports[1], method, path, body).await?;
        if answer.status >= 300 {
            bail!("{method} {path}: the simulator answered {} {}", answer.status, answer.body);
        }
        Ok(serde_json::from_str(&answer.body)?)
    }

    pub fn config_path(&self) -> PathBuf {
        self.folder.join("sendonce.toml")
    }

    pub fn ledger_path(&self) -> PathBuf {
        self.folder.join("provider.jsonl")
    }

    pub fn log_path(&self, role: Role, number: usize) -> PathBuf {
        self.folder.join(format!("{}-{number}.log", role.binary()))
    }

    /// Where receipts of SMS are pushed to.
    pub fn intake_url(&self) -> String {
        self.receipts_url("sgc-main")
    }

    fn receipts_url(&self, account: &str) -> String {
        format!("http://127.0.0.1:{}/v1/receipts/{account}/{SECRET}", self.intake_port)
    }

    pub fn worker_database_url(&self) -> String {
        self.stack.database_url(&self.name, "sendonce_worker")
    }

    pub fn amqp_url(&self) -> String {
        self.stack.amqp_url(&self.name)
    }

    fn config(&self) -> String {
        let mut text = CONFIG
            .replace("@database@", &self.worker_database_url())
            .replace("@broker@", &self.amqp_url())
            .replace("@redis@", &self.redis_url)
            .replace("@intake@", &format!("127.0.0.1:{}", self.intake_port))
            .replace("@provider@", &format!("http://127.0.0.1:{}", self.simulator_ports[0]));
        for (key, value) in &self.settings {
            text = override_setting(&text, key, value);
        }
        text
    }
}

/// Replaces `key = …` in its table, or adds it there, or adds the table.
fn override_setting(text: &str, key: &str, value: &str) -> String {
    let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
    let header = format!("[{table}]");
    let (mut out, mut inside, mut done) = (String::new(), false, false);
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line == header;
        }
        let same = inside && line.split('=').next().is_some_and(|key| key.trim() == name);
        if !same {
            out.push_str(line);
            out.push('\n');
        }
        if line == header && !done {
            out.push_str(&format!("{name} = {value}\n"));
            done = true;
        }
    }
    if !done {
        out.push_str(&format!("\n{header}\n{name} = {value}\n"));
    }
    out
}

/// The unguessable part of the receipt path, in a stack that lives for a test.
const SECRET: &str = "stack-secret-4f1d";

/// The rates that every fleet of a stack starts with.
const RATES: &str = "
    insert into rate_card (tenant_id, channel, message_class, prefix, unit_price, currency)
    select tenant, 'sms', class, prefix, price, 'INR'
    from unnest(array['acme', 'globex']) as tenant,
        unnest(enum_range(null::message_class)) as class,
        (values ('91', 0.1400), ('', 1.2500)) as rate(prefix, price);
    insert into rate_card (tenant_id, channel, message_class, prefix, unit_price, currency)
    select tenant, 'whatsapp', class, '', 0.3300, 'INR'
    from unnest(array['acme', 'globex']) as tenant, unnest(enum_range(null::message_class)) as class;
";

/// Budgets scaled down together, so that leases, backoffs and sweeps can be seen in seconds.
const CONFIG: &str = r#"# Written by the development stack.
[database]
url = "@database@"

[broker]
url = "@broker@"

[redis]
url = "@redis@"
look_every = "500ms"

[intake]
listen = "@intake@"

[log]
filter = "info"
format = "json"

[budgets]
connect = "500ms"
http = "2s"
http_otp = "1500ms"
send = "3s"
lock = "1s"
record = "1s"
lease = "8s"
drain = "8s"

[ingest]
rates_refresh = "1s"

[sender]
backoff_min = "200ms"
backoff_max = "2s"
hold = "1s"

[sweeps]
jobs_every = "200ms"
receipts_every = "500ms"
gauges_every = "1s"
reports_every = "500ms"
poll_first = "1s"
poll_last = "4s"
report_lag = "500ms"

[classes.otp]
ttl = "5m"
grace = "2s"
max_hold = "1s"
unknown_sla = "5s"
silent_after = "5s"

[classes.transactional]
ttl = "24h"
grace = "4s"
max_hold = "3s"
unknown_sla = "10s"
silent_after = "10s"

[classes.promotional]
ttl = "24h"
grace = "4s"
max_hold = "3s"
unknown_sla = "20s"
silent_after = "20s"

[testing]
allow_clock_offset = true

[tenants.acme]
default_region = "IN"
accounts = { sms = "sgc-main", whatsapp = "sgc-wa" }
sender_id = "ACMEIN"
dlt_entity_id = "1201159000000000001"

[tenants.globex]
default_region = "IN"
accounts = { sms = "sgc-main", whatsapp = "sgc-wa" }
sender_id = "GLOBEX"
dlt_entity_id = "1201159000000000002"

[accounts.sgc-main]
dialect = "smsgatewaycenter"
channel = "sms"
base_url = "@provider@"
userid = "demo"
password = "secret"
encoding = "ascii_only"
exclusive = true
correlation_window = "5s"

[accounts.sgc-main.codes]
account = ["302"]
throttle = ["305"]

[accounts.sgc-main.receipts]
secrets = ["stack-secret-4f1d"]
preset = "legacy"
codes = { "000" = "delivered", "001" = "failed", "005" = "expired", "008" = "failed" }

[accounts.sgc-wa]
dialect = "smsgatewaycenter"
channel = "whatsapp"
base_url = "@provider@"
userid = "wademo"
password = "secret"
waba_number = "919000000000"
exclusive = true
correlation_window = "5s"

[accounts.sgc-wa.codes]
account = ["302"]
throttle = ["305"]
message = ["303"]

[accounts.sgc-wa.receipts]
secrets = ["stack-secret-4f1d"]
preset = "legacy"
codes = { "000" = "delivered", "100" = "read", "001" = "failed", "005" = "expired", "008" = "failed" }
"#;

/// CPU seconds of a process, its descendants and those it has reaped, and the peak resident KiB of the largest of them.
pub fn tree_usage(pid: u32) -> Option<(f64, u64)> {
    let mut total = usage(pid)?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
        if let Some((cpu, peak)) = tree_usage(child) {
            total = (total.0 + cpu, total.1.max(peak));
        }
    }
    Some(total)
}

fn usage(pid: u32) -> Option<(f64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    // utime, stime, and the same of children that were waited for.
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum::<u64>();
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib = peak.split_ascii_whitespace().next()?.parse().ok()?;
    // USER_HZ is 100 on every Linux that this runs on.
    Some((ticks as f64 / 100.0, kib))
}

#[cfg(test)]
mod tests {
    use super::override_setting;

    #[test]
    fn a_setting_is_replaced_added_or_opens_its_table() {
        let text = "[a]\nx = 1\ny = 2\n[b]\nx = 3\n";
        assert_eq!(override_setting(text, "a.x", "9"), "[a]\nx = 9\ny = 2\n[b]\nx = 3\n");
        assert_eq!(override_setting(text, "b.z", "9"), "[a]\nx = 1\ny = 2\n[b]\nz = 9\nx = 3\n");
        assert_eq!(override_setting(text, "c.d.z", "9"), "[a]\nx = 1\ny = 2\n[b]\nx = 3\n\n[c.d]\nz = 9\n");
    }
}
