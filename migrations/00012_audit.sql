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
    after   jsonb,
    origin  jsonb,
    seal    bigint      UNIQUE,
    hash    bytea,
    salt    uuid,
    erased  bytea,
    CHECK ((seal IS NULL) = (hash IS NULL) AND (seal IS NULL) = (salt IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX audit_log_unsealed ON audit_log (id) WHERE seal IS NULL;
CREATE INDEX audit_log_run ON audit_log (run_id, id);
-- Authors of schedules, for the runs they started.
CREATE INDEX audit_log_schedule ON audit_log (subject) WHERE action = 'schedule_apply';
COMMENT ON TABLE audit_log IS
    'The audit log: who did what. Rows are only added; audit_expire deletes old ones, within the limits of retention.';
COMMENT ON COLUMN audit_log.id IS 'Row number.';
COMMENT ON COLUMN audit_log.at IS 'When it was done.';
COMMENT ON COLUMN audit_log.actor IS 'Who did it.';
COMMENT ON COLUMN audit_log.action IS 'The action of the API or command line, like pause, rerun or set.';
COMMENT ON COLUMN audit_log.run_id IS 'The affected run; null: none.';
COMMENT ON COLUMN audit_log.detail IS 'The request and its result.';
COMMENT ON COLUMN audit_log.subject IS 'The affected object if it is not a run: an endpoint, a plan and so on.';
COMMENT ON COLUMN audit_log.before IS 'Changed settings before the change; null: none.';
COMMENT ON COLUMN audit_log.after IS 'Changed settings after the change; null: none.';
COMMENT ON COLUMN audit_log.origin IS
    'Token or session, address and request; null: not from a request, or no login required.';
COMMENT ON COLUMN audit_log.seal IS 'Number in the chain; null: not chained yet by audit_seal.';
COMMENT ON COLUMN audit_log.hash IS
    'SHA-256 over the previous seal''s hash and this row: audit_digest of seal, id, microseconds since 1970, actor, '
    'action, run_id, origin and, in hex, the digest of salt and subject, detail, before, after.';
COMMENT ON COLUMN audit_log.salt IS 'Random; an erasure replaces it, so that what was erased cannot be guessed.';
COMMENT ON COLUMN audit_log.erased IS
    'Original digest of subject, detail, before and after, if a key was erased there; null: nothing was.';

-- Rows are written in the transaction that they log, in any order, and numbered and chained afterwards.
CREATE TABLE audit_head (
    id   boolean PRIMARY KEY DEFAULT true CHECK (id),
    seal bigint  NOT NULL DEFAULT 0,
    hash bytea   NOT NULL DEFAULT ''
);
INSERT INTO audit_head DEFAULT VALUES;
COMMENT ON TABLE audit_head IS 'End of the audit log''s chain. Sealing, erasing and deleting lock its row. One row.';
COMMENT ON COLUMN audit_head.id IS 'Always true.';
COMMENT ON COLUMN audit_head.seal IS 'The newest seal (audit_log.seal).';
COMMENT ON COLUMN audit_head.hash IS 'The hash of that seal.';

CREATE TABLE audit_sink (
    id     boolean PRIMARY KEY DEFAULT true CHECK (id),
    target text    NOT NULL,
    seal   bigint  NOT NULL DEFAULT 0,
    error  text    NOT NULL DEFAULT ''
);
COMMENT ON TABLE audit_sink IS
    'Progress of forwarding the audit log (serve --audit-sink). One row; none if never forwarded.';
COMMENT ON COLUMN audit_sink.id IS 'Always true.';
COMMENT ON COLUMN audit_sink.target IS 'The destination.';
COMMENT ON COLUMN audit_sink.seal IS 'The last row sent (audit_log.seal).';
COMMENT ON COLUMN audit_sink.error IS 'Error of the last attempt; empty: none.';

-- While it has a row, retention deletes only runs and audit rows that are in the archive.
CREATE TABLE archive (
    id     boolean PRIMARY KEY DEFAULT true CHECK (id),
    target text NOT NULL,
    seal   bigint NOT NULL DEFAULT 0,
    error  text NOT NULL DEFAULT '',
    since  timestamptz,
    CHECK ((error = '') = (since IS NULL))
);
COMMENT ON TABLE archive IS
    'Progress of archiving runs and the audit log before deletion (serve --archive). One row; none without an archive.';
COMMENT ON COLUMN archive.id IS 'Always true.';
COMMENT ON COLUMN archive.target IS 'The destination.';
COMMENT ON COLUMN archive.seal IS 'The last row of the audit log in the archive (audit_log.seal).';
COMMENT ON COLUMN archive.error IS 'Why something due is not archived; empty: everything is.';
COMMENT ON COLUMN archive.since IS 'Since when; null: everything is archived.';

CREATE TABLE audit_gone (
    last  bigint PRIMARY KEY,
    first bigint NOT NULL CHECK (first <= last),
    hash  bytea  NOT NULL
);
COMMENT ON TABLE audit_gone IS
    'Seals of rows deleted by retention, as ranges that do not touch. The newest audit_expire row has their digest.';
COMMENT ON COLUMN audit_gone.last IS 'Last seal of the range.';
COMMENT ON COLUMN audit_gone.first IS 'First seal of the range.';
COMMENT ON COLUMN audit_gone.hash IS 'Hash of the last seal, where the chain continues.';

-- Rows of runs in progress are kept, because explanations read them, and the newest rerun of a run, because doctor
-- checks it against the generation. audit_expire rows are kept for a year regardless of the limits, and the newest one
-- longer; audit_erase rows as long as the rows they changed.
CREATE VIEW audit_deletable AS
SELECT a.id, a.at, coalesce(pg_column_size(a.detail), 0) + coalesce(pg_column_size(a.before), 0)
    + coalesce(pg_column_size(a.after), 0) + 150 AS size
FROM audit_log a
WHERE CASE a.action
        WHEN 'audit_expire' THEN a.at < tranche_now() - interval '1 year'
            AND a.id < (SELECT max(e.id) FROM audit_log e WHERE e.action = 'audit_expire')
        WHEN 'audit_erase' THEN NOT EXISTS (SELECT FROM jsonb_object_keys(a.detail -> 'now') k
            JOIN audit_log o ON o.id = k::bigint)
        ELSE true END
    AND NOT EXISTS (SELECT FROM batchrun r WHERE r.id = a.run_id AND (r.state IN ('loading', 'running')
        OR a.action IN ('rerun', 'reset', 'correct', 'resume') AND a.detail ->> 'generation' = r.generation::text));

COMMENT ON VIEW audit_deletable IS 'Rows of the audit log that may be deleted at all.';
COMMENT ON COLUMN audit_deletable.id IS 'The row (audit_log.id).';
COMMENT ON COLUMN audit_deletable.at IS 'When it was done.';
COMMENT ON COLUMN audit_deletable.size IS 'Approximate size of the row in bytes.';

-- Written only by audit_expire and the owner.
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
COMMENT ON TABLE audit_expiry IS 'Cached result of audit_expire: up to when retention allows deletion. One row.';
COMMENT ON COLUMN audit_expiry.id IS 'Always true.';
COMMENT ON COLUMN audit_expiry.until IS 'Deletion was requested up to then.';
COMMENT ON COLUMN audit_expiry.cutoff IS 'Deletion is allowed up to then.';
COMMENT ON COLUMN audit_expiry.age IS 'Age limit of retention used; null: none.';
COMMENT ON COLUMN audit_expiry.max_count IS 'Count limit of retention used; null: none.';
COMMENT ON COLUMN audit_expiry.max_bytes IS 'Size limit of retention used; null: none.';
COMMENT ON COLUMN audit_expiry.min_age IS
    'Minimum age of deleted rows, regardless of retention. Only the owner of the schema can change it.';

CREATE FUNCTION audit_digest(head bytea, VARIADIC parts text[]) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $f$
    SELECT sha256(head || convert_to(string_agg(coalesce(octet_length(p) || ':' || p, '-'), '' ORDER BY n), 'UTF8'))
    FROM unnest(parts) WITH ORDINALITY u (p, n)
$f$;
COMMENT ON FUNCTION audit_digest(bytea, text[]) IS
    'SHA-256 of the bytes followed by each text with its length in bytes (5:hello); a null is -.';

-- SECURITY DEFINER functions qualify every name with the schema, so that a search_path cannot redirect them.
-- +goose StatementBegin
DO $migration$
BEGIN
    EXECUTE format($outer$
        -- audit_seal chains a limited number of committed rows, the oldest first, and returns their number.
        CREATE FUNCTION audit_seal(most integer) RETURNS integer
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
        $body$
        DECLARE
            head %1$I.audit_head;
            r    %1$I.audit_log;
            n    integer := 0;
        BEGIN
            IF NOT EXISTS (SELECT FROM %1$I.audit_log WHERE seal IS NULL) THEN
                RETURN 0;
            END IF;
            SELECT * INTO STRICT head FROM %1$I.audit_head FOR UPDATE;
            PERFORM set_config('tranche.audit', 'UPDATE', true);
            FOR r IN SELECT * FROM %1$I.audit_log WHERE seal IS NULL ORDER BY id LIMIT most LOOP
                n := n + 1;
                head.seal := head.seal + 1;
                r.salt := gen_random_uuid();
                head.hash := %1$I.audit_digest(head.hash, head.seal::text, r.id::text,
                    (extract(epoch FROM r.at) * 1000000)::bigint::text, r.actor, r.action, r.run_id::text,
                    r.origin::text, encode(%1$I.audit_digest(uuid_send(r.salt), r.subject, r.detail::text,
                        r.before::text, r.after::text), 'hex'));
                UPDATE %1$I.audit_log SET seal = head.seal, hash = head.hash, salt = r.salt WHERE id = r.id;
            END LOOP;
            PERFORM set_config('tranche.audit', '', true);
            UPDATE %1$I.audit_head SET seal = head.seal, hash = head.hash;
            RETURN n;
        END
        $body$
        $outer$, current_schema());
    REVOKE ALL ON FUNCTION audit_seal(integer) FROM PUBLIC;
    EXECUTE format($outer$
        -- audit_expire deletes a limited number of rows of the audit log that are older than until, except those kept
        -- by retention, by min_age, or because they are from the last hour, and logs that. It computes the cutoff once
        -- per until, since with limits by count or size that reads the whole log.
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
            PERFORM %1$I.audit_seal(greatest(most, 1000));
            PERFORM FROM %1$I.audit_head FOR UPDATE;
            PERFORM set_config('tranche.audit', 'DELETE', true);
            WITH d AS (DELETE FROM %1$I.audit_log a WHERE a.id = ANY (ARRAY(
                SELECT x.id FROM %1$I.audit_deletable x WHERE x.at < cut LIMIT most))
                AND a.seal <= coalesce((SELECT r.seal FROM %1$I.archive r), a.seal)
                RETURNING a.at, a.seal, a.hash),
            g AS (INSERT INTO %1$I.audit_gone (first, last, hash) SELECT d.seal, d.seal, d.hash FROM d)
            SELECT count(*) AS n, min(d.at) AS oldest, max(d.at) AS newest INTO gone FROM d;
            PERFORM set_config('tranche.audit', 'INSERT', true);
            IF gone.n > 0 THEN
                WITH wide AS (
                    SELECT min(p.first) AS first, max(p.last) AS last FROM (
                        SELECT g.first, g.last, g.last - sum(g.last - g.first + 1) OVER (ORDER BY g.last) AS touching
                        FROM %1$I.audit_gone g) p GROUP BY p.touching),
                d AS (DELETE FROM %1$I.audit_gone g USING wide w WHERE g.first >= w.first AND g.last < w.last)
                UPDATE %1$I.audit_gone g SET first = w.first FROM wide w WHERE g.last = w.last AND g.first > w.first;
                INSERT INTO %1$I.audit_log (actor, action, subject, detail)
                VALUES ('tranche', 'audit_expire', 'audit', jsonb_build_object('rows', gone.n, 'oldest', gone.oldest,
                    'newest', gone.newest, 'role', session_user, 'age', keep.age, 'max_count', keep.max_count,
                    'max_bytes', keep.max_bytes, 'limits_by', keep.changed_by,
                    'gone', (SELECT encode(%1$I.audit_digest('', VARIADIC array_agg(concat_ws(' ', g.first, g.last,
                        encode(g.hash, 'hex')) ORDER BY g.last)), 'hex') FROM %1$I.audit_gone g)));
            END IF;
            PERFORM set_config('tranche.audit', '', true);
            RETURN gone.n;
        END
        $body$
        $outer$, current_schema());
    REVOKE ALL ON FUNCTION audit_expire(timestamptz, integer) FROM PUBLIC;
END
$migration$;
-- +goose StatementEnd

-- Rows are immutable even for a role with excessive rights, and for the owner, unless the owner removes this trigger.
-- Only the functions above may write their kinds of rows.
-- +goose StatementBegin
CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$body$
BEGIN
    IF current_setting('tranche.audit', true) = TG_OP AND current_user =
        (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = TG_RELID) THEN
        RETURN NULL;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = format('%s of the audit log is refused: its rows are immutable', TG_OP),
        HINT = 'To delete old rows: tranche retention set audit --age AGE. To erase a key: tranche erase.';
END
$body$;
-- +goose StatementEnd

CREATE TRIGGER audit_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
FOR EACH STATEMENT EXECUTE FUNCTION audit_guard();
CREATE TRIGGER audit_guard_insert AFTER INSERT ON audit_log
FOR EACH ROW WHEN (NEW.action IN ('audit_expire', 'audit_erase')) EXECUTE FUNCTION audit_guard();
COMMENT ON FUNCTION audit_seal(integer) IS
    'Numbers and chains a limited number of committed rows of the audit log, the oldest first. Returns their number.';
COMMENT ON FUNCTION audit_expire(timestamptz, integer) IS
    'Deletes a limited number of rows of the audit log older than a time, within the limits of retention, and logs '
    'that. Returns their number.';
COMMENT ON FUNCTION audit_guard() IS
    'Trigger: refuses changes and deletions in the audit log, and rows that only its own functions may add.';

-- +goose Down
DROP VIEW audit_deletable;
DROP TABLE audit_log, audit_expiry, audit_head, audit_gone, audit_sink, archive;
DROP FUNCTION audit_guard(), audit_expire(timestamptz, integer), audit_seal(integer), audit_digest(bytea, text[]);
