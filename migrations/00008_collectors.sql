-- +goose Up

-- What a flush needs of its definition stands in columns beside it.
CREATE TABLE collector (
    id                  integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                text        COLLATE "C" NOT NULL,
    run_id              uuid        NOT NULL,
    version             integer     NOT NULL DEFAULT 1 CHECK (version >= 1),
    key_version         integer     NOT NULL DEFAULT 1 CHECK (key_version >= 1),
    drained_key_version integer     NOT NULL DEFAULT 1 CHECK (drained_key_version <= key_version),
    timed               integer     NOT NULL DEFAULT 1,
    timing              integer     NOT NULL DEFAULT 1,
    state               text        NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'deleting')),
    spec                jsonb       NOT NULL,
    source              text        NOT NULL,
    endpoint            text        COLLATE "C" NOT NULL,
    min_size            integer     NOT NULL CHECK (min_size BETWEEN 1 AND 8192),
    max_size            integer     NOT NULL CHECK (max_size BETWEEN 1 AND 8192),
    max_age             interval    NOT NULL CHECK (max_age >= interval '0'),
    in_flight           integer     NOT NULL CHECK (in_flight BETWEEN 1 AND 1024),
    rate                double precision CHECK (rate > 0),
    timeout             interval    NOT NULL CHECK (timeout > interval '0'),
    dedupe              interval    NOT NULL CHECK (dedupe >= interval '0'),
    strict              boolean     NOT NULL,
    levels              smallint    NOT NULL DEFAULT 0 CHECK (levels IN (0, 9)),
    drain_at            timestamptz,
    tokens              double precision NOT NULL DEFAULT 0,
    tokens_at           timestamptz,
    failures            integer     NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failed_at           timestamptz,
    failure_code        text        NOT NULL DEFAULT '',
    failure_message     text        NOT NULL DEFAULT '',
    backoff_until       timestamptz,
    last_success_at     timestamptz,
    refused_since       timestamptz,
    refused_at          timestamptz,
    refused_for         text        NOT NULL DEFAULT '',
    created_by          text        NOT NULL DEFAULT '',
    created_at          timestamptz NOT NULL DEFAULT tranche_now(),
    changed_by          text        NOT NULL DEFAULT '',
    changed_at          timestamptz NOT NULL DEFAULT tranche_now(),
    paused_by           text        NOT NULL DEFAULT '',
    paused_at           timestamptz,
    namespace           text        COLLATE "C" NOT NULL DEFAULT 'default' REFERENCES namespace
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX collector_name ON collector (name) WHERE state <> 'deleting';
CREATE INDEX collector_endpoint ON collector (endpoint);
CREATE TRIGGER collector_namespaces AFTER INSERT OR UPDATE OF endpoint, spec ON collector
    FOR EACH ROW EXECUTE FUNCTION endpoint_namespaces();
COMMENT ON TABLE collector IS 'Collectors: they gather operations by a key, and flush them in lists to an endpoint.';
COMMENT ON COLUMN collector.id IS 'The collector.';
COMMENT ON COLUMN collector.name IS 'Its name.';
COMMENT ON COLUMN collector.run_id IS 'What its requests carry as their run; there is no such batch run.';
COMMENT ON COLUMN collector.version IS 'One more with each change of its definition.';
COMMENT ON COLUMN collector.key_version IS
    'One more each time that keys are made in another way; older keys keep the old number.';
COMMENT ON COLUMN collector.drained_key_version IS 'No key of an older key version than this has anything that waits.';
COMMENT ON COLUMN collector.timed IS 'The timing by which the times of its keys are set.';
COMMENT ON COLUMN collector.timing IS 'One more each time that they must be set again.';
COMMENT ON COLUMN collector.state IS 'active, paused or deleting.';
COMMENT ON COLUMN collector.spec IS 'Its definition, with all its settings.';
COMMENT ON COLUMN collector.source IS 'Its definition as it was handed in.';
COMMENT ON COLUMN collector.endpoint IS 'The list-variant endpoint that it flushes to.';
COMMENT ON COLUMN collector.min_size IS 'A key is flushed when it has so many operations,';
COMMENT ON COLUMN collector.max_age IS 'or when its oldest operation is so old.';
COMMENT ON COLUMN collector.max_size IS 'Operations in a flush, at most.';
COMMENT ON COLUMN collector.in_flight IS 'Flushes in progress at once, at most.';
COMMENT ON COLUMN collector.rate IS 'Flushes a second, at most; null: no limit.';
COMMENT ON COLUMN collector.timeout IS 'How long a flush may take.';
COMMENT ON COLUMN collector.dedupe IS 'For how long the ids of operations are remembered; 0: not at all.';
COMMENT ON COLUMN collector.strict IS
    'Operations of a key go strictly in their order: none before another that failed.';
COMMENT ON COLUMN collector.levels IS 'The highest priority that an operation may have: 0 or 9.';
COMMENT ON COLUMN collector.drain_at IS 'What was added until then goes at once; null: no one has asked for that.';
COMMENT ON COLUMN collector.tokens IS 'What is left of the rate, in flushes.';
COMMENT ON COLUMN collector.tokens_at IS 'When the tokens were computed.';
COMMENT ON COLUMN collector.failures IS 'Flushes in a row that came to nothing.';
COMMENT ON COLUMN collector.failed_at IS 'When the last one of them ended.';
COMMENT ON COLUMN collector.failure_code IS 'What it failed with: a code.';
COMMENT ON COLUMN collector.failure_message IS 'The same in words.';
COMMENT ON COLUMN collector.backoff_until IS 'Nothing is flushed before then, since flushes failed.';
COMMENT ON COLUMN collector.last_success_at IS 'When the service last handled a flush, to half a second.';
COMMENT ON COLUMN collector.refused_since IS
    'Since when adds are refused, as what its enrich asks for cannot be had; null: they are not.';
COMMENT ON COLUMN collector.refused_at IS 'When that was last noted.';
COMMENT ON COLUMN collector.refused_for IS 'What the source, or the query, failed with.';
COMMENT ON COLUMN collector.created_by IS 'Who made it.';
COMMENT ON COLUMN collector.created_at IS 'When.';
COMMENT ON COLUMN collector.changed_by IS 'Who changed it last.';
COMMENT ON COLUMN collector.changed_at IS 'When.';
COMMENT ON COLUMN collector.paused_by IS 'Who paused it; empty: no one.';
COMMENT ON COLUMN collector.paused_at IS 'When.';
COMMENT ON COLUMN collector.namespace IS 'The namespace that owns it.';

-- A key is there while it has operations. due_at is collector_due of the rest.
CREATE TABLE collector_key (
    collector      integer     NOT NULL,
    key_version    integer     NOT NULL,
    key            text        COLLATE "C" NOT NULL,
    untried        integer     NOT NULL CHECK (untried >= 0),
    retrying       integer     NOT NULL DEFAULT 0 CHECK (retrying >= 0),
    parked         integer     NOT NULL DEFAULT 0 CHECK (parked >= 0),
    priority       smallint    NOT NULL DEFAULT 0,
    oldest_at      timestamptz,
    retry_at       timestamptz,
    held_until     timestamptz,
    due_at         timestamptz,
    size_limit     integer     CHECK (size_limit >= 1),
    failures       integer     NOT NULL DEFAULT 0,
    failed_at      timestamptz,
    failed_ops     integer,
    failed_code    text,
    failed_message text,
    flush          uuid,
    session_id     uuid,
    flushed_at     timestamptz,
    flush_until    timestamptz,
    PRIMARY KEY (collector, key_version, key),
    CONSTRAINT collector_key_flush CHECK ((flush IS NULL) = (session_id IS NULL)
        AND (flush IS NULL) = (flush_until IS NULL) AND (flush IS NULL OR flushed_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX collector_key_due ON collector_key (collector, key_version, priority, due_at)
    WHERE flush IS NULL AND due_at IS NOT NULL;
CREATE INDEX collector_key_flushing ON collector_key (collector) WHERE flush IS NOT NULL;
CREATE INDEX collector_key_failed ON collector_key (collector, failed_at) WHERE failed_at IS NOT NULL;
COMMENT ON TABLE collector_key IS
    'The keys of collectors that have operations, and when they are flushed. Operations of a flush in progress still '
    'count.';
COMMENT ON COLUMN collector_key.collector IS 'The collector (collector.id).';
COMMENT ON COLUMN collector_key.key_version IS 'In which way the key was made (collector.key_version).';
COMMENT ON COLUMN collector_key.key IS 'The key.';
COMMENT ON COLUMN collector_key.untried IS 'Operations that were not tried yet.';
COMMENT ON COLUMN collector_key.retrying IS 'Operations that have failed and are retried.';
COMMENT ON COLUMN collector_key.parked IS
    'Operations that have failed permanently, and wait for someone to retry or drop them.';
COMMENT ON COLUMN collector_key.priority IS 'The highest of what waits.';
COMMENT ON COLUMN collector_key.oldest_at IS 'When the oldest untried one was added.';
COMMENT ON COLUMN collector_key.retry_at IS 'When the first one that failed is retried.';
COMMENT ON COLUMN collector_key.held_until IS 'Nothing of it goes before then.';
COMMENT ON COLUMN collector_key.due_at IS 'When it is to be flushed; null: nothing waits.';
COMMENT ON COLUMN collector_key.size_limit IS
    'Operations in its next flush, at most, because one came to nothing; null: as the collector has it.';
COMMENT ON COLUMN collector_key.failures IS 'Flushes in a row that came to nothing.';
COMMENT ON COLUMN collector_key.failed_at IS 'When the last flush ended, if as in an outage.';
COMMENT ON COLUMN collector_key.failed_ops IS 'How many operations that one had.';
COMMENT ON COLUMN collector_key.failed_code IS 'What it failed with: a code.';
COMMENT ON COLUMN collector_key.failed_message IS 'The same in words.';
COMMENT ON COLUMN collector_key.flush IS 'The flush that is in progress; null: none.';
COMMENT ON COLUMN collector_key.session_id IS 'The node that does it (node_session.id).';
COMMENT ON COLUMN collector_key.flushed_at IS 'When the last flush began.';
COMMENT ON COLUMN collector_key.flush_until IS 'When the one in progress is given up.';

CREATE TABLE collector_op (
    seq           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    collector     integer     NOT NULL,
    key_version   integer     NOT NULL,
    key           text        COLLATE "C" NOT NULL,
    op_id         text        COLLATE "C" NOT NULL,
    payload       text        NOT NULL,
    priority      smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
    attempts      integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    added_at      timestamptz NOT NULL DEFAULT tranche_now(),
    not_before    timestamptz,
    retry_alone   boolean     NOT NULL DEFAULT false,
    parked_at     timestamptz,
    error_code    text        NOT NULL DEFAULT '',
    error_message text        NOT NULL DEFAULT '',
    failed_first  timestamptz,
    failed_last   timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0.2);
CREATE INDEX collector_op_queue ON collector_op (collector, key_version, key, priority DESC, seq)
    WHERE parked_at IS NULL;
CREATE INDEX collector_op_retry ON collector_op (collector, key_version, key, not_before)
    WHERE parked_at IS NULL AND not_before IS NOT NULL;
CREATE INDEX collector_op_parked ON collector_op (collector, seq) WHERE parked_at IS NOT NULL;
CREATE INDEX collector_op_id ON collector_op (collector, op_id);
COMMENT ON TABLE collector_op IS
    'Operations that collectors have: inserted once, and deleted when they have succeeded.';
COMMENT ON COLUMN collector_op.seq IS 'Number of the operation, in the order in which they were added.';
COMMENT ON COLUMN collector_op.collector IS 'The collector (collector.id).';
COMMENT ON COLUMN collector_op.key_version IS 'In which way its key was made (collector.key_version).';
COMMENT ON COLUMN collector_op.key IS 'The key that it belongs to (collector_key.key).';
COMMENT ON COLUMN collector_op.op_id IS 'Its id, by which the same operation counts once.';
COMMENT ON COLUMN collector_op.payload IS 'What it carries: JSON.';
COMMENT ON COLUMN collector_op.priority IS '9 is the most urgent, 0 the least.';
COMMENT ON COLUMN collector_op.attempts IS 'How often it was tried.';
COMMENT ON COLUMN collector_op.added_at IS 'When it was added.';
COMMENT ON COLUMN collector_op.not_before IS 'It has failed, and is not retried before then; null: it is untried.';
COMMENT ON COLUMN collector_op.retry_alone IS 'Its flush failed as a whole: it goes alone.';
COMMENT ON COLUMN collector_op.parked_at IS 'When it had failed permanently; null: it has not.';
COMMENT ON COLUMN collector_op.error_code IS 'What it failed with last: a code; empty: it has not failed.';
COMMENT ON COLUMN collector_op.error_message IS 'The same in words.';
COMMENT ON COLUMN collector_op.failed_first IS 'When it failed first.';
COMMENT ON COLUMN collector_op.failed_last IS 'When it failed last.';

CREATE TABLE collector_seen (
    collector integer     NOT NULL,
    op_id     text        COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL DEFAULT tranche_now(),
    PRIMARY KEY (collector, op_id)
);
CREATE INDEX collector_seen_at ON collector_seen (collector, at);
COMMENT ON TABLE collector_seen IS 'Ids of operations that were added, for as long as the collector remembers them.';
COMMENT ON COLUMN collector_seen.collector IS 'The collector (collector.id).';
COMMENT ON COLUMN collector_seen.op_id IS 'The id of the operation.';
COMMENT ON COLUMN collector_seen.at IS 'When it was added.';

-- When a key is due: at once when enough of it is untried or what is untried has to go, else when the oldest has waited
-- long enough or the next try of a failed one has come, and never before it may. What is due at once is due since its
-- oldest was added, so that the oldest goes first.
-- +goose StatementBegin
CREATE FUNCTION collector_due(untried integer, oldest timestamptz, retry timestamptz, held timestamptz, min_size integer,
    max_age interval, drain timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN untried > 0 OR retry IS NOT NULL THEN greatest(held, least(retry,
        CASE WHEN untried > 0 THEN CASE WHEN untried >= min_size OR oldest <= drain THEN oldest ELSE oldest + max_age END END))
    END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION collector_due(integer, timestamptz, timestamptz, timestamptz, integer, interval, timestamptz) IS
    'When a key of a collector is due, by the columns of collector_key and collector; null: nothing waits.';

-- +goose Down
DROP FUNCTION collector_due(integer, timestamptz, timestamptz, timestamptz, integer, interval, timestamptz);
DROP TABLE collector_seen, collector_op, collector_key, collector;
