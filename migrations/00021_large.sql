-- +goose Up

-- A result too large for one message is sent and stored in pieces, so that nothing has to hold all of it in memory.
CREATE TABLE large_result (
    id           uuid        PRIMARY KEY,
    run_id       uuid        NOT NULL,
    step         smallint    NOT NULL,
    ordinal      integer     NOT NULL,
    slice_id     uuid        NOT NULL,
    pieces       integer     NOT NULL CHECK (pieces >= 1),
    bytes        bigint      NOT NULL CHECK (bytes >= 1),
    sha256       bytea       NOT NULL CHECK (octet_length(sha256) = 32),
    content_type text        NOT NULL,
    began_at     timestamptz NOT NULL DEFAULT tranche_now(),
    recorded_at  timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX large_result_place ON large_result (run_id, step, ordinal);
CREATE INDEX large_result_open ON large_result (slice_id) WHERE recorded_at IS NULL;
COMMENT ON TABLE large_result IS
    'Results too large for one message, also incomplete ones. Unrecorded ones are deleted after their slice ended.';
COMMENT ON COLUMN large_result.id IS 'Derived from the slice and from what the service announced.';
COMMENT ON COLUMN large_result.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN large_result.step IS 'The step (run_step.step).';
COMMENT ON COLUMN large_result.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN large_result.slice_id IS 'The slice that it answers (work_slice.id).';
COMMENT ON COLUMN large_result.pieces IS 'Number of pieces (work_piece).';
COMMENT ON COLUMN large_result.bytes IS 'Size in bytes; until recorded, as announced by the service.';
COMMENT ON COLUMN large_result.sha256 IS 'Its SHA-256; until recorded, as announced by the service.';
COMMENT ON COLUMN large_result.content_type IS 'As announced by the service; empty: application/json.';
COMMENT ON COLUMN large_result.began_at IS 'When its first piece arrived.';
COMMENT ON COLUMN large_result.recorded_at IS
    'When it became the item''s result (work_result.large_id), after a check of size and hash; null: not yet.';

CREATE TABLE work_piece (
    large_id uuid    NOT NULL REFERENCES large_result ON DELETE CASCADE,
    piece    integer NOT NULL CHECK (piece >= 1),
    bytes    bytea   NOT NULL,
    PRIMARY KEY (large_id, piece)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
-- Data of this size is usually compressed already.
ALTER TABLE work_piece ALTER COLUMN bytes SET STORAGE EXTERNAL;
COMMENT ON TABLE work_piece IS 'Pieces of large results.';
COMMENT ON COLUMN work_piece.large_id IS 'The result (large_result.id).';
COMMENT ON COLUMN work_piece.piece IS 'Number of the piece, from 1.';
COMMENT ON COLUMN work_piece.bytes IS 'Content of the piece.';

ALTER TABLE work_result ADD COLUMN large_id uuid;
COMMENT ON COLUMN work_result.large_id IS
    'The large result (large_result.id); result is then a JSON object with its size and SHA-256. Null: result is '
    'complete.';

-- One result that is not valid jsonb must not fail a whole query. Not PARALLEL SAFE, because it catches errors.
-- +goose StatementBegin
CREATE FUNCTION bytes_as_json(bytes bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION bytes_as_json(bytea) IS 'JSON from its bytes; null: not JSON, or more than jsonb can hold.';

-- LIMIT makes it a lookup by primary key, regardless of statistics. Bytes are read only if selected.
CREATE VIEW run_item_parts AS
SELECT i.run_id, i.ordinal, i.key, i.step, i.step_name, i.state, i.generation, i.error_code, i.error_message,
    CASE WHEN p.result IS NOT NULL THEN coalesce(nullif(p.content_type, ''), 'application/json') END AS content_type,
    CASE WHEN p.content_type <> '' THEN NULL ELSE bytes_as_json(b.bytes) END AS result,
    b.bytes
FROM run_item i
CROSS JOIN LATERAL (
    SELECT x.result, x.content_type, x.large_id FROM work_result x
    WHERE x.run_id = i.run_id AND x.step = i.step AND x.ordinal = i.ordinal AND x.generation = i.generation
    LIMIT 1) p
CROSS JOIN LATERAL (
    SELECT CASE WHEN p.large_id IS NULL THEN p.result
        ELSE (SELECT string_agg(w.bytes, ''::bytea ORDER BY w.piece) FROM work_piece w WHERE w.large_id = p.large_id)
        END AS bytes) b
WHERE i.state IN ('done', 'failed');
COMMENT ON VIEW run_item_parts IS
    'Current parts of items: a row per item and step with a result or error. Parts that were reset or are being '
    'recomputed are not included. Query one run: WHERE run_id = ''…''.';
COMMENT ON COLUMN run_item_parts.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_item_parts.ordinal IS 'Number of the item in its run, from 0.';
COMMENT ON COLUMN run_item_parts.key IS 'Key of the item: the caller''s ID.';
COMMENT ON COLUMN run_item_parts.step IS 'Number of the step, from 0.';
COMMENT ON COLUMN run_item_parts.step_name IS 'Name of the step in the plan.';
COMMENT ON COLUMN run_item_parts.state IS 'done, with a result; or failed, with an error.';
COMMENT ON COLUMN run_item_parts.generation IS 'The run''s generation when it was recorded.';
COMMENT ON COLUMN run_item_parts.error_code IS 'Error code; null: not failed.';
COMMENT ON COLUMN run_item_parts.error_message IS 'The error in words.';
COMMENT ON COLUMN run_item_parts.content_type IS 'Type of the result; null: failed.';
COMMENT ON COLUMN run_item_parts.result IS
    'The result, if it is JSON; numbers keep all digits. Null: not JSON, or more than jsonb can hold (see bytes).';
COMMENT ON COLUMN run_item_parts.bytes IS 'The complete result as sent by the service.';

-- +goose Down
DROP VIEW run_item_parts;
DROP FUNCTION bytes_as_json(bytea);
ALTER TABLE work_result DROP COLUMN large_id;
DROP TABLE work_piece, large_result;
