-- The state machine and the immutability of money, held by the database. The conditions stand in WHEN clauses, so a
-- legal change runs no function. The edges are those of domain::state; a test compares the two.

create function refuse_state_change() returns trigger language plpgsql as $$
begin
    raise exception 'illegal change of message %: % -> %', old.id, old.state, new.state
        using errcode = 'check_violation',
              hint = 'unknown needs reconciled_at, evidence and a correlation result; submitted needs units and cost';
end
$$;

create trigger guard_state before update on outbound_message for each row
    when (old.state is distinct from new.state and not (
        (old.state = 'pending' and new.state = 'claimed' and new.attempt_key is distinct from old.attempt_key)
        or (old.state = 'pending' and new.state in ('expired', 'cancelled') and new.final_at is not null)
        or (old.state = 'claimed' and new.state in ('pending', 'unknown'))
        or (old.state = 'claimed' and new.state = 'rejected' and new.final_at is not null)
        or (old.state = 'claimed' and new.state = 'submitted' and new.submitted_at is not null
            and num_nulls(new.cost, new.cost_currency, new.billable_units) = 0)
        or (old.state = 'submitted' and new.state in ('delivered', 'failed', 'expired') and new.final_at is not null)
        or (old.state = 'unknown' and new.state in ('submitted', 'failed')
            and new.reconciled_at is not null and new.evidence is not null
            and (new.correlation_result is not null or new.evidence ->> 'kind' = 'own_answer')
            and (new.state = 'failed' or (new.submitted_at is not null
                and num_nulls(new.cost, new.cost_currency, new.billable_units) = 0))
            and (new.state = 'submitted' or new.final_at is not null))
    ))
    execute function refuse_state_change();

create function refuse_rewrite() returns trigger language plpgsql as $$
begin
    raise exception 'message %: identity, price, units and cost are written once', old.id
        using errcode = 'check_violation';
end
$$;

create trigger guard_written_once before update on outbound_message for each row
    when (
        (old.cost is not null and (new.cost is distinct from old.cost
            or new.cost_currency is distinct from old.cost_currency
            or new.billable_units is distinct from old.billable_units))
        or (old.cost is null and new.cost is not null and new.state <> 'submitted')
        or (old.reported_cost is not null and new.reported_cost is distinct from old.reported_cost)
        or new.unit_price is distinct from old.unit_price
        or new.rate_id is distinct from old.rate_id
        or new.segments is distinct from old.segments
        or new.id is distinct from old.id
        or new.job_id is distinct from old.job_id
        or new.tenant_id is distinct from old.tenant_id
        or new.business_key is distinct from old.business_key
        or new.recipient is distinct from old.recipient
    )
    execute function refuse_rewrite();

create function refuse_insert() returns trigger language plpgsql as $$
begin
    if current_user not in ('sendonce_import', 'sendonce_restore') or new.state = 'claimed' then
        raise exception 'message %: % cannot insert a % message', new.id, current_user, new.state
            using errcode = 'check_violation', hint = 'messages begin as pending';
    end if;
    if new.state = 'unknown' and new.needs_review_since is null then
        raise exception 'message %: an imported unknown is under review from the start', new.id
            using errcode = 'check_violation';
    end if;
    return new;
end
$$;

create trigger guard_insert before insert on outbound_message for each row
    when (new.state <> 'pending') execute function refuse_insert();
