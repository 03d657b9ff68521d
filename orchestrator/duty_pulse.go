package orchestrator

import (
	"strings"
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

// maxDutyError bounds what a heartbeat carries of an error, in bytes.
const maxDutyError = 500

// readable is the text of an error as a heartbeat can carry it.
func readable(err error) string {
	text := strings.ReplaceAll(err.Error(), "\x00", "") // PostgreSQL takes none
	return strings.ToValidUTF8(text[:min(len(text), maxDutyError)], "")
}

func ago(at time.Time) time.Duration {
	if at.IsZero() {
		return -1
	}
	return time.Since(at)
}
