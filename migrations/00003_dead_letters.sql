-- +goose Up

-- The state changes once: from waiting to requeued or dropped.
CREATE TABLE dead_letter (
    id         uuid        PRIMARY KEY,                 -- version 7: in order of creation
    msg_id     text        COLLATE "C" NOT NULL UNIQUE, -- makes each letter unique
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
    body       bytea       CHECK (octet_length(body) <= 16777216),
    at         timestamptz NOT NULL DEFAULT tranche_now(),
    changed_at timestamptz NOT NULL DEFAULT tranche_now(),
    sent_at    timestamptz,
    CONSTRAINT dead_letter_whole CHECK (state <> 'requeued' OR body IS NOT NULL),
    CONSTRAINT dead_letter_sent CHECK (sent_at IS NULL OR state = 'requeued')
);
-- Lists and selections by state or endpoint, newest first.
CREATE INDEX dead_letter_state ON dead_letter (state, id);
CREATE INDEX dead_letter_endpoint ON dead_letter (endpoint, state, id);
-- Counts by run.
CREATE INDEX dead_letter_run ON dead_letter (run_id, state) WHERE run_id IS NOT NULL;
-- The outbox: requeued, but not confirmed by the stream.
CREATE INDEX dead_letter_unsent ON dead_letter (changed_at, id) WHERE state = 'requeued' AND sent_at IS NULL;
COMMENT ON TABLE dead_letter IS 'Requests that no service could process, as received.';
COMMENT ON COLUMN dead_letter.id IS 'The dead letter; later ones have greater IDs.';
COMMENT ON COLUMN dead_letter.msg_id IS 'Message ID of the letter, derived from the request''s.';
COMMENT ON COLUMN dead_letter.endpoint IS 'The endpoint called.';
COMMENT ON COLUMN dead_letter.cause IS 'Error code of the cause.';
COMMENT ON COLUMN dead_letter.message IS 'The cause in words.';
COMMENT ON COLUMN dead_letter.mode IS
    'batch: a chunk of a run or a list; single: one item with a waiting caller; empty: unknown.';
COMMENT ON COLUMN dead_letter.run_id IS 'The run; null: none.';
COMMENT ON COLUMN dead_letter.slice_id IS 'The slice (work_slice.id); null: none.';
COMMENT ON COLUMN dead_letter.root_id IS 'The slice that the flow was working on; null: none.';
COMMENT ON COLUMN dead_letter.stack IS 'The calling endpoints, outermost first.';
COMMENT ON COLUMN dead_letter.origin IS 'The first caller.';
COMMENT ON COLUMN dead_letter.service IS 'The service that abandoned the request: name, version and instance.';
COMMENT ON COLUMN dead_letter.deliveries IS 'Number of deliveries; 0: unknown.';
COMMENT ON COLUMN dead_letter.requeued IS 'How often operators requeued the request, over all of its letters.';
COMMENT ON COLUMN dead_letter.items IS 'Number of items; 0: unknown.';
COMMENT ON COLUMN dead_letter.state IS
    'waiting: to be requeued or dropped; requeued: sent to its endpoint again; reissued: its items continued '
    'automatically; dropped: discarded.';
COMMENT ON COLUMN dead_letter.headers IS 'Headers of the request.';
COMMENT ON COLUMN dead_letter.body IS 'The request, up to 16 MiB; null: not kept.';
COMMENT ON COLUMN dead_letter.at IS 'When it became a dead letter.';
COMMENT ON COLUMN dead_letter.changed_at IS 'When its state last changed.';
COMMENT ON COLUMN dead_letter.sent_at IS
    'When JetStream confirmed it after a requeue; null: not requeued, or not sent yet.';

-- +goose Down
DROP TABLE dead_letter;
