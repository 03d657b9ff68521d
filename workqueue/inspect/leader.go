package inspect

import (
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// LeaderView is the lease of the node that leads, or that led last.
type LeaderView struct {
	Session   workqueue.SessionID `json:"session"`
	Epoch     int64               `json:"epoch" doc:"one more with every change of hands"`
	Since     time.Time           `json:"since" doc:"when it began to lead"`
	ExpiresAt time.Time           `json:"expires_at"`
}

// HealthLeader reads the leader, if there is one.
const HealthLeader = `SELECT session_id, epoch, since, expires_at FROM leader WHERE name = $1`
