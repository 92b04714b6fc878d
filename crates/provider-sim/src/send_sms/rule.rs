//! The ruling: what the provider decides about one request, in the order a provider would.

use rust_decimal::Decimal;

use super::SendRequest;
use crate::{
    accounts::Account,
    answer::{Reply, Success},
    book::{Book, throttles_once},
    codes::{self, Code},
    fate::{After, Before, Fate, Magic, Refusal, handset_of, magic},
    form::Fields,
    ids::Ids,
    knobs::{Down, Knobs, NumberForm, SendKnobs, Spelling, TextRule},
    ledger::{Accepted, Decision, Kind},
    push::precedes_answer,
    segments::{self, Coding},
    send_wa,
};

#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    pub at: i64,
    pub seq: u64,
    pub ids: Ids,
}

#[derive(Debug)]
pub struct Ruling {
    pub decision: Decision,
    pub fate: Fate,
    /// The ledger's word for the fate.
    pub word: &'static str,
    pub reply: Reply,
    pub code: Option<&'static str>,
    pub txn: Option<String>,
    pub accepted: Vec<Accepted>,
    pub invalid: Vec<String>,
    pub duplicates: Vec<String>,
}

impl Ruling {
    fn ignored(before: Before) -> Self {
        let fate = Fate::Ignore(before);
        Self { decision: Decision::None, fate, word: fate.name(), code: None, ..Self::blank(Reply::Nothing) }
    }

    fn refused(code: Code, word: &'static str) -> Self {
        Self { code: Some(code.number), word, ..Self::blank(Reply::Refusal(code)) }
    }

    /// Refused in the shape of a plain answer.
    fn blank(reply: Reply) -> Self {
        Self {
            decision: Decision::Refused,
            fate: Fate::Accept(After::Plain),
            word: "refused",
            reply,
            code: None,
            txn: None,
            accepted: Vec::new(),
            invalid: Vec::new(),
            duplicates: Vec::new(),
        }
    }
}

pub fn on(
    request: &SendRequest,
    account: Result<Account, Code>,
    book: &mut Book,
    knobs: &Knobs,
    stamp: Stamp,
) -> Ruling {
    let fate = choose_fate(request, account.as_ref().ok(), book, knobs);
    if let Fate::Ignore(before) = fate {
        return Ruling::ignored(before);
    }
    let message = account.and_then(|account| {
        let message = Message::read(request, &account, knobs)?;
        Ok((account, message))
    });
    let (account, message) = match message {
        Ok(valid) => valid,
        Err(code) => return Ruling::refused(code, "refused"),
    };
    let throttled = !book.within_tps(&account.userid, stamp.at, knobs.send.tps_limit);
    match fate {
        Fate::Refuse(refusal) => return Ruling::refused(code_of(refusal), fate.name()),
        Fate::Accept(_) | Fate::Ignore(_) if throttled => {
            return Ruling::refused(codes::THROTTLED, Fate::Refuse(Refusal::Throttled).name());
        }
        Fate::Accept(_) | Fate::Ignore(_) => {}
    }
    if message.is_test {
        let reply = success(request, &knobs.send, &[], fresh_id(request.kind, book, knobs, fate, stamp));
        return Ruling { code: Some(codes::SUCCESS), word: "test_message", ..Ruling::blank(reply) };
    }
    Submission { request, account, message, book, knobs, stamp, fate }.rule()
}

fn code_of(refusal: Refusal) -> Code {
    match refusal {
        Refusal::TemplateMismatch => codes::TEMPLATE_MISMATCH,
        Refusal::Unlisted => codes::UNLISTED,
        Refusal::ThrottledOnce | Refusal::Throttled => codes::THROTTLED,
    }
}

/// Down beats magic, magic beats the rates.
fn choose_fate(request: &SendRequest, account: Option<&Account>, book: &mut Book, knobs: &Knobs) -> Fate {
    match knobs.down {
        Down::No => {}
        Down::Close => return Fate::Ignore(Before::Reset),
        Down::Http503 => return Fate::Ignore(Before::Down),
        Down::Http404 => return Fate::Ignore(Before::NotFound),
    }
    let spent = |mobile: &str| {
        let redirected =
            matches!(magic(mobile), Some(Magic::Request(Fate::Ignore(Before::Redirect307 | Before::Redirect308))));
        let throttled =
            throttles_once(mobile) && account.is_none_or(|account| book.was_throttled(&account.userid, mobile));
        redirected && request.followed || throttled
    };
    let by_magic = request.recipients.iter().filter(|mobile| is_valid(mobile) && !spent(mobile)).find_map(|mobile| {
        match magic(mobile)? {
            Magic::Request(fate) => Some(fate),
            Magic::Invalid | Magic::Recipient(_) => None,
        }
    });
    by_magic.unwrap_or_else(|| by_rate(book, knobs))
}

/// One draw against the stacked rates, so that at most one of them hits.
fn by_rate(book: &mut Book, knobs: &Knobs) -> Fate {
    let rates = &knobs.rates;
    let stack = [
        (rates.accept_then_hang, Fate::Accept(After::Hang)),
        (rates.accept_then_reset, Fate::Accept(After::Reset)),
        (rates.error_after, Fate::Accept(After::Error)),
        (rates.error_before, Fate::Ignore(Before::Error)),
        (rates.hang_before, Fate::Ignore(Before::Hang)),
        (rates.reset_before, Fate::Ignore(Before::Reset)),
        (rates.throttle, Fate::Refuse(Refusal::Throttled)),
        (rates.truncated, Fate::Accept(After::Truncated)),
        (rates.no_id, Fate::Accept(After::NoId)),
        (rates.late, Fate::Accept(After::Late)),
    ];
    if stack.iter().all(|(rate, _)| *rate <= 0.0) {
        return Fate::Accept(After::Plain);
    }
    let mut draw = book.rng.unit();
    for (rate, fate) in stack {
        if draw < rate {
            return fate;
        }
        draw -= rate;
    }
    Fate::Accept(After::Plain)
}

fn is_valid(mobile: &str) -> bool {
    (10..=15).contains(&mobile.len()) && mobile.bytes().all(|byte| byte.is_ascii_digit())
}

/// The parts of a well-formed request that the ruling needs.
#[derive(Debug)]
struct Message {
    text: String,
    units: u32,
    /// Per unit.
    price: Decimal,
    drop_duplicates: bool,
    is_test: bool,
}

impl Message {
    fn read(request: &SendRequest, account: &Account, knobs: &Knobs) -> Result<Self, Code> {
        match request.kind {
            Kind::SmsSend => Self::sms(&request.fields, account.price, &knobs.send),
            // Billed as one, whatever its length.
            Kind::WaSend => Ok(Self {
                text: send_wa::text(&request.fields)?.to_owned(),
                units: 1,
                price: knobs.wa.price,
                drop_duplicates: true,
                is_test: false,
            }),
        }
    }

    fn sms(fields: &Fields, price: Decimal, knobs: &SendKnobs) -> Result<Self, Code> {
        if fields.get("sendMethod") != Some("quick") {
            return Err(codes::BAD_SEND_METHOD);
        }
        fields.filled("mobile").ok_or(codes::MOBILE_REQUIRED)?;
        fields.filled("senderid").ok_or(codes::SENDER_REQUIRED)?;
        let text = fields.filled("msg").ok_or(codes::MSG_REQUIRED)?.to_owned();
        let is_test = flag(fields, "testMessage")?.unwrap_or(false);
        let drop_duplicates = drops_duplicates(fields, knobs.duplicatecheck_spelling)?;
        let coding = match fields.get("msgType") {
            Some("text") if fits_text(&text, knobs.text_rule) => segments::coding_of(&text),
            Some("text") => return Err(codes::BAD_MSG_TYPE_FOR_TEXT),
            Some("unicode") => Coding::Ucs2,
            Some(_) | None => return Err(codes::BAD_MSG_TYPE),
        };
        Ok(Self { units: segments::count(&text, coding), text, price, drop_duplicates, is_test })
    }
}

fn fits_text(text: &str, rule: TextRule) -> bool {
    match rule {
        TextRule::Ascii => text.is_ascii(),
        TextRule::Gsm => segments::coding_of(text) == Coding::Gsm7,
    }
}

/// Exactly `true` or `false`; anything else, the empty string too, is 147.
fn flag(fields: &Fields, name: &str) -> Result<Option<bool>, Code> {
    match fields.get(name) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(_) => Err(codes::BAD_FLAG),
    }
}

/// True unless an honoured spelling says false; a spelling that is not honoured is silently without effect.
fn drops_duplicates(fields: &Fields, spelling: Spelling) -> Result<bool, Code> {
    let honoured: &[&str] = match spelling {
        Spelling::Lower => &["duplicatecheck"],
        Spelling::Camel => &["duplicateCheck"],
        Spelling::Both => &["duplicatecheck", "duplicateCheck"],
    };
    let mut drop = true;
    for name in honoured {
        drop &= flag(fields, name)?.unwrap_or(true);
    }
    Ok(drop)
}

struct Submission<'a> {
    request: &'a SendRequest,
    account: Account,
    message: Message,
    book: &'a mut Book,
    knobs: &'a Knobs,
    stamp: Stamp,
    fate: Fate,
}

impl Submission<'_> {
    fn rule(mut self) -> Ruling {
        let (valid, invalid, duplicates) = self.sort_recipients();
        // A WhatsApp answer has no invalidMobile to list it in.
        let as_error = self.knobs.send.all_invalid_as_error || self.request.kind == Kind::WaSend;
        if valid.is_empty() && duplicates.is_empty() && as_error {
            return Ruling { invalid, ..Ruling::refused(codes::NO_VALID_MOBILE, "nothing_accepted") };
        }
        let id = fresh_id(self.request.kind, self.book, self.knobs, self.fate, self.stamp);
        if valid.is_empty() {
            let reply = success(self.request, &self.knobs.send, &invalid, id);
            let code = Some(codes::SUCCESS);
            return Ruling { code, word: "nothing_accepted", invalid, duplicates, ..Ruling::blank(reply) };
        }
        let amount = self.message.price * Decimal::from(self.message.units);
        if self.book.balance(&self.account) < amount * Decimal::from(valid.len()) {
            return Ruling { invalid, ..Ruling::refused(codes::INSUFFICIENT_BALANCE, "refused") };
        }
        let accepted = valid.iter().enumerate().map(|(slot, mobile)| self.accept(slot, mobile, &id, amount)).collect();
        Ruling {
            decision: Decision::Accepted,
            fate: self.fate,
            word: self.fate.name(),
            reply: success(self.request, &self.knobs.send, &invalid, id.clone()),
            code: Some(codes::SUCCESS),
            txn: (self.request.kind == Kind::SmsSend).then_some(id),
            accepted,
            invalid,
            duplicates,
        }
    }

    /// Recipients accepted, invalid, and dropped as duplicates.
    fn sort_recipients(&self) -> (Vec<String>, Vec<String>, Vec<String>) {
        let window = i64::try_from(self.knobs.send.cross_request_window_s).unwrap_or(i64::MAX);
        let since = self.stamp.at.saturating_sub(window.saturating_mul(1_000));
        let mut seen = std::collections::HashSet::new();
        let (mut valid, mut invalid, mut duplicates) = (Vec::new(), Vec::new(), Vec::new());
        for mobile in &self.request.recipients {
            let repeated = self.message.drop_duplicates && !seen.insert(mobile.as_str());
            if !is_valid(mobile) || magic(mobile) == Some(Magic::Invalid) {
                invalid.push(mobile.clone());
            } else if repeated || window > 0 && self.accepted_since(mobile, since) {
                duplicates.push(mobile.clone());
            } else {
                valid.push(mobile.clone());
            }
        }
        (valid, invalid, duplicates)
    }

    fn accepted_since(&self, mobile: &str, since: i64) -> bool {
        self.book.accepted_since(self.request.kind, mobile, &self.message.text, since)
    }

    /// `id` is the one that the answer names.
    fn accept(&mut self, slot: usize, mobile: &str, id: &str, amount: Decimal) -> Accepted {
        let push = &self.knobs.push;
        let failed = self.book.rng.hit(push.failed_rate);
        let delay = push.delay_ms.saturating_add(self.book.rng.up_to(push.jitter_ms));
        let delay = if precedes_answer(mobile, push) { 0 } else { i64::try_from(delay).unwrap_or(i64::MAX) };
        let outcome = match handset_of(mobile) {
            Some(handset) => handset.outcome(),
            None if failed => Some(codes::ABSENT.number),
            None => Some(codes::DELIVERED.number),
        };
        Accepted {
            mobile: mobile.to_owned(),
            msg_id: match self.request.kind {
                Kind::SmsSend => self.stamp.ids.message(self.stamp.seq, slot),
                Kind::WaSend => id.to_owned(),
            },
            units: self.message.units,
            price: self.message.price,
            amount,
            done_at: self.stamp.at.saturating_add(delay),
            outcome: outcome.map(str::to_owned),
        }
    }
}

/// A fresh id for the answer, in the shape the fate and the knobs ask for.
fn fresh_id(kind: Kind, book: &Book, knobs: &Knobs, fate: Fate, stamp: Stamp) -> String {
    let draw = |attempt: u64| match fate {
        Fate::Accept(After::LeadingZeros) => stamp.ids.leading_zeros(stamp.seq, attempt),
        Fate::Accept(_) | Fate::Ignore(_) | Fate::Refuse(_) if kind == Kind::WaSend => stamp.ids.message(stamp.seq, 0),
        Fate::Accept(_) | Fate::Ignore(_) | Fate::Refuse(_) if knobs.send.uuid_transaction_id => {
            stamp.ids.uuid(stamp.seq, attempt)
        }
        Fate::Accept(_) | Fate::Ignore(_) | Fate::Refuse(_) => stamp.ids.transaction(stamp.seq, attempt),
    };
    (0..).map(draw).find(|txn| !book.knows_txn(txn)).unwrap_or_default()
}

fn success(request: &SendRequest, knobs: &SendKnobs, invalid: &[String], id: String) -> Reply {
    let spell = |mobile: &String| match knobs.invalid_mobile_form {
        NumberForm::AsSent => mobile.clone(),
        NumberForm::Plus => format!("+{mobile}"),
        NumberForm::National => mobile.get(mobile.len().saturating_sub(10)..).unwrap_or(mobile).to_owned(),
    };
    let mut listed: Vec<String> = invalid.iter().map(spell).collect();
    if knobs.invalid_mobile_repeat {
        listed.extend(listed.clone());
    }
    if !listed.is_empty() {
        listed.extend(knobs.invalid_mobile_stranger.clone());
    }
    Reply::Success(Success { mobile: request.recipients.join(","), invalid_mobile: listed.join(","), id })
}
