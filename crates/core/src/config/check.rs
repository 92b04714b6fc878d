//! What a configuration must satisfy beyond its shape: budgets nest, references resolve.

use std::fmt;
use std::time::Duration;

use super::{Account, ClassPolicy, Config};
use crate::domain::address::is_region;

/// One contradiction, with what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Config {
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        self.check_budgets(&mut found);
        self.check_sizes(&mut found);
        for (name, policy) in [
            ("otp", &self.classes.otp),
            ("transactional", &self.classes.transactional),
            ("promotional", &self.classes.promotional),
        ] {
            check_class(name, policy, &mut found);
        }
        self.check_tenants(&mut found);
        for (name, account) in &self.accounts {
            check_account(name, account, &mut found);
        }
        found
    }

    /// Lease > claim + send budget + HTTP + record: a worker that is alive has recorded before its lease ends.
    fn check_budgets(&self, found: &mut Vec<Problem>) {
        let b = &self.budgets;
        let mut below = |small: (&str, Duration), large: (&str, Duration)| {
            if small.1 >= large.1 {
                found.push(Problem(format!(
                    "`budgets.{}` ({:?}) must be below `budgets.{}` ({:?})",
                    small.0, small.1, large.0, large.1
                )));
            }
        };
        below(("connect", b.connect), ("http", b.http));
        below(("connect", b.connect), ("http_otp", b.http_otp));
        below(("lock", b.lock), ("send", b.send));
        let attempt = b.lock + b.send + b.http.max(b.http_otp) + b.record;
        if attempt >= b.lease {
            found.push(Problem(format!(
                "`budgets.lease` ({:?}) must exceed lock + send + http + record ({attempt:?}), or a living worker loses its lease",
                b.lease
            )));
        }
        if b.drain < b.http.max(b.http_otp) + b.record {
            found.push(Problem(format!(
                "`budgets.drain` ({:?}) must cover http + record ({:?}), or a drain makes unknowns",
                b.drain,
                b.http.max(b.http_otp) + b.record
            )));
        }
    }

    fn check_sizes(&self, found: &mut Vec<Problem>) {
        let sizes = [
            ("ingest.batch", self.ingest.batch),
            ("ingest.job_rows", self.ingest.job_rows),
            ("ingest.transaction_rows", self.ingest.transaction_rows),
            ("ingest.prefetch", usize::from(self.ingest.prefetch)),
            ("sender.slots", self.sender.slots),
            ("sender.claim_jobs", self.sender.claim_jobs),
            ("sender.prefetch", usize::from(self.sender.prefetch)),
            ("receipts.batch", self.receipts.batch),
            ("receipts.prefetch", usize::from(self.receipts.prefetch)),
        ];
        found.extend(
            sizes
                .iter()
                .filter(|(_, size)| *size == 0)
                .map(|(name, _)| Problem(format!("`{name}` must be at least 1"))),
        );
    }

    fn check_tenants(&self, found: &mut Vec<Problem>) {
        for (name, tenant) in &self.tenants {
            if !is_region(&tenant.default_region) {
                found.push(Problem(format!(
                    "`tenants.{name}.default_region`: `{}` is no ISO 3166 region with a numbering plan",
                    tenant.default_region
                )));
            }
            for (channel, account) in &tenant.accounts {
                match self.accounts.get(account) {
                    None => found
                        .push(Problem(format!("`tenants.{name}.accounts.{channel}`: there is no account `{account}`"))),
                    Some(known) if known.channel != *channel => found.push(Problem(format!(
                        "`tenants.{name}.accounts.{channel}`: account `{account}` is for {}",
                        known.channel
                    ))),
                    Some(_) => {}
                }
            }
        }
    }
}

fn check_class(name: &str, policy: &ClassPolicy, found: &mut Vec<Problem>) {
    if policy.max_hold >= policy.grace {
        found.push(Problem(format!(
            "`classes.{name}.max_hold` ({:?}) must be below its grace ({:?}), or the sweep publishes copies of held jobs",
            policy.max_hold, policy.grace
        )));
    }
}

fn check_account(name: &str, account: &Account, found: &mut Vec<Problem>) {
    if account.max_recipients == 0 {
        found.push(Problem(format!("`accounts.{name}.max_recipients` must be at least 1")));
    }
    if account.password.is_none() && account.api_key.is_none() {
        found.push(Problem(format!("`accounts.{name}`: set `password_file` or `api_key_file`")));
    }
    if !account.base_url.starts_with("http://") && !account.base_url.starts_with("https://") {
        found.push(Problem(format!("`accounts.{name}.base_url` must start with http:// or https://")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_nest() {
        assert_eq!(Config::default().problems(), vec![]);
    }

    #[test]
    fn a_lease_shorter_than_an_attempt_is_refused() {
        let mut config = Config::default();
        config.budgets.lease = Duration::from_secs(40);
        let text = config.problems().iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains("budgets.lease") && text.contains("48s"), "{text}");
    }

    #[test]
    fn a_hold_beyond_the_grace_is_refused() {
        let mut config = Config::default();
        config.classes.otp.max_hold = config.classes.otp.grace;
        assert!(config.problems()[0].to_string().contains("classes.otp.max_hold"));
    }
}
