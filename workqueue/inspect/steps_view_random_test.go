package inspect_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Whatever happens to a run of several steps, what the views say of it adds up, and nothing is inconsistent.
func TestViewsAddUpWhateverHappens(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			random := rand.New(rand.NewPCG(seed, 1))
			req := storetest.Planned(storetest.Need("a"), storetest.Optional(storetest.Need("b")), storetest.Need("c", 0),
				storetest.Need("d", 0, 1), storetest.Barrier(storetest.Need("e", 2, 3)), storetest.Need("f"))
			for i := range req.Steps {
				req.Steps[i].MaxAttempts = 2
			}
			run := b.Load(req, 30)
			var out []workqueue.Slice
			resets := 0
			for n := range 60 {
				b.move(random, run, &out, &resets)
				if n%5 != 4 {
					continue
				}
				_, e := b.addUp(run)
				for i := range e.Groups {
					if e.Groups[i].Reason == health.ReasonStray {
						t.Errorf("after %d moves: %+v", n, e.Groups[i])
					}
				}
			}
			if resets == 0 {
				t.Error("nothing was reset")
			}
			b.Check()
		})
	}
}

// move claims, answers or resets something.
func (b *bench) move(random *rand.Rand, run workqueue.RunID, out *[]workqueue.Slice, resets *int) {
	b.Helper()
	switch dice := random.IntN(10); {
	case dice < 5:
		*out = append(*out, b.ClaimStep(run, workqueue.Step(random.IntN(6)), 2).Slices...)
	case dice < 9 && len(*out) > 0:
		i := random.IntN(len(*out))
		s := (*out)[i]
		*out = append((*out)[:i], (*out)[i+1:]...)
		a := storetest.Whole(s)
		for j := range a.Slots {
			if random.IntN(6) == 0 {
				a.Slots[j].Result = nil
				a.Slots[j].Err = &workqueue.SlotError{Code: "bad", Message: "no", Retry: random.IntN(2) == 0}
			}
		}
		b.Record(a)
	case dice == 9:
		req := redo.ResetRequest{Run: run, Actor: "ann", Cascade: random.IntN(2) == 0, Select: redo.Selection{
			Step: string("abcdf"[random.IntN(5)]), Keys: []string{storetest.Names(30)[random.IntN(30)],
				storetest.Names(30)[random.IntN(30)]}}}
		// what waits cannot be reset, which is no matter here
		if _, err := redo.New(b.Store).Reset(b.Context(), req); err == nil {
			*resets++
		}
	}
	if _, err := dispatch.New(b.Store).CheckBarriers(b.Context(), run); err != nil {
		b.Fatal(err)
	}
}
