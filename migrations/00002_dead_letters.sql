-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again.
SET LOCAL lock_timeout = '2s';

-- Counts and lists of one run. Built first: however much is in quarantine, the tables that nodes work on are not held
-- meanwhile.
CREATE INDEX quarantine_run ON quarantine (run_id, id);

-- Requests that no service could deal with, as they came. A row moves once: from waiting to requeued or dropped.
-- reissued ones need nobody: their items went on by themselves, in slices of their own.
CREATE TABLE dead_letter (
    id         uuid        PRIMARY KEY,      -- version 7: the newest last
    msg_id     text        COLLATE "C" NOT NULL UNIQUE, -- of the letter: the same death comes in once
    endpoint   text        COLLATE "C" NOT NULL,
    cause      text        NOT NULL,
    message    text        NOT NULL DEFAULT '',
    mode       text        NOT NULL DEFAULT '',
    run_id     uuid,
    slice_id   uuid,
    root_id    uuid,
    stack      text        NOT NULL DEFAULT '',
    origin     text        NOT NULL DEFAULT '',
    service    text        NOT NULL DEFAULT '',
    deliveries integer     NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
    requeued   integer     NOT NULL DEFAULT 0 CHECK (requeued >= 0),
    items      integer     NOT NULL DEFAULT 0 CHECK (items >= 0),
    state      text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'requeued', 'reissued', 'dropped')),
    headers    jsonb       NOT NULL DEFAULT '{}',
    body       bytea       CHECK (octet_length(body) <= 16777216), -- null when it is not kept
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at    timestamptz,                  -- of a requeued one: when JetStream had it
    CONSTRAINT dead_letter_whole CHECK (state <> 'requeued' OR body IS NOT NULL),
    CONSTRAINT dead_letter_sent CHECK (sent_at IS NULL OR state = 'requeued')
);
-- Lists and selections, newest first, of one state or endpoint.
CREATE INDEX dead_letter_state ON dead_letter (state, id);
CREATE INDEX dead_letter_endpoint ON dead_letter (endpoint, state, id);
-- Counts of one run.
CREATE INDEX dead_letter_run ON dead_letter (run_id, state) WHERE run_id IS NOT NULL;
-- The outbox: what was requeued and is not known to be in the stream.
CREATE INDEX dead_letter_unsent ON dead_letter (changed_at, id) WHERE state = 'requeued' AND sent_at IS NULL;

-- What operators set for an endpoint. A row stays when the setting goes back to the default, so that nodes know to take
-- it back from the endpoint's consumer.
CREATE TABLE endpoint_setting (
    endpoint    text        COLLATE "C" PRIMARY KEY,
    concurrency integer     NOT NULL DEFAULT 0 CHECK (concurrency BETWEEN 0 AND 1024), -- of each instance; 0: its own
    changed_by  text        NOT NULL DEFAULT '',
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What nodes work on comes last, so that it is held for no longer than it takes.

-- Null until a node that knows these streams has looked at them: a node of the version before does not.
ALTER TABLE pipe
    ADD COLUMN stage_created timestamptz,
    ADD COLUMN flow_created  timestamptz;

-- True for a piece of a chunk that was given up after too many deliveries, until some service has answered it: it may
-- be what kills its services. A constant default rewrites no row.
ALTER TABLE work_slice ADD COLUMN suspect boolean NOT NULL DEFAULT false;

-- +goose Down
DROP INDEX quarantine_run;
DROP TABLE endpoint_setting, dead_letter;
ALTER TABLE work_slice DROP COLUMN suspect;
ALTER TABLE pipe DROP COLUMN stage_created, DROP COLUMN flow_created;
