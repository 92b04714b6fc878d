//! What most end-to-end tests look for.

use anyhow::{Result, ensure};
use sendonce_devstack::audit::{Audit, audit};
use sendonce_devstack::fleet::Role;

use crate::{World, eventually};

impl World {
    /// Waits until `expected` rows are in `state`.
    pub async fn reach(&self, state: &str, expected: i64) {
        eventually(state, async || {
            let found = self.count(state).await?;
            ensure!(found == expected, "{found} rows are {state}, {expected} expected; {}", self.states().await?);
            Ok(())
        })
        .await;
    }

    /// Waits until nothing is pending or claimed and no job is left.
    pub async fn reach_rest(&self, rows: i64) {
        eventually("rest", async || {
            let found = self.sql("select count(*), count(*) filter (where state in ('pending', 'claimed')), (select count(*) from send_job) from outbound_message").await?;
            ensure!(found == format!("{rows}|0|0"), "rows|undecided|jobs: {found}; {}", self.states().await?);
            Ok(())
        })
        .await;
    }

    async fn states(&self) -> Result<String> {
        self.sql("select state, state_reason, count(*) from outbound_message group by 1, 2 order by 1, 2").await
    }

    /// Sum of a worker's samples called `name` that bear all of `labels`, each as `key="value"`.
    pub async fn sample(&self, role: Role, name: &str, labels: &[&str]) -> Result<f64> {
        let page = self.fleet.admin(role, 0, "/metrics").await?.1;
        let of_it = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
        Ok(page.lines().filter(of_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// The provider's ledger and our rows agree.
    ///
    /// # Panics
    /// With the violations when they do not.
    pub async fn assert_clean(&self) -> Audit {
        let found = audit(&self.fleet).await.expect("the audit runs");
        assert!(found.violations.is_empty(), "{:#?}", found.violations);
        found
    }
}
