package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestABadPlanIsNotPutOnRecord(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	post := func(status int, detail, plan string) apitest.Problem {
		t.Helper()
		return b.Refused(status, detail, http.MethodPost, api.Prefix+"/plans", strings.NewReader(plan),
			"Content-Type", "application/yaml")
	}
	p := post(422, "plan:2:24: steps[0].chunk: 0 is not within 1 to 8192", "steps:\n- {endpoint: a, chunk: 0}\n")
	if len(p.Errors) != 1 || fmt.Sprint(p.Errors[0].Value) != "2" {
		t.Errorf("the place: %+v", p.Errors)
	}
	post(422, "a tab", "steps:\n\t- endpoint: a\n")
	post(422, "name", "name: a b\nsteps: [{endpoint: a}]\n")
	post(422, "a plan has at most 65536", strings.Repeat("#", 70_000))
	post(413, "", strings.Repeat("#", 2<<20))
	post(400, "", "")
	post(422, "UTF-8", "name: \xff")
	testenv.Same(t, b.Number(`SELECT count(*) FROM plan`), 0, "plans are on record")
}

// A run keeps the version that it started with, and what is laid over it.
func TestARunOfAPlanOnRecord(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Apply(apitest.YearEnd, "")
	run := func(query string) runs.Started {
		t.Helper()
		code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?"+query, strings.NewReader(apitest.Three))
		var out runs.Started
		if err := json.Unmarshal(text, &out); err != nil || code != http.StatusCreated {
			t.Fatalf("start: %d %s", code, text)
		}
		return out
	}
	first := run("plan_ref=year-end")
	b.Apply(strings.Replace(apitest.YearEnd, "100", "200", 1), "")
	second := run("plan_ref=year-end@2&chunk=auto&chunk_time=2s&in_flight=9&rate=0&max_attempts=5&retry_backoff=2s" +
		"&max_backoff=1m&retry_codes=A&retry_codes=B&no_retry_codes=C&timeout=1m&priority=-1&max_failed=none&canary=0" +
		"&chunk_bytes=1MiB")
	if first.PlanVersion != 1 || second.PlanVersion != 2 || second.Plan != "year-end" {
		t.Errorf("started %+v and %+v", first, second)
	}
	for id, want := range map[workqueue.RunID]string{
		first.Run: "year-end@1 7 1% 2 false | 100 false - - 1024 true 1000 3 00:00:01 00:05:00 {BUSY} {} 00:12:00",
		second.Run: "year-end@2 -1  0 false | 8192 true 1048576 00:00:02 9 false - 5 00:00:02 00:01:00 {A,B} {C} " +
			"00:01:00",
	} {
		var got string
		err := b.Pool.QueryRow(t.Context(), `
			SELECT format('%s@%s %s %s %s %s | %s %s %s %s %s %s %s %s %s %s %s %s %s',
			r.plan, r.plan_version, r.priority, r.max_failed, r.canary, r.canary_auto_approve::text, s.chunk,
			s.chunk_auto::text, coalesce(s.chunk_bytes::text, '-'), coalesce(s.chunk_time::text, '-'), s.in_flight,
			s.in_flight_auto::text, coalesce(s.rate::text, '-'), s.max_attempts, s.retry_backoff, s.max_backoff,
			s.retry_codes, s.no_retry_codes, s.request_timeout)
			FROM batchrun r JOIN run_step s ON s.run_id = r.id WHERE r.id = $1`, id).Scan(&got)
		if err != nil || got != want {
			t.Errorf("got  %s, %v\nwant %s", got, err, want)
		}
	}
	testenv.Must(start.New(b.Store).DeletePlan(t.Context(), "year-end", "bob"))(t)
	var document runs.RunDocument
	b.Read("/runs/"+second.Run.String(), &document)
	testenv.Has(t, strings.ReplaceAll(string(document.Spec), " ", ""), `"in_flight":9`, "the spec of the run: %s",
		document.Spec)
}

// A start that is repeated gives the run that is there, whatever has become of its plan, and of this program.
func TestARepeatedStartFindsItsRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Apply(apitest.YearEnd, "")
	start := func(code int, query string) (out runs.Started) {
		t.Helper()
		got, text := b.Ask(http.MethodPost, api.Prefix+"/runs?"+query, strings.NewReader(apitest.Three))
		if err := json.Unmarshal(text, &out); err != nil || got != code {
			t.Fatalf("start with %s: %d %s; want %d", query, got, text, code)
		}
		return out
	}
	first := start(201, "plan_ref=year-end&max_attempts=9&idempotency_key=a")
	b.Apply(strings.Replace(apitest.YearEnd, "100", "200", 1), "")
	if again := start(200, "plan_ref=year-end&max_attempts=9&idempotency_key=a"); again.Run != first.Run ||
		again.PlanVersion != 1 {
		t.Errorf("of a plan with a new version: %+v; want %+v", again, first)
	}
	start(409, "plan_ref=year-end@2&max_attempts=9&idempotency_key=a")
	start(409, "plan_ref=year-end&max_attempts=8&idempotency_key=a")

}
