-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again.
SET LOCAL lock_timeout = '500ms';

-- When the present leader began.
ALTER TABLE leader ADD COLUMN since timestamptz NOT NULL DEFAULT clock_timestamp();

-- +goose Down
ALTER TABLE leader DROP COLUMN since;
