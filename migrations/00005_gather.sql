-- +goose Up

-- The row with an empty key is not an add: adds and the seal of an open run lock it to take turns.
CREATE TABLE run_add (
    run_id  uuid        NOT NULL,
    key     text        COLLATE "C" NOT NULL,
    digest  bytea       NOT NULL,
    ordinal integer     NOT NULL,
    items   integer     NOT NULL CHECK (items >= 0),
    skipped integer     NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    at      timestamptz NOT NULL DEFAULT tranche_now(),
    PRIMARY KEY (run_id, key)
);
COMMENT ON TABLE run_add IS 'Adds to open runs with an idempotency key: repeating one returns the same answer.';
COMMENT ON COLUMN run_add.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_add.key IS 'The idempotency key; empty: a row that serializes adds.';
COMMENT ON COLUMN run_add.digest IS 'Digest of the submitted items.';
COMMENT ON COLUMN run_add.ordinal IS 'The first item that it added (work_queue.ordinal).';
COMMENT ON COLUMN run_add.items IS 'Number of items added.';
COMMENT ON COLUMN run_add.skipped IS 'Number of duplicates skipped.';
COMMENT ON COLUMN run_add.at IS 'When they were added.';

-- A node that supports only one step would complete runs after their first step.
-- +goose StatementBegin
CREATE FUNCTION refuse_old_node() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_step s ON s.run_id = r.id
               WHERE r.state IN ('loading', 'running') AND (s.step > 0 OR s.kind <> 'endpoint')) THEN
        RAISE EXCEPTION 'this version of Tranche does not support plans of several steps, and some are in progress: '
            'start a newer version here, or wait until those runs have ended';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER node_session_feature_level BEFORE INSERT ON node_session
    FOR EACH ROW WHEN (NEW.feature_level < 2) EXECUTE FUNCTION refuse_old_node();
COMMENT ON FUNCTION refuse_old_node() IS
    'Trigger: refuses a session to a node that supports only one step while runs of several are in progress.';

-- +goose Down

-- Older nodes would complete such runs after their first steps.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_step s ON s.run_id = r.id
               WHERE r.state IN ('loading', 'running') AND (s.step > 0 OR s.kind <> 'endpoint' OR r.opened)) THEN
        RAISE EXCEPTION 'runs of several steps, or open ones, are in progress: wait until they have ended, or cancel them';
    END IF;
END $$;
-- +goose StatementEnd
DROP TRIGGER node_session_feature_level ON node_session;
DROP FUNCTION refuse_old_node;
DROP TABLE run_add;
