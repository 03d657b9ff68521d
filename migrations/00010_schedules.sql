-- +goose Up

-- The row stays after a deletion: its history refers to it, and a version's number is never used again.
CREATE TABLE schedule (
    name       text        COLLATE "C" PRIMARY KEY CHECK (name <> ''),
    version    integer     NOT NULL DEFAULT 1 CHECK (version >= 1),
    spec       jsonb       NOT NULL,
    source     text        NOT NULL,
    zone       text        NOT NULL,
    state      text        NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
    next_due   timestamptz,
    last_due   timestamptz,
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT tranche_now(),
    changed_by text        NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT tranche_now(),
    deleted_at timestamptz,
    namespace  text        COLLATE "C" NOT NULL DEFAULT 'default' REFERENCES namespace
);
-- Schedules whose time has come.
CREATE INDEX schedule_due ON schedule (next_due) WHERE state = 'active' AND deleted_at IS NULL AND next_due IS NOT NULL;
COMMENT ON TABLE schedule IS 'What starts runs by the clock.';
COMMENT ON COLUMN schedule.name IS 'Its name.';
COMMENT ON COLUMN schedule.version IS 'One more with each change of its text.';
COMMENT ON COLUMN schedule.spec IS 'The schedule, with all its settings.';
COMMENT ON COLUMN schedule.source IS 'The schedule as people wrote it.';
COMMENT ON COLUMN schedule.zone IS 'Time zone that its times are in, as Europe/Zurich.';
COMMENT ON COLUMN schedule.state IS 'active or paused.';
COMMENT ON COLUMN schedule.next_due IS 'The due time that is taken next; null: there is none.';
COMMENT ON COLUMN schedule.last_due IS 'The due time that was taken last; null: none was.';
COMMENT ON COLUMN schedule.created_by IS 'Who made it.';
COMMENT ON COLUMN schedule.created_at IS 'When.';
COMMENT ON COLUMN schedule.changed_by IS 'Who changed it last.';
COMMENT ON COLUMN schedule.changed_at IS 'When.';
COMMENT ON COLUMN schedule.namespace IS 'The namespace that owns it, and its runs.';
COMMENT ON COLUMN schedule.deleted_at IS 'When it was deleted; null: it was not.';

-- The primary key is what makes a due time fire once, whoever takes it; attempts and epoch together fence those who
-- start it.
CREATE TABLE schedule_occurrence (
    schedule     text        COLLATE "C" NOT NULL REFERENCES schedule,
    due_at       timestamptz NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('due', 'now')),
    version      integer     NOT NULL,
    state        text        NOT NULL
                 CHECK (state IN ('due', 'queued', 'starting', 'started', 'skipped', 'missed', 'failed')),
    reason       text        NOT NULL DEFAULT '',
    asked_by     text        NOT NULL DEFAULT '',
    start_at     timestamptz NOT NULL,
    start_by     timestamptz,
    done_by      timestamptz,
    late_at      timestamptz,
    late_action  text        NOT NULL DEFAULT '',
    run_id       uuid,
    attempts     integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    session_id   uuid,
    epoch        bigint,
    created_at   timestamptz NOT NULL DEFAULT tranche_now(),
    began_at     timestamptz,
    ended_at     timestamptz,
    PRIMARY KEY (schedule, due_at, kind),
    CHECK (state <> 'started' OR run_id IS NOT NULL),
    CHECK (state <> 'starting' OR (session_id IS NOT NULL AND epoch IS NOT NULL)),
    CHECK ((state IN ('due', 'queued', 'starting')) = (ended_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
-- What waits to be started.
CREATE INDEX schedule_occurrence_waiting ON schedule_occurrence (start_at) WHERE state IN ('due', 'queued', 'starting');
-- The schedule of a run in progress.
CREATE INDEX schedule_occurrence_run ON schedule_occurrence (run_id) WHERE run_id IS NOT NULL;
-- Runs that may be late.
CREATE INDEX schedule_occurrence_late ON schedule_occurrence (done_by) WHERE state = 'started' AND late_at IS NULL AND done_by IS NOT NULL;
COMMENT ON TABLE schedule_occurrence IS 'What became of each due time of a schedule, and of each wish to run at once.';
COMMENT ON COLUMN schedule_occurrence.schedule IS 'The schedule (schedule.name).';
COMMENT ON COLUMN schedule_occurrence.due_at IS 'The due time, or when someone wanted it.';
COMMENT ON COLUMN schedule_occurrence.kind IS 'due: by the clock; now: someone wanted it at once.';
COMMENT ON COLUMN schedule_occurrence.version IS 'Of the schedule, when it was taken.';
COMMENT ON COLUMN schedule_occurrence.state IS
    'due, queued (the run before is not done), starting, started; skipped, missed (its time went by) or failed: no '
    'run was started.';
COMMENT ON COLUMN schedule_occurrence.reason IS 'Why it is in this state, in words.';
COMMENT ON COLUMN schedule_occurrence.asked_by IS 'Who wanted it at once; empty: it came by the clock.';
COMMENT ON COLUMN schedule_occurrence.start_at IS
    'It is not started before: jitter, a window, or a pause between two attempts.';
COMMENT ON COLUMN schedule_occurrence.start_by IS 'Nor after; null: it may be.';
COMMENT ON COLUMN schedule_occurrence.done_by IS 'When its run should have ended; null: whenever.';
COMMENT ON COLUMN schedule_occurrence.late_at IS 'When it was looked whether it had.';
COMMENT ON COLUMN schedule_occurrence.late_action IS
    'What was done since it had not; empty: it was in time, or was not looked at yet.';
COMMENT ON COLUMN schedule_occurrence.run_id IS
    'The run that it started (batchrun.id), also when that is deleted; null: none.';
COMMENT ON COLUMN schedule_occurrence.attempts IS 'How often it was tried to start it.';
COMMENT ON COLUMN schedule_occurrence.session_id IS 'The leader that tried last (node_session.id).';
COMMENT ON COLUMN schedule_occurrence.epoch IS 'Its epoch (leader.epoch).';
COMMENT ON COLUMN schedule_occurrence.created_at IS 'When the due time was taken.';
COMMENT ON COLUMN schedule_occurrence.began_at IS 'When the last attempt to start it began.';
COMMENT ON COLUMN schedule_occurrence.ended_at IS
    'When it came to its end: started, or not to be; null: it is still to be started.';

-- +goose Down
DROP TABLE schedule_occurrence, schedule;
