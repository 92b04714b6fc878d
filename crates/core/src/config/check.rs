//! What a configuration must satisfy beyond its shape: budgets nest, references resolve.

use std::fmt;
use std::time::Duration;

use super::{Account, ClassPolicy, Config, IdLevel};
use crate::domain::address::is_region;
use crate::domain::message::Channel;

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
        self.check_traces(&mut found);
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

    fn check_traces(&self, found: &mut Vec<Problem>) {
        let endpoint = &self.traces.endpoint;
        if !endpoint.is_empty() && !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            found.push(Problem("`traces.endpoint` must start with http:// or https://".to_owned()));
        }
        if !(0.0..=1.0).contains(&self.traces.sample_ratio) {
            found.push(Problem("`traces.sample_ratio` must be from 0 to 1".to_owned()));
        }
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

/// What a channel demands of its accounts.
fn check_channel(name: &str, account: &Account, found: &mut Vec<Problem>) {
    let mut refuse = |what: &str| found.push(Problem(format!("`accounts.{name}.{what}")));
    match account.channel {
        Channel::Sms if account.waba_number.is_some() => refuse("waba_number` is for WhatsApp accounts only"),
        Channel::Sms => {}
        Channel::Whatsapp => {
            let digits = |number: &String| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
            if !account.waba_number.as_ref().is_some_and(digits) {
                refuse("waba_number`: WhatsApp needs the number that messages come from, digits only");
            }
            if account.max_recipients() > 1 {
                refuse("max_recipients` must be 1: a WhatsApp request has one recipient");
            }
            if account.id_level() == IdLevel::Txn {
                refuse("id_level`: WhatsApp answers name a message, not a transaction; say `message` or `none`");
            }
        }
        Channel::Voice | Channel::Rcs | Channel::Telegram => refuse("channel`: no adapter sends on it"),
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
    if account.max_recipients() == 0 {
        found.push(Problem(format!("`accounts.{name}.max_recipients` must be at least 1")));
    }
    check_channel(name, account, found);
    if account.password.is_none() && account.api_key.is_none() {
        found.push(Problem(format!("`accounts.{name}`: set `password_file` or `api_key_file`")));
    }
    if !account.base_url.starts_with("http://") && !account.base_url.starts_with("https://") {
        found.push(Problem(format!("`accounts.{name}.base_url` must start with http:// or https://")));
    }
    if account.reports.page_limit < 2 {
        found.push(Problem(format!("`accounts.{name}.reports.page_limit` must be at least 2: pages overlap by one")));
    }
    for (key, path) in [("list_path", &account.reports.list_path), ("txn_path", &account.reports.txn_path)] {
        if !path.starts_with('/') {
            found.push(Problem(format!("`accounts.{name}.reports.{key}` must start with /")));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
    fn a_collector_without_a_scheme_and_a_share_above_one_are_refused() {
        let mut config = Config::default();
        config.traces.endpoint = "collector:4318".to_owned();
        config.traces.sample_ratio = 1.5;
        let text = config.problems().iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains("traces.endpoint") && text.contains("traces.sample_ratio"), "{text}");
    }

    #[test]
    fn a_hold_beyond_the_grace_is_refused() {
        let mut config = Config::default();
        config.classes.otp.max_hold = config.classes.otp.grace;
        assert!(config.problems()[0].to_string().contains("classes.otp.max_hold"));
    }

    fn account(more: Value) -> Account {
        let mut fields = json!({"dialect": "smsgatewaycenter", "base_url": "http://p", "password": "x"});
        for (name, value) in more.as_object().unwrap() {
            fields[name] = value.clone();
        }
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn a_whatsapp_account_names_its_number_and_sends_to_one_at_a_time() {
        let number = "919000000000";
        let table = [
            (json!({"channel": "whatsapp", "waba_number": number}), None),
            (json!({"channel": "whatsapp", "waba_number": number, "max_recipients": 1, "id_level": "none"}), None),
            (json!({"channel": "whatsapp"}), Some("waba_number")),
            (json!({"channel": "whatsapp", "waba_number": "+91 90000 00000"}), Some("waba_number")),
            (json!({"channel": "whatsapp", "waba_number": number, "max_recipients": 2}), Some("max_recipients")),
            (json!({"channel": "whatsapp", "waba_number": number, "id_level": "txn"}), Some("id_level")),
            (json!({"channel": "sms"}), None),
            (json!({"channel": "sms", "waba_number": number}), Some("waba_number")),
            (json!({"channel": "rcs"}), Some("channel")),
        ];
        for (fields, key) in table {
            let mut found = Vec::new();
            check_account("a", &account(fields.clone()), &mut found);
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), usize::from(key.is_some()), "{fields}: {found:?}");
            assert!(key.is_none_or(|key| found[0].contains(key)), "{fields}: {found:?}");
        }
    }

    #[test]
    fn what_an_account_does_not_say_follows_its_channel() {
        let (sms, whatsapp) = (account(json!({"channel": "sms"})), account(json!({"channel": "whatsapp"})));
        assert_eq!((sms.max_recipients(), sms.id_level()), (500, IdLevel::Txn));
        assert_eq!((whatsapp.max_recipients(), whatsapp.id_level()), (1, IdLevel::Message));
    }

    #[test]
    fn a_report_page_too_short_to_overlap_or_a_path_without_a_slash_is_refused() {
        let account: Account = serde_json::from_value(serde_json::json!({
            "dialect": "smsgatewaycenter", "channel": "sms", "base_url": "https://sms.example", "password": "p",
            "reports": { "page_limit": 1, "txn_path": "SMSApi/report/status" },
        }))
        .unwrap();
        let mut found = Vec::new();
        check_account("acme", &account, &mut found);
        let text = found.iter().map(ToString::to_string).collect::<String>();
        assert!(found.len() == 2 && text.contains("page_limit") && text.contains("txn_path"), "{text}");
    }
}
