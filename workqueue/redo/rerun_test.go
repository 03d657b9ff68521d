package redo_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// again asks for a re-run that must succeed.
func (b *bench) again(req redo.RerunRequest) redo.Rerun {
	b.Helper()
	req.Actor = "ann"
	out, err := redo.New(b.Store).Rerun(b.Context(), req)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// A dry run says what the re-run after it does, and leaves no trace.
func TestDryRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, even, odd := b.Damaged(20_000)
	before := b.Number(`SELECT count(*) FROM audit_log`) + b.Number(`SELECT count(*) FROM run_event`)
	req := redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true}, Settings: storetest.Chunking(100, 0),
		Canary: 50,
		DryRun: true}
	dry := b.again(req)
	b.WantState(run, "completed", 1)
	b.WantTally(run, storetest.Tally{Done: 20_000 - even - odd, Failed: even + odd})
	if n := b.Number(`SELECT count(*) FROM audit_log`) + b.Number(`SELECT count(*) FROM run_event`); n != before {
		t.Errorf("a dry run left %d rows behind", n-before)
	}
	if n := b.Number(`SELECT chunk FROM run_step WHERE run_id = $1`, run); n != 500 {
		t.Errorf("a dry run set the chunk to %d", n)
	}
	b.Check()
	req.DryRun = false
	if wet := b.again(req); !reflect.DeepEqual(wet, dry) {
		t.Errorf("the dry run said %+v, and the re-run did %+v", dry, wet)
	}
	req = redo.RerunRequest{Run: run, Select: redo.Selection{Codes: []string{"none"}}, DryRun: true}
	var nothing *redo.NothingToRerunError
	if _, err := redo.New(b.Store).Rerun(t.Context(), req); !errors.As(err, &nothing) {
		t.Errorf("a dry run of nothing: %v", err)
	}
	b.Check()
}

// The slices that a re-run names are the ones that claims cut.
func TestRerunCountsSlices(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, _, _ := b.Damaged(20_000)
	out := b.again(redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true}, Settings: storetest.Chunking(300, 0)})
	if claimed := b.Claim(run, storetest.Plenty); int64(len(claimed)) != out.Slices || out.Slices < 20 {
		t.Errorf("%d slices were claimed; the re-run said %d", len(claimed), out.Slices)
	}
}

func TestRerunByMessageGroup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 8)
	out := b.Claim(run, storetest.Plenty)
	b.Record(storetest.Faulty(out[0], workqueue.SlotError{Code: "bad", Message: "account 17 is closed"}),
		storetest.Faulty(out[1], workqueue.SlotError{Code: "bad", Message: "no such branch"}))
	groups := map[string]string{}
	errs, err := inspect.New(b.Store).Errors(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range errs.Groups {
		groups[g.Examples[0].Message] = g.ID
	}
	closed := redo.Selection{Groups: []string{groups["account 17 is closed"]}}
	got := b.again(redo.RerunRequest{Run: run, Select: closed})
	if got.Items != 4 {
		t.Errorf("rerun %+v; want the four closed accounts", got)
	}
	if again := b.One(run); again.Mask != out[0].Mask {
		t.Errorf("the re-run's slice holds %v", storetest.Ordinals(again))
	}
	closed.Groups[0] = "00000000"
	_, err = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: closed})
	if err == nil || !strings.Contains(err.Error(), "tranche run errors") {
		t.Errorf("an unknown group: %v", err)
	}
	b.Check()
}

// Requests that are out stay at the old endpoint, and its answers count; whatever is sent later goes to the new one.
func TestRerunAtAnotherEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 12)
	out := b.Claim(run, storetest.Plenty)
	b.Record(storetest.Faulty(out[0], workqueue.SlotError{Code: "bad", Message: "m"}),
		storetest.Faulty(out[1], workqueue.SlotError{Code: "soon", Message: "m", Retry: true}))
	b.Exec(`UPDATE work_slice SET endpoint = NULL WHERE run_id = $1`, run) // as the version before left it
	b.again(redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true},
		Settings: control.StepChange{Endpoint: "second"}})
	if v := b.Record(storetest.Whole(out[2])).Verdicts[0]; v.Taken != 4 {
		t.Errorf("the old endpoint's answer: %+v", v)
	}
	later := b.Claim(run, storetest.Plenty)
	if len(later) != 2 {
		t.Fatalf("%d slices were claimed; want the re-run and the retry", len(later))
	}
	for _, s := range later {
		if s.Endpoint != "second" {
			t.Errorf("a slice of cause %s goes to %q", s.Cause, s.Endpoint)
		}
		a := storetest.Whole(s)
		a.Endpoint = storetest.Endpoint
		if v := b.Record(a).Verdicts[0]; v.Endpoint != "second" {
			t.Errorf("an answer of the old endpoint to a slice of the new one: %+v", v)
		}
		a.Endpoint = "second"
		b.Record(a)
	}
	b.WantState(run, "completed", 2)
	b.Check()
}

func TestRerunOfAStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, even, odd := b.Damaged(600)
	none := redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true, Step: "x"}}
	_, err := redo.New(b.Store).Rerun(t.Context(), none)
	var unknown *control.UnknownStepError
	if !errors.As(err, &unknown) || !slices.Equal(unknown.Steps, []string{"only"}) {
		t.Errorf("a step that is not there: %v", err)
	}
	out := b.again(redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true, Step: "only"}})
	if out.Items != int64(even+odd) || out.Step != "only" {
		t.Errorf("rerun %+v", out)
	}
	for name, req := range map[string]redo.RerunRequest{
		"a canary below zero": {Canary: -1}, "auto without a canary": {CanaryAutoApprove: true},
		"a large chunk": {Settings: storetest.Chunking(8193, 0)},
	} {
		req.Run, req.Select = run, redo.Selection{Failed: true}
		var setting *workqueue.SettingError
		if _, err := redo.New(b.Store).Rerun(t.Context(), req); !errors.As(err, &setting) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSetRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 100)
	out := b.Set(control.RunChange{Run: run, Priority: new(7), MaxFailed: new("5%"), Settings: control.StepChange{
		StepOverrides: workqueue.StepOverrides{Chunk: new(workqueue.Adaptive{Value: 10}),
			InFlight: new(workqueue.Adaptive{Value: 3}), MaxAttempts: new(5), ChunkBytes: new(workqueue.Bytes(4096)),
			RetryBackoff: new(workqueue.Duration(time.Second)), MaxBackoff: new(workqueue.Duration(time.Minute)),
			Timeout: new(workqueue.Duration(time.Hour))}}})
	if out.Before["chunk"] != "4" || out.After["chunk"] != "10" || out.Before["priority"] != 0 ||
		out.After["max_failed"] != "5%" || len(out.After) != 9 || out.Step != "only" {
		t.Errorf("set %+v", out)
	}
	if n := b.Number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run); n != 5 {
		t.Errorf("the limit is %d; want 5", n)
	}
	claimed := b.Claim(run, storetest.Plenty)
	if len(claimed) != 3 || claimed[0].Mask.Count() != 10 {
		t.Errorf("claimed %d slices of %d; want 3 of 10", len(claimed), claimed[0].Mask.Count())
	}
	if out = b.Set(control.RunChange{Run: run, Settings: storetest.Chunking(10, 0)}); len(out.After) != 0 {
		t.Errorf("the same again changed %+v", out)
	}
	out = b.Set(control.RunChange{Run: run, Settings: control.StepChange{StepOverrides: workqueue.StepOverrides{
		Chunk: &workqueue.Adaptive{Auto: true}, InFlight: &workqueue.Adaptive{Auto: true}, Rate: new(1000.0)}}})
	if out.After["chunk"] != "auto, at most 8192" || out.After["in_flight"] != "auto, at most 1024" ||
		out.After["rate"] != 1000.0 {
		t.Errorf("set to auto: %+v", out)
	}
	if got := b.Actions(run); !slices.Equal(got, []string{"start by test", "set by ann", "set by ann"}) {
		t.Errorf("audited: %v", got)
	}
	b.Check()
}

func TestSetRunRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	var setting *workqueue.SettingError
	for name, c := range map[string]control.RunChange{
		"nothing": {},
		"chunk": {Settings: control.StepChange{StepOverrides: workqueue.StepOverrides{Chunk: new(
			workqueue.Adaptive{})}}},
		"in flight": {Settings: storetest.Chunking(0, 10_001)},
		"attempts":  {Settings: control.StepChange{StepOverrides: workqueue.StepOverrides{MaxAttempts: new(0)}}},
		"rate":      {Settings: control.StepChange{StepOverrides: workqueue.StepOverrides{Rate: new(-1.0)}}},
		"timeout": {Settings: control.StepChange{StepOverrides: workqueue.StepOverrides{Timeout: new(
			workqueue.Duration(0))}}},
		"a threshold":  {MaxFailed: new("lots")},
		"a percentage": {MaxFailed: new("200%")},
	} {
		c.Run = run
		if _, err := control.New(b.Store).SetRun(t.Context(), c); !errors.As(err, &setting) {
			t.Errorf("%s: %v; want a SettingError", name, err)
		}
	}
	change := control.RunChange{Run: workqueue.NewRunID(), Priority: new(1)}
	if _, err := control.New(b.Store).SetRun(t.Context(), change); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("no such run: %v", err)
	}
	if _, err := control.New(b.Store).Cancel(t.Context(), storetest.Wish(run, "")); err != nil {
		t.Fatal(err)
	}
	change.Run = run
	_, err := control.New(b.Store).SetRun(t.Context(), change)
	b.WantRefused(err, "it is cancelled")
}
