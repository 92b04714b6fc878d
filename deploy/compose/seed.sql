-- What an operator does once after `sendonce migrate`: the workers' password, and a rate for each class.
\set ON_ERROR_STOP on
\set password `cat /run/secrets/worker_password`
alter role sendonce_worker password :'password';

insert into rate_card (tenant_id, channel, message_class, prefix, unit_price, currency)
select 'acme', 'sms', class, prefix, price, 'INR'
from unnest(enum_range(null::message_class)) as class, (values ('91', 0.1400), ('', 1.2500)) as rate(prefix, price)
on conflict do nothing;
