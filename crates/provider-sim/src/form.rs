//! Request fields as the provider's PHP sees them: form body over query string, the last of a repeated name wins, and a
//! body of any other content type contributes nothing (which is why a JSON body ends as "Invalid credentials").

use std::collections::HashMap;

use axum::http::{HeaderMap, header::CONTENT_TYPE};

#[derive(Debug, Default)]
pub struct Fields(HashMap<String, String>);

impl Fields {
    pub fn read(query: Option<&str>, headers: &HeaderMap, body: &[u8]) -> Self {
        let mut fields = Self::default();
        fields.extend(query.unwrap_or_default().as_bytes());
        if is_form(headers) {
            fields.extend(body);
        }
        fields
    }

    fn extend(&mut self, encoded: &[u8]) {
        self.0.extend(form_urlencoded::parse(encoded).into_owned());
    }

    /// The value as sent, names being case sensitive.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value unless it is absent or empty.
    pub fn filled(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub fn owned(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.trim_start().to_ascii_lowercase().starts_with("application/x-www-form-urlencoded"))
}
