-- +goose Up

CREATE TABLE batchrun (
    id                uuid        PRIMARY KEY, -- version 7: in order of creation
    name              text,
    plan              text        NOT NULL,
    plan_version      integer,
    spec              jsonb       NOT NULL,
    params            jsonb       NOT NULL DEFAULT '{}',
    state             text        NOT NULL CHECK (state IN ('loading', 'running', 'completed', 'cancelled')),
    generation        integer     NOT NULL DEFAULT 1 CHECK (generation >= 1),
    priority          integer     NOT NULL DEFAULT 0,
    items             bigint      NOT NULL DEFAULT 0 CHECK (items >= 0),
    skipped           bigint      NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    done              bigint,
    failed            bigint,
    source            text        NOT NULL DEFAULT '',
    created_by        text        NOT NULL DEFAULT '',
    idempotency_key   text,
    loader_session    uuid,
    created_at        timestamptz NOT NULL DEFAULT tranche_now(),
    sealed_at         timestamptz,
    started_at        timestamptz,
    finished_at       timestamptz,
    hold              text        CHECK (hold IN ('operator', 'threshold', 'fail_fast', 'canary')),
    hold_detail       text        NOT NULL DEFAULT '',
    held_at           timestamptz,
    held_by           text        NOT NULL DEFAULT '',
    max_failed        text        NOT NULL DEFAULT '',
    fail_fast         text        NOT NULL DEFAULT 'off',
    failed_limit      bigint      CHECK (failed_limit >= 0),
    canary            integer     NOT NULL DEFAULT 0 CHECK (canary >= 0),
    canary_auto_approve boolean   NOT NULL DEFAULT false,
    canary_state      text        CHECK (canary_state IN ('sampling', 'waiting', 'passed')),
    canary_generation integer     CHECK (canary_generation >= 1),
    opened            boolean     NOT NULL DEFAULT false,
    seal_deadline           timestamptz,
    overdue_at        timestamptz,
    on_overdue        text        NOT NULL DEFAULT 'report' CHECK (on_overdue IN ('report', 'seal', 'cancel')),
    on_duplicate      text        NOT NULL DEFAULT 'error' CHECK (on_duplicate IN ('error', 'skip', 'allow')),
    accepted          bigint      NOT NULL DEFAULT 0,
    from_run          uuid,
    from_outcome      text        CHECK (from_outcome IN ('failed', 'missing')),
    erased            integer     NOT NULL DEFAULT 0,
    done_by           timestamptz,
    gentle            boolean     NOT NULL DEFAULT false,
    at_risk           jsonb,
    schedule          text        COLLATE "C",
    namespace         text        COLLATE "C" NOT NULL DEFAULT 'default' REFERENCES namespace,
    -- Without coalesce a missing count would make the sum null, which a CHECK accepts.
    CHECK (state <> 'completed' OR (finished_at IS NOT NULL AND coalesce(done + failed = items, false))),
    CONSTRAINT batchrun_idempotency_key_key UNIQUE (idempotency_key, namespace),
    CONSTRAINT batchrun_hold CHECK ((hold IS NULL) = (held_at IS NULL)),
    CONSTRAINT batchrun_from CHECK (from_run <> id),
    CONSTRAINT batchrun_accepted CHECK (accepted BETWEEN 0 AND coalesce(failed, 0))
);
CREATE INDEX batchrun_active ON batchrun (priority DESC, id) WHERE state IN ('loading', 'running');
-- Runs with a deadline.
CREATE INDEX batchrun_done_by ON batchrun (done_by) WHERE state IN ('loading', 'running') AND done_by IS NOT NULL;
CREATE INDEX batchrun_unsealed ON batchrun (id) WHERE sealed_at IS NULL;
CREATE INDEX batchrun_name ON batchrun (name, id) WHERE name IS NOT NULL;
-- Counts of runs per plan, by an index-only scan.
CREATE INDEX batchrun_plan ON batchrun (plan, plan_version, state) WHERE plan_version IS NOT NULL;
-- Completed runs with unaccepted failures, which operators should handle.
CREATE INDEX batchrun_failed ON batchrun (id) WHERE state = 'completed' AND failed > accepted;
-- Checked by the leader every second, among thousands of runs.
CREATE INDEX batchrun_limited ON batchrun (id)
    WHERE state = 'running' AND hold IS NULL AND (failed_limit IS NOT NULL OR canary_state = 'sampling');
-- Runs that continue a run.
CREATE INDEX batchrun_from ON batchrun (from_run, id) WHERE from_run IS NOT NULL;
-- Runs by schedule, and those without: the list shows one line per schedule.
CREATE INDEX batchrun_schedule ON batchrun (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX batchrun_unscheduled ON batchrun (id) WHERE schedule IS NULL;
-- Orders of the list of runs. Failures and times of uncompleted runs are computed.
CREATE INDEX batchrun_label ON batchrun (coalesce(name, plan), id);
CREATE INDEX batchrun_items ON batchrun (items, id);
CREATE INDEX batchrun_failures ON batchrun (failed, id) WHERE state = 'completed';
CREATE INDEX batchrun_time ON batchrun ((finished_at - coalesce(started_at, created_at)), id) WHERE state = 'completed';
-- Runs by namespace. The condition keeps the planner from using it to find a run by ID; see plane.PlanOnce.
CREATE INDEX batchrun_namespace ON batchrun (namespace, id) WHERE (state <> '') IS TRUE;
CREATE INDEX batchrun_uncompleted ON batchrun (id) WHERE state <> 'completed';

-- Sizes of runs that ended earlier are in retention_size.
-- +goose StatementBegin
CREATE FUNCTION namespace_bytes(owner text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(sum(coalesce(z.bytes, (
        SELECT sum(b.result_bytes) + sum(b.payload_bytes) FILTER (WHERE b.step = 0) FROM work_block b
        WHERE b.run_id = r.id), 0)), 0)
    FROM batchrun r LEFT JOIN retention_size z ON z.run_id = r.id AND z.generation = r.generation
    WHERE r.namespace = owner AND (r.state <> '') IS TRUE);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION namespace_bytes(text) IS 'Approximate bytes stored by the runs of a namespace.';

-- Starts in a namespace with a quota are serialized by a lock on its row. FOR NO KEY UPDATE does not conflict with
-- foreign keys.
-- +goose StatementBegin
CREATE FUNCTION namespace_quota() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    quota namespace;
    used  record;
BEGIN
    SELECT * INTO quota FROM namespace
    WHERE name = NEW.namespace AND num_nonnulls(max_runs, max_items, max_bytes) > 0 FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT count(*) AS runs, sum(items) AS items,
        CASE WHEN quota.max_bytes IS NOT NULL THEN namespace_bytes(quota.name) END AS bytes INTO used FROM batchrun
    WHERE state IN ('loading', 'running') AND namespace = NEW.namespace;
    IF used.runs > quota.max_runs THEN
        RAISE EXCEPTION USING ERRCODE = 'TRQ01', MESSAGE = format('namespace %1$s may have %2$s unfinished runs; '
            'wait until one ends, or raise the quota: tranche namespace set %1$s --max-runs N', quota.name,
            quota.max_runs);
    ELSIF used.items > quota.max_items THEN
        RAISE EXCEPTION USING ERRCODE = 'TRQ01', MESSAGE = format('namespace %1$s may have %2$s items in unfinished '
            'runs, and this would make %3$s; wait until a run ends, or raise the quota: tranche namespace set %1$s '
            '--max-items N', quota.name, quota.max_items, used.items);
    ELSIF used.bytes > quota.max_bytes THEN
        RAISE EXCEPTION USING ERRCODE = 'TRQ01', MESSAGE = format('namespace %1$s may store %2$s bytes in its runs, and '
            'this would make %3$s; delete ended runs (tranche run delete), or raise the quota: tranche namespace set %1$s '
            '--max-bytes N', quota.name, quota.max_bytes, used.bytes);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION namespace_quota() IS 'Trigger: refuses runs or items beyond the namespace''s quotas.';
CREATE TRIGGER batchrun_quota AFTER INSERT ON batchrun FOR EACH ROW EXECUTE FUNCTION namespace_quota();
CREATE TRIGGER batchrun_items_quota AFTER UPDATE OF items ON batchrun FOR EACH ROW WHEN (NEW.items > OLD.items)
    EXECUTE FUNCTION namespace_quota();
CREATE TRIGGER batchrun_again_quota AFTER UPDATE OF state ON batchrun FOR EACH ROW
    WHEN (OLD.state IN ('completed', 'cancelled') AND NEW.state = 'running') EXECUTE FUNCTION namespace_quota();
COMMENT ON TABLE batchrun IS 'A run: one execution of a plan over a set of items.';
COMMENT ON COLUMN batchrun.id IS 'The run; also the ID of its batch in tracker_batch. Later runs have greater IDs.';
COMMENT ON COLUMN batchrun.name IS 'Its name (run start --name); null: none.';
COMMENT ON COLUMN batchrun.plan IS 'Name of the plan.';
COMMENT ON COLUMN batchrun.plan_version IS 'Version of the saved plan (table plan); null: the plan was not saved.';
COMMENT ON COLUMN batchrun.spec IS 'The whole plan, as at the start of the run.';
COMMENT ON COLUMN batchrun.params IS 'Parameters sent with each request.';
COMMENT ON COLUMN batchrun.state IS
    'loading: items are being loaded; running; completed: every item is done or failed; cancelled. A paused run is '
    'running, with a hold.';
COMMENT ON COLUMN batchrun.generation IS '1 at the start, and one more with each rerun or reset.';
COMMENT ON COLUMN batchrun.priority IS 'Runs with a higher priority go first.';
COMMENT ON COLUMN batchrun.items IS 'Number of items.';
COMMENT ON COLUMN batchrun.skipped IS 'Number of duplicates skipped while loading.';
COMMENT ON COLUMN batchrun.done IS 'Number of items done, set at completion; null: not completed.';
COMMENT ON COLUMN batchrun.failed IS 'Number of items failed, set at completion; null: not completed.';
COMMENT ON COLUMN batchrun.source IS 'Where the items came from: a file, a query, a stream.';
COMMENT ON COLUMN batchrun.created_by IS 'Who started it.';
COMMENT ON COLUMN batchrun.idempotency_key IS 'A second start with this key returns this run; null: none.';
COMMENT ON COLUMN batchrun.loader_session IS 'The node that loads the items (node_session.id).';
COMMENT ON COLUMN batchrun.created_at IS 'When it was created.';
COMMENT ON COLUMN batchrun.sealed_at IS 'When it was sealed: all items had been added; null: not yet.';
COMMENT ON COLUMN batchrun.started_at IS 'Start of the current generation.';
COMMENT ON COLUMN batchrun.finished_at IS 'When the current generation was completed or cancelled; null: not yet.';
COMMENT ON COLUMN batchrun.hold IS
    'Why it is paused, so that no more of its items are claimed: operator, threshold (too many items failed), '
    'fail_fast (too many of its first outcomes failed) or canary (its sample waits for approval); null: not paused.';
COMMENT ON COLUMN batchrun.hold_detail IS 'The reason in words.';
COMMENT ON COLUMN batchrun.held_at IS 'When it was paused.';
COMMENT ON COLUMN batchrun.held_by IS 'Who paused it.';
COMMENT ON COLUMN batchrun.max_failed IS
    'How many items may fail before it pauses, as given: a number, a percentage, or empty for no limit.';
COMMENT ON COLUMN batchrun.failed_limit IS 'max_failed as a number of items; null: no limit, or not sealed yet.';
COMMENT ON COLUMN batchrun.fail_fast IS
    'The run is held when that share of its first outcomes at a step fails permanently with the same code: 200/400 is '
    '200 of 400. Or off.';
COMMENT ON COLUMN batchrun.canary IS 'Size of the sample that goes first, while the rest are held; 0: none.';
COMMENT ON COLUMN batchrun.canary_auto_approve IS 'Whether a successful sample needs no approval.';
COMMENT ON COLUMN batchrun.canary_state IS 'sampling, waiting (for approval) or passed; null: no canary.';
COMMENT ON COLUMN batchrun.canary_generation IS 'Generation of the sample; null: none.';
COMMENT ON COLUMN batchrun.opened IS
    'Whether it was opened without items (run open), to get them while it runs, until it is sealed.';
COMMENT ON COLUMN batchrun.seal_deadline IS 'When an open run should be sealed.';
COMMENT ON COLUMN batchrun.overdue_at IS 'When a missed seal deadline was reported; null: never.';
COMMENT ON COLUMN batchrun.on_overdue IS 'What happens after the seal deadline: report, seal or cancel.';
COMMENT ON COLUMN batchrun.on_duplicate IS 'What happens to a duplicate key: error, skip or allow.';
COMMENT ON COLUMN batchrun.from_run IS 'The earlier run whose items it continues (run start --from); null: none.';
COMMENT ON COLUMN batchrun.from_outcome IS 'Which of these items it took: failed or missing; null: both.';
COMMENT ON COLUMN batchrun.erased IS
    'Number of erasures in it. A start --from this run is refused if it overlaps with one, or a new generation.';
COMMENT ON COLUMN batchrun.done_by IS 'When it should be done; this sets its pace. Null: no deadline.';
COMMENT ON COLUMN batchrun.gentle IS 'Whether it keeps only as many requests in flight as done_by requires.';
COMMENT ON COLUMN batchrun.at_risk IS
    'Why it will miss done_by: since when that is known, when it will end, and what would help; null: it will not.';
COMMENT ON COLUMN batchrun.schedule IS 'The schedule that started it; null: none.';
COMMENT ON COLUMN batchrun.namespace IS 'The namespace that owns it. Never changes.';
COMMENT ON COLUMN batchrun.accepted IS 'Number of failed items whose failures are all accepted; 0 until completed.';

-- No foreign key refers to batchrun: a run's row is deleted first and its steps last. Until then, the steps block new
-- work on the run.
CREATE TABLE run_step (
    run_id         uuid             NOT NULL,
    step           smallint         NOT NULL CHECK (step >= 0),
    name           text             NOT NULL,
    kind           text             NOT NULL,
    endpoint       text             NOT NULL,
    chunk          integer          NOT NULL CHECK (chunk BETWEEN 1 AND 8192),
    chunk_auto     boolean          NOT NULL DEFAULT false,
    chunk_bytes    integer          CHECK (chunk_bytes >= 1),
    chunk_time     interval         CHECK (chunk_time > interval '0'),
    in_flight      integer          NOT NULL CHECK (in_flight BETWEEN 1 AND 10000),
    in_flight_auto boolean          NOT NULL DEFAULT false,
    in_flight_cap  integer          CHECK (in_flight_cap >= 1),
    share          smallint         NOT NULL DEFAULT 1 CHECK (share >= 1),
    max_attempts   integer          NOT NULL CHECK (max_attempts BETWEEN 1 AND 100),
    request_timeout  interval         NOT NULL CHECK (request_timeout > interval '0'),
    retry_backoff  interval         NOT NULL CHECK (retry_backoff >= interval '0'),
    max_backoff    interval         CHECK (max_backoff >= interval '0'),
    max_result     integer          CHECK (max_result > 0),
    retry_codes    text[]           NOT NULL DEFAULT '{}',
    no_retry_codes    text[]           NOT NULL DEFAULT '{}',
    rate           double precision CHECK (rate > 0),
    tokens         double precision NOT NULL DEFAULT 0,
    tokens_at      timestamptz,
    needs          smallint[]       NOT NULL DEFAULT '{}',
    inputs         smallint[]       NOT NULL DEFAULT '{}',
    input_item     boolean          NOT NULL DEFAULT true,
    optional       boolean          NOT NULL DEFAULT false,
    barrier        boolean          NOT NULL DEFAULT false,
    barrier_passed boolean          NOT NULL DEFAULT false,
    config         jsonb,
    approval       text             CHECK (approval IN ('anyone', 'other')),
    gate_since     timestamptz,
    gate_closed_at   timestamptz,
    approved_at    timestamptz,
    approved_by    text             NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, step),
    UNIQUE (run_id, name),
    -- A gate is passed only if approved.
    CONSTRAINT run_step_approved CHECK (approval IS NULL OR barrier_passed = (approved_at IS NOT NULL)),
    CONSTRAINT run_step_gate CHECK (gate_since IS NULL OR (approval IS NOT NULL AND NOT barrier_passed)),
    CONSTRAINT run_step_kind CHECK (kind IN ('endpoint', 'direct', 'http', 'sql', 'local'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX run_step_barrier ON run_step (run_id) WHERE barrier AND NOT barrier_passed;
-- Whether an endpoint has steps with a fixed limit; if not, their requests in flight need not be counted.
CREATE INDEX run_step_fixed ON run_step ((endpoint COLLATE "C")) WHERE (NOT in_flight_auto) IS TRUE;
COMMENT ON TABLE run_step IS 'A step of a run: one piece of work per item.';
COMMENT ON COLUMN run_step.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_step.step IS 'Number of the step, from 0; a step comes after those it needs.';
COMMENT ON COLUMN run_step.name IS 'Name of the step in the plan.';
COMMENT ON COLUMN run_step.kind IS
    'What does the work: endpoint (a service, over JetStream), direct (a service, over core NATS), http, sql or local '
    '(a Go function of the node).';
COMMENT ON COLUMN run_step.endpoint IS
    'The endpoint called; for other kinds http:HOST, sql:SOURCE or local:FUNCTION. Pace and limits apply per endpoint.';
COMMENT ON COLUMN run_step.chunk IS 'Maximum number of items in a request.';
COMMENT ON COLUMN run_step.chunk_auto IS 'Whether the chunk size is tuned automatically, up to chunk.';
COMMENT ON COLUMN run_step.chunk_bytes IS 'Approximate maximum of item bytes in a request; null: the node''s default.';
COMMENT ON COLUMN run_step.chunk_time IS 'Target duration of a request, for automatic chunk sizes; null: the default.';
COMMENT ON COLUMN run_step.in_flight IS 'Maximum number of requests in flight.';
COMMENT ON COLUMN run_step.in_flight_auto IS
    'Whether that number is tuned automatically per endpoint, up to in_flight.';
COMMENT ON COLUMN run_step.in_flight_cap IS
    'Reduced limit for a gentle run: as few as it needs to meet batchrun.done_by; null: only in_flight applies.';
COMMENT ON COLUMN run_step.share IS
    'Weight of the step when steps share an endpoint: it gets that multiple of one with share 1. Runs at risk '
    'of missing done_by get more.';
COMMENT ON COLUMN run_step.max_attempts IS 'Number of attempts before an item fails.';
COMMENT ON COLUMN run_step.request_timeout IS 'How long a request may take after its delivery to a service.';
COMMENT ON COLUMN run_step.retry_backoff IS 'Pause before the second attempt; it doubles with each further attempt.';
COMMENT ON COLUMN run_step.max_backoff IS 'Longest pause between attempts; null: the default.';
COMMENT ON COLUMN run_step.max_result IS 'Maximum size of a result in bytes; null: the global limit.';
COMMENT ON COLUMN run_step.retry_codes IS 'Error codes that are always retried, regardless of the service.';
COMMENT ON COLUMN run_step.no_retry_codes IS 'Error codes that are never retried.';
COMMENT ON COLUMN run_step.rate IS 'Maximum number of items per second; null: no limit.';
COMMENT ON COLUMN run_step.tokens IS 'Remaining rate budget, in items.';
COMMENT ON COLUMN run_step.tokens_at IS 'When tokens was computed.';
COMMENT ON COLUMN run_step.needs IS 'Steps that must finish first, per item.';
COMMENT ON COLUMN run_step.inputs IS 'Steps whose parts are sent in requests.';
COMMENT ON COLUMN run_step.input_item IS 'Whether requests contain the item''s payload.';
COMMENT ON COLUMN run_step.optional IS 'Whether dependent steps continue if this one failed.';
COMMENT ON COLUMN run_step.barrier IS 'Whether it begins only after the steps it needs have finished for all items.';
COMMENT ON COLUMN run_step.barrier_passed IS 'Whether the barrier has been passed.';
COMMENT ON COLUMN run_step.approval IS
    'Who must approve before it passes its barrier: anyone, or other (no one who had a part in the run); null: no one.';
COMMENT ON COLUMN run_step.gate_since IS 'Since when it has been ready except for the approval; null: not waiting.';
COMMENT ON COLUMN run_step.gate_closed_at IS
    'When it was closed again because a needed step is being rerun; null: never.';
COMMENT ON COLUMN run_step.approved_at IS 'When it was approved; null: not approved.';
COMMENT ON COLUMN run_step.approved_by IS 'Who approved it; empty: not approved.';
COMMENT ON COLUMN run_step.config IS 'Settings of the kind, such as a URL or a query.';

-- Written once, by COPY; only corrections update payloads (work_correction). key_ordinal is 0, which makes keys unique,
-- but the ordinal in runs that allow duplicate keys.
CREATE TABLE work_queue (
    run_id   uuid    NOT NULL,
    ordinal  integer NOT NULL,
    key_ordinal integer NOT NULL DEFAULT 0,
    item_key text    COLLATE "C" NOT NULL,
    payload  text    COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, ordinal)
) PARTITION BY HASH (run_id);
COMMENT ON TABLE work_queue IS
    'The items of all runs. Written once, except for corrected payloads. Their states are bits in work_block; '
    'run_item shows them readably.';
COMMENT ON COLUMN work_queue.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_queue.ordinal IS 'Number of the item in its run, from 0.';
COMMENT ON COLUMN work_queue.key_ordinal IS '0; the ordinal in runs that allow duplicate keys.';
COMMENT ON COLUMN work_queue.item_key IS 'Key of the item: the caller''s ID.';
COMMENT ON COLUMN work_queue.payload IS 'The item''s data as JSON, as sent. Earlier payloads are in work_correction.';

-- For forecasts of a plan's next run.
CREATE TABLE step_profile (
    plan     text        NOT NULL,
    step     text        NOT NULL,
    endpoint text        NOT NULL,
    at       timestamptz NOT NULL,
    cost     jsonb       NOT NULL,
    PRIMARY KEY (plan, step, endpoint)
);
COMMENT ON TABLE step_profile IS
    'Cost of a step''s requests in the plan''s last completed run. Kept after that run is deleted.';
COMMENT ON COLUMN step_profile.plan IS 'Name of the plan.';
COMMENT ON COLUMN step_profile.step IS 'Name of the step.';
COMMENT ON COLUMN step_profile.endpoint IS 'The endpoint called.';
COMMENT ON COLUMN step_profile.at IS 'When that run completed.';
COMMENT ON COLUMN step_profile.cost IS 'Seconds per item and their spread, size of requests, retries and so on.';

-- PLAIN storage keeps the planes in the row; the fill factor leaves room for heap-only updates. has_ready rarely
-- changes, so its index is cheap.
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
    held          bit(8192),
    skipped       bit(8192),
    result_bytes  bigint    NOT NULL DEFAULT 0,
    endpoint      text      COLLATE "C",
    turn          integer,
    auto          boolean,
    accepted      bit(8192),
    PRIMARY KEY (run_id, step, block),
    FOREIGN KEY (run_id, step) REFERENCES run_step ON DELETE CASCADE,
    CONSTRAINT work_block_disjoint CHECK (
        (ready & done) = B'0'::bit(8192) AND (ready & failed) = B'0'::bit(8192) AND (done & failed) = B'0'::bit(8192)),
    CONSTRAINT work_block_within_size CHECK (((ready | done | failed) << size) = B'0'::bit(8192)),
    CONSTRAINT work_block_held CHECK (held IS NULL OR
        (((ready | done | failed) & held) = B'0'::bit(8192) AND (held << size) = B'0'::bit(8192))),
    CONSTRAINT work_block_skipped CHECK (skipped IS NULL OR
        (((ready | done | failed | coalesce(held, B'0'::bit(8192))) & skipped) = B'0'::bit(8192)
         AND (skipped << size) = B'0'::bit(8192))),
    CONSTRAINT work_block_accepted CHECK (accepted IS NULL OR (accepted & ~failed) = B'0'::bit(8192))
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE work_block
    ALTER COLUMN ready SET STORAGE PLAIN,
    ALTER COLUMN done SET STORAGE PLAIN,
    ALTER COLUMN failed SET STORAGE PLAIN,
    ALTER COLUMN held SET STORAGE PLAIN,
    ALTER COLUMN skipped SET STORAGE PLAIN,
    ALTER COLUMN accepted SET STORAGE PLAIN;
CREATE INDEX work_block_ready ON work_block (run_id, step, block) WHERE has_ready;
-- Steps of an endpoint with ready items, with fixed limits and without: the most urgent first, then the oldest. Nodes
-- find work endpoint by endpoint. IS TRUE reserves this index, and similar ones of work_slice, for statements with
-- the same condition: while a table is nearly empty, several indexes look equally good, and the planner keeps its first
-- choice.
CREATE INDEX work_block_turn ON work_block (endpoint, auto, turn, run_id, step)
    WHERE (has_ready AND endpoint IS NOT NULL) IS TRUE;
COMMENT ON TABLE work_block IS
    'States of 8192 items of a run at one step, as bitmaps (planes). An item in none of them is in flight if a live '
    'slice contains it (work_slice.remaining), and otherwise waits for another step.';
COMMENT ON COLUMN work_block.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_block.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_block.block IS 'Number of the block, from 0. Its first ordinal is 8192 times that.';
COMMENT ON COLUMN work_block.size IS 'Number of items; further bits are 0.';
COMMENT ON COLUMN work_block.payload_bytes IS 'Bytes of its items'' payloads.';
COMMENT ON COLUMN work_block.ready IS 'Items that may be claimed; the first bit is the first item.';
COMMENT ON COLUMN work_block.done IS 'Items that have a result.';
COMMENT ON COLUMN work_block.failed IS 'Items whose error is final.';
COMMENT ON COLUMN work_block.has_ready IS 'Whether any item is ready.';
COMMENT ON COLUMN work_block.held IS 'Items held by a canary or behind another item of their lane; null: none.';
COMMENT ON COLUMN work_block.skipped IS 'Items left out here because a needed step failed for them; null: none.';
COMMENT ON COLUMN work_block.result_bytes IS 'Approximate bytes of its results.';
COMMENT ON COLUMN work_block.endpoint IS
    'Endpoint of the step, by which nodes find ready items; null: not searched, or none was ready yet.';
COMMENT ON COLUMN work_block.turn IS 'The negated priority of the run, so that the most urgent come first.';
COMMENT ON COLUMN work_block.auto IS 'Copy of run_step.in_flight_auto.';
COMMENT ON COLUMN work_block.accepted IS 'Failed items whose failure is accepted (run_acceptance); null: none.';

-- Sets the columns by which nodes find a block, wherever blocks are created or filled.
-- +goose StatementBegin
CREATE FUNCTION work_block_place() RETURNS trigger LANGUAGE plpgsql AS $f$
    BEGIN
        SELECT st.endpoint, -r.priority, st.in_flight_auto INTO NEW.endpoint, NEW.turn, NEW.auto
        FROM run_step st JOIN batchrun r ON r.id = st.run_id WHERE st.run_id = NEW.run_id AND st.step = NEW.step;
        RETURN NEW;
    END $f$;
-- +goose StatementEnd
CREATE TRIGGER work_block_place BEFORE INSERT OR UPDATE OF ready ON work_block
    FOR EACH ROW WHEN (NEW.endpoint IS NULL) EXECUTE FUNCTION work_block_place();
COMMENT ON FUNCTION work_block_place() IS 'Trigger: sets endpoint, turn and auto of a block.';

-- Insert-only. Currently accepted items are in work_block.accepted; the newest row with an item says who accepted it.
CREATE TABLE run_acceptance (
    run_id uuid        NOT NULL,
    step   smallint    NOT NULL,
    block  integer     NOT NULL,
    id     bigint      GENERATED ALWAYS AS IDENTITY,
    at     timestamptz NOT NULL,
    actor  text        NOT NULL,
    reason text        NOT NULL CHECK (reason <> ''),
    items  bit(8192)   NOT NULL CHECK (items <> B'0'::bit(8192)),
    PRIMARY KEY (run_id, step, block, id),
    FOREIGN KEY (run_id, step, block) REFERENCES work_block ON DELETE CASCADE
);
COMMENT ON TABLE run_acceptance IS 'Who accepted failures, and why: one row per block each time.';
COMMENT ON COLUMN run_acceptance.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_acceptance.step IS 'The step (run_step.step).';
COMMENT ON COLUMN run_acceptance.block IS 'The block (work_block.block).';
COMMENT ON COLUMN run_acceptance.id IS 'Row number; later rows are greater.';
COMMENT ON COLUMN run_acceptance.at IS 'When they were accepted.';
COMMENT ON COLUMN run_acceptance.actor IS 'Who accepted them.';
COMMENT ON COLUMN run_acceptance.reason IS 'The reason given.';
COMMENT ON COLUMN run_acceptance.items IS 'The accepted items, as bits of the block.';

-- The ID is random and fences every write about the slice.
CREATE TABLE work_slice (
    id            uuid             PRIMARY KEY,
    run_id        uuid             NOT NULL,
    step          smallint         NOT NULL,
    block         integer          NOT NULL,
    generation    integer          NOT NULL CHECK (generation >= 1),
    mask          bit(8192)        NOT NULL,
    remaining     bit(8192),
    state         text             NOT NULL CHECK (state IN
        ('scheduled', 'claimed', 'sent', 'recorded', 'expired', 'split', 'cancelled')),
    attempt       integer          NOT NULL CHECK (attempt >= 1),
    failures      integer          NOT NULL DEFAULT 0,
    cause         text             NOT NULL,
    parent        uuid,
    session_id    uuid,
    service       text,
    answered      integer,
    stream_epoch    bigint,
    stream_seq    bigint,
    error_code    text,
    error_message text,
    error_retry   boolean,
    not_before    timestamptz      NOT NULL DEFAULT tranche_now(),
    deadline      timestamptz,
    created_at    timestamptz      NOT NULL DEFAULT tranche_now(),
    sent_at       timestamptz,
    delivered_at     timestamptz,
    ended_at      timestamptz,
    suspect       boolean          NOT NULL DEFAULT false,
    endpoint      text             COLLATE "C",
    root          uuid,
    took          double precision,
    worked        double precision,
    done_items    integer          NOT NULL DEFAULT 0,
    failed_items  integer          NOT NULL DEFAULT 0,
    FOREIGN KEY (run_id, step, block) REFERENCES work_block ON DELETE CASCADE,
    CONSTRAINT work_slice_remaining CHECK ((remaining & ~mask) = B'0'::bit(8192)),
    CONSTRAINT work_slice_empty CHECK (remaining IS NOT NULL OR ended_at IS NOT NULL),
    CONSTRAINT work_slice_deadline CHECK (state NOT IN ('claimed', 'sent') OR deadline IS NOT NULL),
    CONSTRAINT work_slice_took CHECK (took >= 0 AND worked >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE work_slice
    ALTER COLUMN mask SET STORAGE MAIN,
    ALTER COLUMN remaining SET STORAGE MAIN,
    ALTER COLUMN endpoint SET STORAGE MAIN; -- else longer names are moved out, because of the masks, at each claim
CREATE INDEX work_slice_block ON work_slice (run_id, step, block);
CREATE INDEX work_slice_live ON work_slice (run_id, step, state) WHERE state IN ('scheduled', 'claimed', 'sent');
-- Scheduled slices, by step and by endpoint.
CREATE INDEX work_slice_due ON work_slice (run_id, step, not_before) WHERE state = 'scheduled';
CREATE INDEX work_slice_waiting ON work_slice (endpoint, not_before, run_id, step)
    WHERE (state = 'scheduled') IS TRUE;
-- Slices in flight.
CREATE INDEX work_slice_busy ON work_slice (endpoint, run_id, step)
    WHERE (state IN ('claimed', 'sent')) IS TRUE;
-- Sent slices by stream position, to find lost requests.
CREATE INDEX work_slice_sent ON work_slice (stream_epoch, stream_seq) WHERE (state = 'sent') IS TRUE;
-- Overdue slices. The leader checks each second, regardless of how many are in flight.
CREATE INDEX work_slice_late ON work_slice (deadline)
    WHERE (state IN ('claimed', 'sent') AND deadline IS NOT NULL) IS TRUE;
-- Recent outcomes of an endpoint's slices.
CREATE INDEX work_slice_ended ON work_slice (endpoint, ended_at) WHERE ended_at IS NOT NULL;
COMMENT ON TABLE work_slice IS 'One attempt at one chunk of a block. A reissue is a new slice.';
COMMENT ON COLUMN work_slice.id IS 'The slice; also the message ID of its request.';
COMMENT ON COLUMN work_slice.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_slice.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_slice.block IS 'The block (work_block.block).';
COMMENT ON COLUMN work_slice.generation IS 'The run''s generation when it was created.';
COMMENT ON COLUMN work_slice.mask IS 'Its items at creation, as bits of the block.';
COMMENT ON COLUMN work_slice.remaining IS
    'Items not yet answered; in a live slice they are in flight or wait to be retried. Null: none, so that ended slices '
    'are small.';
COMMENT ON COLUMN work_slice.state IS
    'scheduled: waits until not_before; claimed: a node has it; sent: it is in the stream; recorded: answered; '
    'expired: abandoned and reissued; split: cut into smaller ones; cancelled.';
COMMENT ON COLUMN work_slice.attempt IS
    'Number of times that these items were issued, for any cause, including this time.';
COMMENT ON COLUMN work_slice.failures IS 'Number of those attempts that failed because of the items.';
COMMENT ON COLUMN work_slice.cause IS
    'Why it was created: ready (from ready items), retry, deadline, session (its node is gone), bisect (half of a '
    'failed chunk) and others.';
COMMENT ON COLUMN work_slice.parent IS 'The slice it was created from; null: none.';
COMMENT ON COLUMN work_slice.session_id IS 'The node that claimed it (node_session.id).';
COMMENT ON COLUMN work_slice.service IS 'The service that answered: name, version and instance; null: none.';
COMMENT ON COLUMN work_slice.answered IS 'Total number of slots, as stated by the final reply; null: none received.';
COMMENT ON COLUMN work_slice.stream_epoch IS 'Epoch of the streams when it was sent (stream_epoch.epoch).';
COMMENT ON COLUMN work_slice.stream_seq IS 'Its sequence number in the work stream; null: not sent.';
COMMENT ON COLUMN work_slice.error_code IS
    'Error of the entire chunk; null: none. Errors of single items are in work_result and work_error.';
COMMENT ON COLUMN work_slice.error_message IS 'The error in words.';
COMMENT ON COLUMN work_slice.error_retry IS 'Whether the service allows a retry.';
COMMENT ON COLUMN work_slice.not_before IS 'When a scheduled slice may be claimed.';
COMMENT ON COLUMN work_slice.deadline IS 'When it expires.';
COMMENT ON COLUMN work_slice.created_at IS 'When it was created.';
COMMENT ON COLUMN work_slice.sent_at IS 'When JetStream confirmed it; null: not sent, or its reply came first.';
COMMENT ON COLUMN work_slice.delivered_at IS
    'When its delivery to a service was noticed; the deadline counts from here.';
COMMENT ON COLUMN work_slice.ended_at IS 'When it left the states scheduled, claimed and sent; null: live.';
COMMENT ON COLUMN work_slice.suspect IS
    'Whether it may crash services: part of a chunk that was abandoned after too many deliveries, until a service '
    'answers it.';
COMMENT ON COLUMN work_slice.endpoint IS 'Endpoint that it was or will be sent to.';
COMMENT ON COLUMN work_slice.root IS 'The slice in which its items were first claimed; null: itself.';
COMMENT ON COLUMN work_slice.took IS 'Seconds of work reported by the service; null: unknown.';
COMMENT ON COLUMN work_slice.worked IS
    'Seconds that an HTTP host or SQL source took for its requests, without waits in the node; null: other kinds.';
COMMENT ON COLUMN work_slice.done_items IS 'Number of items that got their result in it.';
COMMENT ON COLUMN work_slice.failed_items IS 'Number of items that failed permanently in it.';

-- Insert-only: a rerun adds a row with a later generation.
CREATE TABLE work_result (
    run_id        uuid     NOT NULL,
    slice_id      uuid     NOT NULL,
    ordinal       integer  NOT NULL,
    generation    integer  NOT NULL,
    step          smallint NOT NULL,
    result        bytea,
    content_type  text,
    error_code    text,
    error_message text,
    error_keyed   text,
    PRIMARY KEY (run_id, step, ordinal, generation),
    CONSTRAINT work_result_outcome CHECK ((result IS NULL) <> (error_code IS NULL))
) PARTITION BY HASH (run_id);
COMMENT ON TABLE work_result IS
    'Outcomes: the result or error of an item at one step in one generation. The newest row counts while the item''s '
    'bit is set in work_block.done or failed; earlier and discarded ones stay as history.';
COMMENT ON COLUMN work_result.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_result.slice_id IS 'The slice that was answered (work_slice.id).';
COMMENT ON COLUMN work_result.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_result.generation IS 'The run''s generation when it was recorded.';
COMMENT ON COLUMN work_result.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_result.result IS 'The result, unchanged; null: an error.';
COMMENT ON COLUMN work_result.content_type IS 'Type of the result; null: application/json.';
COMMENT ON COLUMN work_result.error_code IS 'Error code; null: a result.';
COMMENT ON COLUMN work_result.error_message IS 'The error in words.';
COMMENT ON COLUMN work_result.error_keyed IS
    'Beginning of the message with {key} in place of the item''s key, to group similar errors; null: it has no key.';

-- The number of partitions is fixed: a run's ID determines its partition (workqueue.Partitions). A run alone in a
-- partition is deleted by TRUNCATE. After bulk deletes in the rest, vacuum must not wait until a fifth of a large table
-- is dead.
-- +goose StatementBegin
DO $migration$
DECLARE
    part text;
BEGIN
    -- Values over 2 kB take a fraction of the time that PostgreSQL's own method takes. Partitions made below inherit it.
    BEGIN
        ALTER TABLE work_queue ALTER COLUMN payload SET COMPRESSION lz4;
        ALTER TABLE work_result ALTER COLUMN result SET COMPRESSION lz4;
    EXCEPTION WHEN feature_not_supported THEN
        NULL; -- this PostgreSQL was built without LZ4
    END;
    FOR n IN 0..31 LOOP
        FOREACH part IN ARRAY ARRAY['work_queue', 'work_result'] LOOP
            EXECUTE format('CREATE TABLE %s PARTITION OF %s FOR VALUES WITH (MODULUS 32, REMAINDER %s)
                WITH (autovacuum_vacuum_scale_factor = 0.05)', part || to_char(n, '"_"FM00'), part, n);
        END LOOP;
        -- Named explicitly, because errors mention the names.
        EXECUTE format('CREATE UNIQUE INDEX work_queue_%1$s_key ON work_queue_%1$s (run_id, item_key, key_ordinal)',
            to_char(n, 'FM00'));
        EXECUTE format('CREATE INDEX work_result_%1$s_error ON work_result_%1$s (run_id, step, error_code, ordinal)
            WHERE error_code IS NOT NULL', to_char(n, 'FM00'));
    END LOOP;
END
$migration$;
-- +goose StatementEnd
CREATE UNIQUE INDEX work_queue_key ON work_queue (run_id, item_key, key_ordinal);
CREATE INDEX work_result_error ON work_result (run_id, step, error_code, ordinal) WHERE error_code IS NOT NULL;

CREATE TABLE work_error (
    run_id        uuid        NOT NULL,
    step          smallint    NOT NULL,
    ordinal       integer     NOT NULL,
    slice_id      uuid        NOT NULL,
    error_code    text        NOT NULL,
    error_message text        NOT NULL,
    at            timestamptz NOT NULL DEFAULT tranche_now(),
    PRIMARY KEY (run_id, step, ordinal, slice_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE work_error IS
    'Errors of items that were retried. Together with work_result: the outcomes of all attempts.';
COMMENT ON COLUMN work_error.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_error.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_error.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_error.slice_id IS 'The slice that was answered (work_slice.id).';
COMMENT ON COLUMN work_error.error_code IS 'Error code.';
COMMENT ON COLUMN work_error.error_message IS 'The error in words.';
COMMENT ON COLUMN work_error.at IS 'When it was recorded.';

CREATE TABLE work_order (
    run_id  uuid    NOT NULL,
    ordinal integer NOT NULL,
    lane    bigint  NOT NULL,
    PRIMARY KEY (run_id, ordinal)
);
CREATE INDEX work_order_lane ON work_order (run_id, lane, ordinal);
COMMENT ON TABLE work_order IS 'The lane of each item. Written with the items.';
COMMENT ON COLUMN work_order.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_order.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_order.lane IS 'Number of the lane, from the item''s order_by value.';

-- The planner drops joins whose columns a query does not use, so that counting states reads items and blocks but no
-- parts. For that, each outer join is on a unique index or returns one row by definition, and its condition uses at
-- most one other outer-joined table.
--
-- It reads by keys, block by block, regardless of statistics: for a minute after loading there are no statistics, and
-- it would scan all items once per item. OFFSET 0 and GROUP BY prevent that; GROUP BY lets a condition on the key
-- through, for which the planner should use work_queue_key. The row comparison as upper bound makes it expect many rows
-- per block, and item_key >= '' few rows per key. For runs of about 100,000 items it may still read the block.
--
-- m is computed once per block: the items in live slices, and those finished at all earlier steps (in Go:
-- planeColumn.states of workqueue/inspect).
CREATE VIEW run_item AS
SELECT r.id AS run_id, i.ordinal, i.item_key AS key, st.step, st.name AS step_name,
    CASE WHEN get_bit(b.done, i.bit) = 1 THEN CASE WHEN get_bit(m.before, i.bit) = 0 THEN 'stale' ELSE 'done' END
        WHEN get_bit(b.failed, i.bit) = 1 THEN 'failed'
        WHEN get_bit(b.skipped, i.bit) = 1 THEN 'skipped'
        WHEN get_bit(b.ready, i.bit) = 1 THEN 'ready'
        WHEN get_bit(b.held, i.bit) = 1 THEN 'held'
        WHEN get_bit(m.in_flight, i.bit) = 1 THEN 'in_flight'
        WHEN get_bit(m.scheduled, i.bit) = 1 THEN 'scheduled'
        ELSE 'waiting' END AS state,
    p.generation,
    CASE WHEN get_bit(w.mask, i.bit) = 1 THEN w.attempt
        WHEN l.id IS NOT NULL THEN l.attempt - (l.state = 'scheduled')::integer
        ELSE 0 END AS attempts,
    p.error_code, p.error_message, coalesce(w.endpoint, l.endpoint, st.endpoint) AS endpoint, w.service,
    (SELECT n.host FROM node_session n WHERE n.id = coalesce(w.session_id, l.session_id)) AS host,
    coalesce(w.session_id, l.session_id) AS node_id,
    coalesce(w.ended_at, w.sent_at) AS finished_at,
    coalesce(w.ended_at, w.sent_at, l.sent_at, l.created_at, r.started_at) AS changed_at,
    coalesce(get_bit(b.accepted, i.bit) = 1, false) AS accepted,
    (SELECT o.lane FROM work_order o WHERE o.run_id = r.id AND o.ordinal = i.ordinal) AS lane
FROM batchrun r
JOIN run_step st ON st.run_id = r.id
CROSS JOIN LATERAL generate_series(0, ((r.items - 1) >> 13)::integer) k (block)
LEFT JOIN LATERAL (
    SELECT * FROM work_block o WHERE o.run_id = r.id AND o.step = st.step AND o.block = k.block OFFSET 0) b ON true
LEFT JOIN LATERAL (
    SELECT bit_or(x.remaining) FILTER (WHERE x.state <> 'scheduled') AS in_flight,
        bit_or(x.remaining) FILTER (WHERE x.state = 'scheduled') AS scheduled,
        (WITH RECURSIVE up (step) AS (
            SELECT unnest(s.needs) FROM run_step s WHERE s.run_id = b.run_id AND s.step = b.step
            UNION
            SELECT unnest(s.needs) FROM up JOIN run_step s ON s.run_id = b.run_id AND s.step = up.step)
        SELECT bit_and(a.done | a.failed | coalesce(a.skipped, B'0'::bit(8192)))
        FROM work_block a
        WHERE a.run_id = b.run_id AND a.block = b.block AND a.step IN (SELECT step FROM up)) AS before
    FROM work_slice x
    WHERE x.run_id = b.run_id AND x.step = b.step AND x.block = b.block AND x.state IN ('scheduled', 'claimed', 'sent')
    ) m ON true
JOIN LATERAL (
    SELECT q.run_id, q.ordinal, q.ordinal & 8191 AS bit, q.item_key FROM work_queue q
    WHERE q.run_id = r.id AND q.ordinal >= k.block << 13 AND (q.ordinal, q.key_ordinal) < ((k.block + 1) << 13, 0)
        AND q.item_key >= ''
    GROUP BY q.run_id, q.ordinal, q.item_key) i ON i.run_id = r.id
-- The planner knows that an aggregate without GROUP BY returns one row.
LEFT JOIN LATERAL (
    SELECT max(n.generation) AS generation, max(n.error_code) AS error_code, max(n.error_message) AS error_message,
        max(n.slice_id::text)::uuid AS slice_id
    FROM (
        SELECT x.generation, x.error_code, x.error_message, x.slice_id FROM work_result x
        WHERE x.run_id = r.id AND x.step = st.step AND x.ordinal = i.ordinal
            AND (get_bit(b.done, i.bit) = 1 OR get_bit(b.failed, i.bit) = 1)
        ORDER BY x.generation DESC LIMIT 1) n) p ON true
LEFT JOIN work_slice w ON w.id = p.slice_id
LEFT JOIN work_slice l ON l.id = CASE WHEN 1 IN (get_bit(m.in_flight, i.bit), get_bit(m.scheduled, i.bit)) THEN (
    SELECT x.id FROM work_slice x
    WHERE x.run_id = b.run_id AND x.step = b.step AND x.block = b.block AND x.state IN ('scheduled', 'claimed', 'sent')
        AND get_bit(x.remaining, i.bit) = 1
    LIMIT 1) END;
COMMENT ON VIEW run_item IS 'Current state of items: a row per item and step. Query one run: WHERE run_id = ''…''.';
COMMENT ON COLUMN run_item.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_item.ordinal IS 'Number of the item in its run, from 0.';
COMMENT ON COLUMN run_item.key IS 'Key of the item: the caller''s ID.';
COMMENT ON COLUMN run_item.step IS 'Number of the step, from 0.';
COMMENT ON COLUMN run_item.step_name IS 'Name of the step in the plan.';
COMMENT ON COLUMN run_item.state IS
    'Not started: waiting (for an earlier step or loading), held (by a canary or its lane), ready. In progress: '
    'in_flight, scheduled (to be retried or reissued). Finished: done, failed, skipped (left out), stale (done, but '
    'its inputs are being recomputed).';
COMMENT ON COLUMN run_item.generation IS 'The run''s generation when the result or error was recorded; null: none.';
COMMENT ON COLUMN run_item.attempts IS 'Number of attempts since it was last ready; if finished, in total; 0: none.';
COMMENT ON COLUMN run_item.error_code IS 'Error code; null: not failed.';
COMMENT ON COLUMN run_item.error_message IS 'The error in words.';
COMMENT ON COLUMN run_item.endpoint IS 'The endpoint called; for other kinds http:HOST, sql:SOURCE or local:FUNCTION.';
COMMENT ON COLUMN run_item.service IS 'The service that answered: name, version and instance; null: none.';
COMMENT ON COLUMN run_item.host IS 'Machine of the node that sent it; null: none, or its session was deleted.';
COMMENT ON COLUMN run_item.node_id IS 'That node (node_session.id).';
COMMENT ON COLUMN run_item.finished_at IS 'When the result or error came; null: none.';
COMMENT ON COLUMN run_item.changed_at IS 'Approximate time of its last change.';
COMMENT ON COLUMN run_item.accepted IS 'Whether it failed and the failure was accepted.';
COMMENT ON COLUMN run_item.lane IS
    'Its lane: the number of its partition, or a hash of its order_by value; null: the run is not ordered.';

-- +goose Down
DROP VIEW run_item;
DROP TABLE work_order, work_error, work_result, work_slice, run_acceptance, work_block, work_queue, step_profile, run_step,
    batchrun;
DROP FUNCTION work_block_place(), namespace_quota(), namespace_bytes(text);
