package redo_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// payloadsOf is what the request for a slice would carry.
func (b *bench) payloadsOf(s workqueue.Slice) (all []string) {
	b.Helper()
	err := dispatch.New(b.Store).EachInput(b.Context(), dispatch.InputRequest{Run: s.Run, Block: s.Block, Mask: &s.Mask},
		func(in dispatch.Input) bool {
			all = append(all, string(in.Key)+string(in.Payload))
			return true
		})
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// A run that has completed opens again with the items that are corrected, and completes a second time. What they were
// before stays known.
func TestCorrectedItemsAreDoneAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(5), 20)
	b.Finish(run)
	out := b.Correct(run, `{"balance":"7"}`, "C3", "C11")
	if out.Items != 2 || out.Begun != 2 || out.Generation != 2 || !slices.Equal(out.Examples, []string{"C3", "C11"}) {
		t.Fatalf("corrected %+v", out)
	}
	b.WantState(run, "running", 2)
	b.WantTally(run, storetest.Tally{Ready: 2, Done: 18})
	s := b.One(run)
	if got := fmt.Sprint(b.payloadsOf(s)); got != `[C3{"balance":"7"} C11{"balance":"7"}]` {
		t.Errorf("the request carries %s", got)
	}
	b.Record(storetest.Whole(s))
	b.WantState(run, "completed", 2)
	b.WantCompletions(run, 1, 2)
	b.Check()
	items, err := inspect.New(b.Store).Items(t.Context(), run, "C3")
	if err != nil || len(items[0].EarlierPayloads) != 1 {
		t.Fatalf("the item: %+v, %v", items, err)
	}
	if e := items[0].EarlierPayloads[0]; e.Generation != 2 || string(e.Payload) != "{}" || e.Actor != "ann" ||
		e.Reason != "it was wrong" || string(items[0].Payload) != `{"balance":"7"}` {
		t.Errorf("the item: %+v, payload %s", e, items[0].Payload)
	}
	if got := b.Report(run).Corrected; got == nil || got.Items != 2 || got.Made != 2 ||
		len(got.Times) != 1 || got.Times[0].Actor != "ann" {
		t.Errorf("the report: %+v", got)
	}
	if got := b.Number(`SELECT payload_bytes FROM work_block WHERE run_id = $1`, run); got != 18*2+2*15 {
		t.Errorf("the block has %d bytes of payloads", got)
	}
	if got := b.Actions(run); !slices.Contains(got, "correct by ann") {
		t.Errorf("the audit log has %v", got)
	}
}

// A service that has the former payload in hand answers about it in vain: late, and item by item.
func TestAnAnswerAboutTheFormerPayloadIsNotTaken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 4)
	old := b.One(run)
	b.Send(old)
	if out := b.Correct(run, `{"new":1}`, "C2"); out.Begun != 1 || out.Steps[0].Withdrawn != 1 {
		t.Fatalf("corrected %+v", out)
	}
	if v := b.Record(storetest.Whole(old)).Verdicts[0]; v.Taken != 3 || v.Duplicates != 1 {
		t.Errorf("the late answer: %+v; want 3 slots taken", v)
	}
	b.WantState(run, "running", 2)
	again := b.One(run)
	if got := fmt.Sprint(b.payloadsOf(again)); got != `[C2{"new":1}]` {
		t.Errorf("the next request carries %s", got)
	}
	b.Record(storetest.Whole(again))
	b.WantState(run, "completed", 2)
	b.Check()
}

// What no one has begun with only gets its payload.
func TestItemsThatNobodyHasBegunWithAreCorrected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 4)
	if out := b.Correct(run, `{"new":1}`, "C2"); out.Items != 1 || out.Begun != 0 || out.Generation != 2 {
		t.Fatalf("corrected %+v", out)
	}
	b.WantTally(run, storetest.Tally{Ready: 4})
	b.Finish(run)
	b.WantState(run, "completed", 2)
	b.WantCompletions(run, 2)
	b.Check()
}

func TestACorrectionThatIsWrongChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(100), 10_000)
	b.Finish(run)
	correct := func(req redo.CorrectRequest) error {
		req.Run, req.Actor = run, "ann"
		_, err := redo.New(b.Store).Correct(t.Context(), req)
		return err
	}
	many := append(storetest.Names(9000), "C7")
	unknown := []string{"C1"}
	for i := range 25 {
		unknown = append(unknown, fmt.Sprintf("X%d", i))
	}
	b.WantSaid(correct(redo.CorrectRequest{Items: storetest.Corrections(`{"a":1}`, many...)}), "line 9002", `"C7"`,
		"given before")
	b.WantSaid(correct(redo.CorrectRequest{Items: storetest.Corrections(`{"a":1}`, unknown...)}), `"X0"`,
		`"X19" and 5 more`)
	b.WantSaid(correct(redo.CorrectRequest{Items: storetest.Corrections(`{}`, "C1", "C2")}), "just as given")
	b.WantSaid(correct(redo.CorrectRequest{Items: storetest.Corrections(`{}`)}), "no item was given")
	if err := correct(redo.CorrectRequest{DryRun: true, Items: storetest.Corrections(`{"a":1}`, "C1")}); err != nil {
		t.Fatal(err)
	}
	b.WantState(run, "completed", 1)
	if n := b.Number(`SELECT count(*) FROM work_queue WHERE run_id = $1 AND payload <> '{}'`, run); n != 0 {
		t.Errorf("%d payloads were changed", n)
	}
	if n := b.Number(`SELECT (SELECT count(*) FROM work_correction) + (SELECT count(*) FROM run_correction)`); n != 0 {
		t.Errorf("%d rows tell of corrections", n)
	}
	var not *redo.UnknownKeysError
	if err := correct(redo.CorrectRequest{Items: storetest.Corrections(`{"a":1}`, "no")}); !errors.As(err, &not) {
		t.Errorf("an unknown key: %v", err)
	}
}

// Steps that see payloads do corrected items again; those after them only where a part changes, or with a cascade.
func TestStepsAfterFollowACorrection(t *testing.T) {
	t.Parallel()
	for _, cascade := range []bool{false, true} {
		t.Run(fmt.Sprint("cascade ", cascade), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			req := storetest.Collecting()
			for i := range req.Steps {
				req.Steps[i].NoItem = i != int(storetest.Accounts) // the others see parts, or only the key
			}
			g := &gatherer{bench: b, run: b.Load(req, 3)}
			g.fresh()
			g.fail(storetest.Transactions, 1)
			g.work()
			b.WantState(g.run, "completed", 1)
			g.fresh()
			out, err := redo.New(b.Store).Correct(t.Context(), redo.CorrectRequest{Run: g.run, Actor: "ann", Cascade: cascade,
				Items: storetest.Corrections(`{"fixed":true}`, "C0", "C1")})
			if err != nil || out.Begun != 2 {
				t.Fatalf("corrected %+v, %v", out, err)
			}
			g.work()
			b.WantState(g.run, "completed", 2)
			want := map[workqueue.Step]string{storetest.Accounts: "[0 1]", storetest.Transactions: "[1]",
				storetest.Branches: "[]", storetest.Statement: "[1]",
				storetest.Posting: "[1]"}
			if cascade {
				want[storetest.Statement], want[storetest.Posting] = "[0 1]", "[0 1]"
			}
			for s, items := range want {
				slices.Sort(g.did[s])
				if got := fmt.Sprint(g.did[s]); got != items {
					t.Errorf("step %s was done for %s; want %s", storetest.StepNames()[s], got, items)
				}
			}
			kept := b.Report(g.run).Corrected
			if made := map[bool]int64{false: 1, true: 2}[cascade]; kept.Made != made || kept.Kept != 2-made {
				t.Errorf("the report: %+v", kept)
			}
			b.Check()
		})
	}
}
