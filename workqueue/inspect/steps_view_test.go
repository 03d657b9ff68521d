package inspect_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/start"
)

// gatherAndIndex is a run that gathers three parts of each item, one of them optional, composes them, and archives all.
func gatherAndIndex() start.LoadRequest {
	branches := storetest.Optional(storetest.Need("branches"))
	branches.Kind, branches.Endpoint = workqueue.KindHTTP, "http:branches:8081"
	statement := storetest.Need("statement", 0, 1, 2)
	statement.Kind, statement.Endpoint = workqueue.KindLocal, "local:pdf"
	index := storetest.Barrier(storetest.Need("index", 3))
	index.Kind, index.Endpoint = workqueue.KindSQL, "sql:ledger"
	accounts, transactions := storetest.Need("accounts"), storetest.Need("transactions")
	accounts.Endpoint, transactions.Endpoint = "accounts", "transactions"
	return storetest.Planned(accounts, transactions, branches, statement, index)
}

// look returns what is told of a run. That its counts add up is checked by the simulation, and here of its report.
func (b *bench) look(run workqueue.RunID) (*inspect.RunView, *health.Explanation) {
	b.Helper()
	view := testenv.Must(inspect.New(b.Store).Run(b.Context(), run))(b)
	e := testenv.Must(health.New(b.Store).Explain(b.Context(), run))(b)
	if r := b.Report(run); r.Done != view.Done || r.Failed != view.Failed || len(r.Steps) != len(view.Steps) {
		b.Errorf("the report has %d done, %d failed; the view %d, %d", r.Done, r.Failed, view.Done, view.Failed)
	}
	return view, e
}

func reasons(e *health.Explanation, step string) (all []string) {
	for i := range e.Groups {
		if g := &e.Groups[i]; g.Step == step {
			all = append(all, fmt.Sprintf("%d %s %s", g.Items, g.State, g.Reason))
		}
	}
	slices.Sort(all)
	return all
}

func wantReasons(t *testing.T, e *health.Explanation, step string, want ...string) {
	t.Helper()
	testenv.SameList(t, reasons(e, step), want, "step %s", step)
}

func TestViewsOfSeveralSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(gatherAndIndex(), 10)
	b.Exec(`UPDATE node_session SET stats = '{"nats": true, "locals": []}'`)
	_, e := b.look(run)
	wantReasons(t, e, "accounts", "10 ready next_to_claim")
	wantReasons(t, e, "statement", "10 waiting needs_step")
	wantReasons(t, e, "index", "10 waiting needs_step")
	for i := range e.Groups {
		if g := &e.Groups[i]; g.Step == "statement" && g.Who != "steps accounts, transactions, branches" {
			t.Errorf("the statements wait for %s", g.Who)
		}
	}

	b.RecordStep(run, 0, 1)                                                          // item 1 has no account
	fetched := b.ClaimStep(run, 2, 1).Slices[0]                                      // a node asks for branches
	first := b.ClaimStep(run, 1, 1).Slices[0]                                        // transactions of the first chunk
	b.Record(storetest.Except(storetest.Whole(first), storetest.Ordinals(first)[0])) // item 0 has none
	view, e := b.look(run)
	if view.Failed != 2 || view.Settling != 2 || view.Steps[3].Skipped != 2 || view.Steps[3].State != "waiting" {
		t.Errorf("the run is %+v", view)
	}
	if g := e.Groups; len(g) == 0 || !slices.Contains(reasons(e, "branches"),
		fmt.Sprintf("%d claimed fetching", fetched.Mask.Count())) {
		t.Errorf("branches are %q", reasons(e, "branches"))
	}
	b.Record(storetest.Whole(fetched))
	b.RecordStep(run, 1)
	b.RecordStep(run, 2, 5) // which is optional
	view, e = b.look(run)
	wantReasons(t, e, "statement", "8 ready no_local")
	if view.Failed != 2 || view.Settling != 0 || view.Steps[3].State != "running" || !view.Steps[4].Barrier {
		t.Errorf("the run is %+v", view)
	}
	b.Exec(`UPDATE node_session SET stats = '{"locals": ["pdf"]}'`)
	part := b.ClaimStep(run, 3, 1).Slices[0]
	b.Record(storetest.Whole(part))
	_, e = b.look(run)
	rest := 8 - part.Mask.Count()
	wantReasons(t, e, "statement", fmt.Sprintf("%d ready next_to_claim", rest))
	wantReasons(t, e, "index", fmt.Sprintf("%d ready barrier", 8-rest), fmt.Sprintf("%d waiting needs_step", rest))
	b.RecordStep(run, 3, 7)
	testenv.Must(dispatch.New(b.Store).CheckBarriers(t.Context(), run))(t)
	b.RecordStep(run, 4)
	b.WantState(run, "completed", 1)
	view, _ = b.look(run)
	if view.Done != 7 || view.Failed != 3 || view.Progress != 1 || view.Steps[4].State != "completed" {
		t.Errorf("the run is %+v", view)
	}
	found, err := inspect.New(b.Store).Errors(t.Context(), run)
	if err != nil || found.Items != 3 || found.Optional != 1 || len(found.Groups) != 4 ||
		!found.Groups[3].Optional || found.Groups[3].Step != "branches" {
		t.Errorf("the errors are %+v, %v", found, err)
	}
}

// A hold that all steps wait for is reported once, and no item is counted twice.
func TestAPausedRunOfSeveralStepsIsExplainedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("a"), storetest.Need("b"), storetest.Need("c"),
		storetest.Need("d", 0), storetest.Need("e", 3)), 10)
	b.RecordStep(run, 0, 1)
	testenv.Must(control.New(b.Store).Pause(t.Context(), control.Control{Run: run, Actor: "alice", Reason: "lunch"}))(t)
	_, e := b.look(run)
	e.MergeSteps()
	if len(e.Groups) != 2 || e.Groups[0].Reason != health.RunHeld || e.Groups[1].Reason != health.ReasonNeeds {
		t.Fatalf("got %+v", e.Groups)
	}
	held, waits := &e.Groups[0], &e.Groups[1]
	want := []health.StepPart{{Step: "b", Items: 10}, {Step: "c", Items: 10}, {Step: "d", Items: 9}}
	if !slices.Equal(held.Steps, want) || held.Items != 10 || held.Counted != 10 || held.Step != "" {
		t.Errorf("held: %+v", held)
	}
	if waits.Items > e.Items || waits.Step != "e" {
		t.Errorf("waiting: %+v", waits)
	}
	summary := "9 of 10 items are missing; 1 failed: paused: waiting for an operator to resume the run (3 steps)"
	testenv.Same(t, e.Summary, summary, "the summary is")
}

// A rate that several steps wait for is reported once, with the command for any of them.
func TestARateOfSeveralStepsIsExplainedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("a"), storetest.Need("b"), storetest.Need("c d")), 10)
	b.Exec(`UPDATE run_step SET rate = 1, tokens = -100, tokens_at = tranche_now()`)
	_, e := b.look(run)
	e.MergeSteps()
	testenv.MustSame(t, len(e.Groups), 1, "groups")
	g := &e.Groups[0]
	want := health.Advice{Do: "raise the limit", Command: "tranche run set " + run.String() + " --rate N --step NAME"}
	if g.Reason != health.ReasonRate || len(g.Steps) != 3 || g.Items != 10 ||
		g.Why != "the run sends at most 1 item a second" || !slices.Equal(g.Advice, []health.Advice{want}) ||
		!strings.Contains(g.Next, "take 10s") {
		t.Errorf("got %+v", g)
	}
}

// An item that two steps failed is one failed item, told with the first; the other group says that it has it, too.
func TestErrorsCountAnItemOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("a"), storetest.Need("b")), 4)
	b.RecordStep(run, 0, 1)
	b.RecordStep(run, 1, 1, 2)
	found, err := inspect.New(b.Store).Errors(t.Context(), run)
	if err != nil || found.Items != 2 || len(found.Groups) != 2 {
		t.Fatalf("got %+v, %v", found, err)
	}
	for _, g := range found.Groups {
		if g.Count != 1 || (g.Also == 1) != (g.Step == "b") {
			t.Errorf("group %+v", g)
		}
	}
	b.Report(run)
}

func TestItemOfSeveralSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(gatherAndIndex(), 10)
	for step := range workqueue.Step(3) {
		b.RecordStep(run, step, 1+workqueue.Ordinal(step)) // 3 without a branch, which is optional
	}
	b.RecordStep(run, 3)
	item := func(key string) inspect.ItemView {
		t.Helper()
		items := testenv.Must(inspect.New(b.Store).Items(t.Context(), run, key))(t)
		testenv.MustSame(t, len(items), 1, "items %s", key)
		return items[0]
	}
	hash := sha256.Sum256([]byte(`{"of":4}`))
	whole := item("C4")
	s := whole.Steps[0]
	if whole.State != workqueue.OutcomeMissing || s.State != "done" || s.SHA256 != hex.EncodeToString(hash[:]) ||
		s.Size != 8 || s.RecordedAt == nil || s.Service != "test" || s.Generation != 1 || len(s.Attempts) != 1 {
		t.Errorf("C4 is %+v", whole)
	}
	if s := whole.Steps[4]; s.State != "ready" || !slices.Equal(s.WaitsFor, []string{"statement"}) { // of other items
		t.Errorf("its index is %+v", s)
	}
	out := item("C1")
	if out.State != workqueue.OutcomeFailed || out.Steps[4].State != "skipped" ||
		!slices.Equal(out.Steps[4].LeftOutBy, []string{"accounts"}) || out.Steps[2].State != "done" {
		t.Errorf("C1 is %+v", out)
	}
	if s := item("C3").Steps; s[2].State != "failed" || !s[2].Optional || s[3].State != "done" {
		t.Errorf("C3 is %+v", s)
	}
	e, err := health.New(b.Store).ExplainKey(t.Context(), run, "C1")
	if err != nil || e.Failed != 1 || e.Unsettled != 0 || !strings.Contains(e.Summary, "left out of statement, index") ||
		!strings.Contains(e.Summary, "step accounts") {
		t.Errorf("C1 is explained as %+v, %v", e, err)
	}
}

// Several steps that no other one needs give several values; an optional one that failed gives its code.
func TestDigestOfSeveralResults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	load := func(fail ...workqueue.Ordinal) workqueue.RunID {
		run := b.Load(storetest.Planned(storetest.Need("a"), storetest.Need("b", 0), storetest.Optional(storetest.Need("c"))),
			4)
		b.RecordStep(run, 0, 1)
		b.RecordStep(run, 1, 2)
		b.RecordStep(run, 2, fail...)
		return run
	}
	run := load(1, 3)
	var want strings.Builder
	for i := range 4 {
		of := fmt.Sprintf(`{"of":%d}`, i)
		values := map[int][]string{0: {"done", of, of}, 1: {"failed", "bad"}, 2: {"failed", "bad"}, 3: {"done", of, "bad"}}
		for _, text := range append([]string{"C" + strconv.Itoa(i)}, values[i]...) {
			fmt.Fprintf(&want, "%d:%s,", len(text), text)
		}
	}
	d, sum := testenv.Must(report.New(b.Store).Digests(t.Context(), run))(t), sha256.Sum256([]byte(want.String()))
	testenv.Same(t, d.Results, hex.EncodeToString(sum[:]), "%+v", d)
	same, other := load(3), load(0, 3)
	if c, err := report.New(b.Store).Compare(t.Context(), run, same, nil); err != nil ||
		count(c, report.ChangeNone) != 2 ||
		count(c, report.ChangeStillFailing) != 2 {
		t.Errorf("against the same: %+v, %v", c, err)
	}
	c, err := report.New(b.Store).Compare(t.Context(), run, other, nil)
	if err != nil || count(c, report.ChangeResult) != 1 || count(c, report.ChangeNone) != 1 {
		t.Errorf("against another: %+v, %v", c, err)
	}
	for _, change := range c.Changes {
		if change.Change == report.ChangeStillFailing && change.Examples[1].Here.Step != "b" {
			t.Errorf("an example is %+v", change.Examples[1].Here)
		}
	}
}

func count(c report.Comparison, change report.Change) int64 {
	for _, n := range c.Changes {
		if n.Change == change {
			return n.Items
		}
	}
	return -1
}

// An open run's items that have no block yet are missing, and someone has to see to them.
func TestViewsOfAnOpenRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("a"), storetest.Need("b", 0)), 6)
	b.Exec(`UPDATE batchrun SET opened = true, sealed_at = NULL, items = 9, seal_deadline = tranche_now() + '1 hour'
		WHERE id = $1`, run)
	b.Exec(`INSERT INTO work_queue (run_id, ordinal, item_key, payload) SELECT $1, n, 'C' || n, '{}'
		FROM generate_series(6, 8) n`, run)
	view, err := inspect.New(b.Store).Run(t.Context(), run)
	if err != nil || view.Open == nil || view.Open.SealDeadline == nil || view.Items != 9 || view.Steps[0].Waiting != 3 ||
		view.Steps[1].Waiting != 9 {
		t.Errorf("the run is %+v, %v", view, err)
	}
	e, err := health.New(b.Store).Explain(t.Context(), run)
	if err != nil || e.Unsettled != 9 || e.Open == nil || e.Unsealed {
		t.Fatalf("got %+v, %v", e, err)
	}
	last := e.Groups[0]
	if last.Reason != health.ReasonUnplaced || last.Items != 3 || last.When == nil ||
		last.Owner != health.OwnerOperator || last.Advice[0].Command != "tranche run seal "+run.String() {
		t.Errorf("the first group is %+v", last)
	}
	e, err = health.New(b.Store).ExplainKey(t.Context(), run, "C7")
	if err != nil || e.Unsettled != 1 || len(e.Groups) != 1 || len(e.Of) != 1 ||
		e.Of[0].State != workqueue.OutcomeMissing {
		t.Errorf("C7 is %+v, %v", e, err)
	}
	b.Report(run)
	b.Exec(`UPDATE batchrun SET seal_deadline = tranche_now(), overdue_at = tranche_now() WHERE id = $1`, run)
	if e, err = health.New(b.Store).Explain(t.Context(), run); err != nil || e.Groups[0].When != nil ||
		!strings.Contains(e.Groups[0].Next, "it should have been sealed by") {
		t.Errorf("overdue: %+v, %v", e.Groups[0], err)
	}
}
