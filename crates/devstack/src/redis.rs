//! The private Redis: nothing on disk, as it is only ever a hint.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::net::{answers, free_ports, wait_ready};
use crate::proc::{Child, Program, Spawner, find_program, run_tool};

/// One database a test; a test takes a free one, see [`crate::StackHandle::claim_redis_db`].
pub(crate) const DATABASES: u16 = 256;

#[derive(Debug, Clone)]
pub(crate) struct Redis {
    pub(crate) port: u16,
    dir: PathBuf,
}

impl Redis {
    pub(crate) fn new(dir: &Path, port: u16) -> Self {
        Self { port, dir: dir.to_path_buf() }
    }

    pub(crate) async fn start(&self, spawner: &Spawner) -> Result<Child> {
        let server = Program::new("redis", "redis-server").clean_env().env("SENDONCE_STACK", &self.dir);
        let server = server.dir(&self.dir).log(self.dir.join("redis.log"));
        let server = server.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--dir"]).arg(&self.dir);
        let server = server.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        let child = spawner.spawn(server.args(["--databases", &DATABASES.to_string()]))?;
        wait_ready(&child, Duration::from_secs(60), async || self.answers().await).await?;
        Ok(child)
    }

    pub(crate) async fn answers(&self) -> bool {
        answers(self.port, b"PING\r\n", b"+PONG").await
    }
}

/// A Redis for one test that breaks it; the stack's own is everybody's. Dropping it ends it.
#[derive(Debug)]
pub struct OwnRedis {
    server: Redis,
    spawner: Spawner,
    child: Option<Child>,
}

impl OwnRedis {
    /// Chooses a port and a folder; starts nothing.
    pub fn prepare(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let [port] = free_ports()?;
        Ok(Self { server: Redis::new(dir, port), spawner: Spawner::new()?, child: None })
    }

    /// Starts it, empty.
    pub async fn start(&mut self) -> Result<()> {
        self.child = Some(self.server.start(&self.spawner).await?);
        Ok(())
    }

    /// `kill -9`.
    pub async fn kill(&mut self) -> Result<()> {
        match self.child.take() {
            Some(child) => child.kill().await.map(drop),
            None => Ok(()),
        }
    }

    /// SIGSTOP: connections stay, nothing answers.
    pub async fn pause(&self) -> Result<()> {
        self.child.as_ref().context("this Redis is not started")?.pause().await
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.child.as_ref().context("this Redis is not started")?.resume()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.server.port)
    }

    /// The answer to one command, a line each element.
    pub async fn ask(&self, command: &[&str]) -> Result<String> {
        let port = self.server.port.to_string();
        let server = ["-h", "127.0.0.1", "-p", &port];
        let answer = run_tool(&find_program(Path::new("redis-cli"))?, &[&server, command].concat()).await?;
        Ok(answer.trim_end().to_owned())
    }
}
