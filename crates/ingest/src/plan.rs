//! From a validated event to the rows it asks for, and what of it is set aside. Pure: configuration, rates and time come in
//! as values. One bad recipient is set aside alone; what is wrong for all of them refuses the event.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sendonce_core::config::{Config, Tenant};
use sendonce_core::domain::address::parse_number;
use sendonce_core::domain::event::{Addressee, SendEvent};
use sendonce_core::domain::key::{BusinessKey, InputFields, InputHash, KeyFields};
use sendonce_core::domain::message::{AttemptKey, Channel, Class, JobId, MessageId, Recipient};
use sendonce_core::domain::money::{Rate, RateCard};
use sendonce_core::domain::text::{Measured, WHATSAPP_CHARACTERS, check_body, check_whole_body};
use sendonce_core::gate::Mark;
use sendonce_core::store::{NewMessage, ParkKind, ParkReason};

use crate::aside::Aside;

/// What planning goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) config: &'a Config,
    pub(crate) rates: &'a RateCard,
    /// The database's time.
    pub(crate) now: DateTime<Utc>,
}

/// What an event comes to.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) rows: Vec<Draft>,
    pub(crate) asides: Vec<Aside>,
    /// Recipients that are the same person as an earlier one of the event.
    pub(crate) duplicates: usize,
    /// Recipients without a rate; a card read anew may have one.
    pub(crate) unpriced: usize,
}

/// A message without its ids, which are drawn once and then never change.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    message: NewMessage,
    due: Option<DateTime<Utc>>,
}

/// The ids of a draft.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    pub(crate) message: MessageId,
    pub(crate) attempt: AttemptKey,
}

impl Draft {
    /// What the gate is asked about it.
    pub(crate) fn mark(&self) -> Mark {
        Mark { key: self.message.business_key, input: self.message.input_hash }
    }

    pub(crate) fn class(&self) -> Class {
        self.message.class
    }

    /// The message under its ids, its job still to be packed; and when it may go, if that is in the future.
    pub(crate) fn under(self, ids: Ids, job: JobId) -> (NewMessage, Option<DateTime<Utc>>) {
        let message = NewMessage { id: ids.message, attempt_key: ids.attempt, job_id: job, ..self.message };
        (message, self.due)
    }
}

/// Plans an event.
///
/// # Errors
/// The reason for which the whole event is parked.
pub(crate) fn plan(event: &SendEvent, rules: Rules<'_>) -> Result<Plan, ParkReason> {
    let lane = Lane::of(event, rules)?;
    let mut plan = Plan::default();
    // Channels, sender, body and template are the event's own, and per-recipient parameters do not exist beside a body.
    let input_hash = input_hash(event);
    let mut seen = HashSet::new();
    for addressee in &event.recipients {
        let (raw, recipient) = match addressee {
            Addressee::Number(raw) => (raw, parse_number(raw, &lane.tenant.default_region)),
            Addressee::Refused { raw, reason, detail } => {
                plan.set_aside(raw, ParkReason::new(reason.as_str(), *detail));
                continue;
            }
        };
        let recipient = match recipient {
            Ok(recipient) => recipient,
            Err(error) => {
                plan.set_aside(raw, ParkReason::new(error.code(), error.to_string()));
                continue;
            }
        };
        let key = BusinessKey::derive(&KeyFields {
            tenant: &event.tenant,
            event_type: &event.event_type,
            event_id: &event.event_id,
            step: event.step.as_deref(),
            recipient: &recipient,
            template: event.template.as_deref(),
        });
        if !seen.insert(key) {
            plan.duplicates += 1;
            continue;
        }
        match rules.rates.find(&event.tenant, lane.channel, event.class, &recipient, rules.now) {
            Some(rate) => plan.rows.push(lane.draft(event, recipient, key, input_hash, rate)),
            None => {
                plan.unpriced += 1;
                let detail = format!("no rate for {} {} to this destination", lane.channel, event.class);
                plan.set_aside(raw, ParkReason::new("no_rate", detail));
            }
        }
    }
    Ok(plan)
}

impl Plan {
    fn set_aside(&mut self, recipient: &str, reason: ParkReason) {
        // Bounded: a hostile recipient may be a mebibyte of text, and the event's bytes are kept anyway.
        let recipient = recipient.chars().take(256).collect();
        self.asides.push(Aside { kind: ParkKind::Recipient, reason, recipient: Some(recipient) });
    }
}

/// What all recipients of an event share.
struct Lane<'a> {
    tenant: &'a Tenant,
    channel: Channel,
    account: &'a str,
    measured: Measured,
    correlation_window: Duration,
    life: Life,
    recipients: i32,
    due: Option<DateTime<Utc>>,
}

impl<'a> Lane<'a> {
    fn of(event: &SendEvent, rules: Rules<'a>) -> Result<Self, ParkReason> {
        let config = rules.config;
        let tenant = config
            .tenants
            .get(&event.tenant)
            .ok_or_else(|| ParkReason::new("tenant_unknown", "the tenant is not in the configuration"))?;
        let channel = event.channels.first().copied().unwrap_or(Channel::Sms);
        let no_account = |why: &str| ParkReason::new("no_account", format!("{channel}: {why}"));
        match channel {
            Channel::Sms | Channel::Whatsapp => {}
            Channel::Voice | Channel::Rcs | Channel::Telegram => {
                return Err(no_account("no adapter sends on this channel"));
            }
        }
        let account = tenant.accounts.get(&channel).ok_or_else(|| no_account("the tenant has no account for it"))?;
        let at_provider =
            config.accounts.get(account).ok_or_else(|| no_account("its account is not in the configuration"))?;
        let correlation_window = at_provider.correlation_window;
        let body = event.body.expose();
        let measured = match channel {
            Channel::Whatsapp => check_whole_body(body, WHATSAPP_CHARACTERS),
            Channel::Sms | Channel::Voice | Channel::Rcs | Channel::Telegram => {
                check_body(body, tenant.max_segments, at_provider.encoding)
            }
        }
        .map_err(|error| ParkReason::new(error.code(), error.to_string()))?;
        let life = Life::of(event, config.classes.of(event.class).ttl, rules.now)?;
        let recipients = i32::try_from(event.recipients.len()).unwrap_or(i32::MAX);
        let due = event.scheduled_for.filter(|at| *at > rules.now);
        Ok(Self { tenant, channel, account, measured, correlation_window, life, recipients, due })
    }

    fn draft(
        &self,
        event: &SendEvent,
        recipient: Recipient,
        business_key: BusinessKey,
        input_hash: InputHash,
        rate: &Rate,
    ) -> Draft {
        let message = NewMessage {
            id: MessageId(0),
            job_id: JobId(0),
            attempt_key: AttemptKey(Default::default()),
            business_key,
            input_hash,
            tenant: event.tenant.clone(),
            channel: self.channel,
            class: event.class,
            account: self.account.to_owned(),
            recipient,
            sender_id: event.sender_id.clone().or_else(|| self.tenant.sender_id.clone()),
            event_source: event.source.clone(),
            event_type: event.event_type.clone(),
            event_id: event.event_id.clone(),
            event_recipients: self.recipients,
            step: event.step.clone(),
            campaign: event.campaign.clone(),
            trace_parent: event.trace_parent.clone(),
            template_id: event.template.clone(),
            body: event.body.clone(),
            encoding: self.measured.encoding,
            segments: self.measured.segments,
            dlt_entity_id: event.dlt_entity_id.clone().or_else(|| self.tenant.dlt_entity_id.clone()),
            dlt_template_id: event.dlt_template_id.clone(),
            scheduled_for: event.scheduled_for,
            expires_at: self.life.expires_at,
            ttl: self.life.ttl,
            ttl_from: self.life.from,
            unit_price: rate.unit_price,
            currency: rate.currency.clone(),
            rate_id: rate.id,
            fallback_channels: event.channels.iter().skip(1).copied().collect(),
            correlation_window: self.correlation_window,
        };
        Draft { message, due: self.due }
    }
}

/// How long a message lives, as the insert takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    expires_at: Option<DateTime<Utc>>,
    ttl: Duration,
    /// None: from the insert.
    from: Option<DateTime<Utc>>,
}

impl Life {
    fn of(event: &SendEvent, default: Duration, now: DateTime<Utc>) -> Result<Self, ParkReason> {
        // A publisher's clock that runs ahead does not lengthen anything.
        let happened = event.at.filter(|at| *at <= now);
        let later = event.scheduled_for.filter(|at| *at > now);
        let ends = |from: Option<DateTime<Utc>>, ttl: Duration| {
            let ttl = TimeDelta::from_std(ttl).unwrap_or(TimeDelta::MAX);
            from.unwrap_or(now).checked_add_signed(ttl).unwrap_or(DateTime::<Utc>::MAX_UTC)
        };
        let life = match (event.expires_at, event.ttl) {
            // `expirytime` of the envelope beside `ttl_seconds` of the data: whichever is first.
            (Some(at), Some(ttl)) => Self { expires_at: Some(at.min(ends(happened, ttl))), ttl, from: None },
            (Some(at), None) => Self { expires_at: Some(at), ttl: default, from: None },
            (None, Some(ttl)) => Self { expires_at: None, ttl, from: happened },
            // The class's default is for a message that may go now: a scheduled one gets it from its time on.
            (None, None) => Self { expires_at: None, ttl: default, from: later.or(happened) },
        };
        let end = life.expires_at.unwrap_or_else(|| ends(life.from, life.ttl));
        if later.is_some_and(|at| at >= end) {
            return Err(ParkReason::new("expires_before_schedule", "it would expire before it may go"));
        }
        Ok(life)
    }
}

/// Of what the publisher sent, not of what configuration adds: a changed default is no conflict.
///
/// For OTP neither body nor parameters enter. Six digits are no secret under a plain hash, and there is no key to hash
/// them with yet (design, section 10); so another code under the same event and step counts as a duplicate, which sends
/// nothing, and not as a conflict.
fn input_hash(event: &SendEvent) -> InputHash {
    let body = match event.class {
        Class::Otp => None,
        Class::Transactional | Class::Promotional => Some(event.body.expose()),
    };
    InputHash::derive(&InputFields {
        template: event.template.as_deref(),
        params: &BTreeMap::new(),
        body,
        channels: &event.channels,
        sender_id: event.sender_id.as_deref(),
    })
}

#[cfg(test)]
mod tests;
