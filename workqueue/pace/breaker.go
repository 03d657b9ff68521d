package pace

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/throttling"
)

// BreakerChange is what a look at a breaker came to.
type BreakerChange struct {
	Endpoint string
	Open     bool
	Changed  bool   // it opened or closed just now
	Probed   bool   // a probe failed just now: the next waits longer
	Reason   string // of a change, in plain words
}

const (
	// LockBreaker reads the breaker of an endpoint, and locks it.
	LockBreaker = readBreaker + ` FOR NO KEY UPDATE`

	// MakePace makes the row of an endpoint.
	MakePace = `INSERT INTO endpoint_pace (endpoint) VALUES ($1) ON CONFLICT DO NOTHING`

	openBreaker = `
UPDATE endpoint_pace
SET breaker = 'open', breaker_reason = $2, breaker_since = tranche_now(), probes = 0, probe_slice = NULL,
    probe_at = tranche_now() + $3::interval, trusted_until = NULL, changed_at = tranche_now()
WHERE endpoint = $1 AND breaker = 'closed'`

	// CloseBreaker lets work go to an endpoint again.
	CloseBreaker = `
UPDATE endpoint_pace
SET breaker = 'closed', breaker_reason = '', breaker_since = tranche_now(), probes = 0, probe_slice = NULL,
    probe_at = NULL, trusted_until = tranche_now() + $2::interval, changed_at = tranche_now()
WHERE endpoint = $1 AND breaker = 'open'`

	// A probe that came to nothing by our own fault, say because its node died, leaves the time of the next as it is.
	nextProbe = `
UPDATE endpoint_pace
SET probe_slice = NULL, probes = $2,
    probe_at = CASE WHEN $2 > probes THEN tranche_now() + $3::interval ELSE probe_at END
WHERE endpoint = $1 AND breaker = 'open'`

	// What became of a probe. Its slot tells when the slice has no error: a result, or an error for good. A service that
	// says it has too much to do has answered. That a slice is missing means that its run is gone.
	probeOutcome = `
SELECT CASE WHEN s.state IN ('scheduled', 'claimed', 'sent') THEN 'under way'
            WHEN s.state <> 'recorded' AND s.error_code IS DISTINCT FROM 'deadline' THEN 'lost'
            WHEN s.error_code IS NULL OR NOT coalesce(s.error_retry, false) OR s.error_code = ANY ($2) THEN 'answered'
            ELSE 'failed' END,
       coalesce(s.error_code, ''), coalesce(s.error_message, ''), s.ended_at - coalesce(s.sent_at, s.created_at)
FROM work_slice s WHERE s.id = $1`
)

// CheckBreaker looks at an endpoint's breaker: it opens one whose requests fail by and large, closes one whose probe
// was answered, and sets the time of the next probe when one failed. Any node may call it at any time. While a breaker
// is open nothing is claimed for the endpoint but probes. Whoever learns of a change should look for work.
func (s Store) CheckBreaker(ctx context.Context, endpoint string) (BreakerChange, error) {
	out := BreakerChange{Endpoint: endpoint}
	due, err := s.breakerDue(ctx, endpoint, &out)
	if err != nil || !due {
		return out, err
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		out = BreakerChange{Endpoint: endpoint}
		if _, err := tx.Exec(ctx, MakePace, endpoint); err != nil {
			return err
		}
		var b BreakerState
		if err := b.Read(ctx, tx, LockBreaker, endpoint); err != nil {
			return err
		}
		if out.Open = b.Open; b.Open {
			return b.judgeProbe(ctx, tx, &out)
		}
		return b.judgeWindow(ctx, tx, &out)
	})
	if err != nil {
		return BreakerChange{Endpoint: endpoint}, fmt.Errorf("check the breaker of endpoint %s: %w", endpoint, err)
	}
	return out, nil
}

// breakerDue looks without a lock whether there may be something to change: most looks end here and are in the way of
// no claim.
func (s Store) breakerDue(ctx context.Context, endpoint string, out *BreakerChange) (bool, error) {
	var b BreakerState
	if err := b.Read(ctx, s.db.Pool, readBreaker, endpoint); err != nil {
		return false, err
	}
	if out.Open = b.Open; b.Open {
		return b.probe != nil, nil
	}
	o, _, err := b.consider(ctx, s.db.Pool, endpoint, nil)
	return o.down, err
}

func (b *BreakerState) judgeWindow(ctx context.Context, tx pgx.Tx, out *BreakerChange) error {
	o, _, err := b.consider(ctx, tx, out.Endpoint, nil)
	if err != nil || !o.down {
		return err
	}
	out.Open, out.Changed, out.Reason = true, true, o.reason()
	if _, err := tx.Exec(ctx, openBreaker, out.Endpoint, pg.Plain(out.Reason), FirstProbe); err != nil {
		return err
	}
	return NoteChange(ctx, tx, out.Endpoint, Change{"breaker", "closed", "open", out.Reason})
}

func (b *BreakerState) judgeProbe(ctx context.Context, tx pgx.Tx, out *BreakerChange) error {
	if b.probe == nil {
		return nil
	}
	outcome, code, message := "lost", "", ""
	var took *time.Duration
	rows := pg.Rows(ctx, tx, probeOutcome, *b.probe, throttling.Codes())
	_, err := pgx.ForEachRow(rows, []any{&outcome, &code, &message, &took}, func() error { return nil })
	if err != nil {
		return fmt.Errorf("read probe %s: %w", *b.probe, err)
	}
	switch outcome {
	case "under way":
		return nil
	case "answered":
		out.Open, out.Changed = false, true
		out.Reason = answeredProbe(b.Probes+1, took)
		if _, err := tx.Exec(ctx, CloseBreaker, out.Endpoint, BreakerTrust); err != nil {
			return err
		}
		return NoteChange(ctx, tx, out.Endpoint, Change{"breaker", "open", "closed", out.Reason})
	case "failed":
		out.Probed, out.Reason = true, fmt.Sprintf("probe %d failed with %s: %.200s", b.Probes+1, code, message)
		pause, err := b.pauseAfter(ctx, tx, code)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, nextProbe, out.Endpoint, b.Probes+1, pause)
		return err
	default:
		_, err := tx.Exec(ctx, nextProbe, out.Endpoint, b.Probes, time.Duration(0))
		return err
	}
}

// pauseAfter is how long to wait after a probe that failed. That an item fails again which failed in an earlier
// generation says little of a service that answers: the next follows soon.
func (b *BreakerState) pauseAfter(ctx context.Context, tx pgx.Tx, code string) (time.Duration, error) {
	known, err := Blames(ctx, tx, []workqueue.SliceID{*b.probe})
	if known[*b.probe].rerun && answered(code) {
		return FirstProbe, err
	}
	return ProbePause(b.Probes + 1), err
}

func answeredProbe(number int, took *time.Duration) string {
	if took == nil {
		return fmt.Sprintf("probe %d was answered", number)
	}
	return fmt.Sprintf("probe %d was answered in %s", number, took.Round(time.Millisecond))
}

// NoteChange keeps a change of an endpoint's state, in the transaction that makes it.
func NoteChange(ctx context.Context, tx pgx.Tx, endpoint string, c Change) error {
	_, err := tx.Exec(ctx, insertChanges, endpoint, []string{c.What}, []string{c.Before}, []string{c.After},
		[]string{pg.Plain(c.Reason)})
	if err != nil {
		return fmt.Errorf("note a change of endpoint %s: %w", endpoint, err)
	}
	return nil
}
