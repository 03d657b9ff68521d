package redo_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

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
