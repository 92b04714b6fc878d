-- Partitions are made by functions, never by default: a missing month is an error that readiness shows.

-- Creates what is missing from this month on. Made like the parent and then attached: CREATE … PARTITION OF would lock
-- the parent against every writer.
create function ensure_partitions(months_ahead integer) returns integer
    language plpgsql security definer set search_path = public, pg_temp
    as $$
declare
    parent text;
    child  text;
    starts timestamp;
    made   integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('sendonce.ensure_partitions'));
    foreach parent in array array['outbound_message', 'submission', 'receipt'] loop
        for month in 0..months_ahead loop
            starts := date_trunc('month', clock_now() at time zone 'UTC') + make_interval(months => month);
            child := format('%s_%s', parent, to_char(starts, 'YYYY_MM'));
            if to_regclass(child) is null then
                execute format('create table %I (like %I including all)', child, parent);
                if parent = 'outbound_message' then
                    execute format('alter table %I set (fillfactor = 50)', child);
                end if;
                execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, child,
                    starts at time zone 'UTC', (starts + interval '1 month') at time zone 'UTC');
                execute format('analyze %I', child);
                made := made + 1;
            end if;
        end loop;
    end loop;
    return made;
end
$$;

-- How many months from this one on exist in every monthly table, this one included.
create function partitions_ahead() returns integer
    language sql stable
    as $$
        select coalesce(min(months), 0)::integer
        from (
            select parent, count(*) filter (where to_regclass(
                format('%s_%s', parent, to_char(date_trunc('month', clock_now() at time zone 'UTC')
                    + make_interval(months => month), 'YYYY_MM'))) is not null) as months
            from unnest(array['outbound_message', 'submission', 'receipt']) as parent,
                 generate_series(0, 12) as month
            group by parent
        ) as found
    $$;

do $$
declare
    parent text;
begin
    foreach parent in array array['message_key', 'provider_message', 'receipt_key'] loop
        for part in 0..7 loop
            execute format('create table %I partition of %I for values with (modulus 8, remainder %s)',
                format('%s_%s', parent, part), parent, part);
        end loop;
    end loop;
end
$$;

select ensure_partitions(4);

revoke all on function ensure_partitions(integer) from public;
grant execute on function ensure_partitions(integer) to sendonce_worker;
