package sqlfetch_test

import (
	"context"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

func TestRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const movements = "SELECT account, amount FROM movement WHERE account = ANY($1) ORDER BY amount"
	const twice = `'{"a": 1, "a": 2}'::json`
	many := func(q *gather.SQL) { q.Rows = gather.RowsMany }
	value := func(column string) func(*gather.SQL) { return func(q *gather.SQL) { q.Value = column } }
	for name, test := range map[string]struct {
		settings *gather.SQL
		keys     []string
		want     map[string]string
	}{
		"an object, by a number": {settings("SELECT id, owner, opened, balance, more FROM account WHERE id = ANY($1) ;\n"),
			[]string{"7", "700"}, map[string]string{
				"7":   `{"owner":"Owner 7","opened":"2020-01-08","balance":7.70,"more":{"n": 7}}`,
				"700": "not_found",
			}},
		"by a text that is hostile": {settings("SELECT code, id FROM account WHERE code = ANY($1)"),
			[]string{`K1`, `"},{`, `'); DROP TABLE account; --`, `\`, `NULL`, ``, `$1`}, map[string]string{
				`K1`: `{"id":1}`, `"},{`: "not_found", `'); DROP TABLE account; --`: "not_found", `\`: "not_found",
				`NULL`: "not_found", ``: "not_found", `$1`: "not_found",
			}},
		"a key column that is not the first": {settings(`SELECT owner, id AS "the ""key" FROM account WHERE id = ANY($1)`,
			func(q *gather.SQL) { q.Key = `the "key` }), []string{"3"}, map[string]string{"3": `{"owner":"Owner 3"}`}},
		"json": {settings("SELECT id, more FROM account WHERE id = ANY($1)", value("more")), []string{"5"},
			map[string]string{"5": `{"n": 5}`}},
		"whatever the database has set": {settings(`SELECT name, 16777216::float4 AS f4, 0.1::float8 + 0.2 AS f8,
			'1 day 02:03'::interval AS iv, timestamptz '2026-01-02 03:04:05+00' AS at, '\x00ff'::bytea AS raw
			FROM (VALUES ('Müller')) c (name) WHERE name = ANY($1)`), []string{"Müller"}, map[string]string{
			"Müller": `{"f4":1.6777216e+07,"f8":0.30000000000000004,"iv":"P1DT2H3M","at":"2026-01-02T03:04:05+00:00",` +
				`"raw":"\\x00ff"}`}},
		"json as it is written": {settings(`SELECT id, '{"b": 1, "a": 1.50}'::json AS x, owner FROM account
			WHERE id = ANY($1)`), []string{"5"}, map[string]string{"5": `{"x":{"b": 1, "a": 1.50},"owner":"Owner 5"}`}},
		"all digits of a decimal": {settings("SELECT id, 12345678901234567890.10 AS x FROM account WHERE id = ANY($1)"),
			[]string{"5"}, map[string]string{"5": `{"x":12345678901234567890.10}`}},
		"a name twice": {settings("SELECT id, " + twice + " AS x FROM account WHERE id = ANY($1)"),
			[]string{"5"}, map[string]string{"5": "duplicate_name"}},
		"a name twice in a value": {settings("SELECT id, "+twice+" AS x FROM account WHERE id = ANY($1)", value("x")),
			[]string{"5"}, map[string]string{"5": "duplicate_name"}},
		"a name twice in a list": {settings("SELECT id, ARRAY["+twice+"] AS x FROM account WHERE id = ANY($1)", many),
			[]string{"5"}, map[string]string{"5": "duplicate_name"}},
		"a name twice in a composite": {settings("SELECT id, ROW(1, " + twice + ") AS x FROM account WHERE id = ANY($1)"),
			[]string{"5"}, map[string]string{"5": "duplicate_name"}},
		"a name twice in a list of composites, of one item": {settings("SELECT id, ARRAY[CASE WHEN id = 5 THEN ROW(1, " +
			twice + ")::pair ELSE ROW(2, '{}')::pair END] AS x FROM account WHERE id = ANY($1)"),
			[]string{"5", "6"}, map[string]string{"5": "duplicate_name", "6": `{"x":[{"n":2,"of":{}}]}`}},
		"half of a pair": {settings(`SELECT id, '"\ud83d"'::json AS x FROM account WHERE id = ANY($1)`),
			[]string{"5"}, map[string]string{"5": "lone_surrogate"}},
		"nested too deep": {settings("SELECT id, (repeat('[', id::int * 50) || repeat(']', id::int * 50))::json AS x "+
			"FROM account WHERE id = ANY($1)", value("x")), []string{"1", "5"},
			map[string]string{"1": strings.Repeat("[", 50) + strings.Repeat("]", 50), "5": "nested_too_deep"}},
		"a null": {settings("SELECT id, NULL::int AS x FROM account WHERE id = ANY($1)", value("x")), []string{"5"},
			map[string]string{"5": `null`}},
		"bytes": {settings("SELECT id, doc FROM account WHERE id = ANY($1)", value("doc"),
			func(q *gather.SQL) { q.ContentType = "application/pdf" }), []string{"5"},
			map[string]string{"5": "application/pdf %PDF-5"}},
		"many": {settings(movements, many),
			[]string{"1", "50"}, map[string]string{"1": `[{"amount":1},{"amount":11},{"amount":21}]`, "50": "[]"}},
		"many values": {settings(movements, many, value("amount")),
			[]string{"2"}, map[string]string{"2": `[2,12,22]`}},
		"one of many": {settings("SELECT account, amount FROM movement WHERE account = ANY($1)"), []string{"1"},
			map[string]string{"1": "many_rows"}},
		"items and parameters": {settings(`SELECT i->>'key', (i->'item'->>'n')::int AS n,
			i->'parts'->'accounts'->>'iban' AS iban, i->'parts' ? 'logo' AS logo,
			$3->>'year' AS year FROM jsonb_array_elements($2) i WHERE i->>'key' = ANY($1)`,
			func(q *gather.SQL) { q.Key = "?column?" }), []string{"a", "b"}, map[string]string{
			"a": `{"n":0,"iban":"X0","logo":false,"year":"2026"}`,
			"b": `{"n":1,"iban":"X1","logo":false,"year":"2026"}`}},
		"too large": {settings("SELECT id, repeat('x', id::int * 100) AS x FROM account WHERE id = ANY($1)",
			func(q *gather.SQL) { q.MaxBytes = 500 }), []string{"1", "9"}, map[string]string{
			"1": `{"x":"` + strings.Repeat("x", 100) + `"}`, "9": "result_too_large"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := get(t, b.client, test.settings, test.keys...)
			if err != nil || !maps.Equal(got, test.want) {
				t.Errorf("got  %v, %v\nwant %v", got, err, test.want)
			}
		})
	}
}

// A query for all columns gets those of the moment: a view may change while the node runs.
func TestColumnsOfTheMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct{ columns, want string }{
		{"id, owner", `{"owner":"Owner 5"}`},
		{"id, owner, code", `{"owner":"Owner 5","code":"K5"}`},
		{"id, code", `{"code":"K5"}`},
	} {
		b.exec(t, "DROP VIEW IF EXISTS shown; CREATE VIEW shown AS SELECT "+c.columns+" FROM account; "+
			"GRANT SELECT ON shown TO PUBLIC")
		got := testenv.Must(get(t, b.client, settings("SELECT * FROM shown WHERE id = ANY($1)"), "5"))(t)
		testenv.Same(t, got["5"], c.want, "of %s: %v", c.columns, got)
	}
}

// PROOF: who may do what, 12.
// Nothing is written, whatever a query tries, and by a role that could.
func TestQueriesOnlyRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, test := range [][2]string{
		{"SELECT harm(), $1::text[]", "forbidden"},
		{"SELECT id, set_config('transaction_read_only', 'off', false) FROM account WHERE id = ANY($1)", "bad_query"},
		{"SELECT id FROM account WHERE id = ANY($1) FOR UPDATE", "forbidden"},
		{"WITH d AS (DELETE FROM movement RETURNING account) SELECT account FROM d WHERE account = ANY($1)", "bad_query"},
		{"SELECT id FROM account WHERE id = ANY($1); DELETE FROM movement", "bad_query"},
		{"SELECT id FROM account WHERE id = ANY($1)) AS a; DELETE FROM movement; SELECT * FROM (SELECT 1", "bad_query"},
		{"SELECT id FROM account WHERE id = ANY($1) /* ", "bad_query"},
		{"SELECT id FROM account WHERE id = ANY($1) --", `{}`},
		{"SELECT id INTO stolen FROM account WHERE id = ANY($1)", "bad_query"},
		{"SELECT pg_read_file('/etc/passwd'), $1::text[]", "forbidden"},
		{"SELECT id, pg_advisory_lock(42)::text FROM account WHERE id = ANY($1)", `{"pg_advisory_lock":""}`},
		{"SELECT nothing FROM account WHERE id = ANY($1)", "bad_query"},
		{"SELECT id, id FROM account WHERE id = ANY($1)", "bad_query"},
		{"SELECT FROM account WHERE id = ANY($1)", "bad_query"},
		{"UPDATE account SET owner = '' WHERE id = ANY($1) RETURNING id", "bad_query"},
		{
			"SELECT id, (SELECT count(*) FROM dblink('x', 'y') AS t(a int)) AS n FROM account WHERE id = ANY($1)",
			"bad_query",
		},
		{
			"SELECT id FROM account WHERE id = ANY($1) UNION ALL SELECT nextval('pg_temp.s') FROM account WHERE false",
			"bad_query",
		},
	} {
		query, want := test[0], test[1]
		got, err := get(t, b.client, settings(query), "1")
		if got["1"] != want || err != nil {
			t.Errorf("%s: got %v, %v, want %s", query, got, err, want)
		}
	}
	// Some versions let it.
	_, _ = get(t, b.client, settings("SELECT id, lo_create(0) AS oid FROM account WHERE id = ANY($1)"), "1")
	var movements, locks, large int
	if err := b.admin.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM movement), (SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory'), (SELECT count(*) FROM pg_largeobject_metadata)`).
		Scan(&movements, &locks, &large); err != nil || movements != 30 || locks != 0 || large != 0 {
		t.Errorf("%d movements, %d locks and %d large objects are there, %v", movements, locks, large, err)
	}
}

// What a smaller chunk or another time may fix is the chunk's error.
func TestChunkErrors(t *testing.T) {
	t.Parallel()
	b := setup(t, "    max_rows: 50", "    max_bytes: 4KiB")
	for query, want := range map[string]string{
		simple: "bad_key",
		`SELECT id, convert_from('\xfc'::bytea, 'UTF8') FROM account WHERE id::text = ANY($1)`:      "not_utf8",
		"SELECT g % 2, g AS n FROM generate_series(1, 60) g WHERE $1::text[] IS NOT NULL":           "chunk_too_large",
		"SELECT g % 2, repeat('x', 500) FROM generate_series(1, 20) g WHERE $1::text[] IS NOT NULL": "chunk_too_large",
	} {
		got, err := get(t, b.client, settings(query), "1", "no number")
		if codeOf(err) != want || len(got) != 0 {
			t.Errorf("%s: got %v, %v, want %s", query, got, err, want)
		}
	}
	// The source is of use after each of them.
	got := testenv.Must(get(t, b.client, settings(simple), "1"))(t)
	testenv.Same(t, got["1"], "{}", "got %v", got)
}

const simple = "SELECT id FROM account WHERE id = ANY($1)"

// A source's limit of time ends a query, and not the step's.
func TestASlowQueryEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, "    max_time: 2s")
	query := settings("SELECT 1 AS id, pg_sleep(900)::text FROM generate_series(1, 1) WHERE $1::text[] IS NOT NULL",
		func(q *gather.SQL) { q.Timeout = workqueue.Duration(10 * time.Minute) })
	begun := time.Now()
	got, err := get(t, b.client, query, "1")
	if took := time.Since(begun); codeOf(err) != "timeout!" || len(got) != 0 || took > 2*time.Minute {
		t.Errorf("got %v, %v after %s", got, err, took)
	}
	testenv.Until(t, time.Minute, "the source is of use", func() bool { // a busy machine may need 2 s for anything
		got, err := get(t, b.client, settings(simple), "1")
		return err == nil && got["1"] == "{}"
	})
}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := getIn(ctx, t, b.client, settings("SELECT 1 AS id, pg_sleep(30)::text WHERE $1::text[] IS NOT NULL"), "1")
	testenv.Is(t, err, context.DeadlineExceeded, "a query of 30 s")
}

func TestSources(t *testing.T) {
	t.Parallel()
	super := testenv.EmptyDatabase(t)
	q := settings("SELECT k, 1 AS x FROM unnest($1::text[]) k")
	if got, err := get(t, client(t, super), q, "1"); got["1"] != "forbidden" || err != nil {
		t.Errorf("a superuser: %v, %v", got, err)
	}
	allowed := client(t, super, "    allow_superuser: true", "    max_connections: 1")
	if got, err := get(t, allowed, q, "1"); got["1"] != `{"x":1}` || err != nil {
		t.Errorf("a superuser that is allowed: %v, %v", got, err)
	}
	pooled := client(t, super, "    allow_superuser: true", "    transaction_pooler: true")
	readOnly := settings("SELECT k, current_setting('transaction_read_only') AS x FROM unnest($1::text[]) k")
	testenv.Same(t, testenv.Must(get(t, pooled, readOnly, "1"))(t)["1"], `{"x":"on"}`, "through a pooler")
	u := testenv.Must(url.Parse(super))(t)
	u.Host, u.User = "127.0.0.1:1", url.UserPassword("me", password)
	if got, err := get(t, client(t, u.String()), q, "1"); len(got) != 0 || codeOf(err) != "unreachable!" {
		t.Errorf("no one there: %v, %v", got, err)
	}
	other := settings("", func(q *gather.SQL) { q.Source = "other" })
	if _, err := get(t, allowed, other, "1"); codeOf(err) != "no_source" ||
		!strings.Contains(err.Error(), "there are ledger") {
		t.Errorf("another source: %v", err)
	}
	allowed.Close()
	_, err := get(t, allowed, q, "1")
	testenv.Same(t, codeOf(err), "unreachable!", "closed: %v", err)
}
