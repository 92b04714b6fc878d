//! SMSGatewayCenter: form-encoded requests, JSON answers; SMS and WhatsApp. It refuses other channels, and leaves grouping, de-duplication of
//! recipients and the choice of an alphabet to its caller.

mod answer;
mod codes;
mod login;
pub mod receipt;
pub mod report;
mod sms;
mod whatsapp;
mod wire;

#[cfg(test)]
mod answer_tests;

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use sendonce_core::clock::Deadline;
use sendonce_core::config::{Account, Budgets, IdLevel};
use sendonce_core::domain::message::{Channel, Class};
use sendonce_core::domain::outcome::{NotSent, Outcome};
use sendonce_core::provider::{Answer, Provider, SendRequest};

use crate::http::{ClientError, Post, Reach, SendingClient};
use answer::Judge;
use codes::CodeTable;
use login::Login;

pub use codes::BadCode;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Why an account cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadAccount {
    #[error("`{0}` is no base URL: scheme, host and port are needed")]
    Url(String),
    #[error("this provider has no channel {0}")]
    Channel(Channel),
    #[error("a WhatsApp account needs its `waba_number`")]
    WabaNumber,
    #[error("neither a password nor an API key is set")]
    Credentials,
    #[error("the API key cannot travel in a header")]
    ApiKey,
    #[error(transparent)]
    Code(#[from] BadCode),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Where the messages of an account's channel go.
enum Endpoint {
    Sms,
    Whatsapp { waba_number: String },
}

impl Endpoint {
    fn of(account: &Account) -> Result<Self, BadAccount> {
        match account.channel {
            Channel::Sms => Ok(Self::Sms),
            Channel::Whatsapp => {
                let waba_number = account.waba_number.clone().ok_or(BadAccount::WabaNumber)?;
                Ok(Self::Whatsapp { waba_number })
            }
            channel @ (Channel::Voice | Channel::Rcs | Channel::Telegram) => Err(BadAccount::Channel(channel)),
        }
    }
    fn path(&self) -> &'static str {
        match self {
            Self::Sms => "/SMSApi/send",
            Self::Whatsapp { .. } => "/WAApi/send",
        }
    }
    /// A WhatsApp answer names one message, so a request to several would leave all but one without an answer.
    fn takes(&self, request: &SendRequest) -> bool {
        match self {
            Self::Sms => request.channel == Channel::Sms && !request.recipients.is_empty(),
            Self::Whatsapp { .. } => request.channel == Channel::Whatsapp && request.recipients.len() == 1,
        }
    }
}

/// An account at SMSGatewayCenter.
pub struct SmsGatewayCenter {
    name: String,
    client: SendingClient,
    target: Endpoint,
    send_url: Url,
    login: Login,
    codes: CodeTable,
    id_level: IdLevel,
    request_id_header: bool,
    budgets: Budgets,
}

impl SmsGatewayCenter {
    /// Connects nothing yet.
    ///
    /// # Errors
    /// When the account cannot work.
    pub fn new(name: &str, account: &Account, budgets: &Budgets) -> Result<Self, BadAccount> {
        Self::reached_by(name, account, budgets, &Reach::default())
    }

    /// With another way to find and recognise the host.
    ///
    /// # Errors
    /// When the account cannot work.
    pub fn reached_by(name: &str, account: &Account, budgets: &Budgets, reach: &Reach) -> Result<Self, BadAccount> {
        let target = Endpoint::of(account)?;
        Ok(Self {
            name: name.to_owned(),
            client: SendingClient::new(account.pool_idle, budgets, reach)?,
            send_url: endpoint(&account.base_url, target.path())?,
            target,
            login: Login::new(account)?,
            codes: CodeTable::new(&account.codes)?,
            id_level: account.id_level(),
            request_id_header: account.request_id_header,
            budgets: budgets.clone(),
        })
    }

    fn post(&self, request: &SendRequest) -> Post {
        Post {
            url: self.send_url.clone(),
            headers: self.headers(request),
            body: self.form(request),
            timeout: match request.class {
                Class::Otp => self.budgets.http_otp,
                Class::Transactional | Class::Promotional => self.budgets.http,
            },
        }
    }

    fn headers(&self, request: &SendRequest) -> HeaderMap {
        let mut headers = self.login.headers();
        if self.request_id_header
            && let Ok(key) = HeaderValue::from_str(&request.attempt_key.to_string())
        {
            headers.insert(REQUEST_ID, key);
        }
        if let Some(Ok(parent)) = request.trace_parent.as_deref().map(HeaderValue::from_str) {
            headers.insert(TRACE_PARENT, parent);
        }
        headers
    }

    fn form(&self, request: &SendRequest) -> Bytes {
        let mut form = self.login.form();
        form.append_pair("sendMethod", "quick");
        match &self.target {
            Endpoint::Sms => sms::fields(&mut form, request),
            Endpoint::Whatsapp { waba_number } => whatsapp::fields(&mut form, request, waba_number),
        }
        form.append_pair("output", "json");
        Bytes::from(form.finish())
    }

    async fn submit(&self, request: &SendRequest, deadline: Deadline) -> Answer {
        if !self.target.takes(request) {
            return Answer { outcome: Outcome::NotSent(NotSent::Request), http_status: None };
        }
        match self.client.post(self.post(request), deadline).await {
            Err(none) => Answer { outcome: none.verdict.into(), http_status: none.status },
            Ok(reply) => {
                let judge = Judge {
                    channel: request.channel,
                    codes: &self.codes,
                    id_level: self.id_level,
                    sent: &request.recipients,
                };
                Answer { outcome: answer::judge(&reply, &judge), http_status: Some(reply.status) }
            }
        }
    }
}

fn endpoint(base: &str, path: &str) -> Result<Url, BadAccount> {
    let bad = || BadAccount::Url(base.to_owned());
    let mut url = Url::parse(base).map_err(|_| bad())?;
    url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
    let plain = url.has_host() && url.username().is_empty() && url.query().is_none() && url.fragment().is_none();
    if plain && matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(bad()) }
}

impl Provider for SmsGatewayCenter {
    fn send<'a>(&'a self, request: &'a SendRequest, deadline: Deadline) -> BoxFuture<'a, Answer> {
        Box::pin(self.submit(request, deadline))
    }
}

/// Name and address only: the rest is secret or noise.
impl fmt::Debug for SmsGatewayCenter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SmsGatewayCenter({} at {})", self.name, self.send_url)
    }
}
