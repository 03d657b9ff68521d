package orchestrator

import (
	"strings"
	"time"
)

// DutyPulse is what a node that leads says of a duty with each heartbeat. Times are ages: nobody's clock is compared
// with that of others.
type DutyPulse struct {
	Name      string        `json:"name"`
	Runs      int64         `json:"runs"`
	Failures  int64         `json:"failures"`
	Running   time.Duration `json:"running"`   // so long already; 0: it does not run
	Ended     time.Duration `json:"ended"`     // the last run, so long ago; -1: none has
	Took      time.Duration `json:"took"`      // the last run
	Failing   bool          `json:"failing"`    // the last run failed
	LastError string        `json:"last_error"` // of the last run that failed
	FailedAgo time.Duration `json:"failed"`     // that run, so long ago; -1: none has
}

// dutyPulses is nil while the node does not lead.
func (n *Node) dutyPulses() []DutyPulse {
	if lease := n.lease.Load(); lease == nil || lease.Epoch == 0 {
		return nil
	}
	out := make([]DutyPulse, 0, len(n.duties))
	for _, d := range n.duties {
		out = append(out, d.pulse())
	}
	return out
}

func (d *duty) pulse() DutyPulse {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state
	p := DutyPulse{Name: d.Name, Runs: s.runs, Failures: s.failures, Ended: ago(s.ended), Took: s.took,
		Failing: s.failing, LastError: s.lastError, FailedAgo: ago(s.lastFailed)}
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
