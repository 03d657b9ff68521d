-- +goose Up

CREATE TABLE batchrun (
    id                uuid        PRIMARY KEY, -- version 7: the newest last
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
    erased            integer     NOT NULL DEFAULT 0,
    done_by           timestamptz,
    gentle            boolean     NOT NULL DEFAULT false,
    at_risk           jsonb,
    schedule          text        COLLATE "C",
    namespace         text        COLLATE "C" NOT NULL DEFAULT 'default' REFERENCES namespace,
    -- A count that is missing would make the sum unknown, and a CHECK lets the unknown pass.
    CHECK (state <> 'completed' OR (finished_at IS NOT NULL AND coalesce(done + failed = items, false))),
    CONSTRAINT batchrun_idempotency_key_key UNIQUE (idempotency_key, namespace),
    CONSTRAINT batchrun_hold CHECK ((hold IS NULL) = (held_at IS NULL)),
    CONSTRAINT batchrun_from CHECK (from_run <> id),
    CONSTRAINT batchrun_accepted CHECK (accepted BETWEEN 0 AND coalesce(failed, 0))
);
CREATE INDEX batchrun_active ON batchrun (priority DESC, id) WHERE state IN ('loading', 'running');
-- Runs that are to be done by a time.
CREATE INDEX batchrun_done_by ON batchrun (done_by) WHERE state IN ('loading', 'running') AND done_by IS NOT NULL;
CREATE INDEX batchrun_unsealed ON batchrun (id) WHERE sealed_at IS NULL;
CREATE INDEX batchrun_name ON batchrun (name, id) WHERE name IS NOT NULL;
-- Which runs a plan has: the list of plans counts them without reading them.
CREATE INDEX batchrun_plan ON batchrun (plan, plan_version, state) WHERE plan_version IS NOT NULL;
-- Completed runs with failures that no one has accepted: what an operator is told to see to.
CREATE INDEX batchrun_failed ON batchrun (id) WHERE state = 'completed' AND failed > accepted;
-- What the leader looks at every second, among thousands of runs.
CREATE INDEX batchrun_limited ON batchrun (id)
    WHERE state = 'running' AND hold IS NULL AND (failed_limit IS NOT NULL OR canary_state = 'sampling');
-- Which runs carry a run on.
CREATE INDEX batchrun_from ON batchrun (from_run, id) WHERE from_run IS NOT NULL;
-- The runs of a schedule, and those of none: the list shows one line for each schedule.
CREATE INDEX batchrun_schedule ON batchrun (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX batchrun_unscheduled ON batchrun (id) WHERE schedule IS NULL;
-- The list of runs by name, items, failures and time; of those that have not completed, failures and time are counted.
CREATE INDEX batchrun_label ON batchrun (coalesce(name, plan), id);
CREATE INDEX batchrun_items ON batchrun (items, id);
CREATE INDEX batchrun_failures ON batchrun (failed, id) WHERE state = 'completed';
CREATE INDEX batchrun_time ON batchrun ((finished_at - coalesce(started_at, created_at)), id) WHERE state = 'completed';
-- The runs of some namespaces. Its condition keeps it from being used to find a run by id, see plane.PlanOnce.
CREATE INDEX batchrun_namespace ON batchrun (namespace, id) WHERE (state <> '') IS TRUE;
CREATE INDEX batchrun_uncompleted ON batchrun (id) WHERE state <> 'completed';

-- retention_size has the runs that ended before.
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
COMMENT ON FUNCTION namespace_bytes(text) IS 'Bytes that the runs of a namespace store, about.';

-- Starts in a namespace with a quota take turns: its row is locked until they commit. FOR NO KEY UPDATE goes with the
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
        RAISE EXCEPTION USING ERRCODE = 'TRQ01', MESSAGE = format('namespace %1$s may have %2$s runs that have not ended; '
            'wait until one ends, or raise the quota: tranche namespace set %1$s --max-runs N', quota.name,
            quota.max_runs);
    ELSIF used.items > quota.max_items THEN
        RAISE EXCEPTION USING ERRCODE = 'TRQ01', MESSAGE = format('namespace %1$s may have %2$s items in runs that have not '
            'ended, and these would be %3$s; wait until a run ends, or raise the quota: tranche namespace set %1$s '
            '--max-items N', quota.name, quota.max_items, used.items);
    ELSIF used.bytes > quota.max_bytes THEN
        RAISE EXCEPTION USING ERRCODE = 'TRQ01', MESSAGE = format('namespace %1$s may store %2$s bytes in its runs, and '
            'these would be %3$s; delete ended runs (tranche run delete), or raise the quota: tranche namespace set %1$s '
            '--max-bytes N', quota.name, quota.max_bytes, used.bytes);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION namespace_quota() IS 'Refuses a run, or items, beyond the quotas of the namespace.';
CREATE TRIGGER batchrun_quota AFTER INSERT ON batchrun FOR EACH ROW EXECUTE FUNCTION namespace_quota();
CREATE TRIGGER batchrun_items_quota AFTER UPDATE OF items ON batchrun FOR EACH ROW WHEN (NEW.items > OLD.items)
    EXECUTE FUNCTION namespace_quota();
CREATE TRIGGER batchrun_again_quota AFTER UPDATE OF state ON batchrun FOR EACH ROW
    WHEN (OLD.state IN ('completed', 'cancelled') AND NEW.state = 'running') EXECUTE FUNCTION namespace_quota();
COMMENT ON TABLE batchrun IS 'A batch run: one execution of a plan over a set of items.';
COMMENT ON COLUMN batchrun.id IS 'The run; also the id of its batch in tracker_batch. Later runs have greater ids.';
COMMENT ON COLUMN batchrun.name IS 'What people call it (run start --name); null: nothing.';
COMMENT ON COLUMN batchrun.plan IS 'Name of the plan.';
COMMENT ON COLUMN batchrun.plan_version IS
    'Version of the plan on record (table plan); null: the plan is on no record.';
COMMENT ON COLUMN batchrun.spec IS 'The whole plan, as the run started with it.';
COMMENT ON COLUMN batchrun.params IS 'Parameters that each request carries.';
COMMENT ON COLUMN batchrun.state IS
    'loading: items come in; running; completed: every item is done or failed; cancelled. A paused run is running, '
    'with a hold.';
COMMENT ON COLUMN batchrun.generation IS
    'How often the run was armed: 1 at its start, one more with each re-run or reset.';
COMMENT ON COLUMN batchrun.priority IS 'Runs of higher priority are worked on first.';
COMMENT ON COLUMN batchrun.items IS 'How many items it has.';
COMMENT ON COLUMN batchrun.skipped IS 'Duplicates that were left out as the items came in.';
COMMENT ON COLUMN batchrun.done IS 'Items that are done, set at completion; null: not completed.';
COMMENT ON COLUMN batchrun.failed IS 'Items that have failed, set at completion; null: not completed.';
COMMENT ON COLUMN batchrun.source IS 'Where the items came from: a file, a query, a stream.';
COMMENT ON COLUMN batchrun.created_by IS 'Who started it.';
COMMENT ON COLUMN batchrun.idempotency_key IS 'A start with the same key is the same run; null: none.';
COMMENT ON COLUMN batchrun.loader_session IS
    'The node that takes in the items while the run is loading (node_session.id).';
COMMENT ON COLUMN batchrun.created_at IS 'When it was made.';
COMMENT ON COLUMN batchrun.sealed_at IS 'When it had all of its items; null: more may come.';
COMMENT ON COLUMN batchrun.started_at IS 'When its present generation began.';
COMMENT ON COLUMN batchrun.finished_at IS 'When it was completed or cancelled, in this generation; null: not yet.';
COMMENT ON COLUMN batchrun.hold IS
    'Why it is paused, so that nothing more is claimed of it: operator, threshold (too many items failed), fail_fast '
    '(too many of its first outcomes failed) or canary (its sample waits for approval); null: it is not.';
COMMENT ON COLUMN batchrun.hold_detail IS 'Why it is paused, in words.';
COMMENT ON COLUMN batchrun.held_at IS 'Since when it is paused.';
COMMENT ON COLUMN batchrun.held_by IS 'Who paused it.';
COMMENT ON COLUMN batchrun.max_failed IS
    'How many items may fail before it pauses, as it was given: a number, a percentage, or empty for no limit.';
COMMENT ON COLUMN batchrun.failed_limit IS 'The same in items; null: no limit, or not known before the seal.';
COMMENT ON COLUMN batchrun.fail_fast IS
    'How many of its first outcomes at a step hold it when they fail with one code permanently, like 200/400; or off.';
COMMENT ON COLUMN batchrun.canary IS 'How many items go first, as a sample, while the others are held back; 0: none.';
COMMENT ON COLUMN batchrun.canary_auto_approve IS 'A sample that did well lets the others go without anybody''s approval.';
COMMENT ON COLUMN batchrun.canary_state IS 'sampling, waiting (for approval) or passed; null: there is no canary.';
COMMENT ON COLUMN batchrun.canary_generation IS 'The generation in which the sample began; null: none has.';
COMMENT ON COLUMN batchrun.opened IS
    'It was opened without items (run open), and takes them while it is worked on, until it is sealed.';
COMMENT ON COLUMN batchrun.seal_deadline IS 'When an open run should have been sealed.';
COMMENT ON COLUMN batchrun.overdue_at IS 'When it was reported that it was not sealed before its deadline; null: never.';
COMMENT ON COLUMN batchrun.on_overdue IS 'What is done then: report, seal or cancel.';
COMMENT ON COLUMN batchrun.on_duplicate IS
    'What becomes of a key that comes again: error (it is refused), skip or allow.';
COMMENT ON COLUMN batchrun.from_run IS
    'The earlier run that it carries on: its items are some of that one''s (run start --from); null: none.';
COMMENT ON COLUMN batchrun.erased IS
    'How often items of it were erased: a run that takes items of it while that is done is refused.';
COMMENT ON COLUMN batchrun.done_by IS 'When it is to have ended: its pace follows from that; null: whenever.';
COMMENT ON COLUMN batchrun.gentle IS 'No more of it is in flight than it needs to be done by then.';
COMMENT ON COLUMN batchrun.at_risk IS
    'Why it will not be done by then: since when that is known, when it will end, and what would help; null: it will.';
COMMENT ON COLUMN batchrun.schedule IS 'The schedule that started it; null: none.';
COMMENT ON COLUMN batchrun.namespace IS 'The namespace that owns it; it never changes.';
COMMENT ON COLUMN batchrun.accepted IS 'Of the failed items those whose failures are all accepted; 0: not completed.';

-- No foreign key refers to batchrun: a run's row is deleted first, and its steps last. Until then they keep out who
-- would begin something with it.
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
    -- Nothing passes a gate that no one has approved.
    CONSTRAINT run_step_approved CHECK (approval IS NULL OR barrier_passed = (approved_at IS NOT NULL)),
    CONSTRAINT run_step_gate CHECK (gate_since IS NULL OR (approval IS NOT NULL AND NOT barrier_passed)),
    CONSTRAINT run_step_kind CHECK (kind IN ('endpoint', 'direct', 'http', 'sql', 'local'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX run_step_barrier ON run_step (run_id) WHERE barrier AND NOT barrier_passed;
-- Whether an endpoint has steps whose limit is fixed at all, so that no one counts what is out of them.
CREATE INDEX run_step_fixed ON run_step ((endpoint COLLATE "C")) WHERE (NOT in_flight_auto) IS TRUE;
COMMENT ON TABLE run_step IS
    'A step of a run: one piece of work for each item. A run of several scatters its items to services and gathers '
    'what they return.';
COMMENT ON COLUMN run_step.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_step.step IS 'Number of the step, from 0 on; each comes after those that it needs.';
COMMENT ON COLUMN run_step.name IS 'Name of the step in the plan.';
COMMENT ON COLUMN run_step.kind IS
    'Who does it: endpoint (a service, over JetStream), direct (a service, over core NATS), http, sql or local (a '
    'Go function of the node).';
COMMENT ON COLUMN run_step.endpoint IS
    'The list-variant endpoint that is asked; of other kinds http:HOST, sql:SOURCE or local:FUNCTION. Pace and '
    'limits go by it.';
COMMENT ON COLUMN run_step.chunk IS 'Items in a request, at most.';
COMMENT ON COLUMN run_step.chunk_auto IS 'The size of chunks is found by trying; chunk is its upper bound.';
COMMENT ON COLUMN run_step.chunk_bytes IS 'Bytes of items in a request, about; null: no such limit.';
COMMENT ON COLUMN run_step.chunk_time IS
    'How long a request should take, for chunks whose size is found; null: the default.';
COMMENT ON COLUMN run_step.in_flight IS 'Requests in progress at once, at most.';
COMMENT ON COLUMN run_step.in_flight_auto IS
    'How many is found by trying, for the endpoint; in_flight is the upper bound.';
COMMENT ON COLUMN run_step.in_flight_cap IS
    'The same, as few as a gentle run needs to be done by its time (batchrun.done_by); null: in_flight alone counts.';
COMMENT ON COLUMN run_step.share IS
    'Of what it shares with other steps at its endpoint it gets so many times as much as one of share 1: a run that would '
    'be late for its time gets more.';
COMMENT ON COLUMN run_step.max_attempts IS 'How often an item is tried before it has failed.';
COMMENT ON COLUMN run_step.request_timeout IS 'How long a request may take, once a service has it in hand.';
COMMENT ON COLUMN run_step.retry_backoff IS 'Pause before the second attempt; it doubles with each further one.';
COMMENT ON COLUMN run_step.max_backoff IS 'The longest such pause; null: the default.';
COMMENT ON COLUMN run_step.max_result IS 'How many bytes a result may have; null: as many as are taken at all.';
COMMENT ON COLUMN run_step.retry_codes IS 'Error codes that are retried whatever the service says.';
COMMENT ON COLUMN run_step.no_retry_codes IS 'Error codes that are never retried.';
COMMENT ON COLUMN run_step.rate IS 'Items a second, at most; null: no limit.';
COMMENT ON COLUMN run_step.tokens IS 'What is left of the rate, in items.';
COMMENT ON COLUMN run_step.tokens_at IS 'When tokens was computed.';
COMMENT ON COLUMN run_step.needs IS 'Steps of the run that come before it, for each item.';
COMMENT ON COLUMN run_step.inputs IS 'Steps whose parts a request carries.';
COMMENT ON COLUMN run_step.input_item IS 'A request carries the payload of the item.';
COMMENT ON COLUMN run_step.optional IS 'What needs this step goes on when it has failed.';
COMMENT ON COLUMN run_step.barrier IS 'It begins for no item before what it needs has ended for all of them.';
COMMENT ON COLUMN run_step.barrier_passed IS 'The barrier has been passed.';
COMMENT ON COLUMN run_step.approval IS
    'Who has to approve before it passes its barrier: anyone, or other (not who has a part in the run); null: no one.';
COMMENT ON COLUMN run_step.gate_since IS
    'Since when it waits for that, all that it needs having ended; null: it does not.';
COMMENT ON COLUMN run_step.gate_closed_at IS
    'When it was shut again, because what it needs is made again; null: never.';
COMMENT ON COLUMN run_step.approved_at IS 'When it was approved; null: it is not.';
COMMENT ON COLUMN run_step.approved_by IS 'By whom; empty: it is not.';
COMMENT ON COLUMN run_step.config IS 'Settings of the kind: a URL, a query and the like.';

-- Written once, by COPY; a correction alone updates payloads (work_correction). The key index is unique for runs that
-- refuse duplicates: there key_ordinal is 0, in runs that allow them it is the ordinal.
CREATE TABLE work_queue (
    run_id   uuid    NOT NULL,
    ordinal  integer NOT NULL,
    key_ordinal integer NOT NULL DEFAULT 0,
    item_key text    COLLATE "C" NOT NULL,
    payload  text    COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, ordinal)
) PARTITION BY HASH (run_id);
COMMENT ON TABLE work_queue IS
    'The work queue: the items of all runs. Written once, but for payloads that are corrected; where an item is, is a '
    'bit in work_block, and run_item says it in words.';
COMMENT ON COLUMN work_queue.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_queue.ordinal IS 'Number of the item in its run, from 0 on.';
COMMENT ON COLUMN work_queue.key_ordinal IS '0; in runs that allow a key to come again the ordinal.';
COMMENT ON COLUMN work_queue.item_key IS 'Key of the item: the caller''s own id of it.';
COMMENT ON COLUMN work_queue.payload IS
    'What the item carries: JSON, as it goes on the wire. Those it had before are in work_correction.';

-- For forecasts of a plan's next run.
CREATE TABLE step_profile (
    plan     text        NOT NULL,
    step     text        NOT NULL,
    endpoint text        NOT NULL,
    at       timestamptz NOT NULL,
    cost     jsonb       NOT NULL,
    PRIMARY KEY (plan, step, endpoint)
);
COMMENT ON TABLE step_profile IS 'What requests of a plan''s step cost in its last completed run; it outlives the run.';
COMMENT ON COLUMN step_profile.plan IS 'The name of the plan.';
COMMENT ON COLUMN step_profile.step IS 'The name of the step.';
COMMENT ON COLUMN step_profile.endpoint IS 'What it asked.';
COMMENT ON COLUMN step_profile.at IS 'When that run completed.';
COMMENT ON COLUMN step_profile.cost IS 'Numbers: seconds of an item, their spread, the size of requests, retries, and so on.';

-- PLAIN storage keeps the planes in the row, the fill factor leaves room for heap-only updates. has_ready changes
-- seldom, so its index costs little.
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
-- The steps of an endpoint that have something ready, those with limits of their own and the others: the most urgent
-- first, then the oldest. Nodes look for work endpoint by endpoint. IS TRUE keeps this index and those of work_slice
-- like it to the statements that ask in the same words: among indexes that are as good for a while, as they are for a
-- table that is hardly filled, the planner takes any, and keeps to it.
CREATE INDEX work_block_turn ON work_block (endpoint, auto, turn, run_id, step)
    WHERE (has_ready AND endpoint IS NOT NULL) IS TRUE;
COMMENT ON TABLE work_block IS
    'Where 8192 items of a run are at one step: a bit for each item in each of several planes. An item that is in '
    'none of them is in flight while a live slice has it (work_slice.remaining), and else waits for another step.';
COMMENT ON COLUMN work_block.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_block.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_block.block IS
    'Number of the block, from 0 on: it has the items whose ordinals begin at 8192 times that.';
COMMENT ON COLUMN work_block.size IS 'How many items it has; bits past that are 0.';
COMMENT ON COLUMN work_block.payload_bytes IS 'Bytes of the payloads of its items.';
COMMENT ON COLUMN work_block.ready IS 'Items that may be claimed; the first bit is the first item.';
COMMENT ON COLUMN work_block.done IS 'Items that have a result.';
COMMENT ON COLUMN work_block.failed IS 'Items whose error is final.';
COMMENT ON COLUMN work_block.has_ready IS 'Whether any item is ready.';
COMMENT ON COLUMN work_block.held IS
    'Items that are held back, by a canary or in line behind another item; null: none.';
COMMENT ON COLUMN work_block.skipped IS
    'Items that are left out here, because a step that is needed has failed for them; null: none.';
COMMENT ON COLUMN work_block.result_bytes IS 'Bytes of the results in it, about.';
COMMENT ON COLUMN work_block.endpoint IS
    'Where its ready items are asked for; null: no one asks for them, or none has been ready yet.';
COMMENT ON COLUMN work_block.turn IS 'Minus the priority of the run, so that the most urgent come first.';
COMMENT ON COLUMN work_block.auto IS
    'The step leaves its limit in flight to what nodes find for the endpoint (run_step.in_flight_auto).';
COMMENT ON COLUMN work_block.accepted IS
    'Of the failed items those whose failure someone has accepted (run_acceptance); null: none.';

-- Fills in by whom a block is found, so that no one who makes or fills blocks can forget it.
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
COMMENT ON FUNCTION work_block_place() IS 'Trigger: fills in endpoint, turn and auto of a block of work.';

-- Insert-only: what is accepted now stands in work_block.accepted, and by whom in the newest row that has the item.
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
COMMENT ON TABLE run_acceptance IS
    'Who has accepted failures, and why: a row for each block of a step in which someone did, each time.';
COMMENT ON COLUMN run_acceptance.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_acceptance.step IS 'The step (run_step.step).';
COMMENT ON COLUMN run_acceptance.block IS 'The block (work_block.block).';
COMMENT ON COLUMN run_acceptance.id IS 'Later ones are greater.';
COMMENT ON COLUMN run_acceptance.at IS 'When.';
COMMENT ON COLUMN run_acceptance.actor IS 'Who.';
COMMENT ON COLUMN run_acceptance.reason IS 'Why.';
COMMENT ON COLUMN run_acceptance.items IS 'The items of the block that were accepted then.';

-- The id is random, and the fence of every write about the slice.
CREATE TABLE work_slice (
    id            uuid             PRIMARY KEY,
    run_id        uuid             NOT NULL,
    step          smallint         NOT NULL,
    block         integer          NOT NULL,
    generation    integer          NOT NULL CHECK (generation >= 1),
    mask          bit(8192)        NOT NULL,
    remaining     bit(8192)        NOT NULL,
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
    FOREIGN KEY (run_id, step, block) REFERENCES work_block ON DELETE CASCADE,
    CONSTRAINT work_slice_remaining CHECK ((remaining & ~mask) = B'0'::bit(8192)),
    CONSTRAINT work_slice_deadline CHECK (state NOT IN ('claimed', 'sent') OR deadline IS NOT NULL),
    CONSTRAINT work_slice_took CHECK (took >= 0 AND worked >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE work_slice
    ALTER COLUMN mask SET STORAGE MAIN,
    ALTER COLUMN remaining SET STORAGE MAIN;
CREATE INDEX work_slice_block ON work_slice (run_id, step, block);
CREATE INDEX work_slice_live ON work_slice (run_id, step, state) WHERE state IN ('scheduled', 'claimed', 'sent');
-- What waits for its time, of a step and at an endpoint.
CREATE INDEX work_slice_due ON work_slice (run_id, step, not_before) WHERE state = 'scheduled';
CREATE INDEX work_slice_waiting ON work_slice (endpoint, not_before, run_id, step)
    WHERE (state = 'scheduled') IS TRUE;
-- What is out there.
CREATE INDEX work_slice_busy ON work_slice (endpoint, run_id, step)
    WHERE (state IN ('claimed', 'sent')) IS TRUE;
-- What is in the streams, by where it lies: nodes look for requests that are lost.
CREATE INDEX work_slice_sent ON work_slice (stream_epoch, stream_seq) WHERE (state = 'sent') IS TRUE;
-- What is late. Each second someone looks, whatever is out.
CREATE INDEX work_slice_late ON work_slice (deadline)
    WHERE (state IN ('claimed', 'sent') AND deadline IS NOT NULL) IS TRUE;
-- What lately became of an endpoint's slices, newest first.
CREATE INDEX work_slice_ended ON work_slice (endpoint, ended_at) WHERE ended_at IS NOT NULL;
COMMENT ON TABLE work_slice IS 'An allocation: one attempt at one chunk of a block. A reissue is a slice of its own.';
COMMENT ON COLUMN work_slice.id IS 'The slice; also the message id of its request.';
COMMENT ON COLUMN work_slice.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_slice.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_slice.block IS 'The block (work_block.block).';
COMMENT ON COLUMN work_slice.generation IS 'Of the run, when it was made.';
COMMENT ON COLUMN work_slice.mask IS 'The items that it was made for, as bits of the block.';
COMMENT ON COLUMN work_slice.remaining IS
    'Those of them that it still has; of a live slice they are in flight, or wait to be retried.';
COMMENT ON COLUMN work_slice.state IS
    'scheduled: waits for its time; claimed: a node has it; sent: it is in the stream; recorded: answered; expired: '
    'given up, and reissued; split: cut in smaller ones; cancelled.';
COMMENT ON COLUMN work_slice.attempt IS 'How often these items were issued, for any cause, this time included.';
COMMENT ON COLUMN work_slice.failures IS 'Of those, how often they themselves were at fault.';
COMMENT ON COLUMN work_slice.cause IS
    'Why it was made: ready (from ready items), retry, deadline, session (its node is gone), bisect (half of a chunk '
    'that failed) and others.';
COMMENT ON COLUMN work_slice.parent IS 'The slice that it was made from; null: none.';
COMMENT ON COLUMN work_slice.session_id IS 'The node that claimed it (node_session.id).';
COMMENT ON COLUMN work_slice.service IS 'Who answered: name, version and instance; null: no one has.';
COMMENT ON COLUMN work_slice.answered IS 'Slots that were sent in all, as the final reply says; null: none has come.';
COMMENT ON COLUMN work_slice.stream_epoch IS 'Epoch of the streams (stream_epoch.epoch) in which it was sent.';
COMMENT ON COLUMN work_slice.stream_seq IS 'Its sequence in the work stream; null: not sent.';
COMMENT ON COLUMN work_slice.error_code IS
    'What was wrong with the chunk as a whole; null: nothing. Errors of single items are in work_result and work_error.';
COMMENT ON COLUMN work_slice.error_message IS 'The same in words.';
COMMENT ON COLUMN work_slice.error_retry IS 'Whether the service says that it may be retried.';
COMMENT ON COLUMN work_slice.not_before IS 'When it may be claimed, of one that is scheduled.';
COMMENT ON COLUMN work_slice.deadline IS 'When it is given up.';
COMMENT ON COLUMN work_slice.created_at IS 'When it was made.';
COMMENT ON COLUMN work_slice.sent_at IS 'When JetStream had it; null: not sent, or not known before its reply came.';
COMMENT ON COLUMN work_slice.delivered_at IS
    'When it was seen to be in the hands of a service; the deadline counts from here.';
COMMENT ON COLUMN work_slice.ended_at IS 'When it left the states scheduled, claimed and sent; null: it is live.';
COMMENT ON COLUMN work_slice.suspect IS
    'A piece of a chunk that was given up after too many deliveries, until a service has answered it: it may be what '
    'kills its services.';
COMMENT ON COLUMN work_slice.endpoint IS 'Where it was sent, or will be.';
COMMENT ON COLUMN work_slice.root IS 'The cut that its items came from; null: itself.';
COMMENT ON COLUMN work_slice.took IS 'Seconds that the service worked on it, as it says; null: not known.';
COMMENT ON COLUMN work_slice.worked IS
    'Seconds that a host or source took for all requests of it, without the waits of the node; null: another kind.';

-- Insert-only: a re-run adds a row under a later generation.
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
    'Outcomes: the slot of an item at one step in one generation, with its result or its error. The newest row of an '
    'item counts while the bit of the item is set in work_block.done or failed; one that was nulled out stays here '
    'as history.';
COMMENT ON COLUMN work_result.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_result.slice_id IS 'The slice that it was answered in (work_slice.id).';
COMMENT ON COLUMN work_result.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_result.generation IS 'Of the run, when it was recorded.';
COMMENT ON COLUMN work_result.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_result.result IS 'The result, in its own bytes; null: it is an error.';
COMMENT ON COLUMN work_result.content_type IS 'Of the result; null: application/json.';
COMMENT ON COLUMN work_result.error_code IS 'Error code of the slot; null: it is a result.';
COMMENT ON COLUMN work_result.error_message IS 'The error in words.';
COMMENT ON COLUMN work_result.error_keyed IS
    'Its beginning with {key} for the item''s own key, of which groups of like errors are made; null: it has no key.';

-- All partitions that there will ever be: who has made a run has chosen one by its id (workqueue.Partitions). A run that
-- has one for itself is deleted by emptying it. What is deleted in bulk from the others is to be vacuumed before a fifth
-- of a large table is dead.
-- +goose StatementBegin
DO $migration$
DECLARE
    part text;
BEGIN
    FOR n IN 0..31 LOOP
        FOREACH part IN ARRAY ARRAY['work_queue', 'work_result'] LOOP
            EXECUTE format('CREATE TABLE %s PARTITION OF %s FOR VALUES WITH (MODULUS 32, REMAINDER %s)
                WITH (autovacuum_vacuum_scale_factor = 0.05)', part || to_char(n, '"_"FM00'), part, n);
        END LOOP;
        -- With names of their own, which errors name.
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
    'Error slots that were not final: the item was retried. With work_result, what became of the attempts of an '
    'item.';
COMMENT ON COLUMN work_error.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_error.step IS 'The step (run_step.step).';
COMMENT ON COLUMN work_error.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_error.slice_id IS 'The slice that it was answered in (work_slice.id).';
COMMENT ON COLUMN work_error.error_code IS 'Error code of the slot.';
COMMENT ON COLUMN work_error.error_message IS 'The error in words.';
COMMENT ON COLUMN work_error.at IS 'When it was recorded.';

CREATE TABLE work_order (
    run_id  uuid    NOT NULL,
    ordinal integer NOT NULL,
    lane    bigint  NOT NULL,
    PRIMARY KEY (run_id, ordinal)
);
CREATE INDEX work_order_lane ON work_order (run_id, lane, ordinal);
COMMENT ON TABLE work_order IS 'Which lane an item stands in. Written with the items.';
COMMENT ON COLUMN work_order.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_order.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_order.lane IS 'The lane: a number that the value of the item has.';

-- It is made of joins that the planner takes apart: what a query asks for no column of is not read, so that counting the
-- states of a run reads its items and blocks, and no parts. For that each outer join stands on a unique index or has one
-- row by what it says, and its condition names no two tables that another one brings.
--
-- Block by block it finds everything by keys, whatever the planner knows of the tables: of a run that has just been loaded
-- it knows nothing for a minute, and would go through all items once for each. OFFSET 0 keeps it from that, and GROUP BY
-- does, which lets a condition on the key through. That one is to find its index, work_queue_key, although the planner
-- knows nothing: a pair in place of the upper bound has it expect many rows of a block, and a bound that every key is
-- above has it expect few of a key. Of a run of some 100,000 items it may read the block anyway.
--
-- m is worked out once for a block: what its live slices have, and what has ended at all steps that come before this one
-- (planeColumn.states of workqueue/inspect is the same in Go).
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
-- An aggregate over one row is one row, as the planner knows.
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
COMMENT ON VIEW run_item IS
    'The items of runs as they are: a row for each item at each step. Ask for one run: WHERE run_id = ''…''.';
COMMENT ON COLUMN run_item.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_item.ordinal IS 'Number of the item in its run, from 0 on.';
COMMENT ON COLUMN run_item.key IS 'Key of the item: the caller''s own id of it.';
COMMENT ON COLUMN run_item.step IS 'Number of the step, from 0 on.';
COMMENT ON COLUMN run_item.step_name IS 'Name of the step in the plan.';
COMMENT ON COLUMN run_item.state IS
    'Not started: waiting (for a step before, or to be loaded), held (by a canary, or in line), ready. In progress: '
    'in_flight, scheduled (an attempt was lost or failed: reissued at its time). Finished: done, failed, skipped '
    '(left out); stale is done, of parts that are being made again.';
COMMENT ON COLUMN run_item.generation IS 'Of the run, when the result or the error was recorded; null: there is none.';
COMMENT ON COLUMN run_item.attempts IS 'Attempts since it was last ready; of a finished item those that it took; 0: none.';
COMMENT ON COLUMN run_item.error_code IS 'Error code of its slot, when it has failed; null: it has not.';
COMMENT ON COLUMN run_item.error_message IS 'The error in words.';
COMMENT ON COLUMN run_item.endpoint IS
    'The list-variant endpoint that is asked; of other kinds http:HOST, sql:SOURCE or local:FUNCTION.';
COMMENT ON COLUMN run_item.service IS 'Who answered: name, version and instance; null: no one.';
COMMENT ON COLUMN run_item.host IS
    'Machine of the fetcher node that asked; null: none has, or its session is kept no longer.';
COMMENT ON COLUMN run_item.node_id IS 'That node (node_session.id).';
COMMENT ON COLUMN run_item.finished_at IS 'When the result or the error came; null: there is none.';
COMMENT ON COLUMN run_item.changed_at IS 'When it last moved, about.';
COMMENT ON COLUMN run_item.accepted IS 'It has failed, and someone has accepted that.';
COMMENT ON COLUMN run_item.lane IS
    'The lane that it stands in: the number of its partition, or a hash of its value; null: the run is in no order.';

-- +goose Down
DROP VIEW run_item;
DROP TABLE work_order, work_error, work_result, work_slice, run_acceptance, work_block, work_queue, step_profile, run_step,
    batchrun;
DROP FUNCTION work_block_place(), namespace_quota(), namespace_bytes(text);
