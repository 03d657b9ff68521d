package alerts

import (
	"testing"

	store "github.com/tranchehq/tranche/workqueue/health"
)

// A run that a rule told as health, and tells as a change of runs since it was changed, still holds.
func TestWhatARuleToldByAnotherKindHolds(t *testing.T) {
	t.Parallel()
	spec := &Spec{When: When{Runs: []RunChange{RunPaused}, Health: store.Warning}}
	holds := spec.holds([]seen{{Condition: store.Condition{Kind: store.RunHeld}, key: "a", change: RunPaused}})
	for _, kind := range []string{string(store.RunHeld), runPrefix + string(RunPaused)} {
		if !holds(kind, "a") || holds(kind, "b") {
			t.Errorf("%s: a %v, b %v", kind, holds(kind, "a"), holds(kind, "b"))
		}
	}
}
