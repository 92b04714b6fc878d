use std::collections::HashSet;

use chrono::TimeZone;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn now() -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 11, 30, 12, 0, 0).unwrap()
}

const NUMBER: &str = "+919876543210";
const SECRET: &str = "Your code is 493817";

fn data() -> Value {
    json!({
        "tenant": "acme", "class": "transactional", "event_type": "order.shipped", "event_id": "evt-1",
        "recipients": [NUMBER, {"number": "9876543211"}], "body": SECRET,
    })
}

fn envelope(data: Value) -> Value {
    json!({
        "specversion": "1.0", "id": "ce-1", "source": "/orders", "type": SEND, "time": "2026-11-30T11:59:00Z",
        "datacontenttype": "application/json", "data": data,
    })
}

/// The valid event with one field of the envelope or (with a leading `data.`) of `data` set; null takes it out.
fn with(path: &str, value: Value) -> Vec<u8> {
    let mut event = envelope(data());
    let object = match path.strip_prefix("data.") {
        Some(_) => event["data"].as_object_mut().unwrap(),
        None => event.as_object_mut().unwrap(),
    };
    let name = path.strip_prefix("data.").unwrap_or(path).to_owned();
    if value.is_null() {
        object.remove(&name)
    } else {
        object.insert(name, value)
    };
    serde_json::to_vec(&event).unwrap()
}

fn read(body: &[u8]) -> Result<Event, Rejection> {
    parse(body, Surroundings::default(), now())
}

fn sent(body: &[u8]) -> SendEvent {
    match read(body).unwrap() {
        Event::Send(event) => *event,
        Event::Cancel(cancel) => panic!("{cancel:?}"),
    }
}

fn refused(body: &[u8]) -> Rejection {
    read(body).unwrap_err()
}

/// Raw bytes, or a change of the valid event, and the reason it is parked for.
fn hostile() -> Vec<(Vec<u8>, RejectReason)> {
    use RejectReason::*;
    let raw = |bytes: &[u8]| bytes.to_vec();
    let text = |from: &str, to: &str| {
        let event = String::from_utf8(serde_json::to_vec(&envelope(data())).unwrap()).unwrap();
        assert!(event.contains(from), "{from}");
        event.replacen(from, to, 1).into_bytes()
    };
    let twice = json!({"event_id": "e", "business_key": "0".repeat(64), "tenant": "acme", "reason": "r"});
    let cancel = |data: Value| {
        serde_json::to_vec(&json!({"type": CANCEL, "specversion": "1.0", "id": "1", "source": "s", "data": data}))
            .unwrap()
    };
    vec![
        (vec![b' '; MAX_BYTES + 1], TooLarge),
        (with("data.body", "x".repeat(MAX_BYTES).into()), TooLarge),
        (raw(b"\xef\xbb\xbf{}"), HasBom),
        (raw(b"{\"tenant\":\"\xff\"}"), NotUtf8),
        (raw(b"\xff\xfe{\0}\0"), NotUtf8),
        (raw(b""), NotJson),
        (raw(b"tenant=acme&body=hi"), NotJson),
        (raw(b"{\"tenant\":\"acme\""), NotJson),
        (raw(b"{} {}"), NotJson),
        (text("\"acme\"", "\"ac\u{1}me\""), NotJson),
        ([b"[".repeat(100_000), b"]".repeat(100_000)].concat(), TooDeep),
        (b"{\"a\":".repeat(100_000), TooDeep),
        (text("\"tenant\":\"acme\"", "\"tenant\":\"acme\",\"tenant\":\"evil\""), DuplicateKey),
        (text("\"tenant\":\"acme\"", "\"tenant\":\"acme\",\"ten\\u0061nt\":\"evil\""), DuplicateKey),
        (text("\"body\":\"", "\"body\":\"\\u0000"), HasNul),
        (text("\"tenant\"", "\"tenant\\u0000\""), HasNul),
        (text("\"acme\"", "1e400"), NumberOutOfRange),
        (raw(b"[]"), NotAnObject),
        (raw(b"\"event\""), NotAnObject),
        (raw(b"null"), NotAnObject),
        (with("specversion", "0.3".into()), SpecversionUnsupported),
        (with("datacontenttype", "text/xml".into()), ContentTypeUnsupported),
        (with("data_base64", "e30=".into()), ContentTypeUnsupported),
        (with("type", "message.send.v2".into()), UnknownType),
        (with("type", "otp.verify.v1".into()), UnknownType),
        (with("id", Value::Null), FieldMissing),
        (with("source", Value::Null), FieldMissing),
        (with("type", Value::Null), FieldMissing),
        (with("data", Value::Null), FieldMissing),
        (with("data.tenant", Value::Null), FieldMissing),
        (with("data.class", Value::Null), FieldMissing),
        (with("data.event_type", Value::Null), FieldMissing),
        (with("data.event_id", Value::Null), FieldMissing),
        (with("data.recipients", Value::Null), FieldMissing),
        (with("data.bdy", "x".into()), FieldUnknown),
        (with("data.dlt", json!({"template": "1"})), FieldUnknown),
        (with("specversion", 1.into()), FieldInvalid),
        (with("data", json!([1])), FieldInvalid),
        (with("data.tenant", 7.into()), FieldInvalid),
        (with("data.tenant", "".into()), FieldInvalid),
        (with("data.event_id", " \u{a0}".into()), FieldInvalid),
        (with("data.event_id", "a\r\nX-Header: b".into()), FieldInvalid),
        (with("data.sender_id", "VK\n".into()), FieldInvalid),
        (with("data.class", "urgent".into()), FieldInvalid),
        (with("data.channels", json!(["fax"])), FieldInvalid),
        (with("data.channels", json!([])), FieldInvalid),
        (with("data.channels", json!(["sms", "sms"])), FieldInvalid),
        (with("data.recipients", NUMBER.into()), FieldInvalid),
        (with("data.dlt", json!({"template_id": 1_107_161_234_567_890_123_u64})), FieldInvalid),
        (with("data.dlt", json!(["0001", "0002"])), FieldInvalid),
        (with("data.template", json!(["order_shipped"])), FieldInvalid),
        (with("data.ttl_seconds", 0.into()), FieldInvalid),
        (with("data.ttl_seconds", u64::MAX.into()), FieldInvalid),
        (with("data.ttl_seconds", (-5).into()), FieldInvalid),
        (with("data.ttl_seconds", 1.5.into()), FieldInvalid),
        (cancel(twice), FieldInvalid),
        (cancel(json!({"tenant": "acme", "reason": "r"})), FieldInvalid),
        (cancel(json!({"tenant": "acme", "reason": "r", "business_key": "xyz"})), FieldInvalid),
        (with("data.event_id", "x".repeat(MAX_NAME + 1).into()), FieldTooLong),
        (with("source", "x".repeat(MAX_NAME + 1).into()), FieldTooLong),
        (with("time", "yesterday".into()), TimeInvalid),
        (with("data.expires_at", "2026-02-30T00:00:00Z".into()), TimeInvalid),
        (with("data.scheduled_for", "2026-12-01T10:00:00".into()), TimeWithoutOffset),
        (with("data.expires_at", "2026-12-01 10:00".into()), TimeWithoutOffset),
        (with("time", "2025-11-05T11:59:59Z".into()), EventTooOld),
        (with("data.scheduled_for", "2027-12-31T00:00:00Z".into()), ScheduleTooFar),
        (
            {
                let mut event = envelope(data());
                event["data"]["ttl_seconds"] = 60.into();
                event["data"]["expires_at"] = "2026-12-01T00:00:00Z".into();
                serde_json::to_vec(&event).unwrap()
            },
            ExpiryTwice,
        ),
        (with("data.recipients", json!([])), RecipientsNone),
        (with("data.recipients", json!(vec!["1"; MAX_RECIPIENTS + 1])), RecipientsTooMany),
        (with("data.body", Value::Null), ContentMissing),
        (
            {
                let mut event = envelope(data());
                event["data"].as_object_mut().unwrap().remove("body");
                event["data"]["template"] = json!({"id": "order_shipped", "params": {"name": "Asha"}});
                serde_json::to_vec(&event).unwrap()
            },
            TemplateUnknown,
        ),
        (with("data.template", json!({"id": "t", "params": {"code": "493817"}})), ParamsWithBody),
    ]
}

#[test]
fn f17_every_hostile_event_has_its_reason() {
    for (body, reason) in hostile() {
        let shown: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        assert_eq!(refused(&body).reason, reason, "{shown}");
    }
}

/// `RecipientUnreadable` refuses a recipient, not the event; it has a test of its own.
#[test]
fn f17_every_reason_is_in_the_table() {
    let tested: HashSet<&str> = hostile().iter().map(|(_, reason)| reason.as_str()).collect();
    let untested: Vec<_> = RejectReason::ALL.iter().filter(|reason| !tested.contains(reason.as_str())).collect();
    assert_eq!(untested, [&RejectReason::RecipientUnreadable]);
}

#[test]
fn f17_a_refusal_says_where() {
    let table = [
        (with("data.bdy", "x".into()), "data: unknown field `bdy`, expected one of `tenant`, `class`"),
        (with("data.tenant", Value::Null), "data: missing field `tenant`"),
        (with("data.dlt", json!({"entity_id": 5})), "data.dlt.entity_id: expected a string"),
        (with("data.class", "x".into()), "data.class: expected one of `otp`, `transactional`, `promotional`"),
        (with("data.channels", json!(["sms", "fax"])), "data.channels[1]: expected one of `sms`"),
        (
            with("data.template", json!({"id": "t", "params": {"493817": 1}})),
            "data.template.params.…: expected a string",
        ),
        (with("time", 5.into()), "time: expected a string"),
        (with("data.scheduled_for", "2026-12-01T10:00:00".into()), "data.scheduled_for: a time needs its offset"),
    ];
    for (body, expected) in table {
        let detail = refused(&body).detail;
        assert!(detail.starts_with(expected), "{detail}");
    }
}

#[test]
fn i11_no_refusal_repeats_what_it_found() {
    let canary = "919876543210 493817, expected canary";
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for field in [
        "tenant",
        "class",
        "event_type",
        "event_id",
        "recipients",
        "channels",
        "template",
        "body",
        "sender_id",
        "dlt",
        "scheduled_for",
        "expires_at",
        "ttl_seconds",
        "campaign",
        "step",
        "canary_field",
    ] {
        for value in [
            json!(canary),
            json!(format!("{canary}\n")),
            json!([canary]),
            json!({canary: canary}),
            json!([[canary]]),
            json!({"id": canary, "params": {canary: [canary]}}),
            json!({"id": "t", "params": {"code": canary}}),
            json!({"entity_id": {canary: 1}}),
            json!(919_876_543_210_u64),
            json!(canary.repeat(20)),
        ] {
            bodies.push(with(&format!("data.{field}"), value));
        }
    }
    for field in ["specversion", "id", "source", "type", "time", "expirytime", "datacontenttype", "data"] {
        bodies.push(with(field, canary.into()));
        bodies.push(with(field, json!([canary])));
        bodies.push(with(field, format!("{canary}\r").into()));
    }
    let mut unknown = data();
    unknown[canary] = 1.into();
    bodies.push(serde_json::to_vec(&unknown).unwrap());
    bodies.push(format!("{{\"919876543210\":493817 \"{canary}\"}}").into_bytes());
    let mut refusals = 0;
    for body in bodies {
        let Err(rejection) = read(&body) else { continue };
        refusals += 1;
        for part in ["919876543210", "493817", "canary"] {
            // A plain field name, as a misspelt one, is shown: it is what the publisher must find.
            let shown = rejection.detail.replace("canary_field", "");
            assert!(!shown.contains(part), "{shown}");
        }
    }
    assert!(refusals > 100, "{refusals}");
}

#[test]
fn i11_events_do_not_print_numbers_or_bodies() {
    let mut body = data();
    body["recipients"] = json!([NUMBER, {"number": "9876543211", "params": {"code": "493817"}}, 919_876_543_212_u64]);
    let event = read(&serde_json::to_vec(&body).unwrap()).unwrap();
    let wire: SendData = serde_json::from_value(body).unwrap();
    let Event::Send(send) = &event else { panic!() };
    let printed = format!("{event:?} {wire:?} {:?} {:?} {:?}", wire.recipients, wire.template, send.recipients);
    for part in ["98765", "493817", "code"] {
        assert!(!printed.contains(part), "{printed}");
    }
}

#[test]
fn a_whole_event_is_read_as_written() {
    let mut event = envelope(json!({
        "tenant": "acme", "class": "otp", "event_type": "login", "event_id": "e", "recipients": ["1", {"number": "2"}],
        "channels": ["whatsapp", "sms"], "template": {"id": "login_code"}, "body": "x\ny", "sender_id": "ACMEIN",
        "dlt": {"entity_id": "0001234", "template_id": "1107161234567890123"}, "scheduled_for": "2026-12-01T10:00:00+05:30",
        "ttl_seconds": 90, "campaign": "c", "step": "2",
    }));
    event["expirytime"] = "2026-12-02T00:00:00Z".into();
    event["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into();
    event["extension"] = json!({"of": ["somebody", "else"]});
    let event = sent(&serde_json::to_vec(&event).unwrap());
    assert_eq!((event.tenant.as_str(), event.class, event.step.as_deref()), ("acme", Class::Otp, Some("2")));
    assert_eq!(event.recipients, [Addressee::Number("1".into()), Addressee::Number("2".into())]);
    assert_eq!(event.channels, [Channel::Whatsapp, Channel::Sms]);
    assert_eq!((event.template.as_deref(), event.body.expose()), (Some("login_code"), "x\ny"));
    // 19 digits and leading zeros survive: ids are text.
    assert_eq!(event.dlt_entity_id.as_deref(), Some("0001234"));
    assert_eq!(event.dlt_template_id.as_deref(), Some("1107161234567890123"));
    assert_eq!(event.scheduled_for, Some(Utc.with_ymd_and_hms(2026, 12, 1, 4, 30, 0).unwrap()));
    assert_eq!(event.ttl, Some(Duration::from_secs(90)));
    assert_eq!(event.expires_at, Some(Utc.with_ymd_and_hms(2026, 12, 2, 0, 0, 0).unwrap()));
    assert_eq!(event.at, Some(Utc.with_ymd_and_hms(2026, 11, 30, 11, 59, 0).unwrap()));
    assert_eq!(event.source.as_deref(), Some("/orders"));
    assert_eq!(event.trace_parent.as_deref(), Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
}

#[test]
fn data_without_envelope_takes_id_and_time_from_the_delivery() {
    let mut bare = data();
    let published = now() - Duration::from_secs(5);
    let around = Surroundings { message_id: Some("amqp-7"), published_at: Some(published), trace_parent: Some("junk") };
    let id_of = |data: &Value| match parse(&serde_json::to_vec(data).unwrap(), around, now()) {
        Ok(Event::Send(event)) => (event.event_id, event.at, event.trace_parent),
        other => panic!("{other:?}"),
    };
    assert_eq!(id_of(&bare), ("evt-1".to_owned(), Some(published), None));
    bare.as_object_mut().unwrap().remove("event_id");
    assert_eq!(id_of(&bare).0, "amqp-7");
    // Under an envelope the event's own id is required: the envelope's id may differ on a retry.
    let enveloped = serde_json::to_vec(&envelope(bare.clone())).unwrap();
    assert_eq!(parse(&enveloped, around, now()).unwrap_err().reason, RejectReason::FieldMissing);
    assert_eq!(refused(&serde_json::to_vec(&bare).unwrap()).reason, RejectReason::FieldMissing);
}

#[test]
fn one_bad_recipient_leaves_the_others() {
    let recipients = json!([NUMBER, 919_876_543_210_u64, null, {"nummer": "1"}, {"number": "1", "params": {"a": "b"}}, ["1"], "x,y"]);
    let event = sent(&with("data.recipients", recipients));
    let kinds: Vec<Option<RejectReason>> = event
        .recipients
        .iter()
        .map(|addressee| match addressee {
            Addressee::Number(_) => None,
            Addressee::Refused { reason, .. } => Some(*reason),
        })
        .collect();
    use RejectReason::{ParamsWithBody, RecipientUnreadable};
    let unreadable = Some(RecipientUnreadable);
    assert_eq!(kinds, [None, unreadable, unreadable, unreadable, Some(ParamsWithBody), unreadable, None]);
    let huge = sent(&with("data.recipients", json!([["x".repeat(900_000)]])));
    let Addressee::Refused { raw, .. } = &huge.recipients[0] else { panic!() };
    assert_eq!(raw.chars().count(), MAX_NAME);
}

#[test]
fn a_refused_event_is_found_by_tenant_and_id_where_they_could_be_read() {
    let rejection = refused(&with("data.class", "urgent".into()));
    assert_eq!((rejection.tenant.as_deref(), rejection.event_id.as_deref()), (Some("acme"), Some("evt-1")));
    let rejection = refused(&with("data.event_id", "x".repeat(5000).into()));
    assert_eq!(rejection.event_id.map(|id| id.len()), Some(MAX_NAME));
    assert_eq!(refused(b"{").tenant, None);
}

#[test]
fn an_event_is_too_old_only_beyond_the_horizon_and_by_its_own_time_first() {
    let at = |time: &str| read(&with("time", time.into())).map(|_| ());
    assert!(at("2025-11-05T12:00:00Z").is_ok());
    assert_eq!(at("2025-11-05T17:29:59+05:30").unwrap_err().reason, RejectReason::EventTooOld);
    assert!(at("2030-01-01T00:00:00Z").is_ok());
    let old = Surroundings { published_at: Some(now() - Duration::from_secs(391 * 86_400)), ..Surroundings::default() };
    assert_eq!(parse(&with("time", Value::Null), old, now()).unwrap_err().reason, RejectReason::EventTooOld);
    assert!(parse(&with("source", "s".into()), old, now()).is_ok());
}

#[test]
fn a_bad_trace_parent_is_dropped_and_never_parks() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let header = Surroundings { trace_parent: Some(good), ..Surroundings::default() };
    let traced = |body: Vec<u8>, around| match parse(&body, around, now()) {
        Ok(Event::Send(event)) => event.trace_parent,
        other => panic!("{other:?}"),
    };
    assert_eq!(traced(with("traceparent", good.into()), Surroundings::default()).as_deref(), Some(good));
    assert_eq!(traced(with("step", Value::Null), header).as_deref(), Some(good));
    for bad in [
        json!("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        json!(good.to_uppercase()),
        json!(""),
        json!(7),
        json!("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        json!(format!("{good}-x")),
        json!("a\r\nb"),
    ] {
        assert_eq!(traced(with("traceparent", bad), Surroundings::default()), None);
    }
}

#[test]
fn a_cancel_names_an_event_or_a_key() {
    let cancel = |data: Value| {
        let event = json!({"specversion": "1.0", "id": "1", "source": "s", "type": CANCEL, "data": data});
        match read(&serde_json::to_vec(&event).unwrap()).unwrap() {
            Event::Cancel(cancel) => cancel,
            Event::Send(event) => panic!("{event:?}"),
        }
    };
    let by_event = cancel(json!({"tenant": "acme", "event_id": "evt-1", "reason": "order withdrawn"}));
    assert_eq!(by_event.target, CancelTarget::Event("evt-1".into()));
    let key = "ab".repeat(32);
    let by_key = cancel(json!({"tenant": "acme", "business_key": key, "reason": "r"}));
    assert_eq!(by_key.target, CancelTarget::Key(key.parse().unwrap()));
}

#[test]
fn what_a_publisher_serialises_is_what_is_read() {
    let wire: SendData = serde_json::from_value(data()).unwrap();
    let text = serde_json::to_string(&wire).unwrap();
    assert_eq!(serde_json::from_str::<SendData>(&text).unwrap(), wire);
    assert_eq!(sent(&serde_json::to_vec(&envelope(serde_json::to_value(&wire).unwrap())).unwrap()).event_id, "evt-1");
}

/// A valid event in which one byte run is overwritten, taken out or doubled.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let changes =
        proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..40, any::<Vec<u8>>(), 0u8..3), 1..4);
    changes.prop_map(|changes| {
        let mut body = serde_json::to_vec(&envelope(data())).unwrap();
        for (at, len, bytes, kind) in changes {
            if body.is_empty() {
                break;
            }
            let start = at.index(body.len());
            let end = (start + len).min(body.len());
            let old = body[start..end].to_vec();
            let new = match kind {
                0 => bytes,
                1 => Vec::new(),
                _ => [old.clone(), old].concat(),
            };
            body.splice(start..end, new);
        }
        body
    })
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn f17_no_bytes_make_it_panic(body in any::<Vec<u8>>(), id in proptest::option::of(any::<String>())) {
        let around = Surroundings { message_id: id.as_deref(), trace_parent: id.as_deref(), published_at: None };
        // Random bytes are no event; that it returns at all is what is tested.
        prop_assert!(parse(&body, around, now()).is_err());
    }

    #[test]
    fn f17_no_mutation_of_an_event_makes_it_panic_or_talk(body in mutated()) {
        if let Err(rejection) = read(&body) {
            prop_assert!(!rejection.detail.contains("98765") && !rejection.detail.contains("493817"));
            prop_assert!(rejection.detail.len() < 600);
        }
    }

    #[test]
    fn f17_any_value_in_any_field_is_read_or_refused(
        field in proptest::sample::select(vec![
            "data.tenant", "data.class", "data.event_type", "data.event_id", "data.recipients", "data.channels", "data.template",
            "data.body", "data.sender_id", "data.dlt", "data.scheduled_for", "data.expires_at", "data.ttl_seconds", "data.step",
            "data.campaign", "data.other", "specversion", "id", "source", "type", "time", "expirytime", "traceparent", "data", "other",
        ]),
        value in any_json(),
    ) {
        match read(&with(field, value)) {
            Ok(Event::Send(event)) => {
                prop_assert!(!event.recipients.is_empty() && !event.channels.is_empty());
                prop_assert!(!event.body.expose().contains('\0'));
            }
            Ok(Event::Cancel(_)) | Err(_) => {}
        }
    }
}
