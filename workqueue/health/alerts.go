package health

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// FailingAlert is a rule whose receiver could not be told anything for long.
type FailingAlert struct {
	Alert    string
	Since    time.Time
	Failures int
	Reason   string
	Waiting  int64 // messages
}

// alertPatience is how long a receiver may fail before anybody is told.
const alertPatience = 10 * time.Minute

// Rules are few.
const healthAlerts = `
SELECT a.name, a.failing_since, a.failures, split_part(a.error, E'\n', 1),
    (SELECT count(*) FROM alert_message m WHERE m.alert = a.name AND m.state = 'waiting')
FROM alert a
WHERE a.deleted_at IS NULL AND a.state = 'active' AND a.failing_since < tranche_now() - $1::interval
ORDER BY a.failing_since, a.name LIMIT $2`

func (f *Facts) queueAlerts(b *pgx.Batch, l Limits) {
	queueRows(b, &f.AlertsFailing, healthAlerts, alertPatience, l.Listed)
}
