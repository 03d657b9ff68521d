-- +goose Up

-- COMMENT ON is for readers in psql (\d+ TABLE), -- for developers.

-- goose has already created this table.
COMMENT ON TABLE tranche_migration IS 'Applied migrations, one per file.';
COMMENT ON COLUMN tranche_migration.id IS 'Row number.';
COMMENT ON COLUMN tranche_migration.version_id IS 'Number of the file; 0: this table itself.';
COMMENT ON COLUMN tranche_migration.is_applied IS 'Always true.';
COMMENT ON COLUMN tranche_migration.tstamp IS 'When it was applied, without time zone.';

CREATE TABLE schema_object (object text PRIMARY KEY);
COMMENT ON TABLE schema_object IS 'The schema after the last migration, to detect changes made by hand.';
COMMENT ON COLUMN schema_object.object IS 'A column, constraint, index, trigger or function, with its table.';

-- The only clock of statements, views and defaults, so that tests can move it. The planner inlines it.
CREATE FUNCTION tranche_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE RETURN clock_timestamp();
COMMENT ON FUNCTION tranche_now() IS
    'The current time, which also advances within a transaction. All times here come from it.';

CREATE TABLE namespace (
    name          text        COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$'),
    max_runs      bigint      CHECK (max_runs > 0),
    max_items     bigint      CHECK (max_items > 0),
    max_in_flight bigint      CHECK (max_in_flight > 0),
    max_bytes     bigint      CHECK (max_bytes > 0),
    changed_by    text        NOT NULL DEFAULT '',
    changed_at    timestamptz NOT NULL DEFAULT tranche_now()
);
INSERT INTO namespace (name) VALUES ('default');
-- Each search for work reads namespaces with this quota.
CREATE INDEX namespace_in_flight ON namespace (name) WHERE max_in_flight IS NOT NULL;
COMMENT ON TABLE namespace IS 'Owners of runs, plans, schedules, collectors and trackers.';
COMMENT ON COLUMN namespace.name IS 'Name of the namespace.';
COMMENT ON COLUMN namespace.max_runs IS 'Maximum number of unfinished runs; null: no limit.';
COMMENT ON COLUMN namespace.max_items IS 'Maximum number of items in unfinished runs; null: no limit.';
COMMENT ON COLUMN namespace.max_in_flight IS 'Maximum number of requests in flight for its runs; null: no limit.';
COMMENT ON COLUMN namespace.max_bytes IS 'Approximate maximum of bytes stored by its runs; null: no limit.';
COMMENT ON COLUMN namespace.changed_by IS 'Who last changed it.';
COMMENT ON COLUMN namespace.changed_at IS 'When it was last changed.';

CREATE TABLE node_session (
    id           uuid        PRIMARY KEY,
    host         text        NOT NULL,
    pid          integer     NOT NULL,
    version      text        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT tranche_now(),
    heartbeat_at timestamptz NOT NULL DEFAULT tranche_now(),
    expires_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    stats        jsonb       NOT NULL DEFAULT '{}',
    feature_level integer     NOT NULL DEFAULT 1,
    precedence   integer     NOT NULL DEFAULT 0
);
COMMENT ON TABLE node_session IS
    'A node (also called fetcher node): a running orchestrator process. It owns the slices it has claimed but not '
    'sent while the session lives; afterwards other nodes may take them.';
COMMENT ON COLUMN node_session.id IS 'The session; each start of a node creates one.';
COMMENT ON COLUMN node_session.host IS 'Name of the machine.';
COMMENT ON COLUMN node_session.pid IS 'Process ID on that machine.';
COMMENT ON COLUMN node_session.version IS 'Version of Tranche that the node runs.';
COMMENT ON COLUMN node_session.started_at IS 'When the node started.';
COMMENT ON COLUMN node_session.heartbeat_at IS 'Time of the last heartbeat.';
COMMENT ON COLUMN node_session.expires_at IS
    'When the session expires unless another heartbeat comes first; by the database''s clock.';
COMMENT ON COLUMN node_session.ended_at IS
    'When the node shut down cleanly; null: it has not, though its session may have expired.';
COMMENT ON COLUMN node_session.stats IS 'The node''s own counters, as of its last heartbeat.';
COMMENT ON COLUMN node_session.feature_level IS
    'What the node supports: 1 runs of one step, 2 runs of several steps, 3 ordered runs.';
COMMENT ON COLUMN node_session.precedence IS
    'Preference as leader: above 0 for nodes of tranche serve, and only while the node can lead.';

CREATE TABLE leader (
    name       text        PRIMARY KEY,
    epoch      bigint      NOT NULL,
    session_id uuid        NOT NULL,
    expires_at timestamptz NOT NULL,
    since      timestamptz NOT NULL DEFAULT tranche_now()
);
COMMENT ON TABLE leader IS 'The lease of the leader. One row.';
COMMENT ON COLUMN leader.name IS 'Constant.';
COMMENT ON COLUMN leader.epoch IS
    'Increases whenever another node takes the lease; each transaction of a leader checks it.';
COMMENT ON COLUMN leader.session_id IS 'The leader (node_session.id).';
COMMENT ON COLUMN leader.expires_at IS 'When others may take the lease, unless it is renewed.';
COMMENT ON COLUMN leader.since IS 'When this node became the leader.';

-- The timeline that this server writes; a promoted standby begins a new one. A standby cannot report it, and other
-- servers may refuse.
-- +goose StatementBegin
CREATE FUNCTION database_timeline() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION WHEN OTHERS THEN
    RETURN 0;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION database_timeline() IS
    'The timeline that this server writes; it changes when a standby is promoted. 0: unknown.';

CREATE TABLE database_mark (
    name     text        PRIMARY KEY,
    lineage  uuid        NOT NULL,
    counter     bigint      NOT NULL,
    timeline bigint      NOT NULL,
    at       timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE database_mark IS 'A counter that lets nodes detect that the database lost recent commits. One row.';
COMMENT ON COLUMN database_mark.name IS 'Constant: mark.';
COMMENT ON COLUMN database_mark.lineage IS 'Identifies this database; counters of others are not comparable.';
COMMENT ON COLUMN database_mark.counter IS
    'The counter. The leader increments it; if it is lower than nodes remember, the database lost recent commits.';
COMMENT ON COLUMN database_mark.timeline IS 'The server''s timeline at the last increment; 0: unknown.';
COMMENT ON COLUMN database_mark.at IS 'Time of the last increment.';
INSERT INTO database_mark (name, lineage, counter, timeline, at)
VALUES ('mark', gen_random_uuid(), 0, 0, tranche_now());

CREATE TABLE database_rewind (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    noticed_at timestamptz NOT NULL DEFAULT tranche_now(),
    lost       boolean     NOT NULL,
    from_at    timestamptz NOT NULL,
    to_at      timestamptz NOT NULL,
    runs       integer     NOT NULL
);
COMMENT ON TABLE database_rewind IS 'Times when the database lost recent commits, or another server took over.';
COMMENT ON COLUMN database_rewind.id IS 'Row number.';
COMMENT ON COLUMN database_rewind.noticed_at IS 'When a node noticed it.';
COMMENT ON COLUMN database_rewind.lost IS
    'True: commits confirmed between from_at and to_at are lost, or may be. False: another server took over, and '
    'nothing known is missing.';
COMMENT ON COLUMN database_rewind.from_at IS 'Start of the period whose commits may be lost.';
COMMENT ON COLUMN database_rewind.to_at IS 'End of that period.';
COMMENT ON COLUMN database_rewind.runs IS 'Number of runs in progress.';

CREATE TABLE tracker_batch (
    id           uuid        PRIMARY KEY,
    owner        text        NOT NULL,
    state        text        NOT NULL CHECK (state IN ('open', 'sealed', 'completed', 'cancelled')),
    generation   integer     NOT NULL DEFAULT 1 CHECK (generation >= 1),
    groups       integer     NOT NULL DEFAULT 0 CHECK (groups >= 0),
    open_groups  integer     NOT NULL DEFAULT 0 CHECK (open_groups BETWEEN 0 AND groups),
    items        bigint      NOT NULL DEFAULT 0 CHECK (items >= 0),
    created_at   timestamptz NOT NULL DEFAULT tranche_now(),
    active_at    timestamptz NOT NULL DEFAULT tranche_now(),
    sealed_at    timestamptz,
    completed_at timestamptz,
    CHECK (state <> 'completed' OR open_groups = 0)
);
COMMENT ON TABLE tracker_batch IS
    'A batch of items whose complete acknowledgement is awaited: one per run, and those that other programs open '
    '(tracker_service).';
COMMENT ON COLUMN tracker_batch.id IS 'The batch; for a run, the run''s ID.';
COMMENT ON COLUMN tracker_batch.owner IS 'run, or service if another program opened it.';
COMMENT ON COLUMN tracker_batch.state IS
    'open: items may be added; sealed: no more items; completed: all are acknowledged; cancelled.';
COMMENT ON COLUMN tracker_batch.generation IS '1, and one more with each rerun or reset.';
COMMENT ON COLUMN tracker_batch.groups IS 'Number of groups of up to 8192 items.';
COMMENT ON COLUMN tracker_batch.open_groups IS 'Groups with unacknowledged items.';
COMMENT ON COLUMN tracker_batch.items IS 'Number of items in all groups.';
COMMENT ON COLUMN tracker_batch.created_at IS 'When it was created.';
COMMENT ON COLUMN tracker_batch.active_at IS 'Time of the last activity.';
COMMENT ON COLUMN tracker_batch.sealed_at IS 'When it was sealed; null: not yet.';
COMMENT ON COLUMN tracker_batch.completed_at IS
    'When the last item of this generation was acknowledged; null: not yet.';

CREATE TABLE tracker_group (
    batch_id uuid      NOT NULL REFERENCES tracker_batch ON DELETE CASCADE,
    grp      integer   NOT NULL CHECK (grp >= 0),
    size     integer   NOT NULL CHECK (size BETWEEN 1 AND 8192),
    pending  bit(8192) NOT NULL,
    PRIMARY KEY (batch_id, grp),
    CONSTRAINT tracker_group_within_size CHECK ((pending << size) = B'0'::bit(8192))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE tracker_group ALTER COLUMN pending SET STORAGE PLAIN;
COMMENT ON TABLE tracker_group IS 'Up to 8192 items of a tracker batch, one bit each.';
COMMENT ON COLUMN tracker_group.batch_id IS 'The batch (tracker_batch.id).';
COMMENT ON COLUMN tracker_group.grp IS 'Number of the group in its batch, from 0.';
COMMENT ON COLUMN tracker_group.size IS 'Number of items.';
COMMENT ON COLUMN tracker_group.pending IS 'Unacknowledged items as set bits; the first bit is the first item.';

CREATE TABLE quarantine (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT tranche_now(),
    reason   text        NOT NULL,
    detail   text        NOT NULL,
    subject  text        NOT NULL,
    run_id   uuid,
    slice_id uuid,
    headers  jsonb       NOT NULL DEFAULT '{}',
    body     bytea       NOT NULL
);
-- Counts and lists by run.
CREATE INDEX quarantine_run ON quarantine (run_id, id);
COMMENT ON TABLE quarantine IS 'Replies, or slots of replies, that could not be accepted, with the reason.';
COMMENT ON COLUMN quarantine.id IS 'Row number.';
COMMENT ON COLUMN quarantine.at IS 'When it was quarantined.';
COMMENT ON COLUMN quarantine.reason IS 'A code, such as json, wrong_endpoint or foreign_ordinal.';
COMMENT ON COLUMN quarantine.detail IS 'The reason in words.';
COMMENT ON COLUMN quarantine.subject IS 'NATS subject of the message.';
COMMENT ON COLUMN quarantine.run_id IS 'The run named in it; null: none.';
COMMENT ON COLUMN quarantine.slice_id IS 'The slice named in it; null: none.';
COMMENT ON COLUMN quarantine.headers IS 'Headers of the message.';
COMMENT ON COLUMN quarantine.body IS 'The first 64 KiB of the message.';

CREATE TABLE run_event (
    id           uuid        PRIMARY KEY,
    run_id       uuid        NOT NULL,
    generation   integer     NOT NULL,
    kind         text        NOT NULL,
    payload      jsonb       NOT NULL,
    at           timestamptz NOT NULL DEFAULT tranche_now(),
    published_at timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX run_event_completion ON run_event (run_id, generation) WHERE kind = 'completed';
CREATE INDEX run_event_unpublished ON run_event (at) WHERE published_at IS NULL;
-- Completions since a time, for alerts.
CREATE INDEX run_event_completed ON run_event (at) WHERE kind = 'completed';
-- Events of a run, for its report.
CREATE INDEX run_event_run ON run_event (run_id, at);
COMMENT ON TABLE run_event IS
    'Events of runs, published to tranche.event.> after the commit. A run has one completion per generation.';
COMMENT ON COLUMN run_event.id IS 'ID of the event, the same in all messages about it.';
COMMENT ON COLUMN run_event.run_id IS 'The run.';
COMMENT ON COLUMN run_event.generation IS 'The run''s generation at that time.';
COMMENT ON COLUMN run_event.kind IS 'Kind: completed, paused and so on; the last part of the NATS subject.';
COMMENT ON COLUMN run_event.payload IS 'The event as published.';
COMMENT ON COLUMN run_event.at IS 'When it happened.';
COMMENT ON COLUMN run_event.published_at IS 'When JetStream confirmed it; null: not yet.';

-- +goose Down
DROP TABLE schema_object, run_event, quarantine, tracker_group, tracker_batch, database_rewind, database_mark, leader, node_session, namespace;
DROP FUNCTION database_timeline(), tranche_now();
