package workqueue_test

import (
	"slices"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Items that fail in slots of their own are no culprits of a chunk that one of its items fails, whether the service
// wants them to be tried again or not.
func TestCulpritsAreWhatFailsChunks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(64), 64)
	bad := map[workqueue.Ordinal]bool{3: false, 17: true, 40: true, 41: false, 63: true} // whether it may be tried again
	b.drive(run, func(s workqueue.Slice) settle.Answer {
		a := poisoned(30)(s)
		for i := range a.Slots {
			if retry, ok := bad[a.Slots[i].Ordinal]; ok {
				a.Slots[i].Result, a.Slots[i].Err = nil, &workqueue.SlotError{Code: "no_such_customer", Retry: retry}
			}
		}
		return a
	}, 100)
	b.WantTally(run, storetest.Tally{Done: 58, Failed: 6})
	found, err := pacestore.ReadBisections(t.Context(), b.Store.Pool, run, 3)
	if err != nil || found.Kinds[pacestore.KindBadEntity] != 1 || found.Culprits != 1 || len(found.Roots) != 1 ||
		!slices.Equal(found.Roots[0].Ordinals, []workqueue.Ordinal{30}) || found.Roots[0].Code != crash.Code {
		t.Errorf("%+v, %v", found, err)
	}
	b.Check()
}
