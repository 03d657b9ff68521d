package ingest_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/workqueue/collector"
)

func TestParseFillsInDefaults(t *testing.T) {
	t.Parallel()
	got, err := ingest.Parse("mail", []byte("endpoint: notify\n"))
	want := &collector.CollectorSpec{
		Name: "mail", Endpoint: "notify", MinSize: 100, MaxSize: 500, MaxAge: collector.Span(
			10 * time.Second), InFlight: 16,
		MaxAttempts: 5, Backoff: collector.Span(time.Second), MaxBackoff: collector.Span(5 * time.Minute),
		Timeout: collector.Span(time.Minute), Dedupe: collector.Span(24 * time.Hour), Order: "fifo",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestParseReadsEveryField(t *testing.T) {
	t.Parallel()
	got, err := ingest.Parse("f", []byte(`
name: crm
endpoint: crm-update
params: {year: 2026, mode: "x"}
min_size: 5
max_size: 10
max_age: 1m
in_flight: 3
rate: 50/m
max_attempts: 7
backoff: 2s
max_backoff: 1h
timeout: 90s
dedupe: 0s
order: fifo
strict: true
order_by: customer.id
partitions: 8
fold: merge
fold_by: customer.name
enrich:
  sql: {source: crm, query: "SELECT id FROM c WHERE id = ANY($1)", timeout: 2s}
  by: customer.no
  optional: true
  payload: {was: "{item}", row: "{parts.sql}"}
retry_codes: [BUSY, net.down]
no_retry_codes: [GONE]
`))
	want := &collector.CollectorSpec{
		Name: "crm", Endpoint: "crm-update", Params: map[string]string{"year": "2026", "mode": "x"}, MinSize: 5, MaxSize: 10,
		MaxAge: collector.Span(time.Minute), InFlight: 3, Rate: "50/m", MaxAttempts: 7,
		Backoff: collector.Span(2 * time.Second), MaxBackoff: collector.Span(time.Hour),
		Timeout: collector.Span(90 * time.Second), Order: "fifo", Strict: true, Fold: "merge", FoldBy: "customer.name",
		Enrich: &collector.Enrichment{SQL: []byte(`{"source":"crm","query":"SELECT id FROM c WHERE id = ANY($1)",` +
			`"rows":"one","timeout":"2s","max_rows":100000,"max_bytes":4194304}`), By: "customer.no", Optional: true,
			Payload: []byte(`{"row":"{parts.sql}","was":"{item}"}`)},
		OrderBy: &collector.OpKeying{Field: "customer.id", Partitions: 8}, RetryCodes: []string{"BUSY", "net.down"},
		NoRetryCodes: []string{"GONE"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestParseSaysWhereItIsWrong(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, want string }{
		{"",
			"collector f.yaml: it is empty"},
		{"name: x\n",
			"collector f.yaml: endpoint: it is missing; a collector needs the endpoint"},
		{"endpoint: a b\n",
			`f.yaml:1:11: endpoint: endpoint name "a b": use 1 to 64`},
		{"endpoint: e\nname: a.b\n",
			`f.yaml:2:7: name: invalid collector name "a.b"`},
		{"endpoint: e\nmin: 5\n",
			`f.yaml:2:1: unknown field "min", did you mean min_size?; there are name, endpoint, params`},
		{"endpoint: e\nmin_size: 0\n",
			"min_size: want a whole number within 1 to 8192; this is 0"},
		{"endpoint: e\nmin_size: 600\nmax_size: 500\n",
			"f.yaml:2:11: min_size: 600 is more than max_size, which is 500: a flush"},
		{"endpoint: e\nmax_age: 10\n",
			"max_age: want a duration like 90s, 2m or 1h30m, within 10ms to 720h; this is 10"},
		{"endpoint: e\nrate: 50\n",
			`f.yaml:2:7: rate: want calls in a time, like 10/s, 50/m, 100/h or 500/d`},
		{"endpoint: e\nrate: NaN/s\n",
			`this is "NaN/s"`},
		{"endpoint: e\nbackoff: 10m\nmax_backoff: 5m\n",
			"f.yaml:3:14: max_backoff: 5m0s is less than backoff, which is 10m0s"},
		{"endpoint: e\nmax_attempts: 1\nmax_backoff: 1m\n",
			"max_backoff: with max_attempts: 1 nothing is retried"},
		{"endpoint: e\norder_by: a..b\n",
			`f.yaml:2:11: order_by: "a..b" is not a field`},
		{"endpoint: e\npartitions: 4\n",
			"f.yaml:2:13: partitions: there is no order_by whose values could be spread"},
		{"endpoint: e\norder_by: a\nvalues: [x, x]\n",
			`f.yaml:3:13: values[1]: "x" appears twice`},
		{"endpoint: e\norder_by: a\nvalues: []\n",
			""},
		{"endpoint: e\norder_by: a\npartitions: 2\nvalues: [x]\n",
			"f.yaml:3:13: partitions: it does not go with values"},
		{"endpoint: e\nretry_codes: [a b]\n",
			`retry_codes[0]: "a b" is not an error code`},
		{"endpoint: e\nretry_codes: [A, A]\n",
			`f.yaml:2:18: retry_codes[1]: "A" appears twice`},
		{"endpoint: e\nretry_codes: [A]\nno_retry_codes: [A]\n",
			`f.yaml:3:17: no_retry_codes: "A" is in retry_codes, too`},
		{"endpoint: e\nparams: {a: " + strings.Repeat("x", 17000) + "}\n",
			"params: they have 17008 bytes; at most 16 KiB are allowed"},
		{"endpoint: e\nfold: last\norder: priority\n",
			"f.yaml:2:7: fold: it does not go with order: priority"},
		{"endpoint: e\nfold: last\nstrict: false\n",
			"f.yaml:3:9: strict: with fold it is always true"},
		{"endpoint: e\nfold_by: id\n",
			"fold_by: there is no fold that it could be of"},
		{"endpoint: e\nenrich: {by: a}\n",
			"enrich: payload is missing"},
		{"endpoint: e\nenrich: {payload: \"{item}\", by: a}\n",
			"enrich.by: by needs sql, endpoint or local"},
		{"endpoint: e\nenrich: {endpoint: a, local: b}\n",
			"enrich: give only one of sql, endpoint and local"},
		{"endpoint: e\nenrich: {local: a b}\n",
			`enrich.local: invalid name "a b"`},
		{"endpoint: e\nenrich: {endpoint: a, optional: true}\n",
			"enrich.optional: optional needs sql"},
		{"endpoint: e\nenrich: {endpoint: a, payload: \"{parts.sql}\"}\n",
			"enrich.payload: there is no"},
		{"endpoint: e\nenrich: {payload: {x: \"{secret.a}\"}}\n",
			"enrich.payload: x: there is no {secret.a} here; there are key, item.FIELD, params.NAME"},
		{"endpoint: e\nenrich:\n  sql: {source: s, query: DELETE}\n  payload: \"{item}\"\n",
			"f.yaml:3:27: enrich.sql.query: it only reads"},
		{"endpoint: e\nenrich:\n  sql: {source: s, query: \"SELECT $1, $2\"}\n  payload: \"{item}\"\n",
			"enrich.sql.query: there is no $2 here"},
		{"endpoint: e\nenrich:\n  sql: {source: s, query: \"SELECT $1\", max_rows: 0}\n  payload: \"{item}\"\n",
			"enrich.sql.max_rows: 0 is not within"},
		{strings.Repeat("# x\n", 20_000),
			"it has 80000 bytes; a collector has at most 65536"},
	} {
		text, want := tc.text, tc.want
		_, err := ingest.Parse("f.yaml", []byte(text))
		if want == "" || strings.HasPrefix(text, "endpoint: e\n") && !strings.Contains(text, "name:") {
			// The file's name is not a collector's: give it one, below what is wrong.
			_, err = ingest.Parse("f.yaml", []byte(text+"name: c\n"))
		}
		bad, ok := errors.AsType[*strictyaml.Error](err)
		if want == "" && err == nil {
			continue
		}
		if !ok || !strings.Contains(bad.Error(), want) {
			t.Errorf("%.80q gives %v; want …%s…", text, err, want)
		}
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		keying       *collector.OpKeying
		payload      string
		want, refuse string
	}{
		{nil, `{}`, "own", ""},
		{&collector.OpKeying{Field: "a.b"}, `{"a":{"b":7}}`, "7", ""},
		{&collector.OpKeying{Field: "a"}, `{"a":null}`, "", `field "a" is null`},
		{&collector.OpKeying{Field: "a", Values: []string{"x"}}, `{"a":"y"}`, "",
			"none of the values that are listed: x"},
		{&collector.OpKeying{Field: "a", Partitions: 100}, `{"a":"customer-7"}`, "97/100", ""},
		{&collector.OpKeying{Field: "key", Partitions: 100}, `{}`, "", ""},
		{&collector.OpKeying{Field: "a"}, `{"a":"` + strings.Repeat("x", 600) + `"}`, "", "the value has 600 bytes"},
		{&collector.OpKeying{Field: "a"}, `{"a":"x\u0000"}`, "", `order_by a: the value "x\x00" must be UTF-8 without NUL`},
	} {
		got, err := ingest.Key(&collector.CollectorSpec{OrderBy: tc.keying}, "own", []byte(tc.payload))
		if (tc.refuse == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.refuse) ||
			tc.want != "" && got != tc.want {
			t.Errorf("%+v of %.40s: %q, %v; want %q, %q", tc.keying, tc.payload, got, err, tc.want, tc.refuse)
		}
	}
}

func TestFold(t *testing.T) {
	t.Parallel()
	by := &collector.OpKeying{Field: "a", Partitions: 4}
	for _, tc := range []struct {
		spec            collector.CollectorSpec
		payload         string
		want, wrongWith string
	}{
		{collector.CollectorSpec{}, `{}`, "", ""},
		{collector.CollectorSpec{Fold: "last"}, `{}`, "own", ""},
		{collector.CollectorSpec{Fold: "last", OrderBy: by}, `{"a":7}`, "7", ""}, // and not its partition
		{collector.CollectorSpec{Fold: "last", OrderBy: by, FoldBy: "b"}, `{"a":7,"b":"x"}`, "x", ""},
		{collector.CollectorSpec{Fold: "last", FoldBy: "b"}, `{"a":7}`, "", `no field "b"`},
		{collector.CollectorSpec{Fold: "last", FoldBy: "b"}, `{"b":""}`, "", `field "b" is empty`},
		{collector.CollectorSpec{Fold: "last", FoldBy: "b"}, `{"b":"\u0000"}`, "", "fold by b: the value"},
	} {
		got, err := ingest.Fold(&tc.spec, "own", []byte(tc.payload))
		if got != tc.want || (tc.wrongWith == "") != (err == nil) || err != nil && !strings.Contains(err.Error(),
			tc.wrongWith) {
			t.Errorf("%+v of %s: %q, %v", tc.spec, tc.payload, got, err)
		}
	}
}

// Who changes what a collector's fields mean changes the examples, too.
func TestExamplesAreCollectors(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/collectors/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if spec, err := ingest.Parse(file, text); err != nil || spec.Name != name {
			t.Errorf("%s is %+v, %v", file, spec, err)
		}
	}
}
