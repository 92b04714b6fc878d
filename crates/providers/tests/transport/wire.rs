//! What a submission looks like on the wire, and what comes of the provider's answers to it.

use std::sync::Arc;
use std::time::Duration;

use sendonce_core::clock::{Deadline, SystemClock};
use sendonce_core::config::{Account, Budgets};
use sendonce_core::domain::message::{AttemptKey, Body, Channel, Class, Encoding, ProviderRef, Recipient};
use sendonce_core::domain::outcome::{Ambiguity, NotSent, Outcome};
use sendonce_core::provider::{Answer, SendRequest};
use sendonce_providers::{BadAccount, connect};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::peer::Peer;
use crate::{hasty, in_time, install_tls, patient};

const SUCCESS: &str = include_str!("../../fixtures/send_success.json");
const THROTTLED: &str = include_str!("../../fixtures/send_error_throttled.json");

fn account(base_url: &str, with: Value) -> Account {
    let mut fields = json!({
        "dialect": "smsgatewaycenter", "channel": "sms", "base_url": base_url, "userid": "acme",
        "codes": { "throttle": ["341"] },
    });
    for (name, value) in with.as_object().unwrap() {
        fields[name] = value.clone();
    }
    serde_json::from_value(fields).unwrap()
}
fn with_password(base_url: &str) -> Account {
    account(base_url, json!({ "password": "p&ss w=rd" }))
}

fn request() -> SendRequest {
    SendRequest {
        attempt_key: AttemptKey(Uuid::from_u128(0x1234)),
        channel: Channel::Sms,
        class: Class::Transactional,
        sender_id: Some("ACMEIN".into()),
        body: Body::new("Hi & bye, 50% off + more".into()),
        encoding: Encoding::Gsm7,
        dlt_entity_id: Some("0001234567890123456".into()),
        dlt_template_id: Some("1107161234567890123".into()),
        recipients: ["919999999999", "919999999998"].iter().filter_map(|n| Recipient::from_e164_digits(n)).collect(),
        trace_parent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
    }
}

/// Answers every request with the JSON `body` under `status_line`.
async fn provider(status_line: &'static str, body: &'static str) -> Peer {
    Peer::new(move |mut conn, _| async move {
        while conn.request().await.is_some() {
            conn.say(&format!("HTTP/1.1 {status_line}\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
        }
    })
    .await
}
async fn submit(account: &Account, request: &SendRequest) -> Answer {
    install_tls();
    connect("acme-sms", account, &patient()).unwrap().send(request, in_time()).await
}

#[tokio::test]
async fn a_submission_with_a_password() {
    let peer = provider("200 OK", SUCCESS).await;
    let answer = submit(&with_password(&format!("http://{}/", peer.at)), &request()).await;
    assert_eq!(answer.http_status, Some(200));
    let Outcome::Accepted(accepted) = answer.outcome else { panic!("{answer:?}") };
    assert_eq!(accepted.txn_id, ProviderRef::clean("6305583318236810379"));

    let seen = peer.settle().await.requests;
    let (head, body) = seen[0].split_once("\r\n\r\n").unwrap();
    let lines: Vec<&str> = head.lines().collect();
    assert_eq!(lines[0], "POST /SMSApi/send HTTP/1.1");
    for header in [
        "content-type: application/x-www-form-urlencoded",
        "accept: application/json",
        "x-request-id: 00000000-0000-0000-0000-000000001234",
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        format!("content-length: {}", body.len()).as_str(),
    ] {
        assert!(lines.contains(&header), "{header} is not in {lines:?}");
    }
    for absent in ["apikey", "transfer-encoding", "referer", "expect"] {
        assert!(!lines.iter().any(|line| line.starts_with(absent)), "{absent}");
    }
    assert_eq!(
        body,
        "userid=acme&password=p%26ss+w%3Drd&sendMethod=quick&mobile=919999999999%2C919999999998\
         &msg=Hi+%26+bye%2C+50%25+off+%2B+more&msgType=text&duplicatecheck=true&senderid=ACMEIN\
         &dltEntityId=0001234567890123456&dltTemplateId=1107161234567890123&output=json"
    );
    assert_eq!(seen.len(), 1);
}

#[tokio::test]
async fn a_submission_with_an_api_key_in_unicode_without_the_optional() {
    let peer = provider("200 OK", SUCCESS).await;
    let with = json!({ "api_key": "k-123", "password": "unused", "request_id_header": false });
    let bare = SendRequest {
        body: Body::new("नमस्ते".into()),
        encoding: Encoding::Ucs2,
        sender_id: None,
        dlt_entity_id: None,
        dlt_template_id: None,
        trace_parent: Some("not\na header".into()),
        ..request()
    };
    submit(&account(&format!("http://{}/base", peer.at), with), &bare).await;
    let seen = peer.settle().await.requests;
    let (head, body) = seen[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /base/SMSApi/send HTTP/1.1"), "{head}");
    assert!(head.contains("apikey: k-123"), "{head}");
    assert!(!head.contains("x-request-id") && !head.contains("traceparent"), "{head}");
    assert_eq!(
        body,
        "userid=acme&sendMethod=quick&mobile=919999999999%2C919999999998\
         &msg=%E0%A4%A8%E0%A4%AE%E0%A4%B8%E0%A5%8D%E0%A4%A4%E0%A5%87&msgType=unicode&duplicatecheck=true&output=json"
    );
}

fn on_whatsapp(base_url: &str) -> Account {
    account(base_url, json!({ "password": "p&ss", "channel": "whatsapp", "waba_number": "919000000000" }))
}

#[tokio::test]
async fn i14_a_whatsapp_submission_names_one_recipient_and_nothing_of_sms() {
    let peer = provider("200 OK", include_str!("../../fixtures/whatsapp_success_seed.json")).await;
    let to_one = |text: &str, encoding| SendRequest {
        channel: Channel::Whatsapp,
        body: Body::new(text.into()),
        encoding,
        recipients: request().recipients.into_iter().take(1).collect(),
        ..request()
    };
    let account = on_whatsapp(&format!("http://{}", peer.at));
    let answer = submit(&account, &to_one("Hi & bye", Encoding::Gsm7)).await;
    let Outcome::Accepted(accepted) = answer.outcome else { panic!("{answer:?}") };
    assert_eq!((accepted.txn_id, accepted.message_id), (None, ProviderRef::clean("wamidHBgMOTE5ODc2")));
    // Text is text here, whatever its alphabet.
    submit(&account, &to_one("ok 👍", Encoding::Ucs2)).await;

    let seen = peer.settle().await.requests;
    for (request, text) in seen.iter().zip(["Hi+%26+bye", "ok+%F0%9F%91%8D"]) {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /WAApi/send HTTP/1.1"), "{head}");
        assert!(head.contains("x-request-id: 00000000-0000-0000-0000-000000001234"), "{head}");
        assert_eq!(
            body,
            format!(
                "userid=acme&password=p%26ss&sendMethod=quick&wabaNumber=919000000000&mobile=919999999999&msgType=text\
                 &msg={text}&output=json"
            )
        );
    }
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn i1_the_status_decides_where_the_body_may_not() {
    for (status_line, status, expected) in [
        ("502 Bad Gateway", 502, Ambiguity::ServerError),
        ("404 Not Found", 404, Ambiguity::UnexpectedStatus),
        ("307 Temporary Redirect\r\nlocation: /elsewhere", 307, Ambiguity::UnexpectedStatus),
    ] {
        let peer = provider(status_line, SUCCESS).await;
        let answer = submit(&with_password(&format!("http://{}", peer.at)), &request()).await;
        assert_eq!(answer, Answer { outcome: Outcome::Ambiguous(expected), http_status: Some(status) });
        assert_eq!(peer.settle().await.requests.len(), 1);
    }
}

#[tokio::test]
async fn a_throttle_names_the_providers_wait() {
    let peer = provider("429 Too Many Requests\r\nretry-after: 12", THROTTLED).await;
    let answer = submit(&with_password(&format!("http://{}", peer.at)), &request()).await;
    let Outcome::Throttled { retry_after, .. } = answer.outcome else { panic!("{answer:?}") };
    assert_eq!(retry_after, Some(Duration::from_secs(12)));
}

#[tokio::test]
async fn one_time_passwords_have_their_own_patience() {
    install_tls();
    let peer = Peer::new(|conn, _| conn.stall()).await;
    let budgets = Budgets { http_otp: hasty().http, ..patient() };
    let provider = connect("acme-sms", &with_password(&format!("http://{}", peer.at)), &budgets).unwrap();
    let otp = SendRequest { class: Class::Otp, ..request() };
    let answer = tokio::time::timeout(Duration::from_secs(15), provider.send(&otp, in_time())).await.unwrap();
    assert_eq!(answer, Answer { outcome: Outcome::Ambiguous(Ambiguity::Timeout), http_status: None });
}

#[tokio::test]
async fn what_cannot_be_submitted_or_comes_too_late_never_leaves() {
    install_tls();
    let peer = provider("200 OK", SUCCESS).await;
    let provider = connect("acme-sms", &with_password(&format!("http://{}", peer.at)), &patient()).unwrap();
    let nobody = SendRequest { recipients: Vec::new(), ..request() };
    let elsewhere = SendRequest { channel: Channel::Whatsapp, ..request() };
    let late = Deadline::after(Arc::new(SystemClock), Duration::ZERO);
    for (request, deadline, reason) in [
        (&nobody, in_time(), NotSent::Request),
        (&elsewhere, in_time(), NotSent::Request),
        (&request(), late, NotSent::BudgetOver),
    ] {
        let answer = provider.send(request, deadline).await;
        assert_eq!(answer, Answer { outcome: Outcome::NotSent(reason), http_status: None });
    }
    let whatsapp = connect("acme-wa", &on_whatsapp(&format!("http://{}", peer.at)), &patient()).unwrap();
    let to_two = SendRequest { channel: Channel::Whatsapp, ..request() };
    for request in [&request(), &nobody, &to_two] {
        let answer = whatsapp.send(request, in_time()).await;
        assert_eq!(answer, Answer { outcome: Outcome::NotSent(NotSent::Request), http_status: None });
    }
    drop((provider, whatsapp));
    assert_eq!(peer.settle().await.connections, 0);
}

/// A bad URL, like every account that cannot work, is refused before anything is claimed.
#[test]
fn i1_an_account_that_cannot_work_is_refused_at_the_start() {
    install_tls();
    let refused = |account: &Account| connect("acme-sms", account, &patient()).unwrap_err();
    for url in [
        "http://exa mple",
        "not a url",
        "ftp://sms.example",
        "https://",
        "https://user:pw@sms.example",
        "https://sms.example/?a=b",
    ] {
        assert!(matches!(refused(&with_password(url)), BadAccount::Url(_)), "{url}");
    }
    let here = "https://sms.example";
    assert!(matches!(refused(&account(here, json!({}))), BadAccount::Credentials));
    assert!(matches!(refused(&account(here, json!({ "api_key": "two\nlines" }))), BadAccount::ApiKey));
    let on = |channel| account(here, json!({ "password": "p", "channel": channel }));
    assert!(matches!(refused(&on("rcs")), BadAccount::Channel(_)));
    assert!(matches!(refused(&on("whatsapp")), BadAccount::WabaNumber));
    let codes = json!({ "password": "p", "codes": { "message": ["200"] } });
    assert!(matches!(refused(&account(here, codes)), BadAccount::Code(_)));
}

#[test]
fn i11_an_account_never_prints_its_secrets() {
    install_tls();
    for with in [json!({ "password": "s3cret" }), json!({ "api_key": "s3cret" })] {
        let provider = connect("acme-sms", &account("https://sms.example", with), &patient()).unwrap();
        assert_eq!(format!("{provider:?}"), "SmsGatewayCenter(acme-sms at https://sms.example/SMSApi/send)");
    }
}
