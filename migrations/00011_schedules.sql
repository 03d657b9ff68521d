-- +goose Up

-- What is started by the clock. The row stays after a deletion: its history refers to it, and a version's number is
-- never used again. All times are the database's.
CREATE TABLE schedule (
    name       text        COLLATE "C" PRIMARY KEY CHECK (name <> ''),
    version    integer     NOT NULL DEFAULT 1 CHECK (version >= 1), -- grows with every change of its text
    spec       jsonb       NOT NULL,
    source     text        NOT NULL,                                -- as people wrote it
    zone       text        NOT NULL,
    state      text        NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
    next_due   timestamptz,                                         -- the due time that is taken next; null: there is none
    last_due   timestamptz,                                         -- the due time that was taken last
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by text        NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz
);
-- Schedules whose time has come.
CREATE INDEX schedule_due ON schedule (next_due) WHERE state = 'active' AND deleted_at IS NULL AND next_due IS NOT NULL;

-- What became of each due time, and of each wish to run at once. The primary key is what makes a due time fire once,
-- whoever takes it; attempts and epoch together fence those who start it.
CREATE TABLE schedule_fire (
    schedule   text        COLLATE "C" NOT NULL REFERENCES schedule,
    due_at     timestamptz NOT NULL,
    kind       text        NOT NULL CHECK (kind IN ('due', 'now')),
    version    integer     NOT NULL,              -- of the schedule, when it was taken
    state      text        NOT NULL
               CHECK (state IN ('due', 'queued', 'starting', 'started', 'skipped', 'missed', 'failed')),
    reason     text        NOT NULL DEFAULT '',
    asked_by   text        NOT NULL DEFAULT '',   -- who wanted it at once
    start_at   timestamptz NOT NULL,              -- not before: jitter, a window, or a pause between two attempts
    start_by   timestamptz,                       -- nor after
    done_by    timestamptz,                       -- when its run should have ended
    late_at    timestamptz,                       -- when that was looked at
    late       text        NOT NULL DEFAULT '',   -- what was done; empty: it was in time
    run_id     uuid,                              -- kept when the run is gone
    attempts   integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    session_id uuid,                              -- of the leader that started it last
    epoch      bigint,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    began_at   timestamptz,
    ended_at   timestamptz,
    PRIMARY KEY (schedule, due_at, kind),
    CHECK (state <> 'started' OR run_id IS NOT NULL),
    CHECK (state <> 'starting' OR (session_id IS NOT NULL AND epoch IS NOT NULL)),
    CHECK ((state IN ('due', 'queued', 'starting')) = (ended_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
-- What waits to be started.
CREATE INDEX schedule_fire_waiting ON schedule_fire (start_at) WHERE state IN ('due', 'queued', 'starting');
-- The schedule of a run under way.
CREATE INDEX schedule_fire_run ON schedule_fire (run_id) WHERE run_id IS NOT NULL;
-- Runs that may be late.
CREATE INDEX schedule_fire_late ON schedule_fire (done_by) WHERE state = 'started' AND late_at IS NULL AND done_by IS NOT NULL;

-- +goose Down
DROP TABLE schedule_fire, schedule;
