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

// What is wrong is said with its place, and nothing is stored.
func TestMistakesInSchedulesAreNamed(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	if code, text := b.Schedule("/plans?name=p", "steps: [{endpoint: echo}]"); code != 200 {
		t.Fatal(text)
	}
	const rest = "plan: p\nitems: {file: a.csv}\n"
	for text, want := range map[string]string{
		"cron: 61 2 * * *\n" + rest:                                 "schedule s:1:7: cron",
		"cron: 0 0 30 2 *\n" + rest:                                 "never fires",
		"every: 1s\n" + rest:                                        "within 1m",
		"every: 1h\nzone: Europe/Berln\n" + rest:                    "schedule s:2:7: zone",
		"every: 1h\ncolour: red\n" + rest:                           "schedule s:2:1: unknown field",
		"every: 1h\nplan: p@0\nitems: {file: a.csv}\n":              "schedule s:2:7: plan: plan_ref",
		"every: 1h\nplan: p@7\nitems: {file: a.csv}\n":              "",
		"every: 1h\nplan: p\nitems: {file: ../a.csv}\n":             "schedule s:3:15: items.file",
		"every: 1h\nplan: p\nitems: {file: /etc/passwd}\n":          "schedule s:3:15: items.file",
		"every: 1h\nplan: p\nitems: {url: \"ftp://h/x\"}\n":         "items.url",
		"every: 1h\nplan: p\nitems: {file: a.csv, url: b}\n":        "one of file, url and sql",
		"every: 1h\nplan: p\nitems: {file: \"{due.dat}.csv\"}\n":    "there is no variable {due.dat}",
		"every: 1h\nsettings: {steps: {no: {chunk: 1}}}\n" + rest:   "schedule s:2:12: settings: steps.no",
		"every: 1h\nsettings: {canary: 5}\nrun_name: last\n" + rest: `cannot be called \"last\"`,
		"- a\n": "schedule",
	} {
		code, answer := b.Schedule("/schedules?name=s", text)
		if want == "" {
			if code != 200 || !strings.Contains(answer, "p@7 is not saved") {
				t.Errorf("%q: %d %s; want a warning", text, code, answer)
			}
			b.Ask(http.MethodDelete, api.Prefix+"/schedules/s", nil)
			continue
		}
		if code != 422 || !strings.Contains(answer, want) {
			t.Errorf("%q: %d %s; want 422 %q", text, code, answer, want)
		}
	}
	var list api.ScheduleList
	if b.Read("/schedules", &list); len(list.Schedules) != 0 {
		t.Errorf("a mistake is on record: %+v", list)
	}
	for _, action := range []string{"run-now", "pause", "resume"} {
		b.Refused(404, "tranche schedule list", http.MethodPost, api.Prefix+"/schedules/nope/"+action, nil)
	}
	b.Refused(404, "tranche schedule list", http.MethodGet, api.Prefix+"/schedules/nope/history", nil)
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
