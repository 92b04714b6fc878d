use chrono::TimeZone;
use proptest::prelude::*;
use sendonce_core::domain::event::{Event, Surroundings, parse};
use sendonce_core::domain::message::Encoding;
use serde_json::{Value, json};

use super::*;

fn now() -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 11, 30, 12, 0, 0).unwrap()
}

fn config() -> Config {
    serde_json::from_value(json!({
        "tenants": {
            "acme": {
                "default_region": "IN", "accounts": {"sms": "main", "whatsapp": "wa", "telegram": "tg"},
                "sender_id": "ACMEIN", "dlt_entity_id": "1101", "max_segments": 3,
            },
            "bare": {"default_region": "IN", "accounts": {}},
        },
        "accounts": {
            "main": {"dialect": "smsgatewaycenter", "channel": "sms", "base_url": "http://p", "encoding": "gsm"},
            "wa": {"dialect": "smsgatewaycenter", "channel": "whatsapp", "base_url": "http://p"},
        },
    }))
    .unwrap()
}

fn rate(channel: Channel, class: Class, prefix: &str) -> Rate {
    Rate {
        id: 7,
        tenant: "acme".into(),
        channel,
        class,
        prefix: prefix.into(),
        unit_price: "0.15".parse().unwrap(),
        currency: "INR".into(),
        valid_from: DateTime::<Utc>::MIN_UTC,
        valid_to: None,
    }
}

fn rates() -> RateCard {
    let lanes = [Channel::Sms, Channel::Whatsapp].into_iter();
    lanes.flat_map(|channel| Class::ALL.iter().map(move |&class| rate(channel, class, "91"))).collect()
}

fn event(changes: Value) -> SendEvent {
    let mut data = json!({
        "tenant": "acme", "class": "transactional", "event_type": "order.shipped", "event_id": "evt-1",
        "recipients": ["+919876543210"], "body": "Your order is on its way",
    });
    for (name, value) in changes.as_object().unwrap() {
        data[name] = value.clone();
    }
    let envelope = json!({
        "specversion": "1.0", "id": "1", "source": "/orders", "type": "message.send.v1",
        "time": "2026-11-30T11:59:00Z", "data": data,
    });
    match parse(&serde_json::to_vec(&envelope).unwrap(), Surroundings::default(), now()).unwrap() {
        Event::Send(event) => *event,
        Event::Cancel(cancel) => panic!("{cancel:?}"),
    }
}

fn planned(event: &SendEvent) -> Result<Plan, ParkReason> {
    plan(event, Rules { config: &config(), rates: &rates(), now: now() })
}

fn rows(changes: Value) -> Vec<NewMessage> {
    let ids = Ids { message: MessageId(1), attempt: AttemptKey(Default::default()) };
    planned(&event(changes)).unwrap().rows.into_iter().map(|draft| draft.under(ids, JobId(1)).0).collect()
}

fn row(changes: Value) -> NewMessage {
    let mut rows = rows(changes);
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

fn asides(changes: Value) -> Vec<(String, Option<String>)> {
    let plan = planned(&event(changes)).unwrap();
    plan.asides.into_iter().map(|aside| (aside.reason.code, aside.recipient)).collect()
}

fn refused(changes: Value) -> ParkReason {
    planned(&event(changes)).unwrap_err()
}

#[test]
fn t2_one_person_in_two_spellings_in_one_event_is_one_message() {
    let spellings = json!(["+919876543210", "09876543210", "98765 43210", "0091-98765-43210", "9876543211"]);
    let plan = planned(&event(json!({"recipients": spellings}))).unwrap();
    assert_eq!((plan.rows.len(), plan.duplicates, plan.asides.len()), (2, 3, 0));
}

#[test]
fn t2_the_key_knows_template_and_step_and_neither_channel_nor_sender() {
    let key = |changes: Value| row(changes).business_key;
    let base = key(json!({}));
    for same in [
        json!({"channels": ["whatsapp"]}),
        json!({"channels": ["whatsapp", "sms"]}),
        json!({"sender_id": "OTHER"}),
        json!({"body": "another text"}),
        json!({"campaign": "c", "scheduled_for": "2026-12-01T00:00:00Z"}),
        json!({"class": "promotional"}),
        json!({"recipients": ["098765 43210"]}),
    ] {
        assert_eq!(key(same.clone()), base, "{same}");
    }
    for other in [
        json!({"template": {"id": "t"}}),
        json!({"step": "reminder-1"}),
        json!({"event_id": "evt-2"}),
        json!({"event_type": "order.returned"}),
        json!({"recipients": ["9876543211"]}),
    ] {
        assert_ne!(key(other.clone()), base, "{other}");
    }
    assert_ne!(key(json!({"template": {"id": "a"}})), key(json!({"template": {"id": "b"}})));
}

#[test]
fn key_conflict_other_inputs_are_seen_and_configured_defaults_are_not() {
    let hash = |changes: Value| row(changes).input_hash;
    let base = hash(json!({}));
    assert_ne!(hash(json!({"body": "another"})), base);
    assert_ne!(hash(json!({"channels": ["sms", "whatsapp"]})), base);
    // The tenant's default is this very sender, but the publisher did not say it.
    assert_ne!(hash(json!({"sender_id": "ACMEIN"})), base);
    assert_eq!(hash(json!({"channels": ["sms"]})), base);
    assert_eq!(hash(json!({"campaign": "c"})), base);
}

#[test]
fn t17_an_otp_code_never_enters_the_plain_hash() {
    let hash = |class: &str, body: &str| row(json!({"class": class, "body": body})).input_hash;
    assert_eq!(hash("otp", "493817 is your code"), hash("otp", "112233 is your code"));
    assert_ne!(hash("promotional", "a"), hash("promotional", "b"));
}

#[test]
fn f17_one_bad_recipient_parks_that_recipient() {
    let found = asides(json!({"recipients": [
        "+919876543210", "9876543210,9876543211", "", "VK-ACME", 919_876_543_210_u64, "12345", "9876543212",
        {"number": "9876543213", "params": {"a": "b"}}, "+14155550123",
    ]}));
    let expected = [
        ("number_has_comma", "9876543210,9876543211"),
        ("number_empty", ""),
        ("number_has_letters", "VK-ACME"),
        ("recipient_unreadable", "919876543210"),
        ("number_is_short_code", "12345"),
        ("params_with_body", "9876543213"),
        ("no_rate", "+14155550123"),
    ];
    let expected = expected.map(|(code, raw)| (code.to_owned(), Some(raw.to_owned())));
    assert_eq!(found, expected);
    assert_eq!(rows(json!({"recipients": ["x", "9876543210"]})).len(), 1);
    let long = asides(json!({"recipients": ["9".repeat(900_000)]}));
    assert_eq!(long[0].1.as_ref().map(String::len), Some(256));
}

#[test]
fn what_is_wrong_for_all_recipients_parks_the_event() {
    let table = [
        (json!({"tenant": "nobody"}), "tenant_unknown"),
        (json!({"tenant": "bare"}), "no_account"),
        (json!({"channels": ["voice"]}), "no_account"),
        (json!({"channels": ["telegram"]}), "no_account"),
        (json!({"body": " \n"}), "body_empty"),
        (json!({"body": "x".repeat(460)}), "body_too_long"),
        (json!({"channels": ["whatsapp"], "body": "x".repeat(4_097)}), "body_too_long"),
        (json!({"scheduled_for": "2026-12-01T00:00:00Z", "ttl_seconds": 60}), "expires_before_schedule"),
        (
            json!({"scheduled_for": "2026-12-01T00:00:00Z", "expires_at": "2026-12-01T00:00:00Z"}),
            "expires_before_schedule",
        ),
    ];
    for (changes, code) in table {
        assert_eq!(refused(changes.clone()).code, code, "{changes}");
    }
}

#[test]
fn i11_no_reason_repeats_a_number_or_a_text() {
    let canary = "919876543210,493817";
    let mut details = vec![
        refused(json!({"body": format!("{canary}{}", " ".repeat(500))})).detail,
        refused(json!({"tenant": canary})).detail,
    ];
    let recipients = json!([canary, "+14155550123", {"number": canary, "params": {canary: canary}}, [canary]]);
    let plan = planned(&event(json!({"recipients": recipients}))).unwrap();
    details.extend(plan.asides.iter().map(|aside| aside.reason.detail.clone()));
    assert_eq!(details.len(), 6);
    for detail in details {
        assert!(!detail.contains("98765") && !detail.contains("493817") && !detail.contains("415555"), "{detail}");
    }
}

#[test]
fn i3_a_row_carries_all_that_the_sender_and_the_bill_need() {
    let message = row(json!({
        "recipients": ["98765 43210", "x"], "channels": ["sms", "whatsapp"], "body": "é".repeat(161),
        "dlt": {"template_id": "0002"}, "campaign": "c", "step": "s", "template": {"id": "t"},
    }));
    assert_eq!(message.recipient.expose(), "919876543210");
    assert_eq!((message.encoding, message.segments), (Encoding::Gsm7, 2));
    assert_eq!((message.sender_id.as_deref(), message.dlt_entity_id.as_deref()), (Some("ACMEIN"), Some("1101")));
    assert_eq!((message.account.as_str(), message.channel), ("main", Channel::Sms));
    assert_eq!(message.fallback_channels, [Channel::Whatsapp]);
    assert_eq!((message.event_recipients, message.rate_id), (2, 7));
    assert_eq!((message.unit_price.to_string(), message.currency.as_str()), ("0.15".to_owned(), "INR"));
    assert_eq!((message.event_source.as_deref(), message.template_id.as_deref()), (Some("/orders"), Some("t")));
    assert_eq!(message.dlt_template_id.as_deref(), Some("0002"));
}

#[test]
fn t19_a_whatsapp_message_is_billed_as_one_and_an_sms_by_its_parts() {
    let long = "x".repeat(400);
    let segments = |channel: &str| row(json!({"channels": [channel], "body": long})).segments;
    assert_eq!((segments("sms"), segments("whatsapp")), (3, 1));
    // The tenant's limit of three segments is one of SMS.
    assert_eq!(row(json!({"channels": ["whatsapp"], "body": "x".repeat(4_096)})).segments, 1);
}

#[test]
fn every_message_gets_an_end() {
    let minute = Duration::from_secs(60);
    let happened = now() - minute;
    let later = now() + 2 * minute;
    let base = event(json!({}));
    let life = |change: fn(&mut SendEvent)| {
        let mut event = base.clone();
        change(&mut event);
        Life::of(&event, Duration::from_secs(3600), now()).unwrap()
    };
    let hour = Duration::from_secs(3600);
    assert_eq!(life(|_| {}), Life { expires_at: None, ttl: hour, from: Some(happened) });
    // Without a time of its own, or with one from a clock that runs ahead, it counts from the insert.
    assert_eq!(life(|e| e.at = None), Life { expires_at: None, ttl: hour, from: None });
    assert_eq!(life(|e| e.at = Some(now() + Duration::from_secs(1))), Life { expires_at: None, ttl: hour, from: None });
    assert_eq!(life(|e| e.ttl = Some(Duration::from_secs(90))), Life { ttl: Duration::from_secs(90), ..life(|_| {}) });
    // The class's default begins when a scheduled message may go; a stated one does not.
    assert_eq!(life(|e| e.scheduled_for = Some(now() + Duration::from_secs(120))).from, Some(later));
    let both = |e: &mut SendEvent| {
        (e.ttl, e.expires_at) = (Some(Duration::from_secs(90)), Some(now() + Duration::from_secs(3600)))
    };
    assert_eq!(life(both).expires_at, Some(happened + Duration::from_secs(90)));
    let stated = |e: &mut SendEvent| e.expires_at = Some(now());
    assert_eq!(life(stated).expires_at, Some(now()));
}

#[test]
fn a_schedule_that_is_past_goes_at_once() {
    let due = |at: &str| {
        let plan = planned(&event(json!({"scheduled_for": at}))).unwrap();
        let draft = plan.rows.into_iter().next().unwrap();
        draft.under(Ids { message: MessageId(1), attempt: AttemptKey(Default::default()) }, JobId(1)).1
    };
    assert_eq!(due("2026-11-30T12:00:00Z"), None);
    assert_eq!(due("2026-11-30T17:30:01+05:30"), Some(now() + Duration::from_secs(1)));
}

#[test]
fn a_missing_rate_is_told_apart_so_that_the_card_can_be_read_again() {
    let event = event(json!({"recipients": ["9876543210", "+14155550123"]}));
    let none = plan(&event, Rules { config: &config(), rates: &RateCard::default(), now: now() }).unwrap();
    assert_eq!((none.unpriced, none.rows.len(), none.asides.len()), (2, 0, 2));
    let some = planned(&event).unwrap();
    assert_eq!((some.unpriced, some.rows.len(), some.asides.len()), (1, 1, 1));
}

proptest! {
    /// I2: every recipient is a row, a duplicate or set aside; never two of them, never none.
    #[test]
    fn i2_every_recipient_is_accounted_for(recipients in proptest::collection::vec(
        prop_oneof!["98765432[0-4]{2}", "\\+9198765432[0-4]{2}", "[0-9,x ]{0,12}", any::<String>()], 1..40,
    )) {
        prop_assume!(recipients.iter().all(|raw| !raw.contains('\0')));
        let plan = planned(&event(json!({"recipients": recipients}))).unwrap();
        prop_assert_eq!(plan.rows.len() + plan.duplicates + plan.asides.len(), recipients.len());
    }
}
