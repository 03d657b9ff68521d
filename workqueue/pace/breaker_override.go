package pace

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

// operatorTrust is for how long nothing opens a breaker that an operator has closed: it would open again at once, since
// what it was closed for goes on.
const operatorTrust = 10 * time.Minute

// overrideBreaker takes the row of the pace after that of the setting, as everywhere. The reason of a closed breaker
// says who closed it, which is how an operator's trust is told from that after a probe.
const overrideBreaker = `
WITH was AS MATERIALIZED (
    SELECT endpoint, breaker FROM endpoint_pace WHERE endpoint = $1 FOR NO KEY UPDATE)
UPDATE endpoint_pace p
SET breaker = 'closed', breaker_reason = $2, probes = 0, probe_slice = NULL, probe_at = NULL,
    breaker_since = CASE WHEN was.breaker = 'open' THEN tranche_now() ELSE p.breaker_since END,
    trusted_until = tranche_now() + $3::interval, changed_at = tranche_now()
FROM was WHERE p.endpoint = was.endpoint
RETURNING was.breaker, p.trusted_until`

// closeByHand closes the breaker of an endpoint because an operator says that there is no outage, and keeps it closed
// for a while, also when it is closed already. It returns what the breaker was, and until when it stays closed.
func closeByHand(ctx context.Context, tx pgx.Tx, endpoint, actor string) (was string, until time.Time, err error) {
	if _, err := tx.Exec(ctx, MakePace, endpoint); err != nil {
		return "", until, err
	}
	reason := "closed by " + actor
	if err := tx.QueryRow(ctx, overrideBreaker, endpoint, reason, operatorTrust).Scan(&was, &until); err != nil {
		return "", until, err
	}
	if was != string(workqueue.BreakerOpen) {
		return was, until, nil
	}
	return was, until, NoteChange(ctx, tx, endpoint, Change{"breaker", was, string(workqueue.BreakerClosed), reason})
}

// Unreached reports whether an error says that no server was there: no connection, or nobody who listens.
func Unreached(code string) bool { return code == "unreachable" || code == "no_listeners" }

// ClosedByHand reports whether an operator said of an endpoint, a short while ago, that there is no outage.
func ClosedByHand(ctx context.Context, tx pgx.Tx, endpoint string) (bool, error) {
	var b BreakerState
	err := b.Read(ctx, tx, readBreaker, endpoint)
	return b.vouched, err
}
