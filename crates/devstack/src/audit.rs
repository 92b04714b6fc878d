//! The provider's ledger held against our rows. Joined by channel, recipient and text, never by our own keys or ids, so that a
//! bug in those shows. Texts must be unique per message and channel, which the publishers of this crate and the tests see to.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fleet::Fleet;

/// What the comparison found. Clean when there are no violations.
#[derive(Debug, Default, Serialize)]
pub struct Audit {
    /// Requests that the provider read.
    pub requests: usize,
    /// Recipients that it accepted.
    pub accepted: usize,
    pub rows: usize,
    pub duplicated: usize,
    /// Rows that claim an acceptance the provider does not know.
    pub lost: usize,
    /// Acceptances that no row admits.
    pub ghost: usize,
    pub misbilled: usize,
    /// Transaction and message ids on the wrong row.
    pub misattributed: usize,
    pub money: Vec<MoneyLine>,
    pub violations: Vec<String>,
}

/// Money of one tenant, day and channel, both ways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoneyLine {
    pub tenant: String,
    pub day: String,
    pub channel: String,
    pub our_units: i64,
    pub provider_units: i64,
    /// In ten-thousandths.
    pub our_cost: i64,
    pub provider_cost: i64,
    /// Accepted by the provider on rows that are still unknown: covered by exposure.
    pub unknown_accepted: i64,
    pub exposure_rows: i64,
}

#[derive(Debug, Deserialize)]
struct Row {
    id: i64,
    tenant_id: String,
    channel: String,
    recipient: String,
    body: String,
    state: String,
    submitted: bool,
    provider_txn_id: Option<String>,
    provider_message_id: Option<String>,
    units: i64,
    cost: i64,
    day: String,
}

#[derive(Debug, Clone)]
struct Acceptance {
    /// Empty where the provider issues none.
    txn: String,
    message_id: String,
    units: i64,
    amount: i64,
}

const ROWS: &str = "
    select coalesce(json_agg(row_to_json(r)), '[]') from (
        select id, tenant_id, channel, recipient, body, state, submitted_at is not null as submitted, provider_txn_id,
            provider_message_id, coalesce(billable_units, segments) as units,
            (coalesce(cost, unit_price * segments) * 10000)::bigint as cost,
            to_char(coalesce(submitted_at, claimed_at, created_at) at time zone 'UTC', 'YYYY-MM-DD') as day
        from outbound_message
    ) r";

/// Compares now; call it when the fleet is quiescent.
pub async fn audit(fleet: &Fleet) -> Result<Audit> {
    let rows: Vec<Row> = serde_json::from_str(&fleet.stack.psql(&fleet.name, ROWS).await?)?;
    compare(&rows, &fleet.ledger().await?)
}

fn compare(rows: &[Row], ledger: &[Value]) -> Result<Audit> {
    let mut accepted: HashMap<(String, String, String), Vec<Acceptance>> = HashMap::new();
    for entry in ledger {
        let channel = channel_of(entry).with_context(|| format!("the ledger names no channel: {}", entry["kind"]))?;
        let text = entry["text"].as_str().unwrap_or_default();
        for one in entry["accepted"].as_array().into_iter().flatten() {
            let mobile = one["mobile"].as_str().context("an accepted recipient has no number")?;
            accepted.entry((channel.to_owned(), mobile.to_owned(), text.to_owned())).or_default().push(Acceptance {
                txn: entry["txn"].as_str().unwrap_or_default().to_owned(),
                message_id: one["msg_id"].as_str().unwrap_or_default().to_owned(),
                units: one["units"].as_i64().unwrap_or(0),
                amount: ten_thousandths(&one["amount"]).context("an amount is no decimal")?,
            });
        }
    }
    let mut audit = Audit {
        requests: ledger.len(),
        accepted: accepted.values().map(Vec::len).sum(),
        rows: rows.len(),
        ..Audit::default()
    };
    let mut lines: BTreeMap<(String, String, String), MoneyLine> = BTreeMap::new();
    for row in rows {
        let known =
            accepted.remove(&(row.channel.clone(), row.recipient.clone(), row.body.clone())).unwrap_or_default();
        check_row(row, &known, &mut audit);
        add_money(row, &known, &mut lines);
    }
    for left in accepted.into_values() {
        audit.ghost += left.len();
        audit.violations.push(format!("accepted without a row: message {} at the provider", left[0].message_id));
    }
    audit.money = lines.into_values().collect();
    for line in &audit.money {
        if line.our_units != line.provider_units || line.our_cost != line.provider_cost {
            audit.misbilled += 1;
            audit.violations.push(format!("money differs: {line:?}"));
        }
        if line.unknown_accepted > line.exposure_rows {
            audit.misbilled += 1;
            audit.violations.push(format!("the exposure does not cover what was accepted: {line:?}"));
        }
    }
    Ok(audit)
}

fn channel_of(entry: &Value) -> Option<&'static str> {
    match entry["kind"].as_str()? {
        "sms_send" => Some("sms"),
        "wa_send" => Some("whatsapp"),
        _ => None,
    }
}

fn check_row(row: &Row, known: &[Acceptance], audit: &mut Audit) {
    let id = row.id;
    if known.len() > 1 {
        audit.duplicated += known.len() - 1;
        audit.violations.push(format!("message {id} was accepted {} times", known.len()));
    }
    let found = known.len().min(1);
    let (least, most) = match row.state.as_str() {
        "submitted" | "delivered" => (1, 1),
        // By a receipt after an acceptance, or without any submission.
        "failed" | "expired" => (usize::from(row.submitted), usize::from(row.submitted)),
        "unknown" => (0, 1),
        _ => (0, 0),
    };
    if found < least {
        audit.lost += 1;
        audit.violations.push(format!("message {id} is {} but the provider accepted nothing", row.state));
    }
    if found > most {
        audit.ghost += 1;
        audit.violations.push(format!("message {id} is {} but the provider accepted it", row.state));
    }
    let Some(theirs) = known.first().filter(|_| row.submitted) else { return };
    let ids = [
        ("transaction", &row.provider_txn_id, &theirs.txn),
        ("message id", &row.provider_message_id, &theirs.message_id),
    ];
    for (what, ours, theirs) in ids {
        if let Some(ours) = ours.as_ref().filter(|ours| *ours != theirs) {
            audit.misattributed += 1;
            audit.violations.push(format!("message {id} bears {what} {ours}, the provider's is {theirs}"));
        }
    }
}

fn add_money(row: &Row, known: &[Acceptance], lines: &mut BTreeMap<(String, String, String), MoneyLine>) {
    let key = (row.tenant_id.clone(), row.day.clone(), row.channel.clone());
    let line = lines.entry(key).or_insert_with(|| MoneyLine {
        tenant: row.tenant_id.clone(),
        day: row.day.clone(),
        channel: row.channel.clone(),
        our_units: 0,
        provider_units: 0,
        our_cost: 0,
        provider_cost: 0,
        unknown_accepted: 0,
        exposure_rows: 0,
    });
    if row.state == "unknown" {
        line.exposure_rows += 1;
        line.unknown_accepted += i64::from(!known.is_empty());
        return;
    }
    if row.submitted {
        line.our_units += row.units;
        line.our_cost += row.cost;
    }
    line.provider_units += known.iter().map(|k| k.units).sum::<i64>();
    line.provider_cost += known.iter().map(|k| k.amount).sum::<i64>();
}

/// `"0.1400"` as 1400: exact, and independent of the decimal library that the product uses.
fn ten_thousandths(amount: &Value) -> Option<i64> {
    let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    if fraction.len() > 4 && !fraction[4..].bytes().all(|b| b == b'0') {
        return None;
    }
    let digits = format!("{whole}{:0<4}", fraction.get(..4.min(fraction.len()))?);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(state: &str, submitted: bool) -> Row {
        Row {
            id: 1,
            tenant_id: "acme".into(),
            channel: "sms".into(),
            recipient: "919876543210".into(),
            body: "hello".into(),
            state: state.into(),
            submitted,
            provider_txn_id: submitted.then(|| "7".to_owned()),
            provider_message_id: submitted.then(|| "m7".to_owned()),
            units: 1,
            cost: 1400,
            day: "2026-11-30".into(),
        }
    }

    fn entry(txn: &str, amount: &str) -> Value {
        json!({
            "kind": "sms_send", "text": "hello", "txn": txn,
            "accepted": [{"mobile": "919876543210", "msg_id": "m7", "units": 1, "amount": amount}],
        })
    }

    fn found(rows: &[Row], ledger: &[Value]) -> (usize, usize, usize, usize, usize) {
        let a = compare(rows, ledger).unwrap();
        (a.duplicated, a.lost, a.ghost, a.misbilled, a.misattributed)
    }

    #[test]
    fn the_audit_catches_each_kind_of_violation() {
        assert_eq!(found(&[row("delivered", true)], &[entry("7", "0.1400")]), (0, 0, 0, 0, 0));
        assert_eq!(found(&[row("unknown", false)], &[entry("7", "0.14")]), (0, 0, 0, 0, 0));
        assert_eq!(found(&[row("unknown", false)], &[]), (0, 0, 0, 0, 0));
        assert_eq!(found(&[row("delivered", true)], &[entry("7", "0.14"), entry("8", "0.14")]).0, 1);
        assert_eq!(found(&[row("submitted", true)], &[]).1, 1);
        assert_eq!(found(&[row("pending", false)], &[entry("7", "0.14")]).2, 1);
        assert_eq!(found(&[], &[entry("7", "0.14")]).2, 1);
        assert_eq!(found(&[row("delivered", true)], &[entry("7", "0.28")]).3, 1);
        assert_eq!(found(&[row("delivered", true)], &[entry("8", "0.14")]).4, 1);
    }

    #[test]
    fn an_sms_and_a_whatsapp_message_of_one_text_to_one_person_do_not_mix() {
        let on_whatsapp = |row: Row| Row { channel: "whatsapp".into(), provider_txn_id: None, ..row };
        let mut accepted = entry("7", "0.14");
        accepted["kind"] = json!("wa_send");
        accepted["txn"] = Value::Null;
        let both = [row("delivered", true), on_whatsapp(row("delivered", true))];
        assert_eq!(found(&both, &[entry("7", "0.14"), accepted.clone()]), (0, 0, 0, 0, 0));
        // Sent on the other channel: lost here, a ghost there.
        assert_eq!(found(&[row("submitted", true)], &[accepted.clone()]), (0, 1, 1, 1, 0));
        accepted["accepted"][0]["msg_id"] = json!("m8");
        assert_eq!(found(&[on_whatsapp(row("delivered", true))], &[accepted.clone()]).4, 1);
        accepted["kind"] = json!("fax_send");
        assert!(compare(&[], &[accepted]).is_err());
    }

    #[test]
    fn amounts_are_exact() {
        assert_eq!(ten_thousandths(&json!("12.5")), Some(125_000));
        assert_eq!(ten_thousandths(&json!("0.14000")), Some(1_400));
        assert_eq!(ten_thousandths(&json!("0.00001")), None);
    }
}
