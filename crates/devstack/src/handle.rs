//! A running stack as plain data, and what a test needs of it: a database, a vhost and a Redis database of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::http::{call, encode};
use crate::net::answers;
use crate::proc::run_tool;
use crate::redis::DATABASES;

/// Names the file of the stack that a whole test run shares.
pub const STACK_FILE_ENV: &str = "DEVSTACK_FILE";

/// Where a stack's servers are. Pids are those of the moment the handle was made: a restart changes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackHandle {
    pub name: String,
    pub data_dir: PathBuf,
    pub pg_port: u16,
    pub pg_superuser: String,
    /// Folder of `psql`, `createdb` and the like, of the server's own version.
    pub pg_bin: PathBuf,
    pub redis_port: u16,
    pub amqp_port: u16,
    pub management_port: u16,
    pub postgres_pid: Option<u32>,
    pub redis_pid: Option<u32>,
    pub rabbitmq_pid: Option<u32>,
    /// The migrated database that tests copy.
    pub template: Option<String>,
}

/// A queue as RabbitMQ's management API counts it, about a second late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct QueueCount {
    #[serde(rename = "messages")]
    pub total: u64,
    #[serde(rename = "messages_ready")]
    pub ready: u64,
    #[serde(rename = "messages_unacknowledged")]
    pub unacknowledged: u64,
}

/// A Redis database that is the holder's until drop; no other process of the same stack gets it meanwhile.
#[derive(Debug)]
pub struct RedisDb {
    pub url: String,
    pub number: u16,
    _lock: File,
}

impl StackHandle {
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read the stack file {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is no stack file", path.display()))
    }

    /// Written whole or not at all: readers poll for it.
    pub fn save(&self, path: &Path) -> Result<()> {
        crate::state::write_json(path, self)
    }

    /// The stack of this test run; an error says how to start one.
    pub fn from_env() -> Result<Self> {
        // Not configuration of the product: it is how `devstack test` tells test processes where its servers are.
        let path = std::env::var_os(STACK_FILE_ENV);
        let path = path.with_context(|| format!("{STACK_FILE_ENV} is not set: run the tests through ./dev test"))?;
        Self::load(Path::new(&path))
    }

    /// Database `db` as `user`; loopback is trusted, so there is no password.
    pub fn database_url(&self, db: &str, user: &str) -> String {
        format!("postgres://{}@127.0.0.1:{}/{}", encode(user), self.pg_port, encode(db))
    }

    pub fn superuser_url(&self, db: &str) -> String {
        self.database_url(db, &self.pg_superuser)
    }

    pub fn amqp_url(&self, vhost: &str) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/{}", self.amqp_port, encode(vhost))
    }

    pub fn management_url(&self) -> String {
        format!("http://guest:guest@127.0.0.1:{}", self.management_port)
    }

    pub fn redis_url(&self) -> String {
        self.redis_url_of(0)
    }

    fn redis_url_of(&self, number: u16) -> String {
        format!("redis://127.0.0.1:{}/{number}", self.redis_port)
    }

    /// A vhost with all permissions for guest; making one that exists is a success.
    pub async fn create_vhost(&self, name: &str) -> Result<()> {
        let vhost = encode(name);
        self.manage("PUT", &format!("/api/vhosts/{vhost}"), "{}").await?;
        let all = r#"{"configure":".*","write":".*","read":".*"}"#;
        self.manage("PUT", &format!("/api/permissions/{vhost}/guest"), all).await?;
        Ok(())
    }

    /// Deletes a vhost with all its queues, and closes its connections.
    pub async fn delete_vhost(&self, name: &str) -> Result<()> {
        self.manage("DELETE", &format!("/api/vhosts/{}", encode(name)), "").await?;
        Ok(())
    }

    /// Counts by queue name. A queue that RabbitMQ has not counted yet is missing.
    pub async fn queue_counts(&self, vhost: &str) -> Result<BTreeMap<String, QueueCount>> {
        #[derive(Deserialize)]
        struct Queue {
            name: String,
            #[serde(flatten)]
            count: Option<QueueCount>,
        }
        let columns = "name,messages,messages_ready,messages_unacknowledged";
        let body = self.manage("GET", &format!("/api/queues/{}?columns={columns}", encode(vhost)), "").await?;
        let queues: Vec<Queue> = serde_json::from_str(&body).context("RabbitMQ's list of queues")?;
        Ok(queues.into_iter().filter_map(|queue| Some((queue.name, queue.count?))).collect())
    }

    /// One call to RabbitMQ's management API (`path` encoded, from `/api` on); anything but 2xx is an error.
    pub async fn manage(&self, method: &str, path: &str, body: &str) -> Result<String> {
        call(self.management_port, method, path, body).await?.success(&format!("{method} {path}"))
    }

    /// A new database: a copy of `template`, which nobody may be connected to, or empty.
    pub async fn create_database(&self, name: &str, template: Option<&str>) -> Result<()> {
        let mut args = vec!["--maintenance-db=postgres"];
        if let Some(template) = template {
            args.extend(["--template", template]);
        }
        args.push(name);
        self.pg_tool("createdb", &args).await.map(drop)
    }

    /// Drops a database if it exists, whoever is connected.
    pub async fn drop_database(&self, name: &str) -> Result<()> {
        self.pg_tool("dropdb", &["--maintenance-db=postgres", "--force", "--if-exists", name]).await.map(drop)
    }

    /// A setting that every later connection to `db` starts with.
    pub async fn set_database_option(&self, db: &str, key: &str, value: &str) -> Result<()> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
        ensure!(!key.is_empty() && key.bytes().all(plain), "{key:?} is no name of a setting");
        let (name, value) = (db.replace('"', "\"\""), value.replace('\'', "''"));
        self.psql(db, &format!("ALTER DATABASE \"{name}\" SET {key} = '{value}'")).await.map(drop)
    }

    /// Runs SQL as superuser and returns the bare values, a row a line. For administration and tests of the stack itself:
    /// the product's statements live in core.
    pub async fn psql(&self, db: &str, sql: &str) -> Result<String> {
        let args = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", db, "-c", sql];
        Ok(self.pg_tool("psql", &args).await?.trim_end().to_owned())
    }

    async fn pg_tool(&self, tool: &str, args: &[&str]) -> Result<String> {
        let port = self.pg_port.to_string();
        let server = ["-h", "127.0.0.1", "-p", &port, "-U", &self.pg_superuser, "-w"];
        run_tool(&self.pg_bin.join(tool), &[&server, args].concat()).await
    }

    /// A Redis database nobody else holds, emptied.
    pub async fn claim_redis_db(&self) -> Result<RedisDb> {
        let folder = self.data_dir.join("redis-databases");
        fs::create_dir_all(&folder)?;
        // From 1 on: number 0 is for whoever does not ask.
        for number in 1..DATABASES {
            let lock =
                File::options().create(true).truncate(false).write(true).open(folder.join(number.to_string()))?;
            if lock.try_lock().is_err() {
                continue;
            }
            let flush = format!("SELECT {number}\r\nFLUSHDB\r\n");
            ensure!(answers(self.redis_port, flush.as_bytes(), b"+OK\r\n+OK").await, "Redis does not answer");
            return Ok(RedisDb { url: self.redis_url_of(number), number, _lock: lock });
        }
        anyhow::bail!("all {DATABASES} Redis databases of stack {} are in use", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> StackHandle {
        StackHandle {
            name: "t".into(),
            data_dir: "/nowhere".into(),
            pg_port: 1,
            pg_superuser: "sendonce".into(),
            pg_bin: "/nowhere".into(),
            redis_port: 2,
            amqp_port: 3,
            management_port: 4,
            postgres_pid: Some(5),
            redis_pid: None,
            rabbitmq_pid: None,
            template: None,
        }
    }

    #[test]
    fn urls_encode_what_they_carry() {
        let handle = handle();
        assert_eq!(handle.amqp_url("/"), "amqp://guest:guest@127.0.0.1:3/%2F");
        assert_eq!(handle.database_url("a b", "u"), "postgres://u@127.0.0.1:1/a%20b");
        assert_eq!(handle.redis_url(), "redis://127.0.0.1:2/0");
    }

    #[test]
    fn a_handle_survives_its_file() {
        let path = std::env::temp_dir().join(format!("sendonce-handle-{}.json", std::process::id()));
        handle().save(&path).unwrap();
        assert_eq!(StackHandle::load(&path).unwrap(), handle());
        fs::remove_file(path).unwrap();
    }
}
