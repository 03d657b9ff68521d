package redo_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// gatherer does the work of a run, and knows how often it did what.
type gatherer struct {
	*bench
	run   workqueue.RunID
	say   map[workqueue.Step]string // what a step answers, when not its usual
	fails map[workqueue.Step]map[workqueue.Ordinal]bool
	did   map[workqueue.Step][]workqueue.Ordinal
	err   workqueue.SlotError // of what fails
}

func gather(t *testing.T, n int) *gatherer {
	t.Helper()
	b := setup(t)
	g := &gatherer{bench: b, run: b.Load(storetest.Collecting(), n)}
	g.fresh()
	return g
}

// fresh forgets what was done, and has every step answer as usual.
func (g *gatherer) fresh() {
	g.say, g.did = map[workqueue.Step]string{}, map[workqueue.Step][]workqueue.Ordinal{}
	g.fails = map[workqueue.Step]map[workqueue.Ordinal]bool{}
	g.err = workqueue.SlotError{Code: "broken", Message: "m"}
}

func (g *gatherer) fail(step workqueue.Step, items ...workqueue.Ordinal) {
	g.fails[step] = map[workqueue.Ordinal]bool{}
	for _, o := range items {
		g.fails[step][o] = true
	}
}

func (g *gatherer) take(step workqueue.Step) []workqueue.Slice {
	g.Helper()
	req := g.ClaimRequest(g.run, storetest.Plenty)
	req.Step = step
	claimed := testenv.Must(dispatch.New(g.Store).Claim(g.Context(), req))(g)
	return claimed.Slices
}

func (g *gatherer) answer(step workqueue.Step, slices ...workqueue.Slice) {
	g.Helper()
	var answers []settle.Answer
	for _, s := range slices {
		a := storetest.Whole(s)
		for i := range a.Slots {
			slot := &a.Slots[i]
			slot.Result = fmt.Appendf(nil, `{"%s":%d,"say":%q}`, storetest.StepNames()[step], slot.Ordinal, g.say[step])
			if g.fails[step][slot.Ordinal] {
				err := g.err
				slot.Result, slot.Err = nil, &err
			}
			g.did[step] = append(g.did[step], slot.Ordinal)
		}
		answers = append(answers, a)
	}
	g.Record(answers...)
}

func (g *gatherer) work() {
	g.Helper()
	for did := true; did; {
		did = false
		for step := range storetest.StepNames() {
			if taken := g.take(workqueue.Step(step)); len(taken) > 0 {
				g.answer(workqueue.Step(step), taken...)
				did = true
			}
		}
	}
}

// wantDone checks which items each step has done since fresh.
func (g *gatherer) wantDone(want map[workqueue.Step]int) {
	g.Helper()
	for step, name := range storetest.StepNames() {
		testenv.Same(g, len(g.did[workqueue.Step(step)]), want[workqueue.Step(step)], "items that step %s did", name)
	}
}

func (g *gatherer) reset(step workqueue.Step, change func(*redo.ResetRequest)) redo.Reset {
	g.Helper()
	out := testenv.Must(g.tryReset(step, change))(g)
	g.Check()
	return out
}

func (g *gatherer) tryReset(step workqueue.Step, change func(*redo.ResetRequest)) (redo.Reset, error) {
	req := redo.ResetRequest{Run: g.run, Actor: "ann", Select: redo.Selection{Step: storetest.StepNames()[step]}}
	change(&req)
	return redo.New(g.Store).Reset(g.Context(), req)
}

func byKey(keys ...string) func(*redo.ResetRequest) {
	return func(r *redo.ResetRequest) { r.Select.Keys = keys }
}

func all(r *redo.ResetRequest) { r.Select.All = true }

// A part that is bad fails the step that reads it: a rerun there would give it the same part. The part is recomputed,
// chosen by how it failed the other step, and what was told of it is told no more.
func TestResetAPartThatFailedAnotherStep(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	g.fail(storetest.Statement, 2, 5, 7)
	g.err = workqueue.SlotError{Code: "bad_part", Message: `part "accounts": it is text/plain, which does not fit`}
	g.work()
	advised := func(command string) bool {
		t.Helper()
		e := testenv.Must(health.New(g.Store).Explain(t.Context(), g.run))(t)
		return slices.ContainsFunc(e.Advice, func(a health.Advice) bool { return a.Command == command })
	}
	again := "tranche run rerun " + g.run.String() + " --failed"
	fix := "tranche run reset " + g.run.String() + " --step accounts --code bad_part --failed-at statement"
	if !advised(fix) || advised(again) {
		t.Errorf("a part that is bad: the rerun is advised (%v), or its reset is not (%v)", advised(again), advised(fix))
	}
	if errs, err := inspect.New(g.Store).Errors(t.Context(), g.run); err != nil || len(errs.Groups) != 1 ||
		!slices.Equal(errs.Groups[0].Resets, []string{"accounts"}) {
		t.Errorf("%+v (%v); want a group for which accounts is to be reset", errs.Groups, err)
	}
	if found, err := health.New(g.Store).Health(t.Context(), health.Limits{}); err != nil ||
		len(found.Conditions) == 0 || !slices.ContainsFunc(found.Conditions, func(c health.Condition) bool {
		return c.Kind == health.FailedItems && c.Resets && strings.Contains(c.Remedy, fix)
	}) {
		t.Errorf("%+v (%v); want %s", found, err, fix)
	}
	byCode := func(r *redo.ResetRequest) { r.Select.Codes = []string{"bad_part"} }
	_, err := g.tryReset(storetest.Accounts, byCode)
	testenv.Says(t, err, "--failed-at STEP", "no item failed with it at accounts")
	for _, wrong := range []redo.Selection{{Step: "accounts", At: "statement", Keys: []string{"C1"}},
		{At: "statement", Codes: []string{"bad_part"}}, {Step: "accounts", At: "nowhere", Codes: []string{"bad_part"}}} {
		_, err := redo.New(g.Store).Reset(t.Context(), redo.ResetRequest{Run: g.run, Select: wrong})
		testenv.Says(t, err, "failed_at", "%+v", wrong)
	}
	_, err = redo.New(g.Store).Rerun(t.Context(), redo.RerunRequest{Run: g.run, DryRun: true, Select: redo.Selection{
		Step: "accounts", At: "statement", Codes: []string{"bad_part"}}})
	testenv.Same(t, err, nil, "a rerun of the part")
	g.fresh()
	g.say[storetest.Accounts] = "fixed"
	g.fail(storetest.Statement, 5)
	out := g.reset(storetest.Accounts, func(r *redo.ResetRequest) { byCode(r); r.Select.At = "statement" })
	if out.Items != 3 || !slices.Equal(out.Examples, []string{"C2", "C5", "C7"}) {
		t.Errorf("reset %+v", out)
	}
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 3, storetest.Statement: 3, storetest.Posting: 2})
	if advised(fix) || !advised(again) {
		t.Error("a part that is fixed is reported as bad")
	}
	g.Check()
}

// Of a claimed slice that turns out too large, only what was not withdrawn meanwhile is sent on.
func TestSplitOfWhatWasWithdrawn(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	claimed := g.take(storetest.Accounts)[0]
	g.reset(storetest.Accounts, byKey("C0", "C1", "C2"))
	first, err := settle.New(g.Store).Split(t.Context(), g.Session, claimed.ID, claimed.Mask.Split(1), time.Minute, "cut")
	if err != nil || first == nil || !slices.Equal(storetest.Ordinals(*first), []workqueue.Ordinal{3}) {
		t.Fatalf("the first piece is %+v, %v; want item 3", first, err)
	}
	g.Check()
	g.answer(storetest.Accounts, *first)
	g.Exec(`UPDATE work_slice SET deadline = tranche_now() WHERE state = 'claimed'`)
	g.Check()
}

func TestResetRefusals(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	reset := func(step workqueue.Step, change func(*redo.ResetRequest), says ...string) {
		t.Helper()
		_, err := g.tryReset(step, change)
		g.WantSaid(err, says...)
	}
	none := func(*redo.ResetRequest) {}
	reset(storetest.Accounts, func(r *redo.ResetRequest) { all(r); r.Select.Step = "" }, "statement")
	reset(storetest.Accounts, func(r *redo.ResetRequest) { all(r); r.Select.Step = "x" }, storetest.StepNames()...)
	reset(storetest.Accounts, byKey("C1", "X", "Y"), `"X", "Y"`)
	reset(storetest.Accounts, none, "choose")
	reset(storetest.Accounts, func(r *redo.ResetRequest) { all(r); r.Select.Keys = []string{"C1"} }, "choose")
	reset(storetest.Accounts, func(r *redo.ResetRequest) { r.Select.Failed = true }, "failed")
	reset(storetest.Accounts, all, "to be done at step accounts anyway")
	reset(storetest.Statement, all, "waiting for step transactions")
	reset(storetest.Accounts, func(r *redo.ResetRequest) { r.Select.Codes = []string{"none"} }, "code none")
	_, err := redo.New(g.Store).Rerun(t.Context(), redo.RerunRequest{Run: g.run,
		Select: redo.Selection{Keys: []string{"C1"}}})
	g.WantSaid(err, "run reset")
	g.fail(storetest.Accounts, 1)
	g.fail(storetest.Transactions, 1, 2)
	g.work()
	reset(storetest.Statement, byKey("C1", "C2"), "--step transactions", "--step accounts") // they were left out there
	g.fresh()
	g.reset(storetest.Transactions, byKey("C1"))
	testenv.Must(control.New(g.Store).Cancel(t.Context(), storetest.Wish(g.run, "")))(t)
	reset(storetest.Accounts, all, "cancelled")
	g.Check()
}
