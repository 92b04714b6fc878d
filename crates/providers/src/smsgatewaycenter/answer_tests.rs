//! Every shape of an answer against its verdict. The fixtures are the ones that the documents and the deployments show.

use std::time::Duration;

use sendonce_core::config::{Codes, IdLevel};
use sendonce_core::domain::message::{Channel, ProviderRef, Recipient};
use sendonce_core::domain::outcome::{Accepted, Ambiguity, Outcome, Refusal};

use super::answer::{Judge, judge};
use super::codes::CodeTable;
use crate::http::Reply;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../fixtures/", $name))
    };
}

const RETRY_AFTER: Duration = Duration::from_secs(30);

fn number(digits: &str) -> Recipient {
    Recipient::from_e164_digits(digits).unwrap()
}
fn one() -> Vec<Recipient> {
    vec![number("919999999999")]
}
fn three() -> Vec<Recipient> {
    vec![number("919999999999"), number("919999999998"), number("919999999997")]
}
fn verdict_at(status: u16, text: &str, id_level: IdLevel, sent: &[Recipient]) -> Outcome {
    verdict_on(Channel::Sms, status, text, id_level, sent)
}
fn whatsapp(text: &str) -> Outcome {
    verdict_on(Channel::Whatsapp, 200, text, IdLevel::Message, &one())
}
fn verdict_on(channel: Channel, status: u16, text: &str, id_level: IdLevel, sent: &[Recipient]) -> Outcome {
    let extra = Codes { throttle: vec!["341".into()], ..Codes::default() };
    let codes = CodeTable::new(&extra).unwrap();
    let reply = Reply { status, retry_after: Some(RETRY_AFTER), text: text.to_owned() };
    judge(&reply, &Judge { channel, codes: &codes, id_level, sent })
}
fn verdict(text: &str) -> Outcome {
    verdict_at(200, text, IdLevel::Txn, &one())
}
fn accepted(txn_id: &str) -> Accepted {
    Accepted {
        txn_id: ProviderRef::clean(txn_id),
        code: Some("200".into()),
        cause: Some("success".into()),
        ..Accepted::default()
    }
}
fn refusal(code: &str, cause: &str) -> Refusal {
    Refusal { code: Some(code.into()), cause: Some(cause.into()), unlisted: false }
}

#[test]
fn a_success_with_its_id_is_accepted() {
    assert_eq!(verdict(fixture!("send_success.json")), Outcome::Accepted(accepted("6305583318236810379")));
}

#[test]
fn t35_codes_and_ids_may_be_quoted_or_not() {
    assert_eq!(verdict(fixture!("send_success_unquoted.json")), Outcome::Accepted(accepted("6305583318236810379")));
}

#[test]
fn t6_leading_zeros_and_letters_of_an_id_survive() {
    assert_eq!(verdict(fixture!("send_success_empty_msgid.json")), Outcome::Accepted(accepted("0005583318236810379")));
    let expected = Accepted {
        message_id: ProviderRef::clean("QudUrwhMuIGkbs2"),
        ..accepted("53504db8-5d8e-4c3b-9a46-0e2f5d1c7a10")
    };
    assert_eq!(verdict(fixture!("send_success_msgid.json")), Outcome::Accepted(expected));
}

#[test]
fn t6_the_message_id_of_one_is_not_given_to_a_group() {
    let group = verdict_at(200, fixture!("send_success_msgid.json"), IdLevel::Txn, &three());
    assert_eq!(group, Outcome::Accepted(accepted("53504db8-5d8e-4c3b-9a46-0e2f5d1c7a10")));
}

#[test]
fn t13_invalid_recipients_are_those_sent_in_any_spelling_each_once() {
    let expected =
        Accepted { invalid: vec![number("919999999998"), number("919999999997")], ..accepted("6305583318236810380") };
    let verdict = verdict_at(200, fixture!("send_success_some_invalid.json"), IdLevel::Txn, &three());
    assert_eq!(verdict, Outcome::Accepted(expected));
}

#[test]
fn t13_an_invalid_recipient_that_was_never_sent_makes_the_answer_unclear() {
    let verdict = verdict_at(200, fixture!("send_success_foreign_invalid.json"), IdLevel::Txn, &three());
    assert_eq!(verdict, Outcome::Ambiguous(Ambiguity::SetMismatch));
}

#[test]
fn t13_where_all_are_invalid_no_id_is_due() {
    let verdict = verdict_at(200, fixture!("send_success_all_invalid.json"), IdLevel::Txn, &three());
    assert_eq!(verdict, Outcome::Accepted(Accepted { invalid: three(), ..accepted("0") }));
}

#[test]
fn t7_a_success_without_an_id_is_ambiguous_where_one_is_due() {
    let missing = Outcome::Ambiguous(Ambiguity::MissingId);
    let none_due = |text| verdict_at(200, text, IdLevel::None, &one());
    assert_eq!(verdict(fixture!("send_success_no_id.json")), missing);
    assert_eq!(none_due(fixture!("send_success_no_id.json")), Outcome::Accepted(accepted("0")));
    assert_eq!(verdict(fixture!("otp_generated.json")), missing);
    let generated = Accepted { code: Some("300".into()), cause: Some("OTP generated".into()), ..Accepted::default() };
    assert_eq!(none_due(fixture!("otp_generated.json")), Outcome::Accepted(generated));
    for absent in ["", "null", " - ", "0"] {
        let text = format!(r#"{{"status":"success","statusCode":"200","transactionId":"{absent}"}}"#);
        assert_eq!(verdict(&text), missing, "{absent}");
    }
    assert_eq!(verdict(r#"{"status":"success","statusCode":"200"}"#), missing);
}

#[test]
fn an_account_with_message_ids_needs_one() {
    let level = |text| verdict_at(200, text, IdLevel::Message, &one());
    let only_msg = r#"{"status":"success","statusCode":"200","reason":"success","msgId":"QudUrwhMuIGkbs2"}"#;
    let expected = Accepted { message_id: ProviderRef::clean("QudUrwhMuIGkbs2"), ..accepted("0") };
    assert_eq!(level(only_msg), Outcome::Accepted(expected));
    assert_eq!(level(fixture!("send_success_no_id.json")), Outcome::Ambiguous(Ambiguity::MissingId));
}

#[test]
fn i1_an_error_in_a_200_is_a_refusal_by_its_code() {
    let credentials = Outcome::AccountRefused(refusal("216", "Invalid credentials"));
    assert_eq!(verdict(fixture!("send_error_credentials.json")), credentials);
    assert_eq!(verdict(fixture!("send_error_credentials_wrapped.json")), credentials);
    assert_eq!(
        verdict(fixture!("send_error_template.json")),
        Outcome::Rejected(refusal("188", "DLT template mismatch"))
    );
    let mismatch = refusal("171", "Msg Text and MsgType Mismatch");
    assert_eq!(verdict(fixture!("send_error_msgtype.json")), Outcome::Rejected(mismatch));
}

#[test]
fn i1_a_4xx_with_a_documented_body_is_a_refusal_by_its_code() {
    for status in [400, 401, 403, 422] {
        let at = |text| verdict_at(status, text, IdLevel::Txn, &one());
        let credentials = Outcome::AccountRefused(refusal("216", "Invalid credentials"));
        assert_eq!(at(fixture!("send_error_credentials.json")), credentials);
        assert_eq!(
            at(fixture!("send_error_template.json")),
            Outcome::Rejected(refusal("188", "DLT template mismatch"))
        );
        // An acceptance under a refusing status is neither.
        assert_eq!(at(fixture!("send_success.json")), Outcome::Ambiguous(Ambiguity::UnexpectedStatus));
        assert_eq!(at(fixture!("bad_gateway.html")), Outcome::Ambiguous(Ambiguity::UnexpectedStatus));
        assert_eq!(at(""), Outcome::Ambiguous(Ambiguity::UnexpectedStatus));
    }
}

#[test]
fn an_unlisted_code_is_rejected_and_marked() {
    let expected = Refusal { unlisted: true, ..refusal("929", "Traffic not allowed in this window") };
    assert_eq!(verdict(fixture!("send_error_unlisted.json")), Outcome::Rejected(expected));
}

#[test]
fn only_listed_codes_and_a_429_in_the_providers_shape_throttle() {
    let throttled = |code, cause, unlisted| Outcome::Throttled {
        retry_after: Some(RETRY_AFTER),
        refusal: Refusal { unlisted, ..refusal(code, cause) },
    };
    let at_429 = |text| verdict_at(429, text, IdLevel::Txn, &one());
    assert_eq!(verdict(fixture!("send_error_throttled.json")), throttled("341", "Too many requests", false));
    assert_eq!(at_429(fixture!("send_error_throttled.json")), throttled("341", "Too many requests", false));
    let unlisted = throttled("929", "Traffic not allowed in this window", true);
    assert_eq!(at_429(fixture!("send_error_unlisted.json")), unlisted);
    for foreign in [
        fixture!("bad_gateway.html"),
        "",
        "Too many requests",
        fixture!("send_success.json"),
        fixture!("send_error_no_code.json"),
    ] {
        assert_eq!(at_429(foreign), Outcome::Ambiguous(Ambiguity::UnexpectedStatus), "{foreign}");
    }
}

#[test]
fn i1_a_5xx_is_ambiguous_whatever_its_body_says() {
    for status in [500, 502, 503, 504, 599] {
        for text in [
            fixture!("send_success.json"),
            fixture!("send_error_credentials.json"),
            fixture!("send_error_throttled.json"),
            fixture!("bad_gateway.html"),
            "",
        ] {
            let verdict = verdict_at(status, text, IdLevel::Txn, &one());
            assert_eq!(verdict, Outcome::Ambiguous(Ambiguity::ServerError), "{status} {text}");
        }
    }
}

#[test]
fn i2_a_3xx_or_404_is_ambiguous_whatever_its_body_says() {
    for status in [301, 302, 303, 304, 307, 308, 404] {
        for text in
            [fixture!("send_success.json"), fixture!("send_error_credentials.json"), fixture!("bad_gateway.html"), ""]
        {
            let verdict = verdict_at(status, text, IdLevel::Txn, &one());
            assert_eq!(verdict, Outcome::Ambiguous(Ambiguity::UnexpectedStatus), "{status} {text}");
        }
    }
}

#[test]
fn a_200_that_is_not_the_providers_json_is_ambiguous() {
    let cases = [
        (fixture!("send_plain.txt"), Ambiguity::Unreadable),
        (fixture!("bad_gateway.html"), Ambiguity::Unreadable),
        (fixture!("send_truncated.txt"), Ambiguity::Truncated),
        ("", Ambiguity::Truncated),
        (" \n", Ambiguity::Truncated),
        ("{}", Ambiguity::Unreadable),
        ("[]", Ambiguity::Unreadable),
        ("null", Ambiguity::Unreadable),
        ("200", Ambiguity::Unreadable),
        (r#""success""#, Ambiguity::Unreadable),
        (r#"{"status":true,"transactionId":"6305583318236810379"}"#, Ambiguity::Unreadable),
        (r#"{"status":"queued","statusCode":"200","transactionId":"6305583318236810379"}"#, Ambiguity::Unreadable),
        (r#"{"status":"success","transactionId":{"id":"1"},"statusCode":"200"}"#, Ambiguity::Unreadable),
    ];
    for (text, unclear) in cases {
        assert_eq!(verdict(text), Outcome::Ambiguous(unclear), "{text}");
    }
    let twice = format!("{0}{0}", fixture!("send_success.json"));
    assert_eq!(verdict(&twice), Outcome::Ambiguous(Ambiguity::Unreadable), "two answers in one");
}

#[test]
fn every_prefix_of_an_answer_is_truncated() {
    let whole = fixture!("send_success.json").trim_end();
    for end in 0..whole.len() {
        assert_eq!(verdict(&whole[..end]), Outcome::Ambiguous(Ambiguity::Truncated), "{}", &whole[..end]);
    }
}

#[test]
fn an_answer_that_contradicts_itself_is_ambiguous() {
    for text in [
        fixture!("send_error_no_code.json"),
        fixture!("send_error_with_id.json"),
        fixture!("send_error_code_200.json"),
        fixture!("send_success_code_216.json"),
        r#"{"status":"success","statusCode":"999","transactionId":"6305583318236810379"}"#,
        r#"{"status":"success","statusCode":"200","transactionId":"1","transactionId":"2"}"#,
    ] {
        assert_eq!(verdict(text), Outcome::Ambiguous(Ambiguity::Unreadable), "{text}");
    }
}

/// The wrapped envelope's `success` is that of the call, and it carries no transaction.
#[test]
fn the_success_of_an_envelope_is_no_acceptance() {
    assert_eq!(verdict(fixture!("wrapped_success.json")), Outcome::Ambiguous(Ambiguity::MissingId));
}

#[test]
fn a_byte_order_mark_and_the_case_of_the_status_do_not_matter() {
    let text =
        format!("\u{feff}{}", fixture!("send_success.json").replace(r#""success","mobile"#, r#""SUCCESS","mobile"#));
    assert_eq!(verdict(&text), Outcome::Accepted(accepted("6305583318236810379")));
}

#[test]
fn i14_whatsapp_answers_in_two_shapes_and_names_the_message_in_both() {
    let accepted = |id: &str, cause: &str| {
        Outcome::Accepted(Accepted {
            message_id: ProviderRef::clean(id),
            code: Some("200".into()),
            cause: Some(cause.into()),
            ..Accepted::default()
        })
    };
    let seed = fixture!("whatsapp_success_seed.json");
    assert_eq!(whatsapp(seed), accepted("wamidHBgMOTE5ODc2", "Message accepted"));
    assert_eq!(whatsapp(fixture!("whatsapp_success_sibling.json")), accepted("0005583318236810379", "success"));
    // An id that comes as a bare number keeps its digits.
    let bare = seed.replace("\"wamidHBgMOTE5ODc2\"", "6305583318236810379");
    assert_eq!(whatsapp(&bare), accepted("6305583318236810379", "Message accepted"));
    // Beside a message id a transaction is what it says.
    let both = seed.replace("\"description\"", "\"transactionId\":\"T1\",\"description\"");
    let Outcome::Accepted(both) = whatsapp(&both) else { panic!("{:?}", whatsapp(&both)) };
    assert_eq!((both.txn_id, both.message_id), (ProviderRef::clean("T1"), ProviderRef::clean("wamidHBgMOTE5ODc2")));
}

#[test]
fn i14_a_whatsapp_success_without_an_id_is_ambiguous_where_one_is_due() {
    let missing = Outcome::Ambiguous(Ambiguity::MissingId);
    let none = fixture!("whatsapp_success_no_id.json");
    for text in [none.to_owned(), none.replace("\"\"", "\"0\""), none.replace("messageId", "transactionId")] {
        assert_eq!(whatsapp(&text), missing, "{text}");
    }
    let none_due = verdict_on(Channel::Whatsapp, 200, none, IdLevel::None, &one());
    assert!(matches!(none_due, Outcome::Accepted(Accepted { message_id: None, .. })), "{none_due:?}");
}

#[test]
fn i14_a_whatsapp_refusal_is_read_by_its_code_in_both_shapes() {
    let credentials = refusal("216", "Invalid credentials");
    assert_eq!(whatsapp(fixture!("whatsapp_error_seed.json")), Outcome::AccountRefused(credentials));
    let template = refusal("188", "Template mismatch");
    assert_eq!(whatsapp(fixture!("whatsapp_error_sibling.json")), Outcome::Rejected(template));
    let with_id = whatsapp(fixture!("whatsapp_error_with_id.json"));
    assert_eq!(with_id, Outcome::Ambiguous(Ambiguity::Unreadable), "a refusal that names a message contradicts itself");
}
