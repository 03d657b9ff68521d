package fault_test

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/fault"
)

func TestParseRefusesWhatIsNoFault(t *testing.T) {
	t.Parallel()
	for spec, says := range map[string]string{
		"claim.befor=kill":              "no such point",
		"claim.before":                  "the action must be",
		"claim.before=halt":             "the action must be",
		"claim.before=kill@0":           "the pass after @",
		"claim.before=kill@x":           "the pass after @",
		"claim.before=kill,":            "no such point",
		"record.committed=kill@3,=kill": "no such point",
	} {
		if _, err := fault.Parse(spec); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%q): %v; want an error with %q", spec, err, says)
		}
	}
}

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
