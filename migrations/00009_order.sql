-- +goose Up

CREATE TABLE run_order (
    run_id uuid    PRIMARY KEY REFERENCES batchrun ON DELETE CASCADE,
    rule   jsonb   NOT NULL,
    stop   boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE run_order IS
    'Ordered runs: items with the same value share a lane and go one at a time. Other runs have no row.';
COMMENT ON COLUMN run_order.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_order.rule IS 'How items are put in lanes: by, values, partitions.';
COMMENT ON COLUMN run_order.stop IS 'Whether items after a failed one in its lane are ended without an attempt.';

-- The row's lock is the lane's lock: making an item of the lane ready or held requires it. Waiting items are held
-- (work_block.held).
CREATE TABLE work_lane (
    run_id     uuid    NOT NULL,
    lane       bigint  NOT NULL,
    head       integer,
    low        integer,
    stopped_by integer,
    due        boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, lane),
    CONSTRAINT work_lane_low CHECK (low IS NULL OR head IS NULL OR low < head),
    CONSTRAINT work_lane_stopped CHECK (stopped_by IS NULL OR head IS NULL),
    CONSTRAINT work_lane_due CHECK (NOT due OR (stopped_by IS NOT NULL AND low IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX work_lane_due ON work_lane (run_id, lane) WHERE due;
COMMENT ON TABLE work_lane IS 'Lanes of ordered runs, from when their first item may start.';
COMMENT ON COLUMN work_lane.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_lane.lane IS 'The lane (work_order.lane).';
COMMENT ON COLUMN work_lane.head IS 'The item in progress (work_queue.ordinal); null: none.';
COMMENT ON COLUMN work_lane.low IS
    'The first waiting item, if it comes before the head or there is no head; otherwise null.';
COMMENT ON COLUMN work_lane.stopped_by IS 'The failed item that stopped the lane; null: none.';
COMMENT ON COLUMN work_lane.due IS 'Whether the lane was stopped and its waiting items must still be ended.';

-- Older nodes would record items of such runs without starting the next ones.
-- +goose StatementBegin
CREATE FUNCTION refuse_node_without_lines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_order o ON o.run_id = r.id WHERE r.state IN ('loading', 'running')) THEN
        RAISE EXCEPTION 'this version of Tranche does not support ordered runs, and some are in progress: '
            'start a newer version here, or wait until those runs have ended';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER node_session_order BEFORE INSERT ON node_session
    FOR EACH ROW WHEN (NEW.feature_level < 3) EXECUTE FUNCTION refuse_node_without_lines();
COMMENT ON FUNCTION refuse_node_without_lines() IS
    'Trigger: refuses a session to a node that does not support ordered runs while some are in progress.';

-- +goose Down

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_order o ON o.run_id = r.id WHERE r.state IN ('loading', 'running')) THEN
        RAISE EXCEPTION 'ordered runs are in progress: wait until they have ended, or cancel them';
    END IF;
END $$;
-- +goose StatementEnd
DROP TRIGGER node_session_order ON node_session;
DROP FUNCTION refuse_node_without_lines();
DROP TABLE work_lane, run_order;
