package workqueue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

func (b *bench) resume(run workqueue.RunID) {
	b.Helper()
	testenv.Must(control.New(b.Store).Resume(b.Context(), storetest.Wish(run, ""), nil))(b)
}

func (b *bench) threshold(run workqueue.RunID, maxFailed string) {
	b.Helper()
	b.Set(control.RunChange{Run: run, MaxFailed: &maxFailed})
}

// checkThreshold fails the test unless the check ends as wanted.
func (b *bench) checkThreshold(run workqueue.RunID, want bool) {
	b.Helper()
	testenv.Same(b, testenv.Must(control.New(b.Store).CheckThreshold(b.Context(), run))(b), want,
		"the threshold held the run")
}

// wantHold compares a run's hold: "" or "kind by whom: why".
func (b *bench) wantHold(run workqueue.RunID, want string) {
	b.Helper()
	var got string
	err := b.Pool.QueryRow(b.Context(), `SELECT coalesce(hold || ' by ' || held_by || ': ' || hold_detail, '')
		FROM batchrun WHERE id = $1`, run).Scan(&got)
	testenv.NoError(b, err)
	testenv.Same(b, got, want, "the run's hold is")
}

func TestPauseAndResumeAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, paused, done := b.Load(storetest.Request(), 4), b.Load(storetest.Request(),
		4), b.Load(storetest.Request(), 4), b.Load(storetest.Request(), 4)
	b.Finish(done)
	b.PauseRun(paused)
	every := control.Control{All: true, Actor: "ann", Reason: "stop the world"}
	out, err := control.New(b.Store).Pause(t.Context(), every)
	if err != nil || !slices.Equal(out.Runs, []workqueue.RunID{first, second}) || len(out.Skipped) != 1 ||
		out.Skipped[0].Run != paused || !strings.Contains(out.Skipped[0].Why, "paused already") {
		t.Errorf("paused all: %+v, %v", out, err)
	}
	for _, run := range []workqueue.RunID{first, second} {
		b.wantHold(run, "operator by ann: stop the world")
		testenv.Same(t, len(b.Claim(run, storetest.Plenty)), 0, "slices were claimed")
	}
	b.threshold(second, "0")
	b.Exec(`UPDATE work_block SET ready = ready << 1, failed = B'0001'::bit(8192) WHERE run_id = $1`, second) // of four
	out, err = control.New(b.Store).Resume(t.Context(), every, nil)
	if err != nil || !slices.Equal(out.Runs, []workqueue.RunID{first, paused}) || len(out.Skipped) != 1 ||
		out.Skipped[0].Run != second || !strings.Contains(out.Skipped[0].Why, "1 of 4 items failed; the limit is 0") {
		t.Errorf("resumed all: %+v, %v", out, err)
	}
	b.wantHold(first, "")
	b.wantHold(second, "operator by ann: stop the world")
	all, err := control.New(b.Store).Cancel(t.Context(), every)
	if err != nil || len(all.Runs) != 3 || len(all.Skipped) != 0 {
		t.Errorf("cancelled all: %+v, %v; want three runs, a paused one among them", all, err)
	}
	b.WantState(second, "cancelled", 1)
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 40)
	b.checkThreshold(run, false)
	b.threshold(run, "10%")
	bad := workqueue.SlotError{Code: "bad", Message: "m"}
	b.Record(storetest.Faulty(b.One(run), bad))
	b.checkThreshold(run, false) // 4 of 40 are 10%
	late := b.One(run)
	b.Record(storetest.Faulty(b.One(run), bad))
	due, err := control.New(b.Store).DueHolds(t.Context())
	if err != nil || len(due) != 1 || due[0] != (control.DueHold{Run: run, Threshold: true}) {
		t.Errorf("due: %+v, %v", due, err)
	}
	b.checkThreshold(run, true)
	b.checkThreshold(run, false)
	b.wantHold(run, "threshold by tranche: 8 of 40 items failed; the limit is 4 (--max-failed 10%)")
	testenv.Same(t, len(testenv.Must(control.New(b.Store).DueHolds(t.Context()))(t)), 0, "due once it is held")
	testenv.Same(t, len(b.Claim(run, storetest.Plenty)), 0, "slices of a held run were claimed")
	_, err = control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), nil)
	b.WantRefused(err, "8 of 40 items failed", "--max-failed N", "tranche run rerun "+run.String()+" --failed")
	seven := "7"
	_, err = control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), &seven)
	b.WantRefused(err, "the limit is 7 (--max-failed 7)")
	testenv.Same(t, b.Number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run), 4,
		"a refused resume set the limit to")
	again := b.Rerun(run, redo.Selection{Codes: []string{"bad"}})
	if again.Hold != control.HoldThreshold || !strings.HasPrefix(again.HoldDetail, "8 of 40") {
		t.Errorf("the rerun of a held run says %+v", again)
	}
	testenv.Advance(t, b.Pool, time.Second)
	b.resume(run) // they are no failures any more
	testenv.Same(t, b.Report(run).Generations[1].PausedSeconds >= 1, true, "the pause went on after the re-run")
	b.Record(storetest.Faulty(late, bad))
	b.checkThreshold(run, false)
	b.Record(storetest.Faulty(b.One(run), bad))
	b.checkThreshold(run, true)
	none := ""
	_, err = control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), &none)
	testenv.Same(t, err, nil, "resume without a threshold")
	b.checkThreshold(run, false)
	b.Finish(run)
	b.WantState(run, "completed", 2)
	open := b.OpenRun(func(r *start.OpenRequest) { r.MaxFailed = "50%" })
	b.Add(open, storetest.Names(bitfield.Size))
	b.Exec(`UPDATE batchrun SET gentle = true, done_by = tranche_now() WHERE id = $1`, open)
	b.cancelRun(open)
	b.resume(open)
	testenv.Same(t, b.Number(`SELECT failed_limit FROM batchrun WHERE id = $1 AND NOT gentle`, open), bitfield.Size/2,
		"the limit of an open run that was cancelled with all its items")
	b.Check()
}

func TestFailedLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		items int64
		limit int64
	}{
		{"0", 100, 0}, {"500", 100, 500}, {"1%", 1_000_000, 10_000}, {"1%", 199, 1}, {"0.5%", 1000, 5},
		{"0.0001%", 1_000_000, 1}, {"100%", 7, 7}, {"0%", 7, 0}, {"33.3333%", 2_147_475_456, 715_824_436},
	} {
		limit, err := workqueue.FailedLimit(c.text, c.items)
		if err != nil || limit == nil || *limit != c.limit {
			t.Errorf("%q of %d: %v, %v; want %d", c.text, c.items, limit, err, c.limit)
		}
	}
	if limit, err := workqueue.FailedLimit("", 100); limit != nil || err != nil {
		t.Errorf("without a threshold: %d, %v", *limit, err)
	}
	_, err := workqueue.FailedLimit("3000000000", 100) // see TestParseMaxFailed
	_ = testenv.As[*workqueue.SettingError](t, err, "more than there can be")
}

func (b *bench) cancelRun(run workqueue.RunID) {
	b.Helper()
	testenv.Must(control.New(b.Store).Cancel(b.Context(), control.Control{Run: run, Actor: "ann"}))(b)
}

// What cannot continue says why, and what to do instead.
func TestARunThatCannotGoOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		says string
		made func() workqueue.RunID
	}{
		{"an abandoned load", func() workqueue.RunID {
			run := b.Load(storetest.Request(), 5)
			b.Exec(`UPDATE batchrun SET state = 'cancelled', sealed_at = NULL WHERE id = $1`, run)
			return run
		}},
		{"cancelled while it was open", func() workqueue.RunID {
			run := b.OpenRun(func(*start.OpenRequest) {})
			b.Add(run, storetest.Names(2))
			b.cancelRun(run)
			return run
		}},
		{"wait until it has loaded", func() workqueue.RunID { // the limit would be dropped
			run := b.Load(storetest.Request(), 5)
			b.Exec(`UPDATE batchrun SET state = 'loading' WHERE id = $1`, run)
			b.PauseRun(run)
			return run
		}},
		{"nothing to resume", func() workqueue.RunID { return b.Ended(9, time.Hour) }},
	} {
		run := c.made()
		state, generation := b.State(run)
		_, err := control.New(b.Store).Resume(t.Context(), storetest.Wish(run, "after all"), new("1%"))
		testenv.Says(t, err, c.says, "the error")
		b.WantState(run, state, generation)
	}
}

// A run that continues a cancelled one, and a resume of that one at the same time, do not both do its items.
func TestACancelledRunIsContinuedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, late := range []bool{false, true} { // the resume
		run := b.Load(storetest.Request(), 5)
		b.cancelRun(run)
		resumed := make(chan error, 1)
		resume := func() {
			_, err := control.New(b.Store).Resume(t.Context(), storetest.Wish(run, ""), nil)
			resumed <- err
		}
		req, next := storetest.Request(), storetest.Keys("C1")
		req.Session, req.FromRun = b.Session, run
		req.Sealing = func(context.Context, pgx.Tx, workqueue.RunID) error {
			if late {
				go resume()
				b.Until("the resume waits for the start", func() bool { return b.Waiters() == 1 })
			}
			return nil
		}
		_, err := start.New(b.Store).Load(t.Context(), req, func(item *start.LoadItem) error {
			err := next(item)
			if err != nil && !late {
				resume()
			}
			return err
		})
		if late {
			testenv.NoError(t, err)
			testenv.Says(t, <-resumed, "continues it; its items would be done twice", "the resume")
		} else {
			testenv.NoError(t, <-resumed)
			testenv.Says(t, err, "reopened meanwhile", "the start")
		}
	}
}

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
	testenv.Same(t, len(b.Claim(run, storetest.Plenty)), 0, "slices of a held run were claimed")
	testenv.SameList(t, b.Actions(run), []string{"start by test", "pause by tranche"}, "audited")
	testenv.SameList(t, b.Events(run), []string{"started", "paused"}, "events")
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
		testenv.Same(t, b.failFastSteps(run), c.watched, "%s: fail-fast limits are left", name)
	}
	run := b.Load(failFast(10, 10, 20), 10)
	b.Record(storetest.Faulty(b.One(run), badPayload))
	b.WantState(run, "completed", 1)
	b.wantHold(run, "")
	testenv.Same(t, b.failFastSteps(b.Load(failFast(4, 10, 20), 9)), 0,
		"a run has a fail-fast limit that has not that many items")
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
		testenv.Same(t, testenv.Must(control.New(b.Store).CheckFailFast(t.Context(), run))(t), want, "held")
	}
	b.wantHold(run, "fail_fast by tranche: 10 of the first 10 outcomes of step only failed with bad_payload, "+
		"which would not pass (fail_fast 10/20)")
	run = trip()
	b.Rerun(run, redo.Selection{Failed: true})
	if held, err := control.New(b.Store).CheckFailFast(t.Context(), run); err != nil || held {
		t.Errorf("held after a rerun: %v, %v", held, err)
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
	testenv.Same(t, b.failFastSteps(run), 2, "steps have a fail-fast limit")
	for range 3 {
		b.Record(storetest.Whole(b.One(run)))
	}
	testenv.Same(t, b.failFastSteps(run), 1, "steps have a fail-fast limit when one has had its first outcomes")
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
// is enough nothing is held, regardless of their order, and with that one the run is.
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
					_, err := settle.New(b.Store).Record(t.Context(), []settle.Answer{a})
					testenv.Same(t, err, nil, "an answer")
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
		testenv.Same(t, testenv.Must(workqueue.ParseFailFast(text))(t).String(), want, "%q", text)
	}
	for _, text := range []string{"no", "0/10", "10", "11/10", "5/10001", "-1/4", "1/2/3", "5 / 10", "200%"} {
		got, err := workqueue.ParseFailFast(text)
		testenv.Fails(t, err, "%q is taken for %v", text, got)
	}
}
