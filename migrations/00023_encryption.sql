-- +goose Up

ALTER TABLE batchrun ADD COLUMN data_key bytea;
COMMENT ON COLUMN batchrun.data_key IS
    'The key for its payloads, results and parameters, encrypted with the installation''s key; null: not encrypted.';

COMMENT ON COLUMN batchrun.params IS 'Parameters sent with each request: an object; if encrypted, a string.';

ALTER TABLE node_session ADD COLUMN keys text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN node_session.keys IS 'Fingerprints of its encryption keys (serve --encryption-key).';

-- A node without a key must not start unencrypted runs while others encrypt theirs.
-- +goose StatementBegin
CREATE FUNCTION batchrun_encrypted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    node text;
BEGIN
    SELECT format('%s (pid %s)', s.host, s.pid) INTO node FROM node_session s
    WHERE s.keys <> '{}' AND s.ended_at IS NULL AND s.expires_at > tranche_now() LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'TRQ01', MESSAGE = format('node %s encrypts runs, and this process has no key; '
            'give it the same --encryption-key, and start the run again', node);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION batchrun_encrypted() IS 'Trigger: refuses an unencrypted run while a node encrypts runs.';
CREATE TRIGGER batchrun_encrypted AFTER INSERT ON batchrun FOR EACH ROW WHEN (NEW.data_key IS NULL)
    EXECUTE FUNCTION batchrun_encrypted();

-- +goose Down

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM batchrun WHERE data_key IS NOT NULL) THEN
        RAISE EXCEPTION 'encrypted runs exist and would become unreadable: delete them first';
    END IF;
END $$;
-- +goose StatementEnd
DROP TRIGGER batchrun_encrypted ON batchrun;
DROP FUNCTION batchrun_encrypted();
COMMENT ON COLUMN batchrun.params IS 'Parameters sent with each request.';
ALTER TABLE node_session DROP COLUMN keys;
ALTER TABLE batchrun DROP COLUMN data_key;
