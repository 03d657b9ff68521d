-- +goose Up

CREATE TABLE run_order (
    run_id uuid    PRIMARY KEY REFERENCES batchrun ON DELETE CASCADE,
    rule   jsonb   NOT NULL,
    stop   boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE run_order IS
    'Runs whose items go in lanes, those of the same value one at a time. A run that is not here has no lanes.';
COMMENT ON COLUMN run_order.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_order.rule IS 'By what they are put in lanes: by, values, partitions.';
COMMENT ON COLUMN run_order.stop IS 'What follows an item that failed is ended, and not tried.';

-- Its lock is that of the lane: who makes an item of it ready, or has one wait, holds it. The items that wait are held
-- back (work_block.held).
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
COMMENT ON TABLE work_lane IS 'Lanes of runs in order, from the time at which an item of them can be worked on.';
COMMENT ON COLUMN work_lane.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_lane.lane IS 'The lane (work_order.lane).';
COMMENT ON COLUMN work_lane.head IS 'The one item that is worked on (work_queue.ordinal); null: none.';
COMMENT ON COLUMN work_lane.low IS 'The first item that waits, when that is not behind the head; null otherwise.';
COMMENT ON COLUMN work_lane.stopped_by IS 'The item that failed, and nothing follows it; null: none.';
COMMENT ON COLUMN work_lane.due IS 'The lane was stopped, and items of it wait for their end.';

-- A node of before would record items of such runs and let no one follow them.
-- +goose StatementBegin
CREATE FUNCTION refuse_node_without_lines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_order o ON o.run_id = r.id WHERE r.state IN ('loading', 'running')) THEN
        RAISE EXCEPTION 'this version of Tranche cannot keep items in order, and runs that want it are in progress: '
            'start a newer version here, or wait until those runs have ended';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER node_session_order BEFORE INSERT ON node_session
    FOR EACH ROW WHEN (NEW.feature_level < 3) EXECUTE FUNCTION refuse_node_without_lines();
COMMENT ON FUNCTION refuse_node_without_lines() IS
    'Trigger: no session for a node that cannot keep items in order, while runs that want it are in progress.';

-- +goose Down

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_order o ON o.run_id = r.id WHERE r.state IN ('loading', 'running')) THEN
        RAISE EXCEPTION 'runs whose items are kept in order are in progress: wait until they have ended, or cancel them';
    END IF;
END $$;
-- +goose StatementEnd
DROP TRIGGER node_session_order ON node_session;
DROP FUNCTION refuse_node_without_lines();
DROP TABLE work_lane, run_order;
