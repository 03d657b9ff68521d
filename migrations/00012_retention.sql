-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again.
SET LOCAL lock_timeout = '500ms';

-- For how long what is kept. A limit that is null is none; a kind without limits is kept for good.
CREATE TABLE retention (
    kind         text        PRIMARY KEY,
    age          interval    CHECK (age > interval '0'),
    max_count    bigint      CHECK (max_count > 0),
    max_bytes    bigint      CHECK (max_bytes > 0),
    changed_by   text        NOT NULL DEFAULT '',             -- empty: as it came
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted      bigint      NOT NULL DEFAULT 0,              -- ever
    last_deleted bigint      NOT NULL DEFAULT 0,              -- in the last round that deleted any
    last_at      timestamptz
);

-- What is somebody's work or says who did what is deleted only when somebody says so.
INSERT INTO retention (kind, age) VALUES
    ('runs', NULL), ('audit', NULL), ('events', interval '90 days'), ('quarantine', interval '90 days'),
    ('dead_letters', interval '90 days'), ('sessions', interval '30 days'), ('schedule_fires', interval '400 days');

-- A run that is being deleted, or was. Its row in batchrun went when this one came, in one transaction; what else there
-- is of it goes in small pieces, and stage, step and position say how far that is.
CREATE TABLE retention_run (
    run_id      uuid        PRIMARY KEY,
    name        text        NOT NULL DEFAULT '',
    plan        text        NOT NULL,
    items       bigint      NOT NULL,
    steps       integer     NOT NULL,
    generation  integer     NOT NULL,
    finished_at timestamptz NOT NULL,
    why         text        NOT NULL,
    deleted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    stage       integer     NOT NULL DEFAULT 0,
    step        integer     NOT NULL DEFAULT 0,
    position    bigint      NOT NULL DEFAULT 0,
    deleted     bigint      NOT NULL DEFAULT 0,  -- rows
    gone_at     timestamptz                      -- nothing is left of it
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX retention_run_going ON retention_run (deleted_at) WHERE gone_at IS NULL;
CREATE INDEX retention_run_gone ON retention_run (gone_at) WHERE gone_at IS NOT NULL;

-- Roughly what a finished run takes up, so that max_bytes need not read its blocks each time.
CREATE TABLE retention_size (
    run_id     uuid    PRIMARY KEY,
    generation integer NOT NULL,
    bytes      bigint  NOT NULL
);

-- When the present leader began.
ALTER TABLE leader ADD COLUMN since timestamptz NOT NULL DEFAULT clock_timestamp();

-- Who leads before others: the nodes of tranche serve. A session has it while its node can lead.
ALTER TABLE node_session ADD COLUMN precedence integer NOT NULL DEFAULT 0;

-- What is deleted in bulk is to be vacuumed before a fifth of a large table is dead.
ALTER TABLE work_part SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE work_queue SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE work_error SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE run_event SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE audit_log SET (autovacuum_vacuum_scale_factor = 0.05);

-- A run's row goes first, and its steps last: until then they keep out who would begin something with it.
LOCK TABLE run_step, batchrun IN ACCESS EXCLUSIVE MODE;
ALTER TABLE run_step DROP CONSTRAINT run_step_run_id_fkey;
ALTER TABLE run_add DROP CONSTRAINT run_add_run_id_fkey;

-- +goose Down

-- Runs that were being deleted are deleted for good. It is one transaction, and may take its time.
DELETE FROM work_part WHERE run_id IN (SELECT run_id FROM retention_run WHERE gone_at IS NULL);
DELETE FROM work_queue WHERE run_id IN (SELECT run_id FROM retention_run WHERE gone_at IS NULL);
DELETE FROM work_error WHERE run_id IN (SELECT run_id FROM retention_run WHERE gone_at IS NULL);
DELETE FROM tracker_batch WHERE id IN (SELECT run_id FROM retention_run WHERE gone_at IS NULL);
DELETE FROM run_step s WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = s.run_id);
DELETE FROM run_add a WHERE NOT EXISTS (SELECT FROM batchrun r WHERE r.id = a.run_id);
ALTER TABLE run_add ADD CONSTRAINT run_add_run_id_fkey FOREIGN KEY (run_id) REFERENCES batchrun ON DELETE CASCADE NOT VALID;
ALTER TABLE run_step ADD CONSTRAINT run_step_run_id_fkey FOREIGN KEY (run_id) REFERENCES batchrun ON DELETE CASCADE NOT VALID;
ALTER TABLE audit_log RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE run_event RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE work_error RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE work_queue RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE work_part RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE node_session DROP COLUMN precedence;
ALTER TABLE leader DROP COLUMN since;
DROP TABLE retention_size, retention_run, retention;
