-- +goose Up

CREATE TABLE stream_epoch (
    name          text        PRIMARY KEY,
    epoch         bigint      NOT NULL,
    work_created  timestamptz NOT NULL,
    reply_created timestamptz NOT NULL,
    stage_created timestamptz,
    flow_created  timestamptz
);
COMMENT ON TABLE stream_epoch IS
    'The current incarnation of the JetStream streams. One row. Requests sent in an earlier epoch are reissued.';
COMMENT ON COLUMN stream_epoch.name IS 'Constant: streams.';
COMMENT ON COLUMN stream_epoch.epoch IS 'Increases when a stream was recreated or lost messages.';
COMMENT ON COLUMN stream_epoch.work_created IS 'When the stream of requests was created.';
COMMENT ON COLUMN stream_epoch.reply_created IS 'When the stream of replies was created.';
COMMENT ON COLUMN stream_epoch.stage_created IS 'When the stream of stages was created; null: not checked yet.';
COMMENT ON COLUMN stream_epoch.flow_created IS 'When the stream of states of flows was created; null: not checked yet.';

-- One row, created when the first node starts. Nodes read it, and the leader applies it to JetStream.
CREATE TABLE stream_setting (
    name        text        PRIMARY KEY CHECK (name = 'streams'),
    replicas    integer     NOT NULL CHECK (replicas IN (0, 1, 3, 5)),
    work_bytes  bigint      NOT NULL CHECK (work_bytes >= 0),
    reply_bytes bigint      NOT NULL CHECK (reply_bytes >= 0),
    stage_bytes bigint      NOT NULL CHECK (stage_bytes >= 0),
    flow_bytes  bigint      NOT NULL CHECK (flow_bytes >= 0),
    event_bytes bigint      NOT NULL CHECK (event_bytes >= 0),
    dead_bytes  bigint      NOT NULL CHECK (dead_bytes >= 0),
    event_age   interval    NOT NULL CHECK (event_age >= interval '0'),
    revision    bigint      NOT NULL DEFAULT 1,
    changed_by  text        NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT tranche_now(),
    applied     jsonb,
    applied_rev bigint      NOT NULL DEFAULT 0,
    applied_at  timestamptz,
    last_error  text        NOT NULL DEFAULT '',
    since       timestamptz,
    tries       integer     NOT NULL DEFAULT 0,
    next_try    timestamptz,
    CHECK ((last_error = '') = (since IS NULL))
);
COMMENT ON TABLE stream_setting IS
    'Wanted and applied settings of the JetStream streams. One row. Zero means the default.';
COMMENT ON COLUMN stream_setting.name IS 'Constant: streams.';
COMMENT ON COLUMN stream_setting.replicas IS 'Replicas of each stream; 0: 1, or 3 in a NATS cluster.';
COMMENT ON COLUMN stream_setting.work_bytes IS 'Maximum bytes of requests.';
COMMENT ON COLUMN stream_setting.reply_bytes IS 'Maximum bytes of replies.';
COMMENT ON COLUMN stream_setting.stage_bytes IS 'Maximum bytes of replies to flows.';
COMMENT ON COLUMN stream_setting.flow_bytes IS 'Maximum bytes of states of flows.';
COMMENT ON COLUMN stream_setting.event_bytes IS 'Maximum bytes of events.';
COMMENT ON COLUMN stream_setting.dead_bytes IS 'Maximum bytes of dead letters not yet in the database.';
COMMENT ON COLUMN stream_setting.event_age IS 'How long events are kept in their stream.';
COMMENT ON COLUMN stream_setting.revision IS 'Increases with each change.';
COMMENT ON COLUMN stream_setting.changed_by IS 'Who last changed it.';
COMMENT ON COLUMN stream_setting.changed_at IS 'When it was last changed.';
COMMENT ON COLUMN stream_setting.applied IS 'The settings last applied to the streams; null: none yet.';
COMMENT ON COLUMN stream_setting.applied_rev IS 'Their revision.';
COMMENT ON COLUMN stream_setting.applied_at IS 'When they were applied.';
COMMENT ON COLUMN stream_setting.last_error IS 'Why the settings could not be applied; empty: they were.';
COMMENT ON COLUMN stream_setting.since IS 'When that error began.';
COMMENT ON COLUMN stream_setting.tries IS 'Number of failed attempts since.';
COMMENT ON COLUMN stream_setting.next_try IS 'Time of the next attempt.';

CREATE TABLE stream_fault (
    stream text        PRIMARY KEY,
    since  timestamptz NOT NULL DEFAULT tranche_now(),
    detail text        NOT NULL
);
COMMENT ON TABLE stream_fault IS
    'Streams that accept no messages although their server answers, as tested by the leader. Rows are removed when '
    'they work again.';
COMMENT ON COLUMN stream_fault.stream IS 'Name of the stream.';
COMMENT ON COLUMN stream_fault.since IS 'When it began.';
COMMENT ON COLUMN stream_fault.detail IS
    'Error of the server when a message was sent to a new stream; empty: it was accepted.';

-- +goose Down
DROP TABLE stream_fault, stream_setting, stream_epoch;
