-- +goose Up

-- Very short keys occur in too many texts by coincidence.
--
-- The key may be escaped as in JSON or URLs: each character may be literal, \u with its code, or percent-encoded bytes.
-- A letter or digit before it belongs to such an escape or to another word.
-- +goose StatementBegin
CREATE FUNCTION erased_text(said text, key text, marker text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $f$
    SELECT CASE WHEN said = key THEN marker
        WHEN length(key) < 4 OR strpos(said, key) = 0 AND said !~ '[\\%+]' THEN said
        ELSE regexp_replace(said, (
            SELECT '(?:(?<![[:alnum:]_])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))' || string_agg(
                '(?:' || regexp_replace(c, '([^[:alnum:]_])', '\\\\*\\\1')
                || '|\\+(?:' || replace(u, '\', '\\+') || '|'
                || replace(translate(u, 'abcdef', 'ABCDEF'), '\', '\\+') || ')|' || h || '|' || upper(h)
                || CASE c WHEN ' ' THEN '|[+]' WHEN E'\n' THEN '|\\+n' WHEN E'\t' THEN '|\\+t' ELSE '' END || ')',
                '' ORDER BY n) || '(?![[:alnum:]_])'
            FROM regexp_split_to_table(key, '') WITH ORDINALITY k (c, n)
            CROSS JOIN LATERAL (SELECT ascii(c) AS code) a
            CROSS JOIN LATERAL (SELECT CASE WHEN code < 65536 THEN 'u' || lpad(to_hex(code), 4, '0')
                    ELSE 'u' || to_hex(55296 + ((code - 65536) >> 10)) || '\u'
                        || to_hex(56320 + ((code - 65536) & 1023)) END AS u,
                regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', '%\1', 'g') AS h) f), marker, 'g') END
$f$;
-- +goose StatementEnd
COMMENT ON FUNCTION erased_text(text, text, text) IS
    'The text with the marker in place of an item''s key wherever it occurs as a word, also escaped as in JSON and '
    'URLs. A key shorter than four characters is replaced only as the whole text.';

-- SECURITY DEFINER functions qualify every name with the schema, so that a search_path cannot redirect them.
-- +goose StatementBegin
DO $migration$
BEGIN
    EXECUTE format($outer$
        CREATE FUNCTION erased_json(doc jsonb, key text, marker text, numbers boolean DEFAULT false)
        RETURNS jsonb
        LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS
        $body$
        BEGIN
            IF strpos(doc::text, key) = 0 AND doc::text !~ '[\\%%+]' THEN
                RETURN doc;
            END IF;
            CASE jsonb_typeof(doc)
                WHEN 'string' THEN RETURN to_jsonb(%1$I.erased_text(doc #>> '{}', key, marker));
                WHEN 'array' THEN
                    RETURN coalesce((SELECT jsonb_agg(%1$I.erased_json(e.value, key, marker, numbers) ORDER BY e.n)
                        FROM jsonb_array_elements(doc) WITH ORDINALITY AS e (value, n)), doc);
                WHEN 'object' THEN
                    RETURN coalesce((SELECT jsonb_object_agg(%1$I.erased_text(e.key, erased_json.key, marker),
                        %1$I.erased_json(e.value, erased_json.key, marker, numbers)) FROM jsonb_each(doc) e), doc);
                WHEN 'number' THEN
                    RETURN CASE WHEN numbers AND doc #>> '{}' = key THEN to_jsonb(marker) ELSE doc END;
                ELSE RETURN doc;
            END CASE;
        END
        $body$
        $outer$, current_schema());
    EXECUTE format($outer$
        -- audit_erase reads a limited number of rows of the audit log after a given one, of one run or all, and
        -- replaces the key by the marker in what they say about runs, operations and dead letters. Who did what and
        -- when is unchanged, and so are rows about tokens, sessions, retention and settings. It logs the erasure with
        -- the new digests of chained rows, and returns the last row read, null at the end.
        CREATE FUNCTION audit_erase(secret text, marker text, run uuid, after bigint, most integer) RETURNS bigint
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
        $body$
        DECLARE
            upto bigint;
            n    bigint;
            now  jsonb;
        BEGIN
            IF marker !~ '^erased-[0-9a-f]{16}$' OR secret = '' THEN
                RAISE insufficient_privilege USING MESSAGE = 'invalid marker, or empty key';
            END IF;
            SELECT max(x.id) INTO upto FROM (
                SELECT a.id FROM %1$I.audit_log a WHERE a.id > audit_erase.after AND (run IS NULL OR a.run_id = run)
                ORDER BY a.id LIMIT most) x;
            IF upto IS NULL THEN
                RETURN NULL;
            END IF;
            PERFORM FROM %1$I.audit_head FOR UPDATE;
            PERFORM set_config('tranche.audit', 'UPDATE', true);
            WITH done AS (
                UPDATE %1$I.audit_log a SET detail = %1$I.erased_json(a.detail, secret, marker),
                    before = %1$I.erased_json(a.before, secret, marker),
                    after = %1$I.erased_json(a.after, secret, marker),
                    subject = %1$I.erased_text(a.subject, secret, marker),
                    erased = coalesce(a.erased, CASE WHEN a.seal IS NOT NULL THEN %1$I.audit_digest(uuid_send(a.salt),
                        a.subject, a.detail::text, a.before::text, a.after::text) END),
                    salt = CASE WHEN a.seal IS NOT NULL THEN gen_random_uuid() END
                WHERE a.id > audit_erase.after AND a.id <= upto AND (run IS NULL OR a.run_id = run)
                    AND (a.run_id IS NOT NULL OR a.action ~ '^(collector_(drain|requeue|drop)|dead_letter_.*|health_.*)$')
                    AND (%1$I.erased_json(a.detail, secret, marker), %1$I.erased_json(a.before, secret, marker),
                        %1$I.erased_json(a.after, secret, marker), %1$I.erased_text(a.subject, secret, marker))
                    IS DISTINCT FROM (a.detail, a.before, a.after, a.subject)
                RETURNING a.*)
            SELECT count(*), coalesce(jsonb_object_agg(d.id, encode(%1$I.audit_digest(uuid_send(d.salt), d.subject,
                d.detail::text, d.before::text, d.after::text), 'hex')) FILTER (WHERE d.seal IS NOT NULL), '{}')
            INTO n, now FROM done d;
            PERFORM set_config('tranche.audit', 'INSERT', true);
            IF n > 0 THEN
                INSERT INTO %1$I.audit_log (actor, action, subject, detail)
                VALUES ('tranche', 'audit_erase', 'audit', jsonb_build_object('rows', n, 'marker', marker, 'role',
                    session_user, 'now', now));
            END IF;
            PERFORM set_config('tranche.audit', '', true);
            RETURN upto;
        END
        $body$
        $outer$, current_schema());
    REVOKE ALL ON FUNCTION audit_erase(text, text, uuid, bigint, integer) FROM PUBLIC;
END
$migration$;
-- +goose StatementEnd
COMMENT ON FUNCTION erased_json(jsonb, text, text, boolean) IS
    'erased_text for all texts of a document and, if numbers is true, for numbers equal to the key.';
COMMENT ON FUNCTION audit_erase(text, text, uuid, bigint, integer) IS
    'Replaces the key of an item by a marker in a limited number of rows of the audit log after a given one, and logs '
    'that. Returns the last row read; null: none left.';

-- +goose Down
DROP FUNCTION audit_erase(text, text, uuid, bigint, integer), erased_json(jsonb, text, text, boolean),
    erased_text(text, text, text);
