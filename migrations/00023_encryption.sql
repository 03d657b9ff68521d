-- +goose Up

ALTER TABLE batchrun ADD COLUMN data_key bytea;
COMMENT ON COLUMN batchrun.data_key IS
    'The key of its payloads and results, encrypted with the key of the installation; null: they are not encrypted.';

ALTER TABLE node_session ADD COLUMN keyed boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN node_session.keyed IS 'It has an encryption key, a setting of serve.';

-- +goose Down

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM batchrun WHERE data_key IS NOT NULL) THEN
        RAISE EXCEPTION 'there are encrypted runs, and nothing could read them without their keys: delete them first';
    END IF;
END $$;
-- +goose StatementEnd
ALTER TABLE node_session DROP COLUMN keyed;
ALTER TABLE batchrun DROP COLUMN data_key;
