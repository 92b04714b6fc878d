//! Who asks: the part that every request has in common. It refuses to send both secrets.

use form_urlencoded::Serializer;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use sendonce_core::config::Account;

use super::BadAccount;

const API_KEY: HeaderName = HeaderName::from_static("apikey");

/// One of the two: the provider wants exactly one method.
enum Credential {
    Password(SecretString),
    /// Marked sensitive.
    ApiKey(HeaderValue),
}

pub(super) struct Login {
    userid: String,
    credential: Credential,
}

impl Login {
    pub(super) fn new(account: &Account) -> Result<Self, BadAccount> {
        let credential = match (&account.api_key, &account.password) {
            (Some(key), _) => {
                let mut header = HeaderValue::from_str(key.expose_secret()).map_err(|_| BadAccount::ApiKey)?;
                header.set_sensitive(true);
                Credential::ApiKey(header)
            }
            (None, Some(password)) => Credential::Password(password.clone()),
            (None, None) => return Err(BadAccount::Credentials),
        };
        Ok(Self { userid: account.userid.clone(), credential })
    }

    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Credential::ApiKey(key) = &self.credential {
            headers.insert(API_KEY, key.clone());
        }
        headers
    }

    /// The start of a form. `userId` in camel case counts as no user at all.
    pub(super) fn form(&self) -> Serializer<'static, String> {
        let mut form = Serializer::new(String::new());
        form.append_pair("userid", &self.userid);
        if let Credential::Password(password) = &self.credential {
            form.append_pair("password", password.expose_secret());
        }
        form
    }
}
