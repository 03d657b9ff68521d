-- +goose Up

-- A running orchestrator process. Its claims live as long as expires_at lies ahead (database time).
CREATE TABLE node_session (
    id           uuid        PRIMARY KEY,
    host         text        NOT NULL,
    pid          integer     NOT NULL,
    version      text        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    stats        jsonb       NOT NULL DEFAULT '{}'
);

-- One lease row. The epoch grows with every change of hands and is checked inside each leader transaction.
CREATE TABLE leader (
    name       text        PRIMARY KEY,
    epoch      bigint      NOT NULL,
    session_id uuid        NOT NULL,
    expires_at timestamptz NOT NULL
);

-- One row: which incarnation of the JetStream streams we publish to. The epoch grows when a stream was recreated.
CREATE TABLE pipe (
    name          text        PRIMARY KEY,
    epoch         bigint      NOT NULL,
    work_created  timestamptz NOT NULL,
    reply_created timestamptz NOT NULL
);

CREATE TABLE tracker_batch (
    id           uuid        PRIMARY KEY,
    owner        text        NOT NULL,
    state        text        NOT NULL CHECK (state IN ('open', 'sealed', 'completed', 'cancelled')),
    generation   integer     NOT NULL DEFAULT 1 CHECK (generation >= 1),
    groups       integer     NOT NULL DEFAULT 0 CHECK (groups >= 0),
    open_groups  integer     NOT NULL DEFAULT 0 CHECK (open_groups BETWEEN 0 AND groups),
    items        bigint      NOT NULL DEFAULT 0 CHECK (items >= 0),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    active_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    sealed_at    timestamptz,
    completed_at timestamptz,
    CHECK (state <> 'completed' OR open_groups = 0)
);

-- A set bit of pending is an item that nobody has acknowledged yet.
CREATE TABLE tracker_group (
    batch_id uuid      NOT NULL REFERENCES tracker_batch ON DELETE CASCADE,
    grp      integer   NOT NULL CHECK (grp >= 0),
    size     integer   NOT NULL CHECK (size BETWEEN 1 AND 8192),
    pending  bit(8192) NOT NULL,
    PRIMARY KEY (batch_id, grp),
    CONSTRAINT tracker_group_within_size CHECK ((pending << size) = B'0'::bit(8192))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE tracker_group ALTER COLUMN pending SET STORAGE PLAIN;

CREATE TABLE batchrun (
    id              uuid        PRIMARY KEY, -- version 7; also the id of its tracker batch
    name            text,
    plan            text        NOT NULL,
    spec            jsonb       NOT NULL,    -- the whole plan as the run started with it
    params          jsonb       NOT NULL DEFAULT '{}',
    state           text        NOT NULL CHECK (state IN ('loading', 'running', 'completed', 'cancelled')),
    generation      integer     NOT NULL DEFAULT 1 CHECK (generation >= 1),
    priority        integer     NOT NULL DEFAULT 0,
    items           bigint      NOT NULL DEFAULT 0 CHECK (items >= 0),
    skipped         bigint      NOT NULL DEFAULT 0 CHECK (skipped >= 0), -- duplicates left out at intake
    done            bigint,                                              -- set at completion
    failed          bigint,
    source          text        NOT NULL DEFAULT '',
    created_by      text        NOT NULL DEFAULT '',
    idempotency_key text        UNIQUE,
    loader_session  uuid,                    -- the session that fills the run while it is loading
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    sealed_at       timestamptz,
    started_at      timestamptz,             -- of the current generation
    finished_at     timestamptz,
    -- A count that is missing would make the sum unknown, and a CHECK lets the unknown pass.
    CHECK (state <> 'completed' OR (finished_at IS NOT NULL AND coalesce(done + failed = items, false)))
);
CREATE INDEX batchrun_active ON batchrun (priority DESC, id) WHERE state IN ('loading', 'running');
CREATE INDEX batchrun_unsealed ON batchrun (id) WHERE sealed_at IS NULL;
CREATE INDEX batchrun_name ON batchrun (name, id) WHERE name IS NOT NULL;

CREATE TABLE run_step (
    run_id        uuid     NOT NULL REFERENCES batchrun ON DELETE CASCADE,
    step          smallint NOT NULL CHECK (step >= 0),
    name          text     NOT NULL,
    kind          text     NOT NULL CHECK (kind IN ('endpoint')),
    endpoint      text     NOT NULL,
    chunk         integer  NOT NULL CHECK (chunk BETWEEN 1 AND 8192),
    in_flight     integer  NOT NULL CHECK (in_flight BETWEEN 1 AND 10000),
    max_attempts  integer  NOT NULL CHECK (max_attempts BETWEEN 1 AND 100),
    slice_timeout interval NOT NULL CHECK (slice_timeout > interval '0'),
    retry_backoff interval NOT NULL CHECK (retry_backoff >= interval '0'),
    PRIMARY KEY (run_id, step),
    UNIQUE (run_id, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);

-- Written once, by COPY, never updated. The key index is unique for runs that refuse duplicates: there twin is 0, in
-- runs that allow them it is the ordinal.
CREATE TABLE work_queue (
    run_id   uuid    NOT NULL,
    ordinal  integer NOT NULL,
    twin     integer NOT NULL DEFAULT 0,
    item_key text    COLLATE "C" NOT NULL,
    payload  text    COLLATE "C" NOT NULL, -- JSON, as it goes on the wire
    PRIMARY KEY (run_id, ordinal)
);
CREATE UNIQUE INDEX work_queue_key ON work_queue (run_id, item_key, twin);

-- The state of 8192 items of one step. Planes are always 8192 bits; the ones past size are 0. PLAIN storage keeps them
-- in the row, the fill factor leaves room for heap-only updates. has_ready changes seldom, so its index costs little.
CREATE TABLE work_block (
    run_id        uuid      NOT NULL,
    step          smallint  NOT NULL,
    block         integer   NOT NULL CHECK (block >= 0),
    size          integer   NOT NULL CHECK (size BETWEEN 1 AND 8192),
    payload_bytes bigint    NOT NULL DEFAULT 0,
    ready         bit(8192) NOT NULL,
    done          bit(8192) NOT NULL DEFAULT B'0'::bit(8192),
    failed        bit(8192) NOT NULL DEFAULT B'0'::bit(8192),
    has_ready     boolean   NOT NULL GENERATED ALWAYS AS (ready <> B'0'::bit(8192)) STORED,
    PRIMARY KEY (run_id, step, block),
    FOREIGN KEY (run_id, step) REFERENCES run_step ON DELETE CASCADE,
    CONSTRAINT work_block_disjoint CHECK (
        (ready & done) = B'0'::bit(8192) AND (ready & failed) = B'0'::bit(8192) AND (done & failed) = B'0'::bit(8192)),
    CONSTRAINT work_block_within_size CHECK (((ready | done | failed) << size) = B'0'::bit(8192))
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE work_block
    ALTER COLUMN ready SET STORAGE PLAIN,
    ALTER COLUMN done SET STORAGE PLAIN,
    ALTER COLUMN failed SET STORAGE PLAIN;
CREATE INDEX work_block_ready ON work_block (run_id, step, block) WHERE has_ready;

-- One attempt at one chunk. The id is random and is the fence of every write about the slice.
CREATE TABLE work_slice (
    id            uuid        PRIMARY KEY,
    run_id        uuid        NOT NULL,
    step          smallint    NOT NULL,
    block         integer     NOT NULL,
    generation    integer     NOT NULL CHECK (generation >= 1),
    mask          bit(8192)   NOT NULL,
    remaining     bit(8192)   NOT NULL,
    state         text        NOT NULL CHECK (state IN
        ('scheduled', 'claimed', 'sent', 'recorded', 'expired', 'split', 'cancelled')),
    attempt       integer     NOT NULL CHECK (attempt >= 1),  -- how often these items were issued, for any cause
    failures      integer     NOT NULL DEFAULT 0,             -- of those, how often they themselves were at fault
    cause         text        NOT NULL,                       -- why the slice was made: cut, retry, deadline, …
    parent        uuid,
    session_id    uuid,
    service       text,                                       -- who answered
    answered      integer,                                    -- slots that the final reply says were sent in all
    pipe_epoch    bigint,
    stream_seq    bigint,
    error_code    text,                                       -- what was wrong with the slice as a whole
    error_message text,
    error_retry   boolean,
    not_before    timestamptz NOT NULL DEFAULT clock_timestamp(),
    deadline      timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at       timestamptz,
    handed_at     timestamptz,                    -- seen to be in the hands of a service: the deadline counts from here
    ended_at      timestamptz,
    FOREIGN KEY (run_id, step, block) REFERENCES work_block ON DELETE CASCADE,
    CONSTRAINT work_slice_remaining CHECK ((remaining & ~mask) = B'0'::bit(8192)),
    CONSTRAINT work_slice_deadline CHECK (state NOT IN ('claimed', 'sent') OR deadline IS NOT NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE work_slice
    ALTER COLUMN mask SET STORAGE MAIN,
    ALTER COLUMN remaining SET STORAGE MAIN;
CREATE INDEX work_slice_block ON work_slice (run_id, step, block);
CREATE INDEX work_slice_live ON work_slice (run_id, step, state) WHERE state IN ('scheduled', 'claimed', 'sent');

-- An item's final outcome for one step in one generation. Insert-only: a re-run adds a row under a later generation, and
-- the newest row counts while the item's bit in work_block is set.
CREATE TABLE work_part (
    run_id        uuid     NOT NULL,
    slice_id      uuid     NOT NULL,
    ordinal       integer  NOT NULL,
    generation    integer  NOT NULL,
    step          smallint NOT NULL,
    result        bytea,
    content_type  text,                -- null: application/json
    error_code    text,
    error_message text,
    PRIMARY KEY (run_id, step, ordinal, generation),
    CONSTRAINT work_part_outcome CHECK ((result IS NULL) <> (error_code IS NULL))
);
CREATE INDEX work_part_error ON work_part (run_id, step, error_code, ordinal) WHERE error_code IS NOT NULL;

-- Error slots that were not final: the item was tried again. Together with work_part, the history of an item's attempts.
CREATE TABLE work_error (
    run_id        uuid        NOT NULL,
    step          smallint    NOT NULL,
    ordinal       integer     NOT NULL,
    slice_id      uuid        NOT NULL,
    error_code    text        NOT NULL,
    error_message text        NOT NULL,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, step, ordinal, slice_id)
);

-- Replies, or slots of replies, that could not be taken, with the reason.
CREATE TABLE quarantine (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason   text        NOT NULL,
    detail   text        NOT NULL,
    subject  text        NOT NULL,
    run_id   uuid,
    slice_id uuid,
    headers  jsonb       NOT NULL DEFAULT '{}',
    body     bytea       NOT NULL       -- the first 64 KiB
);

-- What happened to a run, published to tranche.event.> after the commit. One completion per generation.
CREATE TABLE run_event (
    id           uuid        PRIMARY KEY,
    run_id       uuid        NOT NULL,
    generation   integer     NOT NULL,
    kind         text        NOT NULL,
    payload      jsonb       NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz
);
CREATE UNIQUE INDEX run_event_completion ON run_event (run_id, generation) WHERE kind = 'completed';
CREATE INDEX run_event_unpublished ON run_event (at) WHERE published_at IS NULL;

CREATE TABLE audit_log (
    id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor  text        NOT NULL,
    action text        NOT NULL,
    run_id uuid,
    detail jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_log_run ON audit_log (run_id, id);

-- +goose Down
DROP TABLE audit_log, run_event, quarantine, work_error, work_part, work_slice, work_block, work_queue, run_step,
    batchrun, tracker_group, tracker_batch, pipe, leader, node_session;
