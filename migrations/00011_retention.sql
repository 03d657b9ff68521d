-- +goose Up

CREATE TABLE retention (
    kind         text        PRIMARY KEY,
    age          interval    CHECK (age > interval '0'),
    max_count    bigint      CHECK (max_count > 0),
    max_bytes    bigint      CHECK (max_bytes > 0),
    changed_by   text        NOT NULL DEFAULT '',
    changed_at   timestamptz NOT NULL DEFAULT tranche_now(),
    deleted      bigint      NOT NULL DEFAULT 0,
    last_deleted bigint      NOT NULL DEFAULT 0,
    last_at      timestamptz
);
COMMENT ON TABLE retention IS 'For how long what is kept. A kind without limits is kept permanently.';
COMMENT ON COLUMN retention.kind IS 'What: runs, audit, events, quarantine, dead_letters, sessions, schedule_occurrences.';
COMMENT ON COLUMN retention.age IS 'What is older goes; null: no limit.';
COMMENT ON COLUMN retention.max_count IS 'What is more than so many goes, the oldest first; null: no limit.';
COMMENT ON COLUMN retention.max_bytes IS 'What is more than so many bytes goes, the oldest first; null: no limit.';
COMMENT ON COLUMN retention.changed_by IS 'Who set it; empty: it is as it came.';
COMMENT ON COLUMN retention.changed_at IS 'When.';
COMMENT ON COLUMN retention.deleted IS 'How many were deleted, ever.';
COMMENT ON COLUMN retention.last_deleted IS 'How many were deleted in the last round that deleted any.';
COMMENT ON COLUMN retention.last_at IS 'When that was; null: never.';

-- What is someone's work or says who did what is deleted only when someone says so.
INSERT INTO retention (kind, age) VALUES
    ('runs', NULL), ('audit', NULL), ('events', interval '90 days'), ('quarantine', interval '90 days'),
    ('dead_letters', interval '90 days'), ('sessions', interval '30 days'), ('schedule_occurrences', interval '400 days');

-- Its row in batchrun went when this one came, in one transaction; what else there is of it goes in small pieces, and
-- stage, step and position say how far that is.
CREATE TABLE deleted_run (
    run_id      uuid        PRIMARY KEY,
    name        text        NOT NULL DEFAULT '',
    plan        text        NOT NULL,
    items       bigint      NOT NULL,
    steps       integer     NOT NULL,
    generation  integer     NOT NULL,
    finished_at timestamptz NOT NULL,
    why         text        NOT NULL,
    deleted_at  timestamptz NOT NULL DEFAULT tranche_now(),
    stage       integer     NOT NULL DEFAULT 0,
    step        integer     NOT NULL DEFAULT 0,
    position    bigint      NOT NULL DEFAULT 0,
    deleted     bigint      NOT NULL DEFAULT 0,
    purged_at     timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX deleted_run_going ON deleted_run (deleted_at) WHERE purged_at IS NULL;
CREATE INDEX deleted_run_gone ON deleted_run (purged_at) WHERE purged_at IS NOT NULL;
COMMENT ON TABLE deleted_run IS 'Runs that are being deleted, or were.';
COMMENT ON COLUMN deleted_run.run_id IS 'The run; batchrun has it no more.';
COMMENT ON COLUMN deleted_run.name IS 'What people called it; empty: nothing.';
COMMENT ON COLUMN deleted_run.plan IS 'Name of its plan.';
COMMENT ON COLUMN deleted_run.items IS 'How many items it had.';
COMMENT ON COLUMN deleted_run.steps IS 'How many steps.';
COMMENT ON COLUMN deleted_run.generation IS 'Its last generation.';
COMMENT ON COLUMN deleted_run.finished_at IS 'When it was completed or cancelled.';
COMMENT ON COLUMN deleted_run.why IS 'Why it was deleted.';
COMMENT ON COLUMN deleted_run.deleted_at IS 'Since when no one sees it.';
COMMENT ON COLUMN deleted_run.stage IS 'How far the deletion of its rows has come: the kind of row, by number,';
COMMENT ON COLUMN deleted_run.step IS 'the step among those,';
COMMENT ON COLUMN deleted_run.position IS 'and the item.';
COMMENT ON COLUMN deleted_run.deleted IS 'Rows that were deleted so far.';
COMMENT ON COLUMN deleted_run.purged_at IS 'When nothing was left of it; null: something is.';

-- So that max_bytes need not read the blocks of runs each time.
CREATE TABLE retention_size (
    run_id     uuid    PRIMARY KEY,
    generation integer NOT NULL,
    bytes      bigint  NOT NULL
);
COMMENT ON TABLE retention_size IS 'How much room finished runs take.';
COMMENT ON COLUMN retention_size.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN retention_size.generation IS 'Of the run, when it was measured.';
COMMENT ON COLUMN retention_size.bytes IS 'Bytes, about.';

-- +goose Down

-- Runs that were being deleted are deleted permanently. It is one transaction, and may take its time.
DELETE FROM work_result WHERE run_id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM work_queue WHERE run_id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM work_error WHERE run_id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM tracker_batch WHERE id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM run_step s WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = s.run_id);
DELETE FROM run_add a WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = a.run_id);
DROP TABLE retention_size, deleted_run, retention;
