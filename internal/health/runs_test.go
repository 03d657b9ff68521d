package health_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	store "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestFailedItemsWantARerun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	var well atomic.Bool
	w.serve("bills", func(item *endpoints.Item[any, any]) {
		if well.Load() {
			item.Reply(map[string]any{})
			return
		}
		item.Fail("no_address", "there is none")
	})
	run := w.start(request("bills"), 7)
	c := w.appears(store.FailedItems, run.String(), store.Warning, "7 items failed", "tranche run rerun "+run.String())
	testenv.Same(t, c.Link, "/runs/"+run.String()+"/errors", "it leads to")
	well.Store(true)
	testenv.Must(w.node.Runs().Rerun(t.Context(), redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true},
		Actor: "test"}))(t)
	w.goes(store.FailedItems, run.String())
	w.calms()
}

// failing serves bills, and has no item done. Two chunks fail together, others when it is told so: until then a run of
// more is not over, however late it is noticed that it should be held.
func (w *world) failing() (goOn func()) {
	w.Helper()
	var asked atomic.Int32
	end := make(chan struct{})
	goOn = sync.OnceFunc(func() { close(end) })
	w.serve("bills", func(item *endpoints.Item[any, any]) {
		if asked.Add(1) > 20 {
			<-end
		}
		item.Fail("no_address", "there is none")
	})
	w.Cleanup(goOn) // before the service is stopped
	return goOn
}

// More runs than can be listed are counted.
func TestManyFailedRunsAreSummedUp(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(`INSERT INTO batchrun (id, plan, spec, state, items, done, failed, sealed_at, finished_at)
		SELECT gen_random_uuid(), 'p', '{}', 'completed', 10, 7, 3, tranche_now(), tranche_now()
		FROM generate_series(1, 100)`)
	w.exec(`INSERT INTO batchrun (id, plan, spec, state, items, done, failed, sealed_at, finished_at)
		SELECT gen_random_uuid(), 'p', '{}', 'completed', 10, 7, 3, tranche_now(), tranche_now() - interval '15 days'
		FROM generate_series(1, 5)`)
	c := w.appears(store.FailedItems, "older runs", store.Warning)
	testenv.Same(t, c.Title, "240 items failed in 80 earlier runs", "the title")
	if r := w.report(w.watch); r.Counts.Warning != 21 || !slices.Contains(r.Cut, store.FailedItems) {
		t.Errorf("%+v, cut: %q", r.Counts, r.Cut)
	}
	if r := w.report(w.look(health.Config{Whole: true})); r.Counts.Warning != 100 || len(r.Cut) > 0 {
		t.Errorf("whole: %+v, cut: %q", r.Counts, r.Cut)
	}
}

func TestHeldRunsWantADecision(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	goOn := w.failing()
	w.serve("letters", func(item *endpoints.Item[any, any]) { item.Reply(nil) })

	many := request("bills")
	many.MaxFailed, many.Steps[0].InFlight = "5", 1
	over := w.start(many, 100)
	sampled := request("letters")
	sampled.Canary = 3
	canary := w.start(sampled, 30)
	w.appears(store.RunOverLimit, over.String(), store.Warning, "too many items failed", "--max-failed")
	goOn()
	w.appears(store.RunApproval, canary.String(), store.Warning, "sample", "tranche run approve "+canary.String())

	testenv.Must(w.node.Runs().Approve(t.Context(), control.Control{Run: canary, Actor: "test"}))(t)
	more := "100%"
	testenv.Must(w.node.Runs().Resume(t.Context(), control.Control{Run: over, Actor: "test"}, &more))(t)
	w.goes(store.RunApproval, canary.String())
	w.goes(store.RunOverLimit, over.String())

	idle := w.start(request("nowhere"), 1)
	testenv.Must(w.node.Runs().Pause(t.Context(), control.Control{Run: idle, Actor: "Ann", Reason: "lunch"}))(t)
	w.appears(store.RunHeld, idle.String(), store.Info, "Paused by Ann", "lunch", "tranche run resume")
}

// A fail-fast limit, and a gate: someone has to look, and the health says who may not.
func TestFailFastLimitsAndGatesWantADecision(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	goOn := w.failing()
	w.serve("letters", func(item *endpoints.Item[any, any]) { item.Reply(nil) })

	failFast := request("bills")
	failFast.FailFast, failFast.Steps[0].InFlight = workqueue.FailFast{Failures: 10, Within: 20}, 1
	bad := w.start(failFast, 100)
	gated := request("letters")
	send := gated.Steps[0]
	send.Name, send.Needs, send.Barrier, send.Approval = "send", []int{0}, true, workqueue.ApproveOther
	gated.Steps = append(gated.Steps, send)
	waiting := w.start(gated, 30)
	w.appears(store.RunFailFast, bad.String(), store.Warning, "first outcomes", "no_address", "tranche run errors")
	goOn()
	w.appears(store.RunGate, waiting.String(), store.Warning, "Step send waits", "must not have taken part in the run",
		"--step send --dry-run")

	testenv.Must(w.node.Runs().Resume(t.Context(), control.Control{Run: bad, Actor: "ann"}, nil))(t)
	testenv.Must(w.node.Runs().Approve(t.Context(), control.Control{Run: waiting, Actor: "ann", Step: "send"}))(t)
	w.goes(store.RunFailFast, bad.String())
	w.goes(store.RunGate, waiting.String())
}

func TestAnOpenRunIsOverdue(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	opened := testenv.Must(w.node.Runs().OpenRun(t.Context(), start.OpenRequest{
		LoadRequest: request("bills"), SealWithin: time.Second, OnOverdue: start.OverdueReport,
	}))(t)
	w.appears(store.RunOverdue, opened.Run.String(), store.Warning, "tranche run seal "+opened.Run.String())
	testenv.Must(w.node.Runs().SealRun(t.Context(), start.SealRequest{Run: opened.Run, Actor: "test"}))(t)
	w.goes(store.RunOverdue, opened.Run.String())
}

// A run whose items no one sends for long is reported, and not one that has just continued.
func TestARunThatDoesNotMove(t *testing.T) {
	t.Parallel()
	w := setup(t)
	session := w.session()
	run := w.load(session, 20)
	w.goes(store.OldestWaiting, run.String())
	w.exec(`UPDATE batchrun SET started_at = tranche_now() - interval '11 minutes' WHERE id = $1`, run)
	testenv.Rewrite(t, w.pool, `UPDATE audit_log SET at = tranche_now() - interval '11 minutes'
		WHERE run_id = $1`, run)
	w.appears(store.OldestWaiting, run.String(), store.Warning, "No progress for 11 min", "tranche run explain")
	w.exec(`UPDATE batchrun SET started_at = tranche_now() - interval '61 minutes' WHERE id = $1`, run)
	testenv.Rewrite(t, w.pool, `UPDATE audit_log SET at = tranche_now() - interval '61 minutes'
		WHERE run_id = $1`, run)
	first := w.appears(store.OldestWaiting, run.String(), store.Critical)
	w.exec(`INSERT INTO audit_log (actor, action, run_id) VALUES ('ann', 'note', $1)`, run) // moves nothing
	if again := w.appears(store.OldestWaiting, run.String(), store.Critical); !again.Since.Equal(first.Since) {
		t.Errorf("since %s, and after a note since %s", first.Since, again.Since)
	}

	// A request is out, then it has come back: something happened.
	w.claim(session, run, 1)
	w.goes(store.OldestWaiting, run.String())
	w.exec(`UPDATE work_slice SET state = 'recorded', remaining = B'0'::bit(8192), ended_at = tranche_now()`)
	w.goes(store.OldestWaiting, run.String())
	w.exec(`UPDATE work_slice SET created_at = created_at - interval '30 minutes',
		ended_at = ended_at - interval '30 minutes'`)
	w.appears(store.OldestWaiting, run.String(), store.Warning)

	// So did something when a person resumes it.
	for _, act := range []func(control.Control) error{
		func(c control.Control) error { _, err := control.New(w.store).Pause(t.Context(), c); return err },
		func(c control.Control) error { _, err := control.New(w.store).Resume(t.Context(), c, nil); return err },
	} {
		testenv.NoError(t, act(control.Control{Run: run, Actor: "test"}))
		w.goes(store.OldestWaiting, run.String())
	}
}

// load starts a run of bills, of a session that does nothing by itself.
func (w *world) load(session workqueue.SessionID, n int) workqueue.RunID {
	w.Helper()
	req := request("bills")
	req.Session = session
	return testenv.Must(start.New(w.store).Load(w.Context(), req, nodetest.Items(n)))(w).Run
}

func (w *world) claim(session workqueue.SessionID, run workqueue.RunID, n int) []workqueue.Slice {
	w.Helper()
	claimed := testenv.Must(dispatch.New(w.store).Claim(w.Context(), dispatch.ClaimRequest{Session: session, Run: run,
		MaxSlices: n, MaxBytes: 1 << 20}))(w)
	testenv.MustSame(w, len(claimed.Slices), n, "requests were claimed")
	return claimed.Slices
}

func (w *world) session() workqueue.SessionID {
	w.Helper()
	id, err := session.New(w.store).StartSession(w.Context(), session.NodeInfo{Host: "there", PID: 7, Version: "test"},
		time.Hour)
	testenv.NoError(w, err)
	return id
}
