//! What travels between our own processes.

use serde::{Deserialize, Serialize};

use super::{Outgoing, topology};
use crate::domain::message::{Channel, Class, JobId};

/// "Work on this job." Names the job, never its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobMessage {
    pub job: JobId,
    /// How many rows it had when it was made: what a claim of it will read.
    pub rows: usize,
    pub account: String,
    /// Published by the sweep: the first message may be lost, or its worker dead.
    pub copy: bool,
}

/// The AMQP message of a job.
///
/// # Errors
/// Never in practice: the message is plain data.
pub fn job(channel: Channel, class: Class, message: &JobMessage) -> Result<Outgoing, serde_json::Error> {
    Ok(Outgoing {
        exchange: topology::JOBS,
        routing_key: topology::send_queue(channel, class),
        content_type: "application/json",
        message_id: Some(message.job.to_string()),
        headers: Vec::new(),
        body: serde_json::to_vec(message)?,
    })
}

/// A receipt as it came in, before anybody understands it. Everything that may name a person is in the body: headers
/// outlive a message in dead letters and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawReceipt {
    pub account: String,
    pub content_type: Option<String>,
    /// The body, or the query string of a GET.
    pub bytes: Vec<u8>,
    pub from_query: bool,
    pub trace_parent: Option<String>,
}

const ACCOUNT: &str = "sendonce-account";
const CONTENT_TYPE: &str = "sendonce-content-type";
const PART: &str = "sendonce-part";
/// The W3C trace context header.
pub const TRACE_PARENT: &str = "traceparent";

impl RawReceipt {
    /// The AMQP message of a raw receipt.
    #[must_use]
    pub fn outgoing(self) -> Outgoing {
        Outgoing {
            exchange: topology::RECEIPTS,
            routing_key: topology::RECEIPTS_QUEUE.to_owned(),
            content_type: "application/octet-stream",
            message_id: None,
            headers: vec![
                (ACCOUNT, self.account),
                (CONTENT_TYPE, self.content_type.unwrap_or_default()),
                (PART, if self.from_query { "query" } else { "body" }.to_owned()),
            ],
            body: self.bytes,
        }
        .traced(self.trace_parent)
    }

    /// Reads it back; `None` for a message that is no raw receipt.
    #[must_use]
    pub fn of(delivery: &super::Delivery) -> Option<Self> {
        Some(Self {
            account: delivery.header(ACCOUNT)?,
            content_type: delivery.header(CONTENT_TYPE),
            bytes: delivery.body.clone(),
            from_query: delivery.header(PART)? == "query",
            trace_parent: delivery.header(TRACE_PARENT),
        })
    }
}
