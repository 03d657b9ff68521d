-- +goose Up

-- Versions are immutable and their numbers never reused, so a deleted plan keeps its rows.
CREATE TABLE plan (
    name       text        COLLATE "C" NOT NULL,
    version    integer     NOT NULL CHECK (version >= 1),
    spec       jsonb       NOT NULL,
    source     text        NOT NULL,
    created_by text        NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT tranche_now(),
    deleted_at timestamptz,
    namespace  text        COLLATE "C" NOT NULL DEFAULT 'default' REFERENCES namespace,
    PRIMARY KEY (name, version)
);
COMMENT ON TABLE plan IS 'Saved plans, by version.';
COMMENT ON COLUMN plan.name IS 'Name of the plan.';
COMMENT ON COLUMN plan.version IS 'Number of the version, from 1; never reused.';
COMMENT ON COLUMN plan.spec IS 'The plan, with all its settings.';
COMMENT ON COLUMN plan.source IS 'The plan as submitted.';
COMMENT ON COLUMN plan.created_by IS 'Who saved it.';
COMMENT ON COLUMN plan.created_at IS 'When it was saved.';
COMMENT ON COLUMN plan.namespace IS 'The namespace that owns it, the same for all versions.';
COMMENT ON COLUMN plan.deleted_at IS 'When it was deleted; null: not deleted.';

-- A row stays when its settings return to the defaults, so that nodes reset the endpoint's consumer.
CREATE TABLE endpoint_setting (
    endpoint      text             COLLATE "C" PRIMARY KEY,
    concurrency   integer          NOT NULL DEFAULT 0 CHECK (concurrency BETWEEN 0 AND 1024),
    changed_by    text             NOT NULL DEFAULT '',
    changed_at    timestamptz      NOT NULL DEFAULT tranche_now(),
    max_in_flight integer          NOT NULL DEFAULT 0 CHECK (max_in_flight BETWEEN 0 AND 10000),
    rate          double precision NOT NULL DEFAULT 0 CHECK (rate >= 0),
    request_rate     double precision NOT NULL DEFAULT 0 CHECK (request_rate >= 0),
    namespaces    text[]           CHECK (namespaces <> '{}'),
    canary        text             COLLATE "C",
    canary_share  double precision NOT NULL DEFAULT 0 CHECK (canary_share BETWEEN 0 AND 100),
    canary_has_listeners boolean   NOT NULL DEFAULT false,
    canary_since  timestamptz,
    CONSTRAINT endpoint_setting_canary CHECK (canary <> endpoint AND (canary IS NOT NULL OR canary_share = 0)
        AND (canary IS NULL) = (canary_since IS NULL))
);
CREATE UNIQUE INDEX endpoint_setting_by_canary ON endpoint_setting (canary) WHERE canary_share = 100;
-- Runs when a step or collector is created or moved to another endpoint.
-- +goose StatementBegin
CREATE FUNCTION endpoint_namespaces() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    asked text[] := ARRAY[NEW.endpoint];
    owner text;
    of    record;
BEGIN
    IF TG_TABLE_NAME = 'collector' THEN
        asked := asked || (NEW.spec #>> '{enrich,endpoint}');
    END IF;
    FOR of IN SELECT e.endpoint, e.namespaces FROM endpoint_setting e
        WHERE e.endpoint = ANY (asked COLLATE "C") AND e.namespaces IS NOT NULL
    LOOP
        IF TG_TABLE_NAME = 'run_step' THEN
            SELECT namespace INTO owner FROM batchrun WHERE id = NEW.run_id;
        ELSE
            owner := NEW.namespace;
        END IF;
        IF (owner = ANY (of.namespaces)) IS NOT TRUE THEN
            RAISE EXCEPTION USING ERRCODE = 'TRQ02', MESSAGE = format('endpoint %1$s is not for namespace %2$s; use '
                'another, or ask an operator of the installation to allow it: '
                'tranche endpoints set %1$s --namespaces %2$s,…', of.endpoint, owner);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION endpoint_namespaces() IS
    'Trigger: refuses a step or collector at an endpoint reserved for other namespaces.';
CREATE TRIGGER run_step_namespaces AFTER INSERT OR UPDATE OF endpoint ON run_step
    FOR EACH ROW EXECUTE FUNCTION endpoint_namespaces();
COMMENT ON TABLE endpoint_setting IS 'Settings of endpoints by operators, for all runs and nodes.';
COMMENT ON COLUMN endpoint_setting.endpoint IS 'The endpoint, or http:HOST, sql:SOURCE, local:FUNCTION.';
COMMENT ON COLUMN endpoint_setting.concurrency IS
    'Concurrent requests in each instance of the service; 0: the service decides.';
COMMENT ON COLUMN endpoint_setting.changed_by IS 'Who last changed it.';
COMMENT ON COLUMN endpoint_setting.changed_at IS 'When it was last changed.';
COMMENT ON COLUMN endpoint_setting.max_in_flight IS 'Maximum number of requests in flight; 0: no limit.';
COMMENT ON COLUMN endpoint_setting.rate IS 'Maximum number of items per second; 0: no limit.';
COMMENT ON COLUMN endpoint_setting.namespaces IS 'The namespaces whose runs and collectors may use it; null: all.';
COMMENT ON COLUMN endpoint_setting.request_rate IS 'Maximum number of requests per second; 0: no limit.';
COMMENT ON COLUMN endpoint_setting.canary IS
    'Endpoint of a new version that gets a share of the requests; null: never set.';
COMMENT ON COLUMN endpoint_setting.canary_share IS
    'Percentage of runs'' requests for the canary; 0: none; 100: all, including retries.';
COMMENT ON COLUMN endpoint_setting.canary_has_listeners IS
    'Whether services listened on the canary at the last check; if not, it gets requests only at 100 percent.';
COMMENT ON COLUMN endpoint_setting.canary_since IS 'Start of the comparison.';

-- Each claim for the endpoint locks its row, so that limits over all runs and nodes are exact. The fill factor leaves
-- room for heap-only updates.
CREATE TABLE endpoint_pace (
    endpoint        text             COLLATE "C" PRIMARY KEY,
    in_flight       integer          NOT NULL DEFAULT 16 CHECK (in_flight BETWEEN 1 AND 10000),
    rate            double precision CHECK (rate > 0),
    chunk           integer          CHECK (chunk BETWEEN 1 AND 8192),
    chunk_cap       integer          CHECK (chunk_cap BETWEEN 1 AND 8192),
    chunk_cap_until timestamptz,
    learned         jsonb            NOT NULL DEFAULT '{}',
    tokens          double precision NOT NULL DEFAULT 0,
    tokens_at       timestamptz,
    breaker         text             NOT NULL DEFAULT 'closed' CHECK (breaker IN ('closed', 'open')),
    breaker_reason  text             NOT NULL DEFAULT '',
    breaker_since   timestamptz,
    probes          integer          NOT NULL DEFAULT 0 CHECK (probes >= 0),
    probe_at        timestamptz,
    probe_slice     uuid,
    breaker_suppressed_until   timestamptz,
    changed_at      timestamptz      NOT NULL DEFAULT tranche_now(),
    call_tokens     double precision NOT NULL DEFAULT 0,
    call_tokens_at  timestamptz,
    CONSTRAINT endpoint_pace_cap CHECK ((chunk_cap IS NULL) = (chunk_cap_until IS NULL)),
    CONSTRAINT endpoint_pace_open CHECK (breaker = 'closed' OR (breaker_since IS NOT NULL AND probe_at IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
COMMENT ON TABLE endpoint_pace IS 'What nodes have learned about each endpoint, over all runs.';
COMMENT ON COLUMN endpoint_pace.endpoint IS 'The endpoint, or http:HOST, sql:SOURCE, local:FUNCTION.';
COMMENT ON COLUMN endpoint_pace.in_flight IS 'Maximum number of requests in flight, for steps with an automatic limit.';
COMMENT ON COLUMN endpoint_pace.rate IS
    'Items per second that the endpoint accepts, learned when it refused more; null: unknown.';
COMMENT ON COLUMN endpoint_pace.chunk IS
    'Most efficient number of items in a request, for steps with automatic chunks; null: unknown.';
COMMENT ON COLUMN endpoint_pace.chunk_cap IS 'Larger chunks fail entirely; null: no such size is known.';
COMMENT ON COLUMN endpoint_pace.chunk_cap_until IS 'When chunk_cap expires.';
COMMENT ON COLUMN endpoint_pace.learned IS 'Data from which the values above were learned.';
COMMENT ON COLUMN endpoint_pace.tokens IS 'Remaining budget of the rates over all runs, in items.';
COMMENT ON COLUMN endpoint_pace.tokens_at IS 'When tokens was computed.';
COMMENT ON COLUMN endpoint_pace.breaker IS
    'open: most requests failed, and only single items are sent as probes; closed: everything is sent.';
COMMENT ON COLUMN endpoint_pace.breaker_reason IS 'Why the breaker is in this state.';
COMMENT ON COLUMN endpoint_pace.breaker_since IS 'When its state last changed.';
COMMENT ON COLUMN endpoint_pace.probes IS 'Number of probes since it opened.';
COMMENT ON COLUMN endpoint_pace.probe_at IS 'When the next probe may be sent.';
COMMENT ON COLUMN endpoint_pace.probe_slice IS 'The last probe (work_slice.id).';
COMMENT ON COLUMN endpoint_pace.breaker_suppressed_until IS
    'Until then, failures of large chunks do not open the breaker, because a probe was answered or an operator closed '
    'it.';
COMMENT ON COLUMN endpoint_pace.changed_at IS 'When learning last changed the row.';
COMMENT ON COLUMN endpoint_pace.call_tokens IS 'Remaining budget of endpoint_setting.request_rate, in requests.';
COMMENT ON COLUMN endpoint_pace.call_tokens_at IS 'When call_tokens was computed.';

CREATE TABLE endpoint_change (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT tranche_now(),
    endpoint text        COLLATE "C" NOT NULL,
    what     text        NOT NULL CHECK (what IN ('in_flight', 'rate', 'chunk', 'chunk_cap', 'breaker', 'cap', 'share')),
    before   text        NOT NULL DEFAULT '',
    after    text        NOT NULL DEFAULT '',
    reason   text        NOT NULL
);
CREATE INDEX endpoint_change_endpoint ON endpoint_change (endpoint, id);
COMMENT ON TABLE endpoint_change IS 'Automatic changes of endpoint_pace, with reasons: the newest 500 per endpoint.';
COMMENT ON COLUMN endpoint_change.id IS 'Row number.';
COMMENT ON COLUMN endpoint_change.at IS 'When it changed.';
COMMENT ON COLUMN endpoint_change.endpoint IS 'The endpoint, or http:HOST, sql:SOURCE, local:FUNCTION.';
COMMENT ON COLUMN endpoint_change.what IS
    'The column of endpoint_pace; or cap or share: run_step.in_flight_cap or share of a run with a deadline.';
COMMENT ON COLUMN endpoint_change.before IS 'The old value; empty: none.';
COMMENT ON COLUMN endpoint_change.after IS 'The new value; empty: none.';
COMMENT ON COLUMN endpoint_change.reason IS 'The reason in words.';

CREATE TABLE health_condition (
    kind    text        NOT NULL,
    subject text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT tranche_now(),
    seen_at timestamptz NOT NULL DEFAULT tranche_now(),
    said    jsonb,
    PRIMARY KEY (kind, subject)
);
COMMENT ON TABLE health_condition IS 'Start times of current conditions that need a person, if not stored elsewhere.';
COMMENT ON COLUMN health_condition.kind IS 'Kind of the condition.';
COMMENT ON COLUMN health_condition.subject IS 'Its subject: an endpoint, a run or a node.';
COMMENT ON COLUMN health_condition.since IS 'When it began.';
COMMENT ON COLUMN health_condition.seen_at IS 'When it was last observed.';
COMMENT ON COLUMN health_condition.said IS
    'Details reported by one server, if no other can observe them; null: every server can.';

-- +goose Down
DROP TRIGGER run_step_namespaces ON run_step;
DROP TABLE health_condition, endpoint_change, endpoint_pace, endpoint_setting, plan;
DROP FUNCTION endpoint_namespaces();
