-- +goose Up

-- COMMENTs are for whoever looks with psql (\d+ TABLE); what stands behind -- is for whoever changes something.

-- goose has made it before, for the files here.
COMMENT ON TABLE tranche_migration IS 'The migrations that were applied: the files of this schema.';
COMMENT ON COLUMN tranche_migration.id IS 'Number of the row.';
COMMENT ON COLUMN tranche_migration.version_id IS 'Number of the file; 0: the table itself.';
COMMENT ON COLUMN tranche_migration.is_applied IS 'Always true.';
COMMENT ON COLUMN tranche_migration.tstamp IS 'When it was applied, without a zone.';

CREATE TABLE schema_object (object text PRIMARY KEY);
COMMENT ON TABLE schema_object IS
    'What the schema consisted of after the last migration: what differs from it since, someone else has changed.';
COMMENT ON COLUMN schema_object.object IS 'A column, constraint, index, trigger or function, and whose it is.';

-- Statements, views and defaults have no other clock, so that a test can move it. A planner puts its body in its place.
CREATE FUNCTION tranche_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE RETURN clock_timestamp();
COMMENT ON FUNCTION tranche_now() IS 'The time of day now, also within a transaction: all times here are by it.';

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
-- Each look for work reads those with such a quota.
CREATE INDEX namespace_in_flight ON namespace (name) WHERE max_in_flight IS NOT NULL;
COMMENT ON TABLE namespace IS 'Owners of runs, plans, schedules, collectors and trackers.';
COMMENT ON COLUMN namespace.name IS 'Its name.';
COMMENT ON COLUMN namespace.max_runs IS 'Runs that have not ended, at most; null: no limit.';
COMMENT ON COLUMN namespace.max_items IS 'Items of those runs, at most; null: no limit.';
COMMENT ON COLUMN namespace.max_in_flight IS 'Requests of its runs in flight, at most; null: no limit.';
COMMENT ON COLUMN namespace.max_bytes IS 'Bytes that its runs store, at most, about; null: no limit.';
COMMENT ON COLUMN namespace.changed_by IS 'Who changed it last.';
COMMENT ON COLUMN namespace.changed_at IS 'When.';

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
    'A node, or fetcher node: a running orchestrator process. What it has claimed and not sent is its own while the '
    'session lives, and goes to others when it has ended.';
COMMENT ON COLUMN node_session.id IS 'The session; every start of a node has a new one.';
COMMENT ON COLUMN node_session.host IS 'Name of the machine.';
COMMENT ON COLUMN node_session.pid IS 'Process id on that machine.';
COMMENT ON COLUMN node_session.version IS 'Version of Tranche that the node runs.';
COMMENT ON COLUMN node_session.started_at IS 'When the node started.';
COMMENT ON COLUMN node_session.heartbeat_at IS 'When the node was last heard of.';
COMMENT ON COLUMN node_session.expires_at IS
    'The session is over then unless the node is heard of before; by the clock of the database.';
COMMENT ON COLUMN node_session.ended_at IS
    'When the node stopped in good order; null: it has not, though its session may have expired.';
COMMENT ON COLUMN node_session.stats IS 'The node''s own counters, as of its last heartbeat.';
COMMENT ON COLUMN node_session.feature_level IS
    'What the node understands: 1 runs of one step, 2 runs of several steps, 3 runs whose items are kept in order.';
COMMENT ON COLUMN node_session.precedence IS
    'Who leads before others: nodes of tranche serve have more than 0, and a session has it only while its node can '
    'lead.';

CREATE TABLE leader (
    name       text        PRIMARY KEY,
    epoch      bigint      NOT NULL,
    session_id uuid        NOT NULL,
    expires_at timestamptz NOT NULL,
    since      timestamptz NOT NULL DEFAULT tranche_now()
);
COMMENT ON TABLE leader IS 'The lease of the leader. One row.';
COMMENT ON COLUMN leader.name IS 'Always the same.';
COMMENT ON COLUMN leader.epoch IS
    'Grows each time that another node takes the lease; each transaction of a leader checks it.';
COMMENT ON COLUMN leader.session_id IS 'The leader (node_session.id).';
COMMENT ON COLUMN leader.expires_at IS 'Others may take the lease then, unless it is prolonged before.';
COMMENT ON COLUMN leader.since IS 'When this node began to lead.';

-- Which timeline of its history the database writes: a promoted standby begins a new one. That cannot be read on a
-- standby, and a server may not tell.
-- +goose StatementBegin
CREATE FUNCTION database_timeline() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION WHEN OTHERS THEN
    RETURN 0;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION database_timeline() IS
    'The timeline that this server writes, which changes when a standby is promoted; 0: it cannot be read.';

CREATE TABLE database_mark (
    name     text        PRIMARY KEY,
    lineage  uuid        NOT NULL,
    counter     bigint      NOT NULL,
    timeline bigint      NOT NULL,
    at       timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE database_mark IS 'A count by which nodes notice that the database lost recent commits. One row.';
COMMENT ON COLUMN database_mark.name IS 'Always mark.';
COMMENT ON COLUMN database_mark.lineage IS 'Of this database: counts of others say nothing of it.';
COMMENT ON COLUMN database_mark.counter IS
    'The count. The leader raises it; lower than nodes remember means that the database has lost its latest past.';
COMMENT ON COLUMN database_mark.timeline IS 'The timeline of the server that the count was raised on; 0: not known.';
COMMENT ON COLUMN database_mark.at IS 'When it was raised last.';
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
COMMENT ON TABLE database_rewind IS 'Times at which the database lost recent commits, or another server took it over.';
COMMENT ON COLUMN database_rewind.id IS 'Number of the row.';
COMMENT ON COLUMN database_rewind.noticed_at IS 'When a node noticed it.';
COMMENT ON COLUMN database_rewind.lost IS
    'True: what was confirmed in between is lost, or may be. False: another server took over, and all that is known '
    'is there.';
COMMENT ON COLUMN database_rewind.from_at IS 'What was confirmed after this may be lost.';
COMMENT ON COLUMN database_rewind.to_at IS 'And up to this.';
COMMENT ON COLUMN database_rewind.runs IS 'How many runs were in progress.';

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
    'A batch of items of which someone wants to know that all are acknowledged: one of each run, and those that '
    'others open (tracker_service).';
COMMENT ON COLUMN tracker_batch.id IS 'Of a run''s batch the id of the run.';
COMMENT ON COLUMN tracker_batch.owner IS 'Whose it is: run, or service for those that others have opened.';
COMMENT ON COLUMN tracker_batch.state IS
    'open: items may be added; sealed: no more are; completed: all are acknowledged; cancelled.';
COMMENT ON COLUMN tracker_batch.generation IS 'How often it was armed: one more with each re-run or reset.';
COMMENT ON COLUMN tracker_batch.groups IS 'Groups of up to 8192 items.';
COMMENT ON COLUMN tracker_batch.open_groups IS 'Groups in which an item is not acknowledged yet.';
COMMENT ON COLUMN tracker_batch.items IS 'Items in all groups.';
COMMENT ON COLUMN tracker_batch.created_at IS 'When it was made.';
COMMENT ON COLUMN tracker_batch.active_at IS 'When it was last seen to be in use.';
COMMENT ON COLUMN tracker_batch.sealed_at IS 'When the last item had been added; null: not yet.';
COMMENT ON COLUMN tracker_batch.completed_at IS
    'When the last item was acknowledged, in this generation; null: not yet.';

CREATE TABLE tracker_group (
    batch_id uuid      NOT NULL REFERENCES tracker_batch ON DELETE CASCADE,
    grp      integer   NOT NULL CHECK (grp >= 0),
    size     integer   NOT NULL CHECK (size BETWEEN 1 AND 8192),
    pending  bit(8192) NOT NULL,
    PRIMARY KEY (batch_id, grp),
    CONSTRAINT tracker_group_within_size CHECK ((pending << size) = B'0'::bit(8192))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE tracker_group ALTER COLUMN pending SET STORAGE PLAIN;
COMMENT ON TABLE tracker_group IS 'Up to 8192 items of a tracker batch, a bit each.';
COMMENT ON COLUMN tracker_group.batch_id IS 'The batch (tracker_batch.id).';
COMMENT ON COLUMN tracker_group.grp IS 'Number of the group in its batch, from 0 on.';
COMMENT ON COLUMN tracker_group.size IS 'How many items it has.';
COMMENT ON COLUMN tracker_group.pending IS
    'A set bit is an item that no one has acknowledged yet; the first bit is the first item.';

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
-- Counts and lists of one run.
CREATE INDEX quarantine_run ON quarantine (run_id, id);
COMMENT ON TABLE quarantine IS 'Replies of services, or slots of replies, that could not be taken, with the reason.';
COMMENT ON COLUMN quarantine.id IS 'Number of the row.';
COMMENT ON COLUMN quarantine.at IS 'When it was put here.';
COMMENT ON COLUMN quarantine.reason IS 'A short code: malformed, wrong_endpoint, foreign_ordinal and the like.';
COMMENT ON COLUMN quarantine.detail IS 'The same in a sentence.';
COMMENT ON COLUMN quarantine.subject IS 'NATS subject that the message came on.';
COMMENT ON COLUMN quarantine.run_id IS 'The run that it names; null: none.';
COMMENT ON COLUMN quarantine.slice_id IS 'The slice that it names; null: none.';
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
-- What has completed since a time, for alerts.
CREATE INDEX run_event_completed ON run_event (at) WHERE kind = 'completed';
-- What happened to one run, for its report.
CREATE INDEX run_event_run ON run_event (run_id, at);
COMMENT ON TABLE run_event IS
    'What happened to runs, published to tranche.event.> after the commit. A run has one completion in each '
    'generation.';
COMMENT ON COLUMN run_event.id IS 'Of the event, wherever it is told.';
COMMENT ON COLUMN run_event.run_id IS 'The run.';
COMMENT ON COLUMN run_event.generation IS 'Of the run, when it happened.';
COMMENT ON COLUMN run_event.kind IS 'What happened: completed, paused, and so on; the last part of the NATS subject.';
COMMENT ON COLUMN run_event.payload IS 'The event, as it is published.';
COMMENT ON COLUMN run_event.at IS 'When it happened.';
COMMENT ON COLUMN run_event.published_at IS 'When JetStream had it; null: not yet.';

-- +goose Down
DROP TABLE schema_object, run_event, quarantine, tracker_group, tracker_batch, database_rewind, database_mark, leader, node_session, namespace;
DROP FUNCTION database_timeline(), tranche_now();
