-- +goose Up

-- A version is never changed and its number never used again; a deleted plan keeps its rows for that.
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
COMMENT ON TABLE plan IS 'Plans that people have put on record, in versions.';
COMMENT ON COLUMN plan.name IS 'Name of the plan.';
COMMENT ON COLUMN plan.version IS 'Number of the version, from 1 on; never used again.';
COMMENT ON COLUMN plan.spec IS 'The plan, with all its settings.';
COMMENT ON COLUMN plan.source IS 'The plan as it was handed in.';
COMMENT ON COLUMN plan.created_by IS 'Who put it on record.';
COMMENT ON COLUMN plan.created_at IS 'When.';
COMMENT ON COLUMN plan.namespace IS 'The namespace that owns it: the same for all versions.';
COMMENT ON COLUMN plan.deleted_at IS 'When it was taken off the record; null: it was not.';

-- A row stays when a setting goes back to the default, so that nodes know to take it back from the endpoint's consumer.
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
-- Whatever makes a step, or a collector, or moves it to another endpoint.
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
                'another, or have an operator of the whole installation permit it: '
                'tranche endpoints set %1$s --namespaces %2$s,…', of.endpoint, owner);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION endpoint_namespaces() IS 'Refuses a step or collector at an endpoint that is for other namespaces.';
CREATE TRIGGER run_step_namespaces AFTER INSERT OR UPDATE OF endpoint ON run_step
    FOR EACH ROW EXECUTE FUNCTION endpoint_namespaces();
COMMENT ON TABLE endpoint_setting IS 'What operators have set for an endpoint, over all runs and nodes.';
COMMENT ON COLUMN endpoint_setting.endpoint IS 'The endpoint, or http:HOST, sql:SOURCE, local:FUNCTION.';
COMMENT ON COLUMN endpoint_setting.concurrency IS
    'Requests that each instance of the service works on at once; 0: as the service has it.';
COMMENT ON COLUMN endpoint_setting.changed_by IS 'Who changed it last.';
COMMENT ON COLUMN endpoint_setting.changed_at IS 'When it was changed last.';
COMMENT ON COLUMN endpoint_setting.max_in_flight IS 'Requests in progress at once, at most; 0: no limit.';
COMMENT ON COLUMN endpoint_setting.rate IS 'Items a second, at most; 0: no limit.';
COMMENT ON COLUMN endpoint_setting.namespaces IS 'Whose runs and collectors may use it; null: all.';
COMMENT ON COLUMN endpoint_setting.request_rate IS 'Requests a second, at most; 0: no limit.';
COMMENT ON COLUMN endpoint_setting.canary IS
    'Endpoint of a new version that gets a share of the requests; null: none was set.';
COMMENT ON COLUMN endpoint_setting.canary_share IS
    'Percent of runs'' requests for the canary; 0: none; 100: all, also retries.';
COMMENT ON COLUMN endpoint_setting.canary_has_listeners IS
    'Whether services listened on the canary at the last check; if not, it gets requests only at 100 percent.';
COMMENT ON COLUMN endpoint_setting.canary_since IS 'Start of the comparison.';

-- Every claim for the endpoint locks its row, which makes limits over all runs and nodes exact. Heap-only updates need
-- room.
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
COMMENT ON TABLE endpoint_pace IS 'What nodes have found out about how an endpoint is best asked, over all runs.';
COMMENT ON COLUMN endpoint_pace.endpoint IS 'The endpoint, or http:HOST, sql:SOURCE, local:FUNCTION.';
COMMENT ON COLUMN endpoint_pace.in_flight IS 'Requests in progress at once, at most, of steps that leave it to this.';
COMMENT ON COLUMN endpoint_pace.rate IS
    'Items a second that the endpoint takes, as it has shown by refusing more; null: it has not.';
COMMENT ON COLUMN endpoint_pace.chunk IS
    'Items in a request that get most done, for steps that leave it to this; null: not known yet.';
COMMENT ON COLUMN endpoint_pace.chunk_cap IS 'Larger chunks fail as a whole; null: no such size is known.';
COMMENT ON COLUMN endpoint_pace.chunk_cap_until IS 'Until when that holds.';
COMMENT ON COLUMN endpoint_pace.learned IS 'What the above was found out by.';
COMMENT ON COLUMN endpoint_pace.tokens IS 'What is left of the rates over all runs, in items.';
COMMENT ON COLUMN endpoint_pace.tokens_at IS 'When the tokens were computed.';
COMMENT ON COLUMN endpoint_pace.breaker IS
    'open: most requests failed, and only single items are sent, to see whether it is up again; closed: all is sent.';
COMMENT ON COLUMN endpoint_pace.breaker_reason IS 'Why it is as it is.';
COMMENT ON COLUMN endpoint_pace.breaker_since IS 'When it last changed.';
COMMENT ON COLUMN endpoint_pace.probes IS 'Items that were sent to see, since it opened.';
COMMENT ON COLUMN endpoint_pace.probe_at IS 'When the next one may be sent.';
COMMENT ON COLUMN endpoint_pace.probe_slice IS 'The last one (work_slice.id).';
COMMENT ON COLUMN endpoint_pace.breaker_suppressed_until IS
    'Until when failures of large chunks do not open it, since a probe was answered or an operator said so.';
COMMENT ON COLUMN endpoint_pace.changed_at IS 'When the row was changed last by what was found out.';
COMMENT ON COLUMN endpoint_pace.call_tokens IS 'What is left of endpoint_setting.request_rate, in requests.';
COMMENT ON COLUMN endpoint_pace.call_tokens_at IS 'When the tokens were computed.';

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
COMMENT ON TABLE endpoint_change IS
    'What changed by itself in endpoint_pace, and why: the newest 500 changes of each endpoint.';
COMMENT ON COLUMN endpoint_change.id IS 'Number of the row.';
COMMENT ON COLUMN endpoint_change.at IS 'When it changed.';
COMMENT ON COLUMN endpoint_change.endpoint IS 'The endpoint, or http:HOST, sql:SOURCE, local:FUNCTION.';
COMMENT ON COLUMN endpoint_change.what IS
    'The column of endpoint_pace; or cap, share: run_step.in_flight_cap and share of a run that is to be done by a time.';
COMMENT ON COLUMN endpoint_change.before IS 'What it was; empty: none.';
COMMENT ON COLUMN endpoint_change.after IS 'What it is since; empty: none.';
COMMENT ON COLUMN endpoint_change.reason IS 'Why, in words.';

CREATE TABLE health_condition (
    kind    text        NOT NULL,
    subject text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT tranche_now(),
    seen_at timestamptz NOT NULL DEFAULT tranche_now(),
    said    jsonb,
    PRIMARY KEY (kind, subject)
);
COMMENT ON TABLE health_condition IS
    'Since when something that a person should see to has been so, where nothing else tells it. What is over has no '
    'row.';
COMMENT ON COLUMN health_condition.kind IS 'What it is: a short code.';
COMMENT ON COLUMN health_condition.subject IS 'Of what: an endpoint, a run, a node.';
COMMENT ON COLUMN health_condition.since IS 'Since when.';
COMMENT ON COLUMN health_condition.seen_at IS 'When it was last seen to be so.';
COMMENT ON COLUMN health_condition.said IS
    'What a server says of itself that no other one can see; NULL: each sees it for itself.';

-- +goose Down
DROP TRIGGER run_step_namespaces ON run_step;
DROP TABLE health_condition, endpoint_change, endpoint_pace, endpoint_setting, plan;
DROP FUNCTION endpoint_namespaces();
