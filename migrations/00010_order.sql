-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again.
SET LOCAL lock_timeout = '500ms';

-- Runs whose items go in lines: the rule by which they do, and what becomes of a line when an item of it fails. A run
-- that is not here has no lines.
CREATE TABLE run_order (
    run_id uuid    PRIMARY KEY REFERENCES batchrun ON DELETE CASCADE,
    rule   jsonb   NOT NULL,               -- by, values, partitions
    stop   boolean NOT NULL DEFAULT false  -- what follows an item that failed is ended, and not tried
);

-- Which line an item stands in: a number that its value has, see workqueue/order. Written with the items, by COPY.
CREATE TABLE work_order (
    run_id  uuid    NOT NULL,
    ordinal integer NOT NULL,
    lane    bigint  NOT NULL,
    PRIMARY KEY (run_id, ordinal)
);
CREATE INDEX work_order_lane ON work_order (run_id, lane, ordinal);

-- One row for each line of a run, from the time at which an item of it can be worked on. Its lock is that of the line:
-- who makes an item of it ready, or has one wait, holds it. The items that wait are held back (work_block.held).
CREATE TABLE work_lane (
    run_id     uuid    NOT NULL,
    lane       bigint  NOT NULL,
    head       integer,                        -- the one item that is worked on; null: none
    low        integer,                        -- the first that waits, when that is not behind the head; null otherwise
    stopped_by integer,                        -- the item that failed, and nothing follows it
    due        boolean NOT NULL DEFAULT false, -- stopped, and items of it wait for their end
    PRIMARY KEY (run_id, lane),
    CONSTRAINT work_lane_low CHECK (low IS NULL OR head IS NULL OR low < head),
    CONSTRAINT work_lane_stopped CHECK (stopped_by IS NULL OR head IS NULL),
    CONSTRAINT work_lane_due CHECK (NOT due OR (stopped_by IS NOT NULL AND low IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX work_lane_due ON work_lane (run_id, lane) WHERE due;

-- A node of before would record items of such runs and let nobody follow them.
-- +goose StatementBegin
CREATE FUNCTION refuse_node_without_lines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_order o ON o.run_id = r.id WHERE r.state IN ('loading', 'running')) THEN
        RAISE EXCEPTION 'this version of Tranche cannot keep items in order, and runs that want it are under way: '
            'start a newer version here, or wait until those runs have ended';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER node_session_order BEFORE INSERT ON node_session
    FOR EACH ROW WHEN (NEW.speaks < 3) EXECUTE FUNCTION refuse_node_without_lines();

-- +goose Down
SET LOCAL lock_timeout = '500ms';

-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_order o ON o.run_id = r.id WHERE r.state IN ('loading', 'running')) THEN
        RAISE EXCEPTION 'runs whose items are kept in order are under way: wait until they have ended, or cancel them';
    END IF;
END $$;
-- +goose StatementEnd
DROP TRIGGER node_session_order ON node_session;
DROP FUNCTION refuse_node_without_lines();
DROP TABLE work_lane, work_order, run_order;
