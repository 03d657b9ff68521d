-- +goose NO TRANSACTION
-- Each statement may be rerun after a later one failed.

-- +goose Up

ALTER TABLE collector_op ADD COLUMN IF NOT EXISTS fold text COLLATE "C",
    ADD COLUMN IF NOT EXISTS folded_into text COLLATE "C";
DROP INDEX CONCURRENTLY IF EXISTS collector_op_folded;
CREATE INDEX CONCURRENTLY collector_op_folded ON collector_op (collector, folded_into) WHERE folded_into IS NOT NULL;
COMMENT ON COLUMN collector_op.fold IS
    'Operations of a key with the same value may be folded into one before a flush; null: never.';
COMMENT ON COLUMN collector_op.folded_into IS
    'ID of the operation that it was folded into in its last attempt; null: none.';

-- +goose Down
ALTER TABLE collector_op DROP COLUMN IF EXISTS fold, DROP COLUMN IF EXISTS folded_into;
