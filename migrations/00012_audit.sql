-- +goose Up

CREATE TABLE audit_log (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT tranche_now(),
    actor   text        NOT NULL,
    action  text        NOT NULL,
    run_id  uuid,
    detail  jsonb       NOT NULL DEFAULT '{}',
    subject text        NOT NULL DEFAULT '',
    before  jsonb,
    after   jsonb
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX audit_log_run ON audit_log (run_id, id);
-- Who wrote a schedule that has started a run.
CREATE INDEX audit_log_schedule ON audit_log (subject) WHERE action = 'schedule_apply';
COMMENT ON TABLE audit_log IS
    'The audit log: who did what. Rows are only added; old ones go by audit_expire, within the limits of retention.';
COMMENT ON COLUMN audit_log.id IS 'Number of the row.';
COMMENT ON COLUMN audit_log.at IS 'When it was done.';
COMMENT ON COLUMN audit_log.actor IS 'Who did it.';
COMMENT ON COLUMN audit_log.action IS 'What: an action of the API or of the command line, as pause, rerun, set.';
COMMENT ON COLUMN audit_log.run_id IS 'The run that it was done to; null: none.';
COMMENT ON COLUMN audit_log.detail IS 'What was asked for, and what it came to.';
COMMENT ON COLUMN audit_log.subject IS 'What it was done to when that is no run: an endpoint, a plan and so on.';
COMMENT ON COLUMN audit_log.before IS 'What it changed, as it was; null: nothing.';
COMMENT ON COLUMN audit_log.after IS 'The same as it is since; null: nothing.';

-- Explanations read what was done to runs in progress;
-- the newest re-run of a run is the evidence for its generation, for which doctor looks. What says that rows went stays
-- for a year, whatever the limits are.
CREATE VIEW audit_deletable AS
SELECT a.id, a.at, coalesce(pg_column_size(a.detail), 0) + coalesce(pg_column_size(a.before), 0)
    + coalesce(pg_column_size(a.after), 0) + 150 AS size
FROM audit_log a
WHERE (a.action <> 'audit_expire' OR a.at < tranche_now() - interval '1 year')
    AND NOT EXISTS (SELECT FROM batchrun r WHERE r.id = a.run_id AND (r.state IN ('loading', 'running')
        OR a.action IN ('rerun', 'reset', 'correct', 'resume') AND a.detail ->> 'generation' = r.generation::text));


COMMENT ON VIEW audit_deletable IS 'What of the audit log may ever go.';
COMMENT ON COLUMN audit_deletable.id IS 'The row (audit_log.id).';
COMMENT ON COLUMN audit_deletable.at IS 'When it was done.';
COMMENT ON COLUMN audit_deletable.size IS 'How large the row is, in bytes, about.';

-- No one but audit_expire and the owner write here.
CREATE TABLE audit_expiry (
    id        boolean     PRIMARY KEY DEFAULT true CHECK (id),
    until     timestamptz NOT NULL,
    cutoff    timestamptz NOT NULL,
    age       interval,
    max_count bigint,
    max_bytes bigint,
    min_age   interval    NOT NULL DEFAULT '365 days'
);
INSERT INTO audit_expiry (until, cutoff) VALUES ('-infinity', '-infinity');
COMMENT ON TABLE audit_expiry IS
    'Up to where the limits of retention let the audit log be deleted, as audit_expire found it last. One row.';
COMMENT ON COLUMN audit_expiry.id IS 'Always true.';
COMMENT ON COLUMN audit_expiry.until IS 'Up to when it was asked to delete.';
COMMENT ON COLUMN audit_expiry.cutoff IS 'Up to when it may.';
COMMENT ON COLUMN audit_expiry.age IS 'The limit of retention that it went by; null: none.';
COMMENT ON COLUMN audit_expiry.max_count IS 'Also.';
COMMENT ON COLUMN audit_expiry.max_bytes IS 'Also.';
COMMENT ON COLUMN audit_expiry.min_age IS
    'How long rows are kept whatever the limits say. Only the owner of the schema may change it.';

-- Functions with the rights of the owner name everything by its schema, so that no search_path leads them elsewhere.
-- +goose StatementBegin
DO $migration$
BEGIN
    EXECUTE format($outer$
        -- audit_expire deletes up to a number of rows of the audit log that are older than until, but none that the
        -- limits of retention or min_age keep, nor one of the last hour, and notes that it did. The limits are looked at once for
        -- an until: by count or size that means to read the whole log.
        CREATE FUNCTION audit_expire(until timestamptz, most integer) RETURNS bigint
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
        $body$
        DECLARE
            keep %1$I.retention;
            cut  timestamptz;
            gone record;
        BEGIN
            SELECT * INTO STRICT keep FROM %1$I.retention WHERE kind = 'audit';
            IF keep.age IS NULL AND keep.max_count IS NULL AND keep.max_bytes IS NULL THEN
                RAISE insufficient_privilege USING MESSAGE = 'the audit log is kept permanently',
                    HINT = 'tranche retention set audit';
            END IF;
            SELECT e.cutoff INTO cut FROM %1$I.audit_expiry e WHERE e.until = audit_expire.until
                AND (e.age, e.max_count, e.max_bytes) IS NOT DISTINCT FROM (keep.age, keep.max_count, keep.max_bytes);
            IF cut IS NULL THEN
                WITH ranked AS (
                    SELECT x.at, row_number() OVER newest AS n, sum(x.size) OVER newest AS bytes
                    FROM %1$I.audit_deletable x WHERE keep.max_count IS NOT NULL OR keep.max_bytes IS NOT NULL
                    WINDOW newest AS (ORDER BY x.at DESC, x.id DESC))
                SELECT least(until, %1$I.tranche_now() - greatest(interval '1 hour',
                    (SELECT e.min_age FROM %1$I.audit_expiry e)), coalesce(greatest(
                    %1$I.tranche_now() - keep.age,
                    (SELECT r.at FROM ranked r WHERE r.n = keep.max_count),
                    (SELECT coalesce(min(r.at) FILTER (WHERE r.bytes <= keep.max_bytes), max(r.at)) FROM ranked r
                        WHERE keep.max_bytes IS NOT NULL)), '-infinity'))
                INTO cut;
                INSERT INTO %1$I.audit_expiry (until, cutoff, age, max_count, max_bytes)
                VALUES (audit_expire.until, cut, keep.age, keep.max_count, keep.max_bytes)
                ON CONFLICT (id) DO UPDATE SET until = excluded.until, cutoff = excluded.cutoff, age = excluded.age,
                    max_count = excluded.max_count, max_bytes = excluded.max_bytes;
            END IF;
            PERFORM set_config('tranche.audit_expire', 'on', true);
            WITH d AS (DELETE FROM %1$I.audit_log a WHERE a.id = ANY (ARRAY(
                SELECT x.id FROM %1$I.audit_deletable x WHERE x.at < cut LIMIT most)) RETURNING a.at)
            SELECT count(*) AS n, min(d.at) AS oldest, max(d.at) AS newest INTO gone FROM d;
            PERFORM set_config('tranche.audit_expire', '', true);
            IF gone.n > 0 THEN
                INSERT INTO %1$I.audit_log (actor, action, subject, detail)
                VALUES ('tranche', 'audit_expire', 'audit', jsonb_build_object('rows', gone.n, 'oldest', gone.oldest,
                    'newest', gone.newest, 'role', session_user, 'age', keep.age, 'max_count', keep.max_count,
                    'max_bytes', keep.max_bytes, 'limits_by', keep.changed_by));
            END IF;
            RETURN gone.n;
        END
        $body$
        $outer$, current_schema());
    REVOKE ALL ON FUNCTION audit_expire(timestamptz, integer) FROM PUBLIC;
END
$migration$;
-- +goose StatementEnd

-- What was written stays as it was written, also for a role with more rights than it should have, and for the owner,
-- unless that takes this trigger away.
-- +goose StatementBegin
CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$body$
BEGIN
    IF current_setting('tranche.audit_expire', true) = 'on' AND TG_OP = 'DELETE' AND current_user =
        (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = TG_RELID) THEN
        RETURN NULL;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = format('%s of the audit log is refused: what it says stays', TG_OP),
        HINT = 'Old rows go by: tranche retention set audit --age AGE';
END
$body$;
-- +goose StatementEnd

CREATE TRIGGER audit_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
FOR EACH STATEMENT EXECUTE FUNCTION audit_guard();
COMMENT ON FUNCTION audit_expire(timestamptz, integer) IS
    'Deletes rows of the audit log that are older than a time, a number of them at most, within the limits of '
    'retention, and notes that it did. Returns how many.';
COMMENT ON FUNCTION audit_guard() IS 'Trigger: refuses to change or delete rows of the audit log.';

-- +goose Down
DROP TRIGGER audit_guard ON audit_log;
DROP FUNCTION audit_guard(), audit_expire(timestamptz, integer);
DROP TABLE audit_expiry;
DROP VIEW audit_deletable;
DROP TABLE audit_log;
