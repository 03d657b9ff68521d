package health

import (
	"time"
)

// GapTold is for how long the health tells of a gap in which something was lost; of a server that took over without a
// loss that is known, it does for an hour.
const (
	GapTold  = 24 * time.Hour
	moveTold = time.Hour
)

// healthGaps goes through a table of few rows.
const healthGaps = `
SELECT noticed_at, from_at, to_at, lost, runs FROM database_gap
WHERE noticed_at > tranche_now() - CASE WHEN lost THEN $2::interval ELSE $3::interval END
ORDER BY id DESC LIMIT $1`

// NotedGap is a gap as the health tells of it.
type NotedGap struct {
	NoticedAt, From, To time.Time
	Lost                bool
	Runs                int
}
