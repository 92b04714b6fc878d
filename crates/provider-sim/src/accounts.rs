//! Who may send, at what price, in which zone; and the one credentials rule every endpoint shares.

use std::{collections::BTreeMap, str::FromStr};

use anyhow::{Context, bail};
use chrono_tz::Tz;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::{
    codes::{self, Code},
    form::Fields,
};

#[derive(Debug, Clone)]
pub struct Account {
    pub userid: String,
    pub password: String,
    pub api_key: Option<String>,
    pub zone: Tz,
    pub price: Decimal,
    /// All money ever put in; the balance is this less what the ledger says was spent.
    pub funds: Decimal,
    pub push_url: Option<String>,
}

/// What `--account` gives: `userid:password[:apikey]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub userid: String,
    pub password: String,
    pub api_key: Option<String>,
}

impl FromStr for Credentials {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.splitn(3, ':');
        let userid = parts.next().filter(|part| !part.is_empty()).context("an account needs a userid")?;
        let password = parts.next().context("an account is userid:password[:apikey]")?;
        Ok(Self {
            userid: userid.to_owned(),
            password: password.to_owned(),
            api_key: parts.next().filter(|part| !part.is_empty()).map(str::to_owned),
        })
    }
}

/// Body of `PUT /accounts/{userid}`: what is absent keeps its value, or takes the default of a new account.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountUpdate {
    pub password: Option<String>,
    pub api_key: Option<String>,
    pub zone: Option<String>,
    pub price: Option<Decimal>,
    pub balance: Option<Decimal>,
    pub push_url: Option<String>,
}

/// An account as the control port shows it: no secrets.
#[derive(Debug, Clone, Serialize)]
pub struct AccountView {
    pub userid: String,
    pub zone: String,
    pub price: Decimal,
    pub balance: Decimal,
    pub spent: Decimal,
    pub push_url: Option<String>,
}

/// Defaults of an account that says nothing else.
#[derive(Debug, Clone)]
pub struct AccountDefaults {
    pub zone: Tz,
    pub price: Decimal,
    pub wallet: Decimal,
}

#[derive(Debug)]
pub struct Accounts {
    by_userid: BTreeMap<String, Account>,
    defaults: AccountDefaults,
}

impl Accounts {
    pub fn new(defaults: AccountDefaults, credentials: impl IntoIterator<Item = Credentials>) -> Self {
        let mut accounts = Self { by_userid: BTreeMap::new(), defaults };
        for one in credentials {
            let account = accounts.fresh(&one.userid);
            let account = Account { password: one.password, api_key: one.api_key, ..account };
            accounts.by_userid.insert(one.userid, account);
        }
        accounts
    }

    fn fresh(&self, userid: &str) -> Account {
        Account {
            userid: userid.to_owned(),
            password: String::new(),
            api_key: None,
            zone: self.defaults.zone,
            price: self.defaults.price,
            funds: self.defaults.wallet,
            push_url: None,
        }
    }

    pub fn get(&self, userid: &str) -> Option<&Account> {
        self.by_userid.get(userid)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Account> {
        self.by_userid.values()
    }

    pub fn update(&mut self, userid: &str, update: AccountUpdate, spent: Decimal) -> anyhow::Result<()> {
        let mut account = self.get(userid).cloned().unwrap_or_else(|| self.fresh(userid));
        if let Some(zone) = update.zone {
            account.zone = parse_zone(&zone)?;
        }
        account.password = update.password.unwrap_or(account.password);
        account.api_key = update.api_key.or(account.api_key);
        account.price = update.price.unwrap_or(account.price);
        account.funds = update.balance.map_or(account.funds, |balance| balance + spent);
        account.push_url = update.push_url.or(account.push_url).filter(|url| !url.is_empty());
        if account.password.is_empty() && account.api_key.is_none() {
            bail!("account {userid} has neither password nor api_key");
        }
        self.by_userid.insert(userid.to_owned(), account);
        Ok(())
    }

    /// Lowercase `userid` always, plus header `apiKey` or field `password`. An absent `userid` (say, `userId`) answers
    /// 216 as observed, not 213.
    pub fn authenticate(&self, fields: &Fields, api_key: Option<&str>) -> Result<&Account, Code> {
        let userid = fields.filled("userid").ok_or(codes::INVALID_CREDENTIALS)?;
        let account = self.get(userid);
        let proven = match api_key {
            Some(key) => account.filter(|account| account.api_key.as_deref() == Some(key)),
            None => {
                let password = fields.filled("password").ok_or(codes::PASSWORD_REQUIRED)?;
                account.filter(|account| account.password == password)
            }
        };
        proven.ok_or(codes::INVALID_CREDENTIALS)
    }
}

pub fn parse_zone(name: &str) -> anyhow::Result<Tz> {
    name.parse().map_err(|_| anyhow::anyhow!("unknown time zone {name}"))
}
