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
COMMENT ON TABLE retention IS 'How long data is kept, by kind. A kind without limits is kept permanently.';
COMMENT ON COLUMN retention.kind IS
    'Kind: runs, audit, events, quarantine, dead_letters, sessions, schedule_occurrences.';
COMMENT ON COLUMN retention.age IS 'Older data is deleted; null: no limit.';
COMMENT ON COLUMN retention.max_count IS 'Maximum number; the oldest are deleted; null: no limit.';
COMMENT ON COLUMN retention.max_bytes IS 'Maximum size in bytes; the oldest are deleted; null: no limit.';
COMMENT ON COLUMN retention.changed_by IS 'Who last changed it; empty: the default.';
COMMENT ON COLUMN retention.changed_at IS 'When it was last changed.';
COMMENT ON COLUMN retention.deleted IS 'Total number deleted.';
COMMENT ON COLUMN retention.last_deleted IS 'Number deleted in the last round that deleted any.';
COMMENT ON COLUMN retention.last_at IS 'When that was; null: never.';

-- By default, runs and the audit log are never deleted.
INSERT INTO retention (kind, age) VALUES
    ('runs', NULL), ('audit', NULL), ('events', interval '90 days'), ('quarantine', interval '90 days'),
    ('dead_letters', interval '90 days'), ('sessions', interval '30 days'), ('schedule_occurrences', interval '400 days');

-- Inserted in the transaction that deletes the run's row in batchrun. All other rows of the run are deleted in small
-- batches; stage, step and position are the progress.
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
COMMENT ON TABLE deleted_run IS 'Runs that were or are being deleted.';
COMMENT ON COLUMN deleted_run.run_id IS 'The run, which is no longer in batchrun.';
COMMENT ON COLUMN deleted_run.name IS 'Its name; empty: none.';
COMMENT ON COLUMN deleted_run.plan IS 'Name of its plan.';
COMMENT ON COLUMN deleted_run.items IS 'Number of its items.';
COMMENT ON COLUMN deleted_run.steps IS 'Number of its steps.';
COMMENT ON COLUMN deleted_run.generation IS 'Its last generation.';
COMMENT ON COLUMN deleted_run.finished_at IS 'When it was completed or cancelled.';
COMMENT ON COLUMN deleted_run.why IS 'Why it was deleted.';
COMMENT ON COLUMN deleted_run.deleted_at IS 'When it was deleted; its remaining rows are not visible.';
COMMENT ON COLUMN deleted_run.stage IS 'Progress of the deletion: the kind of row, by number,';
COMMENT ON COLUMN deleted_run.step IS 'the step,';
COMMENT ON COLUMN deleted_run.position IS 'and the item.';
COMMENT ON COLUMN deleted_run.deleted IS 'Number of rows deleted so far.';
COMMENT ON COLUMN deleted_run.purged_at IS 'When the last row was deleted; null: in progress.';

-- Saves max_bytes from reading the blocks of runs each time.
CREATE TABLE retention_size (
    run_id     uuid    PRIMARY KEY,
    generation integer NOT NULL,
    bytes      bigint  NOT NULL
);
COMMENT ON TABLE retention_size IS 'Sizes of finished runs.';
COMMENT ON COLUMN retention_size.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN retention_size.generation IS 'The run''s generation when it was measured.';
COMMENT ON COLUMN retention_size.bytes IS 'Approximate size in bytes.';

-- +goose Down

-- Finishes deletions in progress, in one transaction, which may take long.
DELETE FROM work_result WHERE run_id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM work_queue WHERE run_id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM work_error WHERE run_id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM tracker_batch WHERE id IN (SELECT run_id FROM deleted_run WHERE purged_at IS NULL);
DELETE FROM run_step s WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = s.run_id);
DELETE FROM run_add a WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = a.run_id);
DROP TABLE retention_size, deleted_run, retention;
