package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	scheduling "github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/schedule"
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
	if len(list.Schedules) != 1 {
		t.Fatalf("the list is %+v", list)
	}
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

// clockwork is a node that starts schedules, as serve puts it together.
type clockwork struct {
	node   atomic.Pointer[orchestrator.Node]
	server *api.Server
	url    string
	stop   func()
}

func (c *clockwork) StartOccurrence(ctx context.Context, job scheduling.Job) (scheduling.Started, error) {
	return c.server.Starter().StartOccurrence(ctx, job)
}
func (c *clockwork) Permanent(err error) bool   { return c.server.Starter().Permanent(err) }
func (c *clockwork) WakeLeaderTask(name string) { c.node.Load().WakeLeaderTask(name) }
func (c *clockwork) Pause(ctx context.Context, in control.Control) (control.Controlled, error) {
	return c.node.Load().Runs().Pause(ctx, in)
}

func (c *clockwork) Cancel(ctx context.Context, in control.Control) (control.Cancelled, error) {
	return c.node.Load().Runs().Cancel(ctx, in)
}

func startClockwork(t *testing.T, store *database.DB, ns testenv.Server, files *scheduling.Files) *clockwork {
	t.Helper()
	c := &clockwork{}
	log := zaptest.NewLogger(t)
	task := testenv.Must(scheduling.New(store, c, c, scheduling.Config{Log: log}))(t)
	nc := testenv.Conn(t, ns)
	node := testenv.Must(orchestrator.New(store, nc, orchestrator.Config{Version: "test", Grace: time.Second,
		LeaderTasks: []orchestrator.LeaderTask{task.LeaderTask()},
		Streams:     stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}}))(t)
	c.node.Store(node)
	c.server = testenv.Must(api.New(store, api.NodeOf(node), nc, api.Config{Build: buildinfo.Info{Version: "test"},
		Schedules: api.Schedules{
			Files: files, Wake: func() { node.WakeLeaderTask(scheduling.TaskName) },
		}}))(t)
	e := &apitest.Engine{Bench: &apitest.Bench{T: t}}
	stop := e.Keep(node.Run)
	c.stop = func() { stop(); task.Wait() }
	t.Cleanup(c.stop)
	select {
	case <-node.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("the node did not get ready")
	}
	web := httptest.NewServer(c.server.Handler())
	t.Cleanup(web.Close)
	c.url = web.URL
	return c
}

// Two nodes, of which the one that leads is stopped in the middle: each due time has one run, with its own parameters,
// and the runs follow each other.
func TestEachDueTimeHasOneRun(t *testing.T) {
	t.Parallel()
	pool, ns := testenv.Pool(t), testenv.NATS(t)
	store := database.New(pool)
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "customers.csv"), []byte(apitest.Three), 0o600))
	files := testenv.Must(scheduling.OpenFiles(dir))(t)
	t.Cleanup(func() { _ = files.Close() })
	first := startClockwork(t, store, ns, files)
	second := startClockwork(t, store, ns, files)
	b := &apitest.Bench{T: t, Pool: pool, Store: store, URL: first.url}
	e := &apitest.Engine{Bench: b, Ns: ns}
	e.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "echo", func(_ context.Context, in json.RawMessage) (json.RawMessage, error) {
			return in, nil
		})
	})

	code, text := b.Schedule("/schedules", "name: often\nevery: 720h\nendpoint: echo\nsettings: {chunk: 2}\n"+
		"params: {at: \"{due.unix}\"}\nrun_name: \"{schedule} {due}\"\nitems: {file: customers.csv}\noverlap: queue\n"+
		"misfire: all\nmisfire_limit: 5\n")
	if code != 200 || strings.Contains(text, "warnings") {
		t.Fatalf("apply: %d %s", code, text)
	}
	// None comes in the midst of the test.
	const past = `UPDATE schedule SET next_due = next_due - 8 * interval '720 h'`
	testenv.Must(pool.Exec(t.Context(), past))(t)
	first.node.Load().WakeLeaderTask(scheduling.TaskName)
	look := func() (ended, ahead int) {
		t.Helper()
		testenv.NoError(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM batchrun WHERE state = 'completed'),
			(SELECT count(*) FROM batchrun WHERE state IN ('loading', 'running')) +
			(SELECT count(*) FROM schedule_occurrence WHERE state IN ('due', 'queued', 'starting'))`).Scan(&ended, &ahead))
		return ended, ahead
	}
	apitest.Eventually(t, "the first run has ended", func() bool {
		ended, _ := look()
		return ended >= 1
	})
	first.stop()
	b.URL = second.url
	now, text := b.Schedule("/schedules/often/run-now", "")
	if now != http.StatusAccepted {
		t.Fatalf("run now: %d %s", now, text)
	}
	apitest.Within(t, 3*time.Minute, "all runs have ended", func() bool {
		ended, ahead := look()
		return ended >= 6 && ahead == 0
	})

	var occurrences api.OccurrenceList
	b.Read("/schedules/often/history?state=started", &occurrences)
	runs := map[workqueue.RunID]bool{}
	for _, f := range occurrences.Occurrences {
		runs[*f.Run] = true
		run, err := inspect.New(store).Run(t.Context(), *f.Run)
		if err != nil || run.Items != 3 || run.Done != 3 || run.Params["at"] != fmt.Sprint(f.Due.Unix()) {
			t.Errorf("the run of %s is %+v, %v", f.Due, run, err)
		}
	}
	var all, overlapping int
	err := pool.QueryRow(t.Context(), `SELECT count(*), (SELECT count(*) FROM batchrun a JOIN batchrun b ON a.id < b.id
		WHERE b.sealed_at < a.finished_at AND a.sealed_at < b.finished_at) FROM batchrun`).Scan(&all, &overlapping)
	if err != nil || all != 6 || all != len(runs) || len(runs) != len(occurrences.Occurrences) || overlapping != 0 {
		t.Errorf("%d runs of %d occurrences, %d overlap, %v", all, len(occurrences.Occurrences), overlapping, err)
	}
	b.Read("/schedules/often/history?state=missed", &occurrences)
	if len(occurrences.Occurrences) != 3 {
		t.Errorf("missed are %+v", occurrences)
	}
}
