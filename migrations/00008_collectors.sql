-- +goose Up

-- The columns besides spec are the parts of the definition that a flush needs.
CREATE TABLE collector (
    id                  integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                text        COLLATE "C" NOT NULL,
    run_id              uuid        NOT NULL,
    version             integer     NOT NULL DEFAULT 1 CHECK (version >= 1),
    key_version         integer     NOT NULL DEFAULT 1 CHECK (key_version >= 1),
    drained_key_version integer     NOT NULL DEFAULT 1 CHECK (drained_key_version <= key_version),
    folds               text[]      NOT NULL DEFAULT '{}',
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
COMMENT ON TABLE collector IS 'Collectors store operations by key and flush them in lists to an endpoint.';
COMMENT ON COLUMN collector.id IS 'The collector.';
COMMENT ON COLUMN collector.name IS 'Name of the collector.';
COMMENT ON COLUMN collector.run_id IS 'Run ID in its requests; no such run exists.';
COMMENT ON COLUMN collector.version IS 'Increases with each change of its definition.';
COMMENT ON COLUMN collector.key_version IS
    'Increases when keys are computed in a new way; older keys keep the old number.';
COMMENT ON COLUMN collector.drained_key_version IS 'No key with an older key version has waiting operations.';
COMMENT ON COLUMN collector.folds IS 'How operations of each older key version are folded: last, merge or empty.';
COMMENT ON COLUMN collector.timed IS 'The value of timing for which the times of its keys are set.';
COMMENT ON COLUMN collector.timing IS 'Increases when the times of its keys must be recomputed.';
COMMENT ON COLUMN collector.state IS 'active, paused or deleting.';
COMMENT ON COLUMN collector.spec IS 'Its definition, with all settings.';
COMMENT ON COLUMN collector.source IS 'Its definition as submitted.';
COMMENT ON COLUMN collector.endpoint IS 'The endpoint that it flushes to.';
COMMENT ON COLUMN collector.min_size IS 'A key is flushed when it has this many operations,';
COMMENT ON COLUMN collector.max_age IS 'or when its oldest operation has this age.';
COMMENT ON COLUMN collector.max_size IS 'Maximum number of operations in a flush.';
COMMENT ON COLUMN collector.in_flight IS 'Maximum number of concurrent flushes.';
COMMENT ON COLUMN collector.rate IS 'Maximum number of flushes per second; null: no limit.';
COMMENT ON COLUMN collector.timeout IS 'Maximum duration of a flush.';
COMMENT ON COLUMN collector.dedupe IS 'How long IDs of operations are remembered; 0: not at all.';
COMMENT ON COLUMN collector.strict IS
    'Whether operations of a key are strictly ordered: none overtakes one that failed.';
COMMENT ON COLUMN collector.levels IS 'Highest priority of operations: 0 or 9.';
COMMENT ON COLUMN collector.drain_at IS 'Operations added until then are flushed immediately; null: no drain.';
COMMENT ON COLUMN collector.tokens IS 'Remaining rate budget, in flushes.';
COMMENT ON COLUMN collector.tokens_at IS 'When tokens was computed.';
COMMENT ON COLUMN collector.failures IS 'Number of failed flushes in a row.';
COMMENT ON COLUMN collector.failed_at IS 'When the last failed flush ended.';
COMMENT ON COLUMN collector.failure_code IS 'Its error code.';
COMMENT ON COLUMN collector.failure_message IS 'Its error in words.';
COMMENT ON COLUMN collector.backoff_until IS 'Nothing is flushed before then, because flushes failed.';
COMMENT ON COLUMN collector.last_success_at IS 'When the service last handled a flush, to half a second.';
COMMENT ON COLUMN collector.refused_since IS 'Since when adds are refused because enrich fails; null: not refused.';
COMMENT ON COLUMN collector.refused_at IS 'When that was last observed.';
COMMENT ON COLUMN collector.refused_for IS 'Error of the source, query or service.';
COMMENT ON COLUMN collector.created_by IS 'Who created it.';
COMMENT ON COLUMN collector.created_at IS 'When it was created.';
COMMENT ON COLUMN collector.changed_by IS 'Who last changed it.';
COMMENT ON COLUMN collector.changed_at IS 'When it was last changed.';
COMMENT ON COLUMN collector.paused_by IS 'Who paused it; empty: not paused.';
COMMENT ON COLUMN collector.paused_at IS 'When it was paused.';
COMMENT ON COLUMN collector.namespace IS 'The namespace that owns it.';

-- A key has a row while it has operations. due_at is computed by collector_due.
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
    'Keys of collectors with operations, and when they are flushed. Operations of a flush in progress still count.';
COMMENT ON COLUMN collector_key.collector IS 'The collector (collector.id).';
COMMENT ON COLUMN collector_key.key_version IS 'How the key was computed (collector.key_version).';
COMMENT ON COLUMN collector_key.key IS 'The key.';
COMMENT ON COLUMN collector_key.untried IS 'Number of untried operations.';
COMMENT ON COLUMN collector_key.retrying IS 'Number of failed operations that will be retried.';
COMMENT ON COLUMN collector_key.parked IS
    'Number of permanently failed operations, to be requeued or dropped by an operator.';
COMMENT ON COLUMN collector_key.priority IS 'Highest priority of waiting operations.';
COMMENT ON COLUMN collector_key.oldest_at IS 'When the oldest untried operation was added.';
COMMENT ON COLUMN collector_key.retry_at IS 'When the first failed operation is retried.';
COMMENT ON COLUMN collector_key.held_until IS 'Nothing is flushed before then.';
COMMENT ON COLUMN collector_key.due_at IS 'When it is due for a flush; null: nothing waits.';
COMMENT ON COLUMN collector_key.size_limit IS
    'Maximum size of its next flush, because one failed; null: as set for the collector.';
COMMENT ON COLUMN collector_key.failures IS 'Number of failed flushes in a row.';
COMMENT ON COLUMN collector_key.failed_at IS 'When the last flush ended, if it failed as in an outage.';
COMMENT ON COLUMN collector_key.failed_ops IS 'Number of operations in that flush.';
COMMENT ON COLUMN collector_key.failed_code IS 'Its error code.';
COMMENT ON COLUMN collector_key.flush IS 'The flush in progress; null: none.';
COMMENT ON COLUMN collector_key.session_id IS 'The node that runs the flush (node_session.id).';
COMMENT ON COLUMN collector_key.flushed_at IS 'When the last flush began.';
COMMENT ON COLUMN collector_key.flush_until IS 'When the flush in progress expires.';

CREATE TABLE collector_op (
    seq           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    collector     integer     NOT NULL,
    key_version   integer     NOT NULL,
    key           text        COLLATE "C" NOT NULL,
    op_id         text        COLLATE "C" NOT NULL,
    payload       text        NOT NULL,
    priority      smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
    attempts      integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    refusals      integer     NOT NULL DEFAULT 0,
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
COMMENT ON TABLE collector_op IS 'Operations of collectors: inserted once, and deleted after success.';
COMMENT ON COLUMN collector_op.seq IS 'Number of the operation, in order of addition.';
COMMENT ON COLUMN collector_op.collector IS 'The collector (collector.id).';
COMMENT ON COLUMN collector_op.key_version IS 'How its key was computed (collector.key_version).';
COMMENT ON COLUMN collector_op.key IS 'Its key (collector_key.key).';
COMMENT ON COLUMN collector_op.op_id IS 'Its ID; an operation with the same ID is added only once.';
COMMENT ON COLUMN collector_op.payload IS 'Its data as JSON.';
COMMENT ON COLUMN collector_op.priority IS '9 is the most urgent, 0 the least.';
COMMENT ON COLUMN collector_op.attempts IS 'Number of attempts.';
COMMENT ON COLUMN collector_op.refusals IS 'How often a permanent error parked it; a part of its idempotency key.';
COMMENT ON COLUMN collector_op.added_at IS 'When it was added.';
COMMENT ON COLUMN collector_op.not_before IS 'When a failed operation is retried; null: untried.';
COMMENT ON COLUMN collector_op.retry_alone IS 'Whether it is retried alone, because its flush failed entirely.';
COMMENT ON COLUMN collector_op.parked_at IS 'When it failed permanently; null: it has not.';
COMMENT ON COLUMN collector_op.error_code IS 'Last error code; empty: not failed.';
COMMENT ON COLUMN collector_op.error_message IS 'The last error in words.';
COMMENT ON COLUMN collector_op.failed_first IS 'When it first failed.';
COMMENT ON COLUMN collector_op.failed_last IS 'When it last failed.';

CREATE TABLE collector_seen (
    collector integer     NOT NULL,
    op_id     text        COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL DEFAULT tranche_now(),
    PRIMARY KEY (collector, op_id)
);
CREATE INDEX collector_seen_at ON collector_seen (collector, at);
COMMENT ON TABLE collector_seen IS 'IDs of added operations, for as long as the collector remembers them.';
COMMENT ON COLUMN collector_seen.collector IS 'The collector (collector.id).';
COMMENT ON COLUMN collector_seen.op_id IS 'ID of the operation.';
COMMENT ON COLUMN collector_seen.at IS 'When it was added.';

-- A key is due when its oldest untried operation reaches max_age, or when a failed one must be retried, but never
-- before held_until. With min_size untried operations, or in a drain, it is due immediately: since its oldest was
-- added, so that the oldest key goes first.
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
    'When a key is due, from columns of collector_key and collector; null: nothing waits.';

-- +goose Down
DROP FUNCTION collector_due(integer, timestamptz, timestamptz, timestamptz, integer, interval, timestamptz);
DROP TABLE collector_seen, collector_op, collector_key, collector;
