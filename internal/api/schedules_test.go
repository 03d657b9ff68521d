package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
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

func TestTheWayOfASchedule(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	code, text := b.Schedule("/schedules?name=night", apitest.Nightly)
	for _, want := range []string{`"version":1`, "plan: year-end is not saved", "start nodes with: tranche serve " +
		"--schedule-files DIR", `"next_due":"20`} {
		if code != 200 || !strings.Contains(text, want) {
			t.Errorf("apply: %d %s; want %s", code, text, want)
		}
	}
	if _, text = b.Schedule("/schedules?name=night", apitest.Nightly); !strings.Contains(text, `"unchanged":true`) {
		t.Errorf("the same again: %s", text)
	}
	var times api.ScheduleTimes
	b.Read("/schedules/night/next?count=3", &times)
	if len(times.Times) != 3 || !strings.Contains(times.Times[0].Local, " 02:30 ") ||
		!times.Times[0].Due.After(times.Now) {
		t.Errorf("next are %+v", times)
	}
	var preview api.ScheduleTimes
	if _, text = b.Schedule("/schedules/preview?count=2", apitest.Nightly); json.Unmarshal([]byte(text),
		&preview) != nil ||
		len(preview.Times) != 2 || !preview.Times[0].Due.Equal(times.Times[0].Due) {
		t.Errorf("preview: %s", text)
	}
	b.Schedule("/schedules/night/run-now", "")
	b.Schedule("/schedules/night/pause", "")
	var list api.ScheduleList
	b.Read("/schedules", &list)
	testenv.MustSame(t, len(list.Schedules), 1, "the list is %+v", list)
	if s := list.Schedules[0]; s.State != "paused" || s.When != "30 2 * * *" || s.Plan != "year-end" || s.Waiting != 1 ||
		s.Last == nil || s.Last.Kind != schedule.OccurrenceNow || s.Last.AskedBy != "ann" {
		t.Errorf("the schedule is %+v, last %+v", s, s.Last)
	}
	var occurrences api.OccurrenceList
	b.Read("/schedules/night/history?state=due", &occurrences)
	if len(occurrences.Occurrences) != 1 || occurrences.Occurrences[0].State != schedule.OccurrenceWaiting {
		t.Errorf("occurrences are %+v", occurrences)
	}
	if code, text = b.Schedule("/schedules/night/resume", ""); code != 200 || !strings.Contains(text, `"active"`) {
		t.Errorf("resume: %d %s", code, text)
	}
	if code, _ := b.Ask(http.MethodDelete, api.Prefix+"/schedules/night", nil); code != 200 {
		t.Errorf("delete: %d", code)
	}
	for _, path := range []string{"/schedules/night", "/schedules/night/next"} {
		b.Refused(404, "was deleted: not found; see tranche schedule list", http.MethodGet, api.Prefix+path, nil)
	}
	b.Read("/schedules/night/history", &occurrences)
	if len(occurrences.Occurrences) != 1 || occurrences.Occurrences[0].State != schedule.OccurrenceSkipped {
		t.Errorf("what a deleted schedule did: %+v", occurrences)
	}
}

// An occurrence starts one run, with the parameters of its due time, the items of its file, and a key
// by which the next leader finds it again.
func TestAnOccurrenceStartsOneRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "customers.csv"), []byte(apitest.Three), 0o600))
	files := testenv.Must(scheduling.OpenFiles(dir))(t)
	t.Cleanup(func() { _ = files.Close() })
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{Schedules: api.Schedules{Files: files}})
	const text = "name: often\nevery: 720h\nendpoint: echo\nsettings: {chunk: 2}\nparams: {at: \"{due.unix}\"}\n" +
		"run_name: \"{schedule} {due}\"\nitems: {file: customers.csv}\n"
	if code, answer := b.Schedule("/schedules", text); code != 200 || strings.Contains(answer, "warnings") {
		t.Fatalf("apply: %d %s", code, answer)
	}
	lease := testenv.Must(session.New(b.Store).Lead(t.Context(), b.Engine.ID, time.Hour))(t)
	seen := map[workqueue.RunID]bool{}
	for range 2 {
		fire := testenv.Must(schedule.New(b.Store).RunScheduleNow(t.Context(), "often", "ann"))(t)
		claim, ok, err := schedule.New(b.Store).BeginOccurrence(t.Context(), lease,
			schedule.OccurrenceKey{Schedule: "often", Due: fire.Due, Kind: fire.Kind})
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
