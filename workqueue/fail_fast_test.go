package workqueue_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

var badPayload = workqueue.SlotError{Code: "bad_payload", Message: "balance is a number"}

func failFast(chunk, failures, within int) start.LoadRequest {
	req := storetest.Chunked(chunk)
	req.Steps[0].InFlight = 100
	req.FailFast = workqueue.FailFast{Failures: failures, Within: within}
	return req
}

func (b *bench) failFastSteps(run workqueue.RunID) int {
	b.Helper()
	return b.Number(`SELECT count(*) FROM run_fail_fast WHERE run_id = $1`, run)
}

func TestFailFastHoldsARunWhoseFirstOutcomesFail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(failFast(4, 10, 20), 100)
	b.Record(storetest.Whole(b.One(run)), storetest.Faulty(b.One(run), badPayload))
	b.Record(storetest.Faulty(b.One(run), badPayload))
	b.wantHold(run, "")
	late := b.One(run)
	b.Record(storetest.Faulty(b.One(run), badPayload))
	b.wantHold(run, "fail_fast by tranche: 12 of the first 16 outcomes of step only failed with bad_payload, "+
		"which would not pass (fail_fast 10/20)")
	if n := len(b.Claim(run, storetest.Plenty)); n != 0 {
		t.Errorf("%d slices of a held run were claimed", n)
	}
	if got := b.Actions(run); !slices.Equal(got, []string{"start by test", "pause by tranche"}) {
		t.Errorf("audited: %q", got)
	}
	if got := b.Events(run); !slices.Equal(got, []string{"started", "paused"}) {
		t.Errorf("events: %q", got)
	}
	b.Record(storetest.Faulty(late, badPayload)) // what was out comes in anyway
	b.resume(run)
	b.Record(storetest.Faulty(b.One(run), badPayload), storetest.Faulty(b.One(run), badPayload),
		storetest.Faulty(b.One(run), badPayload))
	b.wantHold(run, "") // it has asked
	b.Finish(run)
	b.WantState(run, "completed", 1)
	b.Check()
}

func TestFailFastLetsOthersGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	retry, other := badPayload, badPayload
	retry.Retry, other.Code = true, "missing"
	for name, c := range map[string]struct {
		req     start.LoadRequest
		answers func(run workqueue.RunID) []settle.Answer
		watched int
	}{
		"few failures": {failFast(4, 10, 20), func(run workqueue.RunID) []settle.Answer {
			return []settle.Answer{storetest.Faulty(b.One(run), badPayload), storetest.Faulty(b.One(run), badPayload),
				storetest.Whole(b.One(run)),
				storetest.Whole(b.One(run)), storetest.Whole(b.One(run)), storetest.Whole(b.One(run)), storetest.Faulty(b.One(run),
					badPayload)}
		}, 0},
		"of several codes": {failFast(4, 10, 20), func(run workqueue.RunID) []settle.Answer {
			return []settle.Answer{storetest.Faulty(b.One(run), badPayload), storetest.Faulty(b.One(run), badPayload),
				storetest.Faulty(b.One(run), other), storetest.Faulty(b.One(run), other)}
		}, 1},
		"that may pass": {func() start.LoadRequest {
			req := failFast(4, 10, 20)
			req.Steps[0].MaxAttempts = 1
			return req
		}(), func(run workqueue.RunID) []settle.Answer {
			return []settle.Answer{storetest.Faulty(b.One(run), retry), storetest.Faulty(b.One(run), retry),
				storetest.Faulty(b.One(run), retry),
				storetest.Whole(b.One(run))}
		}, 1},
		"a small part of very many at once": {failFast(100, 10, 20), func(run workqueue.RunID) []settle.Answer {
			a := storetest.Whole(b.One(run))
			for i := range 40 {
				a.Slots[i].Result, a.Slots[i].Err = nil, &badPayload
			}
			return []settle.Answer{a}
		}, 0},
		"a run that is over with it": {failFast(10, 10, 20), func(run workqueue.RunID) []settle.Answer {
			b.Record(storetest.Whole(b.One(run)), storetest.Whole(b.One(run)), storetest.Whole(b.One(run)))
			return nil
		}, 0},
	} {
		run := b.Load(c.req, 100)
		if answers := c.answers(run); len(answers) > 0 {
			b.Record(answers...)
		}
		b.wantHold(run, "")
		if n := b.failFastSteps(run); n != c.watched {
			t.Errorf("%s: %d fail-fast limits are left; want %d", name, n, c.watched)
		}
	}
	run := b.Load(failFast(10, 10, 20), 10)
	b.Record(storetest.Faulty(b.One(run), badPayload))
	b.WantState(run, "completed", 1)
	b.wantHold(run, "")
	if run := b.Load(failFast(4, 10, 20), 9); b.failFastSteps(run) != 0 {
		t.Error("a run has a fail-fast limit that has not that many items")
	}
	b.Check()
}

// A fail-fast limit that decides while the run is held for another reason waits for its turn, unless an operator reruns
// items.
func TestFailFastWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	trip := func() workqueue.RunID {
		run := b.Load(failFast(10, 10, 20), 100)
		s := b.One(run)
		b.PauseRun(run)
		b.Record(storetest.Faulty(s, badPayload))
		b.wantHold(run, "operator by ann: the service is sick")
		b.resume(run)
		return run
	}
	run := trip()
	due, err := control.New(b.Store).DueHolds(t.Context())
	if err != nil || len(due) != 1 || due[0] != (control.DueHold{Run: run, FailFast: true}) {
		t.Errorf("due: %+v, %v", due, err)
	}
	for _, want := range []bool{true, false} {
		if held, err := control.New(b.Store).CheckFailFast(t.Context(), run); err != nil || held != want {
			t.Errorf("held: %v, %v; want %v", held, err, want)
		}
	}
	b.wantHold(run, "fail_fast by tranche: 10 of the first 10 outcomes of step only failed with bad_payload, "+
		"which would not pass (fail_fast 10/20)")
	run = trip()
	b.Rerun(run, redo.Selection{Failed: true})
	if held, err := control.New(b.Store).CheckFailFast(t.Context(), run); err != nil || held {
		t.Errorf("held after a re-run: %v, %v", held, err)
	}
}

// Each step has its own first outcomes, and an optional one none that count.
func TestFailFastOfSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := failFast(10, 10, 20)
	first, second := req.Steps[0], req.Steps[0]
	second.Name, second.Needs, second.Endpoint = "compose", []int{0}, "compose"
	third := second
	third.Name, third.Optional = "portrait", true
	req.Steps = []workqueue.StepSpec{first, second, third}
	run := b.Load(req, 100)
	if n := b.failFastSteps(run); n != 2 {
		t.Errorf("%d steps have a fail-fast limit; want 2", n)
	}
	for range 3 {
		b.Record(storetest.Whole(b.One(run)))
	}
	if n := b.failFastSteps(run); n != 1 {
		t.Errorf("%d steps have a fail-fast limit when one has had its first outcomes; want 1", n)
	}
	for _, step := range []workqueue.Step{2, 1} { // the optional one first
		b.wantHold(run, "")
		claim := b.ClaimRequest(run, 2)
		claim.Step = step
		out := testenv.Must(dispatch.New(b.Store).Claim(t.Context(), claim))(t)
		for _, s := range out.Slices {
			b.Record(storetest.Faulty(s, badPayload))
		}
	}
	b.wantHold(run, "fail_fast by tranche: 10 of the first 10 outcomes of step compose failed with bad_payload, "+
		"which would not pass (fail_fast 10/20)")
	b.Check()
}

// Recorders that commit side by side, each in a block of its own, count every outcome once: with one failure less than
// is enough nothing is held, whatever their order, and with that one the run is.
func TestFailFastIsExactAmongRecorders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const blocks, each, failures = 6, 10, 30
	for _, enough := range []bool{false, true} {
		run := b.Load(failFast(bitfield.Size, failures, blocks*each), blocks*bitfield.Size)
		fail := failures - 1
		if enough {
			fail++
		}
		var wait sync.WaitGroup
		for k, s := range b.Claim(run, blocks) {
			wait.Go(func() {
				for i := range each {
					a := storetest.Answer(s, s.Block.Ordinal(i))
					if a.Answered = -1; k+i*blocks < fail {
						a.Slots[0].Result, a.Slots[0].Err = nil, &badPayload
					}
					if _, err := settle.New(b.Store).Record(t.Context(), []settle.Answer{a}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		var hold string
		err := b.Pool.QueryRow(t.Context(), `SELECT coalesce(hold, '') || hold_detail FROM batchrun WHERE id = $1`, run).
			Scan(&hold)
		testenv.NoError(t, err)
		if strings.HasPrefix(hold, fmt.Sprintf("fail_fast%d of the first", failures)) != enough || b.failFastSteps(run) != 0 {
			t.Errorf("with %d failures the hold is %q, and %d fail-fast limits are left", fail, hold, b.failFastSteps(run))
		}
	}
}

func TestParseFailFast(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "200/400", "off": "off", "5/10": "5/10", "10000/10000": "10000/10000"} {
		if got, err := workqueue.ParseFailFast(text); err != nil || got.String() != want {
			t.Errorf("%q is %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"no", "0/10", "10", "11/10", "5/10001", "-1/4", "1/2/3", "5 / 10", "200%"} {
		if got, err := workqueue.ParseFailFast(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}
