-- Workers read and write rows; nobody but the owner changes a table, and no worker deletes a message, a key or a receipt.

grant usage on schema public to sendonce_worker, sendonce_import, sendonce_restore, sendonce_read;
grant usage on sequence message_id_seq, job_id_seq, receipt_id_seq to sendonce_worker, sendonce_import, sendonce_restore;

grant select, insert, update on outbound_message, message_key, submission, receipt, receipt_key, provider_message,
    cancellation, parked, sweep_cursor to sendonce_worker;
grant select, insert, update, delete on send_job, unresolved to sendonce_worker;
grant select on store_epoch, rate_card, _sqlx_migrations to sendonce_worker;
grant update (timeline) on store_epoch to sendonce_worker;

grant select, insert, update on outbound_message, message_key, submission, unresolved, provider_message
    to sendonce_import, sendonce_restore;

grant select on outbound_message, message_key, send_job, submission, unresolved, receipt, provider_message, cancellation,
    parked, rate_card, store_epoch, _sqlx_migrations to sendonce_read;
