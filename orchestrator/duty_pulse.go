package orchestrator

import (
	"time"

	"github.com/tranchehq/tranche/workqueue/inspect"
)

func (d *duty) pulse() inspect.DutyPulse {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state
	p := inspect.DutyPulse{Name: d.Name, Runs: s.runs, Failures: s.failures, Ended: ago(s.ended), Took: s.took,
		Failing: s.failing, LastError: s.lastError, Failed: ago(s.lastFailed),
		Succeeded: ago(s.succeeded)}
	if s.began.After(s.ended) {
		p.Running = time.Since(s.began)
	}
	return p
}

func ago(at time.Time) time.Duration {
	if at.IsZero() {
		return -1
	}
	return time.Since(at)
}
