package api_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	scheduling "github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/session"
)

// An occurrence starts one run, with the parameters of its due time, the items of its file, and a key
// by which the next leader finds it again.
func TestAnOccurrenceStartsOneRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "customers.csv"), []byte(apitest.Three), 0o600))
	testenv.NoError(t, os.Chtimes(filepath.Join(dir, "customers.csv"), time.Time{}, time.Now().Add(-time.Minute)))
	files := testenv.Must(scheduling.OpenFiles(dir))(t)
	t.Cleanup(func() { _ = files.Close() })
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{Schedules: api.Schedules{Files: files}})
	const text = "name: often\nevery: 720h\nendpoint: echo\nsettings: {chunk: 2}\nparams: {at: \"{due.unix}\"}\n" +
		"run_name: \"{schedule} {due}\"\nitems: {file: customers.csv}\n"
	if code, answer := b.Schedule("/schedules", text); code != 200 || strings.Contains(answer, "warnings") {
		t.Fatalf("apply: %d %s", code, answer)
	}
	large := fmt.Sprintf("params: {a: %[1]s, b: %[1]s, c: %[1]s, d: %[1]s, e: %[1]s, at", strings.Repeat("x", 4000))
	code, answer := b.Schedule("/schedules", strings.Replace(text, "params: {at", large, 1))
	testenv.Same(t, code, 422, "params of 20,000 bytes: %s", answer)
	lease := testenv.Must(session.New(b.Store).Lead(t.Context(), b.Engine.ID, time.Hour))(t)
	seen := map[workqueue.RunID]bool{}
	for range 2 {
		fire := testenv.Must(schedule.New(b.Store).RunScheduleNow(t.Context(), "often", "ann"))(t)
		claim, ok, err := schedule.New(b.Store).BeginOccurrence(t.Context(), lease,
			schedule.OccurrenceKey{Schedule: "often", Due: fire.Due, Kind: fire.Kind}, nil)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		job := scheduling.Job{Claim: claim, Spec: testenv.Must(scheduling.Parse("often", []byte(text)))(t)}
		first := testenv.Must(b.Server.Starter().StartOccurrence(t.Context(), job))(t)
		again := testenv.Must(b.Server.Starter().StartOccurrence(t.Context(), job))(t)
		if first.Existing || !again.Existing || again.Run != first.Run || seen[first.Run] {
			t.Errorf("started %+v, and again %+v", first, again)
		}
		seen[first.Run] = true
		run := testenv.Must(inspect.New(b.Store).Run(t.Context(), first.Run))(t)
		if run.Items != 3 || run.Params["at"] != fmt.Sprint(fire.Due.Unix()) || !strings.HasPrefix(run.Name, "often 20") ||
			run.Source != "file customers.csv" {
			t.Errorf("the run of %s is %+v", fire.Due, run)
		}
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM run_step WHERE chunk = 2`), 2, "runs have the settings")
}
