//! The seam to a provider: what a sender hands over and what it gets back. The dialects live in their own crate.

use std::fmt;

use futures_util::future::BoxFuture;

use crate::clock::Deadline;
use crate::domain::message::{AttemptKey, Body, Channel, Class, Encoding, Recipient};
use crate::domain::outcome::Outcome;

/// One request on the wire: a single message, or equal bodies to many recipients.
#[derive(Debug, Clone)]
pub struct SendRequest {
    pub attempt_key: AttemptKey,
    pub channel: Channel,
    pub class: Class,
    pub sender_id: Option<String>,
    pub body: Body,
    pub encoding: Encoding,
    pub dlt_entity_id: Option<String>,
    pub dlt_template_id: Option<String>,
    /// At least one, never the same twice.
    pub recipients: Vec<Recipient>,
    /// W3C traceparent of the first message.
    pub trace_parent: Option<String>,
}

/// What came back for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub outcome: Outcome,
    /// Status line of the response, when one was read.
    pub http_status: Option<u16>,
}

/// One account at one provider, in that provider's dialect.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Submits `request` at most once. The body is handed over before `deadline` or not at all. Never fails: whatever
    /// happens is an outcome.
    fn send<'a>(&'a self, request: &'a SendRequest, deadline: Deadline) -> BoxFuture<'a, Answer>;
}
