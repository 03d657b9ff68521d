package runs_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func query(text string) string {
	return "/runs?" + url.Values{"endpoint": {"echo"}, "sql": {text}, "sql_source": {"ledger"}}.Encode()
}

func TestStartFromAQuery(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.WithSource("")
	b.Want(query(`
		SELECT 7 AS key, 'Änn "A"' AS name, 16777216::float4 AS f4, 0.1::float8 + 0.2 AS f8, '1 day 02:03'::interval AS iv,
		       12.50::numeric(9,2) AS amount, 1e300::float8 AS big, 'NaN'::float8 AS nan,
		       true AS ok, NULL::text AS gone, '2026-01-02 03:04:05.5+01'::timestamptz AS at,
		       '2026-01-02 03:04:05'::timestamp AS wall, date '2026-01-02' AS day,
		       '\x00ff'::bytea AS raw, '{"a": [1, 2]}'::json AS doc, ARRAY[1, NULL, 3] AS list,
		       ARRAY[['a,b', 'c"d'], ['', 'NULL']] AS grid,
		       '9007199254740993'::int8 AS wide`), "", 201, `"items":1`, `"key":"key"`)
	want := `7 {"key":7,"name":"Änn \"A\"","f4":1.6777216e+07,"f8":0.30000000000000004,"iv":"P1DT2H3M",` +
		`"amount":"12.50","big":1e+300,"nan":"NaN","ok":true,"gone":null,` +
		`"at":"2026-01-02T02:04:05.5Z","wall":"2026-01-02T03:04:05","day":"2026-01-02","raw":"AP8=","doc":{"a":[1,2]},` +
		`"list":[1,null,3],"grid":[["a,b","c\"d"],["","NULL"]],"wide":9007199254740993}`
	if got := b.Payloads(); len(got) != 1 || got[0] != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	keyed := query(`SELECT 'k' || g AS id FROM generate_series(1, 4321) g`) + "&idempotency_key=k"
	b.Want(keyed, "", 201, `"items":4321`, `"key":"id"`)
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{})
	b.Want(keyed, "", 200, `"items":4321`, `"existing":true`) // without the source
}

// PROOF: who may do what, 12.
func TestQueriesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.WithSource(", max_rows: 10, max_bytes: 2KiB", `CREATE TABLE t (id int)`, `CREATE SEQUENCE n`)
	for text, want := range map[string]string{
		"SELECT 1 AS id,\n  nothing":                            `line 2, column 3: column \"nothing\" does not exist`,
		"SELECT id FROM (VALUES ('a'), ('b'), ('a')) v (id)":    `row 3: key \"a\" is the key of row 1 already`,
		"SELECT nullif(g, 2) AS id FROM generate_series(1,3) g": "row 2, field \\\"id\\\": the key is NULL",
		`SELECT 1 AS id, '{"a": 1, "a": 2}'::json AS doc`:       "has a name twice in one object",
		"SELECT '' AS id": "row 1, field \\\"id\\\": the key is empty",
		"SELECT g AS id FROM generate_series(1, 11) g":                      "more than 10 rows",
		"SELECT g AS id, repeat('x', 900) FROM generate_series(1, 5) g":     "more than 2048 bytes",
		"SELECT 1 AS id, 2 AS id":                                           "two columns called",
		"SELECT":                                                            "no columns",
		"SELECT 1 AS id WHERE false":                                        "no rows",
		"SELECT 1 AS id; DROP TABLE t":                                      "cannot insert multiple commands",
		"DELETE FROM t RETURNING id":                                        "syntax error",
		"WITH d AS (INSERT INTO t VALUES (1) RETURNING id) SELECT * FROM d": "must not contain data-modifying",
		"SELECT nextval('s') AS id":                                         "does not exist",
		"COMMIT":                                                            "syntax error",
		"SELECT nextval('n') AS id":                                         "read-only transaction",
		" ":                                                                 "sql and sql_source",
	} {
		if text == " " {
			text = ""
		}
		b.Want(query(text), "", 422, want)
	}
	b.Want("/runs?endpoint=echo&sql=SELECT+1&sql_source=other", "", 422, `no source \"other\"; there are ledger`)
	b.Want("/runs?endpoint=echo&sql=SELECT+1&sql_source=ledger&key=x", "", 422, `no column \"x\"`)
	b.Want("/runs?endpoint=echo&sql=SELECT+1&sql_source=ledger", apitest.Three, 422, "items in the body")
	b.Want("/runs?endpoint=echo&sql=SELECT+1&sql_source=ledger&stream=s", "", 422, "one place")
	b.WithSource(", max_time: 1s")
	b.Want(query("SELECT 1 AS id, pg_sleep(9)"), "", 422, "took longer than 1s")
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{})
	b.Want(query("SELECT 1"), "", 422, "without --connections")
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 0, "runs were started")
}

func TestStartFromAStream(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	nc := testenv.Conn(t, testenv.NATS(t))
	b.ServeWith(nc, api.Config{})
	js := testenv.Must(jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)))(t)
	for _, policy := range []jetstream.RetentionPolicy{jetstream.LimitsPolicy, jetstream.WorkQueuePolicy} {
		name := strings.ToUpper(policy.String())
		testenv.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: []string{name + ".>"}, Retention: policy, Storage: jetstream.MemoryStorage,
		}))(t)
		for i := range 20 {
			msg := nats.NewMsg(fmt.Sprintf("%s.%d", name, i%2))
			msg.Data = fmt.Appendf(nil, "{\n\t\"id\": %d }", i)
			if i%2 == 1 {
				msg.Header.Set("Tranche-Key", fmt.Sprintf("h%d", i))
				msg.Data = []byte(`{"v":[1, 2]}`)
			}
			testenv.Must(js.PublishMsg(t.Context(), msg))(t)
		}
		b.Want("/runs?endpoint=echo&stream="+name, "", 201, `"items":20`)
		b.Want("/runs?endpoint=echo&stream="+name+"&stream_subject="+name+".1&stream_from=11", "", 201, `"items":5`)
		b.Want("/runs?endpoint=echo&stream="+name+"&stream_from=99", "", 422, "its last message is 20")
		b.Want("/runs?endpoint=echo&stream="+name+"&stream_subject="+name+".9", "", 422, "no messages")
		b.Want("/runs?endpoint=echo&stream="+name+"&stream_subject="+name+".0&key=x", "", 422,
			`message 1: no field \"x\"`)
		stream := testenv.Must(js.Stream(t.Context(), name))(t)
		testenv.Same(t, stream.CachedInfo().State.Msgs, 20, "%s: messages are left", name)
		for _, n := range []uint64{3, 7} { // what was gone before is not missed
			testenv.NoError(t, stream.DeleteMsg(t.Context(), n))
		}
		b.Want("/runs?endpoint=echo&stream="+name+"&stream_from=2", "", 201, `"items":17`)
	}
	got := strings.Join(b.Payloads(), "\n")
	for _, want := range []string{`0 {"id":0}`, `h1 {"v":[1,2]}`} {
		testenv.Has(t, got, want, "the items")
	}
	b.Want("/runs?endpoint=echo&stream=NOWHERE", "", 422, "there is no such stream; there are")
}
