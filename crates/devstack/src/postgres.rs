//! The private PostgreSQL: TCP on loopback only, since a socket's path is limited to 107 bytes and a clone may lie deeper.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::net::wait_ready;
use crate::privilege::Privilege;
use crate::proc::{Child, Program, Signal, Spawner, find_program, log_tail, run_tool};

pub(crate) const SUPERUSER: &str = "sendonce";

/// fsync and synchronous_commit stay on: tests crash this server and the benchmark measures it. Replication is off, so the
/// log need not serve it.
const SETTINGS: [&str; 11] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "shared_buffers=256MB",
    "max_connections=300",
    "max_wal_size=2GB",
    "wal_level=minimal",
    "max_wal_senders=0",
    "log_min_messages=warning",
    "log_line_prefix=%m [%p] %d %a ",
    "log_timezone=UTC",
    "timezone=UTC",
];

#[derive(Debug, Clone)]
pub(crate) struct Postgres {
    pub(crate) port: u16,
    pub(crate) bin: PathBuf,
    /// The stack's folder.
    dir: PathBuf,
    privilege: Privilege,
}

impl Postgres {
    pub(crate) fn new(dir: &Path, port: u16) -> Result<Self> {
        let privilege = Privilege::choose(dir)?;
        Self::with_privilege(dir, port, privilege)
    }

    fn with_privilege(dir: &Path, port: u16, privilege: Privilege) -> Result<Self> {
        let made_by = fs::read_to_string(dir.join("postgres/data/PG_VERSION")).ok();
        let bin = find_bin(made_by.as_deref().map(str::trim))?;
        Ok(Self { port, bin, dir: dir.to_path_buf(), privilege })
    }

    /// Makes the cluster if there is none yet, starts the server, and returns when it takes connections.
    pub(crate) async fn start(&self, spawner: &Spawner) -> Result<Child> {
        self.init(spawner).await?;
        let server = self.program("postgres", "postgres.log").arg("-D").arg(self.data()).arg("-c");
        let server = server.arg(format!("port={}", self.port));
        let server = server.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        // SIGQUIT is its immediate shutdown: it ends its own children and frees its shared memory, as SIGKILL would not.
        let child = spawner.spawn(server.death_signal(Signal::SIGQUIT))?;
        wait_ready(&child, Duration::from_secs(120), async || self.answers().await).await?;
        Ok(child)
    }

    pub(crate) async fn answers(&self) -> bool {
        let port = self.port.to_string();
        run_tool(&self.bin.join("pg_isready"), &["-q", "-h", "127.0.0.1", "-p", &port]).await.is_ok()
    }

    fn data(&self) -> PathBuf {
        self.dir.join("postgres/data")
    }

    fn program(&self, name: &str, log: &str) -> Program {
        let program = Program::new(name, self.bin.join(name)).clean_env().env("SENDONCE_STACK", &self.dir);
        program.prefix(&self.privilege.prefix()).dir(&self.dir).log(self.dir.join(log))
    }

    /// The cluster is made under another name first: one that was cut short is thrown away, never started.
    async fn init(&self, spawner: &Spawner) -> Result<()> {
        let data = self.data();
        if data.exists() {
            return Ok(());
        }
        let unfinished = self.dir.join("postgres/unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).with_context(|| format!("cannot remove {}", unfinished.display()))?;
        }
        self.privilege.make_dir(&self.dir.join("postgres"))?;
        let initdb = self.program("initdb", "initdb.log").arg("-D").arg(&unfinished).args(["-U", SUPERUSER]);
        let initdb = initdb.args(["-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]);
        let status = spawner.spawn(initdb)?.wait(Duration::from_secs(120)).await?;
        ensure!(status.success(), "initdb failed ({status})\n{}", log_tail(&self.dir.join("initdb.log")));
        fs::rename(&unfinished, &data).with_context(|| format!("cannot rename {}", unfinished.display()))
    }
}

/// The folder of the server's programs: of the version that made the data if there is any, else of the highest installed.
fn find_bin(made_by: Option<&str>) -> Result<PathBuf> {
    const INSTALLED: &str = "/usr/lib/postgresql";
    if let Some(version) = made_by {
        let bin = Path::new(INSTALLED).join(version).join("bin");
        if bin.join("postgres").is_file() {
            return Ok(bin);
        }
    }
    let entries = fs::read_dir(INSTALLED).into_iter().flatten().flatten();
    let versions = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let bins = versions.map(|version| (version, Path::new(INSTALLED).join(version.to_string()).join("bin")));
    let newest = bins.filter(|(_, bin)| bin.join("postgres").is_file()).max();
    match (made_by, newest) {
        (Some(version), Some((other, _))) => bail!(
            "the data was made by PostgreSQL {version} and only {other} is installed; `./dev down --wipe` throws the data away"
        ),
        (None, Some((_, bin))) => Ok(bin),
        (_, None) => {
            let server = find_program(Path::new("postgres"))
                .context("no PostgreSQL server found; on Debian and Ubuntu: apt-get install postgresql")?;
            Ok(server.parent().map(Path::to_path_buf).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::free_ports;

    /// The way taken where user namespaces are refused; only root can try it.
    #[tokio::test]
    async fn root_can_become_the_server_user() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("sendonce-postgres-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [port] = free_ports().unwrap();
        let server = Postgres::with_privilege(&dir, port, Privilege::ServerUser).unwrap();
        let child = server.start(&Spawner::new().unwrap()).await.unwrap();
        assert!(server.answers().await);
        let status = child.stop(Signal::SIGINT, Duration::from_secs(30)).await.unwrap();
        assert!(status.success(), "{status}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
