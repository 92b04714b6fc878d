//! What the ledger adds up to, kept in memory: balances, records for the reports, totals and duplicates for the audit.
//! Live requests and the replay at start go through the same [`Book::apply`], so a restart cannot change the sums.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use rust_decimal::Decimal;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    accounts::{Account, AccountView, Accounts},
    fate::{Fate, Magic, Refusal, magic},
    ids::Rng,
    ledger::{Accepted, Decision, Entry, Kind},
};

/// One accepted recipient, held by the entry that accepted it.
#[derive(Debug, Clone)]
pub struct Record {
    pub entry: Arc<Entry>,
    slot: usize,
}

impl Record {
    pub fn accepted(&self) -> &Accepted {
        &self.entry.accepted[self.slot]
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Totals {
    pub requests: u64,
    pub accepted: u64,
    pub refused: u64,
    pub none: u64,
    pub accepted_recipients: u64,
    pub invalid_recipients: u64,
    pub units: u64,
    pub amount: Decimal,
}

/// A (recipient, text) pair accepted more than once: a double send, unless the test meant it.
#[derive(Debug, Clone, Serialize)]
pub struct Duplicate {
    pub recipient: String,
    pub text: String,
    pub times: u32,
    pub txns: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub totals: Totals,
    pub by_account: BTreeMap<String, Totals>,
    pub by_fate: BTreeMap<String, u64>,
    /// How many pairs were accepted more than once on one channel.
    pub by_recipient_text_duplicates: usize,
    pub duplicates: Vec<Duplicate>,
}

#[derive(Debug)]
struct Pair {
    times: u32,
    first: Arc<Entry>,
    last_at: i64,
}

#[derive(Debug)]
pub struct Book {
    pub accounts: Accounts,
    pub rng: Rng,
    last_seq: u64,
    last_at: i64,
    records: HashMap<String, Vec<Record>>,
    by_txn: HashMap<String, Arc<Entry>>,
    totals: Totals,
    by_account: BTreeMap<String, Totals>,
    by_fate: BTreeMap<String, u64>,
    pairs: HashMap<[u8; 32], Pair>,
    duplicates: HashMap<[u8; 32], Duplicate>,
    throttled: HashSet<(String, String)>,
    seconds: HashMap<String, (i64, u32)>,
}

impl Book {
    pub fn new(accounts: Accounts, seed: u64) -> Self {
        Self {
            accounts,
            rng: Rng::seeded(seed),
            last_seq: 0,
            last_at: 0,
            records: HashMap::new(),
            by_txn: HashMap::new(),
            totals: Totals::default(),
            by_account: BTreeMap::new(),
            by_fate: BTreeMap::new(),
            pairs: HashMap::new(),
            duplicates: HashMap::new(),
            throttled: HashSet::new(),
            seconds: HashMap::new(),
        }
    }

    pub fn next_seq(&self) -> u64 {
        self.last_seq + 1
    }

    /// `now`, or the last entry's time if the clock stepped back: report pages rely on the order.
    pub fn monotone(&self, now: i64) -> i64 {
        now.max(self.last_at)
    }

    pub fn knows_txn(&self, txn: &str) -> bool {
        self.by_txn.contains_key(txn)
    }

    pub fn apply(&mut self, entry: Arc<Entry>) {
        self.last_seq = entry.seq;
        self.last_at = entry.at;
        self.totals.add(&entry);
        *self.by_fate.entry(entry.fate.clone()).or_default() += 1;
        let Some(account) = entry.account.clone() else { return };
        self.by_account.entry(account.clone()).or_default().add(&entry);
        if entry.fate == Fate::Refuse(Refusal::ThrottledOnce).name() {
            let once = entry.recipients.iter().filter(|mobile| throttles_once(mobile));
            self.throttled.extend(once.map(|mobile| (account.clone(), mobile.clone())));
        }
        if let Some(txn) = entry.txn.clone().filter(|_| entry.decision == Decision::Accepted) {
            self.by_txn.insert(txn, Arc::clone(&entry));
        }
        for accepted in &entry.accepted {
            self.note_pair(&entry, &accepted.mobile);
        }
        // No report of WhatsApp messages is known, so they show in none.
        if entry.kind != Kind::SmsSend {
            return;
        }
        let records = self.records.entry(account).or_default();
        records.extend((0..entry.accepted.len()).map(|slot| Record { entry: Arc::clone(&entry), slot }));
    }

    fn note_pair(&mut self, entry: &Arc<Entry>, mobile: &str) {
        let text = entry.text.as_deref().unwrap_or_default();
        let key = pair_key(entry.kind, mobile, text);
        let pair = self.pairs.entry(key).or_insert_with(|| Pair { times: 0, first: Arc::clone(entry), last_at: 0 });
        pair.times += 1;
        pair.last_at = entry.at;
        if pair.times > 1 {
            let duplicate = self.duplicates.entry(key).or_insert_with(|| Duplicate {
                recipient: mobile.to_owned(),
                text: text.to_owned(),
                times: 1,
                txns: pair.first.txn.clone().into_iter().collect(),
            });
            duplicate.times = pair.times;
            duplicate.txns.extend(entry.txn.clone());
        }
    }

    /// Whether the pair was accepted at or after `since`, by any account.
    pub fn accepted_since(&self, kind: Kind, mobile: &str, text: &str, since: i64) -> bool {
        self.pairs.get(&pair_key(kind, mobile, text)).is_some_and(|pair| pair.last_at >= since)
    }

    pub fn was_throttled(&self, account: &str, mobile: &str) -> bool {
        self.throttled.contains(&(account.to_owned(), mobile.to_owned()))
    }

    /// Counts a request of this second; false once `limit` is exceeded.
    pub fn within_tps(&mut self, account: &str, at: i64, limit: u32) -> bool {
        let window = self.seconds.entry(account.to_owned()).or_default();
        if window.0 != at / 1_000 {
            *window = (at / 1_000, 0);
        }
        window.1 += 1;
        limit == 0 || window.1 <= limit
    }

    pub fn spent(&self, userid: &str) -> Decimal {
        self.by_account.get(userid).map_or(Decimal::ZERO, |totals| totals.amount)
    }

    pub fn balance(&self, account: &Account) -> Decimal {
        account.funds - self.spent(&account.userid)
    }

    /// An account's records accepted in `[from, to)`, oldest first.
    pub fn records_between(&self, userid: &str, from: i64, to: i64) -> &[Record] {
        let all = self.records.get(userid).map_or(&[][..], Vec::as_slice);
        let start = all.partition_point(|record| record.entry.at < from);
        let end = all.partition_point(|record| record.entry.at < to);
        &all[start..end.max(start)]
    }

    pub fn records_of_txn(&self, userid: &str, txn: &str) -> Vec<Record> {
        self.by_txn
            .get(txn)
            .filter(|entry| entry.account.as_deref() == Some(userid))
            .map(|entry| (0..entry.accepted.len()).map(|slot| Record { entry: Arc::clone(entry), slot }).collect())
            .unwrap_or_default()
    }

    pub fn summary(&self) -> Summary {
        let mut duplicates: Vec<Duplicate> = self.duplicates.values().cloned().collect();
        duplicates.sort_by(|a, b| (&a.recipient, &a.text).cmp(&(&b.recipient, &b.text)));
        Summary {
            totals: self.totals.clone(),
            by_account: self.by_account.clone(),
            by_fate: self.by_fate.clone(),
            by_recipient_text_duplicates: duplicates.len(),
            duplicates,
        }
    }

    pub fn account_views(&self) -> Vec<AccountView> {
        self.accounts
            .iter()
            .map(|account| AccountView {
                userid: account.userid.clone(),
                zone: account.zone.name().to_owned(),
                price: account.price,
                balance: self.balance(account),
                spent: self.spent(&account.userid),
                push_url: account.push_url.clone(),
            })
            .collect()
    }
}

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.requests += 1;
        match entry.decision {
            Decision::Accepted => self.accepted += 1,
            Decision::Refused => self.refused += 1,
            Decision::None => self.none += 1,
        }
        self.accepted_recipients += entry.accepted.len() as u64;
        self.invalid_recipients += entry.invalid.len() as u64;
        self.units += entry.units;
        self.amount += entry.amount;
    }
}

pub fn throttles_once(mobile: &str) -> bool {
    magic(mobile) == Some(Magic::Request(Fate::Refuse(Refusal::ThrottledOnce)))
}

fn pair_key(kind: Kind, mobile: &str, text: &str) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update([kind as u8]);
    hasher.update((mobile.len() as u64).to_be_bytes());
    hasher.update(mobile);
    hasher.update(text);
    hasher.finalize().into()
}
