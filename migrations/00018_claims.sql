-- +goose NO TRANSACTION

-- Nodes look for work endpoint by endpoint: what is ready, and what waits for its time, is found by the endpoint that
-- does it. Its indexes are built beside the work. What was broken off is built anew.

-- +goose Up

-- endpoint: where the ready items of the block are asked for; null: nobody asks for them, since the run was cancelled,
-- or none has been ready since this column came. turn: minus the priority of the run, so that the most urgent come
-- first in an index that is read forward. auto: the step leaves its limit in flight to what nodes find for the endpoint.
-- A trigger fills them in, so that nobody who makes or fills blocks can forget it.
-- +goose StatementBegin
DO $$
BEGIN
    -- Running nodes are not to queue up behind this: better that it fails and is tried again.
    PERFORM set_config('lock_timeout', '500ms', true);
    ALTER TABLE work_block
        ADD COLUMN IF NOT EXISTS endpoint text COLLATE "C",
        ADD COLUMN IF NOT EXISTS turn     integer,
        ADD COLUMN IF NOT EXISTS auto     boolean;

    CREATE OR REPLACE FUNCTION work_block_place() RETURNS trigger LANGUAGE plpgsql AS $f$
    BEGIN
        SELECT st.endpoint, -r.priority, st.in_flight_auto INTO NEW.endpoint, NEW.turn, NEW.auto
        FROM run_step st JOIN batchrun r ON r.id = st.run_id WHERE st.run_id = NEW.run_id AND st.step = NEW.step;
        RETURN NEW;
    END $f$;
    DROP TRIGGER IF EXISTS work_block_place ON work_block;
    CREATE TRIGGER work_block_place BEFORE INSERT OR UPDATE OF ready ON work_block
        FOR EACH ROW WHEN (NEW.endpoint IS NULL) EXECUTE FUNCTION work_block_place();
END $$;
-- +goose StatementEnd

-- What is ready or waits already.
UPDATE work_block b SET endpoint = st.endpoint, turn = -r.priority, auto = st.in_flight_auto
FROM run_step st JOIN batchrun r ON r.id = st.run_id
WHERE r.state IN ('loading', 'running') AND b.has_ready AND b.endpoint IS NULL
  AND st.run_id = b.run_id AND st.step = b.step;
UPDATE work_slice s SET endpoint = st.endpoint
FROM run_step st
WHERE s.state = 'scheduled' AND st.run_id = s.run_id AND st.step = s.step AND s.endpoint IS DISTINCT FROM st.endpoint;

-- IS TRUE keeps these indexes to the statements that ask in the same words: among indexes that are as good for a while,
-- as they are for a table that is hardly filled, the planner takes any, and keeps to it.

-- The steps of an endpoint that have something ready, those with limits of their own and the others: the most urgent
-- first, then the oldest.
DROP INDEX CONCURRENTLY IF EXISTS work_block_turn;
CREATE INDEX CONCURRENTLY work_block_turn ON work_block (endpoint, auto, turn, run_id, step)
    WHERE (has_ready AND endpoint IS NOT NULL) IS TRUE;

-- What waits for its time at an endpoint.
DROP INDEX CONCURRENTLY IF EXISTS work_slice_waiting;
CREATE INDEX CONCURRENTLY work_slice_waiting ON work_slice (endpoint, not_before, run_id, step)
    WHERE (state = 'scheduled') IS TRUE;

-- What is out there.
DROP INDEX CONCURRENTLY IF EXISTS work_slice_busy;
CREATE INDEX CONCURRENTLY work_slice_busy ON work_slice (endpoint, run_id, step)
    WHERE (state IN ('claimed', 'sent')) IS TRUE;

-- What the leader looks at every second, among thousands of runs.
DROP INDEX CONCURRENTLY IF EXISTS batchrun_limited;
CREATE INDEX CONCURRENTLY batchrun_limited ON batchrun (id)
    WHERE state = 'running' AND hold IS NULL AND (failed_limit IS NOT NULL OR canary_state = 'sampling');
DROP INDEX CONCURRENTLY IF EXISTS run_step_barrier;
CREATE INDEX CONCURRENTLY run_step_barrier ON run_step (run_id) WHERE barrier AND NOT barrier_passed;

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    PERFORM set_config('lock_timeout', '500ms', true);
    DROP INDEX IF EXISTS run_step_barrier, batchrun_limited, work_slice_waiting, work_slice_busy;
    CREATE INDEX work_slice_busy ON work_slice (endpoint, run_id, step) WHERE state IN ('claimed', 'sent');
    DROP TRIGGER IF EXISTS work_block_place ON work_block;
    DROP FUNCTION IF EXISTS work_block_place;
    ALTER TABLE work_block DROP COLUMN IF EXISTS endpoint, DROP COLUMN IF EXISTS turn, -- and the index on them
        DROP COLUMN IF EXISTS auto;
END $$;
-- +goose StatementEnd
