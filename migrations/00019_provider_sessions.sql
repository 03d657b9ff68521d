-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again.
SET LOCAL lock_timeout = '500ms';

-- A login by a provider of identities lasts for as long as the provider stands by it: renewal is what it is asked again
-- by, sealed, and checked_at when it last said yes.
ALTER TABLE web_session
    ADD COLUMN subject    text, -- as the provider calls the person
    ADD COLUMN renewal    bytea,
    ADD COLUMN checked_at timestamptz,
    ADD CONSTRAINT web_session_renewal CHECK ((renewal IS NULL) = (checked_at IS NULL)
        AND (renewal IS NULL OR subject IS NOT NULL));

-- Those of before cannot be asked about.
UPDATE web_session SET expires_at = least(expires_at, clock_timestamp() + interval '5 minutes') WHERE token_id IS NULL;

-- +goose Down
DELETE FROM web_session WHERE renewal IS NOT NULL; -- they would go on without being asked about
ALTER TABLE web_session DROP COLUMN subject, DROP COLUMN renewal, DROP COLUMN checked_at; -- and what is made of them
