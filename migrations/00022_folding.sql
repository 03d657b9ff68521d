-- +goose Up

ALTER TABLE collector_op ADD COLUMN fold text COLLATE "C", ADD COLUMN folded_into text COLLATE "C";
CREATE INDEX collector_op_folded ON collector_op (collector, folded_into) WHERE folded_into IS NOT NULL;
COMMENT ON COLUMN collector_op.fold IS
    'Operations of a key with the same value here may be folded into one before a flush; null: this one is not.';
COMMENT ON COLUMN collector_op.folded_into IS
    'The id of the operation that it was folded into in its last try; null: it went by itself, or was not tried.';

-- +goose Down
ALTER TABLE collector_op DROP COLUMN fold, DROP COLUMN folded_into;
