package health

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// What failed for a bad part is not advised to be run again, which would give it the same part.
func TestFailuresForABadPartWantAReset(t *testing.T) {
	t.Parallel()
	bad := inspect.BadPart{Run: workqueue.NewRunID(), Step: "post", Of: "branches", Code: workqueue.CodeBadPart}
	f := &facts{db: &health.Facts{BadParts: []inspect.BadPart{bad}, Failed: []health.FailedRun{
		{Run: bad.Run, Failed: 1, Runs: 2}, {Run: workqueue.NewRunID(), Failed: 1, Runs: 2}}}}
	for i, c := range f.failed() {
		reset, rerun := strings.Contains(c.Remedy, bad.Command()), strings.Contains(c.Remedy, "tranche run rerun")
		if reset != (i == 0) || rerun == reset || c.Resets != reset {
			t.Errorf("%d: %+v", i, c)
		}
	}
}
