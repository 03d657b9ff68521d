package dispatch_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// What nodes do themselves stays claimed for as long as the step allows it, and is found by those only who can do it.
func TestClaimOfOwnKinds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	local := storetest.Need("render", 0)
	local.Kind, local.Timeout = workqueue.KindLocal, time.Hour
	local.Endpoint = workqueue.TargetKey(local.Kind, "pdf")
	local.Config = []byte(`{"scale": 2}`)
	run := b.Load(storetest.Planned(storetest.Need("fetch"), local), 4)
	b.RecordStep(run, 0)
	find := func(search dispatch.Search) int {
		t.Helper()
		found := testenv.Must(dispatch.New(b.Store).RunnableSteps(t.Context(), search))(t)
		return len(found.Steps)
	}
	if find(dispatch.Search{}) != 0 || find(dispatch.Search{Locals: []string{"other"}}) != 0 {
		t.Error("a node without the function finds the step")
	}
	if find(dispatch.Search{Locals: []string{"pdf"}, NoRoom: []string{local.Endpoint}}) != 0 {
		t.Error("a node without room finds the step")
	}
	if find(dispatch.Search{Locals: []string{"pdf", "other"}}) != 1 {
		t.Error("a node with the function does not find the step")
	}
	claimed := b.ClaimStep(run, 1, 1)
	w := claimed.Work
	if w.Kind != workqueue.KindLocal || w.Name != "render" || !bytes.Contains(w.Config, []byte("scale")) ||
		w.Timeout != time.Hour || len(w.Inputs) != 1 {
		t.Errorf("the work is %+v", w)
	}
	left := b.Number(`SELECT extract(epoch FROM deadline - tranche_now())::int FROM work_slice WHERE id = $1`,
		claimed.Slices[0].ID)
	if want := int((time.Hour + dispatch.DefaultClaimTTL).Seconds()); left < want-60 || left > want {
		t.Errorf("the slice has %d seconds; want about %d", left, want)
	}
	b.Expire(b.Session)
	b.Session = b.Open()
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	if n, err := settle.New(b.Store).ReleaseDeadSessions(t.Context(), b.Lead()); n != 1 || err != nil {
		t.Errorf("released %d slices of a dead node, %v", n, err)
	}
	b.RecordStep(run, 1)
	b.WantState(run, "completed", 1)
	b.WantCounts(run, 4, 0)
	b.Check()
}

// The parts that a step sees count in how large its requests get.
func TestCutBySizeOfParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large, small := storetest.Need("sees", 0), storetest.Need("blind", 0)
	large.Chunk, small.Chunk, small.Inputs = 100, 100, nil
	run := b.Load(storetest.Planned(storetest.Need("fetch"), large, small), 40)
	for {
		claimed := b.ClaimStep(run, 0, storetest.Plenty).Slices
		if len(claimed) == 0 {
			break
		}
		for _, s := range claimed {
			a := storetest.Whole(s)
			for i := range a.Slots {
				a.Slots[i].Result = bytes.Repeat([]byte{'x'}, 1<<18)
			}
			b.Record(a)
		}
	}
	if s := b.ClaimStep(run, 1, 1).Slices[0]; s.Mask.Count() != 3 { // 1 MiB by 256 KiB and an envelope
		t.Errorf("a request with its parts has %d items; want 3", s.Mask.Count())
	}
	if s := b.ClaimStep(run, 2, 1).Slices[0]; s.Mask.Count() != 40 {
		t.Errorf("a request without parts has %d items; want 40", s.Mask.Count())
	}
}

// A node of a version that knows single requests only would complete such runs with their first step.
func TestOldNodesAndSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const old = `INSERT INTO node_session (id, host, pid, version, expires_at)
		VALUES (gen_random_uuid(), 'web1', 7, 'v0.4', tranche_now() + interval '1 hour')`
	b.Exec(old)
	b.Load(storetest.Request(), 4)
	req := storetest.Planned(storetest.Need("a"), storetest.Need("b", 0))
	req.Session = b.Session
	_, err := start.New(b.Store).Load(t.Context(), req, storetest.Keys("C0"))
	var state *workqueue.StateError
	if !errors.As(err, &state) || !strings.Contains(err.Error(), "web1 (pid 7, version v0.4)") {
		t.Fatalf("beside an old node: %v; want a StateError that names it", err)
	}
	if n := b.Number(`SELECT count(*) FROM batchrun`); n != 1 {
		t.Errorf("there are %d runs; want the one of a single step", n)
	}
	b.Exec(`UPDATE node_session SET expires_at = tranche_now() WHERE host = 'web1'`)
	run := b.Load(req, 4)
	if _, err := b.Pool.Exec(t.Context(), old); err == nil || !strings.Contains(err.Error(), "plans of several steps") {
		t.Errorf("an old node came while the run was in progress: %v", err)
	}
	b.RecordStep(run, 0)
	b.RecordStep(run, 1)
	b.WantState(run, "completed", 1)
	b.Exec(old)
}
