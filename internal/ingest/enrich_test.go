package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// counted counts what sources are asked for.
type counted struct {
	from   *sqlfetch.Client
	asked  atomic.Int64 // times
	values atomic.Int64
}

// Fetcher implements ingest.Queries.
func (c *counted) Fetcher(config []byte) (fetch.Fetcher, error) {
	inner, err := c.from.Fetcher(config)
	return fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		c.asked.Add(1)
		c.values.Add(int64(len(req.Items)))
		return inner.Fetch(ctx, req)
	}), err
}

// withSource is a bench whose node has the source crm: customers 0 to 2999, of whom every hundredth has no name.
func withSource(t *testing.T) (*bench, *counted) {
	t.Helper()
	dsn := testenv.EmptyDatabase(t)
	source := testenv.Connect(t, dsn)
	testenv.Must(source.Exec(t.Context(), `CREATE TABLE customer (id bigint PRIMARY KEY, name text, more jsonb);
		INSERT INTO customer SELECT g, CASE WHEN g % 100 > 0 THEN 'Name ' || g END, '{"tier":"gold"}'
		FROM generate_series(0, 2999) g`))(t)
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "dsn"), []byte(dsn), 0o600))
	conns := testenv.Must(connections.Parse(filepath.Join(dir, "c.yaml"),
		[]byte("sources:\n  crm:\n    dsn: {file: dsn}\n    allow_superuser: true\n")))(t)
	from := &counted{from: sqlfetch.New(conns)}
	t.Cleanup(from.from.Close)
	b := setup(t)
	b.source = func(sql string) {
		testenv.Must(source.Exec(t.Context(), sql))(t)
	}
	b.it = ingest.New(collectorstore.New(b.store), b.adder, from, nil)
	return b, from
}

func (b *bench) stored(name, id string) string {
	b.Helper()
	ops, err := collectorstore.New(b.store).Ops(b.Context(), name, collectorstore.OpsFilter{ID: id})
	if err != nil || len(ops) != 1 {
		b.Fatalf("%s is %+v, %v", id, ops, err)
	}
	return string(ops[0].Payload)
}

func (b *bench) add(text string) (collectorstore.AddedOps, error) {
	b.Helper()
	return b.it.AddFrom(b.Context(), "e", strings.NewReader(text))
}

const enriched = `endpoint: echo
order_by: customer.id
partitions: 4
params: {year: 2026}
enrich:
  sql: {source: crm, query: "SELECT id, name, more FROM customer WHERE id = ANY($1)"}
  payload: {change: "{item}", name: "{parts.sql.name}", tier: "{parts.sql.more.tier}",
    note: "{item.n} of {params.year}"}
`

func TestStoringAddsDataOnce(t *testing.T) {
	t.Parallel()
	b, from := withSource(t)
	b.apply("e", enriched)
	text := `{"id":"a","payload":{"customer":{"id":7},"n":1}} {"id":"b","payload":{"customer":{"id":100},"n":2}}`
	if done, err := b.add(text); err != nil || done.Added != 2 {
		t.Fatalf("added %+v, %v", done, err)
	}
	if got, want := b.stored("e", "a"), `{"change":{"customer":{"id":7},"n":1},"name":"Name 7","note":"1 of 2026",`+
		`"tier":"gold"}`; got != want {
		t.Errorf("stored %s, want %s", got, want)
	}
	if got := b.stored("e", "b"); !strings.Contains(got, `"name":null`) { // as the row has it
		t.Errorf("stored %s", got)
	}
	// What is known is not asked for again, and one that is new is.
	if done, err := b.add(text); err != nil || done.Duplicates != 2 || from.asked.Load() != 1 {
		t.Errorf("again: %+v, %v, asked %d times", done, err, from.asked.Load())
	}
	done, err := b.add(text + ` {"id":"c","payload":{"customer":{"id":8},"n":3}}`)
	if err != nil || done.Added != 1 || done.Duplicates != 2 || from.asked.Load() != 2 || from.values.Load() != 3 {
		t.Errorf("again with another: %+v, %v, asked %d times for %d", done, err, from.asked.Load(), from.values.Load())
	}
}

func TestOneQueryForManyOperations(t *testing.T) {
	t.Parallel()
	b, from := withSource(t)
	b.apply("e", enriched)
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, `{"payload":{"customer":{"id":%d},"n":%d}}`, i%2500, i)
	}
	if done, err := b.add(text.String()); err != nil || done.Added != 5000 {
		t.Fatalf("added %+v, %v", done, err)
	}
	if from.asked.Load() != 3 || from.values.Load() != 2500 {
		t.Errorf("asked %d times for %d values", from.asked.Load(), from.values.Load())
	}
	if n := ingest.Held(b.it); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// Whatever is wrong, nothing is stored, and it is told whose fault it is.
func TestWhatCannotBeEnrichedIsNotStored(t *testing.T) {
	t.Parallel()
	b, _ := withSource(t)
	good := `{"payload":{"customer":{"id":7},"n":1}}`
	query := `{source: crm, query: "SELECT id, name FROM customer WHERE id = ANY($1)"}`
	for name, test := range map[string]struct{ enrich, ops, want string }{
		"no row": {`{sql: ` + query + `, payload: {x: "{parts.sql.name}"}}`, good + `{"payload":{"customer":{"id":9999}}}`,
			`operation 2: payload: enrich: "9999": source crm: no row of the key (not_found)`},
		"no number": {`{sql: ` + query + `, payload: {x: "{parts.sql.name}"}}`,
			good + good + `{"payload":{"customer":{"id":"x"}}}` + good, `operation 3: payload: enrich: "x": source crm:`},
		"no such column": {`{sql: ` + query + `, payload: {x: "{parts.sql.nam}"}}`, good,
			`operation 1: payload: enrich: {parts.sql.nam}: it has no value`},
		"no such field": {`{payload: {x: "{item.m}"}}`, good, `operation 1: payload: enrich: {item.m}: it has no value`},
		"no field to ask by": {`{sql: ` + query + `, by: person, payload: {x: "{parts.sql.name}"}}`, good,
			`operation 1: payload: enrich by person: there is no field "person"`},
		"a bad query": {`{sql: {source: crm, query: "SELECT id FROM no one WHERE id = ANY($1)"}, payload: "{item}"}`, good,
			"collector e stores what a query adds, and that fails"},
		"no source": {`{sql: {source: other, query: "SELECT id FROM customer WHERE id = ANY($1)"}, payload: "{item}"}`, good,
			"there are crm"},
		"too slow": {`{sql: {source: crm, timeout: 50ms, query: "SELECT id, pg_sleep(9)::text FROM customer WHERE ` +
			`id = ANY($1)"}, payload: "{item}"}`, good, "nothing was added, add them again later"},
		"too large": {`{sql: {source: crm, query: "SELECT id, repeat('x', 600000) AS x FROM customer WHERE id = ANY($1)"}, ` +
			`payload: "{parts.sql.x}"}`, good, "operation 1: payload: with what enrich adds it has 600002 bytes"},
		"too much": {`{payload: ["{item}", "{item}", "{item}"]}`, strings.Repeat(`{"payload":{"customer":{"id":7},"n":"`+
			strings.Repeat("x", 150_000)+`"}}`, 100), "more than 32 MiB"},
	} {
		b.apply("e", "endpoint: echo\norder_by: customer.id\nenrich: "+test.enrich+"\n")
		_, err := b.add(test.ops)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v; want …%s…", name, err, test.want)
		}
		if _, bad := errors.AsType[*ingest.OpError](err); bad != strings.HasPrefix(test.want, "operation") {
			t.Errorf("%s: %T", name, err)
		}
	}
	if n := len(b.keys("e")); n != 0 || ingest.Held(b.it) != 0 {
		t.Errorf("%d keys have operations, %d bytes are held", n, ingest.Held(b.it))
	}
	b.apply("e", "endpoint: echo\norder_by: customer.id\nenrich: {sql: "+query+
		", optional: true, payload: {x: \"{parts.sql.name}\"}}\n")
	testenv.Must(b.add(`{"id":"a","payload":{"customer":{"id":9999}}}`))(t)
	if got := b.stored("e", "a"); got != `{"x":null}` {
		t.Errorf("stored %s", got)
	}
}
