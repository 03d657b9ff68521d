package runs_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
)

func TestReports(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	first := b.Start("name=first&chunk=2")
	running := apitest.Read[runs.ReportDocument](b, "/runs/first/report")
	if running.Complete || running.Digests == nil || running.Digests.Items == "" || running.Digests.Results != "" ||
		running.Digests.Note == "" || running.Unprocessed[0] != (report.Unprocessed{State: "ready", Items: 3}) {
		t.Errorf("of a run in progress: %+v", running)
	}
	b.Finish(first.Run)
	second := b.Start("name=second")
	b.Finish(second.Run)
	const change = `UPDATE work_result SET result = 'null' WHERE run_id = $1 AND ordinal = 2`
	testenv.Must(b.Pool.Exec(t.Context(), change, second.Run))(t)

	r := apitest.Read[runs.ReportDocument](b, "/runs/second/report?against=first")
	if !r.Complete || r.Done != 2 || r.Failed != 1 || r.Errors.Items != 1 || r.Errors.Groups[0].Code != "=BAD" {
		t.Errorf("the report is %+v", r)
	}
	if a := r.Against; a == nil || a.Against != first.Run || a.Digests.Items != r.Digests.Items ||
		a.Digests.Results == r.Digests.Results || a.Note != "" {
		t.Fatalf("against the first: %+v", a)
	}
	counts := map[report.Change]int64{}
	for _, c := range r.Against.Changes {
		counts[c.Change] = c.Items
	}
	if counts[report.ChangeNone] != 1 || counts[report.ChangeResult] != 1 ||
		counts[report.ChangeStillFailing] != 1 {
		t.Errorf("the changes are %v", counts)
	}
	if plain := apitest.Read[runs.ReportDocument](b, "/runs/second/report?digests=false"); plain.Digests != nil {
		t.Errorf("digests that no one asked for: %+v", plain.Digests)
	}

	code, text := b.Ask(http.MethodGet, api.Prefix+"/runs/second/comparison?against=first&change=changed", nil)
	var d report.Difference
	if err := json.Unmarshal(text, &d); err != nil || code != 200 || d.Key != "3" || d.Change != report.ChangeResult ||
		d.Here.Outcome != workqueue.OutcomeDone {
		t.Errorf("the changed keys are %d %s", code, text)
	}
	_, text = b.Ask(http.MethodGet, api.Prefix+"/runs/second/comparison?against=first", nil)
	if lines := strings.Count(string(text), "\n"); lines != 3 {
		t.Errorf("all keys are %s", text)
	}
	b.Refused(422, "use one of newly_failing", http.MethodGet,
		api.Prefix+"/runs/second/comparison?against=first&change=nope", nil)
	b.Refused(422, "validation failed", http.MethodGet, api.Prefix+"/runs/second/comparison", nil)
	b.Refused(404, "run list", http.MethodGet, api.Prefix+"/runs/second/comparison?against=third", nil)
	b.Refused(404, "run list", http.MethodGet, api.Prefix+"/runs/second/report?against=third", nil)
	b.Refused(404, "run list", http.MethodGet, api.Prefix+"/runs/third/report", nil)
}

func TestAudit(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	began := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	first, second := b.Start("name=first"), b.Start("name=second")
	for _, name := range []string{"first", "second"} {
		b.Ask(http.MethodPost, api.Prefix+"/runs/"+name+"/cancel", nil, kernel.ActorHeader, "ann")
	}
	page := apitest.Read[inspect.AuditPage](b, "/audit?limit=3")
	if len(page.Entries) != 3 || page.Next == 0 || page.Entries[0].Action != "cancel" || page.Entries[0].Actor != "ann" ||
		*page.Entries[0].Run != second.Run {
		t.Errorf("the first page is %+v", page)
	}
	rest := apitest.Read[inspect.AuditPage](b, "/audit?before="+jsonText(t, page.Next))
	if len(rest.Entries) != 1 || rest.Next != 0 || *rest.Entries[0].Run != first.Run || rest.Entries[0].Action != "start" {
		t.Errorf("the second page is %+v", rest)
	}
	for query, want := range map[string]int{
		"run=first": 2, "actor=ann": 2, "action=start": 2, "action=cancel&run=second": 1, "since=" + began: 4,
		"since=2100-01-01T00:00:00Z": 0, "actor=nobody": 0,
	} {
		if got := apitest.Read[inspect.AuditPage](b, "/audit?"+query); len(got.Entries) != want {
			t.Errorf("%s: %d entries; want %d", query, len(got.Entries), want)
		}
	}
	b.Refused(404, "run list", http.MethodGet, api.Prefix+"/audit?run=third", nil)
	for _, query := range []string{"since=yesterday", "limit=0", "limit=501", "before=-1", "who=ann"} {
		if code, _ := b.Ask(http.MethodGet, api.Prefix+"/audit?"+query, nil); code != 422 {
			t.Errorf("%s: %d; want 422", query, code)
		}
	}
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	return string(testenv.Must(json.Marshal(v))(t))
}
