package redo_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
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
	claimed, err := dispatch.New(g.Store).Claim(g.Context(), req)
	if err != nil {
		g.Fatal(err)
	}
	return claimed.Slices
}

func (g *gatherer) answer(step workqueue.Step, slices ...workqueue.Slice) []settle.Verdict {
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
	return g.Record(answers...).Verdicts
}

// work does whatever there is to do.
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
		if n := len(g.did[workqueue.Step(step)]); n != want[workqueue.Step(step)] {
			g.Errorf("step %s did %d items; want %d", name, n, want[workqueue.Step(step)])
		}
	}
}

func (g *gatherer) reset(step workqueue.Step, change func(*redo.ResetRequest)) redo.Reset {
	g.Helper()
	out, err := g.tryReset(step, change)
	if err != nil {
		g.Fatal(err)
	}
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

// effect is what a reset did to a step.
func effect(out redo.Reset, step workqueue.Step) redo.StepReset {
	for _, st := range out.Steps {
		if st.Step == storetest.StepNames()[step] {
			return st
		}
	}
	return redo.StepReset{}
}

// A part that comes back as it was has nothing composed again; one that has changed only what sees it, and that only
// as far as it changes itself. With a cascade all is done again.
func TestResetRedoesWhatChanged(t *testing.T) {
	t.Parallel()
	g := gather(t, 20)
	g.work()
	g.WantState(g.run, "completed", 1)
	g.fresh()
	out := g.reset(storetest.Accounts, byKey("C1", "C2", "C2"))
	if out.Items != 2 || out.Generation != 2 || out.Blocks != 1 || effect(out, storetest.Accounts).Ready != 2 ||
		effect(out, storetest.Statement).Kept != 2 || effect(out, storetest.Posting).Kept != 2 || len(out.Steps) != 3 {
		t.Errorf("reset %+v", out)
	}
	g.WantState(g.run, "running", 2)
	g.work()
	g.WantState(g.run, "completed", 2)
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 2})

	g.fresh()
	g.say[storetest.Accounts] = "moved"
	g.reset(storetest.Accounts, byKey("C3"))
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 1, storetest.Statement: 1}) // the letter sees the same statement
	g.fresh()
	g.say[storetest.Accounts], g.say[storetest.Statement] = "moved again", "new"
	g.reset(storetest.Accounts, byKey("C3"))
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 1, storetest.Statement: 1, storetest.Posting: 1})

	g.fresh()
	out = g.reset(storetest.Accounts, func(r *redo.ResetRequest) { r.Select.Keys, r.Cascade = []string{"C5", "C6"}, true })
	if effect(out, storetest.Statement).Redone != 2 || effect(out, storetest.Posting).Redone != 2 {
		t.Errorf("reset with a cascade %+v", out)
	}
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 2, storetest.Statement: 2, storetest.Posting: 2})
	g.WantCompletions(g.run, 1, 2, 3, 4, 5)
	g.Check()
}

// A part that is bad fails the step that reads it: a re-run there would give it the same part. The part is made again,
// chosen by how it failed the other step, and what was told of it is told no more.
func TestResetAPartThatFailedAnotherStep(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	g.fail(storetest.Statement, 2, 5, 7)
	g.err = workqueue.SlotError{Code: "bad_part", Message: `part "accounts": it is text/plain, which does not fit`}
	g.work()
	advised := func(command string) bool {
		t.Helper()
		e, err := health.New(g.Store).Explain(t.Context(), g.run)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(e.Advice, func(a health.Advice) bool { return a.Command == command })
	}
	again := "tranche run rerun " + g.run.String() + " --failed"
	mend := "tranche run reset " + g.run.String() + " --step accounts --code bad_part --failed-at statement"
	if !advised(mend) || advised(again) {
		t.Errorf("a part that is bad: the re-run is advised (%v), or its reset is not (%v)", advised(again), advised(mend))
	}
	if errs, err := inspect.New(g.Store).Errors(t.Context(), g.run); err != nil || len(errs.Groups) != 1 ||
		!slices.Equal(errs.Groups[0].Resets, []string{"accounts"}) {
		t.Errorf("%+v (%v); want a group for which accounts is to be reset", errs.Groups, err)
	}
	if found, err := health.New(g.Store).Health(t.Context(), health.Limits{}); err != nil ||
		len(found.Conditions) == 0 || !slices.ContainsFunc(found.Conditions, func(c health.Condition) bool {
		return c.Kind == health.FailedItems && c.Resets && strings.Contains(c.Remedy, mend)
	}) {
		t.Errorf("%+v (%v); want %s", found, err, mend)
	}
	byCode := func(r *redo.ResetRequest) { r.Select.Codes = []string{"bad_part"} }
	if _, err := g.tryReset(storetest.Accounts, byCode); err == nil || !strings.Contains(err.Error(), "--failed-at STEP") {
		t.Errorf("no item failed with it at accounts: %v", err)
	}
	for _, wrong := range []redo.Selection{{Step: "accounts", At: "statement", Keys: []string{"C1"}},
		{At: "statement", Codes: []string{"bad_part"}}, {Step: "accounts", At: "nowhere", Codes: []string{"bad_part"}}} {
		_, err := redo.New(g.Store).Reset(t.Context(), redo.ResetRequest{Run: g.run, Select: wrong})
		if err == nil || !strings.Contains(err.Error(), "failed_at") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	_, err := redo.New(g.Store).Rerun(t.Context(), redo.RerunRequest{Run: g.run, DryRun: true, Select: redo.Selection{
		Step: "accounts", At: "statement", Codes: []string{"bad_part"}}})
	if err != nil {
		t.Errorf("a re-run of the part: %v", err)
	}
	g.fresh()
	g.say[storetest.Accounts] = "mended"
	g.fail(storetest.Statement, 5)
	out := g.reset(storetest.Accounts, func(r *redo.ResetRequest) { byCode(r); r.Select.At = "statement" })
	if out.Items != 3 || !slices.Equal(out.Examples, []string{"C2", "C5", "C7"}) {
		t.Errorf("reset %+v", out)
	}
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 3, storetest.Statement: 3, storetest.Posting: 2})
	if advised(mend) || !advised(again) {
		t.Error("a part that is fixed is told of as bad")
	}
	g.Check()
}

// After a fix of what composes, everything is composed again and nothing fetched.
func TestResetOfTheLastStepFetchesNothing(t *testing.T) {
	t.Parallel()
	g := gather(t, 9000)
	g.Exec(`UPDATE run_step SET chunk = 3000 WHERE run_id = $1`, g.run)
	g.work()
	g.fresh()
	g.say[storetest.Statement] = "fixed"
	out := g.reset(storetest.Statement, all)
	if out.Items != 9000 || out.Blocks != 2 || effect(out, storetest.Posting).Kept != 9000 {
		t.Errorf("reset %+v", out)
	}
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Statement: 9000, storetest.Posting: 9000})
	g.WantState(g.run, "completed", 2)
	g.Check()
}

// A part is reset while its request is out: nothing of the late reply is taken, for these items, and the new one
// counts.
func TestResetOfWhatIsOut(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	for _, step := range []workqueue.Step{storetest.Transactions, storetest.Branches} {
		g.answer(step, g.take(step)...)
	}
	out := g.take(storetest.Accounts) // two slices of four
	g.Send(out...)
	did := g.reset(storetest.Accounts, byKey("C0", "C4", "C5", "C6", "C7"))
	if e := effect(did, storetest.Accounts); e.Withdrawn != 5 || e.Reset != 5 || len(did.Requests) != 1 ||
		did.Requests[0].ID != out[1].ID || effect(did, storetest.Statement).Waiting != 5 {
		t.Errorf("reset %+v", did)
	}
	g.WantState(g.run, "running", 2)
	again := g.take(storetest.Accounts)
	g.say[storetest.Accounts] = "old"
	late := g.answer(storetest.Accounts, out...)
	if late[0].Taken != 3 || late[0].Duplicates != 1 || !late[1].Stale {
		t.Errorf("the late replies: %+v; want three items of the first taken, and none of the second", late)
	}
	g.Check()
	g.say[storetest.Accounts] = "new"
	g.answer(storetest.Accounts, again...)
	g.work()
	g.WantState(g.run, "completed", 2)
	if n := g.Number(`SELECT count(*) FROM work_result WHERE run_id = $1 AND step = 0
		AND convert_from(result, 'UTF8') LIKE '%old%' AND ordinal IN (0, 4, 5, 6, 7)`, g.run); n != 0 {
		t.Errorf("%d parts of the late reply were taken", n)
	}
	if n := g.Number(`SELECT count(*) FROM work_result WHERE run_id = $1 AND step = 0 AND generation = 2`, g.run); n != 5 {
		t.Errorf("%d parts of the new generation; want 5", n)
	}
	g.Check()
}

// Of a claimed slice that turns out too large, only what was not withdrawn meanwhile is sent on.
func TestSplitOfWhatWasWithdrawn(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	claimed := g.take(storetest.Accounts)[0]
	g.reset(storetest.Accounts, byKey("C0", "C1", "C2"))
	first, err := settle.New(g.Store).Split(t.Context(), g.Session, claimed.ID, claimed.Mask.Split(1), time.Minute)
	if err != nil || first == nil || !slices.Equal(storetest.Ordinals(*first), []workqueue.Ordinal{3}) {
		t.Fatalf("the first piece is %+v, %v; want item 3", first, err)
	}
	g.Check()
	g.answer(storetest.Accounts, *first)
	g.Exec(`UPDATE work_slice SET deadline = tranche_now() WHERE state = 'claimed'`)
	g.Check()
}

// What depends on a part is called back when the part is reset: it is not composed of what is about to change.
func TestResetCallsBackWhatDependsOnIt(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	for step := range storetest.Statement {
		g.answer(step, g.take(step)...)
	}
	composing := g.take(storetest.Statement)
	out := g.reset(storetest.Transactions, byKey("C1"))
	if e := effect(out, storetest.Statement); e.Withdrawn != 1 || e.Waiting != 1 ||
		effect(out, storetest.Posting).Waiting != 1 {
		t.Errorf("reset %+v", out)
	}
	if v := g.answer(storetest.Statement, composing...); v[0].Taken != 3 || v[0].Duplicates != 1 || v[1].Taken != 4 {
		t.Errorf("what was being composed: %+v", v)
	}
	if taken := g.take(storetest.Statement); len(taken) != 0 {
		t.Error("an item is composed while one of its parts is fetched")
	}
	g.fresh()
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Transactions: 1, storetest.Statement: 1, storetest.Posting: 8})
	g.WantState(g.run, "completed", 2)
	g.Check()
}

// Items that were left out because a part failed come in once it is there, by a reset and by a re-run; those that
// another step has failed for stay out, and a reset of what was left out says what to reset instead.
func TestResetOfAFailedPart(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	g.fail(storetest.Accounts, 1)
	g.fail(storetest.Transactions, 1, 2, 3)
	g.fail(storetest.Branches, 4)
	g.work()
	g.WantState(g.run, "completed", 1)
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 8, storetest.Transactions: 8, storetest.Branches: 8,
		storetest.Statement: 5, storetest.Posting: 5})
	_, err := g.tryReset(storetest.Statement, byKey("C1", "C2"))
	var nothing *redo.NothingToResetError
	if !errors.As(err, &nothing) || !strings.Contains(err.Error(), "--step transactions") ||
		!strings.Contains(err.Error(), "--step accounts") {
		t.Errorf("a reset of what was left out: %v", err)
	}
	g.fresh()
	out := g.reset(storetest.Transactions, func(r *redo.ResetRequest) { r.Select.Codes = []string{"broken"} })
	if e := effect(out, storetest.Statement); out.Items != 3 || e.Waiting != 2 || e.LeftOut != 1 {
		t.Errorf("reset %+v", out)
	}
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Transactions: 3, storetest.Statement: 2, storetest.Posting: 2})
	g.fresh()
	again, err := redo.New(g.Store).Rerun(t.Context(), redo.RerunRequest{Run: g.run, Actor: "ann",
		Select: redo.Selection{Failed: true}})
	if err != nil || again.Items != 2 || again.Slices != 2 || again.Step != "" || len(again.Steps) != 4 {
		t.Errorf("re-run %+v, %v", again, err)
	}
	g.Check()
	g.work()
	// The optional part of item 4 is there now: the statement that had to do without it is composed again.
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 1, storetest.Branches: 1, storetest.Statement: 2,
		storetest.Posting: 1})
	g.WantState(g.run, "completed", 3)
	if n := g.Number(`SELECT done FROM batchrun WHERE id = $1`, g.run); n != 8 {
		t.Errorf("%d items are done of 8", n)
	}
	g.Check()
}

func TestResetRefusals(t *testing.T) {
	t.Parallel()
	g := gather(t, 8)
	var setting *workqueue.SettingError
	var unknown *control.UnknownStepError
	var keys *redo.UnknownKeysError
	var nothing *redo.NothingToResetError
	var state *workqueue.StateError
	if _, err := g.tryReset(storetest.Accounts, func(r *redo.ResetRequest) { all(r); r.Select.Step = "" }); !errors.As(err,
		&setting) || !strings.Contains(err.Error(), "statement") {
		t.Errorf("no step: %v", err)
	}
	if _, err := g.tryReset(storetest.Accounts,
		func(r *redo.ResetRequest) { all(r); r.Select.Step = "x" }); !errors.As(err,
		&unknown) || !slices.Equal(unknown.Steps, storetest.StepNames()) {
		t.Errorf("an unknown step: %v", err)
	}
	if _, err := g.tryReset(storetest.Accounts, byKey("C1", "X", "Y")); !errors.As(err, &keys) || len(keys.Keys) != 2 {
		t.Errorf("unknown keys: %v", err)
	}
	for name, change := range map[string]func(*redo.ResetRequest){
		"nothing selected": func(*redo.ResetRequest) {},
		"two selections":   func(r *redo.ResetRequest) { all(r); r.Select.Keys = []string{"C1"} },
		"failed":           func(r *redo.ResetRequest) { r.Select.Failed = true },
	} {
		if _, err := g.tryReset(storetest.Accounts, change); err == nil {
			t.Errorf("%s: it was reset", name)
		}
	}
	for step, why := range map[workqueue.Step]string{storetest.Accounts: "to be done at step accounts anyway",
		storetest.Statement: "waiting for step transactions"} {
		if _, err := g.tryReset(step, all); !errors.As(err, &nothing) || !strings.Contains(err.Error(), why) {
			t.Errorf("nothing is done at step %s: %v; want it to say %q", storetest.StepNames()[step], err, why)
		}
	}
	if _, err := g.tryReset(storetest.Accounts,
		func(r *redo.ResetRequest) { r.Select.Codes = []string{"none"} }); !errors.As(
		err, &nothing) || !strings.Contains(err.Error(), "code none") {
		t.Errorf("nothing failed: %v", err)
	}
	again := redo.RerunRequest{Run: g.run, Select: redo.Selection{Keys: []string{"C1"}}}
	if _, err := redo.New(g.Store).Rerun(t.Context(), again); err == nil || !strings.Contains(err.Error(), "run reset") {
		t.Errorf("a re-run of what has not failed: %v", err)
	}
	if _, err := control.New(g.Store).Cancel(t.Context(), storetest.Wish(g.run, "")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.tryReset(storetest.Accounts, all); !errors.As(err, &state) {
		t.Errorf("a cancelled run: %v", err)
	}
	g.Check()
}

// A dry run says what the reset after it does, and leaves no trace; a second reset finds nothing to do until something
// was done. A run that is paused stays so.
func TestResetTwice(t *testing.T) {
	t.Parallel()
	g := gather(t, 20)
	g.work()
	rows := func() int {
		return g.Number(`SELECT count(*) FROM audit_log`) + g.Number(`SELECT count(*) FROM run_event`)
	}
	before := rows()
	dry := g.reset(storetest.Accounts, func(r *redo.ResetRequest) { all(r); r.DryRun = true })
	if n := rows(); n != before {
		t.Errorf("a dry run left %d rows behind", n-before)
	}
	g.WantState(g.run, "completed", 1)
	wet := g.reset(storetest.Accounts, all)
	if fmt.Sprint(wet) != fmt.Sprint(dry) {
		t.Errorf("the dry run said %+v, and the reset did %+v", dry, wet)
	}
	var nothing *redo.NothingToResetError
	if _, err := g.tryReset(storetest.Accounts, all); !errors.As(err, &nothing) {
		t.Errorf("the second reset: %v", err)
	}
	if _, err := control.New(g.Store).Pause(t.Context(), storetest.Wish(g.run, "wait")); err != nil {
		t.Fatal(err)
	}
	if out := g.reset(storetest.Transactions, byKey("C7")); out.Hold != control.HoldOperator || out.Generation != 3 ||
		effect(out, storetest.Statement).Kept != 1 {
		t.Errorf("a reset of a paused run: %+v", out)
	}
	if _, err := control.New(g.Store).Resume(t.Context(), storetest.Wish(g.run, ""), nil); err != nil {
		t.Fatal(err)
	}
	g.fresh()
	g.work()
	g.wantDone(map[workqueue.Step]int{storetest.Accounts: 20, storetest.Transactions: 1})
	g.WantState(g.run, "completed", 3)
	g.WantCompletions(g.run, 1, 3)
	if n := g.Number(`SELECT count(*) FROM audit_log WHERE run_id = $1 AND action = 'reset' AND actor = 'ann'
		AND before->>'generation' = '1' AND after->>'generation' = '2' AND detail->>'items' = '20'`, g.run); n != 1 {
		t.Errorf("%d audit rows of the first reset; want 1", n)
	}
	g.Check()
}
