package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/starts"
)

// Open opens a run of the endpoint echo.
func (b *bench) Open(settings string) (opened starts.Opened) {
	b.Helper()
	code, text := b.ask(http.MethodPost, api.Prefix+"/runs/open", strings.NewReader(settings))
	if err := json.Unmarshal(text, &opened); err != nil || code != http.StatusOK {
		b.Fatalf("open: %d %s", code, text)
	}
	return opened
}

// want sends a POST and wants a status and texts in the answer.
func (b *bench) want(path, body string, status int, parts ...string) []byte {
	b.Helper()
	code, text := b.ask(http.MethodPost, api.Prefix+path, strings.NewReader(body))
	if code != status {
		b.Errorf("POST %s: %d %s; want %d", path, code, text, status)
	}
	for _, part := range parts {
		if !strings.Contains(string(text), part) {
			b.Errorf("POST %s: %s; want %s in it", path, text, part)
		}
	}
	return text
}

func TestOpenAddAndSeal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Open(`{"endpoint":"echo","name":"it","seal_within":"6h"}`)
	if run.Run.String() == "" || run.SealBy.IsZero() || run.Existing || run.Plan != "echo" {
		t.Errorf("opened: %+v", run)
	}
	b.want("/runs/it/items?idempotency_key=a", three, 200, `"items":3`, `"first":0`, `"total":3`, `"existing":false`)
	b.want("/runs/it/items?idempotency_key=a", three, 200, `"items":3`, `"total":3`, `"existing":true`)
	b.want("/runs/it/items?idempotency_key=a", three+"9\n", 409, "idempotency key")
	b.want("/runs/it/items", "id\n7\n8\n7\n", 422, `line 4: key \"7\" stands on line 2`)
	b.want("/runs/it/items", "id\n7\n2\n", 422, `line 3: key \"2\" is the key of item 2 already`)
	b.want("/runs/it/items", `{"id":"7"}`+"\n", 200, `"first":3`)
	b.want("/runs/it/items", "", 422, "empty")
	b.want("/runs/it/seal", `{"expect":3}`, 409, "has 4 items, and 3 were expected")
	b.want("/runs/it/seal", `{"expect":4}`, 200, `"items":4`, `"already":false`)
	b.want("/runs/it/seal", ``, 200, `"already":true`)
	b.want("/runs/it/items", "id\n9\n", 409, "sealed")
	b.finish(run.Run)
	b.want("/runs/it/seal", ``, 200, `"already":true`)
	b.start("name=whole")
	b.want("/runs/whole/items", "id\n9\n", 409, "started with all its items")
}

func TestOpeningIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for body, want := range map[string]string{
		``:                                      "one JSON object",
		`[]`:                                    "one JSON object",
		`{"endpoint":"e"} {}`:                   "more text",
		`{"endpoint":"e","x":1}`:                "unknown field",
		`{"name":"e"}`:                          "either an endpoint or a plan",
		`{"endpoint":"e","seal_within":"soon"}`: "seal_within",
		`{"endpoint":"e","seal_within":"-1h"}`:  "seal_within",
		`{"endpoint":"e","on_overdue":"shrug"}`: "on overdue",
		`{"endpoint":"e","canary":5}`:           "canary",
		`{"endpoint":"e","key":"id"}`:           "key",
		`{"endpoint":"e","sql":"SELECT 1","sql_source":"x"}`: "sql",
	} {
		b.want("/runs/open", body, 422, want)
	}
	if n := b.number(`SELECT count(*) FROM batchrun`); n != 0 {
		t.Errorf("%d runs were opened", n)
	}
}

func (b *bench) number(query string, args ...any) (n int) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), query, args...).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}
