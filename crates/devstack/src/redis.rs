//! The private Redis: nothing on disk, as it is only ever a hint.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::net::{answers, wait_ready};
use crate::proc::{Child, Program, Spawner};

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
