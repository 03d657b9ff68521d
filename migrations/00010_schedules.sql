-- +goose Up

-- The row stays after a deletion: the history refers to it, and version numbers are never reused.
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
-- Due schedules.
CREATE INDEX schedule_due ON schedule (next_due) WHERE state = 'active' AND deleted_at IS NULL AND next_due IS NOT NULL;
COMMENT ON TABLE schedule IS 'Schedules: they start runs by the clock.';
COMMENT ON COLUMN schedule.name IS 'Name of the schedule.';
COMMENT ON COLUMN schedule.version IS 'Increases with each change of its text.';
COMMENT ON COLUMN schedule.spec IS 'The schedule, with all its settings.';
COMMENT ON COLUMN schedule.source IS 'The schedule as submitted.';
COMMENT ON COLUMN schedule.zone IS 'Time zone of its times, like Europe/Zurich.';
COMMENT ON COLUMN schedule.state IS 'active or paused.';
COMMENT ON COLUMN schedule.next_due IS 'The next due time; null: none.';
COMMENT ON COLUMN schedule.last_due IS 'The last due time taken; null: none.';
COMMENT ON COLUMN schedule.created_by IS 'Who created it.';
COMMENT ON COLUMN schedule.created_at IS 'When it was created.';
COMMENT ON COLUMN schedule.changed_by IS 'Who last changed it.';
COMMENT ON COLUMN schedule.changed_at IS 'When it was last changed.';
COMMENT ON COLUMN schedule.namespace IS 'The namespace that owns it and its runs.';
COMMENT ON COLUMN schedule.deleted_at IS 'When it was deleted; null: not deleted.';

-- The primary key ensures that each due time is taken once; attempts and epoch fence the start of its run.
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
-- Waiting to be started.
CREATE INDEX schedule_occurrence_waiting ON schedule_occurrence (start_at) WHERE state IN ('due', 'queued', 'starting');
-- The occurrence of a run.
CREATE INDEX schedule_occurrence_run ON schedule_occurrence (run_id) WHERE run_id IS NOT NULL;
-- Runs that may be late.
CREATE INDEX schedule_occurrence_late ON schedule_occurrence (done_by) WHERE state = 'started' AND late_at IS NULL AND done_by IS NOT NULL;
COMMENT ON TABLE schedule_occurrence IS 'Outcome of each due time of a schedule, and of each run-now.';
COMMENT ON COLUMN schedule_occurrence.schedule IS 'The schedule (schedule.name).';
COMMENT ON COLUMN schedule_occurrence.due_at IS 'The due time, or the time of run-now.';
COMMENT ON COLUMN schedule_occurrence.kind IS 'due: by the clock; now: by run-now.';
COMMENT ON COLUMN schedule_occurrence.version IS 'Version of the schedule at that time.';
COMMENT ON COLUMN schedule_occurrence.state IS
    'due, queued (the run before is not done), starting, started; or without a run: skipped, missed (its '
    'deadline passed, or misfire leaves it out), failed.';
COMMENT ON COLUMN schedule_occurrence.reason IS 'Reason for the state, in words.';
COMMENT ON COLUMN schedule_occurrence.asked_by IS 'Who called run-now; empty: by the clock.';
COMMENT ON COLUMN schedule_occurrence.start_at IS
    'Not started before then: jitter, a window, or a pause between attempts.';
COMMENT ON COLUMN schedule_occurrence.start_by IS 'Not started after then; null: no limit.';
COMMENT ON COLUMN schedule_occurrence.done_by IS 'When its run should be done; null: no deadline.';
COMMENT ON COLUMN schedule_occurrence.late_at IS 'When that was checked.';
COMMENT ON COLUMN schedule_occurrence.late_action IS
    'Action taken because the run was late; empty: not late, or not checked yet.';
COMMENT ON COLUMN schedule_occurrence.run_id IS 'The run started (batchrun.id), kept after its deletion; null: none.';
COMMENT ON COLUMN schedule_occurrence.attempts IS 'Number of attempts to start it.';
COMMENT ON COLUMN schedule_occurrence.session_id IS 'The leader that last tried (node_session.id).';
COMMENT ON COLUMN schedule_occurrence.epoch IS 'The epoch of that leader (leader.epoch).';
COMMENT ON COLUMN schedule_occurrence.created_at IS 'When the due time was taken.';
COMMENT ON COLUMN schedule_occurrence.began_at IS 'When the last attempt to start it began.';
COMMENT ON COLUMN schedule_occurrence.ended_at IS
    'When it was decided: started, or not to be started; null: still pending.';

-- +goose Down
DROP TABLE schedule_occurrence, schedule;
