-- +goose Up

-- What the JetStream streams are to be like. One row, once a node has started; nodes read it, and the one that leads
-- brings it to JetStream. A zero means: as it comes, which for replicas is by whether NATS is a cluster.
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
    revision    bigint      NOT NULL DEFAULT 1,              -- one more with each change
    changed_by  text        NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied     jsonb,                                       -- the settings that the streams were brought to last
    applied_rev bigint      NOT NULL DEFAULT 0,              -- and which they were
    applied_at  timestamptz,
    trouble     text        NOT NULL DEFAULT '',             -- why those that are wanted could not be brought
    since       timestamptz,                                 -- when that began
    tries       integer     NOT NULL DEFAULT 0,              -- that failed since
    next_try    timestamptz,
    CHECK ((trouble = '') = (since IS NULL))
);

-- +goose Down

DROP TABLE stream_setting;
