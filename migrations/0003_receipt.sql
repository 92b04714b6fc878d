-- Every receipt ever, raw. A receipt is a claim: it never creates a message.

create sequence receipt_id_seq;
create table receipt (
    id                  bigint not null default nextval('receipt_id_seq'),
    received_at         timestamptz not null,
    digest              bytea not null check (octet_length(digest) = 32),
    provider_account    text not null,
    provider_txn_id     text,
    provider_message_id text,
    recipient           text,
    code                text,
    kind                text check (kind in ('submitted', 'expired', 'failed', 'delivered', 'read')),
    cause               text,
    done_at             timestamptz,
    content_type        text,
    raw                 bytea not null,
    trace_parent        text,
    -- early: no row yet; orphan: none came in time; applied: reduced into its row.
    disposition         text not null check (disposition in ('applied', 'early', 'orphan')),
    message_id          bigint,
    message_created_at  timestamptz,
    primary key (id, received_at)
) partition by range (received_at);
create index receipt_message on receipt (message_id) where message_id is not null;
-- "is not null" keeps each to its own question: the planner would take either for the other while a partition is empty.
create index receipt_open_txn on receipt (provider_txn_id, provider_account)
    where disposition <> 'applied' and provider_txn_id is not null;
create index receipt_open_message on receipt (provider_message_id, provider_account)
    where disposition <> 'applied' and provider_message_id is not null;
-- The newest receipt of an account: its silence is an alarm.
create index receipt_account on receipt (provider_account, received_at);
create index receipt_early on receipt (received_at) where disposition = 'early';

-- Stores a receipt once. A unique index on the monthly table would fall into the partition trap.
create table receipt_key (
    digest      bytea primary key,
    received_at timestamptz not null
) partition by hash (digest);
