-- +goose Up

ALTER TABLE batchrun ADD COLUMN content jsonb;
COMMENT ON COLUMN batchrun.content IS
    'Of a run with an idempotency key: what was asked for beside the plan, and a digest of the items as they were read, '
    'so that the key with other content is refused; null: only plan and parameters are compared.';

ALTER TABLE work_block
    ADD COLUMN invalid bit(8192),
    ADD CONSTRAINT work_block_invalid CHECK (invalid IS NULL OR (invalid & ~failed) = B'0'::bit(8192));
ALTER TABLE work_block ALTER COLUMN invalid SET STORAGE PLAIN;
COMMENT ON COLUMN work_block.invalid IS
    'Of the failed items those that do not fit the schema of the run: they are not asked for, and not done again; '
    'null: none.';

-- +goose Down
ALTER TABLE work_block DROP COLUMN invalid;
ALTER TABLE batchrun DROP COLUMN content;
