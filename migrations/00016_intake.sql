-- +goose Up

ALTER TABLE batchrun ADD COLUMN content jsonb;
COMMENT ON COLUMN batchrun.content IS
    'With an idempotency key: the request besides the plan and a digest of the items, so that the key with other '
    'content is refused; null: only plan and parameters are compared.';

ALTER TABLE work_block
    ADD COLUMN invalid bit(8192),
    ADD CONSTRAINT work_block_invalid CHECK (invalid IS NULL OR (invalid & ~failed) = B'0'::bit(8192));
ALTER TABLE work_block ALTER COLUMN invalid SET STORAGE PLAIN;
COMMENT ON COLUMN work_block.invalid IS
    'Failed items that do not fit the run''s schema: they are never sent or rerun; null: none.';

-- +goose Down
ALTER TABLE work_block DROP COLUMN invalid;
ALTER TABLE batchrun DROP COLUMN content;
