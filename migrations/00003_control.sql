-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again. Four tables are waited for.
SET LOCAL lock_timeout = '500ms';

-- Plans that people have put on record. A version is never changed and its number never used again; a deleted plan
-- keeps its rows for that.
CREATE TABLE plan (
    name       text        COLLATE "C" NOT NULL,
    version    integer     NOT NULL CHECK (version >= 1),
    spec       jsonb       NOT NULL,
    source     text        NOT NULL,            -- as it was handed in
    created_by text        NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz,
    PRIMARY KEY (name, version)
);

-- What nodes know and decide about the pace of an endpoint, over all runs. Every claim for the endpoint locks its row,
-- which makes limits over all runs and nodes exact. Heap-only updates need room.
CREATE TABLE endpoint_pace (
    endpoint        text             COLLATE "C" PRIMARY KEY,
    in_flight       integer          NOT NULL DEFAULT 16 CHECK (in_flight BETWEEN 1 AND 10000), -- of automatic steps
    rate            double precision CHECK (rate > 0),            -- items a second that throttling taught; null: none
    chunk           integer          CHECK (chunk BETWEEN 1 AND 8192),     -- learned, for automatic steps
    chunk_cap       integer          CHECK (chunk_cap BETWEEN 1 AND 8192), -- larger chunks fail as a whole
    chunk_cap_until timestamptz,
    learned         jsonb            NOT NULL DEFAULT '{}',       -- the controller's memory
    tokens          double precision NOT NULL DEFAULT 0,          -- of the rates over all runs
    tokens_at       timestamptz,
    breaker         text             NOT NULL DEFAULT 'closed' CHECK (breaker IN ('closed', 'open')),
    breaker_reason  text             NOT NULL DEFAULT '',
    breaker_since   timestamptz,                                  -- of its last change
    probes          integer          NOT NULL DEFAULT 0 CHECK (probes >= 0), -- since it opened
    probe_at        timestamptz,                                  -- when the next one may be sent
    probe_slice     uuid,                                         -- the last one
    trusted_until   timestamptz,                                  -- a probe was answered: large chunks do not open it
    changed_at      timestamptz      NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT endpoint_pace_cap CHECK ((chunk_cap IS NULL) = (chunk_cap_until IS NULL)),
    CONSTRAINT endpoint_pace_open CHECK (breaker = 'closed' OR (breaker_since IS NOT NULL AND probe_at IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);

-- Every change of the above, with its reason. The leader keeps the newest few hundred of each endpoint.
CREATE TABLE endpoint_change (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    endpoint text        COLLATE "C" NOT NULL,
    what     text        NOT NULL CHECK (what IN ('in_flight', 'rate', 'chunk', 'chunk_cap', 'breaker')),
    before   text        NOT NULL DEFAULT '',
    after    text        NOT NULL DEFAULT '',
    reason   text        NOT NULL
);
CREATE INDEX endpoint_change_endpoint ON endpoint_change (endpoint, id);

-- Limits of an endpoint over all runs and nodes; 0: none.
ALTER TABLE endpoint_setting
    ADD COLUMN max_in_flight integer          NOT NULL DEFAULT 0 CHECK (max_in_flight BETWEEN 0 AND 10000),
    ADD COLUMN rate          double precision NOT NULL DEFAULT 0 CHECK (rate >= 0);

-- An operator's action: what it was about when that is no run, and what it changed.
ALTER TABLE audit_log
    ADD COLUMN subject text NOT NULL DEFAULT '',
    ADD COLUMN before  jsonb,
    ADD COLUMN after   jsonb;

-- What nodes work on comes last, so that it is held for no longer than it takes: nothing below reads a table. It is
-- taken in the order in which nodes take it, lest they and this wait for each other.
LOCK TABLE run_step, work_slice, work_block, batchrun IN ACCESS EXCLUSIVE MODE;

-- A held run stays 'running': its slices end, and it may complete; nothing is claimed of it.
ALTER TABLE batchrun
    ADD COLUMN plan_version integer,
    ADD COLUMN hold         text CHECK (hold IN ('operator', 'threshold', 'canary')),
    ADD COLUMN hold_detail  text    NOT NULL DEFAULT '',
    ADD COLUMN held_at      timestamptz,
    ADD COLUMN held_by      text    NOT NULL DEFAULT '',
    ADD COLUMN max_failed   text    NOT NULL DEFAULT '',     -- as it was given: '', '500' or '1%'
    ADD COLUMN failed_limit bigint  CHECK (failed_limit >= 0), -- in items; null: none, or not sealed yet
    ADD COLUMN canary       integer NOT NULL DEFAULT 0 CHECK (canary >= 0),
    ADD COLUMN canary_auto  boolean NOT NULL DEFAULT false,
    ADD COLUMN canary_state text    CHECK (canary_state IN ('sampling', 'waiting', 'passed')),
    ADD COLUMN canary_generation integer CHECK (canary_generation >= 1), -- in which its sample was begun; null: none
    ADD CONSTRAINT batchrun_hold CHECK ((hold IS NULL) = (held_at IS NULL)) NOT VALID;

-- in_flight is the upper bound of an automatic step, and chunk that of an automatic chunk.
ALTER TABLE run_step
    ADD COLUMN in_flight_auto boolean          NOT NULL DEFAULT false,
    ADD COLUMN chunk_auto     boolean          NOT NULL DEFAULT false,
    ADD COLUMN chunk_bytes    integer          CHECK (chunk_bytes >= 1),
    ADD COLUMN chunk_time     interval         CHECK (chunk_time > interval '0'),
    ADD COLUMN rate           double precision CHECK (rate > 0), -- items a second
    ADD COLUMN tokens         double precision NOT NULL DEFAULT 0,
    ADD COLUMN tokens_at      timestamptz,
    ADD COLUMN max_backoff    interval         CHECK (max_backoff >= interval '0'),
    ADD COLUMN retry_codes    text[]           NOT NULL DEFAULT '{}', -- tried again whatever the service says
    ADD COLUMN never_retry    text[]           NOT NULL DEFAULT '{}'; -- and never

-- Items that a canary holds back: in no other plane and in no slice, so they count as waiting. Null: none.
ALTER TABLE work_block
    ADD COLUMN held bit(8192),
    ADD CONSTRAINT work_block_held CHECK (held IS NULL OR
        (((ready | done | failed) & held) = B'0'::bit(8192) AND (held << size) = B'0'::bit(8192))) NOT VALID;
ALTER TABLE work_block ALTER COLUMN held SET STORAGE PLAIN;

-- endpoint: where the slice is sent; null in old rows, then it is the step's. root: the cut that its items came from;
-- null: itself. took: seconds that the service worked on it, as it said.
ALTER TABLE work_slice
    ADD COLUMN endpoint text COLLATE "C",
    ADD COLUMN root     uuid,
    ADD COLUMN took     double precision,
    ADD CONSTRAINT work_slice_took CHECK (took >= 0) NOT VALID;

-- +goose Down
ALTER TABLE work_slice DROP COLUMN endpoint, DROP COLUMN root, DROP COLUMN took;
ALTER TABLE work_block DROP CONSTRAINT work_block_held, DROP COLUMN held;
ALTER TABLE run_step DROP COLUMN in_flight_auto, DROP COLUMN chunk_auto, DROP COLUMN chunk_bytes, DROP COLUMN chunk_time,
    DROP COLUMN rate, DROP COLUMN tokens, DROP COLUMN tokens_at, DROP COLUMN max_backoff, DROP COLUMN retry_codes,
    DROP COLUMN never_retry;
ALTER TABLE batchrun DROP CONSTRAINT batchrun_hold, DROP COLUMN plan_version, DROP COLUMN hold, DROP COLUMN hold_detail,
    DROP COLUMN held_at, DROP COLUMN held_by, DROP COLUMN max_failed, DROP COLUMN failed_limit, DROP COLUMN canary,
    DROP COLUMN canary_auto, DROP COLUMN canary_state, DROP COLUMN canary_generation;
ALTER TABLE audit_log DROP COLUMN subject, DROP COLUMN before, DROP COLUMN after;
ALTER TABLE endpoint_setting DROP COLUMN max_in_flight, DROP COLUMN rate;
DROP TABLE endpoint_change, endpoint_pace, plan;
