package report_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/start"
)

// carry reads what a run has to carry on until it ends, and returns the keys and why it ended.
func carry(b *bench, run workqueue.RunID, meanwhile func()) (keys []string, err error) {
	b.Helper()
	c := testenv.Must(report.New(b.Store).NewCarried(b.Context(), run, []workqueue.Outcome{workqueue.OutcomeFailed}))(b)
	meanwhile()
	for {
		key, _, err := c.Next(b.Context())
		if err != nil {
			return keys, err
		}
		keys = append(keys, key)
	}
}

// A key that stands twice counts as often as it stands.
func TestCarriedTwinsCountOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(10)
	req.OnDuplicate = start.DuplicateAllow
	first := b.LoadKeys(req, "a", "a", "a", "b")
	b.Record(storetest.Faulty(b.One(first), workqueue.SlotError{Code: "bad_payload", Message: "no"}))
	req.FromRun = first
	second := b.LoadKeys(req, "a", "a")
	b.Finish(second)
	got := b.Report(second).Together
	if got == nil || got.Items != 4 || got.Done != 2 || got.Failed != 2 || got.Missing != 0 {
		t.Errorf("together: %+v; want 4 items, 2 done and 2 failed", got)
	}
}

// What is set going again, or deleted, while its items are read would be done twice, or be of former data.
func TestARunThatIsSetGoingAgainIsNotCarriedOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 4)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "bad_payload", Message: "no"}))
	if keys, err := carry(b, run, func() {}); len(keys) != 4 || err.Error() != "EOF" {
		t.Errorf("%q, %v", keys, err)
	}
	_, err := carry(b, run, func() { b.Rerun(run, redo.Selection{Failed: true}) })
	b.WantSaid(err, "set going again meanwhile", "start again")
}
