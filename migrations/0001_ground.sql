-- Roles, the injected clock and the closed sets of words: what every table stands on.

do $$
declare
    role_name text;
begin
    foreach role_name in array array['sendonce_worker', 'sendonce_import', 'sendonce_restore', 'sendonce_read'] loop
        if not exists (select from pg_roles where rolname = role_name) then
            begin
                execute format('create role %I login nosuperuser nocreatedb nocreaterole', role_name);
            exception
                -- Roles belong to the cluster: another database may be creating them at this moment.
                when duplicate_object or unique_violation then null;
            end;
        end if;
    end loop;
end
$$;

-- The one clock of every statement. Tests set the offset per database; workers refuse to start where it is set otherwise.
create function clock_now() returns timestamptz
    language sql stable parallel safe
    as $$ select now() + coalesce(nullif(current_setting('sendonce.clock_offset', true), ''), '0')::interval $$;

create type message_state as enum
    ('pending', 'claimed', 'submitted', 'delivered', 'failed', 'expired', 'rejected', 'unknown', 'cancelled');
create type message_channel as enum ('sms', 'whatsapp', 'voice', 'rcs', 'telegram');
create type message_class as enum ('otp', 'transactional', 'promotional');
create type correlation_result as enum ('matched', 'ambiguous', 'not_found');

-- Ids are drawn in blocks of 1,000 ahead of need.
create sequence message_id_seq increment by 1000;
create sequence job_id_seq increment by 1000;

-- The timeline that WAL is written on now; the control file is one checkpoint behind a promotion.
create function wal_timeline() returns integer
    language sql volatile
    as $$ select ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::integer $$;

-- The newest row names the history that the database is in: hints in Redis hold for one epoch and timeline, and workers
-- compare how far it had come (crates/core/src/gate). A restore begins a new epoch and completes it when it has ended.
create table store_epoch (
    epoch             uuid primary key default gen_random_uuid(),
    system_identifier text not null,
    timeline          integer not null default wal_timeline(),
    started_at        timestamptz not null default clock_now(),
    completed_at      timestamptz
);
insert into store_epoch (system_identifier, completed_at)
    select system_identifier::text, clock_now() from pg_control_system();
