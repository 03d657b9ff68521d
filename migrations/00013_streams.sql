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
    'Which incarnation of the JetStream streams is in use. One row; what was sent in an earlier epoch is reissued.';
COMMENT ON COLUMN stream_epoch.name IS 'Always streams.';
COMMENT ON COLUMN stream_epoch.epoch IS 'One more each time that a stream was made again, or has lost messages.';
COMMENT ON COLUMN stream_epoch.work_created IS 'When the stream of requests was made.';
COMMENT ON COLUMN stream_epoch.reply_created IS 'When the stream of replies was made.';
COMMENT ON COLUMN stream_epoch.stage_created IS 'When the stream of stages was made; null: no one has looked.';
COMMENT ON COLUMN stream_epoch.flow_created IS 'When the stream of states of flows was made; null: no one has looked.';

-- One row, once a node has started; nodes read it, and the one that leads brings it to JetStream.
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
    'What the JetStream streams are to be like, and what they were brought to. One row. A zero is the default.';
COMMENT ON COLUMN stream_setting.name IS 'Always streams.';
COMMENT ON COLUMN stream_setting.replicas IS 'Servers that keep each stream; 0: 1, or 3 in a cluster of NATS.';
COMMENT ON COLUMN stream_setting.work_bytes IS 'Bytes of requests, at most.';
COMMENT ON COLUMN stream_setting.reply_bytes IS 'Bytes of replies, at most.';
COMMENT ON COLUMN stream_setting.stage_bytes IS 'Bytes of answers to flows, at most.';
COMMENT ON COLUMN stream_setting.flow_bytes IS 'Bytes of states of flows, at most.';
COMMENT ON COLUMN stream_setting.event_bytes IS 'Bytes of events, at most.';
COMMENT ON COLUMN stream_setting.dead_bytes IS 'Bytes of dead letters that are not in the database yet, at most.';
COMMENT ON COLUMN stream_setting.event_age IS 'For how long events are kept in their stream.';
COMMENT ON COLUMN stream_setting.revision IS 'One more with each change.';
COMMENT ON COLUMN stream_setting.changed_by IS 'Who changed it last.';
COMMENT ON COLUMN stream_setting.changed_at IS 'When.';
COMMENT ON COLUMN stream_setting.applied IS 'The settings that the streams were brought to last; null: none yet.';
COMMENT ON COLUMN stream_setting.applied_rev IS 'The revision that those are.';
COMMENT ON COLUMN stream_setting.applied_at IS 'When that was.';
COMMENT ON COLUMN stream_setting.last_error IS
    'Why the streams could not be brought to what is wanted; empty: they could.';
COMMENT ON COLUMN stream_setting.since IS 'When that began.';
COMMENT ON COLUMN stream_setting.tries IS 'Tries that failed since.';
COMMENT ON COLUMN stream_setting.next_try IS 'When it is retried.';

CREATE TABLE stream_fault (
    stream text        PRIMARY KEY,
    since  timestamptz NOT NULL DEFAULT tranche_now(),
    detail text        NOT NULL
);
COMMENT ON TABLE stream_fault IS
    'Streams that take no messages although their server answers, as the leader has found by trying. One '
    'that takes messages again has no row.';
COMMENT ON COLUMN stream_fault.stream IS 'Name of the stream.';
COMMENT ON COLUMN stream_fault.since IS 'Since when.';
COMMENT ON COLUMN stream_fault.detail IS
    'What the server said when it was to take a message into a new stream; empty: it took it.';

-- +goose Down
DROP TABLE stream_fault, stream_setting, stream_epoch;
