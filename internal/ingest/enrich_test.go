package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
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
	b.source = func(sql string) { testenv.Must(source.Exec(t.Context(), sql))(t) }
	nc := testenv.Conn(t, testenv.NATS(t))
	locals := map[string]fetch.Fetcher{
		"double": fetch.Typed(func(_ context.Context, in change, item *fetch.Item) (change, error) {
			return double(in, item.Key, item.Param("year"))
		}),
		"mute": fetch.Func(func(context.Context, *fetch.Request) ([]fetch.Slot, error) { return nil, nil }),
		"twice": fetch.Each(func(context.Context, *fetch.Item) (fetch.Part, error) {
			return fetch.Part{Data: []byte(`{"a":1,"a":2}`)}, nil
		}),
	}
	b.it = ingest.New(collector.New(b.store), b.adder, ingest.Sources{SQL: from, NC: nc, Locals: locals}, nil)
	svc := testenv.Must(endpoints.New(nc, endpoints.Config{Name: "test"}))(t)
	testenv.NoError(t, endpoints.HandleEach(svc, "double", func(ctx context.Context, in change) (change, error) {
		return double(in, endpoints.ItemOf(ctx).Key, endpoints.ItemOf(ctx).Param("year"))
	}))
	testenv.Keep(t, t.Errorf, "service", svc.Run)
	testenv.Until(t, limit, "the service listens", func() bool {
		_, err := endpoints.Call[change, change](t.Context(), nc, "double", "", change{N: 1}, endpoints.Direct())
		return err == nil
	})
	return b, from
}

type change struct {
	N    int    `json:"n"`
	Key  string `json:"key,omitempty"`
	Year string `json:"year,omitempty"`
}

// double is what a service and a function of withSource do.
func double(in change, key, year string) (out change, err error) {
	switch {
	case in.N < 0:
		return out, endpoints.Fail("negative", "%d is too little", in.N)
	case in.N == 0:
		return out, endpoints.Retry("away", "try later")
	}
	return change{2 * in.N, key, year}, nil
}

func (b *bench) stored(id string) string {
	b.Helper()
	page := testenv.Must(collector.New(b.store).Ops(b.Context(), collector.OpsFilter{Collector: "e", ID: id}))(b)
	testenv.MustSame(b, len(page.Ops), 1, "%s", id)
	return string(page.Ops[0].Payload)
}

func (b *bench) add(text string) (collector.AddedOps, error) {
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
	testenv.MustSame(t, testenv.Must(b.add(text))(t).Added, 2, "added")
	testenv.Same(t, b.stored("a"), `{"change":{"customer":{"id":7},"n":1},"name":"Name 7","note":"1 of 2026",`+
		`"tier":"gold"}`, "stored")
	if got := b.stored("b"); !strings.Contains(got, `"name":null`) { // as the row has it
		t.Errorf("stored %s", got)
	}
	// What is known is not requested again, and one that is new is.
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
	testenv.MustSame(t, testenv.Must(b.add(text.String()))(t).Added, 5000, "added")
	if from.asked.Load() != 3 || from.values.Load() != 2500 {
		t.Errorf("asked %d times for %d values", from.asked.Load(), from.values.Load())
	}
	testenv.Same(t, ingest.Held(b.it), 0, "bytes are held")
}

// A service or a function is asked for each operation, with its payload, and its answer is stored.
func TestWhatAServiceOrAFunctionMakesIsStored(t *testing.T) {
	t.Parallel()
	b, _ := withSource(t)
	const made = `{"n":2,"key":"7","year":"2026"}`
	for i, c := range []struct{ enrich, want string }{
		{"{endpoint: double}", made}, {"{local: double}", made},
		{`{endpoint: double, by: n, payload: {was: "{item.n}", now: "{parts.endpoint.key}"}}`, `{"now":"1","was":1}`},
	} {
		b.apply("e", "endpoint: echo\norder_by: customer.id\npartitions: 4\nparams: {year: 2026}\nenrich: "+c.enrich+"\n")
		var text strings.Builder
		for n := range 3000 {
			fmt.Fprintf(&text, `{"id":"%d-%d","payload":{"customer":{"id":7},"n":%d}}`, i, n, n+1)
		}
		testenv.MustSame(t, testenv.Must(b.add(text.String()))(t).Added, 3000, "added with %s", c.enrich)
		testenv.Same(t, b.stored(fmt.Sprint(i, "-0")), c.want, "stored with %s", c.enrich)
		want := strings.NewReplacer(`"n":2`, `"n":6000`, `"now":"1"`, `"now":"3000"`, `"was":1`, `"was":3000`).Replace(c.want)
		testenv.Same(t, b.stored(fmt.Sprint(i, "-2999")), want, "stored with %s", c.enrich)
	}
	testenv.Same(t, ingest.Held(b.it), 0, "bytes are held")
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
			"collector e stores what its enrich adds, and that fails"},
		"a service's error": {`{endpoint: double}`, good + `{"payload":{"customer":{"id":8},"n":-1}}`,
			`operation 2: payload: enrich: "8": -1 is too little (negative)`},
		"a function's error": {`{local: double}`, good + `{"payload":{"customer":{"id":8},"n":-1}}`,
			`operation 2: payload: enrich: "8": -1 is too little (negative)`},
		"not its input": {`{endpoint: double}`, `{"payload":{"customer":{"id":8},"n":"x"}}`,
			`operation 1: payload: enrich: "8": `},
		"a service is busy":  {`{endpoint: double}`, good + `{"payload":{"customer":{"id":8},"n":0}}`, "try later"},
		"a function is busy": {`{local: double}`, `{"payload":{"customer":{"id":8},"n":0}}`, "try later"},
		"no service":         {`{endpoint: nobody}`, good, "nobody"},
		"no function":        {`{local: nobody}`, good, "no function nobody; add through the API of the program that has it"},
		"no answer":          {`{local: mute}`, good, `no answer for "7"`},
		"flawed JSON":        {`{local: twice}`, good, `operation 1: payload: enrich: "7": `},
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
		testenv.Says(t, err, test.want, "%s", name)
		if _, bad := errors.AsType[*ingest.OpError](err); bad != strings.HasPrefix(test.want, "operation") {
			t.Errorf("%s: %T", name, err)
		}
	}
	bare := ingest.New(collector.New(b.store), b.adder, ingest.Sources{}, nil)
	for enrich, want := range map[string]string{
		"{endpoint: double}":                           "this node has no NATS connection to call endpoint double",
		"{sql: " + query + `, payload: "{parts.sql}"}`: "this node has no sources; start it with --connections FILE",
	} {
		b.apply("e", "endpoint: echo\norder_by: customer.id\nenrich: "+enrich+"\n")
		_, err := bare.AddFrom(t.Context(), "e", strings.NewReader(good))
		testenv.Says(t, err, want, "a node that lacks it")
	}
	if n := len(b.keys("e")); n != 0 || ingest.Held(b.it) != 0 {
		t.Errorf("%d keys have operations, %d bytes are held", n, ingest.Held(b.it))
	}
	b.apply("e", "endpoint: echo\norder_by: customer.id\nenrich: {sql: "+query+
		", optional: true, payload: {x: \"{parts.sql.name}\"}}\n")
	testenv.Must(b.add(`{"id":"a","payload":{"customer":{"id":9999}}}`))(t)
	testenv.Same(t, b.stored("a"), `{"x":null}`, "stored")
}

// That a source fails is told with the collector, whatever node is asked, until an add is taken.
func TestRefusalsAreTold(t *testing.T) {
	t.Parallel()
	b, from := withSource(t)
	b.apply("e", enriched)
	refused := func() *collector.CollectorReason {
		t.Helper()
		view := testenv.Must(collector.New(b.store).Collector(t.Context(), "e"))(t)
		for i := range view.Why {
			if view.Why[i].Code == "source" {
				return &view.Why[i]
			}
		}
		return nil
	}
	another := ingest.New(collector.New(b.store), b.adder, ingest.Sources{SQL: from}, nil)
	taken := strings.NewReader(`{"payload":{"customer":{"id":6},"n":1}}`)
	testenv.Must(another.AddFrom(t.Context(), "e", taken))(t)
	const one = `{"id":"a","payload":{"customer":{"id":7},"n":1}}`
	b.source(`ALTER TABLE customer RENAME TO moved`)
	for range 2 {
		_, err := b.add(one)
		_ = testenv.As[*ingest.EnrichError](t, err, "the source has no such table")
	}
	why := refused()
	if why == nil || !strings.Contains(why.Text, `relation "customer" does not exist`) ||
		!strings.Contains(why.Text, "fix the source") {
		t.Fatalf("told: %+v", why)
	}
	b.source(`ALTER TABLE moved RENAME TO customer`)
	testenv.Must(another.AddFrom(t.Context(), "e", strings.NewReader(one)))(t)
	if refused() == nil {
		t.Error("one node is silent, and what another said a moment ago is forgotten")
	}
	testenv.Must(b.add(strings.ReplaceAll(one, `"a"`, `"b"`)))(t)
	testenv.Same(t, refused(), nil, "told after an add that was taken")
}

// A dry run says what an add would, and shows what would be stored.
func TestTryingAddsNothing(t *testing.T) {
	t.Parallel()
	b, from := withSource(t)
	b.apply("e", enriched+"fold: last\n")
	testenv.Must(b.add(`{"id":"a","payload":{"customer":{"id":7},"n":1}}`))(t)
	text := `{"id":"a","payload":{"customer":{"id":7},"n":1}} {"id":"b","payload":{"customer":{"id":8},"n":2}}` +
		`{"id":"b","payload":{"customer":{"id":8},"n":3}} {"payload":{"customer":{"id":9},"n":4}}`
	for range 2 {
		done, sample, err := b.it.TryFrom(t.Context(), "e", strings.NewReader(text))
		if err != nil || done.Added != 2 || done.Duplicates != 2 || len(sample) != 2 {
			t.Fatalf("%+v, %+v, %v", done, sample, err)
		}
		if got := sample[0]; got.ID != "b" || !strings.HasSuffix(got.Key, "/4") || got.Fold != "8" ||
			!strings.Contains(string(got.Payload), `"name":"Name 8"`) || !strings.Contains(string(got.Payload), "2 of 2026") {
			t.Errorf("shown: %+v %s", got, got.Payload)
		}
	}
	_, _, err := b.it.TryFrom(t.Context(), "e", strings.NewReader(text+`{"payload":{"customer":{"id":9999},"n":1}}`))
	testenv.Same(t, testenv.As[*ingest.OpError](t, err, "an operation without a row").Number, 5, "its number")
	_, _, err = b.it.TryFrom(t.Context(), "nobody", strings.NewReader(text))
	testenv.Fails(t, err, "there is no such collector")
	if keys := b.keys("e"); len(keys) != 1 || ingest.Held(b.it) != 0 || from.asked.Load() != 4 {
		t.Errorf("stored: %v; %d bytes are held; asked %d times", keys, ingest.Held(b.it), from.asked.Load())
	}
	if done, err := b.add(text); err != nil || done.Added != 2 || done.Duplicates != 2 {
		t.Errorf("added: %+v, %v", done, err)
	}
}

func TestReadTakesLinesAndLists(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"id":"1","key":"a","priority":3,"payload":{"x": [1, 2.50]}}` + "\n" + `{"payload":null}` + "\r\n\n",
		"\ufeff" + `{"id":"1","key":"a","priority":3,"payload":{"x":[1,2.50]}} {"payload":null}`,
		`{"ops":[{"id":"1","key":"a","priority":3,"payload":{"x":[1,2.50]}},{"payload":null}]}`,
		` { "ops" : [ {"payload":{"x":[1,2.50]},"priority":3,"key":"a","id":"1"} ] } {"payload" : null }`,
	} {
		ops := testenv.Must(ingest.Read(iotest.OneByteReader(strings.NewReader(text))))(t)
		testenv.MustSame(t, len(ops), 2, "%s", text)
		if op := ops[0]; op.ID != "1" || op.Key != "a" || op.Priority != 3 || string(op.Payload) != `{"x":[1,2.50]}` {
			t.Errorf("%s: the first is %+v", text, op)
		}
		if op := ops[1]; op.ID != "" || op.Key != "" || string(op.Payload) != "null" {
			t.Errorf("%s: the second is %+v", text, op)
		}
	}
	testenv.Same(t, len(testenv.Must(ingest.Read(strings.NewReader(`{"ops":[]}`)))(t)), 0, "an empty list")
}

func TestReadSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const good = `{"payload":1}` + "\n"
	for text, want := range map[string]string{
		"":                                   "there is no operation; want objects like",
		"\n":                                 "there is no operation",
		good + good + `{"key":"a"}`:          "operation 3 (line 3): payload: it is missing",
		good + `{"key":5,"payload":1}`:       "operation 2 (line 2): key: want text in quotes; this is a number",
		`{"id":null,"payload":1}`:            "id: want text in quotes; this is null",
		`{"priority":"5","payload":1}`:       "priority: want a whole number within 0 to 9",
		`{"priority":10,"payload":1}`:        "this is \"10\"",
		`{"priority":1.0,"payload":1}`:       "priority: want a whole number",
		`{"pay":1}`:                          `operation 1 (line 1): unknown member "pay"; there are id, key`,
		`{"payload":1,"ops":[]}`:             `unknown member "ops"`,
		`{"ops":{}}`:                         "ops: want a list of operations; this is an object",
		`{"ops":[1]}`:                        "want an object like",
		`{"ops":[],"x":1}`:                   `want only "ops"`,
		`{"ops":[{"payload":1}`:              "the JSON is truncated",
		"{\"ops\":[\n{\"payload\":1},\n{}]}": "operation 2 (line 3): payload: it is missing",
		`[{"payload":1}]`:                    "want an object like {\"id\":\"order-17\"",
		`hello`:                              "this is not JSON",
		good + `{"payload":}`:                "operation 2 (line 2): this is not JSON",
		`{"payload":{"a":1,"a":2}}`:          "duplicate",
		`{"payload":1,"payload":2}`:          "duplicate",
		"{\"key\":\"\xff\",\"payload\":1}":   "UTF-8",
		`{"payload":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: "payload: it is nested deeper than 128",
		`{"payload":"` + strings.Repeat("x", 600<<10) + `"}`:                      "payload: it has 614402 bytes",
		strings.Repeat(good, ingest.MaxOps+1):                                     "there are more than 100000 operations",
	} {
		ops, err := ingest.Read(strings.NewReader(text))
		testenv.Says(t, err, want, "%.60q is read as %d operations", text, len(ops))
	}
	broken := errors.New("the line is cut")
	_, err := ingest.Read(io.MultiReader(strings.NewReader(good+`{"payl`), iotest.ErrReader(broken)))
	testenv.Is(t, err, broken, "a reader that fails")
}

// Lines are counted also where values have lines of their own.
func TestReadCountsLines(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 50 {
		fmt.Fprintf(&text, "{\"payload\":{\n\"n\":%d\n}}\n", i)
	}
	_, err := ingest.Read(strings.NewReader(text.String() + `{"payload":`))
	bad, ok := errors.AsType[*ingest.OpError](err)
	if !ok || bad.Number != 51 || bad.Line != 151 {
		t.Errorf("got %v; want operation 51 in line 151", err)
	}
}
