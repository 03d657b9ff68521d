package alert

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Attempt is an attempt to send a message now.
type Attempt struct {
	Message  uuid.UUID
	Alert    string
	Test     bool
	Body     json.RawMessage
	Spec     json.RawMessage // the rule's current one
	Version  int             // of Spec: the result for another version says nothing about this receiver
	Number   int             // from 1; with the message, it fences the result
	Age      time.Duration   // of the message, by the database's clock
	Failures int             // consecutive, of the rule's receiver
}

const (
	// One message of each rule, by alert_message_waiting, the least tried first, so that a rejected one does not block
	// the rest. The rules' rows are locked first, as everywhere here; locked ones are skipped until the next call, a
	// second later. Until next_at nothing is retried, even if the leader dies: its successor continues then.
	claimAttempts = `
WITH due AS MATERIALIZED (
    SELECT a.name FROM alert a
    WHERE a.deleted_at IS NULL AND a.next_at <= tranche_now() AND a.name <> ALL ($1)
      AND EXISTS (SELECT FROM alert_message m WHERE m.alert = a.name AND m.state = 'waiting'
                  AND (m.what = 'test' OR a.state = 'active'))
    ORDER BY a.next_at, a.name LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
), begun AS (
    UPDATE alert a SET next_at = tranche_now() + $3::interval FROM due WHERE a.name = due.name
    RETURNING a.name, a.spec, a.version, a.state, a.failures
), chosen AS (
    SELECT b.name, b.spec, b.version, b.failures, m.id FROM begun b CROSS JOIN LATERAL (
        SELECT id FROM alert_message m
        WHERE m.alert = b.name AND m.state = 'waiting' AND (m.what = 'test' OR b.state = 'active')
        ORDER BY m.what = 'test' DESC, m.attempts, m.made_at, m.id LIMIT 1) m
)
UPDATE alert_message m SET attempts = m.attempts + 1 FROM chosen c WHERE m.id = c.id
RETURNING m.id, m.alert, m.what = 'test', m.body, c.spec, c.version, m.attempts,
    tranche_now() - m.made_at, c.failures`

	noteDelivered = `
UPDATE alert_message SET state = 'delivered', error = $3, ended_at = tranche_now()
WHERE id = $1 AND attempts = $2 AND state = 'waiting'`

	noteFailed = `
UPDATE alert_message
SET error = $3, state = CASE WHEN $4 THEN 'given_up' ELSE 'waiting' END,
    ended_at = CASE WHEN $4 THEN tranche_now() END
WHERE id = $1 AND attempts = $2 AND state = 'waiting'`

	forgetMessages = `
DELETE FROM alert_message WHERE state <> 'waiting' AND ended_at < tranche_now() - $1::interval`

	lockRule = `SELECT version FROM alert WHERE name = $1 FOR NO KEY UPDATE`

	receiverTold = `
UPDATE alert SET next_at = tranche_now(), failures = 0, failing_since = NULL, error = $2,
    notified_at = tranche_now()
WHERE name = $1`

	receiverFailed = `
UPDATE alert SET next_at = tranche_now() + $2::interval, failures = failures + 1,
    failing_since = coalesce(failing_since, tranche_now()), error = $3
WHERE name = $1`

	// Conditions of an undelivered message are reported again if they hold. The end of a worsened one still is.
	untell = `
UPDATE alert_condition SET notified_severity = before, before = NULL, message = NULL
WHERE alert = $1 AND message = $2 AND NOT one_shot AND (ended_at IS NULL OR before IS NOT NULL)`

	forgetEnded = `DELETE FROM alert_condition WHERE alert = $1 AND message = $2 AND ended_at IS NOT NULL`
)

// Claim returns attempts to make now: at most one per rule and most in total, and none for rules in progress. It counts
// them first: one not recorded, since the leader died, is repeated after hold. Leader work.
func (s Store) Claim(
	ctx context.Context, lease workqueue.Lease, underWay []string, most int, hold time.Duration,
) (due []Attempt, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		due, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[Attempt], claimAttempts, append([]string{}, underWay...), most,
			hold)
		return err
	})
	return due, pg.Wrap(err, "find messages of alerts")
}

// Delivered records a success; but names receivers not reached. False: the message has already ended. Leader work.
func (s Store) Delivered(ctx context.Context, lease workqueue.Lease, a *Attempt, but string) (noted bool, err error) {
	err = s.end(ctx, lease, a, func(ctx context.Context, tx pgx.Tx, changed bool) error {
		but := pg.Plain(but)
		tag, err := tx.Exec(ctx, noteDelivered, a.Message, a.Number, but)
		if noted = tag.RowsAffected() == 1; err != nil || !noted || changed {
			return err
		}
		return pg.Later(ctx, tx, receiverTold, a.Alert, but)
	})
	return noted, err
}

// keepMessages is how long delivered and abandoned messages are kept.
const keepMessages = 30 * 24 * time.Hour

// Forget deletes old ended messages of all rules, including deleted ones. Leader work.
func (s Store) Forget(ctx context.Context, lease workqueue.Lease) error {
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		return pg.Later(ctx, tx, forgetMessages, keepMessages)
	})
	return pg.Wrap(err, "delete old messages of alerts")
}

// Failure is why an attempt failed, and what follows.
type Failure struct {
	Reason string
	Pause  time.Duration // before the rule's next attempt
	GiveUp bool
}

// Failed records a failure. It returns false like Delivered, and if the rule has a new text and receiver. Leader work.
func (s Store) Failed(ctx context.Context, lease workqueue.Lease, a *Attempt, f Failure) (noted bool, err error) {
	err = s.end(ctx, lease, a, func(ctx context.Context, tx pgx.Tx, changed bool) error {
		if noted = false; changed {
			return nil
		}
		reason := pg.Plain(f.Reason)
		tag, err := tx.Exec(ctx, noteFailed, a.Message, a.Number, reason, f.GiveUp)
		if noted = tag.RowsAffected() == 1; err != nil || !noted {
			return err
		}
		if f.GiveUp {
			for _, sql := range []string{untell, forgetEnded} {
				if err := pg.Later(ctx, tx, sql, a.Alert, a.Message); err != nil {
					return err
				}
			}
		}
		return pg.Later(ctx, tx, receiverFailed, a.Alert, f.Pause, reason)
	})
	return noted, err
}

// end locks the rule first, like all writers here, and passes whether its text differs from the attempt's.
func (s Store) end(
	ctx context.Context, lease workqueue.Lease, a *Attempt, f func(ctx context.Context, tx pgx.Tx, changed bool) error,
) error {
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		version := 0
		if err := tx.QueryRow(ctx, lockRule, a.Alert).Scan(&version); err != nil {
			return err
		}
		return f(ctx, tx, version != a.Version)
	})
	return pg.Wrap(err, "note message %s of alert %s", a.Message, a.Alert)
}

// maxRuns limits the completions that a look reads, unless they happened within twice the overlap.
const maxRuns = 20_000

// Completion is a completed run.
type Completion struct {
	Event     string // event ID, the same for all readers
	Run       workqueue.RunID
	Name      string
	Plan      string
	Namespace string
	Endpoints []string
	Items     int64
	Done      int64
	Failed    int64 // and not accepted
	At        time.Time
}

const (
	// run_event_completed. A run restarted since has other counts now; the event has the right ones.
	completions = `
SELECT e.id::text, e.run_id, coalesce(r.name, ''), r.plan, r.namespace,
    array(SELECT DISTINCT s.endpoint FROM run_step s WHERE s.run_id = r.id), r.items,
    coalesce((e.payload->>'done')::bigint, r.done, 0),
    coalesce((e.payload->>'failed')::bigint, r.failed, 0) - coalesce((e.payload->>'accepted')::bigint, 0), e.at
FROM run_event e JOIN batchrun r ON r.id = e.run_id
WHERE e.kind = 'completed' AND e.at >= $1
ORDER BY e.at, e.id LIMIT $2`

	labelRuns = `
SELECT r.id, r.plan, r.namespace, array(SELECT DISTINCT s.endpoint FROM run_step s WHERE s.run_id = r.id)
FROM batchrun r WHERE r.id = ANY ($1)`
)

// Completions returns what has completed since a time. If there is more, it says until when it has read; the next look,
// which begins an overlap before, gets further.
func (s Store) Completions(ctx context.Context, since time.Time) (done []Completion, until time.Time, err error) {
	for n := maxRuns; ; n *= 2 {
		done, err = pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Completion], completions, since, n)
		if err != nil || len(done) < n {
			return done, time.Time{}, pg.Wrap(err, "read completions for alerts")
		}
		if until = done[n-1].At; until.Sub(since) > 2*overlap {
			return done, until, nil
		}
	}
}

// Label is the plan, namespace and endpoints of a run.
type Label struct {
	Run       workqueue.RunID
	Plan      string
	Namespace string
	Endpoints []string
}

// Labels returns the labels of runs.
func (s Store) Labels(ctx context.Context, runs []workqueue.RunID) (map[workqueue.RunID]Label, error) {
	labels := map[workqueue.RunID]Label{}
	if len(runs) == 0 {
		return labels, nil
	}
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Label], labelRuns, runs)
	if err != nil {
		return nil, fmt.Errorf("read what runs are of: %w", err)
	}
	for _, l := range all {
		labels[l.Run] = l
	}
	return labels, nil
}

// Now returns the database's time.
func (s Store) Now(ctx context.Context) (time.Time, error) { return pg.Now(ctx, s.db.Pool) }
