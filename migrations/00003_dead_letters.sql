-- +goose Up

-- A row moves once: from waiting to requeued or dropped.
CREATE TABLE dead_letter (
    id         uuid        PRIMARY KEY,                 -- version 7: the newest last
    msg_id     text        COLLATE "C" NOT NULL UNIQUE, -- the same death comes in once
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
-- Lists and selections, newest first, of one state or endpoint.
CREATE INDEX dead_letter_state ON dead_letter (state, id);
CREATE INDEX dead_letter_endpoint ON dead_letter (endpoint, state, id);
-- Counts of one run.
CREATE INDEX dead_letter_run ON dead_letter (run_id, state) WHERE run_id IS NOT NULL;
-- The outbox: what was requeued and is not known to be in the stream.
CREATE INDEX dead_letter_unsent ON dead_letter (changed_at, id) WHERE state = 'requeued' AND sent_at IS NULL;
COMMENT ON TABLE dead_letter IS 'Requests that no service could deal with, as they came.';
COMMENT ON COLUMN dead_letter.id IS 'The dead letter; later ones have greater ids.';
COMMENT ON COLUMN dead_letter.msg_id IS 'Message id of the letter, which follows from that of the request.';
COMMENT ON COLUMN dead_letter.endpoint IS 'The endpoint that was asked.';
COMMENT ON COLUMN dead_letter.cause IS 'Why no one could deal with it: a short code.';
COMMENT ON COLUMN dead_letter.message IS 'The same in words.';
COMMENT ON COLUMN dead_letter.mode IS
    'batch: a chunk of a run or a list; single: one item that someone waited for; empty: the request does not say.';
COMMENT ON COLUMN dead_letter.run_id IS 'The run; null: it is of none.';
COMMENT ON COLUMN dead_letter.slice_id IS 'The slice (work_slice.id); null: none.';
COMMENT ON COLUMN dead_letter.root_id IS
    'The slice that all this was for, when the request came from a flow; null: none.';
COMMENT ON COLUMN dead_letter.stack IS 'The endpoints that waited for the answer, outermost first.';
COMMENT ON COLUMN dead_letter.origin IS 'Who asked first.';
COMMENT ON COLUMN dead_letter.service IS 'Who gave it up: name, version and instance.';
COMMENT ON COLUMN dead_letter.deliveries IS 'How often it was delivered; 0: not known.';
COMMENT ON COLUMN dead_letter.requeued IS 'How often operators have sent it again, over all of its letters.';
COMMENT ON COLUMN dead_letter.items IS 'How many items it has; 0: not known.';
COMMENT ON COLUMN dead_letter.state IS
    'waiting: for someone to requeue or drop it; requeued: sent to its endpoint again; reissued: its items went on '
    'by themselves; dropped: no one wants it.';
COMMENT ON COLUMN dead_letter.headers IS 'Headers of the request.';
COMMENT ON COLUMN dead_letter.body IS 'The request, up to 16 MiB; null: it is not kept.';
COMMENT ON COLUMN dead_letter.at IS 'When it died.';
COMMENT ON COLUMN dead_letter.changed_at IS 'When it came into its state.';
COMMENT ON COLUMN dead_letter.sent_at IS 'When JetStream had it again; null: not requeued, or not sent yet.';

-- +goose Down
DROP TABLE dead_letter;
