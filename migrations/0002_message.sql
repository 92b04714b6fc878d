-- The message table: one row per recipient and physical message, the one truth about state. Claim, submit and deliver
-- change no indexed column, so those updates stay HOT; whatever must be found by something that changes has a narrow table.

create table outbound_message (
    id                    bigint not null,
    created_at            timestamptz not null,
    job_id                bigint not null,
    business_key          bytea not null check (octet_length(business_key) = 32),
    attempt_key           uuid not null,
    attempt_no            integer not null default 1,
    superseded_by         bigint,
    origin                text not null default 'event' check (origin in ('event', 'own_answer', 'fallback', 'replay', 'import')),

    tenant_id             text not null,
    channel               message_channel not null,
    message_class         message_class not null,
    recipient             text not null check (length(recipient) between 5 and 15 and translate(recipient, '0123456789', '') = ''),
    sender_id             text,
    provider_account      text not null,

    event_source          text,
    event_type            text not null,
    event_id              text not null,
    event_recipients      integer not null,
    step                  text,
    campaign              text,
    trace_parent          text,

    template_id           text,
    body                  text,
    content               jsonb,
    secret_params         bytea,
    input_hash            bytea not null check (octet_length(input_hash) = 32),
    encoding              text not null check (encoding in ('gsm7', 'ucs2')),
    segments              smallint not null check (segments > 0),
    dlt_entity_id         text,
    dlt_template_id       text,

    state                 message_state not null default 'pending',
    state_reason          text,
    attempt_count         integer not null default 0,
    next_attempt_at       timestamptz,

    provider_txn_id       text,
    provider_message_id   text,
    provider_campaign_id  text,
    provider_status_code  text,
    provider_cause        text,

    claimed_at            timestamptz,
    submitted_at          timestamptz,
    delivered_at          timestamptz,
    read_at               timestamptz,
    final_at              timestamptz,
    reconciled_at         timestamptz,
    scheduled_for         timestamptz,
    expires_at            timestamptz not null,
    updated_at            timestamptz not null,

    receipt_state         text check (receipt_state in ('submitted', 'expired', 'failed', 'delivered', 'read')),
    receipt_conflict      boolean not null default false,

    unit_price            numeric(12, 4) not null,
    rate_id               bigint not null,
    billable_units        integer check (billable_units > 0),
    cost                  numeric(12, 4),
    cost_currency         char(3),
    reported_cost         numeric(12, 4),

    correlation_result    correlation_result,
    correlation_window_ms integer not null default 90000,
    evidence              jsonb,
    needs_review_since    timestamptz,
    fallback_channels     message_channel[] not null default '{}',

    primary key (id, created_at),
    -- A provider's way of saying "none" is NULL here (T7). One cleaning function writes; this refuses whatever slips by.
    constraint provider_ids_are_ids check (
        coalesce(lower(btrim(provider_txn_id)), 'x') not in ('', '0', '-', 'null', 'none', 'nil', 'undefined')
        and coalesce(lower(btrim(provider_message_id)), 'x') not in ('', '0', '-', 'null', 'none', 'nil', 'undefined')
        and coalesce(lower(btrim(provider_campaign_id)), 'x') not in ('', '0', '-', 'null', 'none', 'nil', 'undefined')
    )
) partition by range (created_at);

-- Correlation where no provider id exists (the partition narrows the time); then event, trace. All on columns that never
-- change. created_at stays out: on an empty partition the planner would take such an index for a look-up by id.
create index outbound_message_recipient on outbound_message (recipient, provider_account, sender_id);
create index outbound_message_event on outbound_message (event_id, tenant_id);
create index outbound_message_trace on outbound_message (substring(trace_parent from 4 for 32)) where trace_parent is not null;

-- The durable idempotency backstop. Never partitioned by time: a unique index on a monthly table guards nothing across
-- a month boundary.
create table message_key (
    tenant_id          text not null,
    business_key       bytea not null check (octet_length(business_key) = 32),
    message_id         bigint not null,
    message_created_at timestamptz not null,
    attempt_no         integer not null,
    input_hash         bytea not null check (octet_length(input_hash) = 32),
    first_seen         timestamptz not null,
    primary key (tenant_id, business_key)
) partition by hash (business_key);

-- One row per job, deleted when all its messages are decided. wake_at is its only deadline: unleased, publish (again);
-- leased, the end of the lease. due_at, which never changes, is when it should have gone: it tells the oldest undecided.
create table send_job (
    id               bigint primary key,
    created_at       timestamptz not null,
    tenant_id        text not null,
    channel          message_channel not null,
    message_class    message_class not null,
    provider_account text not null,
    message_ids      bigint[] not null check (cardinality(message_ids) > 0),
    due_at           timestamptz not null,
    lease_token      uuid,
    wake_at          timestamptz not null,
    published_at     timestamptz,
    publish_count    integer not null default 0,
    parked_reason    text
) with (fillfactor = 70);
create index send_job_due on send_job (wake_at);
create index send_job_oldest on send_job (message_class, due_at);

-- One row per request on the wire, written when the attempt ends; the attempt key is its identity. message_created_at is
-- the one created_at that all rows of a job share, so the partition key never splits an attempt key's uniqueness.
create table submission (
    attempt_key          uuid not null,
    message_created_at   timestamptz not null,
    job_id               bigint not null,
    tenant_id            text not null,
    channel              message_channel not null,
    message_class        message_class not null,
    provider_account     text not null,
    message_ids          bigint[] not null check (cardinality(message_ids) > 0),
    claimed_at           timestamptz not null,
    ended_at             timestamptz not null,
    verdict              text not null check (verdict in
        ('accepted', 'rejected', 'throttled', 'account_refused', 'not_sent', 'ambiguous', 'lease_ended')),
    detail               text,
    http_status          integer,
    provider_txn_id      text,
    provider_status_code text,
    provider_cause       text,
    answered_late_at     timestamptz,
    primary key (attempt_key, message_created_at),
    constraint provider_ids_are_ids check (
        coalesce(lower(btrim(provider_txn_id)), 'x') not in ('', '0', '-', 'null', 'none', 'nil', 'undefined')
    )
) partition by range (message_created_at);
create index submission_txn on submission (provider_txn_id, provider_account) where provider_txn_id is not null;
create index submission_job on submission (job_id);
create index submission_ended on submission (ended_at);

-- Messages whose outcome must be read from the provider: unknown, or submitted and silent too long.
create table unresolved (
    message_id         bigint primary key,
    message_created_at timestamptz not null,
    kind               text not null check (kind in ('unknown', 'silent')),
    tenant_id          text not null,
    channel            message_channel not null,
    message_class      message_class not null,
    provider_account   text not null,
    attempt_key        uuid not null,
    since              timestamptz not null,
    next_poll_at       timestamptz not null,
    polls              integer not null default 0,
    needs_review_since timestamptz
);
create index unresolved_due on unresolved (next_poll_at);
create index unresolved_age on unresolved (kind, since);

-- How far a sweep that walks by time has come.
create table sweep_cursor (
    sweep    text primary key,
    position timestamptz not null
);

-- A provider message id belongs to one message.
create table provider_message (
    provider_account    text not null,
    provider_message_id text not null,
    message_id          bigint not null,
    message_created_at  timestamptz not null,
    primary key (provider_account, provider_message_id)
) partition by hash (provider_message_id);

-- A cancel is a row first, so that it holds whatever overtakes whatever. By event, or by business key.
create table cancellation (
    id           bigint generated always as identity primary key,
    tenant_id    text not null,
    event_id     text,
    business_key bytea,
    reason       text not null,
    cancelled_at timestamptz not null default clock_now(),
    check (num_nonnulls(event_id, business_key) = 1)
);
create unique index cancellation_event on cancellation (tenant_id, event_id) where event_id is not null;
create unique index cancellation_key on cancellation (tenant_id, business_key) where business_key is not null;

create table rate_card (
    rate_id       bigint generated always as identity primary key,
    tenant_id     text not null,
    channel       message_channel not null,
    message_class message_class not null,
    prefix        text not null check (prefix ~ '^[0-9]*$'),
    unit_price    numeric(12, 4) not null check (unit_price >= 0),
    currency      char(3) not null,
    valid_from    timestamptz not null default '-infinity',
    valid_to      timestamptz,
    check (valid_to is null or valid_to > valid_from),
    unique (tenant_id, channel, message_class, prefix, valid_from)
);

-- Set aside for a person, with the reason and the original bytes. The digest makes parking the same thing twice one row.
create table parked (
    id          bigint generated always as identity primary key,
    digest      bytea not null unique,
    kind        text not null check (kind in ('event', 'recipient', 'key_conflict', 'receipt')),
    reason      text not null,
    detail      text not null,
    tenant_id   text,
    event_id    text,
    recipient   text,
    original    bytea not null,
    headers     jsonb not null,
    times_seen  integer not null default 1,
    parked_at   timestamptz not null default clock_now(),
    resolved_at timestamptz,
    resolved_by text
);
create index parked_open on parked (parked_at) where resolved_at is null;
create index parked_event on parked (event_id);
