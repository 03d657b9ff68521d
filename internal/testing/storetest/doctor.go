package storetest

import (
	"testing"

	"github.com/tranchehq/tranche/workqueue"
)

// Scene is a run of 10 items under way (0 failed, 1 to 3 done, 4 to 6 in flight, the rest ready) and one of 4 items
// that is completed.
func Scene(t *testing.T) (b *Bench, open, done workqueue.RunID) {
	t.Helper()
	b = Setup(t)
	done = b.Load(Request(), 4)
	b.Finish(done)
	open = b.Load(Request(), 10)
	claimed := b.Claim(open, 2)
	reply := Whole(claimed[0])
	reply.Slots[0].Result, reply.Slots[0].Err = nil, &workqueue.SlotError{Code: "BAD", Message: "no good"}
	b.Record(reply)
	b.WantTally(open, Tally{Ready: 3, Live: 3, Done: 3, Failed: 1})
	b.Check()
	return b, open, done
}
