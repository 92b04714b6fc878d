//! SMSGatewayCenter: form-encoded requests, JSON answers. It refuses other channels, and leaves grouping, de-duplication of
//! recipients and the choice of an alphabet to its caller.

mod answer;
mod codes;
pub mod receipt;
mod wire;

#[cfg(test)]
mod answer_tests;

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use sendonce_core::clock::Deadline;
use sendonce_core::config::{Account, Budgets, IdLevel};
use sendonce_core::domain::message::{Channel, Class, Encoding};
use sendonce_core::domain::outcome::{NotSent, Outcome};
use sendonce_core::provider::{Answer, Provider, SendRequest};

use crate::http::{ClientError, Post, Reach, SendingClient};
use answer::Judge;
use codes::CodeTable;

pub use codes::BadCode;

const API_KEY: HeaderName = HeaderName::from_static("apikey");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Why an account cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadAccount {
    #[error("`{0}` is no base URL: scheme, host and port are needed")]
    Url(String),
    #[error("this provider has no channel {0}")]
    Channel(Channel),
    #[error("neither a password nor an API key is set")]
    Credentials,
    #[error("the API key cannot travel in a header")]
    ApiKey,
    #[error(transparent)]
    Code(#[from] BadCode),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// One of the two: the provider wants exactly one method.
enum Credential {
    Password(SecretString),
    /// Marked sensitive.
    ApiKey(HeaderValue),
}

/// An account at SMSGatewayCenter.
pub struct SmsGatewayCenter {
    name: String,
    client: SendingClient,
    send_url: Url,
    userid: String,
    credential: Credential,
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
        if account.channel != Channel::Sms {
            return Err(BadAccount::Channel(account.channel));
        }
        let credential = match (&account.api_key, &account.password) {
            (Some(key), _) => {
                let mut header = HeaderValue::from_str(key.expose_secret()).map_err(|_| BadAccount::ApiKey)?;
                header.set_sensitive(true);
                Credential::ApiKey(header)
            }
            (None, Some(password)) => Credential::Password(password.clone()),
            (None, None) => return Err(BadAccount::Credentials),
        };
        Ok(Self {
            name: name.to_owned(),
            client: SendingClient::new(account.pool_idle, budgets, reach)?,
            send_url: endpoint(&account.base_url, "/SMSApi/send")?,
            userid: account.userid.clone(),
            credential,
            codes: CodeTable::new(&account.codes)?,
            id_level: account.id_level,
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
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Credential::ApiKey(key) = &self.credential {
            headers.insert(API_KEY, key.clone());
        }
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

    /// Spellings matter: `userId` and `duplicateCheck` are accepted and ignored.
    fn form(&self, request: &SendRequest) -> Bytes {
        let recipients: Vec<&str> = request.recipients.iter().map(|recipient| recipient.expose()).collect();
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("userid", &self.userid);
        if let Credential::Password(password) = &self.credential {
            form.append_pair("password", password.expose_secret());
        }
        form.append_pair("sendMethod", "quick");
        form.append_pair("mobile", &recipients.join(","));
        form.append_pair("msg", request.body.expose());
        form.append_pair(
            "msgType",
            match request.encoding {
                Encoding::Gsm7 => "text",
                Encoding::Ucs2 => "unicode",
            },
        );
        form.append_pair("duplicatecheck", "true");
        let optional = [
            ("senderid", &request.sender_id),
            ("dltEntityId", &request.dlt_entity_id),
            ("dltTemplateId", &request.dlt_template_id),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                form.append_pair(name, value);
            }
        }
        form.append_pair("output", "json");
        Bytes::from(form.finish())
    }

    async fn submit(&self, request: &SendRequest, deadline: Deadline) -> Answer {
        if request.channel != Channel::Sms || request.recipients.is_empty() {
            return Answer { outcome: Outcome::NotSent(NotSent::Request), http_status: None };
        }
        match self.client.post(self.post(request), deadline).await {
            Err(none) => Answer { outcome: none.verdict.into(), http_status: none.status },
            Ok(reply) => {
                let judge = Judge { codes: &self.codes, id_level: self.id_level, sent: &request.recipients };
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
