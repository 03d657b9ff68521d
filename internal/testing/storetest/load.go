package storetest

import (
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Several is more items than one batch of a load holds.
const Several = 40_000

// WantNothing checks that a load that failed has left nothing behind.
func (b *Bench) WantNothing() {
	b.Helper()
	n := b.Number(`SELECT (SELECT count(*) FROM batchrun) + (SELECT count(*) FROM work_queue) +
		(SELECT count(*) FROM work_block) + (SELECT count(*) FROM tracker_batch) + (SELECT count(*) FROM run_event)`)
	if n != 0 {
		b.Errorf("the load left %d rows behind", n)
	}
}

// TryLoad loads a run, or returns why not.
func (b *Bench) TryLoad(req start.LoadRequest, next func(*start.LoadItem) error) (start.Loaded, error) {
	req.Session = b.Session
	return start.New(b.Store).Load(b.Context(), req, next)
}

// Until polls for a condition, with a deadline.
func (b *Bench) Until(what string, met func() bool) {
	b.Helper()
	testenv.Until(b, time.Minute, what, met)
}
