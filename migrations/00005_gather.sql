-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again.
SET LOCAL lock_timeout = '500ms';

-- Adds to an open run that carried a key: the same key with the same items is answered as before.
CREATE TABLE run_add (
    run_id  uuid        NOT NULL,
    key     text        COLLATE "C" NOT NULL,
    digest  bytea       NOT NULL,          -- of what was handed in
    ordinal integer     NOT NULL,          -- of the first item that it added
    items   integer     NOT NULL CHECK (items >= 0),
    skipped integer     NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, key),
    FOREIGN KEY (run_id) REFERENCES batchrun ON DELETE CASCADE
);

-- What a node understands: 1 runs of one step, 2 runs of several. An older node would complete a run of several steps
-- with its first one, so it gets no session while one is under way.
ALTER TABLE node_session ADD COLUMN speaks integer NOT NULL DEFAULT 1;

-- +goose StatementBegin
CREATE FUNCTION refuse_old_node() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_step s ON s.run_id = r.id
               WHERE r.state IN ('loading', 'running') AND (s.step > 0 OR s.kind <> 'endpoint')) THEN
        RAISE EXCEPTION 'this version of Tranche cannot run plans of several steps, of which some are under way: '
            'start a newer version here, or wait until those runs have ended';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER node_session_speaks BEFORE INSERT ON node_session
    FOR EACH ROW WHEN (NEW.speaks < 2) EXECUTE FUNCTION refuse_old_node();

-- What nodes work on comes last, in the order in which nodes take it; nothing below reads a table.
LOCK TABLE run_step, work_block, batchrun IN ACCESS EXCLUSIVE MODE;

-- endpoint is what paces the step: the endpoint's name, or http:HOST, sql:SOURCE, local:FUNCTION. needs and inputs are
-- steps of the same run, with smaller numbers: what has to be done for an item before, and which parts a request carries.
ALTER TABLE run_step
    DROP CONSTRAINT run_step_kind_check,
    ADD CONSTRAINT run_step_kind CHECK (kind IN ('endpoint', 'request', 'http', 'sql', 'local')) NOT VALID,
    ADD COLUMN needs          smallint[] NOT NULL DEFAULT '{}',
    ADD COLUMN inputs         smallint[] NOT NULL DEFAULT '{}',
    ADD COLUMN input_item     boolean    NOT NULL DEFAULT true,  -- a request carries the item's payload
    ADD COLUMN optional       boolean    NOT NULL DEFAULT false, -- what needs it goes on without it
    ADD COLUMN barrier        boolean    NOT NULL DEFAULT false, -- nothing is claimed before its needs have all
    ADD COLUMN barrier_passed boolean    NOT NULL DEFAULT false,
    ADD COLUMN config         jsonb;                             -- the kind's own settings

-- skipped: items that are left out because a step that is needed has failed for them. Null: none.
ALTER TABLE work_block
    ADD COLUMN skipped      bit(8192),
    ADD COLUMN result_bytes bigint NOT NULL DEFAULT 0, -- of the results in it, roughly
    ADD CONSTRAINT work_block_skipped CHECK (skipped IS NULL OR
        (((ready | done | failed | coalesce(held, B'0'::bit(8192))) & skipped) = B'0'::bit(8192)
         AND (skipped << size) = B'0'::bit(8192))) NOT VALID;
ALTER TABLE work_block ALTER COLUMN skipped SET STORAGE PLAIN;

-- An open run takes items while it is worked on, until it is sealed.
ALTER TABLE batchrun
    ADD COLUMN opened     boolean NOT NULL DEFAULT false,
    ADD COLUMN seal_by    timestamptz,          -- when it should have been sealed
    ADD COLUMN overdue_at timestamptz,          -- when that was reported
    ADD COLUMN on_overdue text    NOT NULL DEFAULT 'report' CHECK (on_overdue IN ('report', 'seal', 'cancel')),
    ADD COLUMN on_duplicate text  NOT NULL DEFAULT 'error' CHECK (on_duplicate IN ('error', 'skip', 'allow'));

-- +goose Down

-- Without what they need of one another, the steps of a run would all begin at once, for good or ill.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM batchrun r JOIN run_step s ON s.run_id = r.id
               WHERE r.state IN ('loading', 'running') AND (s.step > 0 OR s.kind <> 'endpoint' OR r.opened)) THEN
        RAISE EXCEPTION 'runs of several steps, or open ones, are under way: wait until they have ended, or cancel them';
    END IF;
END $$;
-- +goose StatementEnd
ALTER TABLE batchrun DROP COLUMN opened, DROP COLUMN seal_by, DROP COLUMN overdue_at, DROP COLUMN on_overdue,
    DROP COLUMN on_duplicate;
ALTER TABLE work_block DROP CONSTRAINT work_block_skipped, DROP COLUMN skipped, DROP COLUMN result_bytes;
ALTER TABLE run_step DROP CONSTRAINT run_step_kind, DROP COLUMN needs, DROP COLUMN inputs, DROP COLUMN input_item,
    DROP COLUMN optional, DROP COLUMN barrier, DROP COLUMN barrier_passed, DROP COLUMN config,
    ADD CONSTRAINT run_step_kind_check CHECK (kind IN ('endpoint')) NOT VALID;
DROP TRIGGER node_session_speaks ON node_session;
DROP FUNCTION refuse_old_node;
ALTER TABLE node_session DROP COLUMN speaks;
DROP TABLE run_add;
