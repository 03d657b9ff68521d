-- +goose Up

ALTER TABLE deleted_run ADD COLUMN deleted_by text NOT NULL DEFAULT '';
COMMENT ON COLUMN deleted_run.deleted_by IS 'Who deleted it; empty: it was past the limits.';
COMMENT ON COLUMN deleted_run.why IS 'Why it was deleted: by which limits, or the reason that was given.';

-- +goose Down
ALTER TABLE deleted_run DROP COLUMN deleted_by;
