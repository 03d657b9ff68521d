package sqlfetch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// password is that of the source's role. It must be seen nowhere.
const password = "CANARY-pw-91"

// bundle is a source with a table of accounts, and a client that knows it as "ledger".
type bundle struct {
	client *sqlfetch.Client
	admin  *pgxpool.Pool // of the source
	dsn    string
}

const schema = `
CREATE TABLE account (id bigint PRIMARY KEY, code text UNIQUE, owner text, opened date, balance numeric(12,2),
    doc bytea, more jsonb);
INSERT INTO account SELECT g, 'K' || g, 'Owner ' || g, date '2020-01-01' + g, g * 1.10,
    convert_to('%PDF-' || g, 'UTF8'), jsonb_build_object('n', g) FROM generate_series(0, 99) g;
CREATE TABLE movement (account bigint, amount numeric);
CREATE TYPE pair AS (n int, of json);
INSERT INTO movement SELECT g % 10, g FROM generate_series(0, 29) g;
CREATE FUNCTION harm() RETURNS text LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO movement VALUES (1, 1); RETURN 'x'; END $$;`

// setup makes a source whose role may even write, so that it is not the role that keeps queries from it.
func setup(t *testing.T, more ...string) *bundle {
	t.Helper()
	b := &bundle{dsn: testenv.OddDatabase(t)}
	b.admin = testenv.Connect(t, b.dsn)
	role := "reader_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	b.exec(t, schema)
	b.exec(t, fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s'; GRANT ALL ON ALL TABLES IN SCHEMA public TO %[1]s;
		GRANT CREATE ON SCHEMA public TO %[1]s`, role, password))
	t.Cleanup(func() {
		_, err := b.admin.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role))
		testenv.NoError(t, err)
	})
	u := testenv.Must(url.Parse(b.dsn))(t)
	u.User = url.UserPassword(role, password)
	b.client = client(t, u.String(), more...)
	return b
}

func (b *bundle) exec(t *testing.T, sql string) {
	t.Helper()
	testenv.Must(b.admin.Exec(t.Context(), sql))(t)
}

func client(t *testing.T, dsn string, more ...string) *sqlfetch.Client {
	t.Helper()
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "dsn"), []byte(dsn), 0o600))
	conns := testenv.Must(connections.Parse(filepath.Join(dir, "c.yaml"),
		[]byte("sources:\n  ledger:\n    dsn: {file: dsn}\n"+strings.Join(more, "\n"))))(t)
	c := sqlfetch.New(conns)
	t.Cleanup(c.Close)
	return c
}

func settings(query string, change ...func(*gather.SQL)) *gather.SQL {
	q := &gather.SQL{Source: "ledger", Query: query, Rows: gather.RowsOne, Timeout: workqueue.Duration(time.Minute),
		MaxRows: 1000, MaxBytes: 1 << 20}
	for _, f := range change {
		f(q)
	}
	return q
}

func get(t *testing.T, c *sqlfetch.Client, q *gather.SQL, keys ...string) (map[string]string, error) {
	t.Helper()
	return getIn(t.Context(), t, c, q, keys...)
}

// getIn returns the results by their keys, and the codes of errors.
func getIn(
	ctx context.Context, t *testing.T, c *sqlfetch.Client, q *gather.SQL, keys ...string,
) (map[string]string, error) {
	t.Helper()
	config := testenv.Must(json.Marshal(q))(t)
	f, err := c.Fetcher(config)
	if err != nil {
		return nil, err
	}
	req := &fetch.Request{Run: uuid.New(), Step: "history", Params: map[string]string{"year": "2026"}}
	for i, key := range keys {
		req.Items = append(req.Items, fetch.Item{Ordinal: i, Key: key, Payload: []byte(fmt.Sprintf(`{"n":%d}`, i)),
			Parts: map[string]fetch.Part{"accounts": {Data: []byte(`{"iban":"X` + fmt.Sprint(i) + `"}`)},
				"logo": {Data: []byte{1}, ContentType: "image/png"}}})
	}
	slots, err := f.Fetch(ctx, req)
	for codeOf(err) == "timeout!" && strings.HasSuffix(err.Error(), "its database cannot be reached") {
		slots, err = f.Fetch(ctx, req) // a connection has 5 s to be made, which a busy machine may need
	}
	got := map[string]string{}
	for _, slot := range slots {
		key := keys[slot.Ordinal]
		switch {
		case slot.Err != nil:
			noCanary(t, slot.Err)
			got[key] = codeOf(slot.Err)
		case slot.ContentType != "":
			got[key] = slot.ContentType + " " + string(slot.Data)
		default:
			got[key] = string(slot.Data)
		}
	}
	if err != nil {
		noCanary(t, err)
	}
	return got, err
}

func noCanary(t *testing.T, err error) {
	t.Helper()
	if strings.Contains(err.Error(), "CANARY") || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a password or an address is in %q", err)
	}
}

// codeOf returns the code of an error, with an exclamation mark when it is retryable.
func codeOf(err error) string {
	e, ok := err.(*wire.SlotError) //nolint:errorlint // as the node gets it
	switch {
	case !ok || e == nil:
		return ""
	case e.Retry:
		return e.Code + "!"
	}
	return e.Code
}
