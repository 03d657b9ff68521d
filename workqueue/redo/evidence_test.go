package redo_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// released is a completed run of 12 items in 3 chunks: the first two were made by release 2.0.9, the last by 2.1.0,
// which failed item 11. Payloads have a branch, results say whether the ordinal is even.
func (b *bench) released() workqueue.RunID {
	b.Helper()
	run := b.Load(storetest.Chunked(4), 12)
	b.Exec(`UPDATE work_queue SET payload = format('{"branch":"%s","n":"a\u0000b","face":"\ud83d\ude00","path":"\\u0000"}',
		ordinal % 3) WHERE run_id = $1`, run)
	for i, s := range b.Claim(run, storetest.Plenty) {
		a := storetest.Whole(s)
		a.Service = "statements@2.0.9 one"
		if i == 2 {
			a.Service = "statements@2.1.0 two"
		}
		for j := range a.Slots {
			slot := &a.Slots[j]
			slot.Result = fmt.Appendf(nil, `{"even":%t}`, slot.Ordinal%2 == 0)
			if slot.Ordinal == 11 {
				slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "late", Message: "m"}
			}
		}
		b.Record(a)
		b.Exec(`UPDATE work_slice SET ended_at = timestamptz '2026-11-01 12:00Z' + make_interval(hours => $2) WHERE id = $1`,
			s.ID, i)
	}
	b.WantState(run, "completed", 1)
	return run
}

// Items are chosen by who made their parts, when, and what payloads and results say: for reruns, resets and exports.
func TestItemsAreChosenByEvidence(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.released()
	at := func(hour int) time.Time { return time.Date(2026, 11, 1, hour, 0, 0, 0, time.UTC) }
	store := redo.New(b.Store)
	for name, c := range map[string]struct {
		sel  redo.Selection
		want string
	}{
		"a release":      {redo.Selection{Evidence: redo.Evidence{Service: "statements@2.1.0"}}, "[C8 C9 C10 C11]"},
		"a service":      {redo.Selection{Evidence: redo.Evidence{Service: "statements"}}, "12"},
		"an instance":    {redo.Selection{Evidence: redo.Evidence{Service: "statements@2.1.0 two"}}, "[C8 C9 C10 C11]"},
		"half a version": {redo.Selection{Evidence: redo.Evidence{Service: "statements@2"}}, "none"},
		"an hour":        {redo.Selection{Evidence: redo.Evidence{Since: at(13), Until: at(14)}}, "[C4 C5 C6 C7]"},
		"a payload":      {redo.Selection{Step: "only", Evidence: redo.Evidence{Where: `$.branch == "2"`}}, "[C2 C5 C8 C11]"},
		"escaped characters": {redo.Selection{Step: "only", Evidence: redo.Evidence{
			Where: `$.face == "😀" && $.path == "\\u0000" && $.n == "a�b"`}}, "12"},
		"a filter": {redo.Selection{Step: "only", Evidence: redo.Evidence{Where: `$ ? (@.branch == "2")`}}, "[C2 C5 C8 C11]"},
		"a result": {redo.Selection{Evidence: redo.Evidence{WhereResult: `$.even`}}, "[C0 C2 C4 C6 C8 C10]"},
		"a result of release": {redo.Selection{Evidence: redo.Evidence{WhereResult: `$.even == true`,
			Service: "statements@2.1.0"}}, "[C8 C10]"},
		"keys of a branch": {redo.Selection{Keys: []string{"C1", "C2"},
			Evidence: redo.Evidence{Where: `$.branch == "2"`}}, "[C2]"},
		"codes of a release": {redo.Selection{Codes: []string{"late"},
			Evidence: redo.Evidence{Service: "statements@2.1.0"}}, "[C11]"},
		"failures of before": {redo.Selection{Failed: true, Evidence: redo.Evidence{Until: at(14)}}, "none"},
		"ranges": {redo.Selection{Ranges: []redo.Range{{From: 0, To: 5}},
			Evidence: redo.Evidence{Where: `$.branch == "2"`}}, "[C2 C5]"},
		"states": {redo.Selection{Evidence: redo.Evidence{States: []workqueue.Outcome{"failed"}}}, "[C11]"},
	} {
		rerun, err := store.Rerun(t.Context(), redo.RerunRequest{Run: run, Select: c.sel, DryRun: true, Actor: "test"})
		got := fmt.Sprint(rerun.Examples)
		if rerun.Items > 10 {
			got = fmt.Sprint(rerun.Items)
		}
		if err != nil {
			got = "none"
		}
		testenv.Same(t, got, c.want, "%s: a rerun is, %v", name, err)
		if !c.sel.Failed {
			reset, err := store.Reset(t.Context(), redo.ResetRequest{Run: run, Select: c.sel, DryRun: true, Actor: "test"})
			if reset.Items != rerun.Items || !slices.Equal(reset.Examples, rerun.Examples) {
				t.Errorf("%s: a reset is of %v, %v; want %s", name, reset.Examples, err, c.want)
			}
		}
		found := testenv.Must(export.New(b.Store).Open(t.Context(), export.Request{Run: run, Select: c.sel}))(t)
		var keys []string
		err = found.Each(t.Context(), func(item *export.Item) error { keys = append(keys, item.Key); return nil })
		if got := fmt.Sprint(keys); err != nil || got != c.want && (c.want != "none" || len(keys) > 0) &&
			fmt.Sprint(len(keys)) != c.want {
			t.Errorf("%s: an export is of %s, %v; want %s", name, got, err, c.want)
		}
	}
	failed, err := store.Rerun(t.Context(), redo.RerunRequest{Run: run, DryRun: true, Actor: "test",
		Select: redo.Selection{Evidence: redo.Evidence{Where: `$.branch == "2"`}}})
	testenv.Same(t, fmt.Sprint(failed.Examples), "[C11]", "a rerun of a payload without a step, %v", err)
	_, err = store.Rerun(t.Context(), redo.RerunRequest{Run: run, DryRun: true,
		Select: redo.Selection{Evidence: redo.Evidence{Where: `$.branch = "2"`}}})
	b.WantSaid(err, "where is", "not a path of SQL/JSON", `$.branch == "12"`)
	_, err = store.Rerun(t.Context(), redo.RerunRequest{Run: run, DryRun: true,
		Select: redo.Selection{Evidence: redo.Evidence{Since: at(14), Until: at(13)}}})
	b.WantSaid(err, "since is not before until")
	release := redo.Selection{Evidence: redo.Evidence{Service: "statements@2.1.0"}}
	accept := redo.AcceptRequest{Run: run, Actor: "test", Reason: "r", Select: release}
	accepted, err := store.Accept(t.Context(), accept)
	if err != nil || accepted.Items != 1 || fmt.Sprint(accepted.Examples) != "[C11]" {
		t.Errorf("accepted %+v, %v", accepted, err)
	}
	again := redo.RerunRequest{Run: run, Actor: "test", Select: release, DryRun: true}
	left := testenv.Must(store.Rerun(t.Context(), again))(t)
	testenv.Same(t, fmt.Sprint(left.Examples), "[C8 C9 C10]", "a rerun leaves out what is accepted")
	accept.Withdraw, again.DryRun = true, false
	testenv.Must(store.Accept(t.Context(), accept))(t)
	// One release computed wrongly: one command.
	testenv.Must(store.Rerun(t.Context(), again))(t)
	b.WantTally(run, storetest.Tally{Ready: 4, Done: 8})
	found := testenv.Must(export.New(b.Store).Open(t.Context(), export.Request{Run: run, Select: release}))(t)
	testenv.NoError(t, found.Each(t.Context(), func(i *export.Item) error { return errors.New(i.Key + " is being done") }))
	b.Finish(run)
	b.WantState(run, "completed", 2)
	b.Check()
	_, err = store.Rerun(t.Context(), again)
	testenv.Fails(t, err, "parts of an earlier generation are evidence")
}

// In a run of several steps a release is redone where it made the parts.
func TestEvidenceNamesTheSteps(t *testing.T) {
	t.Parallel()
	g := gather(t, 3)
	g.work()
	g.WantState(g.run, "completed", 1)
	g.Exec(`UPDATE work_slice SET service = 'letters@3 x' WHERE run_id = $1 AND step = 4`, g.run)
	g.fresh()
	out := g.Rerun(g.run, redo.Selection{Evidence: redo.Evidence{Service: "letters@3"}})
	if out.Items != 3 || out.Step != "letter" {
		t.Fatalf("%+v", out)
	}
	g.work()
	if len(g.did[storetest.Posting]) != 3 || len(g.did[storetest.Statement])+len(g.did[storetest.Accounts]) > 0 {
		t.Errorf("redone: %v", g.did)
	}
	g.Check()
}

// Evidence is looked for before the steps are locked; what is recorded until they are counts as well.
func TestEvidenceIsSoughtWithoutLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 12)
	slices := b.Claim(run, 3)
	said := func(i int, text string) {
		a := storetest.Whole(slices[i])
		for j := range a.Slots {
			a.Slots[j].Result = []byte(text)
		}
		b.Record(a)
	}
	said(0, `{"wrong":true}`)
	release := b.HoldRows(`SELECT 1 FROM run_step WHERE run_id = $1 FOR SHARE`, run)
	type answer struct {
		redo.Reset
		error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := redo.New(b.Store).Reset(b.Context(), redo.ResetRequest{Run: run, Actor: "test",
			Select: redo.Selection{Evidence: redo.Evidence{WhereResult: `$.wrong`}}})
		done <- answer{out, err}
	}()
	b.Until("the reset waits for the steps", func() bool { return b.Waiters() == 1 })
	said(1, `{"wrong":true}`)
	said(2, `{"wrong":false}`)
	release()
	if got := <-done; got.error != nil || got.Items != 8 {
		t.Errorf("%d items were reset, %v; want those of the first two requests", got.Items, got.error)
	}
	b.Check()
}
