-- +goose Up

ALTER TABLE retention_run ADD COLUMN deleted_by text NOT NULL DEFAULT '';
COMMENT ON COLUMN retention_run.deleted_by IS 'Who deleted it; empty: it was past the limits.';
COMMENT ON COLUMN retention_run.why IS 'Why it was deleted: by which limits, or the reason that was given.';

-- +goose Down
ALTER TABLE retention_run DROP COLUMN deleted_by;
