//! What the demo publishes: every class, a batch, duplicates, malformed events, bad numbers, refusals, and each kind of
//! answer that leaves the outcome open. It knows what must come of each, so that nothing can get lost unnoticed.

use serde_json::{Value, json};

/// A message of the broker, about to be published.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) routing_key: String,
    pub(super) id: Option<String>,
    pub(super) body: Vec<u8>,
}

/// The whole mix, and what must come of it.
#[derive(Debug, Default)]
pub(super) struct Mix {
    pub(super) events: Vec<Published>,
    pub(super) expected: Expected,
}

/// Counts that the database must show in the end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) rows: i64,
    pub(super) duplicates: u64,
    pub(super) parked: i64,
    /// Rows that are meant to stay unknown: nothing was accepted, and absence proves nothing.
    pub(super) unknown: i64,
    /// Rows that are meant to stay submitted: no receipt ever comes, and the report never gets further.
    pub(super) submitted: i64,
}

/// How many ordinary events there are of each kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) otp: usize,
    pub(super) transactional: usize,
    pub(super) promotional: usize,
    /// Transactional, on WhatsApp.
    pub(super) whatsapp: usize,
    pub(super) batch: usize,
    pub(super) duplicates: usize,
}

/// Fates by the last four digits of the number: what happens, and whether the provider accepted.
const UNKNOWN_FATES: [(u32, &str, bool); 7] = [
    (10, "accepted, then no answer", true),
    (11, "accepted, then reset", true),
    (12, "accepted, then 502", true),
    (13, "502, nothing accepted", false),
    (14, "no answer, nothing accepted", false),
    (15, "accepted, half an answer", true),
    (18, "reset, nothing accepted", false),
];
const REFUSED_FATES: [u32; 3] = [1, 2, 3];
/// No receipt, or one that says nothing; whether the report says more.
const SILENT_FATES: [(u32, bool); 3] = [(33, true), (34, true), (39, false)];
const RECEIPT_FATES: [u32; 8] = [21, 30, 31, 32, 35, 36, 37, 38];
const EACH: u32 = 4;

impl Mix {
    pub(super) fn new(size: Size) -> Self {
        let mut mix = Self::default();
        let mut numbers = (0..).map(ordinary);
        let mut next = || numbers.next().unwrap_or_default();
        for n in 0..size.otp {
            mix.one(
                "acme",
                "otp",
                "login.code",
                &format!("otp-{n}"),
                &next(),
                &format!("{:06} is your login code", n * 7),
            );
        }
        for n in 0..size.transactional {
            let tenant = if n % 4 == 0 { "globex" } else { "acme" };
            mix.one(tenant, "transactional", "order.shipped", &format!("T{n}"), &next(), &order(n));
        }
        for n in 0..size.promotional {
            mix.one(
                "globex",
                "promotional",
                "offer",
                &format!("P{n}"),
                &next(),
                &format!("Offer {n}: everything at 20 % off"),
            );
        }
        for n in 0..size.whatsapp {
            mix.whatsapp(&format!("W{n}"), &next(), &order(n));
        }
        let batch: Vec<String> = (0..size.batch).map(|_| next()).collect();
        mix.send(
            "globex",
            "promotional",
            "campaign",
            "CAMPAIGN-1",
            &json!(batch),
            "The winter sale opens on Friday at 9",
            None,
        );
        mix.expected.rows += i64::try_from(size.batch).unwrap_or(0);
        mix.fates();
        mix.malformed();
        mix.bad_numbers(&next(), &next());
        mix.repeat(size.duplicates);
        mix
    }

    fn one(&mut self, tenant: &str, class: &str, event_type: &str, id: &str, number: &str, body: &str) {
        self.send(tenant, class, event_type, id, &json!([number]), body, None);
        self.expected.rows += 1;
    }

    #[expect(clippy::too_many_arguments, reason = "an event has these fields")]
    fn send(
        &mut self,
        tenant: &str,
        class: &str,
        event_type: &str,
        id: &str,
        recipients: &Value,
        body: &str,
        extra: Option<(&str, Value)>,
    ) {
        let mut data = json!({
            "tenant": tenant, "class": class, "event_type": event_type, "event_id": id, "recipients": recipients,
            "body": body, "dlt": { "template_id": "1207161000000000042" },
        });
        if let Some((key, value)) = extra {
            data[key] = value;
        }
        let envelope = json!({
            "specversion": "1.0", "id": format!("ce-{id}"), "source": "/demo", "type": "message.send.v1",
            "datacontenttype": "application/json", "data": data,
        });
        self.events.push(Published {
            routing_key: class.to_owned(),
            id: Some(format!("ce-{id}")),
            body: envelope.to_string().into_bytes(),
        });
    }

    fn whatsapp(&mut self, id: &str, number: &str, body: &str) {
        let channels = Some(("channels", json!(["whatsapp"])));
        self.send("acme", "transactional", "order.shipped", id, &json!([number]), body, channels);
        self.expected.rows += 1;
    }

    fn fates(&mut self) {
        for k in 0..EACH {
            // Somebody who is not on WhatsApp: accepted, and never heard of again.
            self.whatsapp(&format!("W39-{k}"), &magic(EACH + k, 39), &format!("Silent on WhatsApp {k}"));
            self.expected.submitted += 1;
            for (suffix, what, accepted) in UNKNOWN_FATES {
                let text = format!("Ambiguous on purpose {k}: {what}");
                self.one("acme", "transactional", "demo.fate", &format!("F{suffix}-{k}"), &magic(k, suffix), &text);
                self.expected.unknown += i64::from(!accepted);
            }
            for suffix in REFUSED_FATES {
                let text = format!("Refused on purpose {suffix} {k}");
                self.one("acme", "transactional", "demo.fate", &format!("F{suffix}-{k}"), &magic(k, suffix), &text);
            }
            for (suffix, reported) in SILENT_FATES {
                let text = format!("Silent on purpose {suffix} {k}");
                self.one("acme", "transactional", "demo.fate", &format!("F{suffix}-{k}"), &magic(k, suffix), &text);
                self.expected.submitted += i64::from(!reported);
            }
            for suffix in RECEIPT_FATES {
                let text = format!("Receipt on purpose {suffix} {k}");
                self.one("acme", "transactional", "demo.fate", &format!("F{suffix}-{k}"), &magic(k, suffix), &text);
            }
        }
    }

    fn malformed(&mut self) {
        let number = json!([ordinary(900_000)]);
        let raw: [&[u8]; 3] = [b"not json at all", b"{\"specversion\":\"1.0\"", b"\xff\xfe\x00"];
        for body in raw {
            self.events.push(Published { routing_key: "transactional".into(), id: None, body: body.to_vec() });
            self.expected.parked += 1;
        }
        let wrong = [
            ("M1", "nobody", "text", None),
            ("M2", "acme", "", None),
            ("M3", "acme", "a schedule without an offset", Some(("scheduled_for", json!("2026-12-24T18:00:00")))),
            ("M4", "acme", "a field that does not exist", Some(("recipient", json!("919876543210")))),
        ];
        for (id, tenant, body, extra) in wrong {
            self.send(tenant, "transactional", "demo.malformed", id, &number, body, extra);
            self.expected.parked += 1;
        }
    }

    /// One bad recipient parks that recipient, not the event.
    fn bad_numbers(&mut self, first: &str, second: &str) {
        let bad = ["9198765,43210", "12345", "hello"];
        let recipients = json!([first, bad[0], second, bad[1], bad[2]]);
        self.send("acme", "transactional", "demo.numbers", "N1", &recipients, "Two of five can be reached", None);
        self.expected.rows += 2;
        self.expected.parked += 3;
    }

    /// Publishes some of it again, as an upstream that lost its confirms would; and one event with another text.
    fn repeat(&mut self, count: usize) {
        let again: Vec<Published> = self.events.iter().take(count).cloned().collect();
        self.expected.duplicates += again.len() as u64;
        self.events.extend(again);
        self.send("acme", "transactional", "order.shipped", "T1", &json!([self.number_of("T1")]), "Another text", None);
        self.expected.parked += 1;
    }

    fn number_of(&self, id: &str) -> String {
        let wanted = format!("ce-{id}");
        let event = self.events.iter().find(|event| event.id.as_deref() == Some(&wanted));
        let data: Option<Value> = event.and_then(|event| serde_json::from_slice(&event.body).ok());
        data.and_then(|data| data["data"]["recipients"][0].as_str().map(str::to_owned)).unwrap_or_default()
    }
}

fn order(n: usize) -> String {
    format!("Your order ORD-{n:06} has been shipped and arrives on Monday. Track it at https://ex.am/t/{n} - Acme")
}

/// An Indian mobile whose last four digits mean nothing to the simulator.
fn ordinary(n: u32) -> String {
    format!("9198{:04}{:04}", n / 9000, 1000 + n % 9000)
}

/// An Indian mobile whose last four digits choose its fate.
fn magic(k: u32, suffix: u32) -> String {
    format!("9197{k:04}{suffix:04}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_counts_what_it_publishes() {
        let size = Size { otp: 5, transactional: 8, promotional: 3, whatsapp: 6, batch: 10, duplicates: 4 };
        let mix = Mix::new(size);
        let fates = i64::from(EACH) * 22;
        assert_eq!(mix.expected.rows, 5 + 8 + 3 + 6 + 10 + 2 + fates);
        assert_eq!((mix.expected.unknown, mix.expected.submitted), (i64::from(EACH) * 3, i64::from(EACH) * 2));
        assert_eq!((mix.expected.parked, mix.expected.duplicates), (3 + 4 + 3 + 1, 4));
    }
}
