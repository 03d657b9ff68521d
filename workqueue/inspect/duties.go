package inspect

import (
	"encoding/json"
	"time"
)

// DutyPulse is what a node that leads says of one of its duties with each heartbeat. Times are ages: nobody's clock is
// compared with that of others.
type DutyPulse struct {
	Name      string        `json:"name"`
	Runs      int64         `json:"runs"`
	Failures  int64         `json:"failures"`
	Running   time.Duration `json:"running"`    // so long already; 0: it does not run
	Ended     time.Duration `json:"ended"`      // the last run, so long ago; -1: none has
	Took      time.Duration `json:"took"`       // the last run
	Failing   bool          `json:"failing"`    // the last run failed
	LastError string        `json:"last_error"` // of the last run that failed
	Failed    time.Duration `json:"failed"`     // that run, so long ago; -1: none has
	Succeeded time.Duration `json:"-"`          // the last run that did not fail, so long ago; -1: none has
}

// DutyView is a duty of the node that leads, since it began to lead.
type DutyView struct {
	Name      string     `json:"name"`
	Runs      int64      `json:"runs"`
	Failures  int64      `json:"failures" doc:"of those runs"`
	Running   float64    `json:"running,omitempty" doc:"seconds for which it runs; absent when it does not"`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"when it ran last; absent when it has not yet"`
	Took      float64    `json:"took" doc:"seconds that its last run took"`
	Failing   bool       `json:"failing" doc:"its last run failed"`
	LastError string     `json:"last_error,omitempty" doc:"of the last run that failed"`
	FailedAt  *time.Time `json:"failed_at,omitempty" doc:"when that was"`
}

// dutiesOf reads what a node said with a heartbeat. One of another version may say other things.
func dutiesOf(n *NodeView) []DutyView {
	var said struct {
		Duties []DutyPulse `json:"duties"`
	}
	if json.Unmarshal(n.Stats, &said) != nil {
		return nil
	}
	out := make([]DutyView, len(said.Duties))
	for i, d := range said.Duties {
		out[i] = DutyView{Name: d.Name, Runs: d.Runs, Failures: d.Failures, Running: d.Running.Seconds(),
			EndedAt: n.before(d.Ended), Took: d.Took.Seconds(), Failing: d.Failing, LastError: d.LastError,
			FailedAt: n.before(d.Failed)}
	}
	return out
}

// before is a time so long before the node's heartbeat.
func (n *NodeView) before(age time.Duration) *time.Time {
	if age < 0 {
		return nil
	}
	at := n.HeartbeatAt.Add(-age)
	return &at
}
