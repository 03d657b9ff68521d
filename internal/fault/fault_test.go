package fault_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/fault"
)

func TestPointsWithoutFaultsAreNothing(t *testing.T) {
	t.Parallel()
	none, err := fault.Parse("")
	if none != nil || err != nil {
		t.Fatalf("Parse of nothing: %v, %v", none, err)
	}
	none.Hit(fault.ClaimBefore)
	armed, err := fault.Parse("record.committed=kill@3,claim.before=stop")
	if err != nil {
		t.Fatal(err)
	}
	armed.Hit(fault.RecordCommitted) // the first pass of three
	armed.Hit(fault.ReplyAcked)      // not armed
	crashes := 0
	node := fault.At(fault.RecordCommitted, 2, func() { crashes++ })
	for range 3 {
		node.Hit(fault.ClaimBefore)
		node.Hit(fault.RecordCommitted)
	}
	if crashes != 1 {
		t.Errorf("it crashed %d times at the second of three passes; want 1", crashes)
	}
}
