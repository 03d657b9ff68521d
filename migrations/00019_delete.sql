-- +goose Up

ALTER TABLE deleted_run ADD COLUMN deleted_by text NOT NULL DEFAULT '';
COMMENT ON COLUMN deleted_run.deleted_by IS 'Who deleted it; empty: retention.';
COMMENT ON COLUMN deleted_run.why IS 'Why it was deleted: the limits exceeded, or the reason given.';

-- +goose Down
ALTER TABLE deleted_run DROP COLUMN deleted_by;
