-- +goose Up

-- Collectors gather operations by a key and flush them in batches. See docs/collectors.md.

SET LOCAL lock_timeout = '500ms';

ALTER TABLE endpoint_setting ADD COLUMN call_rate double precision NOT NULL DEFAULT 0 CHECK (call_rate >= 0);
ALTER TABLE endpoint_pace
    ADD COLUMN call_tokens    double precision NOT NULL DEFAULT 0, -- of endpoint_setting.call_rate
    ADD COLUMN call_tokens_at timestamptz;

-- What a flush needs of its definition stands in columns beside it.
CREATE TABLE collector (
    id              integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text        COLLATE "C" NOT NULL,
    run_id          uuid        NOT NULL,            -- what its requests carry as Tranche-Run
    version         integer     NOT NULL DEFAULT 1 CHECK (version >= 1),
    numbering       integer     NOT NULL DEFAULT 1 CHECK (numbering >= 1),    -- grows when keys are made otherwise
    settled         integer     NOT NULL DEFAULT 1 CHECK (settled <= numbering), -- no older key has anything that waits
    timed           integer     NOT NULL DEFAULT 1,  -- the times of its keys are those of this timing
    timing          integer     NOT NULL DEFAULT 1,  -- grows when they have to be set anew
    state           text        NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'deleting')),
    spec            jsonb       NOT NULL,
    source          text        NOT NULL,            -- as it was handed in
    endpoint        text        COLLATE "C" NOT NULL,
    min_size        integer     NOT NULL CHECK (min_size BETWEEN 1 AND 8192),
    max_size        integer     NOT NULL CHECK (max_size BETWEEN 1 AND 8192),
    max_age         interval    NOT NULL CHECK (max_age >= interval '0'),
    in_flight       integer     NOT NULL CHECK (in_flight BETWEEN 1 AND 1024),
    rate            double precision CHECK (rate > 0), -- calls a second; null: no limit
    timeout         interval    NOT NULL CHECK (timeout > interval '0'),
    dedupe          interval    NOT NULL CHECK (dedupe >= interval '0'),
    strict          boolean     NOT NULL,
    levels          smallint    NOT NULL DEFAULT 0 CHECK (levels IN (0, 9)), -- the highest priority that there may be
    drain_at        timestamptz,                     -- what was added until then waits for no more
    tokens          double precision NOT NULL DEFAULT 0,
    tokens_at       timestamptz,
    failures        integer     NOT NULL DEFAULT 0 CHECK (failures >= 0), -- flushes in a row that came to nothing
    failed_at       timestamptz,
    failure_code    text        NOT NULL DEFAULT '',
    failure_message text        NOT NULL DEFAULT '',
    rest_until      timestamptz,
    good_at         timestamptz,                     -- of a flush that the service dealt with, to half a second
    created_by      text        NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by      text        NOT NULL DEFAULT '',
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_by       text        NOT NULL DEFAULT '',
    paused_at       timestamptz
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX collector_name ON collector (name) WHERE state <> 'deleting';
CREATE INDEX collector_endpoint ON collector (endpoint);

-- A key is there while it has operations. What waits is either fresh, or has failed and is tried again; operations of a
-- flush under way are still counted. due_at is collector_due of the rest.
CREATE TABLE collector_key (
    collector   integer     NOT NULL,
    numbering   integer     NOT NULL,
    key         text        COLLATE "C" NOT NULL,
    fresh       integer     NOT NULL CHECK (fresh >= 0),
    retrying    integer     NOT NULL DEFAULT 0 CHECK (retrying >= 0),
    parked      integer     NOT NULL DEFAULT 0 CHECK (parked >= 0),
    priority    smallint    NOT NULL DEFAULT 0,   -- the highest of what waits
    oldest_at   timestamptz,                      -- of what is fresh
    retry_at    timestamptz,                      -- the next of what failed
    held_until  timestamptz,                      -- before then nothing goes
    due_at      timestamptz,                      -- when it is to be flushed; null: nothing waits
    size_limit  integer     CHECK (size_limit >= 1), -- of the next flush, because one came to nothing; null: none
    failures    integer     NOT NULL DEFAULT 0,   -- flushes in a row that came to nothing
    failed_at   timestamptz,                      -- when the last flush ended, if as in an outage: the breaker counts it
    failed_ops  integer,                          -- how many operations it had
    failed_code text,                             -- and what it failed with
    failed_message text,
    flush       uuid,                             -- under way
    session_id  uuid,                             -- of the node that does it
    flushed_at  timestamptz,
    flush_until timestamptz,                      -- after that it is given up
    PRIMARY KEY (collector, numbering, key),
    CONSTRAINT collector_key_flush CHECK ((flush IS NULL) = (session_id IS NULL)
        AND (flush IS NULL) = (flush_until IS NULL) AND (flush IS NULL OR flushed_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX collector_key_due ON collector_key (collector, numbering, priority, due_at)
    WHERE flush IS NULL AND due_at IS NOT NULL;
CREATE INDEX collector_key_flushing ON collector_key (collector) WHERE flush IS NOT NULL;
CREATE INDEX collector_key_failed ON collector_key (collector, failed_at) WHERE failed_at IS NOT NULL;

-- Operations are inserted once, and deleted when they have succeeded.
CREATE TABLE collector_op (
    seq             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    collector       integer     NOT NULL,
    numbering       integer     NOT NULL,
    key             text        COLLATE "C" NOT NULL,
    op_id           text        COLLATE "C" NOT NULL,
    payload         text        NOT NULL,         -- JSON
    priority        smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
    attempts        integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    added_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    not_before      timestamptz,                  -- it has failed; null: it is fresh
    alone           boolean     NOT NULL DEFAULT false, -- its flush failed as a whole: it goes alone
    parked_at       timestamptz,
    error_code      text        NOT NULL DEFAULT '',
    error_message   text        NOT NULL DEFAULT '',
    failed_first    timestamptz,
    failed_last     timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0.2);
CREATE INDEX collector_op_queue ON collector_op (collector, numbering, key, priority DESC, seq)
    WHERE parked_at IS NULL;
CREATE INDEX collector_op_retry ON collector_op (collector, numbering, key, not_before)
    WHERE parked_at IS NULL AND not_before IS NOT NULL;
CREATE INDEX collector_op_parked ON collector_op (collector, seq) WHERE parked_at IS NOT NULL;
CREATE INDEX collector_op_id ON collector_op (collector, op_id);

-- The ids that were added, for as long as they are remembered.
CREATE TABLE collector_seen (
    collector integer     NOT NULL,
    op_id     text        COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (collector, op_id)
);
CREATE INDEX collector_seen_at ON collector_seen (collector, at);

-- When a key is due: at once when enough of it is fresh or what is fresh has to go, else when the oldest has waited
-- long enough or the next try of a failed one has come, and never before it may. What is due at once is due since its
-- oldest was added, so that the oldest goes first.
-- +goose StatementBegin
CREATE FUNCTION collector_due(fresh integer, oldest timestamptz, retry timestamptz, held timestamptz, min_size integer,
    max_age interval, drain timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN fresh > 0 OR retry IS NOT NULL THEN greatest(held, least(retry,
        CASE WHEN fresh > 0 THEN CASE WHEN fresh >= min_size OR oldest <= drain THEN oldest ELSE oldest + max_age END END))
    END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION collector_due(integer, timestamptz, timestamptz, timestamptz, integer, interval, timestamptz);
DROP TABLE collector_seen, collector_op, collector_key, collector;
ALTER TABLE endpoint_pace DROP COLUMN call_tokens, DROP COLUMN call_tokens_at;
ALTER TABLE endpoint_setting DROP COLUMN call_rate;
