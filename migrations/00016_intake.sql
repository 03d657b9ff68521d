-- +goose Up

ALTER TABLE batchrun ADD COLUMN content jsonb;
COMMENT ON COLUMN batchrun.content IS
    'Of a run with an idempotency key: what was asked for beside the plan, and a digest of the items as they were read, '
    'so that the key with other content is refused; null: only plan and parameters are compared.';

-- +goose Down
ALTER TABLE batchrun DROP COLUMN content;
