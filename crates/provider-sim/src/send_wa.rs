//! `POST /WAApi/send`: what differs from SMS. One recipient, a business number, one id and no invalidMobile in the answer,
//! and two ways to spell that answer; the ruling itself is [`crate::send_sms`]'s.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{ConnectInfo, RawQuery, State},
    http::HeaderMap,
    response::Response,
};

use crate::{
    answer::{Answer, Reply},
    codes::{self, Code},
    fate::{After, Fate},
    form::Fields,
    knobs::WaShape,
    ledger::Kind,
    node::Node,
    send_sms::{SendRequest, take},
    sim::Sim,
    socket::Line,
};

pub async fn handle(
    State(sim): State<Arc<Sim>>,
    ConnectInfo(line): ConnectInfo<Line>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    take(&sim, &line, SendRequest::read(Kind::WaSend, query.as_deref(), &headers, &body)).await
}

/// The text of a well-formed request.
pub fn text(fields: &Fields) -> Result<&str, Code> {
    if fields.get("sendMethod") != Some("quick") {
        return Err(codes::BAD_SEND_METHOD);
    }
    fields.filled("wabaNumber").ok_or(codes::WABA_REQUIRED)?;
    let mobile = fields.filled("mobile").ok_or(codes::MOBILE_REQUIRED)?;
    if mobile.contains(',') {
        return Err(codes::NO_VALID_MOBILE);
    }
    // Clients of sister deployments write it with a capital too.
    if !fields.get("msgType").is_some_and(|kind| kind.eq_ignore_ascii_case("text")) {
        return Err(codes::BAD_MSG_TYPE);
    }
    fields.filled("msg").ok_or(codes::MSG_REQUIRED)
}

/// The answer in one of its two spellings.
pub fn spell(shape: WaShape, answer: &Answer) -> Node {
    let (numeric, id_name, reason_name) = match shape {
        WaShape::Seed => (true, "messageId", "description"),
        WaShape::Sibling => (false, "transactionId", "reason"),
    };
    let node = |status: &str, code: &str, id: Option<&str>, reason: &str| {
        let mut fields = vec![("status", Node::text(status)), ("statusCode", Node::digits(code, numeric))];
        fields.extend(id.map(|id| (id_name, Node::text(id))));
        fields.push((reason_name, Node::text(reason)));
        Node::Object(fields)
    };
    match &answer.reply {
        Reply::Success(success) => {
            let id = match answer.fate {
                Fate::Accept(After::NoId) => None,
                Fate::Accept(After::ZeroId) => Some("0"),
                Fate::Accept(_) | Fate::Ignore(_) | Fate::Refuse(_) => Some(success.id.as_str()),
            };
            node("success", codes::SUCCESS, id, "success")
        }
        Reply::Refusal(code) => node("error", code.number, None, code.reason),
        Reply::Nothing => Node::Object(Vec::new()),
    }
}
