//! PostgreSQL refuses to run as root. What has to stand in front of its programs so that it runs for whoever calls.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The user that the distribution's packages create.
const SERVER_USER: &str = "postgres";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// An ordinary user: nothing to do.
    Own,
    /// Root in a user namespace in which it is uid 1000: still owns its files, still enters its folders, so a clone below a
    /// folder that only root can enter works, and nothing has to change hands.
    Namespace,
    /// Root becoming the server user; every folder above the data must be open to that user.
    ServerUser,
}

impl Privilege {
    /// The first that works for files in `dir`, which exists.
    pub(crate) fn choose(dir: &Path) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Ok(Self::Own);
        }
        if Self::Namespace.can_enter(dir) {
            return Ok(Self::Namespace);
        }
        if Self::ServerUser.can_enter(dir) {
            return Ok(Self::ServerUser);
        }
        let mut folders: Vec<&Path> = dir.ancestors().collect();
        folders.reverse();
        match folders.into_iter().find(|folder| !Self::ServerUser.can_enter(folder)) {
            Some(folder) if folder != Path::new("/") => bail!(
                "PostgreSQL does not run as root, user namespaces are refused here, and user {SERVER_USER} cannot enter {0}.\n\
                 Run as an ordinary user, or move the clone, or: chmod o+x {0}",
                folder.display()
            ),
            _ => bail!(
                "PostgreSQL does not run as root, and neither a user namespace nor user {SERVER_USER} is available.\n\
                 Run as an ordinary user."
            ),
        }
    }

    pub(crate) fn prefix(self) -> Vec<OsString> {
        let words: &[&str] = match self {
            Self::Own => &[],
            Self::Namespace => &["unshare", "--user", "--map-user=1000", "--map-group=1000"],
            Self::ServerUser => &["setpriv", "--reuid", SERVER_USER, "--regid", SERVER_USER, "--init-groups"],
        };
        words.iter().map(OsString::from).collect()
    }

    /// Makes `dir` so that the server may own it: PostgreSQL insists that its data folder belongs to the user it runs as.
    pub(crate) fn make_dir(self, dir: &Path) -> Result<()> {
        let owner: &[&str] = match self {
            Self::Own | Self::Namespace => &[],
            Self::ServerUser => &["-o", SERVER_USER, "-g", SERVER_USER],
        };
        let status = Command::new("install").args(["-d", "-m", "0700"]).args(owner).arg(dir).status();
        ensure!(status.context("cannot run install")?.success(), "cannot make {}", dir.display());
        Ok(())
    }

    fn can_enter(self, dir: &Path) -> bool {
        let prefix = self.prefix();
        let Some((program, args)) = prefix.split_first() else { return true };
        let mut test = Command::new(program);
        test.args(args).args(["test", "-x"]).arg(dir).current_dir("/");
        test.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        test.status().is_ok_and(|status| status.success())
    }
}
