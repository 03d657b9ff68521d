package runs_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func parquetFile(t *testing.T, ids ...string) string {
	t.Helper()
	type row struct {
		ID string `parquet:"id"`
	}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[row](&out)
	for _, id := range ids {
		testenv.Must(w.Write([]row{{id}}))(t)
	}
	testenv.NoError(t, w.Close())
	return out.String()
}

// many is a CSV file of so many rows; one that is named stands again at its end.
func many(n int, again string) string {
	var b strings.Builder
	b.WriteString("id,name\n")
	for i := range n {
		fmt.Fprintf(&b, "%d,x\n", i)
	}
	if again != "" {
		b.WriteString(again + ",x\n")
	}
	return b.String()
}

func packed(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write([]byte(text))
	testenv.NoError(t, errors.Join(err, w.Close()))
	return out.String()
}

// A dry run and a start of the same request are refused with the same problem, or make the same of it.
func TestDryRunsAndStartsAgree(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.WithSource("")
	const multi = "multipart/form-data; boundary=x"
	part := func(settings, items string) string {
		return "--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n" + settings +
			"\r\n--x\r\nContent-Disposition: form-data; name=\"items\"; filename=\"f\"\r\n\r\n" + items + "\r\n--x--\r\n"
	}
	sql := func(text string) string { return url.Values{"sql": {text}, "sql_source": {"ledger"}}.Encode() }
	for name, c := range map[string]struct{ query, body, kind string }{
		"good":                {"endpoint=echo", apitest.Three, ""},
		"duplicates refused":  {"endpoint=echo", "id\n1\n2\n\n1\n2\n", ""},
		"far duplicates":      {"endpoint=echo", many(40_000, "7"), ""},
		"many":                {"endpoint=echo&chunk=500", many(40_000, ""), ""},
		"duplicates skipped":  {"endpoint=echo&on_duplicate=skip", "id\n1\n1\n2\n1\n", ""},
		"duplicates allowed":  {"endpoint=echo&on_duplicate=allow", "id\n1\n1\n", ""},
		"ndjson":              {"endpoint=echo", `{"id":1}` + "\n" + `{"id":2}`, ""},
		"ndjson broken":       {"endpoint=echo", `{"id":1}` + "\n" + `{"id":`, ""},
		"parquet":             {"endpoint=echo", parquetFile(t, "a", "b"), ""},
		"parquet twice":       {"endpoint=echo", parquetFile(t, "a", "b", "a"), ""},
		"parquet cut":         {"endpoint=echo", parquetFile(t, "a")[:40], ""},
		"no rows":             {"endpoint=echo", "id\n", ""},
		"not UTF-8":           {"endpoint=echo", "id\n\xff\n", ""},
		"chunk":               {"endpoint=echo&chunk=9000", apitest.Three, ""},
		"no such plan":        {"plan_ref=nope", apitest.Three, ""},
		"param":               {"endpoint=echo&param=%00%3D1", apitest.Three, ""},
		"canary":              {"endpoint=echo&canary=2", apitest.Three, ""},
		"sql":                 {"endpoint=echo&" + sql("SELECT g AS id FROM generate_series(1, 9) g"), "", ""},
		"sql twice":           {"endpoint=echo&" + sql("SELECT 1 AS id FROM generate_series(1, 9) g"), "", ""},
		"sql wrong":           {"endpoint=echo&" + sql("SELECT nothing AS id"), "", ""},
		"multipart":           {"", part(`{"endpoint":"echo"}`, apitest.Three), multi},
		"multipart bad plan":  {"", part(`{"plan":"steps: 3"}`, apitest.Three), multi},
		"multipart bad items": {"", part(`{"endpoint":"echo"}`, "id\n1\n1\n"), multi},
		"multipart cut short": {"", strings.TrimSuffix(part(`{"endpoint":"echo"}`, apitest.Three), "--\r\n"), multi},
		"multipart cut":       {"", part(`{"endpoint":"echo"}`, apitest.Three)[:150], multi},
		"unknown setting":     {"color=red&endpoint=echo", apitest.Three, ""},
	} {
		before := b.Stored()
		header := []string{}
		if c.kind != "" {
			header = []string{"Content-Type", c.kind}
		}
		code, detail, text := b.Asked("/runs?dry_run=true&"+c.query, c.body, header...)
		testenv.Same(t, b.Stored(), before, "%s: rows stored after a dry run", name)
		startCode, startDetail, startText := b.Asked("/runs?"+c.query, c.body, header...)
		if detail != startDetail || code != startCode && (code != 200 || startCode != 201) {
			t.Errorf("%s: the dry run says %d %q, the start %d %q", name, code, detail, startCode, startDetail)
		}
		if startCode != http.StatusCreated {
			continue
		}
		var dry runs.DryRun
		var started runs.Started
		testenv.NoError(t, json.Unmarshal(text, &dry))
		testenv.NoError(t, json.Unmarshal(startText, &started))
		var bytes, held int64
		err := b.Pool.QueryRow(t.Context(), `SELECT sum(payload_bytes), sum(coalesce(bit_count(held), 0))
			FROM work_block WHERE run_id = $1`, started.Run).Scan(&bytes, &held)
		if err != nil || dry.Items != started.Items || dry.Skipped != started.Skipped || dry.Key != started.Key ||
			dry.Bytes != bytes || dry.Held != held || !dry.DryRun || len(dry.First) != int(min(10, dry.Items)) {
			t.Errorf("%s: the dry run says %s; it became %s with %d bytes, %d held", name, text, startText, bytes, held)
		}
	}
}

func TestDryRunOfAPlan(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const plan = "name: two\nsteps:\n  - {name: a, endpoint: echo, chunk: 7}\n" +
		"  - {name: b, http: {url: 'http://127.0.0.1:1/{key}'}, needs: [a]}\n"
	b.Post("/plans", plan, nil)
	code, _, text := b.Asked("/runs?dry_run=true&plan_ref=two&idempotency_key=k", many(10_000, ""))
	for _, want := range []string{`"plan":"two","plan_version":1`, `"items":10000`,
		`{"name":"a","kind":"endpoint","endpoint":"echo","chunk":7,"in_flight":`, `"requests":1430,`, // 1171 + 259
		`"needs":["a"]`, `"requests":10000,`, `"first":[{"line":2,"key":"0","payload":{"id":"0","name":"x"}}`,
		`no service listens on endpoint echo`} {
		if code != 200 || !strings.Contains(string(text), want) {
			t.Errorf("%d %s lacks %s", code, text, want)
		}
	}
	b.Exec(`INSERT INTO endpoint_setting (endpoint, canary, canary_share, canary_since)
		VALUES ('echo', 'echo-v2', 100, tranche_now())`)
	_, _, text = b.Asked("/runs?dry_run=true&endpoint=echo", apitest.Three)
	testenv.Has(t, string(text), "no service listens on endpoint echo-v2", "where all requests go to a canary")
	started := b.Start("idempotency_key=k2")
	_, detail, text := b.Asked("/runs?dry_run=true&endpoint=echo&idempotency_key=k2", apitest.Three)
	testenv.Has(t, string(text), `"existing":"`+started.Run.String(), "of what was started before: %s", detail)
	code, _, text = b.Asked("/runs?dry_run=true&endpoint=echo&idempotency_key=schedule/nightly/2026-11-22", apitest.Three)
	if code/100 != 4 || !strings.Contains(string(text), "are those of schedules") {
		t.Errorf("with the key of a schedule's run: %d %s", code, text)
	}
}

func TestPreviews(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	show := func(status int, want, query, body string, header ...string) {
		t.Helper()
		code, text := b.Ask(http.MethodPost, api.Prefix+"/items/preview?"+query, strings.NewReader(body), header...)
		if code != status || !strings.Contains(string(text), want) {
			t.Errorf("%s: %d %.300s; want %d %s", query, code, text, status, want)
		}
	}
	show(200, `{"format":"csv","columns":["id","name"],"key_column":"id","rows":[{"line":2,"key":"=1",`+
		`"payload":{"id":"=1","name":"ann"}}`, "", apitest.Three)
	show(200, `"read":3`, "truncated=true", apitest.Three+"4,\"cut in the mid")
	show(200, `"read":2`, "truncated=true", `{"key":1,"a":2}`+"\n"+`{"key":2,"b":2}`+"\n"+`{"ke`)
	show(200, `"columns":["key","a","b"]`, "", `{"key":1,"a":2}`+"\n"+`{"key":2,"b":2}`)
	show(422, "never closed", "", apitest.Three+"4,\"cut in the mid")
	show(422, "send more of the file", "truncated=true", "id,na")
	show(422, "send more of the file", "truncated=true", "id,name\n1,a")
	show(422, "previewed whole", "truncated=true", parquetFile(t, "a", "b"))
	show(200, `"format":"parquet","columns":["id"]`, "", parquetFile(t, "a", "b"))
	show(422, `line 3: 1 field, the header has 2`, "", "id,name\n1,a\n2\n")
	show(200, `line 4: key \"1\" is on line 2 already`, "", "id\n1\n2\n1\n")
	show(200, `taken from the first column, \"nr\"`, "", "nr,name\n1,a\n")
	show(200, `"key_column":"name"`, "key=name", apitest.Three)
	show(422, `no column \"nope\"`, "key=nope", apitest.Three)
	show(413, "truncated=true", "", "id\n"+strings.Repeat("1234567\n", 40_000))
	show(200, `only the first 100000 rows were checked`, "", packed(t, "id\n"+strings.Repeat("100000\n", 100_001)))
	part := many(40_000, "")[:256<<10]
	show(200, fmt.Sprintf(`"read":%d`, strings.Count(part, "\n")-1), "truncated=true", part)
	show(200, `"read":3`, "", "--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\n"+apitest.Three+
		"\r\n--x--\r\n",
		"Content-Type", "multipart/form-data; boundary=x")
	show(422, "one part, called items", "", "--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n{}\r\n--x--\r\n",
		"Content-Type", "multipart/form-data; boundary=x")
	testenv.Same(t, b.Stored(), 0, "rows stored by previews")
}

// A forecast says why there is none, and what is supposed must be something that the run has.
func TestForecastOfARun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo", strings.NewReader(apitest.Three))
	testenv.MustSame(t, code, http.StatusCreated, "%s", text)
	at := api.Prefix + "/runs/last/forecast"
	var found runs.Forecasts
	_, text = b.Ask(http.MethodGet, at+"?change=echo.in_flight%3D9&change=rate%3D5", nil)
	if err := json.Unmarshal(text, &found); err != nil || len(found.Variants) != 4 || found.At.IsZero() ||
		found.Variants[0].Forecast.WhyNot == "" || found.Variants[1].Changes[0] != "echo.in_flight=9" {
		t.Errorf("%s, %v", text, err)
	}
	b.Refused(422, "2001-01-31T06:00:00Z has passed", http.MethodPost, api.Prefix+"/runs/last/settings",
		strings.NewReader(`{"done_by":"2001-01-31T06:00:00Z"}`), "Content-Type", "application/json")
	testenv.Must(b.Pool.Exec(t.Context(), `INSERT INTO step_profile (plan, step, endpoint, at, cost)
		SELECT plan, 'echo', 'echo', tranche_now(), '{"Requests":9,"Chunk":3,"Slot":900,"Stays":[2700,2700]}'
		FROM batchrun`))(t)
	soon := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
	b.Want("/runs?endpoint=echo&dry_run=true&done_by="+soon, apitest.Three, 200, " after its done_by")
	b.Refused(422, "no step", http.MethodGet, at+"?change=other.chunk%3D9", nil)
	b.Refused(422, "want 1 to 8192", http.MethodGet, at+"?change=echo.chunk%3Dx", nil)
}
